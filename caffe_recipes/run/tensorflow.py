"""The trainer for TensorFlow under Horovod.

A run is a single phase, `train`. Its checkpoints are sets of files in the folder `model` inside the run's
folder, which all hosts share; the file `checkpoint` next to them names the one that the program resumes.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import posixpath
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import ClassVar

from caffe_recipes.caffe.logs import (
    BatchOutput,
    Done,
    Entry,
    Fatal,
    LogEvent,
    LogSummary,
    Loss,
    MeanOutput,
    Rate,
    Snapshot,
    SnapshotEnded,
    SolverState,
    split_rank,
)
from caffe_recipes.cluster.profiles import Profile
from caffe_recipes.config import Location
from caffe_recipes.errors import InputError
from caffe_recipes.recipe.model import TensorFlowRecipe
from caffe_recipes.render.horovod import render_horovod
from caffe_recipes.run.tensorflow_data import TensorFlowData
from caffe_recipes.run.tensorflow_models import MODEL, STATE, TensorFlowModels
from caffe_recipes.run.trainer import Attempt, Checkpoint, ProgramWords, Testing, Trainer, Training, Trial
from caffe_recipes.tensorflow.logs import STEP_LINE, parse_evaluations
from caffe_recipes.tensorflow.run import (
    TOO_OLD,
    checkout,
    evaluate_argv,
    evaluate_environment,
    find_unknown_flags,
    own_programs,
    program_texts,
    train_argv,
)
from caffe_recipes.trust import VARIABLE, named_owners

STEP = "train"
_ENVIRONMENT = ".venv-tf"
_CHECKPOINT_NAME = re.compile(r"model\.ckpt-([0-9]{1,10})\..+")
_RATES = "tf_rates.py"
_STARTED = ("resnet_main.py", "resnet_eval.py")
_TOO_OLD = "is older than Python 3.11, which the programs need"
_FLAG = re.compile(r"(.+\.py): (.*flag.*)", re.IGNORECASE)
# Run by each rank: prints its number and the number of ranks.
_PRINT_RANK = (
    "import horovod.tensorflow as hvd; hvd.init(); "
    "print(f'caffe-recipes: rank {hvd.rank()} of {hvd.size()}', flush=True); hvd.shutdown()"
)
# Run on each host: loads each program, has it read its flags, and prints the versions of the libraries.
_TRIAL = """\
import json, os, runpy, sys
import horovod
import horovod.tensorflow as hvd
import tensorflow
from absl import flags

if not hvd.mpi_built():
    raise SystemExit("Horovod was built without MPI; build it with HOROVOD_WITH_MPI=1")
known = set(flags.FLAGS)
for words in json.loads(sys.argv[1]):
    if os.fork():  # both programs have flags of the same names
        if os.wait()[1]:
            raise SystemExit(1)
        continue
    sys.path.insert(0, os.path.dirname(os.path.abspath(words[0])))
    runpy.run_path(words[0], run_name="trial")
    if set(flags.FLAGS) - known:  # a program may read its flags in another way
        try:
            flags.FLAGS(words)
        except flags.Error as error:
            raise SystemExit(f"{words[0]}: {error}".splitlines()[0])
    os._exit(0)
