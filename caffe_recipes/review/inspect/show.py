"""Render recipes as text and JSON: shape, phases, reported results, and the arithmetic of a Horovod run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from caffe_recipes.caffe.rates import key_rates
from caffe_recipes.recipe.graph import (
    find_evaluated,
    find_leaves,
    images_before,
    images_of,
    images_per_iter,
    model_epochs,
    total_epochs,
    total_images,
    total_iterations,
    training_minutes,
)
from caffe_recipes.recipe.paper_rules import REFERENCE_BATCH, REFERENCE_LR, scaled_lr
from caffe_recipes.recipe.shipped import shipped_recipes
from caffe_recipes.review.inspect.schedules import rate_before
from caffe_recipes.review.text_columns import align_columns, join_blocks, wrap_line
from caffe_recipes.wording import describe_count

if TYPE_CHECKING:
    from caffe_recipes.caffe.rates import KeyRates
    from caffe_recipes.recipe.model import (
        AnyRecipe,
        Cluster,
        Family,
        Mlsl,
        Phase,
        Recipe,
        Reported,
        TensorFlowRecipe,
    )
    from caffe_recipes.recipe.pace import RunSize


@dataclass(frozen=True)
class HorovodArithmetic:
    """The numbers of a Horovod run, computed from its shape.

    `epochs` counts epochs of the source's round number of images, `epochs_of_all_images` epochs of the
    recipe's data. Speeds are in images per second, and `minutes` is the training time at the reported
    speed; None if no speed is reported.
    """

    workers: int
    batch: int
    steps: int
    steps_per_epoch: float
    warmup_epochs: float
    epochs: float
    images_per_epoch: int
    epochs_of_all_images: float
    images: int
    scaled_learning_rate: float
    end_learning_rate: float
    images_per_s: float | None
    images_per_s_per_node: float | None
    images_per_s_if_linear: float | None
    minutes: float | None


def horovod_arithmetic(recipe: AnyRecipe) -> HorovodArithmetic | None:
    """Return the numbers of a recipe's TensorFlow run; None if it has none.

    Source: section 7 b of SURFsara's and Intel's recipe for TensorFlow 1.6.
    """
    run, cluster, images = recipe.tensorflow, recipe.cluster, recipe.train_images
    if run is None:
        return None
    per_epoch = run.images_per_epoch / cluster.global_batch
    trained = run.schedule.steps * cluster.global_batch
    speed = recipe.reported.images_per_s
    return HorovodArithmetic(
        workers=cluster.ranks,
        batch=cluster.global_batch,
        steps=run.schedule.steps,
        steps_per_epoch=per_epoch,
        warmup_epochs=run.schedule.warmup_steps / per_epoch,
        epochs=run.schedule.steps / per_epoch,
        images_per_epoch=run.images_per_epoch,
        epochs_of_all_images=trained / images,
        images=images,
        scaled_learning_rate=scaled_lr(cluster.global_batch),
        end_learning_rate=run.schedule.end_learning_rate,
        images_per_s=speed,
        images_per_s_per_node=speed / cluster.nodes if speed else None,
        images_per_s_if_linear=speed / run.linear_share if speed and run.linear_share else None,
        minutes=trained / speed / 60 if speed else None,
    )


def horovod_values(recipe: AnyRecipe) -> dict[str, object] | None:
    """Return the settings of the TensorFlow run and its arithmetic, for JSON; None without such a run."""
    found = horovod_arithmetic(recipe)
    if found is None or recipe.tensorflow is None:
        return None
    return {**recipe.tensorflow.model_dump(), "arithmetic": asdict(found)}


def horovod_lines(recipe: AnyRecipe) -> Iterator[str]:
    """Yield the arithmetic of a recipe's TensorFlow run, one line per result; nothing if it has none."""
    found, run, cluster = horovod_arithmetic(recipe), recipe.tensorflow, recipe.cluster
    if found is None or run is None:
        return
    schedule = run.schedule
    yield f"{found.workers} workers x {cluster.batch_per_rank} images = {found.batch:,} images per step"
    yield f"{found.images_per_epoch:,} / {found.batch:,} = {found.steps_per_epoch:.2f} steps per epoch"
    yield (
        f"{found.steps:,} steps / {found.steps_per_epoch:.2f} = {found.epochs:.1f} epochs; of all "
        f"{found.images:,} images {found.epochs_of_all_images:.1f}"
    )
    scaled, end = found.scaled_learning_rate, found.end_learning_rate
    changed = {0.5: f", halved to {end:g}", 1.0: ""}.get(end / scaled, f", times {end / scaled:.3g}: {end:g}")
    yield f"{REFERENCE_LR:g} x {found.batch:,} / {REFERENCE_BATCH} = {scaled:g}{changed}"
    yield (
        f"rate {schedule.learning_rate:g} to {schedule.end_learning_rate:g} in {schedule.warmup_steps} "
        f"steps, {found.warmup_epochs:.2f} epochs, then linearly to 0 in "
        f"{schedule.steps - schedule.warmup_steps:,}"
    )
    if found.minutes is not None and found.images_per_s:
        yield (
            f"{found.steps:,} x {found.batch:,} images / {found.images_per_s:,g} images/s = "
            f"{found.minutes:.0f} minutes"
        )
    if found.images_per_s_if_linear and run.linear_share:
        yield (
            f"{found.images_per_s:,g} images/s are {100 * run.linear_share:g}% of linear, "
            f"{found.images_per_s_if_linear:,.0f}: {found.images_per_s_per_node:.1f} per node, against "
            f"{found.images_per_s_if_linear / cluster.nodes:.1f} on one node alone"
        )


