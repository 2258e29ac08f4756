"""Comments that move with their fields where a field is renamed, moved or dropped."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import Message

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.text.comments import Comment

_STEP = re.compile(r"(\w+)(?:\[(\d+)\])?")


@dataclass(frozen=True)
class Step:
    """What one upgrade made of a net.

    `moves` maps the old path of each field that moved to its new one; what is below it moves along. A new
    path without a field behind it stands for none: the comment goes above what is around it.
    """

    net: pb.NetParameter
    moves: Mapping[str, str] = field(default_factory=dict)
    changes: tuple[str, ...] = ()


def count_of(number: int, noun: str) -> str:
    """Write a number of things.

    >>> count_of(1, "input"), count_of(2, "V1 layer")
    ('1 input', '2 V1 layers')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def move_comments(
    comments: Mapping[str, Comment], moves: Mapping[str, str], message: Message
) -> dict[str, Comment]:
    """Give each comment the path of its field in the upgraded message; none is lost."""
    moved: dict[str, Comment] = {}
    for old, comment in comments.items():
        path = _new_path(old, moves)
        while path and (value := _value_at(message, path)) is None:
            path, comment = path.rpartition(".")[0], Comment(above=_lines(comment))
        if path and comment.below and not isinstance(value, Message):
            comment = Comment(above=_lines(comment))
        moved[path] = join_comments(moved[path], comment) if path in moved else comment
    return moved


def join_comments(first: Comment, second: Comment) -> Comment:
    """Put two comments on one field; of two beside it, the second goes above."""
    is_crowded = bool(first.beside and second.beside)
    beside = (second.beside,) if is_crowded else ()
    return Comment(
        first.above + second.above + beside, first.beside or second.beside, first.below + second.below
    )


def _new_path(path: str, moves: Mapping[str, str]) -> str:
    """Replace the longest beginning of a path that moved."""
    start, end = path, ""
    while start and start not in moves:
        start, _, last = start.rpartition(".")
        end = f".{last}{end}"
    return f"{moves[start]}{end}" if start else path


def _value_at(message: Message, path: str) -> Any:  # noqa: ANN401 - any field's value
    """Return what a path leads to, or None if that is not set."""
    value: Any = message
    for step in path.split("."):
        match = _STEP.fullmatch(step)
        if not match or not isinstance(value, Message) or match[1] not in value.DESCRIPTOR.fields_by_name:
            return None
        name, index = match[1], match[2]
        if value.DESCRIPTOR.fields_by_name[name].is_repeated != (index is not None):
            return None
        if index is None:
            value = getattr(value, name) if value.HasField(name) else None
        else:
            items = getattr(value, name)
            value = items[int(index)] if int(index) < len(items) else None
    return value


def _lines(comment: Comment) -> tuple[str, ...]:
    return (*comment.above, *([comment.beside] if comment.beside else []), *comment.below)
