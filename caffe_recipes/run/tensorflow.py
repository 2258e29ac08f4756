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
from itertools import chain
from pathlib import Path
from typing import ClassVar

from caffe_recipes.caffe.logs import (
    BatchOutput,
    Done,
    Entry,
    Event,
    Fatal,
    LogSummary,
    Loss,
    MeanOutput,
    Rate,
    Snapshot,
    SnapshotEnded,
    SolverState,
    split_rank,
)
from caffe_recipes.cluster.commands import Host
from caffe_recipes.cluster.hosts import file_digest
from caffe_recipes.cluster.profiles import Profile
from caffe_recipes.cluster.staging.file_sets import FileSet, SetFile, stat_source
from caffe_recipes.cluster.staging.relay import digest_of
from caffe_recipes.data.tfrecords import RecordSet, load_record_set, records_manifest_path
from caffe_recipes.errors import ClusterError, DataError, InputError, WeightsError
from caffe_recipes.recipe.model import TensorFlowRecipe
from caffe_recipes.render.horovod import render_horovod
from caffe_recipes.run.snapshots import as_failure, verify_digest
from caffe_recipes.run.trainer import Attempt, Checkpoint, Testing, Trainer, Training, Trial
from caffe_recipes.tensorflow.logs import STEP_LINE, parse_evaluations
from caffe_recipes.tensorflow.records import deal_files
from caffe_recipes.tensorflow.run import (
    TOO_OLD,
    Misspelt,
    Records,
    checkout,
    evaluate_argv,
    evaluate_environment,
    find_unknown_flags,
    program_texts,
    train_argv,
)

