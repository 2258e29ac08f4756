"""Read YAML into frozen models, and report mistakes with their file and line.

The caller passes a function `fail(where, what, hint)` that creates the errors, since recipes and profiles
have their own exceptions. Also here: the base class of all models (`Value`), and bounded texts and numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    WrapSerializer,
)

from caffe_recipes.errors import RecipeError
from caffe_recipes.limits import MOST_YAML_DEPTH, hint_at_limit, limit
from caffe_recipes.wording import did_you_mean, find_nearest, shorten

Location = tuple[str | int, ...]
Fail = Callable[[str | Path, str, str], Exception]
M = TypeVar("M", bound=BaseModel)


class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML loader with the scalars of YAML 1.2: 5e-5 is a number; `on`, `no`, 1_000 and 1:30 are text."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - PyYAML's own


for _tag, _pattern, _first in (
    ("bool", r"true|false", "tf"),
    ("null", r"null|~|", ["~", "n", ""]),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)", "-+0123456789"),  # 0200 is 128 to some readers and 200 to others
    ("float", r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("merge", r"<<", "<"),
):
    Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), list(_first))


@dataclass(frozen=True)
class YamlSource:
    """A mapping read from YAML, with the line of each value; `kind` names it in errors, e.g. `recipe`."""

    where: str | Path
    kind: str
    raw: Mapping[str, Any]
    lines: Mapping[Location, int]
    fail: Fail

    def place(self, location: Location) -> str:
        """Return `file:line` of a value, or of the nearest value that contains it."""
        while location and location not in self.lines:
            location = location[:-1]
        return f"{self.where}:{self.lines.get(location, 1)}"

    def fault(self, place: str, key: str, reason: str, hint: str) -> Exception:
        """Return the error for a value that does not validate."""
        error = self.fail(place, f"{key}: {reason}", hint)
        if isinstance(error, RecipeError):
            error.key, error.reason = key, reason
        return error


def parse_yaml(text: str, where: str | Path, kind: str, fail: Fail) -> YamlSource:
    """Parse YAML text whose root is a mapping; sequences become tuples. Raises what `fail` returns."""
    try:
        _check_bounds(text, where, fail)
        root = yaml.compose(text, Loader=Loader)
        lines = dict(_lines(root, (), where, fail)) if root else {}
        raw = _values(root)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{where}:{mark.line + 1 if mark else 1}"
        if mark and _is_tab(text, mark):
            raise fail(place, "a tab, which YAML does not allow here", "indent with spaces") from error
        raise fail(place, f"not YAML: {error.problem or error.context}", "correct the syntax") from error
    except (yaml.YAMLError, ValueError) as error:
        raise fail(where, f"not YAML: {' '.join(str(error).split())[:200]}", "correct the syntax") from error
    if not isinstance(raw, dict):
        raise fail(f"{where}:1", f"not a {kind}", f"a {kind} is a mapping that starts with `name:`")
    return YamlSource(where, kind, raw, lines, fail)


def _is_tab(text: str, mark: yaml.Mark) -> bool:
    """Return whether the character at a mark is a tab."""
    lines = text.splitlines()
    return mark.line < len(lines) and lines[mark.line][mark.column : mark.column + 1] == "\t"


# The explicit tags that are allowed; recipes do not need those that build other types.
_TAGS = frozenset((None, "!", *(f"tag:yaml.org,2002:{name}" for name in ("str", "map", "seq"))))


@dataclass
class _Open:
    """A collection whose end has not been read; an alias adds as many values as its target contains."""

    anchor: str | None
    is_mapping: bool
    values: int = 1
    entries: int = 0


_DIRECTIVE = re.compile("(?:\\A\ufeff?|[\n\r\x85\u2028\u2029])%")


def _check_bounds(text: str, where: str | Path, fail: Fail) -> None:
    """Check the depth and number of values before anything is composed, since libyaml recurses without limit.

    An alias counts as many values as its target contains, since it expands to them.
    """
    if found := _DIRECTIVE.search(text):  # thousands of them take libyaml minutes
        place = f"{where}:{text.count(chr(10), 0, found.end()) + 1}"
        raise fail(place, "a YAML directive, which is not needed", "remove the line that begins with %")
    deepest, most = min(limit("yaml-depth"), MOST_YAML_DEPTH), limit("yaml-values")
    sizes: dict[str | None, int | None] = {}  # values by anchor; None until the collection's end
    around: list[_Open] = [_Open(None, False)]
    for event in yaml.parse(text, Loader=Loader):
        place = f"{where}:{event.start_mark.line + 1 if event.start_mark else 1}"
        if isinstance(event, yaml.CollectionEndEvent):
            closed = around.pop()
            if closed.anchor:
                sizes[closed.anchor] = closed.values
            around[-1].values += closed.values
        elif isinstance(event, yaml.NodeEvent):
            inside = around[-1]
            is_key = inside.is_mapping and inside.entries % 2 == 0
            inside.entries += 1
            if is_key and not isinstance(event, yaml.ScalarEvent):
                raise fail(place, "a key is not plain text", "write each key as text")
            _add_event(event, around, sizes, place, fail)
        else:
            continue
        if len(around) - 1 > deepest:
            raise fail(place, f"values nest more than {deepest} deep", hint_at_limit("yaml-depth"))
        if sum(each.values for each in around) > most:
            raise fail(place, f"contains more than {most:,} values", hint_at_limit("yaml-values"))


def _add_event(
    event: Any,  # noqa: ANN401 - an event of PyYAML
    around: list[_Open],
    sizes: dict[str | None, int | None],
    place: str,
    fail: Fail,
) -> None:
    """Count a value, or open a collection."""
    if isinstance(event, yaml.AliasEvent):
        size = sizes.get(event.anchor, 0)
        if size is None:
            raise fail(place, f"recursive alias '{shorten(str(event.anchor))}'", "write the values out")
        around[-1].values += size
        return
    if event.tag not in _TAGS:
        raise fail(place, f"the tag '{shorten(event.tag)}' is not supported", "write the value without it")
    if isinstance(event, yaml.ScalarEvent):
        around[-1].values += 1
        if event.anchor:
            sizes[event.anchor] = 1
        return
    around.append(_Open(event.anchor, isinstance(event, yaml.MappingStartEvent)))
    if event.anchor:
        sizes[event.anchor] = None


def validate(
    source: YamlSource,
    model: type[M],
    context: object = None,
    moved: Callable[[Location], Location] | None = None,
) -> M:
    """Return what was read as a model; raises what `fail` returns, for the first mistake, naming the others.

    `moved` maps the location of an inherited value to its location in the file.
    """
    try:
        return model.model_validate(source.raw, context=context)
    except ValidationError as error:
        moved = moved or (lambda location: location)
        found = error.errors(include_url=False)
        # A misspelled key often leaves a required one missing: report the misspelling.
        found.sort(key=lambda each: each["type"] != "extra_forbidden")
        others = _name_others(found, source, moved)
        raise _describe_error(found[0], source, model, moved, others) from error


def write_key(location: Location) -> str:
    """Return a location as a dotted key.

    >>> write_key(("phases", 2, "base_lr"))
    'phases[2].base_lr'
    """
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return shorten(text.removeprefix("."))


def _lines(node: yaml.Node, at: Location, where: str | Path, fail: Fail) -> Iterator[tuple[Location, int]]:
    """Yield each value's location and line; raises what `fail` returns for a duplicate key."""
    yield at, node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            place = (*at, str(key.value))
            yield place, key.start_mark.line + 1
            yield from ((loc, line) for loc, line in _lines(value, place, where, fail) if loc != place)
        names: set[str] = set()
        for key, _ in node.value:
            if key.value in names:
                line = key.start_mark.line + 1
                raise fail(f"{where}:{line}", f"duplicate key '{shorten(key.value)}'", "keep one")
            names.add(key.value)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield from _lines(value, (*at, index), where, fail)