def explain_other_run(recipe: AnyRecipe, step: int) -> str | None:
    """Return why the model at a global step is not the final model of a recipe's run; None if it is.

    >>> from caffe_recipes.recipe.source import load_recipe
    >>> explain_other_run(load_recipe("tf-256n-90ep"), 14075)
    'tf-256n-90ep ends at step 4,680; 14,075 steps are 90 epochs at a batch of 8,192: tf-256n-8k-90ep'
    """
    run = recipe.tensorflow
    if run is None or step == run.schedule.steps:
        return None
    ends = f"{recipe.name} ends at step {run.schedule.steps:,}"
    epochs, images = recipe.reported.epochs, recipe.train_images
    batch = _batch_of(step, epochs * images) if epochs and step else None
    known = _find_run(step)
    if batch:
        named = f": {known}" if known else ", another run"
        return f"{ends}; {step:,} steps are {epochs:g} epochs at a batch of {batch:,}{named}"
    is_early = step < run.schedule.steps
    return f"{ends}; {'an intermediate checkpoint, or ' if is_early else ''}{known or 'another run'}"


def _find_run(step: int) -> str | None:
    """Return the name of the shipped recipe whose TensorFlow run ends at a step, or None."""
    from caffe_recipes.recipe.source import load_any_recipe  # pydantic

    alone = (load_any_recipe(name) for name, found in shipped_recipes().items() if found.row is None)
    return next((one.name for one in alone if one.tensorflow and one.tensorflow.schedule.steps == step), None)


def _batch_of(step: int, images: float) -> int | None:
    """Return the batch, a multiple of 256, with which this many images take this many steps, or None.

    The result may be off by less than a step, because the last batch may be partial or dropped.

    >>> _batch_of(14075, 90 * 1281167), _batch_of(14000, 90 * 1281167)
    (8192, None)
    """
    batch = round(images / step / REFERENCE_BATCH) * REFERENCE_BATCH
    return batch if batch and abs(images / batch - step) < 1 else None


_WIDTH = 120
_NUMBERS = {"iterations", "epochs", "images", "minutes", "decay"}
_RATES = {"start", "warm-up ends", "drops to", "last", "at rate"}


@dataclass(frozen=True)
class SnapshotRow:
    """A caffemodel that a phase writes on the first host, and the phases that start from it."""

    path: str
    iteration: int
    used_by: tuple[str, ...]


