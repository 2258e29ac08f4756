"""Read families: several recipes in one file that share its `base:`, each a row of its table `rows:`.

```yaml
family: ours                  # `ours.yaml:ours-small` names a row of a user's own family
title: What they have in common
base: {...}                   # a recipe's keys; `prototxt_dir` holds a folder for each row, and one for the
                              # nets that rows with the same batch per rank share, which is their `nets_dir`
rows:
  ours-small:                 # the recipe's name
    title: ...
    cluster: {nodes: 4}       # mappings are merged with the base's, `derived`, `differences` and `notes` are
                              # appended, anything else replaces the base's value
    schedule: {epochs: 90}    # `paper_rules.plan_phases` makes the phases from it, by the paper's rules
    reported_by_phase: {main: {minutes: 60}}
```
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import Field

from caffe_recipes.config import FileName, Location, Text, Value, YamlSource, parse_yaml, validate
from caffe_recipes.errors import RecipeError
from caffe_recipes.limits import hint_at_limit, limit
from caffe_recipes.recipe.model import AS_IN_NET, Cluster, Data, Family
from caffe_recipes.recipe.paper_rules import PlannedPhase, Schedule, plan_phases
from caffe_recipes.wording import did_you_mean, find_nearest

_NETS = {True: "train_val", False: "train_val_noaug"}
_BY_PHASE = "reported_by_phase"
# Lists that a row appends to instead of replacing.
_ADDED = ("derived", "differences", "notes")
_MOST_NAMED = 8


class FamilyFile(Value):
    """The top-level keys of a family's YAML."""

    family: FileName
    title: Text
    base: dict[str, Any]
    rows: dict[FileName, dict[str, Any]] = Field(min_length=1)


# Listing all recipes reads each row of the same few files.
@lru_cache(maxsize=8)
def _parse(text: str, where: str | Path) -> tuple[YamlSource, FamilyFile, Mapping[str, str]]:
    source = parse_yaml(text, where, "family", RecipeError)
    file = validate(source, FamilyFile)
    if len(file.rows) > limit("yaml-rows"):  # each row copies the whole base
        raise RecipeError(where, f"has {len(file.rows):,} rows", hint_at_limit("yaml-rows"))
    return source, file, _find_shared(source)


def _find_shared(source: YamlSource) -> dict[str, str]:
    """Return the folder of shared nets, within the base's `prototxt_dir`, of each row that shares its nets.

    Rows with the same batch share nets; a row whose nets differ from those of an earlier row has its own.
    """
    made: dict[tuple[str, str], Any] = {}
    shared = {}
    for row, over in source.raw["rows"].items():
        values, _ = _merge_over(source.raw["base"], over)
        nets, cluster = values.get("nets"), values.get("cluster")
        batch = cluster.get("batch_per_rank") if isinstance(cluster, dict) else None
        has_own = not over.keys().isdisjoint(("prototxt_dir", "nets_dir"))
        if has_own or not isinstance(nets, dict) or not isinstance(batch, int):  # the model will report it
            continue
        folder = f"{source.raw['family']}-batch-{batch}"
        own = {(folder, net): (values.get("net"), values.get("data"), each) for net, each in nets.items()}
        if all(made.get(net, values) == values for net, values in own.items()):
            made |= own
            shared[row] = folder
    return shared


def list_rows(text: str, where: str | Path) -> list[str]:
    """Return the names of a family's rows. Raises RecipeError for text that is not a family."""
    return list(_parse(text, where)[1].rows)


def parse_row(text: str, where: str | Path, row: str | None) -> tuple[YamlSource, Family]:
    """Return a row of a family as the YAML source of a recipe, with the line of each value, and the family.

    Raises RecipeError for text that is not a family, for an unknown row, and for an impossible schedule.
    """
    source, file, shared = _parse(text, where)
    if row is None or row not in file.rows:
        raise _no_row(where, row, list(file.rows))
    at: Location = ("rows", row)
    raw, lines = _merge(source, ("base",), at)
    if "name" in raw:
        place = source.place((*at, "name") if "name" in file.rows[row] else ("base", "name"))
        raise RecipeError(place, "name: the key of a row is its name", "remove it")
    raw["name"] = row
    lines[("name",)] = lines[()]
    home = raw.get("prototxt_dir")
    if isinstance(home, str) and "prototxt_dir" not in file.rows[row]:
        raw["prototxt_dir"] = posixpath.join(home, row)
        if row in shared:
            raw.setdefault("nets_dir", posixpath.join(home, shared[row]))
    merged = YamlSource(where, "recipe", raw, lines, source.fail)
    if "schedule" in raw:
        merged = _with_phases(merged)
    return merged, Family(file.family, file.title, len(file.base.get("derived", ())))


def _no_row(where: str | Path, row: str | None, rows: list[str]) -> RecipeError:
    near = find_nearest(row or "", rows)
    if near:
        hint = f"did you mean '{where}:{near}'?"
    else:
        more = ", ..." if len(rows) > _MOST_NAMED else ""
        names = ", ".join(rows[:_MOST_NAMED])
        hint = f"use {where}:ROW, where ROW is one of {names}{more}; `run --each` trains all of them"
    what = "is a family of recipes" if row is None else f"no row '{row[:100]}' in this family"
    return RecipeError(where, what, hint)


