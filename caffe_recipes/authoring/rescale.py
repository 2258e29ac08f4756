"""Rescale a recipe to other nodes, batch size or epochs, by the paper's rules.

The notes and warnings describe how the result differs from its source and from the rules: in its rate and
warm-up, and in the epochs of its collapses, cycles and rises.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from caffe_recipes.authoring.cluster_shape import (
    IMAGENET_IMAGES,
    check_batch,
    check_batch_per_rank,
    divide_batch,
    find_warnings,
)
from caffe_recipes.authoring.new import no_warmup
from caffe_recipes.authoring.phase_scaling import (
    SolverFields,
    find_scale,
    first_warmup_epochs,
    is_all_warmup,
    last_iter,
    make_continuous,
    scale_phases,
)
from caffe_recipes.authoring.recipe_yaml import (
    NewRecipe,
    make_recipe,
    recipe_values,
    share_settings,
    write_recipe,
)
from caffe_recipes.caffe import pb
from caffe_recipes.caffe.dialects import OURS
from caffe_recipes.caffe.layers import source_batch
from caffe_recipes.caffe.shapes import select_layers
from caffe_recipes.config import Location
from caffe_recipes.errors import InputError
from caffe_recipes.recipe import paper_rules
from caffe_recipes.recipe.graph import find_leaves, images_of, images_per_iter, model_epochs
from caffe_recipes.recipe.model import OUR_TRAINER, Phase, Recipe
from caffe_recipes.recipe.net_keys import NET_FILES
from caffe_recipes.recipe.paper_rules import COLLAPSE_EPOCHS, Cycles
from caffe_recipes.render.prototxts import load_own_net
from caffe_recipes.render.recipe_files import generate_prototxts
from caffe_recipes.review.lint.acceptance import accepts
from caffe_recipes.review.lint.findings import Finding
from caffe_recipes.review.lint.recipe_lint import check_recipe
from caffe_recipes.tensorflow.run import HorovodRun
from caffe_recipes.wording import describe_count

_SAME_EPOCHS = 0.1  # about two iterations of the largest batch
_SAME_RATE = 0.001  # relative; rates are written with six digits
_ROUNDED = 0.01  # relative; a smaller change of the epochs by rounding is not reported


def describe_rescaling(source: Recipe, made: Recipe, epochs: float) -> Iterator[str]:
    """Yield notes on what changed, and on departures from the rules; `epochs` are the requested ones."""
    changes = [*_machine(source, made), *_schedule(source, made)]
    if changes:
        yield ", ".join(changes)
    yield from _departures_from_rules(source, made)
    yield from _rounding(made, epochs)
    if made.tensorflow:
        yield from _warn_of_linear_share(
            source, made.cluster.global_batch, made.tensorflow.schedule.end_learning_rate
        )
    if len(made.phases) != len(source.phases):
        yield f"{len(source.phases)} phases -> {len(made.phases)}: split where a warm-up ended in a drop"


def _machine(source: Recipe, made: Recipe) -> Iterator[str]:
    old, new = source.cluster, made.cluster
    pairs = (
        ("batch", old.global_batch, new.global_batch),
        ("nodes", old.nodes, new.nodes),
        ("ranks per node", old.ranks_per_node, new.ranks_per_node),
        ("images per rank", old.batch_per_rank, new.batch_per_rank),
    )
    for what, before, after in pairs:
        if before != after:
            yield f"{what} {before:,} -> {after:,}"


def _schedule(source: Recipe, made: Recipe) -> Iterator[str]:
    epochs, rates = (model_epochs(source), model_epochs(made)), (_highest(source), _highest(made))
    warmup = first_warmup_epochs(source), first_warmup_epochs(made)
    if abs(epochs[0] - epochs[1]) >= 0.01:
        yield f"epochs {epochs[0]:.2f} -> {epochs[1]:.2f}"
    if rates[0] != rates[1]:
        yield f"peak rate {rates[0]:g} -> {rates[1]:g}"
    if not _is_warmup_kept(source, made):
        yield f"warm-up {warmup[0]:.2f} -> {warmup[1]:.2f} epochs"


def _departures_from_rules(source: Recipe, made: Recipe) -> Iterator[str]:
    """Yield notes where the warm-up or the peak rate is not what the rules give for the new batch size."""
    old, new = source.cluster.global_batch, made.cluster.global_batch
    warmup, rule = first_warmup_epochs(made), paper_rules.warmup_epochs(new)
    if first_warmup_epochs(source) and not warmup:
        yield no_warmup(source.phases[0].warmup_start_lr or 0.0)
    elif not warmup and _highest(made) > max(_highest(source), paper_rules.WARMUP_START_LR):
        what = f"no warm-up to {_highest(made):g}, since {source.name} has none"
        yield f"warning: {what}; the rule for this batch size is {rule:.3g} epochs"
    elif _is_warmup_kept(source, made) and warmup and rule != paper_rules.warmup_epochs(old):
        yield f"the warm-up stays at {warmup:.2f} epochs; the rule for this batch size is {rule:.3g}"
    rate, peak = _highest(made), paper_rules.peak_lr(new)
    if old == new or made.data.train.images not in IMAGENET_IMAGES or abs(rate - peak) <= _SAME_RATE * peak:
        return
    own = f"{source.name} has {_highest(source):g}, and the rule gives {paper_rules.peak_lr(old):g}"
    yield f"the peak rate is {rate:g}; the rule for this batch size gives {peak:g} ({own})"


def _warn_of_linear_share(source: Recipe, batch: int, rate: float) -> Iterator[str]:
    """Warn if a new batch size keeps a share of the linear rule that was tuned for the source's."""
    linear, old = paper_rules.scaled_lr(batch), source.cluster.global_batch
    if batch != old and abs(rate - linear) > _SAME_RATE * linear:
        share = f"{rate / linear:.3g} of the linear rule's {linear:g}, as in {source.name}"
        whole = f"end_learning_rate: {linear:g} is the whole rule, which tf-256n-8k-90ep follows"
        yield f"warning: the rate is {share}, which was tuned for a batch of {old:,} only; {whole}"


