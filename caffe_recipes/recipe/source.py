"""Reading recipes: YAML text to a Recipe, with the file and line of whatever is wrong."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from itertools import islice
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from caffe_recipes.caffe.text_source import read_bytes
from caffe_recipes.errors import RecipeError
from caffe_recipes.recipe.checks import Location, find_contradictions
from caffe_recipes.recipe.model import Recipe

_MOST_VALUES = 100_000  # aliases of aliases grow without end
_MOST_BYTES = 1_000_000
_MOST_SHOWN = 80


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML with today's scalars: 5e-5 is a number, `on` and `no` are text, 1_000 and 1:30 too."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - PyYAML's own


for _tag, _pattern, _first in (
    ("bool", r"true|false", "tf"),
    ("null", r"null|~|", ["~", "n", ""]),
    ("int", r"[-+]?[0-9]+", "-+0123456789"),
    ("float", r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("merge", r"<<", "<"),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), list(_first))


def shipped_recipes() -> dict[str, Traversable]:
    """Return the recipes that ship with the package, by name."""
    files = resources.files("caffe_recipes").joinpath("recipes").iterdir()
    return {
        file.name.removesuffix(".yaml"): file
        for file in sorted(files, key=lambda f: f.name)
        if file.name.endswith(".yaml")
    }


def load_recipe(name_or_path: str | Path) -> Recipe:
    """Read a recipe that ships, by name, or one of the user's, by its file's path.

    Raises RecipeError, whose `where` is `file:line`, for an unknown name, unreadable YAML, an unknown key,
    and every value that does not validate.
    """
    return parse_recipe(*_read(name_or_path))


def locate_keys(name_or_path: str | Path) -> Callable[[Location], str]:
    """Return a function that gives `file:line` of a key of a recipe, or of the nearest key around it.

    >>> locate_keys("digits-local")(("name",))
    'digits-local.yaml:1'
    """
    text, where, _ = _read(name_or_path)
    root = yaml.compose(text, Loader=_Loader)
    lines = dict(islice(_lines(root, (), where), _MOST_VALUES)) if root else {}
    return lambda location: f"{where}:{_line_of(location, lines)}"


def _read(name_or_path: str | Path) -> tuple[str, str | Path, Path]:
    """Read a recipe's text; with what errors call it, and the folder of the user's own net."""
    text = str(name_or_path)
    shipped = shipped_recipes()
    if text in shipped:
        return shipped[text].read_text("utf-8"), f"{text}.yaml", Path()
    path = Path(text)
    if not text.endswith((".yaml", ".yml")) and not path.is_file():
        near = difflib.get_close_matches(text, shipped, n=1)
        meant = f"did you mean '{near[0]}'? " if near else ""
        raise RecipeError(
            "", f"unknown recipe '{text}'", f"{meant}there are {', '.join(shipped)}, or give a .yaml file"
        )
    try:
        data = read_bytes(path, _MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise RecipeError(path, f"is over {_MOST_BYTES:,} bytes", "is it a recipe?")
        content = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RecipeError(path, "not UTF-8 text", "a recipe is a YAML file") from error
    except OSError as error:
        raise RecipeError(
            path, f"cannot be read: {error.strerror}", "give the path of a recipe's YAML"
        ) from error
    return content, path, path.parent


def parse_recipe(text: str, where: str | Path, folder: Path) -> Recipe:
    """Validate YAML text into a Recipe; `folder` is what the user's own net is found from."""
    try:
        root = yaml.compose(text, Loader=_Loader)
        lines = dict(islice(_lines(root, (), where), _MOST_VALUES)) if root else {}
        if len(lines) == _MOST_VALUES:
            raise RecipeError(where, f"holds {_MOST_VALUES:,} values or more", "do not nest YAML aliases")
        raw = _values(root)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise RecipeError(
            f"{where}:{line}", f"not YAML: {error.problem or error.context}", "mend the syntax"
        ) from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise RecipeError(
            where, f"not YAML: {' '.join(str(error).split())[:200]}", "mend the syntax"
        ) from error
    if not isinstance(raw, dict):
        raise RecipeError(f"{where}:1", "not a recipe", "a recipe is a mapping that starts with `name:`")
    try:
        recipe = Recipe.model_validate(raw, context={"folder": folder})
    except ValidationError as error:
        raise _first_error(error, lines, where) from error
    for location, what, hint in find_contradictions(recipe):
        raise RecipeError(f"{where}:{_line_of(location, lines)}", f"{_key(location)}: {what}", hint)
    return recipe


