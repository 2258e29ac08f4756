"""The trainer interface of `trainer.py` for Caffe, and for caffe-torch, which reads the same files.

A phase is a solver. It starts from a caffemodel, and resumes from a solverstate and its caffemodel.
"""

from __future__ import annotations

import hashlib
import math
import os
import posixpath
import re
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from caffe_recipes.caffe import layers, pb
from caffe_recipes.caffe.dialects.schema import parse_lenient
from caffe_recipes.caffe.logs import LogSummary, summarize_log
from caffe_recipes.caffe.prototxt import digest, parse_document, render_prototxt
from caffe_recipes.caffe.text.tokens import TOKEN
from caffe_recipes.caffe.weights import (
    load_weights,
)
from caffe_recipes.cluster.profiles import Profile
from caffe_recipes.cluster.staging.relay import DATA
from caffe_recipes.errors import InputError, PrototxtError
from caffe_recipes.recipe.graph import find_evaluated, find_leaves, images_before, images_per_iter, main_line
from caffe_recipes.recipe.model import OUR_TRAINER, AnyRecipe, Phase, Recipe
from caffe_recipes.render.prototxts import build_solver
from caffe_recipes.render.recipe_files import generate_prototxts, placed_paths
from caffe_recipes.run.caffe_data import CaffeData
from caffe_recipes.run.caffe_models import CaffeModels
from caffe_recipes.run.trainer import (
    Attempt,
    Checkpoint,
    LockFree,
    ProgramWords,
    Testing,
    Trainer,
    Training,
    Trial,
)
from caffe_recipes.trust import is_own
from caffe_recipes.wording import shorten

if TYPE_CHECKING:
    from caffe_recipes.review.lint.findings import Finding

_SOLVER, _WEIGHTS, _SNAPSHOT, _NET = "--solver=", "--weights=", "--snapshot=", "--model="
# The paths in a prototxt of ours that may lead to an LMDB.
_PATHS = re.compile(r'^(\s*(?:net|train_net|test_net|source): )"([^"\\\n]*)"', re.MULTILINE)