@dataclass(frozen=True)
class PhaseSummary:
    """The numbers of one phase; `rates` is None for `plateau`, `minutes` if no speed is known.

    `rate_before` is the learning rate at the snapshot that the phase starts from.
    """

    name: str
    starts_from: str | None
    starts_from_iter: int | None
    rate_before: float | None
    net: str
    augmentation: str
    lr_policy: str
    rates: KeyRates | None
    weight_decay: float | None
    iterations: int
    epochs: float
    images: int
    images_per_iter: int
    minutes: float | None
    snapshot_every_iter: int
    snapshots: tuple[SnapshotRow, ...]


def render_list(recipes: Iterable[AnyRecipe], width: int | None = None) -> list[str]:
    """Return the names, titles and notes of recipes, a line each, with each family below its own title."""
    groups: dict[Family | None, list[AnyRecipe]] = {}
    for recipe in recipes:
        groups.setdefault(recipe.family, []).append(recipe)
    blocks = []
    for family, group in groups.items():
        rows = [(one.name, [one.title, *(f"  {note}" for note in one.notes)]) for one in group]
        cells = [(name if text is texts[0] else "", text) for name, texts in rows for text in texts]
        if family:
            title = wrap_line(family.title, width)
            lines = align_columns(cells, width=width and width - 2)
            blocks.append([*title, *(f"  {line}" for line in lines)])
        else:
            blocks.append(align_columns(cells, width=width))
    return join_blocks(blocks)


def summarize_phase(recipe: Recipe, phase: Phase, images_per_s: float | None = None) -> PhaseSummary:
    """Return the summary of one phase of a recipe.

    Raises RecipeError if a rate of its schedule is not finite.
    """
    from caffe_recipes.recipe.model import Phase  # pydantic
    from caffe_recipes.render.prototxts import build_solver  # pydantic

    start, images = recipe.starts_from(phase), images_of(recipe, phase)
    return PhaseSummary(
        name=phase.name,
        starts_from=start.name if isinstance(start, Phase) else start,
        starts_from_iter=(phase.weights_iter or start.last_iter) if isinstance(start, Phase) else None,
        rate_before=rate_before(recipe, phase),
        net=phase.net,
        augmentation=_describe_augmentation(recipe, phase.net),
        lr_policy=phase.lr_policy,
        rates=key_rates(build_solver(recipe, phase), phase.last_iter),
        weight_decay=phase.weight_decay,
        iterations=phase.last_iter,
        epochs=images / recipe.data.train.images,
        images=images,
        images_per_iter=images_per_iter(recipe, phase),
        minutes=images / images_per_s / 60 if images_per_s else None,
        snapshot_every_iter=phase.snapshot_every_iter,
        snapshots=tuple(_snapshots(recipe, phase)),
    )


def shown_values(recipe: AnyRecipe, images_per_s: float | None = None) -> dict[str, object]:
    """Return a recipe's summary for JSON, with minutes at `images_per_s` or at the reported speed."""
    from caffe_recipes.recipe.model import Recipe  # pydantic

    speed = images_per_s or recipe.reported.images_per_s
    cluster = recipe.cluster
    is_unknown = isinstance(recipe, Recipe) and recipe.names_no_data and recipe.test_images is None
    shape = {
        "name": recipe.name,
        "title": recipe.title,
        "source": recipe.source,
        "family": recipe.family.name if recipe.family else None,
        "training_images": recipe.train_images,
        "test_images": None if is_unknown else recipe.tested_images,
        "nodes": cluster.nodes,
        "ranks": cluster.ranks,
        "batch_per_rank": cluster.batch_per_rank,
        "global_batch": cluster.global_batch,
        "mlsl": cluster.mlsl.model_dump() if cluster.mlsl else None,
        "trainer": recipe.trainer,
        "images_per_s": speed,
        "tensorflow": horovod_values(recipe),
        "reported": recipe.reported.model_dump(),
        "derived": [one.model_dump() for one in recipe.derived],
        "differences": [one.model_dump() for one in recipe.differences],
        "notes": list(recipe.notes),
    }
    return shape | (_phase_values(recipe, speed) if isinstance(recipe, Recipe) else {})