def _lines(node: yaml.Node, at: Location, where: str | Path) -> Iterator[tuple[Location, int]]:
    """Yield each value's location and line, and refuse a key given twice."""
    yield at, node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            place = (*at, str(key.value))
            yield place, key.start_mark.line + 1
            yield from ((loc, line) for loc, line in _lines(value, place, where) if loc != place)
        names = [str(key.value) for key, _ in node.value]
        for index, name in enumerate(names):
            if name in names[:index]:
                raise RecipeError(
                    f"{where}:{node.value[index][0].start_mark.line + 1}",
                    f"key '{_short(name)}' is given twice",
                    "keep one",
                )
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield from _lines(value, (*at, index), where)


def _values(root: yaml.Node | None) -> Any:  # noqa: ANN401 - whatever the YAML held
    """Construct plain values; sequences become tuples, since a recipe is frozen."""
    if root is None:
        return None
    loader = _Loader("")
    try:
        return _freeze(loader.construct_document(root))
    finally:
        loader.dispose()


def _freeze(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, dict):
        return {key: _freeze(item) for key, item in value.items()}
    if isinstance(value, list):
        return tuple(_freeze(item) for item in value)
    return value


def _line_of(location: Location, lines: Mapping[Location, int]) -> int:
    """Return the line of a location, or of the nearest thing around it."""
    while location and location not in lines:
        location = location[:-1]
    return lines.get(location, 1)


def _key(location: Location) -> str:
    """Write a location as a person would: `phases[2].base_lr`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return _short(text.removeprefix("."))


def _short(text: str) -> str:
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 3]}..."


def _first_error(error: ValidationError, lines: Mapping[Location, int], where: str | Path) -> RecipeError:
    """Turn pydantic's first finding into one line that names file, line and key."""
    # A misspelt key is also a missing one; the misspelling is what to mend.
    found = min(error.errors(include_url=False), key=lambda e: e["type"] != "extra_forbidden")
    location: Location = found["loc"]
    # A phase inherits from `solver:`; a value that only stands there is wrong there.
    if (
        len(location) == 3
        and location[0] == "phases"
        and location not in lines
        and ("solver", location[2]) in lines
    ):
        location = ("solver", location[2])
    place, key = f"{where}:{_line_of(location, lines)}", _key(location) or "recipe"
    if found["type"] == "extra_forbidden":
        known = _fields_at(location[:-1])
        near = difflib.get_close_matches(str(location[-1]), known, n=1)
        return RecipeError(
            place,
            f"{key}: unknown key",
            f"did you mean '{near[0]}'?" if near else f"known here: {', '.join(known)}",
        )
    if found["type"] == "missing":
        return RecipeError(place, f"{key}: missing", "every recipe needs it")
    message = found["msg"].removeprefix("Value error, ")
    given = found.get("input")
    shown = (
        f", not {_short(repr(given))}"
        if isinstance(given, str | int | float | bool) and "error" not in found.get("ctx", {})
        else ""
    )
    near_value = _near_literal(found)
    return RecipeError(place, f"{key}: {message[0].lower()}{message[1:]}{shown}", near_value)


def _near_literal(found: Any) -> str:  # noqa: ANN401 - pydantic's ErrorDetails
    if found["type"] != "literal_error":
        return ""
    choices = re.findall(r"'([^']+)'", found["ctx"]["expected"])
    near = difflib.get_close_matches(str(found["input"]), choices, n=1)
    return f"did you mean '{near[0]}'?" if near else ""


def _fields_at(location: Location) -> list[str]:
    """Return the known keys of the mapping at a location."""
    model: type[BaseModel] | None = Recipe
    for part in location:
        if model is None:
            return []
        if isinstance(part, int):
            continue
        field = model.model_fields.get(part)
        model = _model_in(field.annotation) if field else model
    return list(model.model_fields) if model else []


def _model_in(annotation: Any) -> type[BaseModel] | None:  # noqa: ANN401 - a type expression
    """Return the first Value class within a type expression such as `tuple[Phase, ...] | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    inner = (_model_in(argument) for argument in getattr(annotation, "__args__", ()))
    return next((model for model in inner if model), None)
