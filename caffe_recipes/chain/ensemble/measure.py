"""`caffe-recipes ensemble`: a run's models on the images of a test LMDB, each alone and averaged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.prototxt import digest, load_prototxt
from caffe_recipes.chain.ensemble.members import Member, find_members, unfinished_members
from caffe_recipes.chain.find_run import find_run, load_frozen
from caffe_recipes.chain.find_trainer import find_our_trainer
from caffe_recipes.chain.folder import load_digests
from caffe_recipes.chain.journal import load_journal
from caffe_recipes.chain.run_files import LocalFiles
from caffe_recipes.chain.setting import search_path
from caffe_recipes.cluster.staging.manifest import cache_folder, find_source, hash_source, load_manifest
from caffe_recipes.errors import InputError
from caffe_recipes.recipe.graph import find_averaged
from caffe_recipes.recipe.model import Recipe
from caffe_recipes.recipe.phases import Reported

if TYPE_CHECKING:  # numpy may not be installed
    from caffe_recipes.chain.ensemble.averages import Measured
    from caffe_recipes.chain.ensemble.predictions import Place, Tested


@dataclass(frozen=True)
class EnsembleOptions:
    """What the user says of an ensemble besides the run; `average` is one of AVERAGES."""

    root: Path = Path()
    members: tuple[str, ...] | None = None
    lmdb: Path | None = None
    average: str = "probabilities"


@dataclass(frozen=True)
class Ensemble:
    """What came out; `missing` are the recipe's members that are not finished.

    `reported` is what the source says of the recipe's own members, whichever these are.
    """

    run: str
    lmdb: Path
    images: int
    classes: int
    average: str
    members: tuple[Member, ...]
    measured: Measured
    missing: tuple[str, ...]
    reported: Reported
    reported_of: tuple[str, ...]


def measure_ensemble(run: str, options: EnsembleOptions, say: Callable[[str], None]) -> Ensemble:
    """Predict with each member, unless that is kept, and average; the run is neither locked nor changed.

    Raises InputError for what cannot be an ensemble, RunFailed where predicting fails.
    """
    _require_numpy()
    from caffe_recipes.chain.ensemble.averages import measure_members
    from caffe_recipes.chain.ensemble.predictions import find_predictions

    files = LocalFiles()
    folder = Path(find_run(files, str(options.root), run)).absolute()
    recipe = load_frozen(files, str(folder))
    state = load_journal(folder / "journal.jsonl")
    members = find_members(folder, recipe, state, options.members)
    place = _find_place(folder)
    tested = _find_tested(recipe, place, options.lmdb)
    found = find_predictions(members, tested, place, say)
    first = found[0]
    measured = measure_members([each.scores for each in found], first.labels, options.average)
    return Ensemble(
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
            "ensemble", "needs numpy", "install this project's extra 'engine', as its README says"
        )


def _find_place(folder: Path) -> Place:
    from caffe_recipes.chain.ensemble.predictions import Place

    path = search_path(ours_first=True)
    return Place(folder, folder.parent.parent, find_our_trainer(path), path)


def _find_tested(recipe: Recipe, place: Place, lmdb: Path | None) -> Tested:
    """Return the run's own evaluation net, as it was started with, and the LMDB."""
    from caffe_recipes.chain.ensemble.predictions import Tested

    path = recipe.net_path(_tested_net(recipe))
    message = load_prototxt(place.root / path, pb.NetParameter)
    found = digest(message)
    if load_digests(place.folder).get(path) != found:
        what = f"is not the net that {place.folder.name} was started with"
        raise InputError(place.root / path, what, "restore it")
    where = lmdb.absolute() if lmdb else place.root / recipe.data.test.lmdb
    source = find_source(where)
    manifest = load_manifest(source, cache_folder()) or hash_source(source, cache_folder())
    return Tested(place.root / path, message, found, where, manifest.digest)


def _tested_net(recipe: Recipe) -> str:
    """Return the evaluation's net, else the first that can be tested."""
    nets: Sequence[str] = [name for name, variant in recipe.nets.items() if variant.test]
    if recipe.evaluation is not None:
        return recipe.evaluation.net
    if not nets:
        raise InputError(recipe.name, "no net has a TEST data layer", "set `test: true` of one under `nets`")
    return nets[0]