def _values(root: yaml.Node | None) -> Any:  # noqa: ANN401 - whatever the YAML held
    """Return plain values; sequences become tuples, since the models are frozen."""
    if root is None:
        return None
    loader = Loader("")
    try:
        return with_tuples(loader.construct_document(root))
    finally:
        loader.dispose()


def with_tuples(value: Any) -> Any:  # noqa: ANN401 - any value of YAML or JSON
    """Return the value with tuples instead of lists, which strict and frozen fields require."""
    if isinstance(value, dict):
        return {key: with_tuples(item) for key, item in value.items()}
    return tuple(map(with_tuples, value)) if isinstance(value, list) else value


_MOST_OTHERS = 8


def _name_others(found: Sequence[Any], source: YamlSource, moved: Callable[[Location], Location]) -> str:
    """Return the keys of all mistakes but the first, with their lines; "" if there are none."""
    unknown = [str(each["loc"][-1]) for each in found if each["type"] == "extra_forbidden"]
    first = _known_part(moved(found[0]["loc"]), source)
    wrong, missing = dict[str, None](), dict[str, None]()
    for each in found[1:]:
        location = moved(each["loc"])
        inside = _known_part(location, source)
        if each["type"] == "missing" and inside == location[:-1]:
            if find_nearest(str(location[-1]), unknown) is None:
                missing[write_key(location)] = None
        elif inside and inside != first:
            wrong[f"{write_key(inside)} (line {source.lines[inside]})"] = None
    named = {"also wrong": [*wrong], "also missing": [*missing]}
    return "; ".join(f"{what}: {_name_few(keys)}" for what, keys in named.items() if keys)


