"""Caffe, and caffe-torch, which reads the same files: their answers to what a run asks of a trainer.

A phase is a solver; it starts from a caffemodel, and is resumed from a solverstate with its caffemodel.
"""

from __future__ import annotations

import math
import os
import posixpath
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from caffe_recipes.caffe import layers, pb
from caffe_recipes.caffe.logs import LogSummary, read_log
from caffe_recipes.caffe.prototxt import digest, parse_document, parse_prototxt, render_prototxt
from caffe_recipes.caffe.text.tokens import TOKEN
from caffe_recipes.caffe.weights import (
    check_solverstate,
    check_weights,
    load_solverstate,
    load_weights,
    weights_bytes,
)
from caffe_recipes.cluster.commands import Host
from caffe_recipes.cluster.profiles import Profile
from caffe_recipes.errors import ClusterError, InputError, PrototxtError, RunFailed, WeightsError
from caffe_recipes.recipe.graph import find_evaluated, find_leaves, images_per_iter, main_line
from caffe_recipes.recipe.model import Phase, Recipe
from caffe_recipes.render.nets import build_net
from caffe_recipes.render.solvers import build_solver
from caffe_recipes.render.tree import generate, placed_paths
from caffe_recipes.run.snapshots import as_failure, fetch_file, keep_parts, verify_digest
from caffe_recipes.run.steps import Attempt, Checkpoint, Testing, Training, Trial

OUR_TRAINER = "caffe-torch"
_SOLVER, _WEIGHTS, _SNAPSHOT = "--solver=", "--weights=", "--snapshot="
_MODEL, _STATE = ".caffemodel", ".solverstate"
_STATE_NAME = re.compile(r".*_iter_([0-9]{1,10})\.solverstate", re.DOTALL)
_HINT = "resume from another checkpoint, or start the phase over"


