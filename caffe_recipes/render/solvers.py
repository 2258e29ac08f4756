"""Build a phase's solver, and write it as a prototxt whose comments explain the numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.messages import build_message
from caffe_recipes.caffe.prototxt import render_prototxt
from caffe_recipes.caffe.rates import POLICIES, check_rates, key_iters, lr_at
from caffe_recipes.caffe.text.comments import Comment
from caffe_recipes.errors import RecipeError
from caffe_recipes.recipe.graph import epochs_of, images_per_iter
from caffe_recipes.recipe.model import Phase, Recipe
from caffe_recipes.render.headers import above_solver, beside_fields, header_line
from caffe_recipes.wording import plural

_OURS = {"name", "net", "weights", "weights_iter", "stop_iter", "comment", "reported"}


def build_solver(recipe: Recipe, phase: Phase) -> pb.SolverParameter:
    """Return the solver of one phase of a recipe.

    Raises RecipeError for a schedule whose rate is not finite, with which Caffe would train and exit 0.
    """
    where = f"{recipe.name}: phase '{phase.name}'"
    settings = {key: getattr(phase, key) for key in Phase.model_fields if key not in _OURS}
    given = {"net": recipe.net_path(phase.net), "snapshot": phase.snapshot_every_iter}
    solver = build_message(pb.SolverParameter, where, settings | given)
    for fault in check_rates(solver):
        raise RecipeError(where, str(fault), "correct the schedule")
    return solver


def render_solver(recipe: Recipe, phase: Phase) -> str:
    """Return the solver of one phase as prototxt text, with comments."""
    solver = build_solver(recipe, phase)
    return render_prototxt(solver, _comments(recipe, phase, solver))


def _comments(recipe: Recipe, phase: Phase, solver: pb.SolverParameter) -> Mapping[str, Comment]:
    cluster, images = recipe.cluster, recipe.data.train.images
    batch, times = images_per_iter(recipe, phase), f" x {phase.iter_size}" if phase.iter_size else ""
    ranks = f"{cluster.ranks} {plural(cluster.ranks, 'rank')}"
    header = [
        header_line(recipe),
        f"{phase.name}, phase {recipe.phases.index(phase) + 1} of {len(recipe.phases)}. {batch:,} images an "
        f"iteration ({ranks} x {cluster.batch_per_rank}{times}), {images:,} an epoch.",
        *_stop_lines(phase),
    ]
    header += [phase.comment] if phase.comment else []
    comments = {"": Comment(above=(*header, *above_solver(recipe, phase)))}
    for key in ("max_iter", "lr_iter", "warmup_iter"):
        if solver.HasField(key):
            comments[key] = Comment(beside=f"{epochs_of(getattr(solver, key), batch, images):.2f} epochs")
    if phase.stop_iter:
        stopped = f"stopped at {phase.stop_iter}, {epochs_of(phase.stop_iter, batch, images):.2f} epochs"
        comments["max_iter"] = Comment(beside=stopped)
    comments["base_lr"] = Comment(above=tuple(_rate_lines(solver, phase.last_iter)))
    decay = _times_before(recipe, phase)
    if decay:
        comments["weight_decay"] = Comment(beside=decay)
    given = {field.name: field.is_repeated for field, _ in solver.ListFields()}
    for key, derived in beside_fields(recipe, phase).items():
        if key in given:  # a translated solver may lack the field
            at = f"{key}[0]" if given[key] else key
            before = comments.get(at, Comment())
            beside = f"{before.beside}; {derived}" if before.beside else derived
            comments[at] = replace(before, beside=beside)
    return comments


def _stop_lines(phase: Phase) -> list[str]:
    """Return a comment for a phase that is stopped before its max_iter."""
    if not phase.stop_iter:
        return []
    end, rate = f"after the snapshot of {phase.stop_iter}", f"its schedule extends to {phase.max_iter}"
    return [f"To be stopped (SIGINT) {end}; {rate}."]


def _rate_lines(solver: pb.SolverParameter, last_iter: int) -> list[str]:
    """Return a comment with the rate at its key iterations, in the digits of Caffe's log."""
    if solver.lr_policy not in POLICIES:  # `plateau`, whose rate depends on the losses
        return []
    places = dict.fromkeys(place for place in key_iters(solver, last_iter).values() if place is not None)
    rates = [f"{lr_at(solver, place):.6g} at {place}" for place in places]
    if len(rates) < 4:
        return [f"The rate by iteration: {', '.join(rates)}."]
    first, end, after, last = rates
    return [
        f"The rate by iteration: {first}, {end} where the warm-up ends,",
        f"{after}, since warm-up iterations count, {last}.",
    ]


def _times_before(recipe: Recipe, phase: Phase) -> str:
    """Return a comment if the weight decay differs from that of the previous phase, else ""."""
    index = recipe.phases.index(phase)
    before = recipe.phases[index - 1] if index else phase
    if not before.weight_decay or not phase.weight_decay or before.weight_decay == phase.weight_decay:
        return ""
    return f"{phase.weight_decay / before.weight_decay:.4g} times that of {before.name}"