def _rounding(made: Recipe, epochs: float) -> Iterator[str]:
    """Explain why the epochs differ from the requested ones: iterations and snapshots are integers."""
    trained = model_epochs(made)
    if abs(trained - epochs) <= _ROUNDED * epochs:
        return
    snapshots = [
        f"those of {phase.name} to {phase.last_iter // phase.snapshot} x {phase.snapshot} (its snapshots)"
        for phase in made.phases
        if phase.snapshot and phase.snapshot < phase.last_iter and phase.last_iter % phase.snapshot == 0
    ]
    how = ", ".join(["iterations are rounded", *snapshots])
    yield f"{trained:.2f} epochs instead of {epochs:.2f}: {how}"


def _is_warmup_kept(source: Recipe, made: Recipe) -> bool:
    return abs(first_warmup_epochs(source) - first_warmup_epochs(made)) < _SAME_EPOCHS


def _highest(recipe: Recipe) -> float:
    return max(phase.base_lr for phase in recipe.phases)


_SAME = 0.99  # iterations are rounded


def find_rule_breaks(source: Recipe, made: Recipe) -> Iterator[str]:
    """Yield warnings for parts that are shorter or longer than both section VI and the source have them."""
    (least, most), cycles = COLLAPSE_EPOCHS, Cycles()
    rise, whole = cycles.rise_epochs, cycles.rise_epochs + cycles.fall_epochs
    rules = (
        ("collapse", least, most, f"the paper uses {least} to {most}", _collapses),
        ("cycle", whole, whole, f"the paper uses {whole:g}", _cycles),
        ("rise", rise, rise, f"the paper uses {rise:g}", _rises),
    )
    for name, low, high, rule, lengths in rules:
        before, after = lengths(source), lengths(made)
        if not before or not after:
            continue
        kept = f"{rule} (section VI), and so does `new`"
        if min(after) < _SAME * min(low, *before):
            yield f"the shortest {name} is now {min(after):.3g} epochs instead of {min(before):.3g}; {kept}"
        if max(after) * _SAME > max(high, *before):
            yield f"the longest {name} is now {max(after):.3g} epochs instead of {max(before):.3g}; {kept}"


def _collapses(recipe: Recipe) -> list[float]:
    """Return the epochs of each collapse: a final phase that is named so, or that drops the augmentation."""
    result = []
    for phase in find_leaves(recipe):
        start = recipe.starts_from(phase)
        if isinstance(start, Phase):
            is_bare = _is_augmented(recipe, start) and not _is_augmented(recipe, phase)
            result += [_epochs(recipe, phase)] if is_bare or "coll" in phase.name.lower() else []
    return result


def _cycles(recipe: Recipe) -> list[float]:
    """Return the epochs of each cycle: a rise and its fall, in one phase or in two."""
    result = []
    for phase in _rising(recipe):
        falls = [other for other in recipe.phases if recipe.starts_from(other) is phase]
        parts = [phase, *(falls[:1] if is_all_warmup(phase) else [])]
        result.append(sum(_epochs(recipe, part) for part in parts))
    return result


