"""`caffe-recipes ensemble`: the accuracies of a run's models on a test LMDB, each alone and averaged.

Members are the models that the recipe averages, or named phases or caffemodels. Predictions are computed by
`caffe-torch predict` and cached beside the snapshots, under a digest of the snapshot, the net and the LMDB.
The result is rendered as a table or as JSON.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import subprocess
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.datums import open_datums
from caffe_recipes.caffe.prototxt import digest, load_prototxt
from caffe_recipes.cluster.staging.file_sets import find_source, known_digest
from caffe_recipes.errors import InputError, RunFailed, WeightsError, hint_for
from caffe_recipes.file_format import FORMAT
from caffe_recipes.files.user_cache import cache_folder
from caffe_recipes.limits import limit
from caffe_recipes.recipe.graph import find_averaged
from caffe_recipes.recipe.model import Recipe, Reported
from caffe_recipes.review.text_columns import align_columns
from caffe_recipes.run.caffe import find_our_trainer, require_caffe
from caffe_recipes.run.caffe_models import verify_weights
from caffe_recipes.run.context import describe_access, search_path
from caffe_recipes.run.events import RunState
from caffe_recipes.run.folders import load_digests
from caffe_recipes.run.journal import JOURNAL, load_journal
from caffe_recipes.run.monitor.run_files import LocalFiles, find_run, load_frozen
from caffe_recipes.run.process import own_environment
from caffe_recipes.run.snapshots import digest_weights, verify_digest
from caffe_recipes.wording import did_you_mean

try:  # only this command, which imports this module when it is called, needs numpy
    import numpy as np

    from caffe_recipes.run.ensemble_averages import (
        Accuracy,
        Labels,
        MemberAccuracies,
        Scores,
        measure_members,
    )
except ImportError:
    hint = "install the extra 'engine' of caffe-recipes (see its README)"
    raise InputError("ensemble", "needs numpy", hint) from None

MODEL = ".caffemodel"


@dataclass(frozen=True)
class EnsembleOptions:
    """Options of `ensemble`; `average` is one of AVERAGES."""

    root: Path = Path()
    members: tuple[str, ...] | None = None
    lmdb: Path | None = None
    average: str = "probabilities"


@dataclass(frozen=True)
class EnsembleResult:
    """The accuracies of an ensemble; `missing` are the recipe's members that are not finished.

    `reported` is what the source reports for the members of the recipe, `reported_of`, even if `members`
    differs from these.
    """

    run: str
    lmdb: Path
    images: int
    classes: int
    average: str
    members: tuple[Member, ...]
    measured: MemberAccuracies
    missing: tuple[str, ...]
    reported: Reported
    reported_of: tuple[str, ...]


# Runs an argv in a folder, with an environment, and with its output in a file; returns its exit code.
CallProgram = Callable[[Sequence[str], Path, Mapping[str, str], BinaryIO], int]


def call_program(argv: Sequence[str], folder: Path, environment: Mapping[str, str], output: BinaryIO) -> int:
    """Run a program as `CallProgram` says. Raises OSError if it does not start."""
    return subprocess.run(
        argv,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        check=False,
    ).returncode


def measure_ensemble(
    run: str, options: EnsembleOptions, say: Callable[[str], None], call: CallProgram = call_program
) -> EnsembleResult:
    """Return the accuracies of the members and of their average; the run is neither locked nor changed.

    `call` runs caffe-torch. Predictions that were kept from an earlier call are reused. Raises InputError if
    the run or its members cannot form an ensemble, and RunFailed if a prediction fails.
    """
    if run.endswith(MODEL):
        hint = f"give the run, and the models as `--members {run},...`"
        raise InputError(run, "is a model, not a run or recipe", hint)
    files = LocalFiles()
    folder = Path(find_run(files, str(options.root), run)).absolute()
    recipe = require_caffe(load_frozen(files, str(folder)), folder)
    state = load_journal(folder / JOURNAL)
    members = find_members(folder, recipe, state, options.members)
    place = _find_place(folder, call)
    tested = _find_tested(recipe, place, options.lmdb)
    found = find_predictions(members, tested, place, say)
    first = found[0]
    measured = measure_members([each.scores for each in found], first.labels, options.average)
    return EnsembleResult(
        run=folder.name,
        lmdb=tested.lmdb,
        images=len(first.labels),
        classes=first.scores.shape[1],
        average=options.average,
        members=members,
        measured=measured,
        missing=() if options.members else unfinished_members(recipe, state),
        reported=recipe.ensemble.reported if recipe.ensemble else Reported(),
        reported_of=find_averaged(recipe),
    )


def _find_place(folder: Path, call: CallProgram) -> PredictionEnv:
    path = search_path(ours_first=True)
    return PredictionEnv(folder, folder.parent.parent, find_our_trainer(path), path, call)


def _find_tested(recipe: Recipe, place: PredictionEnv, lmdb: Path | None) -> TestSet:
    """Return the evaluation net and the LMDB; raises InputError if the net has changed since the start."""
    path = recipe.net_path(_tested_net(recipe))
    message = load_prototxt(place.root / path, pb.NetParameter)
    found = digest(message)
    if load_digests(place.folder).get(path) != found:
        what = f"is not the net that {place.folder.name} was started with"
        raise InputError(place.root / path, what, "restore it")
    if recipe.names_no_data:
        what = "its nets name their test data (`data: as-in-net`), but an ensemble reads an LMDB"
        raise InputError(recipe.name, what, "average the models' outputs with a program of your own")
    where = lmdb.absolute() if lmdb else place.root / recipe.data.test.lmdb
    data_digest = known_digest(find_source(where), cache_folder())
    return TestSet(place.root / path, message, found, where, data_digest)


def _tested_net(recipe: Recipe) -> str:
    """Return the net of the evaluation, else the first net with a TEST data layer."""
    nets: Sequence[str] = [name for name, variant in recipe.nets.items() if variant.test]
    if recipe.evaluation is not None:
        return recipe.evaluation.net
    if not nets:
        hint = "set `test: true` for one of them under `nets`"
        raise InputError(recipe.name, "no net has a TEST data layer", hint)
    return nets[0]


@dataclass(frozen=True)
class Member:
    """A model of an ensemble: its name, a phase or a file, and the digest that its file must have."""

    name: str
    path: Path
    sha256: str


def find_members(
    folder: Path, recipe: Recipe, state: RunState, named: Sequence[str] | None
) -> tuple[Member, ...]:
    """Return the named members; if `named` is None, those of the recipe that are finished.

    Raises InputError if there are fewer than two, or if one is named twice, unknown, or not finished.
    """
    if named is None:
        names = [name for name in find_averaged(recipe) if name in state.finished]
    else:
        names = list(named)
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError("--members", f"'{twice}' is named twice", "name each member once")
    members = tuple(_find_member(folder, recipe, state, name) for name in names)
    if named is not None:
        _check_different(members)
    if len(members) < 2:
        finished = ", ".join(state.finished) or "none yet"
        what = f"one member, {names[0]}" if names else "no finished member"
        hint = f"an ensemble needs two or more: name them with --members; finished: {finished}"
        raise InputError(folder, what, hint)
    return members


def unfinished_members(recipe: Recipe, state: RunState) -> tuple[str, ...]:
    """Return the names of the recipe's members that are not finished."""
    return tuple(name for name in find_averaged(recipe) if name not in state.finished)