@dataclass(frozen=True)
class Caffe:
    """A trainer that reads solvers, nets and LMDBs, and writes caffemodels and solverstates."""

    recipe: Recipe
    title: ClassVar[str] = "Caffe"
    always_checkpoints: ClassVar[bool] = False
    model_suffix: ClassVar[str] = _MODEL
    file_kind: ClassVar[str] = "prototxt"
    initialization: ClassVar[str] = "the nets' fillers"
    failure_hint: ClassVar[str] = "give another Caffe with --caffe"
    checks: ClassVar[tuple[str, ...]] = (
        *("trainer", "folders", "prototxts", "training data", "test data"),
        *("starts from", "snapshots", "disk"),
    )

    @property
    def is_ours(self) -> bool:
        """Whether caffe-torch trains, which is installed beside this program."""
        return self.recipe.trainer == OUR_TRAINER

    def find_program(self, root: Path, path: str, profile: Profile) -> str:
        """Return the trainer as it is called from the Caffe root; raises InputError if it is not there.

        In a container's image it is called as the recipe has it: nothing of the image is seen from here.
        """
        if profile.container is not None:
            return self.recipe.trainer
        return find_our_trainer(path) if self.is_ours else find_caffe(self.recipe.trainer, root)

    def environment(self, root: Path) -> dict[str, str]:
        """Return nothing: Caffe needs no variables of its own."""
        return {}

    def steps(self, folder: str) -> tuple[Training, ...]:
        """Return a step for each phase: it starts from what an earlier one has left in the run's folder."""
        ends = {phase.name for phase in find_leaves(self.recipe)}
        tested = {phase.name for phase in find_evaluated(self.recipe)}
        return tuple(_plan_phase(self.recipe, phase, folder, ends, tested) for phase in self.recipe.phases)

    def testings(self, folder: str) -> tuple[Testing, ...]:
        """Return the evaluation of each phase whose model is evaluated."""
        if self.recipe.evaluation is None:
            return ()
        net, iterations = self.recipe.evaluation.net, self.recipe.evaluation.iterations
        testings = []
        for phase in find_evaluated(self.recipe):
            weights = _fetched(phase, folder)
            arguments = (
                "test",
                f"--model={self.recipe.net_path(net)}",
                f"{_WEIGHTS}{weights}",
                f"--iterations={iterations}",
            )
            testings.append(Testing(phase.name, net, arguments, weights, iterations))
        return tuple(testings)

    def read_back(self, training: Training) -> Testing | None:
        """Return nothing: `check_model` reads a caffemodel itself."""
        return None

    @property
    def data_folder(self) -> str:
        """The folder of the training LMDB on each node."""
        return self.recipe.data.train.lmdb

    @property
    def data_source(self) -> str | None:
        """The folder that it is staged from."""
        return self.recipe.data.train.source

    @property
    def built(self) -> tuple[str, ...]:
        """The LMDBs that are built where they are missing."""
        if self.recipe.data.prepare is None:
            return ()
        folder = posixpath.dirname(self.recipe.data.test.lmdb)
        return tuple(posixpath.join(folder, name) for name in ("digits_train_lmdb", "digits_val_lmdb"))

    def build(self, folder: Path) -> None:
        """Build the LMDBs of digits in a folder; raises RunFailed for a disk that is full."""
        from caffe_recipes.data.digits import build_digits

        build_digits(folder)

    def main_line(self) -> frozenset[str]:
        """Return the phases beside which all others may be trained."""
        return frozenset(phase.name for phase in main_line(self.recipe))

    def files(self) -> dict[str, str]:
        """Return the text of each prototxt by the path that the solvers and the trainer name."""
        files, placed = generate(self.recipe), placed_paths(self.recipe)
        return {placed[path]: text for path, text in files.items() if path in placed}

    def folders(self) -> tuple[str, ...]:
        """Return the folders under the Caffe root that hold its files."""
        return self.recipe.prototxt_dirs

    def digest_files(self, files: Mapping[str, str]) -> dict[str, str]:
        """Return the digest of each prototxt's message, which no comment changes, by the prototxt's path."""
        solvers = {self.recipe.solver_path(phase.name) for phase in self.recipe.phases}
        digests = {}
        for path, text in files.items():
            kind = pb.SolverParameter if path in solvers else pb.NetParameter
            digests[path] = digest(parse_prototxt(text, kind, path))
        return digests

    def launch_arguments(
        self,
        training: Training,
        checkpoint: Checkpoint | None,
        every: int | None,
        files: Mapping[str, str],
        folder: str,
    ) -> tuple[tuple[str, ...], dict[str, str]]:
        """Return a launch's arguments, and what it reads besides, of files in `folder`, by path.

        `every` is the interval of checkpoints: that of a solver of the launch's own.
        """
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

    def set_aside(self, root: Path, training: Training, checkpoint: Checkpoint | None) -> Iterator[str]:
        """Yield nothing: Caffe looks at no other checkpoint than it is given."""
        yield from ()

    def started_from(self, arguments: Sequence[str]) -> str | None:
        """Return the weights that a launch of these arguments starts from."""
        given = (word.partition(_WEIGHTS) for word in arguments)
        return next((path for before, found, path in given if found and not before), None)

    def resumed_iter(self, arguments: Sequence[str]) -> int | None:
        """Return the iteration of the checkpoint that a launch of these arguments resumes."""
        given = (word.removeprefix(_SNAPSHOT) for word in arguments if word.startswith(_SNAPSHOT))
        return next((number for word in given if (number := self.checkpoint_iter(word)) is not None), None)

    def snapshot_argument(self, arguments: Sequence[str]) -> str | None:
        """Return the argument by which rank 0's trainer is known, to be asked for a snapshot by SIGHUP."""
        return next((word for word in arguments if word.startswith(_SOLVER)), "")

    def new_log_summary(self) -> LogSummary:
        """Return what folds the lines of a log."""
        return LogSummary()

    def find_omission(self, summary: LogSummary, training: Training, root: Path) -> str | None:
        """Return which learned layer of its weights Caffe has left out: it trains on without a warning."""
        if training.weights is None or not summary.ignored:
            return None
        ignored = learned_ignored(summary.ignored, root / training.weights)
        if not ignored:
            return None
        return f"Caffe ignored layer '{ignored[0]}' of {training.weights}, which the net lacks"

    def classes(self) -> int:
        """Return among how many classes the net chooses."""
        return self.recipe.net.classes

    def prefix(self, training: Training) -> str:
        """Return what the paths of all that a phase writes begin with."""
        return training.snapshot.rpartition("_iter_")[0]

    def written_at(self, training: Training, iteration: int) -> tuple[str, ...]:
        """Return what a phase writes at an iteration."""
        path = f"{self.prefix(training)}_iter_{iteration}"
        return (f"{path}{_MODEL}", f"{path}{_STATE}")

    def model_bytes(self, net: str) -> int | None:
        """Return the bytes of a model; None where only the images tell the number of channels."""
        return weights_bytes(build_net(self.recipe, net))

    def check_model(self, net: str, path: Path) -> None:
        """Compare a caffemodel with its net; raises WeightsError with the first misfit."""
        verify_weights(path, build_net(self.recipe, net))

    def checkpoint_iter(self, state: str) -> int | None:
        """Return the iteration that a solverstate's name tells; None for another name."""
        found = _STATE_NAME.fullmatch(state)
        return int(found[1]) if found else None

    def model_beside(self, state: str) -> str:
        """Return the caffemodel that is written with a solverstate."""
        return f"{state.removesuffix(_STATE)}{_MODEL}"

    def fetch_checkpoint(
        self, host: Host, root: Path, training: Training, state: str, folder: str
    ) -> Checkpoint:
        """Bring a snapshot's two files into `folder`, verified; raises RunFailed."""
        net = build_net(self.recipe, training.net)
        return fetch_checkpoint(host, root, training.phase, state, folder, net, training.last_iter)

    def verify_checkpoint(self, root: Path, net: str, checkpoint: Checkpoint) -> None:
        """Make sure that a checkpoint's kept files are whole and the net's; raises WeightsError."""
        verify_checkpoint(root, checkpoint, build_net(self.recipe, net))

    def trial(self) -> Trial:
        """Return a few iterations of a tiny net, with each of the recipe's lr policies."""
        solvers = trial_solvers(self.recipe)
        names = {name: f"solver_{number}.prototxt" for number, name in enumerate(solvers)}
        texts = {names[name]: render_prototxt(solver) for name, solver in solvers.items()}
        return Trial(
            {"net.prototxt": render_prototxt(trial_net()), **texts},
            {f"lr_policy {name}": ("train", f"{_SOLVER}{names[name]}") for name in solvers},
            f"trains, and knows lr_policy {', '.join(solvers)}",
        )

    def judge(self, attempt: Attempt, limit_s: float) -> str | None:
        """Say what went wrong in an attempt, by its log; None if nothing did."""
        return judge(attempt, limit_s)

    def world_arguments(self) -> tuple[str, ...]:
        """Return nothing: Caffe's ranks do not say who they are."""
        return ()

    def outputs(self, summary: LogSummary, testing: Testing) -> dict[str, float]:
        """Return what an evaluation gave, by the names of the net's outputs; nothing if it has no result."""
        return dict(summary.mean_outputs)


