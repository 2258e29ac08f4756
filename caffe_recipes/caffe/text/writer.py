"""Write the canonical text of a message: order of fields, numbers, strings and comments."""

from __future__ import annotations

import ctypes
import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from caffe_recipes.caffe.text.comments import Comment, comment_line
from caffe_recipes.errors import PrototxtError
from caffe_recipes.wording import did_you_mean

# The order in which people usually write the fields of a message. A star stands for all fields that a row
# does not name, in the order of the schema.
FIELD_ORDERS = {
    "BlobProto": "shape num channels height width *",
    "ConvolutionParameter": "num_output bias_term kernel_size kernel_h kernel_w pad pad_h pad_w "
    "stride stride_h stride_w dilation group *",
    "DataParameter": "source batch_size backend *",
    "Datum": "channels height width label encoded *",
    "ImageDataParameter": "source root_folder batch_size *",
    "LayerParameter": "name type bottom top include exclude phase loss_weight propagate_down param "
    "transform_param * blobs",
    "NetParameter": "name * layer layers",
    "PoolingParameter": "pool kernel_size kernel_h kernel_w pad pad_h pad_w stride stride_h stride_w "
    "global_pooling *",
    "SolverParameter": "net net_param train_net train_net_param test_net test_net_param train_state "
    "test_state test_iter test_interval test_initialization test_compute_loss display average_loss "
    "base_lr lr_policy gamma power stepsize stepvalue plateau_winsize max_iter lr_iter iter_size "
    "warmup_iter warmup_start_lr type momentum momentum2 rms_decay delta "
    "weight_decay regularization_type clip_gradients "
    "snapshot snapshot_prefix snapshot_format snapshot_diff snapshot_after_train "
    "solver_mode device_id random_seed *",
    "TransformationParameter": "mirror crop_size crop_h crop_w scale mean_file mean_value *",
    "V0LayerParameter": "* blobs",
    "V1LayerParameter": "name type bottom top include exclude loss_weight param blob_share_mode "
    "blobs_lr weight_decay transform_param * blobs",
}


@functools.cache
def fields_of(message: Descriptor) -> Mapping[str, FieldDescriptor]:
    """Return the fields of a message by name."""
    return {field.name: field for field in message.fields}


@functools.cache
def ordered_fields(message: Descriptor) -> tuple[FieldDescriptor, ...]:
    """Return all fields of a message in the order in which they are written."""
    row = FIELD_ORDERS.get(message.name, "*").split()
    star = row.index("*")
    rest = [field.name for field in message.fields if field.name not in row]
    names = [*row[:star], *rest, *row[star + 1 :]]
    return tuple(message.fields_by_name[name] for name in names)


@functools.cache
def field_ranks(message: Descriptor) -> dict[int, int]:
    """Return the position of each field in the order in which they are written, by field number."""
    return {field.number: rank for rank, field in enumerate(ordered_fields(message))}


_PLAIN = re.compile(r"[ !#-\[\]-~]*").fullmatch  # printable ASCII that needs no escape
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_NO_COMMENT = Comment()
_LARGE_KIND_BYTES = 1000
_INLINE_WIDTH = 100  # the longest block, in characters, that stays on one line
FLOAT_MAX = (2 - 2.0**-23) * 2.0**127  # the largest float32
# Fields and enum values with a number from here on are in no Caffe's schema (see `dialects/schema.py`). The
# value of such a field is its text, as `canonical_literal` in `parser.py` returns it.
FIRST_FOREIGN = 200_000


def write_text(message: Message, comments: Mapping[str, Comment]) -> str:
    """Write a message with its comments. Raises PrototxtError if a comment's field is not set."""
    queue = _CommentQueue(comments)
    file = queue.pop("")
    if file.beside or file.closing or file.after:
        raise PrototxtError(
            "", "a comment cannot be beside the file", "give it a field's path, or put it above"
        )
    body = _body(message, "", "", queue, file, _plain_body)
    head = [*_comment_lines(file.above, ""), *([""] if file.above and body else [])]
    for path in queue.pending:
        hint = did_you_mean(path, _paths(message, ""), "attach it to a field that is set")
        raise PrototxtError(path, f"has a comment, but is not set in this {message.DESCRIPTOR.name}", hint)
    return "\n".join([*head, *body, ""])


class _CommentQueue:
    """The comments that are still to be written, and the number of comments with text already written.

    `blocks` has the prefix of each block with a comment inside; that of the file itself is "".
    """

    def __init__(self, comments: Mapping[str, Comment]) -> None:
        self.pending = dict(comments)
        self.written = 0
        self.blocks = {path[: dot.end()] for path in comments for dot in re.finditer(r"^|\.", path)}

    def pop(self, path: str) -> Comment:
        comment = self.pending.pop(path, _NO_COMMENT)
        self.written += bool(comment.texts)
        return comment