STEP = "train"
_ENVIRONMENT = ".venv-tf"
_MODEL, _STATE = ".data-00000-of-00001", ".index"
_STATE_NAME = re.compile(r".*/model\.ckpt-([0-9]{1,10})\.index", re.DOTALL)
_CHECKPOINT_NAME = re.compile(r"model\.ckpt-([0-9]{1,10})\..+")
_RATES = "tf_rates.py"
_STARTED = ("resnet_main.py", "resnet_eval.py")
_TOO_OLD = "is older than Python 3.11, which the programs need"
_FLAG = re.compile(r"(.+\.py): (.*flag.*)", re.IGNORECASE)
_HINT = "resume from another checkpoint, or start over with --new"
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
    title: ClassVar[str] = "TensorFlow"
    always_checkpoints: ClassVar[bool] = True
    binding: ClassVar[tuple[str, ...]] = ("-bind-to socket",)
    failure_hint: ClassVar[str] = "name the Python that has TensorFlow and Horovod as `python` in the profile"
    model_suffix: ClassVar[str] = _STATE
    file_kind: ClassVar[str] = "program"
    initialization: ClassVar[str] = "fresh weights"
    checks: ClassVar[tuple[str, ...]] = (
        *("trainer", "ranks", "folders", "programs", "train records", "test records"),
        *("snapshots", "disk"),
    )

    def find_program(self, root: Path, path: str, profile: Profile) -> str:
        """Return the Python that has TensorFlow: the profile's, else that of .venv-tf, else python3."""
        if profile.container is not None:
            return profile.python or "python3"
        for folder in _own_programs():
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
            raise InputError("python3", "not found", self.failure_hint)
        return found

    def environment(self, root: Path) -> dict[str, str]:
        """Return the environment variables of every process.

        The programs and tf_rates.py are imported by PYTHONPATH alone. An empty or relative path of the user's
        would be the working folder, or one below it, and is left out.
        """
        given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        folders = [str(root / self._folder), *_own_programs(), *(path for path in given if path[:1] == "/")]
        quiet = os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2")
        return {
            "PYTHONPATH": os.pathsep.join(folders),
            "PYTHONUNBUFFERED": "1",
            "TF_CPP_MIN_LOG_LEVEL": quiet,
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
        if "file_groups" not in run.flags and self.file_groups > 1:
            argv = (*argv, f"--file_groups={self.file_groups}")
        name = f"model.ckpt-{last}"
        every = run.flags.get("save_checkpoints_steps")
        every_iter = every if isinstance(every, int) else last
        step = Training(
            phase=STEP,
            net=STEP,
            arguments=_arguments_of(argv),
            weights=None,
            snapshot=f"{folder}/model/{name}{_STATE}",
            fetched=f"{folder}/snapshots/{name}{_STATE}",
            last_iter=last,
            is_stopped=False,
            images_per_iter=cluster.global_batch,
            snapshots=1,
            needed=((f"{folder}/model/{name}{_MODEL}", f"{folder}/snapshots/{name}{_MODEL}"),),
            every_iter=every_iter,
            is_evaluated=True,
            reported=self.recipe.reported,
        )
        return (step,)

    @property
    def file_groups(self) -> int:
        """To how many groups of ranks the training files are dealt: by default each node gets its own.

        Not by default where the images of a step must not depend on the nodes, where there are too few files,
        and for the user's own programs, which may not know the flag.
        """
        run, nodes = self.recipe.tensorflow, self.recipe.cluster.nodes
        is_shared = run.flags.get("deterministic") or run.data.train.files < nodes or _own_programs()
        return int(run.flags.get("file_groups", 1 if is_shared else nodes))

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
        name = posixpath.basename(step.fetched).removesuffix(_STATE)
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
        path = training.fetched.removesuffix(_STATE)
        words = [word for word in training.arguments[2:] if not word.startswith("--data_dir")]
        arguments = ("-P", self._checker, *words, "--data_dir=.", f"--checkpoint={path}")
        return Testing(STEP, STEP, arguments, training.fetched, 0)

    def main_line(self) -> frozenset[str]:
        """Return the name of the only phase."""
        return frozenset((STEP,))

    def classes(self) -> int:
        """Return the number of classes that the model distinguishes."""
        return self.recipe.tensorflow.classes or 1000

    @property
    def data_folder(self) -> str:
        """The folder on each node that holds the training records."""
        return self.recipe.tensorflow.data.train.folder

    @property
    def data_source(self) -> str | None:
        """The folder from which the training records are staged; None if the recipe names none."""
        return self.recipe.tensorflow.data.train.source

    @property
    def test_folder(self) -> str | None:
        """The folder that holds the validation records."""
        return self.recipe.tensorflow.data.validation.folder

    def data_files(self, folder: str) -> tuple[str, ...]:
        """Return where the manifest of records may be: in the folder if they were staged, else beside it."""
        return (f"{folder}/{_STAGED_MANIFEST}", str(records_manifest_path(Path(folder))))

    @property
    def staged_folders(self) -> tuple[str, ...]:
        """The folders of training records, and of validation records if they have a source."""
        data = self.recipe.tensorflow.data
        return (data.train.folder, *([data.validation.folder] if data.validation.source else []))

    def file_sets(
        self, root: Path, names: Sequence[str], source: Path | None, *, is_whole: bool = False
    ) -> list[FileSet]:
        """Return the records that each host's ranks read, and for the first host all validation records."""
        data = self.recipe.tensorflow.data
        if not (source or data.train.source):
            hint = "write it as tensorflow.data.train.source, or give it with --lmdb-source"
            raise InputError(self.recipe.name, "names no folder to stage TFRecords from", hint)
        folder = root / (source or data.train.source or "")
        train = _load_records(data.train, folder, self.classes())
        wanted = dict.fromkeys(names, train.all) if is_whole else self._deal(train, names)
        sets = [FileSet(str(root / data.train.folder), folder, wanted, root)]
        if data.validation.source:
            folder = root / data.validation.source
            validation = _load_records(data.validation, folder, self.classes())
            wanted = dict.fromkeys(names if is_whole else names[:1], validation.all)
            sets.append(FileSet(str(root / data.validation.folder), folder, wanted, root))
        return sets

    def check_source(self, root: Path, given: Path | None) -> None:
        """Do nothing: `file_sets` checks the records."""

    @property
    def built(self) -> tuple[str, ...]:
        """The folders of records that a run builds if they are missing."""
        data = self.recipe.tensorflow.data
        if data.prepare is None:
            return ()
        return tuple(each.source or each.folder for each in (data.train, data.validation))

    def build(self, folder: Path) -> None:
        """Build the records of the digits inside `folder`. Raises RunFailed if the disk is full."""
        from caffe_recipes.data.digits import build_digit_records

        data = self.recipe.tensorflow.data
        build_digit_records(folder, (data.train.files, data.validation.files))

    def files(self) -> dict[str, str]:
        """Return the programs, unless RESNET_DIR names others, and the schedule that they import."""
        rates = render_horovod(self.recipe)[f"jobs/{self.recipe.name}/{_RATES}"]
        texts = {
            f"{self._folder}/{name}": text
            for name, text in program_texts()
            if not _own_programs() or name == posixpath.basename(self._checker)
        }
        return {**texts, f"{self._folder}/{_RATES}": rates}

    @property
    def landmarks(self) -> tuple[str, ...]:
        """Paths by any of which the current folder is known as the recipe's Caffe root."""
        return (_ENVIRONMENT, *self.folders())

    @property
    def inputs(self) -> tuple[str, ...]:
        """The programs, and all that they could import from beside those that RESNET_DIR names."""
        own = [path for folder in _own_programs() for path in (folder, *_modules_in(folder))]
        return (self._folder, *self.files(), *own)

    def unknown_flags(self) -> tuple[Misspelt, ...]:
        """Return the recipe's flags that the programs do not know; none if RESNET_DIR names others."""
        return () if _own_programs() else tuple(find_unknown_flags(self.recipe.tensorflow))

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
        model, name = posixpath.split(checkpoint.state.removesuffix(_STATE))
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

    def prefix(self, training: Training) -> str:
        """Return the common prefix of the paths of all checkpoints."""
        return training.snapshot.rpartition("-")[0]

    def written_at(self, training: Training, iteration: int) -> tuple[str, ...]:
        """Return the paths of the checkpoint that is written at an iteration."""
        path = f"{self.prefix(training)}-{iteration}"
        return (f"{path}{_STATE}", f"{path}{_MODEL}")

    def model_bytes(self, files: Mapping[str, str], net: str, root: Path, source: Path | None) -> int | None:
        """Return the size of a ResNet-50 checkpoint in bytes, with momentum; None for other depths."""
        if self.recipe.tensorflow.resnet_depth not in (None, 50):
            return None
        learned, moving = 23_508_032 + 2049 * self.classes(), 53_120
        return 4 * (2 * learned + moving)

    def check_model(self, files: Mapping[str, str], net: str, path: Path) -> None:
        """Raise WeightsError if a file is empty; `read_back` verifies its content."""
        if not path.stat().st_size:
            raise WeightsError(path, "is empty", "give another snapshot")

    def checkpoint_iter(self, state: str) -> int | None:
        """Return the global step in the path of a checkpoint's index file; None for any other path."""
        found = _STATE_NAME.fullmatch(state)
        return int(found[1]) if found else None

    def model_beside(self, state: str) -> str:
        """Return the data file that belongs to an index file."""
        return f"{state.removesuffix(_STATE)}{_MODEL}"

    def fetch_checkpoint(
        self, host: Host, root: Path, files: Mapping[str, str], training: Training, state: str, folder: str
    ) -> Checkpoint:
        """Return a checkpoint with its digests; it stays in place, in a folder that all hosts share.

        Raises RunFailed if it cannot be read.
        """
        model = self.model_beside(state)
        paths = [posixpath.join(root, path) for path in (state, model)]
        try:
            digests = [file_digest(host, path) for path in paths]
        except ClusterError as error:
            raise as_failure(error, host, paths[0], "the checkpoint") from None
        iteration = self.checkpoint_iter(state) or 0
        return Checkpoint(training.phase, iteration, state, digests[0], model, digests[1], paths[0], paths[1])

    def verify_checkpoint(
        self, root: Path, files: Mapping[str, str], net: str, checkpoint: Checkpoint
    ) -> None:
        """Raise WeightsError if a file of a checkpoint is missing or has changed."""
        what = f"the checkpoint at step {checkpoint.iteration:,}"
        verify_digest(root / checkpoint.state, checkpoint.state_sha256, what, _HINT)
        verify_digest(root / checkpoint.model, checkpoint.model_sha256, what, _HINT)

    def trial(self) -> Trial:
        """Return a trial that imports TensorFlow and Horovod, and has each program read its flags."""
        given = (self.steps("run")[0].arguments, self.testings("run")[0].arguments)
        ours = {} if _own_programs() else dict(program_texts())
        tried = [
            [name if ours else words[1], *words[2:]] for name, words in zip(_STARTED, given, strict=True)
        ]
        all_well = "imports both libraries, and the programs know their flags"
        attempts = {"the programs": ("-P", "trial.py", json.dumps(tried))}
        return Trial({"trial.py": _TRIAL, **ours}, attempts, all_well)

    def judge(self, attempt: Attempt, limit_s: float) -> str | None:
        """Return what went wrong in an attempt of the trial, with its last line; None if nothing did."""
        lines = [" ".join(line.split()) for line in attempt.log.splitlines() if line.strip()]
        if attempt.code == 0 and any(line.startswith("caffe-recipes: ") for line in lines):
            return None
        if attempt.code in (124, 137):
            return f"does not import TensorFlow and Horovod within {limit_s:.0f} s"
        if TOO_OLD in lines:
            return f"{_TOO_OLD}; {self.failure_hint}"
        last = lines[-1][:200] if lines else f"returned {attempt.code}"
        if (known := _FLAG.match(last)) is not None:
            return f"cannot start {known[1]}: {known[2]}; correct tensorflow.flags, or RESNET_DIR"
        return f"does not import TensorFlow and Horovod: {last}"

    def world_arguments(self) -> tuple[str, ...]:
        """Return arguments that make each rank print `caffe-recipes: rank R of N`."""
        return ("-P", "-c", _PRINT_RANK)

    def outputs(self, summary: LogSummary, testing: Testing) -> dict[str, float]:
        """Return the accuracies; empty unless all images were evaluated with the model of the last step."""
        found = dict(summary.mean_outputs)
        step, batches = found.pop("global_step", None), max(summary.batches, default=0)
        wanted = self.recipe.tensorflow.schedule.steps
        return found if (step, batches) == (wanted, testing.iterations) else {}

    def _deal(self, records: _RecordFiles, names: Sequence[str]) -> dict[str, Sequence[SetFile]]:
        """Return the files that the ranks of each host read; spares get none."""
        cluster, groups = self.recipe.cluster, self.file_groups
        dealt: dict[str, Sequence[SetFile]] = {}
        for node, name in enumerate(names[: cluster.nodes]):
            first = node * cluster.ranks_per_node
            ranks = range(first, first + cluster.ranks_per_node)
            read = sorted({rank * groups // cluster.ranks for rank in ranks})
            dealt_to = (deal_files(records.files, groups, group, records.seed) for group in read)
            dealt[name] = [*chain.from_iterable(dealt_to), records.manifest]
        return dealt

    @property
    def _folder(self) -> str:
        return f"tensorflow/{self.recipe.name}"

    @property
    def _checker(self) -> str:
        return f"{self._folder}/resnet_check.py"

    def _program(self, name: str) -> str:
        given = _own_programs()
        return posixpath.join(given[0] if given else self._folder, name)


@dataclass(frozen=True)
class _RecordFiles:
    """The files of a folder of TFRecords, their manifest, and the seed that deals them to the ranks."""

    files: Sequence[SetFile]
    manifest: SetFile
    seed: int

    @property
    def all(self) -> Sequence[SetFile]:
        return [*self.files, self.manifest]


_STAGED_MANIFEST = ".manifest.json"


def load_records_manifest(records: Records, source: Path, classes: int) -> RecordSet:
    """Read the manifest of a folder of TFRecords; raises DataError unless it is of the recipe's records."""
    path, made = records_manifest_path(source), load_record_set(source)
    if made is None:
        raise DataError(path, "no such file", "create the records, or name their folder with --lmdb-source")
    if (made.records, made.shards) != (records.images, records.files):
        what = f"{made.records:,} images in {made.shards:,} files; the recipe says {records.images:,} in "
        raise DataError(path, f"{what}{records.files:,}", "correct the recipe, or name other records")
    if made.classes is not None and len(made.classes) != classes:
        what = f"records of {len(made.classes):,} classes; the recipe says {classes:,}"
        raise DataError(path, what, "correct tensorflow.classes, or name other records")
    return made


def _load_records(records: Records, source: Path, classes: int) -> _RecordFiles:
    """Return the files of a folder of TFRecords; raises DataError unless complete and as the recipe says."""
    path, made = records_manifest_path(source), load_records_manifest(records, source, classes)
    files = []
    for name, size, digest in zip(made.counts(), made.sizes_bytes, made.digests, strict=True):
        seen = stat_source(source / name)
        if seen.size_bytes != size:
            what = f"{seen.size_bytes:,} bytes; the manifest says {size:,}"
            raise DataError(seen.data, what, "copy or create the records again")
        files.append(SetFile(name, seen, digest))
    manifest = SetFile(_STAGED_MANIFEST, stat_source(path), digest_of(path))
    return _RecordFiles(files, manifest, made.seed)


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


def _progress(match: re.Match[str]) -> list[Event]:
    return [Loss(int(match[1]), float(match[2])), Rate(int(match[1]), float(match[3]))]


def _saving(match: re.Match[str]) -> list[Event]:
    path = f"{match[2]}-{match[1]}"
    return [Snapshot(f"{path}{_MODEL}"), SolverState(f"{path}{_STATE}")] if int(match[1]) else []


def _result(match: re.Match[str]) -> list[Event]:
    (found,) = parse_evaluations(match[0]).evaluations
    values = {"top-1": found.top1, "top-5": found.top5, "loss": found.loss, "global_step": float(found.step)}
    return [MeanOutput(name, value) for name, value in values.items() if value is not None]


_EVENTS: Sequence[tuple[re.Pattern[str], Callable[[re.Match[str]], list[Event]]]] = (
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


def _own_programs() -> tuple[str, ...]:
    """Return the folder of the user's own programs, $RESNET_DIR, if set, as the generated scripts do."""
    given = os.environ.get("RESNET_DIR")
    return (str(Path(given).absolute()),) if given else ()