def _phase_values(recipe: Recipe, speed: float | None) -> dict[str, object]:
    return {
        "net": recipe.net.name,
        "classes": recipe.net.classes,
        "phases": [asdict(summarize_phase(recipe, phase, speed)) for phase in recipe.phases],
        "iterations": total_iterations(recipe),
        "epochs": total_epochs(recipe),
        "images": total_images(recipe),
        "model_epochs": model_epochs(recipe),
        "minutes": training_minutes(recipe, speed) if speed else None,
        "ensemble": recipe.ensemble.model_dump() if recipe.ensemble else None,
        "reported_by_phase": {phase.name: phase.reported.model_dump() for phase in recipe.phases},
        "accepted": [acceptance.model_dump() for acceptance in recipe.accept],
    }


def render_recipe(
    recipe: AnyRecipe, images_per_s: float | None = None, width: int | None = None
) -> list[str]:
    """Return a recipe's net, data, shape, phases and reported results as text.

    It is at most 120 columns wide, or `width`; then the rates may be in a table of their own.
    """
    from caffe_recipes.recipe.model import Recipe  # pydantic

    speed = images_per_s or recipe.reported.images_per_s
    facts = _facts(recipe, speed) if isinstance(recipe, Recipe) else _tensorflow_facts(recipe, speed)
    named = [(name, text) for name, text in facts if text]
    before = ["", *(name for name, _ in named)]  # a name that repeats is printed once
    rows = [("" if name == last else name, text) for last, (name, text) in zip(before, named, strict=False)]
    blocks = [wrap_line(recipe.title, width), align_columns(rows, width=min(width or _WIDTH, _WIDTH))]
    if isinstance(recipe, Recipe):
        phases = [summarize_phase(recipe, phase, speed) for phase in recipe.phases]
        blocks += [
            *_rate_tables(list(_rate_rows(recipe, phases)), width),
            align_columns(list(_net_rows(phases)), _RATES, width),
            align_columns(list(_snapshot_rows(phases)), width=width, drop=["phase"]),
        ]
    return join_blocks(blocks)


def _facts(recipe: Recipe, speed: float | None) -> Iterator[tuple[str, str]]:
    net, train, cluster = recipe.net, recipe.data.train, recipe.cluster
    yield "recipe", recipe.name
    yield "source", recipe.source or ""
    origin = net.builder or " and ".join(net.files) or net.function
    yield "net", f"{net.name}, {net.classes} classes, by {origin}"
    size = f", {train.size_gb:g} GB," if train.size_gb else ""
    own = "the places that the net names" if recipe.data.is_in_net else ""
    yield "training", f"{train.images:,} images{size} in {own or train.lmdb}"
    if recipe.test_images or not own:
        yield "tests", f"{recipe.data.test.images:,} images in {own or recipe.data.test.lmdb}"
    yield "shape", describe_shape(cluster)
    yield "MLSL", _describe_servers(cluster.mlsl)
    yield "trainer", recipe.trainer
    leaves = find_leaves(recipe)
    if len(leaves) > 1:
        ages = ((images_before(recipe, leaf) + images_of(recipe, leaf)) / train.images for leaf in leaves)
        named = ", ".join(f"{leaf.name} {age:.2f}" for leaf, age in zip(leaves, ages, strict=True))
        yield "models", f"{named} epochs of training; {total_epochs(recipe):.2f} over all phases"
    elif total_images(recipe) / train.images - model_epochs(recipe) > 1e-9:
        yield (
            "model",
            f"{model_epochs(recipe):.2f} epochs of training; {total_epochs(recipe):.2f} over all phases",
        )
    for phase in recipe.phases:
        yield "reported", _format_reported(phase.reported, f"after {phase.name}: ")
    yield "reported", _format_reported(recipe.reported, "")
    if recipe.ensemble:
        yield (
            "ensemble",
            ", ".join(recipe.ensemble.members) + _format_reported(recipe.ensemble.reported, "; reported: "),
        )
    if speed:
        minutes = training_minutes(recipe, speed)
        yield "estimated", f"{minutes:.1f} minutes of training at {speed:,g} images/s"
    yield from _origin_facts(recipe)
    for accepted in recipe.accept:
        phase_name = f" ({accepted.phase})" if accepted.phase else ""
        yield "accepted", f"{accepted.finding}{phase_name}: {accepted.reason}"