def find_our_trainer(path: str) -> str:
    """Return where caffe-torch is; raises InputError if it is not installed."""
    found = shutil.which(OUR_TRAINER, path=path)
    if found is None:
        raise InputError(
            OUR_TRAINER, "not found", "install this project's extra 'engine', as its README says"
        )
    return found


def find_caffe(trainer: str, root: Path) -> str:
    """Return the Caffe binary as it is called from the Caffe root; InputError if none is there.

    A run never falls back on caffe-torch: a recipe that is to be trained by it says so.
    """
    if Path(trainer).name == OUR_TRAINER:
        raise InputError(trainer, "is no Caffe", f"write `trainer: {OUR_TRAINER}` in the recipe to use it")
    path = root / trainer
    hint = f"build Caffe in {root}, or give its path with --caffe"
    if not path.exists():
        raise InputError(path, "no such Caffe binary", hint)
    if not path.is_file() or not os.access(path, os.X_OK):
        raise InputError(path, "is not an executable program", hint)
    return trainer if "/" in trainer else f"./{trainer}"  # a name alone would be looked for on PATH


def _plan_phase(recipe: Recipe, phase: Phase, folder: str, ends: set[str], tested: set[str]) -> Training:
    start = recipe.starts_from(phase)
    weights = _fetched(start, folder, phase.weights_iter) if isinstance(start, Phase) else start
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
        fetched=_fetched(phase, folder),
        last_iter=phase.last_iter,
        is_stopped=phase.stop_iter is not None,
        images_per_iter=images_per_iter(recipe, phase),
        # The one that ends a training between two others, and the one that Caffe writes when it is stopped.
        snapshots=math.ceil(phase.last_iter / phase.snapshot_every_iter) + (phase.stop_iter is not None),
        needed=tuple(
            (phase.snapshot_at(iteration), _fetched(phase, folder, iteration))
            for iteration in recipe.needed_iters(phase)
        ),
        snapshots_at=(*recipe.needed_iters(phase), *([phase.stop_iter] if phase.stop_iter else [])),
        every_iter=phase.snapshot_every_iter,
        starts_from=start.name if isinstance(start, Phase) else None,
        is_end=phase.name in ends,
        is_evaluated=phase.name in tested,
        reported=phase.reported,
    )