def _find_member(folder: Path, recipe: Recipe, state: RunState, name: str) -> Member:
    finish = state.finished.get(name)
    if finish is not None:  # its path is from the run's folder, which may have moved
        return Member(name, folder / "snapshots" / posixpath.basename(finish.snapshot), finish.sha256)
    if name.endswith(MODEL):
        return Member(name, Path(name).absolute(), _digest_of(Path(name)))
    names = [phase.name for phase in recipe.phases]
    if name in names:
        what = f"phase {name} of {folder.name} is not finished"
        raise InputError("--members", what, "wait until it is, or leave it out")
    what = f"no phase '{name[:80]}' in {recipe.name}"
    hint = f"{did_you_mean(name, names)} the phases are {', '.join(names)}; or give a {MODEL}".lstrip()
    raise InputError("--members", what, hint)


def _check_different(members: Sequence[Member]) -> None:
    """Raise InputError if a model is named twice, by its phase and as a file."""
    seen: dict[str, str] = {}
    for member in members:
        other = seen.setdefault(member.sha256, member.name)
        if other != member.name:
            what = f"'{other}' and '{member.name}' are the same model"
            raise InputError("--members", what, "leave one of them out")


def _digest_of(path: Path) -> str:
    try:
        return digest_weights(path)
    except OSError as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else error.strerror
        raise WeightsError(path, f"cannot be read: {reason}", "give a trained caffemodel") from None


_SAYS = "caffe-torch: "


@dataclass(frozen=True)
class TestSet:
    """The test of all members: a net with its file and digest, and an LMDB with its digest."""

    net: Path
    message: pb.NetParameter
    net_digest: str
    lmdb: Path
    lmdb_digest: str


@dataclass(frozen=True)
class PredictionEnv:
    """Where and how models predict: the run's folder, the Caffe root, the program, its PATH, and its call."""

    folder: Path
    root: Path
    program: str
    path: str
    call: CallProgram