@dataclass(frozen=True)
class Caffe(Trainer):
    """The trainer that reads solvers, nets and LMDBs, and writes caffemodels and solverstates."""

    recipe: Recipe
    words: ClassVar[ProgramWords] = ProgramWords(
        "Caffe", "prototxt", "the nets' fillers", "give another Caffe with --caffe"
    )
    always_checkpoints: ClassVar[bool] = False
    checks: ClassVar[tuple[str, ...]] = (
        *("trainer", "folders", "prototxts", "training data", "test data", "mean file", "lint"),
        *("starts from", "snapshots", "disk"),
    )

    @property
    def data(self) -> CaffeData:
        """The LMDBs of the recipe."""
        return CaffeData(self.recipe)

    @property
    def models(self) -> CaffeModels:
        """The caffemodels and solverstates."""
        return CaffeModels(self.recipe)

    @property
    def is_ours(self) -> bool:
        """Whether the trainer is caffe-torch, which ships with this package."""
        return self.recipe.trainer == OUR_TRAINER

    def find_program(self, root: Path, path: str, profile: Profile) -> str:
        """Return the command for caffe-torch, or for the Caffe binary in the Caffe root."""
        if profile.container is not None:  # the files of its image are not visible here
            return self.recipe.trainer
        return find_our_trainer(path) if self.is_ours else find_caffe(self.recipe.trainer, root)

    def steps(self, folder: str) -> tuple[Training, ...]:
        """Return a step for each phase, which starts from the snapshot of an earlier one in `folder`."""
        found = [
            {phase.name for phase in find(self.recipe)} for find in (find_leaves, main_line, find_evaluated)
        ]
        return tuple(_plan_phase(self.recipe, phase, folder, *found) for phase in self.recipe.phases)

    def testings(self, folder: str) -> tuple[Testing, ...]:
        """Return the evaluation of each phase whose model is evaluated."""
        if self.recipe.evaluation is None:
            return ()
        net, iterations = self.recipe.evaluation.net, self.recipe.evaluation.iterations
        testings = []
        for phase in find_evaluated(self.recipe):
            weights = _snapshot_path(phase, folder)
            arguments = (
                "test",
                f"{_NET}{self.recipe.net_path(net)}",
                f"{_WEIGHTS}{weights}",
                f"--iterations={iterations}",
            )
            testings.append(Testing(phase.name, net, arguments, weights, iterations))
        return tuple(testings)

    @property
    def landmarks(self) -> tuple[str, ...]:
        """Paths by any of which the current folder is known as the recipe's Caffe root."""
        return (self.recipe.trainer, *self.folders())

    @property
    def inputs(self) -> tuple[str, ...]:
        """The solvers, the nets, and the weights and mean files that the recipe names."""
        recipe = self.recipe
        solvers = [recipe.solver_path(phase.name) for phase in recipe.phases]
        weights = [start for phase in recipe.phases if isinstance(start := recipe.starts_from(phase), str)]
        own_nets = (str(recipe.folder.absolute() / file) for file in recipe.net.files)
        more = (*weights, *own_nets, *recipe.data.mean_files)
        return (*solvers, *map(recipe.net_path, recipe.nets), *more)

    def files(self) -> dict[str, str]:
        """Return the text of each prototxt, by the path that the solvers and the trainer use for it."""
        placed = placed_paths(self.recipe)
        return {placed[path]: text for path, text in generate_prototxts(self.recipe).items()}

    def mistakes(self, phases: Collection[str], root: Path, source: Path | None) -> tuple[InputError, ...]:
        """Return the errors of `lint` in the files of some phases, each at its first place."""
        from caffe_recipes.review.lint.recipe_lint import find_errors  # `status` and `attach` do not need it

        first: dict[tuple[str, str], Finding] = {}
        for found in find_errors(self.recipe, phases, root, source):
            first.setdefault((found.id, found.what), found)
        return tuple(_as_error(found) for found in first.values())

    def folders(self) -> tuple[str, ...]:
        """Return the folders under the Caffe root that hold the prototxts."""
        return self.recipe.prototxt_dirs

    def digest_files(self, files: Mapping[str, str]) -> dict[str, str]:
        """Return the digest of each prototxt's message, which ignores comments, by path."""
        return {path: digest(parse_lenient(text, path).message) for path, text in files.items()}

    def launch_arguments(
        self,
        training: Training,
        checkpoint: Checkpoint | None,
        every: int | None,
        files: Mapping[str, str],
        folder: str,
    ) -> tuple[tuple[str, ...], dict[str, str]]:
        """Return the arguments of a launch, and with `every` a copy of the solver with this interval."""
        arguments, more = training.arguments, {}
        if every is not None:
            solver = f"{folder}/solver_{training.phase}.prototxt"
            more[solver] = render_checkpoint_solver(files[_solver_of(training)], every)
            arguments = tuple(
                f"{_SOLVER}{solver}" if word.startswith(_SOLVER) else word for word in arguments
            )
        if checkpoint is not None:
            kept = (word for word in arguments if not word.startswith(_WEIGHTS))
            arguments = (*kept, f"{_SNAPSHOT}{checkpoint.state_path}")
        return arguments, more

    def avoid_locks(
        self, arguments: tuple[str, ...], files: Mapping[str, str], root: Path, folder: str
    ) -> LockFree:
        """Return arguments that read an LMDB of another user through a folder of ours, with only data.mdb.

        liblmdb opens the lock.mdb beside it for writing, which its owner could replace by a link to a file of
        ours at any time.
        """
        copies, links = dict[str, str](), dict[str, Path]()

        def copy(path: str) -> str:
            text = _PATHS.sub(replace, files.get(path, ""))
            if text == files.get(path, ""):
                return path
            copies[f"{folder}/{path.lstrip('/')}"] = text
            return f"{folder}/{path.lstrip('/')}"

        def replace(found: re.Match[str]) -> str:
            # A source is never read as a prototxt, even if it has the path of one.
            return f'{found[1]}"{link(found[2]) if "source" in found[1] else copy(found[2])}"'

        def link(path: str) -> str:
            data = _find_foreign(root / path)
            if data is None:
                return path
            own = f"{folder}/{hashlib.sha256(os.fsencode(data)).hexdigest()[:16]}"
            links[f"{own}/{DATA}"] = data
            return own

        words = [word.partition("=") for word in arguments]
        read = tuple(
            f"{option}={copy(path)}" if f"{option}=" in (_SOLVER, _NET) else f"{option}{equals}{path}"
            for option, equals, path in words
        )
        return LockFree(read, copies, links)

    def snapshot_argument(self, arguments: Sequence[str]) -> str | None:
        """Return the argument that identifies the trainer of rank 0, which writes a snapshot on SIGHUP."""
        return next((word for word in arguments if word.startswith(_SOLVER)), "")

    def find_omission(self, summary: LogSummary, training: Training, root: Path) -> str | None:
        """Return an error text if Caffe silently ignored a learned layer of the weights, else None."""
        if training.weights is None or not summary.ignored:
            return None
        ignored = find_ignored_learned(summary.ignored, root / training.weights)
        if not ignored:
            return None
        return f"Caffe ignored layer '{ignored[0]}' of {training.weights}, which is not in the net"

    def trial(self) -> Trial:
        """Return a trial: a few iterations of a tiny net with each of the recipe's lr policies."""
        solvers = trial_solvers(self.recipe)
        names = {name: f"solver_{number}.prototxt" for number, name in enumerate(solvers)}
        texts = {names[name]: render_prototxt(solver) for name, solver in solvers.items()}
        return Trial(
            {"net.prototxt": render_prototxt(trial_net()), **texts},
            {f"lr_policy {name}": ("train", f"{_SOLVER}{names[name]}") for name in solvers},
            f"trains, and supports lr_policy {', '.join(solvers)}",
            judge_caffe_trial,
        )

    def outputs(self, summary: LogSummary, testing: Testing) -> dict[str, float]:
        """Return the result of an evaluation by the net's outputs; empty if the log has no result."""
        return dict(summary.mean_outputs)