def float_text(value: float, is_double: bool = False) -> str:
    """Write a float32 (or double) in the fewest digits that read back bit-equal, without exponent from 1e-5.

    >>> [float_text(value) for value in (0.1, 5e-05, 1e-08, 1.0, 1281167.0, 0.0078125)]
    ['0.1', '0.00005', '1e-08', '1', '1281167', '0.0078125']
    """
    if value == 0:
        return "-0" if math.copysign(1, value) < 0 else "0"
    if value != value:
        return "nan" if math.copysign(1, value) > 0 else "-nan"
    text = repr(value).removesuffix(".0") if is_double else _shortest_float32(value)
    if "e" not in text:
        return text
    decimal = Decimal(text)
    return f"{decimal:f}" if -5 <= decimal.adjusted() < 10 else text


def string_text(value: str | bytes) -> str:
    """Quote a string, escaping as little as possible; printable UTF-8 in a str stays, bytes become ASCII.

    >>> print(string_text('a "b" \\x00 é'), string_text(b"\\xe9"))
    "a \\"b\\" \\000 é" "\\351"
    """
    is_bytes = isinstance(value, bytes)
    chars = value.decode("latin-1") if isinstance(value, bytes) else value
    if _PLAIN(chars):
        return f'"{chars}"'
    return f'"{"".join(_escape(char, is_bytes) for char in chars)}"'


def _escape(char: str, is_byte: bool) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    if char.isprintable() and (char.isascii() or not is_byte):
        return char
    return "".join(f"\\{byte:03o}" for byte in char.encode("latin-1" if is_byte else "utf-8"))


# The same few rates and fillers are in every layer of a net. Never called with 0, which equals -0 as a key.
@functools.lru_cache(maxsize=1024)
def _shortest_float32(value: float) -> str:
    single = ctypes.c_float(value).value
    if abs(single) == FLOAT_MAX:  # protobuf 3.0 to 3.6 would read fewer digits, rounded up, as infinity
        return f"{'-' * (single < 0)}3.40282346e+38"
    # A normal float32 preserves six digits; a subnormal one preserves fewer.
    first = 6 if abs(single) >= 2.0**-126 else 1
    for digits in range(first, 9):
        text = f"{single:.{digits}g}"
        if ctypes.c_float(float(text)).value == single:
            return text
    return f"{single:.9g}"


# How to write a field: its rank, its name, whether it is repeated, and the functions that return the text of
# a scalar (None for a message) and the lines of a message.
_LinesOf = Callable[[Any, str], list[str]]
_FieldFormat = tuple[int, str, bool, Callable[[Any], str] | None, _LinesOf]


@functools.cache
def _field_formats(message: Descriptor) -> dict[int, _FieldFormat]:
    """Return how to write each field of a message, by field number."""
    ranks = field_ranks(message)
    return {
        field.number: (ranks[field.number], field.name, field.is_repeated, _text_of(field), _lines_of(field))
        for field in message.fields
    }


def _lines_of(field: FieldDescriptor) -> _LinesOf:
    is_layer = field.message_type is not None and field.message_type.name == "LayerParameter"
    return _layer_body if is_layer else _plain_body


def _text_of(field: FieldDescriptor) -> Callable[[Any], str] | None:
    if field.message_type is not None:
        return None
    if field.number >= FIRST_FOREIGN:
        return str
    if field.enum_type is not None:
        return {value.number: value.name for value in field.enum_type.values}.__getitem__
    if field.cpp_type == FieldDescriptor.CPPTYPE_DOUBLE:
        return functools.partial(float_text, is_double=True)
    return _TEXTS.get(field.cpp_type, str)


_TEXTS: dict[int, Callable[[Any], str]] = {
    FieldDescriptor.CPPTYPE_FLOAT: float_text,
    FieldDescriptor.CPPTYPE_STRING: string_text,
    FieldDescriptor.CPPTYPE_BOOL: {True: "true", False: "false"}.__getitem__,
}


def _in_order(message: Message) -> list[tuple[_FieldFormat, Any]]:
    """Return the fields that are set, in the order in which they are written."""
    formats = _field_formats(message.DESCRIPTOR)
    # Ranks are unique, so values are never compared.
    return sorted([(formats[field.number], value) for field, value in message.ListFields()])


def _paths(message: Message, prefix: str) -> Iterator[str]:
    for (_, name, is_repeated, text_of, _), value in _in_order(message):
        for index, item in enumerate(value if is_repeated else (value,)):
            path = f"{prefix}{name}[{index}]" if is_repeated else f"{prefix}{name}"
            yield path
            if text_of is None:
                yield from _paths(item, f"{path}.")