def _fetched(phase: Phase, folder: str, iteration: int | None = None) -> str:
    """Return where a phase's verified snapshot is kept: its last, or that of an iteration."""
    return f"{folder}/snapshots/{posixpath.basename(phase.snapshot_at(iteration or phase.last_iter))}"


def _solver_of(training: Training) -> str:
    return next(word for word in training.arguments if word.startswith(_SOLVER)).removeprefix(_SOLVER)


def verify_weights(path: Path, net: pb.NetParameter) -> None:
    """Load a caffemodel and compare it with its net; raises WeightsError with the first misfit."""
    _refuse_misfits(check_weights(load_weights(path), net), path, net, "give another snapshot")


def _refuse_misfits(misfits: Sequence[str], path: Path, net: pb.NetParameter, hint: str) -> None:
    if misfits:
        more = f", and {len(misfits) - 1} more" if len(misfits) > 1 else ""
        raise WeightsError(path, f"does not fit net {net.name}: {misfits[0]}{more}", hint)


def learned_ignored(ignored: Iterable[str], weights: Path) -> list[str]:
    """Return which of the layers that Caffe's log says it ignored have learned values in `weights`.

    Caffe names those without any too, as the data layers, and goes on from the fillers of the rest. Raises
    WeightsError for what is no caffemodel, where any is named.
    """
    names = list(ignored)
    if not names:
        return []
    learned = {layer.name for layer in load_weights(weights).layer if layer.blobs}
    return [name for name in names if name in learned]


def fetch_checkpoint(
    host: Host,
    root: Path,
    phase: str,
    state_path: str,
    folder: str,
    net: pb.NetParameter,
    solver_last_iter: int,
) -> Checkpoint:
    """Bring a snapshot's two files into `folder`, from the Caffe root, verified; both or neither.

    `state_path` is what Caffe's log says that it has written. Raises RunFailed if a file is missing, is not
    ours, arrives otherwise than it was, or does not fit the net, the other, or its own name.
    """
    at = posixpath.join(root, state_path)
    named = _STATE_NAME.fullmatch(at)
    if named is None:
        raise RunFailed(f"{host.name}:{at}", "is not named as Caffe names a solverstate", _HINT)
    beside = f"{at.removesuffix(_STATE)}{_MODEL}"
    state, model = (f"{folder}/{posixpath.basename(path)}" for path in (at, beside))
    with keep_parts(root / state, root / model) as (state_part, model_part):
        path = at
        try:
            state_sha256 = fetch_file(host, root, at, state_part)
            message = _load_state(state_part, net, solver_last_iter)
            _check_names(root, message, int(named[1]), beside)
            path = beside
            model_sha256 = fetch_file(host, root, beside, model_part)
            verify_weights(model_part, net)
        except (InputError, ClusterError) as error:
            raise as_failure(error, host, path, "the checkpoint") from None
    return Checkpoint(phase, message.iter, state, state_sha256, model, model_sha256, at, beside)


def verify_checkpoint(root: Path, checkpoint: Checkpoint, net: pb.NetParameter) -> None:
    """Make sure that a checkpoint's kept files are there, whole and the net's; raises WeightsError."""
    what = f"the checkpoint of phase {checkpoint.phase} at iteration {checkpoint.iteration:,}"
    for path, sha256 in (
        (checkpoint.model, checkpoint.model_sha256),
        (checkpoint.state, checkpoint.state_sha256),
    ):
        verify_digest(root / path, sha256, what, _HINT)
    _load_state(root / checkpoint.state, net, checkpoint.iteration)
    verify_weights(root / checkpoint.model, net)