@dataclass(frozen=True)
class Predictions:
    """Scores before the softmax, of shape (images, classes), and labels, of shape (images,)."""

    scores: Scores
    labels: Labels


def find_predictions(
    members: Sequence[Member], tested: TestSet, place: PredictionEnv, say: Callable[[str], None]
) -> list[Predictions]:
    """Return the members' predictions, from the cache or else computed and cached.

    Cached predictions that contradict the LMDB or each other are computed again. Raises InputError if a model
    has changed, or does not fit the net or the data; RunFailed if predicting fails.
    """
    for member in members:
        hint = "restore it, or leave the member out"
        verify_digest(member.path, member.sha256, f"the model of {member.name}", hint)
        verify_weights(member.path, tested.message)
    with open_datums(tested.lmdb) as datums:
        images = len(datums)
    is_own = not describe_access(place.folder / "snapshots")
    cached = [
        load_predictions(_cache_path(member, tested, place), images) if is_own else None for member in members
    ]
    found = [
        one or _predict_and_cache(member, tested, place, say)
        for one, member in zip(cached, members, strict=True)
    ]
    if not _agree(found):  # which cached ones are wrong is not known, so compute all again
        found = [
            _predict_and_cache(member, tested, place, say) if old else new
            for old, new, member in zip(cached, found, members, strict=True)
        ]
    if not _agree(found):
        raise RunFailed(
            tested.lmdb, "its labels differ between members", "try again while nothing writes to it"
        )
    return found


def load_predictions(path: Path, images: int | None = None) -> Predictions | None:
    """Read cached predictions; None if missing, damaged, or not of this number of `images`."""
    try:
        with zipfile.ZipFile(path) as packed:  # numpy trusts the sizes that a file declares
            if sum(part.file_size for part in packed.infolist()) > limit("predictions-bytes"):
                return None
        with np.load(path, allow_pickle=False) as held:
            scores, labels = held["scores"], held["labels"]
    except (OSError, ValueError, KeyError, EOFError, MemoryError, OverflowError, zipfile.BadZipFile):
        return None
    if scores.ndim != 2 or labels.shape != scores.shape[:1] or not scores.size:
        return None
    if scores.dtype != np.float32 or labels.dtype != np.int32 or images not in (None, len(labels)):
        return None
    is_sound = np.isfinite(scores).all() and labels.min() >= 0 and labels.max() < scores.shape[1]
    return Predictions(scores, labels) if is_sound else None


def _agree(found: Sequence[Predictions]) -> bool:
    """Return whether all predictions have the same labels and number of classes."""
    first = found[0]
    return all(
        one.scores.shape == first.scores.shape and np.array_equal(one.labels, first.labels) for one in found
    )


def _cache_path(member: Member, tested: TestSet, place: PredictionEnv) -> Path:
    return place.folder / "snapshots" / f"{member.path.stem}.{_key(member, tested)}.npz"


def _predict_and_cache(
    member: Member, tested: TestSet, place: PredictionEnv, say: Callable[[str], None]
) -> Predictions:
    """Compute and cache a member's predictions, unless we cannot write to the run, or others can."""
    say(f"{member.name}: predicting the images of {tested.lmdb}")
    cached = _cache_path(member, tested, place)
    log = place.folder / "logs" / f"predict-{member.path.stem}.log"
    refused = [f"{folder} {why}" for folder in (cached.parent, log.parent) if (why := _why_closed(folder))]
    if not refused:
        return _predict(member, tested, place, cached, log, f"log: {log}")
    say(f"warning: {refused[0]}; predictions of {member.name} are not cached")
    with tempfile.TemporaryDirectory(prefix="caffe-recipes-") as name:
        out = Path(name) / cached.name
        return _predict(member, tested, place, out, out.with_name(log.name), "try `caffe-torch predict`")


def _why_closed(folder: Path) -> str:
    """Return why no file is kept in a folder, else ""; on network file systems its mode does not say."""
    if refused := describe_access(folder):
        return refused
    try:
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError:
        return "cannot be written to"


def _key(member: Member, tested: TestSet) -> str:
    parts = (str(FORMAT), member.sha256, tested.net_digest, tested.lmdb_digest)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _predict(
    member: Member, tested: TestSet, place: PredictionEnv, out: Path, log: Path, hint: str
) -> Predictions:
    argv = [
        *(place.program, "predict", f"-model={tested.net}", f"-weights={member.path}"),
        *(f"-source={tested.lmdb}", f"-out={out.absolute()}"),
    ]
    environment = {**own_environment(), "PATH": place.path}
    try:
        log.unlink(missing_ok=True)
        with log.open("xb") as output:
            code = place.call(argv, place.root, environment, output)
    except OSError as error:
        where = error.filename or place.program
        what = f"cannot predict: {error.strerror}"
        raise RunFailed(str(where), what, hint_for(error, "check the disk")) from None
    if code:
        _raise_failure(f"{member.name} on {tested.lmdb}", log, code, hint)
    found = load_predictions(out)
    if found is None:
        raise RunFailed(out, "cannot be read back", "check the disk")
    return found