def _body(
    message: Message, prefix: str, indent: str, queue: _CommentQueue, around: Comment, plain: _LinesOf
) -> list[str]:
    """Return the lines of a message and the comments below them, removing what is written from `queue`.

    `around` is the comment of the block or file that contains the message. `plain` returns the message's
    lines, for one with no comment inside.
    """
    is_plain = prefix not in queue.blocks
    lines = plain(message, indent) if is_plain else []
    after = False
    for (_, name, is_repeated, text_of, lines_of), value in () if is_plain else _in_order(message):
        for index, item in enumerate(value if is_repeated else (value,)):
            path = f"{prefix}{name}[{index}]" if is_repeated else f"{prefix}{name}"
            comment = queue.pop(path)
            if lines and (after or (comment.is_apart and not prefix)):
                lines.append("")
            lines += _comment_lines(comment.above, indent)
            if text_of is None:
                lines += _commented_block(name, item, path, indent, queue, comment, lines_of)
            elif comment.below or comment.closing:
                raise PrototxtError(
                    path, "has a comment below it, but is not a block", "put the comment above"
                )
            else:
                lines.append(f"{indent}{name}: {text_of(item)}{_beside(comment.beside)}")
            lines += _comment_lines(comment.after, indent)
            after = bool(comment.after)
    if lines and around.below and (after or (around.is_apart and not prefix)):
        lines.append("")
    return lines + _comment_lines(around.below, indent)


def _commented_block(
    name: str,
    message: Message,
    path: str,
    indent: str,
    queue: _CommentQueue,
    comment: Comment,
    plain: _LinesOf,
) -> list[str]:
    """Return a block with its comments; it stays on one line if it fits and has no comment inside."""
    before = queue.written
    inner = _body(message, f"{path}.", f"{indent}  ", queue, comment, plain)
    beside, closing = _beside(comment.beside), _beside(comment.closing)
    if queue.written == before and not comment.below and not (beside and closing):
        is_short = not inner or _is_one_scalar(inner)
        if is_short or comment.is_inline:
            inline = f"{indent}{' '.join([name, '{', *(line.strip() for line in inner), '}'])}"
            if is_short or len(inline) <= _INLINE_WIDTH:
                return [f"{inline}{beside}{closing}"]
    return [f"{indent}{name} {{{beside}", *inner, f"{indent}}}{closing}"]


def _plain_body(message: Message, indent: str) -> list[str]:
    """Return the lines of a message without comments: a faster `_body`, where most of the time is spent."""
    lines: list[str] = []
    for (_, name, is_repeated, text_of, lines_of), value in _in_order(message):
        if text_of is None:
            for item in value if is_repeated else (value,):
                lines += _block(name, lines_of(item, f"{indent}  "), indent)
        elif is_repeated:
            lines += [f"{indent}{name}: {text_of(item)}" for item in value]
        else:
            lines.append(f"{indent}{name}: {text_of(value)}")
    return lines


# The fields in which layers of one kind differ, by their tags on the wire (field numbers 1 to 4).
_NAME_FIELDS = {0x0A: "name", 0x12: "type", 0x1A: "bottom", 0x22: "top"}


def _layer_body(layer: Message, indent: str) -> list[str]:
    """Return the lines of a layer, caching those that do not depend on its names.

    A net has few kinds of layers, whose instances differ only in their names. In binary form the names come
    first, each as a tag, a length and text; the rest is the kind. A name of more than 127 bytes, whose length
    takes two bytes, counts as part of the kind, and so does everything after it.
    """
    data = layer.SerializePartialToString()
    lines: list[str] = []
    start, size = 0, len(data)
    while start < size and data[start] in _NAME_FIELDS and data[start + 1] < 0x80:
        end = start + 2 + data[start + 1]
        lines.append(f"{indent}{_NAME_FIELDS[data[start]]}: {_name_text(data[start + 2 : end].decode())}")
        start = end
    if size - start > _LARGE_KIND_BYTES:
        return _plain_body(layer, indent)
    cls: Callable[[], Message] = type(layer)
    return lines + _kind_body(cls, data[start:], indent) if start < size else lines


_name_text = functools.lru_cache(maxsize=4096)(string_text)


@functools.lru_cache(maxsize=1024)
def _kind_body(cls: Callable[[], Message], data: bytes, indent: str) -> list[str]:
    kind = cls()
    kind.MergeFromString(data)
    return _plain_body(kind, indent)


def _block(name: str, lines: list[str], indent: str) -> list[str]:
    """Return a block with the given lines, on one line if it holds a single scalar."""
    if not lines:
        return [f"{indent}{name} {{ }}"]
    if _is_one_scalar(lines):
        return [f"{indent}{name} {{ {lines[0].lstrip()} }}"]
    return [f"{indent}{name} {{", *lines, f"{indent}}}"]


def _is_one_scalar(lines: list[str]) -> bool:
    return len(lines) == 1 and lines[0][-1] != "}"


def _comment_lines(texts: tuple[str, ...], indent: str) -> list[str]:
    return [f"{indent}{comment_line(text)}" for text in texts]


def _beside(text: str) -> str:
    return f" {comment_line(text)}" if text else ""