def render_checkpoint_solver(text: str, every: int) -> str:
    """Return a solver's prototxt with `snapshot: every`, all else as it is; raises PrototxtError.

    >>> render_checkpoint_solver("max_iter: 9 # all\\nsnapshot: 9 # one", 3)
    'max_iter: 9 # all\\nsnapshot: 3 # one'
    """
    document = parse_document(text, "the solver", pb.SolverParameter)
    text = document.text
    if "snapshot" in document.offsets:
        start, end = _value_of(text, document.offsets["snapshot"])
        changed = f"{text[:start]}{every}{text[end:]}"
    else:
        changed = f"{text}{'' if text.endswith(chr(10)) or not text else chr(10)}snapshot: {every}\n"
    wanted = pb.SolverParameter()
    wanted.CopyFrom(document.message)
    wanted.snapshot = every
    if parse_document(changed, "the solver", pb.SolverParameter).message != wanted:
        raise PrototxtError("the solver", "cannot be given another `snapshot`", "report this file")
    return changed


def _value_of(text: str, name: int) -> tuple[int, int]:
    """Return where the number stands that follows a field's name."""
    number = next(match for match in TOKEN.finditer(text, name) if match.lastgroup == "number")
    return number.span("number")


def _load_state(path: Path, net: pb.NetParameter, last_iter: int) -> pb.SolverState:
    state = load_solverstate(path)
    _refuse_misfits(check_solverstate(state, net, at_most_iter=last_iter), path, net, _HINT)
    return state


def _check_names(root: Path, state: pb.SolverState, iteration: int, beside: str) -> None:
    if state.iter != iteration:
        raise WeightsError("", f"is of iteration {state.iter:,}, not of {iteration:,} as it is called", _HINT)
    if posixpath.normpath(posixpath.join(root, state.learned_net)) != posixpath.normpath(beside):
        raise WeightsError("", f"names another caffemodel, {state.learned_net}", _HINT)


_ITERATIONS = 2
_NOT_OF_A_TRIAL = (
    *("net", "test_iter", "test_interval", "test_initialization"),
    *("snapshot", "snapshot_prefix", "warmup_iter"),
)


def trial_solvers(recipe: Recipe) -> dict[str, pb.SolverParameter]:
    """Return a tiny solver for each lr policy (and solver type) of a recipe, by the policy.

    All that the phase with the most to say of it sets is kept: an unknown field is found too. Caffe looks at
    the policy only behind the warm-up, so that this lasts one iteration.
    """
    found: dict[tuple[str, str], pb.SolverParameter] = {}
    for phase in recipe.phases:
        solver = build_solver(recipe, phase)
        warms_up = solver.HasField("warmup_iter")
        for name in _NOT_OF_A_TRIAL:
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
    """Return the net that is tried: numbers of its own, and two classes."""
    ones = {"type": "constant", "value": 1}
    shape = [{"dim": [2, 4]}, {"dim": [2]}]
    data = {"shape": shape, "data_filler": [ones, layers.ZERO]}
    return layers.net(
        "Trial",
        layers.layer("data", "DummyData", top=("data", "label"), dummy_data_param=data),
        layers.inner_product("ip", "data", num_output=2),
        layers.softmax_with_loss("loss", "ip", "label"),
    )


def judge(attempt: Attempt, limit_s: float = 120.0) -> str | None:
    """Say what went wrong in a trial, by its log; None if nothing did.

    >>> judge(Attempt(0, "I1120 11:49:33.775818  6374 solver.cpp:443] Optimization Done."))
    >>> judge(Attempt(127, "caffe: libmlsl.so: cannot open shared object file"))
    'does not start: caffe: libmlsl.so: cannot open shared object file'
    """
    lines = [" ".join(line.split()) for line in attempt.log.splitlines() if line.strip()]
    summary: LogSummary = read_log(attempt.log.splitlines())
    if summary.fatal:
        return f"fails: {_short(summary.fatal)}"
    if attempt.code in (124, 137):
        last = f", and says last: {_short(lines[-1])}" if lines else ""
        return f"does not end a trial within {math.ceil(limit_s)} s{last}"
    if attempt.code in (126, 127):
        return f"does not start: {_short(lines[0]) if lines else f'returned {attempt.code}'}"
    if not summary.done:
        last = f"; it says last: {_short(lines[-1])}" if lines else ""
        return f"ends with {attempt.code} and without `Optimization Done.`{last}"
    return None


def _short(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:197]}..."