def _tensorflow_facts(recipe: TensorFlowRecipe, speed: float | None) -> Iterator[tuple[str, str]]:
    run, data = recipe.tensorflow, recipe.tensorflow.data
    yield "recipe", recipe.name
    yield "source", recipe.source or ""
    yield "net", f"ResNet-{run.resnet_depth or 50}, {run.classes or 1000:,} classes, {run.image_px or 224} px"
    for name, records in (("training", data.train), ("tests", data.validation)):
        files = describe_count(records.files, "file")
        yield name, f"{records.images:,} images in {files} of TFRecords, {records.folder}"
    yield "shape", describe_shape(recipe.cluster)
    yield "trainer", recipe.trainer
    yield "reported", _format_reported(recipe.reported, "")
    if speed:
        minutes = run.schedule.steps * recipe.cluster.global_batch / speed / 60
        yield "estimated", f"{minutes:.1f} minutes of training at {speed:,g} images/s"
    yield from _origin_facts(recipe)


def _origin_facts(recipe: AnyRecipe) -> Iterator[tuple[str, str]]:
    """Yield the arithmetic of the TensorFlow run, differences from the source, notes, and derived values."""
    for line in horovod_lines(recipe):
        yield "tensorflow", line
    for different in recipe.differences:
        ours = f"published {_format_value(different.printed)}, here {_format_value(different.ours)}"
        yield "differs", f"{different.key}: {ours}: {different.why}"
    for note in recipe.notes:
        yield "note", note
    for one in recipe.derived:
        yield "derived", f"{one.phase}: {one.key}: {one.rule}" if one.phase else f"{one.key}: {one.rule}"


def describe_shape(shape: Cluster | RunSize) -> str:
    """Return how the images of an iteration are split among nodes and ranks, as text."""
    nodes, ranks = describe_count(shape.nodes, "node"), describe_count(shape.ranks_per_node, "rank")
    return f"{nodes} x {ranks} x {shape.batch_per_rank} images = {shape.global_batch:,} images per iteration"


def _describe_servers(mlsl: Mlsl | None) -> str:
    if mlsl is None:
        return ""
    if not mlsl.num_servers:
        return "no servers"
    cores = ", ".join(map(str, mlsl.server_affinity)) or "chosen by MLSL"
    return f"{describe_count(mlsl.num_servers, 'server')} per rank, on cores {cores}"


def _format_value(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:,g}"


def _format_reported(reported: Reported, before: str) -> str:
    texts = (
        (reported.table, "Table {}"),
        (reported.row, "row {}"),
        (reported.batch, "batch {:,}"),
        (reported.nodes, "{:,} nodes"),
        (reported.cpus, "{:,} sockets"),
        (reported.iterations, "{:,} iterations"),
        (reported.epochs, "{:g} epochs"),
        (reported.images_per_s, "{:,g} images/s"),
        (reported.images_per_s_per_node, "{:g} images/s per node"),
        (reported.minutes, "about {:g} minutes"),
        (reported.loss, "loss {:g}"),
        (reported.top1_percent, "top-1 {:g}%"),
        (reported.top5_percent, "top-5 {:g}%"),
    )
    parts = [text.format(value) for value, text in texts if value is not None]
    return before + ", ".join(parts) if parts else ""


def _rate_tables(rows: list[tuple[str, ...]], most: int | None) -> Iterator[list[str]]:
    """Yield one table, or one of the counts and one of the rates if that is too wide."""
    table = align_columns(rows, _NUMBERS | _RATES)
    if most is None or max(map(len, table)) <= most:
        yield table
        return
    for left_out, body in ((_RATES, rows), (_NUMBERS | {"policy"}, [row for row in rows if row[0] != "all"])):
        kept = [index for index, heading in enumerate(rows[0]) if heading not in left_out]
        yield align_columns([[row[index] for index in kept] for row in body], _NUMBERS | _RATES)