def judge_caffe_trial(attempt: Attempt, limit_s: float) -> str | None:
    """Return what went wrong in an attempt, according to its log; None if nothing did."""
    lines = [" ".join(line.split()) for line in attempt.log.splitlines() if line.strip()]
    summary: LogSummary = summarize_log(attempt.log.splitlines())
    if summary.fatal:
        return f"fails: {_short(_TRIAL_SOLVER.sub('the solver', summary.fatal))}"
    if attempt.code in (124, 137):
        last = f"; its last line: {_short(lines[-1])}" if lines else ""
        return f"does not finish a trial within {math.ceil(limit_s)} s{last}"
    if attempt.code in (126, 127):
        return f"does not start: {_short(lines[0]) if lines else f'exit code {attempt.code}'}"
    last = f"; its last line: {_short(lines[-1])}" if lines else ""
    if attempt.code and not summary.done:
        return f"does not train a tiny net: it exits with {attempt.code}{last}"
    if not summary.done:
        return f"does not train a tiny net: it exits with 0, but prints no `Optimization Done.`{last}"
    return None


def require_caffe(recipe: AnyRecipe, folder: Path) -> Recipe:
    """Return the recipe of the run in `folder`; raises InputError unless Caffe trains it."""
    if not isinstance(recipe, Recipe):
        raise InputError(folder, "its model is not a caffemodel", "ensembles need models that Caffe trained")
    return recipe


def find_our_trainer(path: str) -> str:
    """Return the path of caffe-torch; raises InputError if it is not installed."""
    found = shutil.which(OUR_TRAINER, path=path)
    if found is None:
        raise InputError(
            OUR_TRAINER, "not found", "install the extra 'engine' of caffe-recipes (see its README)"
        )
    return found


