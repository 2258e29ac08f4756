"""A recipe for another machine, batch or length: the same by the authors' rules, and nothing new for lint."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from caffe_recipes.caffe.dialects import OURS
from caffe_recipes.config.source import Location
from caffe_recipes.errors import InputError
from caffe_recipes.generate.files import generate
from caffe_recipes.making.joins import Settings
from caffe_recipes.making.lengths import find_unruly
from caffe_recipes.making.made import Made
from caffe_recipes.making.rescaled import tell_changes
from caffe_recipes.making.scaled import find_scale, scale_phases
from caffe_recipes.making.shape import check_batch, check_batch_per_rank, find_shape
from caffe_recipes.making.smoothed import smooth
from caffe_recipes.making.values import make_recipe, recipe_values, share_settings, write_recipe
from caffe_recipes.making.warnings import find_warnings
from caffe_recipes.recipe.arithmetic import model_epochs
from caffe_recipes.recipe.model import Acceptance, Recipe
from caffe_recipes.review.findings import Finding
from caffe_recipes.review.lint.reading.recipes import check_recipe

_DROPPED = ("nets_dir", "reported", "derived", "differences", "tensorflow", "accept", "solver", "phases")
_TOO_FEW = "final-rate-high"


@dataclass(frozen=True)
class Change:
    """What is to be other than in the source; None follows from the rest."""

    nodes: int | None = None
    batch: int | None = None
    epochs: float | None = None
    ranks_per_node: int | None = None
    batch_per_rank: int | None = None
    smooth: bool = False
    name: str | None = None


def rescale(recipe: Recipe, change: Change, home: Path = Path()) -> Made:
    """Make a recipe of another one; `home` is the folder that its YAML is to stand in.

    Raises InputError for what does not fit, and for a change that is none.
    """
    if change == Change(name=change.name):
        raise InputError(recipe.name, "nothing is to change", "give --nodes, --batch, --epochs or --smooth")
    cluster = _reshape(recipe, change)
    batch = cluster["nodes"] * cluster["ranks_per_node"] * cluster["batch_per_rank"]
    check_batch(batch, recipe.data.train.images, "--batch" if change.batch else "--nodes")
    name = change.name or "-".join([recipe.name, *_changed(change)])
    phases = scale_phases(recipe, find_scale(recipe, batch, change.epochs))
    if change.smooth:
        phases = smooth(phases)
    _check_other(recipe, change, cluster, phases)
    values = _values(recipe, name, cluster, phases, home)
    draft = make_recipe(values, name, home)
    title = f"{_title(draft)}, {model_epochs(draft):.4g} epochs: {recipe.name} rescaled"
    draft = make_recipe(values | {"title": title}, name, home)
    _check_places(recipe, draft)
    accept = _accept(recipe, draft)
    made = make_recipe(values | {"title": title, **({"accept": accept} if accept else {})}, name, home)
    notes = tuple(tell_changes(recipe, made, change.epochs or model_epochs(recipe)))
    known = find_warnings(batch, model_epochs(made), made.data.train.images)
    warnings = (*known, *find_unruly(recipe, made))
    comments: dict[Location, list[str]] = {
        (): [f"`caffe-recipes rescale` of {recipe.name}.", *notes, *warnings]
    }
    told = (*notes, *(f"warning: {warning}" for warning in warnings))
    return Made(made, write_recipe(made, comments), told)


def _reshape(recipe: Recipe, change: Change) -> dict[str, Any]:
    """Return the cluster's keys: a larger batch by more nodes, more nodes alone by less of each rank."""
    old = recipe.cluster
    ranks_per_node = change.ranks_per_node or old.ranks_per_node
    nodes, each = change.nodes, change.batch_per_rank
    batch = change.batch or old.global_batch
    if change.batch is None and each is not None:
        nodes = nodes or old.nodes
        batch = nodes * ranks_per_node * each
    if nodes is None and each is None:
        is_whole = batch % (ranks_per_node * old.batch_per_rank) == 0
        nodes, each = (None, old.batch_per_rank) if is_whole else (old.nodes, None)
    asked = (
        ("--nodes", change.nodes),
        ("--batch", change.batch),
        ("--batch-per-rank", change.batch_per_rank),
        ("--ranks-per-node", change.ranks_per_node),
    )
    option = next((option for option, value in asked if value), "--nodes")
    nodes, each = find_shape(batch, nodes, ranks_per_node, each, option=option)
    if recipe.net.builder not in (None, "resnet_small"):
        check_batch_per_rank(each, option)
    values: dict[str, Any] = old.model_dump(exclude_defaults=True, exclude_none=True)
    if change.ranks_per_node and change.ranks_per_node != old.ranks_per_node:
        cores = old.omp_num_threads * old.ranks_per_node
        values["omp_num_threads"] = max(cores // ranks_per_node, 1)
    return values | {"nodes": nodes, "ranks_per_node": ranks_per_node, "batch_per_rank": each}


def _check_other(
    recipe: Recipe, change: Change, cluster: Mapping[str, Any], phases: Sequence[Settings]
) -> None:
    """Refuse a change to what the recipe is already, its epochs as they are printed; raises InputError."""
    own, batch, epochs = recipe.cluster.model_dump(), recipe.cluster.global_batch, model_epochs(recipe)
    same = all(own[key] == cluster[key] for key in ("nodes", "ranks_per_node", "batch_per_rank"))
    alike = not change.smooth and f"{change.epochs or epochs:.2f}" == f"{epochs:.2f}"
    if same and (alike or phases == scale_phases(recipe, find_scale(recipe, batch, None))):
        nodes = "1 node" if recipe.cluster.nodes == 1 else f"{recipe.cluster.nodes:,} nodes"
        what = f"is so already: batch {batch:,} on {nodes}, {epochs:.2f} epochs"
        raise InputError(recipe.name, what, "give another --nodes, --batch or --epochs")


def _check_places(recipe: Recipe, made: Recipe) -> None:
    """Refuse a name by which a file of the new recipe would be one of the source's; raises InputError."""
    ours, theirs = (
        (f"jobs/{one.name}", *one.prototxt_dirs, *(phase.snapshot_prefix for phase in one.phases))
        for one in (made, recipe)
    )
    shared = next((place for place in ours if place in theirs), None)
    if shared:
        raise InputError("--name", f"'{made.name}' makes {shared}, as {recipe.name} does", "give another")


def _changed(change: Change) -> Iterator[str]:
    """Name what is other, for the recipe's name."""
    if change.batch:
        yield str(change.batch)
    if change.nodes:
        yield f"{change.nodes}n"
    if change.ranks_per_node or change.batch_per_rank:
        yield f"{change.ranks_per_node or ''}x{change.batch_per_rank or ''}"
    if change.epochs:
        yield f"{change.epochs:.10g}ep"
    if change.smooth:
        yield "smooth"


def _values(
    recipe: Recipe, name: str, cluster: dict[str, Any], phases: Sequence[Settings], home: Path
) -> dict[str, Any]:
    values = recipe_values(recipe)
    source = f"caffe-recipes rescale {recipe.name}" + (f"; {recipe.source}" if recipe.source else "")
    named = [
        phase
        | {
            "snapshot_prefix": posixpath.join(
                posixpath.dirname(phase["snapshot_prefix"]), f"{name}_{phase['name']}"
            )
        }
        for phase in phases
    ]
    solver, own = share_settings(named)
    changed = {
        "name": name,
        "source": source,
        "prototxt_dir": posixpath.join(posixpath.dirname(recipe.prototxt_dir), name),
        "cluster": cluster,
        "net": values["net"] | _moved_net(recipe, home),
    }
    if recipe.ensemble:
        changed["ensemble"] = {"members": list(recipe.ensemble.members)}
    kept = {key: value for key, value in (values | changed).items() if key not in _DROPPED}
    return kept | ({"solver": solver} if solver else {}) | {"phases": own}


def _moved_net(recipe: Recipe, home: Path) -> dict[str, Any]:
    """Return where a net of the user's own is, seen from another folder."""
    if recipe.net.prototxt:
        path = os.path.relpath(recipe.folder / recipe.net.prototxt, home)
        return {"prototxt": path.replace(os.sep, "/")}
    if recipe.net.function and recipe.folder.absolute() != home.absolute():
        what = f"net.function {recipe.net.function} is found from the recipe's folder, {recipe.folder}"
        raise InputError(recipe.name, what, "write the new one beside it, by --out")
    return {}


def _title(recipe: Recipe) -> str:
    cluster = recipe.cluster
    nodes = "1 node" if cluster.nodes == 1 else f"{cluster.nodes:,} nodes"
    return f"{recipe.net.name}, batch {cluster.global_batch:,} on {nodes}"


def _accept(recipe: Recipe, made: Recipe) -> list[dict[str, str]]:
    """Return what of the source's accepted findings there still is; and what few iterations bring."""
    found = _findings(made)
    accept = [one for one in recipe.accept if any(_accepts(one, finding) for finding in found)]
    kept = [_retold(one, recipe, made).model_dump(exclude_none=True) for one in accept]
    before = {(one.id, one.phase) for one in _findings(recipe)}
    for one in found:
        is_old = (one.id, one.phase) in before or any(_accepts(each, one) for each in accept)
        if one.id == _TOO_FEW and not is_old:
            last = made.phases[-1].last_iter
            reason = f"{last} iterations are few for a rate to go to 0"
            kept.append({"finding": one.id, "phase": one.phase, "reason": reason})
    return kept


def _retold(one: Acceptance, recipe: Recipe, made: Recipe) -> Acceptance:
    """Return an accepted finding whose reason has the new recipe's iterations where it has the old one's."""
    named = {phase.name: phase.last_iter for phase in made.phases}
    told = {
        str(phase.last_iter): str(named[phase.name])
        for phase in recipe.phases
        if phase.name in named and one.phase in (None, phase.name)
    }
    reason = re.sub(r"(?<![\d^.,])\d+(?![.,]?\d)", lambda found: told.get(found[0], found[0]), one.reason)
    return one.model_copy(update={"reason": reason})


def _findings(recipe: Recipe) -> list[Finding]:
    """Find what lint says of a recipe, accepted or not."""
    texts = {path: text for path, text in generate(recipe).items() if path.endswith(".prototxt")}
    return list(check_recipe(recipe, texts, lambda location: recipe.name, OURS))


def _accepts(one: Acceptance, found: Finding) -> bool:
    return one.finding == found.id and one.phase in (None, found.phase)