def _rises(recipe: Recipe) -> list[float]:
    """Return the epochs of each rise after the first."""
    return [
        _epochs(recipe, phase)
        if is_all_warmup(phase)
        else (phase.warmup_iter or 0) * images_per_iter(recipe, phase) / recipe.data.train.images
        for phase in _rising(recipe)
    ]


def _rising(recipe: Recipe) -> list[Phase]:
    """Return the phases that warm up again."""
    return [
        phase for phase in recipe.phases if phase.warmup_iter and isinstance(recipe.starts_from(phase), Phase)
    ]


def _is_augmented(recipe: Recipe, phase: Phase) -> bool:
    return recipe.nets[phase.net].random_aspect_ratio is not None


def _epochs(recipe: Recipe, phase: Phase) -> float:
    return images_of(recipe, phase) / recipe.data.train.images


_DROPPED = ("nets_dir", "reported", "derived", "differences", "notes", "accept", "solver", "phases")
# Keys that rescaling does not change, so that their `differences` still apply.
_KEPT = ("net", "nets", "data")
_ALONE = "batch-norm-alone"


@dataclass(frozen=True)
class RescaleTarget:
    """The requested changes; None follows from the others."""

    nodes: int | None = None
    batch: int | None = None
    epochs: float | None = None
    ranks_per_node: int | None = None
    batch_per_rank: int | None = None
    smooth: bool = False
    name: str | None = None
    trainer: str | None = None


def _check_own_data(recipe: Recipe, batch_per_rank: int, ranks: int) -> None:
    """Raise InputError if a net that keeps its data layers reads another batch than each rank is to get."""
    if not recipe.data.is_in_net:
        return
    own = load_own_net(recipe)
    trained = select_layers(own.message, pb.TRAIN)
    for index, layer in enumerate(own.message.layer):
        is_source = not layer.bottom and any(layer is one for one in trained)
        size = source_batch(layer) if is_source else 0
        if size not in (0, batch_per_rank):
            reads = f"layer '{layer.name}' reads batches of {size:,}, which `data: as-in-net` keeps"
            what = f"{reads}, but {describe_count(ranks, 'rank')} would need {batch_per_rank:,} each"
            keeps = size * ranks == recipe.cluster.global_batch
            example = f"--nodes {2 * recipe.cluster.nodes} --batch {2 * size * ranks}" if keeps else ""
            example = example or f"--batch {size * ranks} here"
            hint = f"give --nodes and --batch with {size:,} images per rank, such as {example}"
            raise InputError(own.where(f"layer[{index}]"), what, hint)


def rescale(recipe: Recipe, change: RescaleTarget, home: Path = Path()) -> NewRecipe:
    """Return the rescaled recipe; its YAML will be in the folder `home`.

    Raises InputError if the numbers do not fit, or if nothing would change.
    """
    if change == RescaleTarget(name=change.name, trainer=change.trainer):
        names = [f"--{field.name.replace('_', '-')}" for field in fields(change)]
        changes = [name for name in names if name not in ("--name", "--trainer")]
        hint = f"give {', '.join(changes[:-1])} or {changes[-1]}"
        raise InputError(recipe.name, "nothing to change", hint)
    cluster = _resize_cluster(recipe, change)
    batch = cluster["nodes"] * cluster["ranks_per_node"] * cluster["batch_per_rank"]
    check_batch(batch, recipe.data.train.images, "--batch" if change.batch else "--nodes")
    _check_own_data(recipe, cluster["batch_per_rank"], cluster["nodes"] * cluster["ranks_per_node"])
    name = change.name or "-".join([recipe.name, *_changed(change)])
    phases = scale_phases(recipe, find_scale(recipe, batch, change.epochs))
    if change.smooth:
        phases = make_continuous(phases)
    _check_changed(recipe, change, cluster, phases)
    values = _values(recipe, name, cluster, phases, home)
    _change_trainer(recipe, change.trainer, values)
    _keep_norms(recipe, values)
    draft = make_recipe(values, name, home)
    title = f"{_title(draft)}, {model_epochs(draft):.4g} epochs: {recipe.name} rescaled"
    draft = make_recipe(values | {"title": title}, name, home)
    _check_paths(recipe, draft)
    accept = _accept(recipe, draft)
    made = make_recipe(values | {"title": title, **({"accept": accept} if accept else {})}, name, home)
    notes = (*describe_rescaling(recipe, made, change.epochs or model_epochs(recipe)), *_norms(recipe, made))
    known = find_warnings(batch, model_epochs(made), made.data.train.images)
    warnings = (*known, *find_rule_breaks(recipe, made), *_warn_of_norms(made))
    was_reported = recipe.reported or any(phase.reported for phase in recipe.phases)
    left_out = ["Its results (`reported`) are left out."] if was_reported else []
    comments: dict[Location, list[str]] = {
        (): [f"`caffe-recipes rescale` of {recipe.name}.", *left_out, *notes, *warnings]
    }
    messages = (*notes, *(f"warning: {warning}" for warning in warnings))
    return NewRecipe(made, write_recipe(made, comments), messages)


