"""`caffe-recipes ensemble`: the accuracies of a run's models on a test LMDB, each alone and averaged.

The result is rendered as a table or as JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.prototxt import digest, load_prototxt
from caffe_recipes.cluster.staging.sets import find_source, known_digest
from caffe_recipes.errors import InputError
from caffe_recipes.files import cache_folder
from caffe_recipes.recipe.graph import find_averaged
from caffe_recipes.recipe.model import Recipe, Reported
from caffe_recipes.review.columns import align_columns
from caffe_recipes.run.caffe import find_our_trainer, require_caffe
from caffe_recipes.run.context import search_path
from caffe_recipes.run.folders import load_digests
from caffe_recipes.run.journal import JOURNAL, load_journal
from caffe_recipes.run.monitor.files import LocalFiles, find_run, load_frozen
from caffe_recipes.run.predictions import MODEL, Accuracy, Member, find_members, unfinished_members

if TYPE_CHECKING:
    from caffe_recipes.run.predictions import MemberAccuracies, PredictionEnv, TestSet


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


def measure_ensemble(run: str, options: EnsembleOptions, say: Callable[[str], None]) -> EnsembleResult:
    """Return the accuracies of the members and of their average; the run is neither locked nor changed.

    Predictions that were kept from an earlier call are reused. Raises InputError if the run or its members
    cannot form an ensemble, and RunFailed if a prediction fails.
    """
    _require_numpy()
    from caffe_recipes.run.predictions import find_predictions, measure_members

    if run.endswith(MODEL):
        hint = f"give the run, and the models as `--members {run},...`"
        raise InputError(run, "is a model, not a run or recipe", hint)
    files = LocalFiles()
    folder = Path(find_run(files, str(options.root), run)).absolute()
    recipe = require_caffe(load_frozen(files, str(folder)), folder)
    state = load_journal(folder / JOURNAL)
    members = find_members(folder, recipe, state, options.members)
    place = _find_place(folder)
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


def _require_numpy() -> None:
    if find_spec("numpy") is None:
        raise InputError(
            "ensemble", "needs numpy", "install the extra 'engine' of caffe-recipes (see its README)"
        )


def _find_place(folder: Path) -> PredictionEnv:
    from caffe_recipes.run.predictions import PredictionEnv

    path = search_path(ours_first=True)
    return PredictionEnv(folder, folder.parent.parent, find_our_trainer(path), path)


def _find_tested(recipe: Recipe, place: PredictionEnv, lmdb: Path | None) -> TestSet:
    """Return the evaluation net and the LMDB; raises InputError if the net has changed since the start."""
    from caffe_recipes.run.predictions import TestSet

    path = recipe.net_path(_tested_net(recipe))
    message = load_prototxt(place.root / path, pb.NetParameter)
    found = digest(message)
    if load_digests(place.folder).get(path) != found:
        what = f"is not the net that {place.folder.name} was started with"
        raise InputError(place.root / path, what, "restore it")
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


_AVERAGES = {
    "probabilities": "mean of the probabilities",
    "geometric": "geometric mean of the probabilities",
    "votes": "votes, with ties broken by the probabilities",
}
_HEADINGS = (
    *("member", "top-1", "top-5"),
    *("so far: top-1", "top-5", "without it: top-1", "top-5", "adds: top-1", "top-5"),
)


def render_ensemble(found: EnsembleResult, lmdb: str) -> str:
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
        f"ensemble, {_AVERAGES[found.average]}: top-1 {top1} %, top-5 {top5} %",
        *_describe_reported(found),
        f"compared with the best single member: top-1 {best[0]}, top-5 {best[1]} points",
    ]
    if found.missing:
        lines.append(f"not finished, left out: {', '.join(found.missing)}")
    return "\n".join(lines)


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
    reported = ", ".join(f"{name} {percent:g} %" for name, percent in pairs if percent is not None)
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
