"""Compare two recipes: the prototxts that they generate, and the values that are in no prototxt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from google.protobuf.message import Message

from caffe_recipes.caffe import pb
from caffe_recipes.recipe.families import list_rows
from caffe_recipes.recipe.model import AnyRecipe, Phase, Recipe, SolverSettings
from caffe_recipes.recipe.shipped import is_family
from caffe_recipes.recipe.source import parse_any_recipe
from caffe_recipes.review.diff.changes import NOT_SET, Change, Comparison, FileDiff, ShownValue
from caffe_recipes.review.diff.documents import EpochScale, diff_documents
from caffe_recipes.review.diff.sources import RecipeSide, TextFile, decode_recipe

if TYPE_CHECKING:
    from caffe_recipes.review.diff.changes import Json

# Keys whose values are in the generated solvers and nets, whose changes are reported there.
_IN_PROTOTXTS = frozenset(
    {
        "solver",
        "nets",
        *(
            f"net.{key}"
            for key in ("classes", "batch_norm_fraction", "batch_norm_images", "zero_init", "fillers")
        ),
        *(f"data.{key}" for key in ("crop_size", "mirror", "mean_value", "scale")),
        *(f"data.train.{key}" for key in ("lmdb", "shuffle", "prefetch")),
        *(f"data.test.{key}" for key in ("lmdb", "batch_size", "shorter_side_px", "interp_mode")),
        "cluster.batch_per_rank",
        *(f"phases.*.{key}" for key in (*SolverSettings.model_fields, "name", "net", "snapshot_prefix")),
    }
)
# Keys that name or describe a recipe, which differ between any two.
_NAMING = frozenset(
    {
        *("name", "title", "source", "reported", "accept", "ensemble", "prototxt_dir", "nets_dir"),
        *(f"phases.*.{key}" for key in ("comment", "reported", "snapshot_prefix")),
    }
)


def compare_recipes(old: RecipeSide, new: RecipeSide, defaults: bool = False) -> Comparison:
    """Return the differences of two recipes: their solvers and nets, by name, and the recipes' other values.

    Raises RecipeError or PrototxtError if a recipe cannot be generated.
    """
    unbuilt = old.unbuilt or new.unbuilt
    before, after = (_build_all(side, with_nets=not unbuilt) for side in (old, new))
    files = []
    for path in dict.fromkeys([*after, *before]):
        if path not in before or path not in after:
            files.append(FileDiff(path, "added" if path in after else "removed"))
            continue
        scales = _scale(old.recipe, path), _scale(new.recipe, path)
        found = diff_documents(before[path], after[path], path, defaults, scales)
        if found:
            files.append(found)
    if unbuilt:
        names = dict.fromkeys([*new.recipe.nets, *old.recipe.nets])
        files += [FileDiff(f"{name}.prototxt", "unreadable", note=unbuilt) for name in names]
    values = tuple(_diff_values(old.recipe, new.recipe))
    return Comparison(old.label, new.label, tuple(files), values)


def _build_all(side: RecipeSide, *, with_nets: bool) -> dict[str, Message]:
    """Return the messages that `generate` writes; `net:` lacks its folder, which is a value of the recipe."""
    from caffe_recipes.render.prototxts import build_net, build_solver  # pydantic: not for files

    recipe = side.recipe
    found: dict[str, Message] = {}
    for phase in recipe.phases:
        solver = build_solver(recipe, phase)
        solver.net = f"{phase.net}.prototxt"
        found[_solver_path(phase)] = solver
    if not with_nets:
        return found
    nets: dict[str, pb.NetParameter] = {name: build_net(recipe, name, side.own) for name in recipe.nets}
    return found | {f"{name}.prototxt": net for name, net in nets.items()}


def _solver_path(phase: Phase) -> str:
    return f"solver_{phase.name}.prototxt"


def _scale(recipe: Recipe, path: str) -> EpochScale:
    trained = {_solver_path(phase): phase.last_iter for phase in recipe.phases}
    return EpochScale(recipe.data.train.images, recipe.cluster.global_batch, trained.get(path))


def compare_recipe_files(old: TextFile, new: TextFile) -> FileDiff | None:
    """Return the difference of all values of two recipes or families, without building nets; None if equal.

    Nothing but the two texts is read, so that any revision can be compared. Raises RecipeError.
    """
    before, after = (_parse_rows(file) for file in (old, new))
    changes = tuple(_diff_rows(before, after))
    return FileDiff(new.path, "changed", "recipe", changes) if changes else None


def _parse_rows(file: TextFile) -> dict[str, AnyRecipe]:
    """Return the recipes of a family by row, or a single recipe under an empty name."""
    text = decode_recipe(file.data, file.label)
    rows = list_rows(text, file.label) if is_family(text) else [None]
    return {row or "": parse_any_recipe(text, file.label, Path(), row) for row in rows}


def _diff_rows(before: Mapping[str, AnyRecipe], after: Mapping[str, AnyRecipe]) -> Iterator[Change]:
    """Yield the changes of each row; one that is the same in all rows, such as one of `base:`, only once."""
    for row in dict.fromkeys([*after, *before]):
        if row not in before or row not in after:
            old, new = (_given(one[row].title if row in one else None) for one in (before, after))
            yield Change("changed", f"rows.{row}" if row else "title", old, new)
    common = [row for row in after if row in before]
    changes = [(row, each) for row in common for each in _diff_values(before[row], after[row], frozenset())]
    rows_of = Counter((change.field, change.old.text, change.new.text) for _, change in changes)
    shown = set()
    for row, change in changes:
        key = (change.field, change.old.text, change.new.text)
        is_shared = rows_of[key] == len(common)
        if key not in shown:
            yield change if is_shared else replace(change, field=f"rows.{row}.{change.field}")
        if is_shared:
            shown.add(key)


def compare_values(old: tuple[str, AnyRecipe], new: tuple[str, AnyRecipe]) -> Comparison:
    """Return the differences of all values of two labelled recipes, without building nets.

    Titles and what is named after a recipe are left out.
    """
    (label, before), (other, after) = old, new
    return Comparison(label, other, (), tuple(_diff_values(before, after, _NAMING)))


def _diff_values(old: AnyRecipe, new: AnyRecipe, omitted: frozenset[str] = _IN_PROTOTXTS) -> Iterator[Change]:
    for key, (before, after) in find_differing([old, new], omitted).items():
        yield Change("changed", key, _given(before), _given(after))


def find_differing(recipes: Sequence[AnyRecipe], omitted: frozenset[str] = _NAMING) -> dict[str, list[Any]]:
    """Return the keys whose values differ between recipes, each with its value in every recipe.

    A value is None where it is not set. By default, titles and what is named after a recipe are left out.
    """
    values = [dict(_own_values(recipe, omitted)) for recipe in recipes]
    found = {}
    for key in dict.fromkeys(chain.from_iterable(values)):
        inherited = f"solver.{key.rpartition('.')[2]}"
        if key.startswith("phases.") and all(one.get(key) == one.get(inherited) for one in values):
            continue  # reported once, under `solver`
        own = [one.get(key) for one in values]
        if any(value != own[0] for value in own):
            found[key] = own
    return found


def _own_values(recipe: AnyRecipe, omitted: frozenset[str]) -> Iterator[tuple[str, Any]]:
    # With `data: as-in-net`, `data` repeats the numbers of images.
    repeated = {"data"} if recipe.names_no_data else set()
    values = recipe.model_dump(mode="json", exclude={"derived", "differences", "notes", *repeated})
    yield from _flatten(values, "", "", omitted)
    if isinstance(recipe, Recipe):
        yield "images per iteration", recipe.cluster.global_batch


def _flatten(
    values: Mapping[str, Any], prefix: str, pattern: str, omitted: frozenset[str]
) -> Iterator[tuple[str, Any]]:
    """Yield the values that are set, by path; a phase is its name in the path, and `*` in the table above."""
    for key, value in values.items():
        if f"{pattern}{key}" in omitted:
            continue
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}.", f"{pattern}{key}.", omitted)
        elif f"{pattern}{key}" == "phases":
            yield "phases", [phase["name"] for phase in value]
            for phase in value:
                yield from _flatten(phase, f"phases.{phase['name']}.", "phases.*.", omitted)
        elif value not in (None, []):
            yield f"{prefix}{key}", value


def _given(value: Any) -> ShownValue:  # noqa: ANN401 - any value of a recipe, as JSON
    return NOT_SET if value is None else ShownValue(value_text(value), value)


def value_text(value: Json) -> str:
    """Return a value of a recipe as it is shown."""
    if isinstance(value, list):
        return f"[{', '.join(map(value_text, value))}]"
    if isinstance(value, dict):
        given = (f"{key}: {value_text(item)}" for key, item in value.items() if item is not None)
        return f"{{{', '.join(given)}}}"
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value).removesuffix(".0")