def find_caffe(trainer: str, root: Path) -> str:
    """Return the command for the Caffe binary in the Caffe root; raises InputError if it is not found.

    A run never falls back to caffe-torch: a recipe must ask for it.
    """
    if Path(trainer).name == OUR_TRAINER:
        what = "is not a Caffe binary"
        raise InputError(trainer, what, f"write `trainer: {OUR_TRAINER}` in the recipe to use caffe-torch")
    path = root / trainer
    hint = (
        f"build Caffe in {root}, or give its path with --caffe, "
        f"or write `trainer: {OUR_TRAINER}` in the recipe to train with PyTorch"
    )
    if not path.exists():
        raise InputError(path, "no such Caffe binary", hint)
    if not path.is_file() or not os.access(path, os.X_OK):
        raise InputError(path, "is not an executable program", hint)
    return trainer if "/" in trainer else f"./{trainer}"  # a bare name would be searched on PATH


def _plan_phase(
    recipe: Recipe, phase: Phase, folder: str, ends: set[str], main: set[str], tested: set[str]
) -> Training:
    start = recipe.starts_from(phase)
    weights = _snapshot_path(start, folder, phase.weights_iter) if isinstance(start, Phase) else start
    return Training(
        phase=phase.name,
        net=phase.net,
        arguments=(
            "train",
            f"{_SOLVER}{recipe.solver_path(phase.name)}",
            *([f"{_WEIGHTS}{weights}"] if weights else []),
        ),
        weights=weights,
        snapshot=phase.final_snapshot,
        fetched=_snapshot_path(phase, folder),
        last_iter=phase.last_iter,
        is_stopped=phase.stop_iter is not None,
        images_per_iter=images_per_iter(recipe, phase),
        images_before=images_before(recipe, phase),
        # The last one is written even if it is not due by the interval, and Caffe writes one when stopped.
        snapshots=math.ceil(phase.last_iter / phase.snapshot_every_iter) + (phase.stop_iter is not None),
        needed=tuple(
            (phase.snapshot_at(iteration), _snapshot_path(phase, folder, iteration))
            for iteration in recipe.needed_iters(phase)
        ),
        snapshots_at=(*recipe.needed_iters(phase), *([phase.stop_iter] if phase.stop_iter else [])),
        every_iter=phase.snapshot_every_iter,
        display_iter=phase.display or 0,
        starts_from=start.name if isinstance(start, Phase) else None,
        is_end=phase.name in ends,
        is_main=phase.name in main,
        is_evaluated=phase.name in tested,
        reported=phase.reported,
    )


def _snapshot_path(phase: Phase, folder: str, iteration: int | None = None) -> str:
    """Return where the verified snapshot of a phase is kept: the last one, or that of an iteration."""
    return f"{folder}/snapshots/{posixpath.basename(phase.snapshot_at(iteration or phase.last_iter))}"


def _solver_of(training: Training) -> str:
    return next(word for word in training.arguments if word.startswith(_SOLVER)).removeprefix(_SOLVER)


def find_ignored_learned(ignored: Iterable[str], weights: Path) -> list[str]:
    """Return the layers that Caffe ignored, according to its log, and that have learned values in `weights`.

    Caffe also reports layers without any values, such as data layers, and continues with the net's fillers.
    Raises WeightsError if `ignored` is not empty and `weights` is not a caffemodel.
    """
    names = list(ignored)
    if not names:
        return []
    learned = {layer.name for layer in load_weights(weights).layer if layer.blobs}
    return [name for name in names if name in learned]


def _find_foreign(folder: Path) -> Path | None:
    """Return the data of an LMDB in which another user than root can replace files; None for other paths."""
    try:
        data = folder / DATA
        owners = (data.stat().st_uid, folder.stat().st_uid)
    except (OSError, ValueError):
        return None
    return None if all(map(is_own, owners)) else data.resolve()