def _merge(source: YamlSource, base: Location, row: Location) -> tuple[dict[str, Any], dict[Location, int]]:
    """Merge a row into the base, mappings key by key; return the values, and the line of each."""
    lines = {at[1:]: line for at, line in source.lines.items() if at[:1] == base}
    under, over = source.raw["base"], dict(source.raw["rows"][row[-1]])
    lists = {}
    for key in _ADDED:
        added, before = over.pop(key, ()), under.get(key, ())
        if not (isinstance(added, tuple) and isinstance(before, tuple)):
            place = source.place((*(row if not isinstance(added, tuple) else base), key))
            what = "lines of text" if key == "notes" else "mappings"
            raise RecipeError(place, f"{key}: must be a list of {what} that each start with `-`", "")
        if before or added:
            lists[key] = (before, added)
    behind = {key: len(before) for key, (before, _) in lists.items()}
    own = {_shifted(at[2:], behind): line for at, line in source.lines.items() if at[:2] == row}
    raw, replaced = _merge_over(under, over)
    lines = {at: line for at, line in lines.items() if not any(at[: len(key)] == key for key in replaced)}
    raw |= {key: (*before, *added) for key, (before, added) in lists.items()}
    return raw, {**lines, **own}


def _merge_over(
    under: Mapping[str, Any], over: Mapping[str, Any], at: Location = ()
) -> tuple[dict[str, Any], list[Location]]:
    """Merge two mappings, `over` taking precedence; return the result, and the locations that it replaced."""
    merged, replaced = dict(under), []
    for key, value in over.items():
        old, place = under.get(key), (*at, key)
        if isinstance(old, dict) and isinstance(value, dict):
            merged[key], within = _merge_over(old, value, place)
            replaced += within
        else:
            merged[key] = value
            replaced.append(place)
    return merged, replaced


def _shifted(at: Location, behind: Mapping[str, int]) -> Location:
    """Return the location of an item that a row appends to a list, after the base's `behind` items."""
    match at:
        case (str(key), int(index), *rest) if key in behind:
            return (key, index + behind[key], *rest)
    return at


def _with_phases(source: YamlSource) -> YamlSource:
    """Replace a row's schedule with its phases, and add their derived values."""
    if "phases" in source.raw:
        raise RecipeError(source.place(("phases",)), "phases: there is also a schedule", "remove one of them")
    schedule: Schedule = _validate_part(source, "schedule", Schedule)
    cluster: Cluster = _validate_part(source, "cluster", Cluster)
    try:
        plan = plan_phases(schedule, cluster.global_batch, _train_images(source))
    except ValueError as error:
        hint = "give other epochs, or a smaller batch"
        raise RecipeError(source.place(("schedule",)), f"schedule: {error}", hint) from None
    raw = {key: value for key, value in source.raw.items() if key not in ("schedule", _BY_PHASE)}
    _check_reported(source, [planned.name for planned in plan.phases])
    raw["phases"] = tuple(_phase(planned, source.raw) for planned in plan.phases)
    raw["derived"] = (*raw.get("derived", ()), *(one.model_dump() for one in plan.derived))
    lines = {**source.lines, ("phases",): source.lines[("schedule",)]}
    for index, planned in enumerate(plan.phases):
        of_phase = (_BY_PHASE, planned.name)
        reported = {at[2:]: line for at, line in source.lines.items() if at[:2] == of_phase}
        lines |= {("phases", index, "reported", *rest): line for rest, line in reported.items()}
    return YamlSource(source.where, source.kind, raw, lines, source.fail)


def _train_images(source: YamlSource) -> int:
    """Return the images of an epoch, from `data` or, if that is as in the net, from `images`."""
    if source.raw.get("data") == AS_IN_NET:
        images = source.raw.get("images")
        if type(images) is int and images > 0:
            return images
        raise RecipeError(source.place(("data",)), f"data: {AS_IN_NET} needs `images: N`", "")
    data: Data = _validate_part(source, "data", Data)
    return data.train.images


def _validate_part(source: YamlSource, key: str, model: type[Any]) -> Any:  # noqa: ANN401 - of the model
    """Validate the value of one key; errors give its location in the recipe."""
    part = YamlSource(source.where, source.kind, source.raw.get(key, {}), source.lines, source.fail)
    return validate(part, model, moved=lambda location: (key, *location))


def _check_reported(source: YamlSource, phases: list[str]) -> None:
    """Raise RecipeError for results of unknown phases; the recipe's model validates the results."""
    by_phase = source.raw.get(_BY_PHASE, {})
    if not isinstance(by_phase, dict):
        raise RecipeError(source.place((_BY_PHASE,)), f"{_BY_PHASE}: must be a mapping of phases", "")
    for name in by_phase:
        if name not in phases:
            hint = did_you_mean(str(name), phases, f"the phases are {', '.join(phases)}")
            raise RecipeError(source.place((_BY_PHASE, str(name))), f"no phase '{name}'", hint)


def _phase(planned: PlannedPhase, raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return a phase as a mapping, as in a YAML file."""
    start = {"weights": planned.weights} if planned.weights else {}
    reported = raw.get(_BY_PHASE, {}).get(planned.name)
    return {
        "name": planned.name,
        "net": _NETS[planned.is_augmented],
        "snapshot_prefix": f"/tmp/{raw['name']}_{planned.name}",
        **planned.settings,
        **start,
        **({"reported": reported} if reported is not None else {}),
    }