def _rate_rows(recipe: Recipe, phases: list[PhaseSummary]) -> Iterator[tuple[str, ...]]:
    timed = all(phase.minutes for phase in phases)
    warmed = any(phase.rates and phase.rates.warmup_end is not None for phase in phases)
    ends = ("warm-up ends", "drops to") if warmed else ()
    minutes = ("minutes",) if timed else ()
    yield ("phase", "policy", "iterations", "epochs", "images", "start", *ends, "last", "decay", *minutes)
    for phase in phases:
        decay = "" if phase.weight_decay is None else f"{phase.weight_decay:g}"
        counts = (f"{phase.iterations:,}", f"{phase.epochs:.2f}", f"{phase.images:,}")
        time = (f"{phase.minutes:.1f}",) if timed and phase.minutes else ()
        yield (phase.name, phase.lr_policy, *counts, *_rate_texts(phase.rates, warmed), decay, *time)
    if len(phases) > 1:
        total = sum(phase.minutes or 0 for phase in phases)
        counts = (f"{total_iterations(recipe):,}", f"{total_epochs(recipe):.2f}", f"{total_images(recipe):,}")
        yield ("all", "", *counts, "", *("" for _ in ends), "", "", *((f"{total:.1f}",) if timed else ()))


def _rate_texts(rates: KeyRates | None, warmed: bool) -> tuple[str, ...]:
    if rates is None:
        return ("?", *(("", "") if warmed else ()), "?")
    between = (rates.warmup_end, rates.after_warmup) if warmed else ()
    return tuple("" if rate is None else f"{rate:.6g}" for rate in (rates.first, *between, rates.last))


def _net_rows(phases: list[PhaseSummary]) -> Iterator[tuple[str, ...]]:
    yield ("phase", "starts from", "at rate", "net", "augmentation")
    for before, phase in zip([None, *phases], phases, strict=False):
        start = phase.starts_from or "fillers"
        rate = "" if phase.rate_before is None else f"{phase.rate_before:.6g}"
        if before and phase.starts_from == before.name and phase.starts_from_iter != before.iterations:
            start = f"{start}, iteration {phase.starts_from_iter:,}"
        yield (phase.name, start, rate, phase.net, phase.augmentation)


def _snapshot_rows(phases: list[PhaseSummary]) -> Iterator[tuple[str, ...]]:
    yield ("phase", "snapshot", "for")
    for phase in phases:
        for snapshot in phase.snapshots:
            yield (phase.name, snapshot.path, ", ".join(snapshot.used_by))


def _snapshots(recipe: Recipe, phase: Phase) -> Iterator[SnapshotRow]:
    """Yield the snapshots of a phase that other phases start from, and its last one."""
    users: dict[int, list[str]] = {}
    for other in recipe.phases:
        if recipe.starts_from(other) is phase:
            users.setdefault(other.weights_iter or phase.last_iter, []).append(other.name)
    if phase in find_evaluated(recipe):
        users.setdefault(phase.last_iter, []).append("the evaluation")
    for iteration in sorted({*users, phase.last_iter}):
        yield SnapshotRow(phase.snapshot_at(iteration), iteration, tuple(users.get(iteration, ())))


def _describe_augmentation(recipe: Recipe, net: str) -> str:
    """Return the random transformations of training images, in the order in which Caffe applies them."""
    data, ratio = recipe.data, recipe.nets[net].random_aspect_ratio
    if data.is_in_net:
        return "as in the net"
    if ratio:
        change = ratio.aspect_ratio_change
        area = f"area {ratio.min_area_ratio:g} to {ratio.max_area_ratio:g}"
        parts = [f"{area}, aspect {change**2:.4g} to {change**-2:.4g}"]
    else:
        crop = data.transform_of("train").crop_size
        parts = [f"crop of {crop} px"] if crop else []
    parts += ["mirror"] if data.transform_of("train").mirror else []
    return f"random {', '.join(parts)}" if parts else "none"
