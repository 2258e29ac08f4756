"""Phases whose rates meet: the last update of each is at the rate of the next one's first.

In this Caffe the iterations of a warm-up count as its policy's, and a decay never reaches the rate that it
has at `max_iter`: the last update is one iteration short of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.rates import lr_at
from caffe_recipes.recipe.rules import decay_horizon

Settings = dict[str, Any]

_FIELDS = ("base_lr", "lr_policy", "gamma", "power", "stepsize", "stepvalue", "max_iter", "lr_iter",
           "warmup_iter", "warmup_start_lr")  # fmt: skip
_DECAYING = ("poly", "poly_cyc")


def solver_of(settings: Mapping[str, Any]) -> pb.SolverParameter:
    """Return a solver of the keys that its rate depends on."""
    return pb.SolverParameter(**{key: settings[key] for key in _FIELDS if settings.get(key) is not None})


def first_rate(settings: Mapping[str, Any]) -> float:
    """Return the rate of a phase's first update, in the digits that are written.

    >>> first_rate({"base_lr": 1.6, "warmup_iter": 5, "warmup_start_lr": 0.1}), first_rate({"base_lr": 1.6})
    (0.1, 1.6)
    """
    rate = settings.get("warmup_start_lr", 0.0) if settings.get("warmup_iter") else settings["base_lr"]
    return float(rate)


def last_rate(settings: Mapping[str, Any], iteration: int | None = None) -> float:
    """Return the rate of the update that a snapshot ends with, in six digits."""
    rate = lr_at(solver_of(settings), (iteration or settings["max_iter"]) - 1)
    return float(f"{rate:.6g}")


def join(phases: Sequence[Mapping[str, Any]], before: Sequence[int | None]) -> list[Settings]:
    """Make the rates of phases meet; `before` says from which each starts, by index, if from any.

    A warm-up of its own reaches its peak with its last update. A decay goes to the rate at which the next
    phase starts, if that is lower, by its `lr_iter`. What still differs, by the rounding of `lr_iter`, the
    next phase takes over as it is.
    """
    following: dict[int, float] = {}
    for phase, index in zip(phases, before, strict=True):
        if index is not None:
            following.setdefault(index, first_rate(phase))
    joined: list[Settings] = []
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


def start_at(settings: Settings, rate: float) -> None:
    """Change a phase's keys so that its first update is at a rate."""
    settings["warmup_start_lr" if settings.get("warmup_iter") else "base_lr"] = rate


def _reach_peak(settings: Settings) -> None:
    """Let a phase that is all warm-up be at its peak with the last update."""
    if settings.get("warmup_iter") != settings["max_iter"]:
        return
    settings["warmup_iter"] -= 1
    if not settings["warmup_iter"]:
        del settings["warmup_iter"], settings["warmup_start_lr"]


def _end_at(settings: Settings, rate: float) -> None:
    """Let a decay reach a rate with its last update, if it is one that goes so low."""
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
    settings["lr_iter"] = min(max(round(horizon), settings["max_iter"]), 2**31 - 1)
