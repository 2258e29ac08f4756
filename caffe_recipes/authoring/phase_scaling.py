"""Scale a recipe's phases to another batch size and number of epochs, and make their rates continuous.

Rates are continuous if the last update of each phase has the rate of the first update of the next one.
`make_continuous` splits off warm-ups as separate phases, and ends each decay at the first rate of the next
phase.

In this Caffe the iterations of a warm-up count as iterations of the policy, and a decay never reaches the
rate that it has at `max_iter`: the last update is one iteration before.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.rates import is_jump, lr_at
from caffe_recipes.errors import InputError
from caffe_recipes.recipe import paper_rules
from caffe_recipes.recipe.graph import epochs_of, images_per_iter, model_epochs
from caffe_recipes.recipe.model import Phase, Recipe
from caffe_recipes.recipe.paper_rules import decay_horizon, six_digits
from caffe_recipes.tensorflow.run import HorovodRun

SolverFields = dict[str, Any]

_FIELDS = ("base_lr", "lr_policy", "gamma", "power", "stepsize", "stepvalue", "max_iter", "lr_iter",
           "warmup_iter", "warmup_start_lr")  # fmt: skip
_DECAYING = ("poly", "poly_cyc")


def solver_of(settings: Mapping[str, Any]) -> pb.SolverParameter:
    """Return a solver with the fields that its rate depends on."""
    return pb.SolverParameter(**{key: settings[key] for key in _FIELDS if settings.get(key) is not None})


def first_rate(settings: Mapping[str, Any]) -> float:
    """Return the rate of a phase's first update.

    >>> first_rate({"base_lr": 1.6, "warmup_iter": 5, "warmup_start_lr": 0.1}), first_rate({"base_lr": 1.6})
    (0.1, 1.6)
    """
    rate = settings.get("warmup_start_lr", 0.0) if settings.get("warmup_iter") else settings["base_lr"]
    return float(rate)


def last_rate(settings: Mapping[str, Any], iteration: int | None = None) -> float:
    """Return the rate of the last update before a snapshot, rounded to six digits."""
    return six_digits(lr_at(solver_of(settings), (iteration or settings["max_iter"]) - 1))


def join(phases: Sequence[Mapping[str, Any]], before: Sequence[int | None]) -> list[SolverFields]:
    """Return the phases with continuous rates; `before` has the index of the phase that each starts from.

    A phase that only warms up reaches its peak with its last update. A decay ends at the first rate of the
    next phase, if that is lower, by its `lr_iter`. Since `lr_iter` is rounded, the next phase then starts at
    exactly the rate at which the decay ended.
    """
    following: dict[int, float] = {}
    for phase, index in zip(phases, before, strict=True):
        if index is not None:
            following.setdefault(index, first_rate(phase))
    joined: list[SolverFields] = []
    for number, phase in enumerate(phases):
        settings = dict(phase)
        index = before[number]
        if index is not None:
            start_at(settings, last_rate(joined[index]))
        _reach_peak(settings)
        if number in following:
            _end_at(settings, following[number])
        joined.append(settings)
    return joined


def start_at(settings: SolverFields, rate: float) -> None:
    """Change a phase's keys so that its first update has the given rate."""
    settings["warmup_start_lr" if settings.get("warmup_iter") else "base_lr"] = rate


def _reach_peak(settings: SolverFields) -> None:
    """Make a phase that only warms up reach its peak with its last update."""
    if settings.get("warmup_iter") != settings["max_iter"]:
        return
    settings["warmup_iter"] -= 1
    if not settings["warmup_iter"]:
        del settings["warmup_iter"], settings["warmup_start_lr"]


def _end_at(settings: SolverFields, rate: float) -> None:
    """Make a decay reach a rate with its last update, if it can."""
    steps = settings["max_iter"] - 1
    if settings["lr_policy"] not in _DECAYING or settings.get("warmup_iter") or steps < 1:
        return
    if not 0 < rate < settings["base_lr"] or not settings.get("power"):
        return
    times = settings["base_lr"] / rate
    if times ** (-1 / settings["power"]) == 1:
        return
    horizon = decay_horizon(steps, times, settings["power"])
    settings["lr_policy"] = "poly_cyc"
    settings["lr_iter"] = min(max(round(horizon), settings["max_iter"]), MOST_ITERATIONS)


MOST_ITERATIONS = 2**31 - 1  # the largest int32, in which Caffe counts them
# Relative: a part of a step that an epoch lacks.
_SAME = 0.01
# Keys that describe the source's run only.
_DROPPED = {"comment", "reported"}