def _name_few(keys: Sequence[str]) -> str:
    more = f" and {len(keys) - _MOST_OTHERS} more" if len(keys) > _MOST_OTHERS else ""
    return f"{', '.join(keys[:_MOST_OTHERS])}{more}"


def _known_part(location: Location, source: YamlSource) -> Location:
    """Return a location without what pydantic adds to it, such as the kinds of value that were tried."""
    while location and location not in source.lines:
        location = location[:-1]
    return location


def _describe_error(
    found: Any,  # noqa: ANN401 - pydantic's ErrorDetails
    source: YamlSource,
    model: type[BaseModel],
    moved: Callable[[Location], Location],
    others: str,
) -> Exception:
    """Turn a mistake into one line that names file, line and key, with the keys of `others`."""

    def fault(reason: str, hint: str) -> Exception:
        if hint.endswith("?") and others:
            hint = f"{hint} {others[0].upper()}{others[1:]}"
        else:
            hint = "; ".join(filter(None, (hint, others)))
        return source.fault(place, key, reason, hint)

    is_key = found["loc"][-1:] == (_KEY,) and found["type"] != "extra_forbidden"
    location = moved(found["loc"][:-1] if is_key else found["loc"])
    place, key = source.place(location), write_key(location) or source.kind
    if found["type"] == "extra_forbidden":
        known = _fields_at(location[:-1], model)
        hint = did_you_mean(str(location[-1]), known, f"known keys: {', '.join(known)}")
        return fault("unknown key", hint)
    if found["type"] == "missing":
        return fault("missing", f"every {source.kind} needs it")
    message, given = _plain(found), found.get("input")
    if is_key:
        return fault(f"as a key it {message}", "choose another name")
    if found["type"] == "tuple_type" and _fields_at(location, model):
        message += ", or of mappings that each start with `-`"
    shown = (
        f", not {shorten(repr(given))}"
        if isinstance(given, str | int | float | bool) and "error" not in found.get("ctx", {})
        else ""
    )
    return fault(f"{message[0].lower()}{message[1:]}{shown}", _near_literal(found))


_KEY = "[key]"  # pydantic ends the location of a mapping's key with this

# Pydantic's error types in the words of YAML users.
_PLAIN = {
    "bool_type": "must be true or false",
    "dict_type": "must be a mapping of keys to values",
    "finite_number": "must be a finite number",
    "float_type": "must be a number",
    "greater_than": "must be above {gt:.12g}",
    "greater_than_equal": "must be {ge:.12g} or more",
    "int_type": "must be an integer",
    "is_instance_of": "must be a mapping of keys to values",
    "less_than": "must be below {lt:.12g}",
    "less_than_equal": "must be {le:.12g} or less",
    "literal_error": "must be {expected}",
    "mapping_type": "must be a mapping of keys to values",
    "model_type": "must be a mapping of keys to values",
    "string_too_long": "must have {max_length} characters or fewer",
    "string_too_short": "must not be empty",
    "string_type": "must be text",
    "too_short": "must have {min_length} or more items",
    "tuple_type": "must be a list of values",
}
# What the patterns mean in words; any other pattern is shown itself.
_PATTERNS = {
    r"^[A-Za-z0-9][A-Za-z0-9._-]*$": "must start with a letter or digit; `.`, `_` and `-` may follow",
    r"^[A-Za-z_][A-Za-z0-9_]*$": "must be a variable name: letters, digits and `_`, but no leading digit",
    r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$": "must be `module:function`",
}


