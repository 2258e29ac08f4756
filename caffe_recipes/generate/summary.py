"""A recipe as a page of text for a person."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from caffe_recipes.generate.solvers import build_solver, rates_of
from caffe_recipes.recipe.arithmetic import epochs_of, total_epochs, total_iterations, training_minutes
from caffe_recipes.recipe.model import Recipe
from caffe_recipes.recipe.phases import Phase

_HEADINGS = ("phase", "starts from", "net", "policy", "rate", "iterations", "epochs", "decay")
_NUMBERS = {"iterations", "epochs", "decay"}


def render_list(recipes: Iterable[Recipe]) -> str:
    """Write a line for each recipe: its name and title."""
    return "\n".join(_aligned([(recipe.name, recipe.title) for recipe in recipes]))


def render_summary(recipe: Recipe) -> str:
    """Write a recipe's net, data, shape, phases, and what its source reports of it."""
    total = ("", "", "", "", "", f"{total_iterations(recipe):,}", f"{total_epochs(recipe):.2f}", "")
    phases = [_HEADINGS, *(_phase_row(recipe, phase) for phase in recipe.phases), total]
    right = {index for index, heading in enumerate(_HEADINGS) if heading in _NUMBERS}
    facts = [(name, text) for name, text in _facts(recipe) if text]
    return "\n".join([recipe.title, "", *_aligned(facts), "", *_aligned(phases, right)])


def _facts(recipe: Recipe) -> Iterator[tuple[str, str]]:
    net, train, cluster = recipe.net, recipe.data.train, recipe.cluster
    yield "recipe", recipe.name
    yield "source", recipe.source or ""
    yield "net", f"{net.name}, {net.classes} classes, by {net.builder or net.prototxt or net.function}"
    size = f", {train.size_gb:g} GB," if train.size_gb else ""
    yield "training", f"{train.images:,} images{size} in {train.lmdb}"
    yield "tests", f"{recipe.data.test.images:,} images in {recipe.data.test.lmdb}"
    nodes = f"{cluster.nodes} node{'s' if cluster.nodes > 1 else ''}"
    images = f"{cluster.batch_per_rank} images = {cluster.global_batch:,} images an iteration"
    yield "shape", f"{nodes} x {cluster.ranks_per_node} ranks x {images}"
    yield "trainer", recipe.trainer
    yield "reported", ", ".join(_reported(recipe))
    rate = recipe.reported.images_per_s
    if rate:
        yield "estimated", f"{training_minutes(recipe, rate):.1f} minutes of training at {rate:,g} images/s"


def _reported(recipe: Recipe) -> Iterator[str]:
    said = recipe.reported
    for value, text in (
        (said.images_per_s, "{:,g} images/s"),
        (said.images_per_s_per_node, "{:g} images/s per node"),
        (said.minutes, "about {:g} minutes"),
        (said.top1_percent, "top-1 {:g} %"),
        (said.top5_percent, "top-5 {:g} %"),
    ):
        if value is not None:
            yield text.format(value)


def _phase_row(recipe: Recipe, phase: Phase) -> tuple[str, ...]:
    start = recipe.starts_from(phase)
    epochs = epochs_of(phase.max_iter, recipe.cluster.global_batch, recipe.data.train.images)
    return (
        phase.name,
        start.name if isinstance(start, Phase) else start or "fillers",
        phase.net,
        phase.lr_policy,
        " ".join(f"{rate:.6g}" for rate in rates_of(build_solver(recipe, phase)).values()),
        f"{phase.max_iter:,}",
        f"{epochs:.2f}",
        "" if phase.weight_decay is None else f"{phase.weight_decay:g}",
    )


def _aligned(rows: Sequence[Sequence[str]], right: Iterable[int] = ()) -> list[str]:
    """Pad columns to one width, to the right where a column holds numbers."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    numbers = set(right)
    return [
        "  ".join(
            text.rjust(width) if index in numbers else text.ljust(width)
            for index, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
