"""Write a recipe's YAML as a person would: in the model's order, without defaults, with comments.

Settings that the phases share are written once, under `solver:`. `NewRecipe` is what `adopt`, `new` and
`rescale` return.
"""

from __future__ import annotations

import json
import os
import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from caffe_recipes.config import FileName, Loader, Location
from caffe_recipes.errors import InputError, RecipeError
from caffe_recipes.recipe.model import AS_IN_NET, Recipe, SolverSettings
from caffe_recipes.recipe.net_keys import Transformation
from caffe_recipes.recipe.shipped import RECIPE_SUFFIXES
from caffe_recipes.recipe.source import parse_recipe
from caffe_recipes.render.tree import write_file

_WIDTH = 118
_COMMENT_WIDTH = 108
_INDENT = "  "
_MOST_BESIDE = 70  # characters of a mapping that is written on its key's line

Comments = Mapping[Location, Sequence[str]]


def render_yaml(values: Mapping[str, Any], comments: Comments) -> str:
    """Return plain values as YAML that `load_recipe` reads back, with each comment above its key.

    The comment with the location () is at the top.

    >>> print(render_yaml({"name": "a", "net": {"classes": 10}}, {("net",): ["Ten digits."]}), end="")
    name: a
    <BLANKLINE>
    # Ten digits.
    net:
      classes: 10
    """
    lines = list(_above((), "", comments))
    was_plain = True
    for key, value in values.items():
        block = list(_entry(key, value, (), comments))
        is_plain = len(block) == 1
        if lines and not (is_plain and was_plain):
            lines.append("")
        lines += block
        was_plain = is_plain
    return "\n".join(lines) + "\n"


def _entry(key: str, value: Any, at: Location, comments: Comments) -> Iterator[str]:  # noqa: ANN401 - as in YAML
    place, indent = (*at, key), _INDENT * len(at)  # an item of a list is indented once more than its key
    yield from _above(place, indent, comments)
    name = _scalar(key)
    beside = _flow(value) if _is_small(value, place, comments) else ""
    if beside and len(indent) + len(name) + 2 + len(beside) <= _WIDTH:
        yield f"{indent}{name}: {beside}"
    elif isinstance(value, Mapping) and value:
        yield f"{indent}{name}:"
        for inner, item in value.items():
            yield from _entry(inner, item, place, comments)
    elif isinstance(value, list | tuple) and value:
        yield f"{indent}{name}:"
        for index, item in enumerate(value):
            yield from _item(item, (*place, index), comments)
    else:
        yield f"{indent}{name}: {beside or _flow(value)}"


def _above(at: Location, indent: str, comments: Comments) -> Iterator[str]:
    for comment in comments.get(at, ()):
        lines = textwrap.wrap(comment, _COMMENT_WIDTH, break_long_words=False, break_on_hyphens=False)
        yield from (f"{indent}# {line}" for line in lines)


def _item(value: Any, at: Location, comments: Comments) -> Iterator[str]:  # noqa: ANN401
    """Yield the lines of a list item; its first key follows the dash."""
    indent = _INDENT * (len(at) - 1)
    yield from _above(at, indent, comments)
    if not isinstance(value, Mapping):
        yield f"{indent}- {_flow(value)}"
        return
    for number, (key, item) in enumerate(value.items()):
        lines = list(_entry(key, item, at, comments))
        if number == 0:
            lines[0] = f"{indent}- {lines[0].lstrip(' ')}"
        yield from lines


def _is_small(value: Any, at: Location, comments: Comments) -> bool:  # noqa: ANN401
    """Return whether a value fits on its key's line: a scalar, or a small list or mapping of scalars."""
    if isinstance(value, Mapping):
        has_comment = any(place[: len(at)] == at and place != at for place in comments)
        plain = all(_is_small(item, (), {}) and not isinstance(item, Mapping) for item in value.values())
        return len(at) > 1 and plain and not has_comment and len(_flow(value)) <= _MOST_BESIDE
    if isinstance(value, list | tuple):
        return not any(isinstance(item, Mapping | list | tuple) for item in value)
    return True


def _flow(value: Any) -> str:  # noqa: ANN401
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_inner(key)}: {_inner(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_inner, value)) + "]"
    return _scalar(value)


def _inner(value: Any) -> str:  # noqa: ANN401
    return _flow(value) if isinstance(value, Mapping | list | tuple) else _scalar(value, is_inner=True)


def _scalar(value: Any, *, is_inner: bool = False) -> str:  # noqa: ANN401
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, int):
        return str(value)
    return value if _is_read_back(value, is_inner) else json.dumps(value, ensure_ascii=False)


def _is_read_back(text: str, is_inner: bool) -> bool:
    """Return whether YAML reads a text as the same text without quotes."""
    written = f"[{text}, {text}]" if is_inner else f"{text}"
    try:
        read = yaml.load(written, Loader=Loader)
        beside = yaml.load(f"k: {text}", Loader=Loader) if not is_inner else {"k": text}
    except (yaml.YAMLError, UnicodeEncodeError):  # the latter for a name that is not UTF-8
        return False
    return bool(read == ([text, text] if is_inner else text) and beside == {"k": text})


