"""Phases whose rates go on where they jumped: warm-ups of their own, and decays to the next one's start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from caffe_recipes.caffe.rates import lr_at
from caffe_recipes.errors import InputError
from caffe_recipes.making.joins import Settings, join, solver_of
from caffe_recipes.making.scaled import last_iter
from caffe_recipes.review.lint.chains.schedule import is_jump

_DECAYING = ("poly", "poly_cyc")


def smooth(phases: Sequence[Settings]) -> list[Settings]:
    """Make the rates of phases meet at every join, and where a warm-up ends.

    A phase that others leave before its end, ends there. InputError for one that is left at several
    iterations, and for a rate that depends on the loss.
    """
    unknown = next((phase["name"] for phase in phases if phase["lr_policy"] == "plateau"), None)
    if unknown is not None:
        what = f"the rate of phase '{unknown}' depends on the loss"
        raise InputError("--smooth", what, "leave --smooth out")
    split: list[Settings] = []
    before: list[int | None] = []
    ends: dict[str, int] = {}
    for index, phase in enumerate(phases):
        settings = {key: value for key, value in phase.items() if key != "weights_iter"}
        weights = settings.get("weights", phases[index - 1]["name"] if index else None)
        start = ends.get(weights) if weights else None
        for part in _parts(_cut(settings, _left_at(phases, index))):
            split.append(part)
            before.append(start)
            start = len(split) - 1
        ends[phase["name"]] = len(split) - 1
    return join(split, before)


def _left_at(phases: Sequence[Settings], index: int) -> int | None:
    """Return the iteration at which all that start from a phase leave it; None for its end."""
    own = phases[index]
    last = last_iter(own)
    left = set()
    for number, phase in enumerate(phases[index + 1 :], index + 1):
        if phase.get("weights", phases[number - 1]["name"]) == own["name"]:
            left.add(phase.get("weights_iter", last))
    if len(left) > 1:
        what = f"phases start from iterations {', '.join(map(str, sorted(left)))} of {own['name']}"
        raise InputError("--smooth", what, "its rate can meet that of one: leave --smooth out")
    return left.pop() if left else None


def _cut(settings: Settings, left_at: int | None) -> Settings:
    """End a phase where it is left, or stopped; its rate goes on as if it did not."""
    end = min(left_at or last_iter(settings), last_iter(settings))
    if end == settings["max_iter"]:
        return settings
    result = {key: value for key, value in settings.items() if key not in ("stop_iter", "snapshot")}
    if settings["lr_policy"] == "poly":
        result |= {"lr_policy": "poly_cyc", "lr_iter": settings["max_iter"]}
    return result | {"max_iter": end}


def _parts(settings: Settings) -> list[Settings]:
    """Split a phase whose rate drops where its warm-up ends into that and the rest."""
    warmup = settings.get("warmup_iter", 0)
    if settings["lr_policy"] not in _DECAYING or not 0 < warmup < settings["max_iter"]:
        return [settings]
    if not is_jump(settings["base_lr"], lr_at(solver_of(settings), warmup)):
        return [settings]
    name = f"{settings['name']}-warmup"
    shared = ("power", "lr_iter", "stop_iter", "snapshot")
    rise = {key: value for key, value in settings.items() if key not in shared}
    rise |= {
        "name": name,
        "lr_policy": "fixed",
        "max_iter": warmup,
        "snapshot_prefix": f"{settings['snapshot_prefix']}-warmup",
    }
    rest = _without(settings, ("warmup_iter", "warmup_start_lr", "weights"))
    rest["max_iter"] = settings["max_iter"] - warmup
    if "lr_iter" in settings:
        rest["lr_iter"] = max(settings["lr_iter"] - warmup, rest["max_iter"])
    if "snapshot" in rest:
        del rest["snapshot"]
    return [rise, rest]


def _without(settings: Mapping[str, Any], keys: Sequence[str]) -> Settings:
    return {key: value for key, value in settings.items() if key not in keys}