print(f"caffe-recipes: TensorFlow {tensorflow.__version__}, Horovod {horovod.__version__}")
"""


@dataclass(frozen=True)
class TensorFlow(Trainer):
    """The trainer that runs resnet_main.py on every rank, and resnet_eval.py for the evaluation."""

    recipe: TensorFlowRecipe
    words: ClassVar[ProgramWords] = ProgramWords(
        "TensorFlow",
        "program",
        "fresh weights",
        "name the Python that has TensorFlow and Horovod as `python` in the profile",
    )
    always_checkpoints: ClassVar[bool] = True
    pins_threads: ClassVar[bool] = False
    checks: ClassVar[tuple[str, ...]] = (
        *("trainer", "ranks", "folders", "programs", "train records", "test records"),
        *("snapshots", "disk"),
    )

    @property
    def data(self) -> TensorFlowData:
        """The TFRecords of the recipe."""
        return TensorFlowData(self.recipe)

    @property
    def models(self) -> TensorFlowModels:
        """The checkpoints of the only phase."""
        return TensorFlowModels(self.recipe)

    def find_program(self, root: Path, path: str, profile: Profile) -> str:
        """Return the Python that has TensorFlow: the profile's, else that of .venv-tf, else python3."""
        if profile.container is not None:
            return profile.python or "python3"
        for folder in own_programs():
            for name in _STARTED:
                if not Path(folder, name).is_file():
                    raise InputError(Path(folder, name), "no such program", "correct or unset RESNET_DIR")
        if profile.python is not None:
            found = shutil.which(profile.python, path=path)
            if found is None:
                raise InputError(profile.name, f"python: {profile.python} is not a program", "correct it")
            return found
        ours = [folder / _ENVIRONMENT / "bin/python" for folder in (root, checkout())]
        found = next((str(each) for each in ours if each.exists()), shutil.which("python3", path=path))
        if found is None:
            raise InputError("python3", "not found", self.words.if_broken)
        return found

    def environment(self, root: Path) -> dict[str, str]:
        """Return the environment variables of every process.

        The programs and tf_rates.py are imported by PYTHONPATH alone. An empty or relative path of the user's
        would be the working folder, or one below it, and is left out. Ranks trust the owners that we trust.
        """
        given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        folders = [str(root / self._folder), *own_programs(), *(path for path in given if path[:1] == "/")]
        quiet = os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2")
        return {
            "PYTHONPATH": os.pathsep.join(folders),
            "PYTHONUNBUFFERED": "1",
            "TF_CPP_MIN_LOG_LEVEL": quiet,
            **({VARIABLE: " ".join(map(str, named))} if (named := named_owners()) else {}),
        }

    def steps(self, folder: str) -> tuple[Training, ...]:
        """Return the only phase, for a run whose folder is `folder`."""
        run, cluster, data = self.recipe.tensorflow, self.recipe.cluster, self.recipe.tensorflow.data
        last = run.schedule.steps
        argv = train_argv(
            run,
            workers=cluster.ranks,
            per_node=cluster.ranks_per_node,
            batch=cluster.global_batch,
            images=data.train.images,
            script=self._program("resnet_main.py"),
            data_dir=data.train.folder,
            model_dir=f"{folder}/model",
        )
        if "file_groups" not in run.flags and self.data.file_groups > 1:
            argv = (*argv, f"--file_groups={self.data.file_groups}")
        name = f"model.ckpt-{last}"
        every = run.flags.get("save_checkpoints_steps")
        every_iter = every if isinstance(every, int) else last
        step = Training(
            phase=STEP,
            net=STEP,
            arguments=_arguments_of(argv),
            weights=None,
            snapshot=f"{folder}/model/{name}{STATE}",
            fetched=f"{folder}/snapshots/{name}{STATE}",
            last_iter=last,
            is_stopped=False,
            images_per_iter=cluster.global_batch,
            snapshots=1,
            needed=((f"{folder}/model/{name}{MODEL}", f"{folder}/snapshots/{name}{MODEL}"),),
            every_iter=every_iter,
            is_evaluated=True,
            reported=self.recipe.reported,
        )
        return (step,)

    def testings(self, folder: str) -> tuple[Testing, ...]:
        """Return the evaluation of the fetched checkpoint."""
        run, images = self.recipe.tensorflow, self.recipe.tested_images
        (step,) = self.steps(folder)
        kept = posixpath.dirname(step.fetched)
        argv = evaluate_argv(
            run,
            images=images,
            script=self._program("resnet_eval.py"),
            data_dir=run.data.validation.folder,
            model_dir=kept,
        )
        batches = -(-images // run.evaluation.batch_size)
        name = posixpath.basename(step.fetched).removesuffix(STATE)
        testing = Testing(
            phase=STEP,
            net=STEP,
            arguments=_arguments_of(argv),
            weights=step.fetched,
            iterations=batches,
            needed=step.kept[1:],
            files={f"{kept}/checkpoint": _name_checkpoint(name)},
            environment=evaluate_environment(run),
        )
        return (testing,)

    def read_back(self, training: Training) -> Testing | None:
        """Return a process that loads the fetched checkpoint, since this package runs without TensorFlow."""
        path = training.fetched.removesuffix(STATE)
        words = [word for word in training.arguments[2:] if not word.startswith("--data_dir")]
        arguments = ("-P", self._checker, *words, "--data_dir=.", f"--checkpoint={path}")
        return Testing(STEP, STEP, arguments, training.fetched, 0)

    def files(self) -> dict[str, str]:
        """Return the programs, unless RESNET_DIR names others, and the schedule that they import."""
        rates = render_horovod(self.recipe)[f"jobs/{self.recipe.name}/{_RATES}"]
        texts = {
            f"{self._folder}/{name}": text
            for name, text in program_texts()
            if not own_programs() or name == posixpath.basename(self._checker)
        }
        return {**texts, f"{self._folder}/{_RATES}": rates}

    @property
    def landmarks(self) -> tuple[str, ...]:
        """Paths by any of which the current folder is known as the recipe's Caffe root."""
        return (_ENVIRONMENT, *self.folders())

    @property
    def inputs(self) -> tuple[str, ...]:
        """The programs, and all that they could import from beside those that RESNET_DIR names."""
        own = [path for folder in own_programs() for path in (folder, *_modules_in(folder))]
        return (self._folder, *self.files(), *own)

    def unknown_flags(self) -> tuple[tuple[Location, str, str], ...]:
        """Return the recipe's flags that the programs do not know; none if RESNET_DIR names others."""
        return () if own_programs() else tuple(find_unknown_flags(self.recipe.tensorflow))

    def folders(self) -> tuple[str, ...]:
        """Return the folder that holds `files`."""
        return (self._folder,)

    def digest_files(self, files: Mapping[str, str]) -> dict[str, str]:
        """Return a digest of the schedule without its comments. The programs may change between launches."""
        path = f"{self._folder}/{_RATES}"
        return {path: hashlib.sha256(ast.dump(ast.parse(files[path])).encode()).hexdigest()}

    def launch_arguments(
        self,
        training: Training,
        checkpoint: Checkpoint | None,
        every: int | None,
        files: Mapping[str, str],
        folder: str,
    ) -> tuple[tuple[str, ...], dict[str, str]]:
        """Return the arguments of a launch, and the file that names the checkpoint to resume."""
        more = () if every is None else (f"--save_checkpoints_steps={every}",)
        if checkpoint is None:
            return (*training.arguments, *more), {}
        model, name = posixpath.split(checkpoint.state.removesuffix(STATE))
        return (*training.arguments, *more), {f"{model}/checkpoint": _name_checkpoint(name)}

    def set_aside(self, root: Path, training: Training, checkpoint: Checkpoint | None) -> Iterator[str]:
        """Move away all checkpoints except the one to resume; yield the names of those that were moved."""
        folder = root / posixpath.dirname(training.snapshot)
        kept = checkpoint.iteration if checkpoint else None
        names = sorted(path.name for path in folder.glob("*")) if folder.is_dir() else []
        found = {name: _CHECKPOINT_NAME.fullmatch(name) for name in names}
        others = [name for name, match in found.items() if match and int(match[1]) != kept]
        if kept is None and "checkpoint" in names:
            others.append("checkpoint")
        for name in others:
            (folder / "set-aside").mkdir(exist_ok=True)
            (folder / name).replace(folder / "set-aside" / name)
        numbers = {int(match[1]) for name, match in found.items() if match and name in others}
        yield from (f"model.ckpt-{number}" for number in sorted(numbers))

    def new_log_summary(self) -> LogSummary:
        """Return an empty log summary to feed lines into."""
        return ProgramLog()

    def trial(self) -> Trial:
        """Return a trial that imports TensorFlow and Horovod, and has each program read its flags."""
        given = (self.steps("run")[0].arguments, self.testings("run")[0].arguments)
        ours = {} if own_programs() else dict(program_texts())
        tried = [
            [name if ours else words[1], *words[2:]] for name, words in zip(_STARTED, given, strict=True)
        ]
        all_well = "imports both libraries, and the programs know their flags"
        attempts = {"the programs": ("-P", "trial.py", json.dumps(tried))}
        return Trial(
            {"trial.py": _TRIAL, **ours}, attempts, all_well, judge_horovod_trial, ("-P", "-c", _PRINT_RANK)
        )

    def outputs(self, summary: LogSummary, testing: Testing) -> dict[str, float]:
        """Return the accuracies; empty unless all images were evaluated with the model of the last step."""
        found = dict(summary.mean_outputs)
        step, batches = found.pop("global_step", None), max(summary.batches, default=0)
        wanted = self.recipe.tensorflow.schedule.steps
        return found if (step, batches) == (wanted, testing.iterations) else {}

    @property
    def _folder(self) -> str:
        return f"tensorflow/{self.recipe.name}"

    @property
    def _checker(self) -> str:
        return f"{self._folder}/resnet_check.py"

    def _program(self, name: str) -> str:
        given = own_programs()
        return posixpath.join(given[0] if given else self._folder, name)


def judge_horovod_trial(attempt: Attempt, limit_s: float) -> str | None:
    """Return what went wrong in an attempt of the trial, with its last line; None if nothing did."""
    lines = [" ".join(line.split()) for line in attempt.log.splitlines() if line.strip()]
    if attempt.code == 0 and any(line.startswith("caffe-recipes: ") for line in lines):
        return None
    if attempt.code in (124, 137):
        return f"does not import TensorFlow and Horovod within {limit_s:.0f} s"
    if TOO_OLD in lines:
        return f"{_TOO_OLD}; {TensorFlow.words.if_broken}"
    last = lines[-1][:200] if lines else f"returned {attempt.code}"
    if (known := _FLAG.match(last)) is not None:
        return f"cannot start {known[1]}: {known[2]}; correct tensorflow.flags, or RESNET_DIR"
    return f"does not import TensorFlow and Horovod: {last}"


class ProgramLog(LogSummary):
    """The summary of a log of resnet_main.py, resnet_eval.py or resnet_check.py."""

    VITAL: ClassVar[tuple[str, ...]] = (
        "Saving checkpoints",
        "checkpoint listeners",
        "Finished training",
        "resnet_",
        "FATAL ",
    )

    def feed(self, line: str, year: int = 2000) -> Entry | None:
        """Process one more line; return its last event, if it has any."""
        rank, text = split_rank(line.rstrip("\r\n"))
        found = _LINE.fullmatch(text)
        if text == TOO_OLD:
            text = f"FATAL Python {_TOO_OLD}"
        complaint = None if found else _COMPLAINT.fullmatch(text)
        if complaint:
            self.fatal = self.fatal or complaint[1]
            return Entry(Fatal(complaint[1]), rank)
        if not found:
            return None
        time = _time(year, found)
        events = [
            event
            for pattern, make in _EVENTS
            if (match := pattern.fullmatch(found[7]))
            for event in make(match)
        ]
        for event in events if rank in (None, 0) else ():
            self._apply(event, time)
        return Entry(events[-1], rank, time) if events else None


_LINE = re.compile(r"[IWEF](\d\d)(\d\d) (\d\d):(\d\d):(\d\d)\.(\d{6}) +\d+ \S+\] (.*)")
# `resnet_main.py: ...` is ours, `FATAL ...` of absl, which reads the flags.
_COMPLAINT = re.compile(r"(?:resnet_\w+\.py:|FATAL) (.+)")


def _progress(match: re.Match[str]) -> list[LogEvent]:
    return [Loss(int(match[1]), float(match[2])), Rate(int(match[1]), float(match[3]))]


def _saving(match: re.Match[str]) -> list[LogEvent]:
    path = f"{match[2]}-{match[1]}"
    return [Snapshot(f"{path}{MODEL}"), SolverState(f"{path}{STATE}")] if int(match[1]) else []


def _result(match: re.Match[str]) -> list[LogEvent]:
    (found,) = parse_evaluations(match[0]).evaluations
    values = {"top-1": found.top1, "top-5": found.top5, "loss": found.loss, "global_step": float(found.step)}
    return [MeanOutput(name, value) for name, value in values.items() if value is not None]


_EVENTS: Sequence[tuple[re.Pattern[str], Callable[[re.Match[str]], list[LogEvent]]]] = (
    (STEP_LINE, _progress),
    (re.compile(r"Saving checkpoints for (\d{1,18}) into (.+?)\.(?:\.\.)?"), _saving),
    (
        re.compile(r"Calling checkpoint listeners after saving checkpoint (\d+)\.*"),
        lambda match: [SnapshotEnded()],
    ),
    (re.compile(r"Finished training up to step \d+\.|Read back .+ all finite\."), lambda match: [Done()]),
    (
        re.compile(r"Evaluation \[(\d{1,18})/(\d{1,18})\]"),
        lambda match: [BatchOutput(int(match[1]), "in all", float(match[2]))],
    ),
    (re.compile(r"Saving dict for global step \d{1,18}: .+"), _result),
)


def _time(year: int, found: re.Match[str]) -> datetime | None:
    month, day, hour, minute, second, microsecond = (int(found[index]) for index in range(1, 7))
    try:
        return datetime(year, month, day, hour, minute, second, microsecond)
    except ValueError:
        return None


def _name_checkpoint(name: str) -> str:
    """Return the text of the file `checkpoint`, which names the checkpoint that TensorFlow resumes."""
    return f'model_checkpoint_path: "{name}"\nall_model_checkpoint_paths: "{name}"\n'


def _arguments_of(argv: Sequence[str]) -> tuple[str, ...]:
    return tuple(argv[argv.index("python") + 1 :])


# What Python imports from a folder, beside packages; it runs bytecode in place of the source of that name.
_MODULES = (".py", ".pyc", ".so")


def _modules_in(folder: str) -> list[str]:
    """Return the modules in a folder and in its packages, and the folders of these, also behind links."""
    found: list[str] = []
    seen: set[str] = set()
    for place, folders, names in os.walk(folder, followlinks=True):
        where = os.path.realpath(place)
        if where in seen:  # by a link to a folder above it
            folders.clear()
            continue
        seen.add(where)
        folders[:] = [name for name in folders if name.isidentifier()]
        modules = (name for name in names if name.endswith(_MODULES))
        found += [f"{place}/{name}" for name in (*folders, *modules)]
    return sorted(found)
