"""A solver's file as the keys of a recipe's phase."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from caffe_recipes.caffe.text.writer import float_text
from caffe_recipes.config.source import Location, Source, validate
from caffe_recipes.errors import InputError
from caffe_recipes.making.adopted_files import Adopted, Begin
from caffe_recipes.recipe.phases import Phase, SolverSettings
from caffe_recipes.review.lint.chains.chain import Link, Solver

_KEYS = {*SolverSettings.model_fields, "snapshot_prefix"}
_NEEDED = ("base_lr", "lr_policy", "max_iter", "snapshot_prefix")


def phase_values(found: Adopted, index: int) -> tuple[dict[str, Any], list[str]]:
    """Return the keys of a phase, and what is to be said of it.

    Raises InputError, with the solver's file and field, for what no phase of a recipe can say.
    """
    link, begin = found.links[index], found.begins[index]
    settings, notes = solver_values(link)
    before = found.links[index - 1].name if index else ""
    values = {
        "name": link.name,
        "net": PurePosixPath(link.net.path).stem if link.net else "",
        **_start(begin, before, is_first=not index),
        **settings,
    }
    _check(link.solver, values)
    return values, notes


def solver_values(link: Link) -> tuple[dict[str, Any], list[str]]:
    """Return the fields of a phase's solver as keys of its own, and what of them generates otherwise."""
    solver = link.solver
    values: dict[str, Any] = {}
    for field, value in solver.message.ListFields():
        if field.name == "net":
            continue
        if field.name not in _KEYS:
            hint = "run `caffe-recipes upgrade` on it" if field.name == "solver_type" else "take it out"
            what = f"{field.name}: a recipe has no key for it"
            raise InputError(solver.where(_place(field)), what, hint)
        values[field.name] = _plain(solver, field, value)
    missing = [key for key in _NEEDED if key not in values]
    if missing:
        raise InputError(solver.path, f"{missing[0]}: is missing", "every phase of a recipe has it")
    notes = []
    if link.last_iter != solver.message.max_iter:
        values["stop_iter"] = link.last_iter
    if not values.get("snapshot"):
        note = f"is written with snapshot {link.last_iter}, where Caffe makes its last one anyway"
        notes = [f"{link.name} {note}"]
    if values.get("snapshot", 0) in (0, link.last_iter):
        values.pop("snapshot", None)
    return values, notes


def _start(begin: Begin, before: str, *, is_first: bool) -> dict[str, Any]:
    at = {"weights_iter": begin.iteration} if begin.iteration is not None else {}
    if begin.phase:
        return at if begin.phase == before else {"weights": begin.phase, **at}
    if begin.file:
        return {"weights": begin.file}
    return {} if is_first else {"weights": "none"}


def _plain(solver: Solver, field: FieldDescriptor, value: Any) -> Any:  # noqa: ANN401 - as the field is
    if field.name == "test_iter":
        if len(value) > 1:
            what = f"test_iter: is given {len(value)} times, and a recipe has one test net"
            raise InputError(solver.where("test_iter[1]"), what, "keep one")
        return value[0]
    if field.is_repeated:
        return tuple(value)
    if field.enum_type is not None:
        return field.enum_type.values_by_number[value].name
    is_float = field.cpp_type in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE)
    return float(float_text(value)) if is_float else value


def _place(field: FieldDescriptor) -> str:
    return f"{field.name}[0]" if field.is_repeated else field.name


def _check(solver: Solver, values: Mapping[str, Any]) -> None:
    """Let the model of a phase judge the values; what is wrong is told by the solver's file and line."""
    lines: dict[Location, int] = {(): 1}
    for key in values:
        place = solver.where(key if key in solver.offsets else f"{key}[0]")
        line = place.rsplit(":", 2)[1:2] if place != solver.path else []
        if line:
            lines[(key,)] = int(line[0])
    validate(Source(solver.path, "solver of a recipe", values, lines, InputError), Phase)