def render_checkpoint_solver(text: str, every: int) -> str:
    """Return a solver's prototxt with `snapshot: every` and everything else unchanged.

    Raises PrototxtError if that fails.

    >>> render_checkpoint_solver("max_iter: 9 # all\\nsnapshot: 9 # one", 3)
    'max_iter: 9 # all\\nsnapshot: 3 # one'
    """
    document = parse_document(text, "the solver", pb.SolverParameter)
    text = document.text
    if "snapshot" in document.offsets:
        start, end = _number_span(text, document.offsets["snapshot"])
        changed = f"{text[:start]}{every}{text[end:]}"
    else:
        changed = f"{text}{'' if text.endswith(chr(10)) or not text else chr(10)}snapshot: {every}\n"
    wanted = deepcopy(document.message)
    wanted.snapshot = every
    if parse_document(changed, "the solver", pb.SolverParameter).message != wanted:
        raise PrototxtError("the solver", "its `snapshot` cannot be changed", "report this file")
    return changed


def _number_span(text: str, offset: int) -> tuple[int, int]:
    """Return the start and end of the first number after an offset."""
    number = next(match for match in TOKEN.finditer(text, offset) if match.lastgroup == "number")
    return number.span("number")


_ITERATIONS = 2
# Its name means nothing to the user, and one fault of all policies is to be one problem.
_TRIAL_SOLVER = re.compile(r"\bsolver_\d+\.prototxt\b")
# The fields of a solver that a trial does not keep.
_CLEARED_FIELDS = (
    *("net", "test_iter", "test_interval", "test_initialization"),
    *("snapshot", "snapshot_prefix", "warmup_iter"),
)


def trial_solvers(recipe: Recipe) -> dict[str, pb.SolverParameter]:
    """Return a tiny solver for each lr policy (and solver type) of a recipe, by the policy.

    It keeps the other fields of the phase that sets the most with this policy, so that the trial also finds a
    field unknown to this Caffe. Caffe reads the policy only after the warm-up, which is cut to one iteration.
    """
    found: dict[tuple[str, str], pb.SolverParameter] = {}
    for phase in recipe.phases:
        solver = build_solver(recipe, phase)
        warms_up = solver.HasField("warmup_iter")
        for name in _CLEARED_FIELDS:
            solver.ClearField(name)
        solver.net, solver.snapshot_prefix = "net.prototxt", "trial"
        solver.max_iter, solver.display, solver.snapshot = _ITERATIONS, 1, _ITERATIONS + 1
        solver.snapshot_after_train = False
        if warms_up:
            solver.warmup_iter = 1
        before = found.get((solver.lr_policy, solver.type))
        if before is None or len(solver.ListFields()) > len(before.ListFields()):
            found[solver.lr_policy, solver.type] = solver
    return {
        policy if sum(other == policy for other, _ in found) == 1 else f"{policy}, {kind}": solver
        for (policy, kind), solver in found.items()
    }


def trial_net() -> pb.NetParameter:
    """Return the net of a trial: constant input data and two classes."""
    ones = {"type": "constant", "value": 1}
    shape = [{"dim": [2, 4]}, {"dim": [2]}]
    data = {"shape": shape, "data_filler": [ones, layers.ZERO]}
    return layers.net(
        "Trial",
        layers.layer("data", "DummyData", top=("data", "label"), dummy_data_param=data),
        layers.inner_product("ip", "data", num_output=2),
        layers.softmax_with_loss("loss", "ip", "label"),
    )


def _as_error(found: Finding) -> InputError:
    """Return an error of lint as one that stops a run, with what to do about it."""
    advice = f"{found.write}; or " if found.write else ""
    hint = f"{advice}see `caffe-recipes lint --explain {found.id}`, which also says how a recipe accepts it"
    return InputError(found.where, f"[{found.id}] {found.what}: {found.effect}", hint)


def _short(text: str) -> str:
    return shorten(text, 200)