def _plain(found: Any) -> str:  # noqa: ANN401 - pydantic's ErrorDetails
    """Describe in plain words what is wrong with a value, and whether it is empty."""
    kind, context = found["type"], found.get("ctx", {})
    if kind == "string_pattern_mismatch":
        return _PATTERNS.get(context["pattern"], f"must be of the form {context['pattern']}")
    text = str(found["msg"].removeprefix("Value error, "))
    if kind in _PLAIN:
        text = _PLAIN[kind].format(**context)
    return f"is empty; it {text}" if found.get("input", "") is None else text


def _near_literal(found: Any) -> str:  # noqa: ANN401 - pydantic's ErrorDetails
    if found["type"] in ("int_type", "float_type") and re.fullmatch(r"[-+]?0[0-9]+", str(found["input"])):
        return "write it without leading zeros"
    if found["type"] in ("int_type", "float_type") and re.fullmatch(r"[-+]?[\d.]+", str(found["input"])):
        return "remove the quotes" if isinstance(found["input"], str) else ""
    if found["type"] != "literal_error":
        return ""
    choices = re.findall(r"'([^']+)'", found["ctx"]["expected"])
    return did_you_mean(str(found["input"]), choices)


def _fields_at(location: Location, root: type[BaseModel]) -> list[str]:
    """Return the known keys of the mapping at a location."""
    model: type[BaseModel] | None = root
    for part in location:
        if model is None:
            return []
        if isinstance(part, int):
            continue
        field = model.model_fields.get(part)
        model = _model_in(field.annotation) if field else model
    return list(model.model_fields) if model else []


def _model_in(annotation: Any) -> type[BaseModel] | None:  # noqa: ANN401 - a type expression
    """Return the first model within a type expression such as `tuple[Phase, ...] | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    inner = (_model_in(argument) for argument in getattr(annotation, "__args__", ()))
    return next((model for model in inner if model), None)


def _no_control_characters(text: str) -> str:
    if re.search(r"[\x00-\x1f\x7f]", text):
        raise ValueError("control characters and line breaks are not allowed")
    if text.isspace():
        raise ValueError("must not be blank")
    return text


Text = Annotated[str, Field(min_length=1), AfterValidator(_no_control_characters)]
PathText = Text


def _below_root(text: str) -> str:
    if ".." in text.split("/"):
        raise ValueError("must not leave the Caffe root through `..`")
    return text


def _names_entry(text: str) -> str:
    if not text.rpartition("/")[2]:
        raise ValueError("must end in a name, not in `/`")
    return text


FolderText = Annotated[PathText, AfterValidator(_below_root)]
EntryText = Annotated[PathText, AfterValidator(_names_entry)]
FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
CountOrZero = Annotated[int, Field(ge=0, le=2**31 - 1)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(gt=0, lt=1)]


K = TypeVar("K")
V = TypeVar("V")


class FrozenMapping(Mapping[K, V]):
    """An immutable mapping, hashable if its values are; it equals any mapping of the same items."""

    def __init__(self, items: Mapping[K, V]) -> None:
        """Keep the items in their order."""
        self._items = dict(items)

    def __getitem__(self, key: K) -> V:
        return self._items[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(frozenset(self._items.items()))

    def __repr__(self) -> str:
        return repr(self._items)


def _serialize(items: Mapping[K, V], serialize: SerializerFunctionWrapHandler) -> Any:  # noqa: ANN401 - pydantic's
    return serialize(dict(items))


# A mapping as a field: frozen when it is validated, and dumped as a plain dict.
Frozen = Annotated[Mapping[K, V], AfterValidator(FrozenMapping), WrapSerializer(_serialize)]


class Value(BaseModel):
    """Base class of all models that are read from YAML: frozen, strict, without unknown keys."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False, defer_build=True)
