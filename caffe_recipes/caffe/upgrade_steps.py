"""What a step of the upgrade of a net changes, and where the comments of the fields that it moves go."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.text.comments import Comment, join_comments

_STEP = re.compile(r"(\w+)(?:\[(\d+)\])?")


@dataclass(frozen=True)
class UpgradeStep:
    """The result of one step of the upgrade of a net.

    `moves` maps the old path of each field that moved to its new path; the fields in it move with it. If no
    field has the new path, the field was dropped, and its comment goes above the enclosing block.
    """

    net: pb.NetParameter
    moves: Mapping[str, str]
    changes: tuple[str, ...]


def move_comments(
    comments: Mapping[str, Comment], moves: Mapping[str, str], message: Message
) -> dict[str, Comment]:
    """Return the comments by the paths of their fields in the upgraded message; no comment is lost."""
    moved: dict[str, Comment] = {}
    for old, comment in comments.items():
        path = _new_path(old, moves)
        while path and (value := _value_at(message, path)) is None:
            path, comment = path.rpartition(".")[0], Comment(above=comment.texts)
        if path and (comment.below or comment.closing) and not isinstance(value, Message):
            comment = Comment(above=comment.texts)
        moved[path] = join_comments(moved[path], comment) if path in moved else comment
    return moved


def _new_path(path: str, moves: Mapping[str, str]) -> str:
    """Return a path with its longest moved prefix replaced."""
    start, end = path, ""
    while start and start not in moves:
        start, _, last = start.rpartition(".")
        end = f".{last}{end}"
    return f"{moves[start]}{end}" if start else path


def _value_at(message: Message, path: str) -> Any:  # noqa: ANN401 - any field's value
    """Return the value at a path, or None if it is not set."""
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