def _resize_cluster(recipe: Recipe, change: RescaleTarget) -> dict[str, Any]:
    """Return the keys of `cluster`.

    A larger batch takes more nodes; more nodes with the same batch take fewer images per rank.
    """
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
    nodes, each = divide_batch(batch, nodes, ranks_per_node, each, option=option)
    if recipe.net.builder not in (None, "resnet_small"):
        check_batch_per_rank(each, option)
    values: dict[str, Any] = old.model_dump(exclude_defaults=True, exclude_none=True)
    if old.omp_num_threads is not None:
        values["omp_num_threads"] = max(old.omp_num_threads * old.ranks_per_node // ranks_per_node, 1)
    return values | {"nodes": nodes, "ranks_per_node": ranks_per_node, "batch_per_rank": each}


# What a Caffe on CPUs needs, or what describes its nodes.
_OF_CPU_NODES = ("kmp_affinity", "mlsl", "fabric", "sockets_per_node", "cores_per_socket", "tmp_gb")


def _change_trainer(recipe: Recipe, trainer: str | None, values: dict[str, Any]) -> None:
    """Change the values of a recipe to those for another trainer.

    caffe-torch gets what its ranks need on one node of GPUs: `run` chooses the devices and the threads.
    """
    if trainer is None or trainer == recipe.trainer:
        return
    values["trainer"] = trainer
    if trainer != OUR_TRAINER:
        return
    cluster = values["cluster"]
    is_one_node = cluster["nodes"] == 1
    dropped = (*_OF_CPU_NODES, *(["omp_num_threads"] if is_one_node else []))
    values["cluster"] = {key: value for key, value in cluster.items() if key not in dropped}
    if is_one_node:
        for part in (values.get("solver", {}), *values["phases"]):
            part.pop("solver_mode", None)


def _keep_norms(recipe: Recipe, values: dict[str, Any]) -> None:
    """Set, keep or remove the number of images that BatchNorms normalize together.

    A larger rank of caffe-torch normalizes as many as a rank of the source did, if they divide its batch.
    """
    net, batch = recipe.net, values["cluster"]["batch_per_rank"]
    images = net.batch_norm_images or recipe.cluster.batch_per_rank
    is_ours = values.get("trainer", recipe.trainer) == OUR_TRAINER and net.builder is not None
    if batch <= images or batch % images:
        values["net"] = {key: value for key, value in values["net"].items() if key != "batch_norm_images"}
    elif is_ours:
        values["net"] = values["net"] | {"batch_norm_images": images}


def _norms(source: Recipe, made: Recipe) -> Iterator[str]:
    """Yield a note if the BatchNorms of a rank normalize its batch in parts, or no longer do."""
    images, batch = made.net.batch_norm_images, made.cluster.batch_per_rank
    if source.net.batch_norm_images and not images:
        yield (
            f"net.batch_norm_images: {source.net.batch_norm_images:,} is removed: BatchNorms normalize the "
            f"{describe_count(batch, 'image')} of a rank together"
        )
    if not images or source.cluster.batch_per_rank == batch:
        return
    parts, fraction = batch // images, made.net.batch_norm_fraction
    yield (
        f"BatchNorms normalize {images:,} images together, as in {source.name}: {parts:,} parts of a rank's "
        f"{batch:,}. Each part moves the running statistics, so an iteration keeps {fraction:g}^{parts} = "
        f"{fraction**parts:.3g} of them; {source.name} keeps {source.net.batch_norm_fraction:g}"
    )


def _check_changed(
    recipe: Recipe, change: RescaleTarget, cluster: Mapping[str, Any], phases: Sequence[SolverFields]
) -> None:
    """Raise InputError if the recipe already is as requested, with epochs compared as printed."""
    own, batch, epochs = recipe.cluster.model_dump(), recipe.cluster.global_batch, model_epochs(recipe)
    same = all(own[key] == cluster[key] for key in ("nodes", "ranks_per_node", "batch_per_rank"))
    alike = not change.smooth and f"{change.epochs or epochs:.2f}" == f"{epochs:.2f}"
    if same and (alike or phases == scale_phases(recipe, find_scale(recipe, batch, None))):
        nodes = describe_count(recipe.cluster.nodes, "node")
        what = f"already has batch {batch:,}, {nodes} and {epochs:.2f} epochs"
        raise InputError(recipe.name, what, "give another --nodes, --batch or --epochs")


def _check_paths(recipe: Recipe, made: Recipe) -> None:
    """Raise InputError if the new recipe would generate files at the same paths as its source."""
    ours, theirs = (
        (f"jobs/{one.name}", *one.prototxt_dirs, *(phase.snapshot_prefix for phase in one.phases))
        for one in (made, recipe)
    )
    shared = next((place for place in ours if place in theirs), None)
    if shared:
        what = f"'{made.name}' and '{recipe.name}' would both use {shared}"
        raise InputError("--name", what, "give another")


def _changed(change: RescaleTarget) -> Iterator[str]:
    """Yield the parts that are appended to the recipe's name."""
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
    recipe: Recipe, name: str, cluster: dict[str, Any], phases: Sequence[SolverFields], home: Path
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
        "net": values["net"] | _relocated_net(recipe, home),
    }
    if recipe.ensemble:
        changed["ensemble"] = {"members": list(recipe.ensemble.members)}
    if recipe.tensorflow:
        changed["tensorflow"] = _tensorflow(recipe.tensorflow, name, phases) | _threads(recipe, cluster)
    kept = {key: value for key, value in (values | changed).items() if key not in _DROPPED}
    still = [one.model_dump() for one in recipe.differences if one.key.partition(".")[0] in _KEPT]
    more = {"solver": solver, "phases": own, "differences": still}
    return kept | {key: value for key, value in more.items() if value}