def _number(value: float) -> str:
    """Return a number as text, without an exponent unless it is very large or small.

    >>> _number(0.00005), _number(1.0), _number(4.8), _number(1e-12)
    ('0.00005', '1', '4.8', '1e-12')
    """
    if value and not 1e-9 < abs(value) < 1e15:
        return repr(value)
    return str(int(value)) if value == int(value) else format(Decimal(repr(value)), "f")


# Keys that usually differ between phases and so are never shared.
_OWN = (
    "base_lr", "lr_policy", "gamma", "power", "stepsize", "stepvalue", "plateau_winsize", "max_iter",
    "lr_iter", "warmup_iter", "warmup_start_lr",
)  # fmt: skip
_FIRST = ("name", "net", "weights", "weights_iter", *_OWN)
_SHARED = tuple(key for key in SolverSettings.model_fields if key not in _OWN)


def recipe_values(recipe: Recipe) -> dict[str, Any]:
    """Return the values that a recipe's YAML needs, in the model's order."""
    values = recipe.model_dump(exclude_defaults=True)
    data = values["data"]
    values["data"] = (
        AS_IN_NET
        if recipe.data.is_in_net
        else _transform_last(data | {key: _transform_last(data[key]) for key in ("train", "test")})
    )
    shared, phases = share_settings(values["phases"])
    values |= {"solver": shared, "phases": [_in_order(phase) for phase in phases]}
    return {key: values[key] for key in Recipe.model_fields if key in values and (shared or key != "solver")}


def _transform_last(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of data with those of the transformation last."""
    return {key: data[key] for key in data if key not in Transformation.model_fields} | dict(data)


def share_settings(phases: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Move keys that all phases have, mostly with the same value, out of them; return these, and the phases.

    >>> share_settings([{"name": "a", "display": 1}, {"name": "b", "display": 1, "max_iter": 9}])
    ({'display': 1}, [{'name': 'a'}, {'name': 'b', 'max_iter': 9}])
    """
    shared: dict[str, Any] = {}
    for key in _SHARED:
        given = [phase[key] for phase in phases if key in phase]
        if len(given) < len(phases):
            continue
        value, count = Counter(given).most_common(1)[0]
        if count > len(phases) // 2:
            shared[key] = value
    left = [
        {key: value for key, value in phase.items() if key not in shared or shared[key] != value}
        for phase in phases
    ]
    return shared, left


def write_recipe(recipe: Recipe, comments: Comments) -> str:
    """Return a recipe's YAML, from which the same files are generated."""
    return render_yaml(recipe_values(recipe), comments)


def make_recipe(
    values: Mapping[str, Any],
    where: str,
    folder: Path = Path(),
    options: Mapping[str, str] = MappingProxyType({}),
) -> Recipe:
    """Return a recipe from plain values; raises RecipeError, with the key, for contradictory values.

    `options` maps keys to the options that gave their values, as `name` is given by --name; the error then
    names the option.
    """
    text = render_yaml(values, {})
    if not _is_utf8(text):
        raise RecipeError(where, "a name or path is not valid UTF-8", "rename it")
    try:
        return parse_recipe(text, where, folder)
    except RecipeError as error:
        if not error.key:
            raise
        if error.key in ("name", *options):
            raise RecipeError(options.get(error.key, "--name"), error.reason, error.hint) from None
        raise error.reworded(where=where) from None  # its line refers to a text that nobody sees


def _is_utf8(text: str) -> bool:
    """Return whether text can be encoded; a name from the command line that is not UTF-8 has surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _in_order(phase: Mapping[str, Any]) -> dict[str, Any]:
    """Return a phase's keys in a natural order: name and net, then the rate, then all others."""
    first = {key: phase[key] for key in _FIRST if key in phase}
    return first | {key: value for key, value in phase.items() if key not in first}


def check_recipe_path(path: Path) -> None:
    """Raise InputError for a file that is not named like a recipe, or that already exists."""
    if not path.name.endswith(RECIPE_SUFFIXES):
        raise InputError(path, "is not a recipe file name", "use the suffix .yaml")
    if os.path.lexists(path):
        raise InputError(path, "already exists", "remove it, or give another --out")
    if not path.absolute().parent.is_dir():
        raise InputError(path, "its parent directory does not exist", "create it first")


def clean_name(text: str) -> str:
    """Return a text in the characters that a name in a recipe may have; "" if none is left.

    >>> clean_name("a b!")
    'a-b'
    """
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("._-")


def choose_name(name: str | None, path: Path | None) -> str | None:
    """Return the recipe's name: the given one, else the name of its file, which its jobs look for.

    Return None without either. Raises InputError if that is not a valid recipe name.
    """
    if name is None and path is None:
        return None
    where, given = ("--name", name) if name is not None else (str(path), Path(str(path)).stem)
    try:
        return TypeAdapter(FileName).validate_python(given)
    except ValidationError:
        what = f"'{given[:100]}' is not a valid name of a recipe"
        hint = "use letters, digits, '.', '_' and '-'; start with a letter or digit; at most 100 characters"
        raise InputError(where, what, hint if name is not None else f"{hint}, or give a --name") from None


def write_new(path: Path, text: str) -> None:
    """Write a recipe's YAML to a new file, atomically; raises InputError."""
    check_recipe_path(path)
    write_file(path, text.encode())


@dataclass(frozen=True)
class NewRecipe:
    """A new recipe, its YAML, and the notes to print with it."""

    recipe: Recipe
    text: str
    notes: tuple[str, ...]
