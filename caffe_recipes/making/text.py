"""A recipe's YAML as a person would write it: in the model's order, without defaults, with comments."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

import yaml

from caffe_recipes.config.source import Loader, Location

_WIDTH = 118
_COMMENT_WIDTH = 108
_INDENT = "  "
_MOST_BESIDE = 70  # characters of a part that stands on its key's line

Comments = Mapping[Location, Sequence[str]]


def render_yaml(values: Mapping[str, Any], comments: Comments) -> str:
    """Write plain values as YAML that `load_recipe` reads back; a comment stands above what it is about.

    That of the location () stands at the top.

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
    """Write an item of a list: its first key stands behind the dash."""
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
    """Whether a value goes on its key's line: a scalar, scalars, or a few of them within a part."""
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
    """Whether text without quotes is read as itself."""
    written = f"[{text}, {text}]" if is_inner else f"{text}"
    try:
        read = yaml.load(written, Loader=Loader)
        beside = yaml.load(f"k: {text}", Loader=Loader) if not is_inner else {"k": text}
    except (yaml.YAMLError, UnicodeEncodeError):  # the latter for a name that is not UTF-8
        return False
    return bool(read == ([text, text] if is_inner else text) and beside == {"k": text})


def _number(value: float) -> str:
    """Write a number without an exponent, unless it is very large or small.

    >>> _number(0.00005), _number(1.0), _number(4.8), _number(1e-12)
    ('0.00005', '1', '4.8', '1e-12')
    """
    if value and not 1e-9 < abs(value) < 1e15:
        return repr(value)
    return str(int(value)) if value == int(value) else format(Decimal(repr(value)), "f")