@dataclass(frozen=True)
class Scale:
    """Factors for the iterations of the first warm-up, for all other iterations, and for the rate.

    The run has `own_epochs` + `rest_epochs` * `rest` epochs.
    """

    warmup: float
    rest: float
    rate: float
    own_epochs: float = 0.0
    rest_epochs: float = 0.0

    def epochs_for(self, rest: float) -> int:
        """Return the smallest whole number of epochs for which the factor `rest` is exceeded."""
        return math.floor(self.own_epochs + self.rest_epochs * rest) + 1


def find_scale(recipe: Recipe, batch: int, epochs: float | None) -> Scale:
    """Return the factors by which a recipe's phases change with its batch and the final model's epochs.

    The first warm-up keeps its epochs, except that the rule is longer from 16,384 images on; one that was
    longer keeps at least the rule's 5. The other phases share the epochs that remain; raises InputError if
    none do.

    The phases of a TensorFlow run follow the arithmetic of its source instead.
    """
    if recipe.tensorflow:
        return _scale_of_source(recipe, recipe.tensorflow, batch, epochs)
    old, images = recipe.cluster.global_batch, recipe.data.train.images
    by_batch, by_rule = old / batch, paper_rules.warmup_epochs(batch) / paper_rules.warmup_epochs(old)
    rate = paper_rules.peak_lr(batch) / paper_rules.peak_lr(old)
    warmup = first_warmup_epochs(recipe)
    if warmup:
        by_rule = max(by_rule, min(paper_rules.WARMUP_EPOCHS / warmup, 1.0))
    whole = model_epochs(recipe)
    own = sum(
        epochs_of(phase.last_iter, old, images)
        for phase in recipe.phases
        if recipe.starts_from(phase) is None and is_all_warmup(phase)
    )
    wanted = whole if epochs is None else epochs
    left, rest_epochs = wanted - own * by_rule, (whole - own) / by_batch
    rest = left / rest_epochs if rest_epochs else by_batch
    scale = Scale(by_batch * by_rule, rest, rate, own * by_rule, rest_epochs)
    if left <= 0:
        what = f"{wanted:g} epochs are too few for {own * by_rule:.3g} epochs of warm-up"
        raise InputError("--epochs", what, f"use {scale.epochs_for(0)} or more")
    return scale


def _scale_of_source(recipe: Recipe, run: HorovodRun, batch: int, epochs: float | None) -> Scale:
    """Return how the phases of a TensorFlow run change by its source, section 7 b ii 1 to 5.

    A batch has 1,280,000 / batch steps an epoch, in whole epochs of warm-up and in all, whose last part of a
    step is left out; the rate is proportional to the batch.
    """
    old, before = recipe.cluster.global_batch, run.schedule
    if batch == old and epochs is None:
        return Scale(1.0, 1.0, 1.0)
    warmup, whole = (_whole(run, steps * old) for steps in (before.warmup_steps, before.steps))
    wanted = whole if epochs is None else epochs
    rise, steps = (int(run.images_per_epoch * number / batch) for number in (warmup, wanted))
    if not 0 < rise < steps:
        what = f"{wanted:g} epochs are too few for {warmup:.3g} epochs of warm-up"
        raise InputError("--epochs", what, f"use {math.floor(warmup) + 1} or more")
    falling = before.steps - before.warmup_steps
    return Scale(rise / before.warmup_steps, (steps - rise) / falling, batch / old)


def _whole(run: HorovodRun, images: int) -> float:
    """Return how many epochs images are as the source counts them: 4,680 steps of 24,576 are 90."""
    number = images / run.images_per_epoch
    return float(round(number)) if abs(number - round(number)) < _SAME * number else number


def first_warmup_epochs(recipe: Recipe) -> float:
    """Return the epochs of the warm-up that a recipe starts with, 0 without one."""
    first = recipe.phases[0]
    if recipe.starts_from(first) is not None:
        return 0.0
    return (first.warmup_iter or 0) * images_per_iter(recipe, first) / recipe.data.train.images


def is_all_warmup(phase: Phase) -> bool:
    """Return whether a phase only warms up, except perhaps in its last update."""
    return phase.warmup_iter is not None and phase.warmup_iter >= phase.last_iter - 1


def scale_phases(recipe: Recipe, scale: Scale) -> list[SolverFields]:
    """Return the keys of a recipe's phases, scaled; the rate jumps only where the source's does.

    Raises InputError for a phase that becomes shorter than its warm-up, and for more iterations than Caffe
    can count.
    """
    result: list[SolverFields] = []
    for phase in recipe.phases:
        settings = _scale_phase(recipe, phase, scale)
        start = recipe.starts_from(phase)
        if isinstance(start, Phase):
            index = recipe.phases.index(start)
            if phase.weights_iter is not None:
                settings["weights_iter"] = _snapshot_iter(start, result[index], phase.weights_iter, scale)
            _keep_join(start, phase, result[index], settings)
        result.append(settings)
    return result