def _tensorflow(run: HorovodRun, name: str, phases: Sequence[SolverFields]) -> dict[str, Any]:
    """Return the keys of a TensorFlow run with the rescaled schedule and its own model name."""
    warmup = next((phase for phase in phases if phase.get("warmup_iter")), None)
    if warmup is None:
        what = "a TensorFlow run needs a warm-up, but the peak rate would not be above its start"
        raise InputError("--batch", what, "use a larger batch")
    changed = {
        "warmup_steps": warmup["warmup_iter"],
        "end_learning_rate": warmup["base_lr"],
        "steps": sum(map(last_iter, phases)),
    }
    # The linear share is measured at the source's own speed.
    values = run.model_dump(exclude_defaults=True, exclude={"linear_share"})
    return values | {"schedule": values["schedule"] | changed, "model": name}


def _threads(recipe: Recipe, cluster: Mapping[str, Any]) -> dict[str, int]:
    """Return the threads of a TensorFlow rank: as many as OpenMP's, if they were equal before."""
    is_same = recipe.tensorflow and recipe.tensorflow.intra_threads == recipe.cluster.omp_num_threads
    return {"intra_threads": cluster["omp_num_threads"]} if is_same else {}


def _relocated_net(recipe: Recipe, home: Path) -> dict[str, Any]:
    """Return the keys of a prototxt net relative to the new folder; raises InputError for a function."""
    if recipe.net.files:
        paths = (os.path.relpath(recipe.folder / file, home) for file in recipe.net.files)
        return dict(zip(NET_FILES, (path.replace(os.sep, "/") for path in paths), strict=False))
    if recipe.net.function and recipe.folder.absolute() != home.absolute():
        what = f"net.function {recipe.net.function} is looked up in the recipe's folder, {recipe.folder}"
        raise InputError(recipe.name, what, "write the new recipe there (--out)")
    return {}


def _title(recipe: Recipe) -> str:
    cluster = recipe.cluster
    nodes = describe_count(cluster.nodes, "node")
    return f"{recipe.net.name}, batch {cluster.global_batch:,} on {nodes}"


def _accept(recipe: Recipe, made: Recipe) -> list[dict[str, str]]:
    """Return the source's `accept:` entries that still apply."""
    found = _findings(made)
    accept = [one for one in recipe.accept if any(accepts(one, finding) for finding in found)]
    return [one.model_dump(exclude_none=True) for one in accept]


def _warn_of_norms(made: Recipe) -> list[str]:
    """Return a warning if each rank has one image, and the net has BatchNorms."""
    found = _findings(made) if made.cluster.batch_per_rank == 1 else []
    return [f"{one.what}: {one.effect}; {one.write}" for one in found if one.id == _ALONE][:1]


def _findings(recipe: Recipe) -> list[Finding]:
    """Return all lint findings of a recipe, accepted or not."""
    return list(check_recipe(recipe, generate_prototxts(recipe), lambda location: recipe.name, OURS))