def _raise_failure(where: str, log: Path, code: int, hint: str) -> None:
    """Raise the last error that caffe-torch printed: InputError if it exited with 2, else RunFailed."""
    with log.open("rb") as file:
        file.seek(-min(1 << 16, os.fstat(file.fileno()).st_size), os.SEEK_END)
        lines = file.read().decode(errors="replace").splitlines()
    complaint = next((line.removeprefix(_SAYS) for line in reversed(lines) if line.startswith(_SAYS)), None)
    if code == 2 and complaint is not None:
        raise InputError(where, complaint)
    raise RunFailed(where, complaint or f"caffe-torch returned {code}", hint)


_AVERAGE_TITLES = {
    "probabilities": "mean of the probabilities",
    "geometric": "geometric mean of the probabilities",
    "votes": "votes, with ties broken by the probabilities",
}
_HEADINGS = (
    *("member", "top-1", "top-5"),
    *("so far: top-1", "top-5", "without it: top-1", "top-5", "adds: top-1", "top-5"),
)


def render_ensemble(found: EnsembleResult, lmdb: str) -> list[str]:
    """Return a table with a row for each member.

    Its columns are the accuracies of the member alone, of it and the members above it, and of the ensemble
    without it, and the percentage points that it adds to the ensemble.
    """
    measured = found.measured
    rows = [
        (
            member.name,
            *_percent(measured.single[index]),
            *_percent(measured.cumulative[index]),
            *_percent(measured.without[index]),
            *_points(measured.ensemble, measured.without[index]),
        )
        for index, member in enumerate(found.members)
    ]
    table = align_columns([_HEADINGS, *rows], right=set(_HEADINGS[1:]))
    top1, top5 = _percent(measured.ensemble)
    best = _points(measured.ensemble, Accuracy(*_best(found)))
    lines = [
        f"{found.run}: {len(found.members)} members on the {found.images:,} images of {lmdb}",
        "",
        *table,
        "",
        f"ensemble, {_AVERAGE_TITLES[found.average]}: top-1 {top1}%, top-5 {top5}%",
        *_describe_reported(found),
        f"compared with the best single member: top-1 {best[0]}, top-5 {best[1]} points",
    ]
    if found.missing:
        lines.append(f"not finished, left out: {', '.join(found.missing)}")
    return lines


def ensemble_as_json(found: EnsembleResult) -> dict[str, Any]:
    """Return an ensemble as JSON values; accuracies are fractions from 0 to 1."""
    measured = found.measured
    return {
        "run": found.run,
        "lmdb": str(found.lmdb),
        "images": found.images,
        "classes": found.classes,
        "average": found.average,
        "members": [
            {
                "name": member.name,
                "snapshot": str(member.path),
                "sha256": member.sha256,
                **asdict(measured.single[index]),
                "so_far": asdict(measured.cumulative[index]),
                "without": asdict(measured.without[index]),
            }
            for index, member in enumerate(found.members)
        ],
        "ensemble": asdict(measured.ensemble),
        "missing": list(found.missing),
        "reported": {"members": list(found.reported_of), **found.reported.model_dump(exclude_none=True)},
    }


def _describe_reported(found: EnsembleResult) -> list[str]:
    """Return a line with the accuracies that the source reports and for which members; none without any."""
    pairs = (("top-1", found.reported.top1_percent), ("top-5", found.reported.top5_percent))
    reported = ", ".join(f"{name} {percent:g}%" for name, percent in pairs if percent is not None)
    return [f"reported by the source for {', '.join(found.reported_of)}: {reported}"] if reported else []


def _best(found: EnsembleResult) -> tuple[float, float]:
    single = found.measured.single
    return max(each.top1 for each in single), max(each.top5 for each in single)


def _percent(accuracy: Accuracy) -> tuple[str, str]:
    return f"{100 * accuracy.top1:.2f}", f"{100 * accuracy.top5:.2f}"


def _points(ensemble: Accuracy, others: Accuracy) -> tuple[str, str]:
    """Return the differences in percentage points, with a sign; zero is +0.00, never -0.00."""
    points = (100 * (ensemble.top1 - others.top1), 100 * (ensemble.top5 - others.top5))
    first, second = (f"{round(each, 2) + 0.0:+.2f}" for each in points)
    return first, second