def _keep_join(start: Phase, phase: Phase, before: SolverFields, settings: SolverFields) -> None:
    """Start a phase at the last rate of the previous one, if only the source's rates are continuous there."""
    old, own = start.model_dump(exclude_none=True), phase.model_dump(exclude_none=True)
    if "plateau" in (start.lr_policy, phase.lr_policy):
        return
    if is_jump(last_rate(old, phase.weights_iter or start.last_iter), first_rate(own)):
        return
    rate = last_rate(before, settings.get("weights_iter") or last_iter(before))
    if rate > 0 and is_jump(rate, first_rate(settings)):
        start_at(settings, rate)


def last_iter(settings: Mapping[str, Any]) -> int:
    """Return the last iteration of a phase, from its keys."""
    return int(settings.get("stop_iter") or settings["max_iter"])


def _scale_phase(recipe: Recipe, phase: Phase, scale: Scale) -> SolverFields:
    settings = phase.model_dump(exclude_defaults=True, exclude_none=True, exclude=_DROPPED)
    is_first = recipe.starts_from(phase) is None
    is_ramp = is_all_warmup(phase)
    times = scale.warmup if is_first and is_ramp else scale.rest
    if phase.snapshot and phase.snapshot < phase.last_iter:
        settings["snapshot"] = _count(phase, phase.snapshot, times)
    else:
        settings.pop("snapshot", None)
    for key in ("max_iter", "stop_iter"):
        if key in settings:
            settings[key] = _of_snapshots(phase, settings, settings[key], times)
    if phase.stop_iter and settings["stop_iter"] >= settings["max_iter"]:
        settings["max_iter"] = settings["stop_iter"] + 1
    for key in ("stepsize", "test_interval", "lr_iter"):
        if key in settings:
            settings[key] = _count(phase, settings[key], times)
    if phase.lr_iter and phase.lr_iter >= phase.max_iter:
        settings["lr_iter"] = max(settings["lr_iter"], settings["max_iter"])
    for key in ("stepvalue", "plateau_winsize"):
        if key in settings:
            settings[key] = tuple(_count(phase, number, times) for number in settings[key])
    _scale_gamma(settings, times)
    settings["base_lr"] = six_digits(phase.base_lr * scale.rate)
    if phase.warmup_iter is not None:
        _scale_warmup(phase, settings, scale, is_first=is_first, is_ramp=is_ramp)
    return settings


def _scale_warmup(
    phase: Phase, settings: SolverFields, scale: Scale, *, is_first: bool, is_ramp: bool
) -> None:
    assert phase.warmup_iter is not None
    start = phase.warmup_start_lr or 0.0
    if is_first and settings["base_lr"] <= start:  # nothing to rise to
        settings.pop("warmup_iter")
        settings.pop("warmup_start_lr")
        return
    if is_ramp:
        settings["warmup_iter"] = last_iter(settings) - max(phase.last_iter - phase.warmup_iter, 0)
    else:
        settings["warmup_iter"] = _count(phase, phase.warmup_iter, scale.warmup if is_first else scale.rest)
        _check_warmup(phase, settings, scale)
    # The first warm-up starts at the rule's rate; others start where the previous phase ends.
    settings["warmup_start_lr"] = six_digits(start if is_first else start * scale.rate)
    if settings["warmup_iter"] < 1:
        del settings["warmup_iter"], settings["warmup_start_lr"]


def _check_warmup(phase: Phase, settings: SolverFields, scale: Scale) -> None:
    """Raise InputError if a warm-up lasts until the phase ends, or until its rate first steps down."""
    assert phase.warmup_iter is not None
    warmup, old, new = settings["warmup_iter"], _first_step(phase.model_dump()), _first_step(settings)
    conflicts = [("end", phase.last_iter, last_iter(settings))]
    if old is not None and new is not None and phase.warmup_iter < old:
        conflicts.append(("step down", old, new))
    does, before, at = conflicts[-1]  # the earlier one, which needs more epochs
    if warmup < at:
        return
    # Each snapshot up to the end may be rounded down by half an iteration.
    rounded = max(phase.last_iter // phase.snapshot if phase.snapshot else 0, 1) / 2
    what = f"phase '{phase.name}' would {does} at {at}, within its warm-up of {warmup} iterations"
    hint = f"use {scale.epochs_for((warmup + rounded) / before)} or more"
    raise InputError("--epochs", what, hint)


def _first_step(settings: Mapping[str, Any]) -> int | None:
    """Return the iteration at which the rate first steps down; None if it does not."""
    steps = {"step": settings.get("stepsize"), "multistep": next(iter(settings.get("stepvalue") or ()), None)}
    return steps.get(settings["lr_policy"])


def _scale_gamma(settings: SolverFields, times: float) -> None:
    """Scale gamma so that the rate falls by the same factor over the new number of iterations."""
    if settings["lr_policy"] == "exp":
        settings["gamma"] **= 1 / times
    elif settings["lr_policy"] in ("inv", "sigmoid"):
        settings["gamma"] /= times


def _snapshot_iter(start: Phase, before: SolverFields, iteration: int, scale: Scale) -> int:
    if iteration == start.last_iter:
        return last_iter(before)
    times = before["snapshot"] / start.snapshot if start.snapshot else scale.rest
    return _of_snapshots(start, before, iteration, times)


def _of_snapshots(phase: Phase, settings: Mapping[str, Any], iteration: int, times: float) -> int:
    """Scale an iteration; the n-th snapshot stays the n-th snapshot."""
    if "snapshot" in settings and phase.snapshot and iteration % phase.snapshot == 0:
        return _checked(phase, iteration // phase.snapshot * int(settings["snapshot"]))
    return _count(phase, iteration, times)


def _count(phase: Phase, iterations: int, times: float) -> int:
    return _checked(phase, max(round(iterations * times), 1))


def _checked(phase: Phase, iterations: int) -> int:
    if iterations > MOST_ITERATIONS:
        what = f"phase '{phase.name}': {iterations:,} iterations exceed Caffe's maximum, {MOST_ITERATIONS:,}"
        raise InputError("--epochs", what, "use fewer, or a larger batch")
    return iterations


def make_continuous(phases: Sequence[SolverFields]) -> list[SolverFields]:
    """Return the phases with rates that are continuous between phases and at the end of a warm-up.

    A phase ends at the iteration from which later phases start. Raises InputError if they start from several
    iterations, or if a rate depends on the loss.
    """
    unknown = next((phase["name"] for phase in phases if phase["lr_policy"] == "plateau"), None)
    if unknown is not None:
        what = f"the rate of phase '{unknown}' depends on the loss"
        raise InputError("--smooth", what, "run without --smooth")
    split: list[SolverFields] = []
    before: list[int | None] = []
    ends: dict[str, int] = {}
    for index, phase in enumerate(phases):
        settings = _without(phase, ("weights_iter",))
        weights = settings.get("weights", phases[index - 1]["name"] if index else None)
        start = ends.get(weights) if weights else None
        for part in _split_warmup(_cut(settings, _branch_iteration(phases, index))):
            split.append(part)
            before.append(start)
            start = len(split) - 1
        ends[phase["name"]] = len(split) - 1
    return join(split, before)


def _branch_iteration(phases: Sequence[SolverFields], index: int) -> int | None:
    """Return the iteration from which later phases start; None for the phase's last one."""
    own = phases[index]
    last = last_iter(own)
    left = set()
    for number, phase in enumerate(phases[index + 1 :], index + 1):
        if phase.get("weights", phases[number - 1]["name"]) == own["name"]:
            left.add(phase.get("weights_iter", last))
    if len(left) > 1:
        what = f"phases start from iterations {', '.join(map(str, sorted(left)))} of {own['name']}"
        raise InputError("--smooth", what, "only one of them can be continuous: run without --smooth")
    return left.pop() if left else None


def _cut(settings: SolverFields, branch_iter: int | None) -> SolverFields:
    """Return a phase cut where later phases start from it or where it is stopped, at the same rates."""
    end = min(branch_iter or last_iter(settings), last_iter(settings))
    if end == settings["max_iter"]:
        return settings
    result = _without(settings, ("stop_iter", "snapshot"))
    if settings["lr_policy"] == "poly":
        result |= {"lr_policy": "poly_cyc", "lr_iter": settings["max_iter"]}
    return result | {"max_iter": end}


def _split_warmup(settings: SolverFields) -> list[SolverFields]:
    """Split a phase whose rate drops at the end of its warm-up into the warm-up and the rest."""
    warmup = settings.get("warmup_iter", 0)
    if settings["lr_policy"] not in _DECAYING or not 0 < warmup < settings["max_iter"]:
        return [settings]
    if not is_jump(settings["base_lr"], lr_at(solver_of(settings), warmup)):
        return [settings]
    name = f"{settings['name']}-warmup"
    rise = _without(settings, ("power", "lr_iter", "stop_iter", "snapshot")) | {
        "name": name,
        "lr_policy": "fixed",
        "max_iter": warmup,
        "snapshot_prefix": f"{settings['snapshot_prefix']}-warmup",
    }
    rest = _without(settings, ("warmup_iter", "warmup_start_lr", "weights", "snapshot"))
    rest["max_iter"] = settings["max_iter"] - warmup
    if "lr_iter" in settings:
        rest["lr_iter"] = max(settings["lr_iter"] - warmup, rest["max_iter"])
    return [rise, rest]


def _without(settings: Mapping[str, Any], keys: Sequence[str]) -> SolverFields:
    return {key: value for key, value in settings.items() if key not in keys}
