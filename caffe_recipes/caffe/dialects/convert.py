"""Convert a solver or a net of another Caffe to ours, field by field, where ours has an equal one.

A field that has its default, or that changes only speed, memory or the format of files, is dropped. For any
other field that our Caffe lacks there is one error, with file and line.

Sources: `caffe.proto` of NVIDIA/caffe and BVLC/caffe; NVIDIA's batch_norm_layer.cpp for the rates of a
BatchNorm, which it sets itself, and its data_layer.cpp for shuffle.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.dialects import find_counterpart, find_dialect, names_of
from caffe_recipes.caffe.dialects.check import TITLES, find_meaning_differences
from caffe_recipes.caffe.dialects.forks import FIELDS
from caffe_recipes.caffe.dialects.schema import describe_name, share_schema, to_any, to_ours
from caffe_recipes.caffe.prototxt import Document, is_kind
from caffe_recipes.caffe.text.parser import ForeignName
from caffe_recipes.errors import PrototxtError

# Fields of ours that are equal to those of another Caffe, by dialect, message and name.
_EQUAL: Mapping[tuple[str, str, str], str] = {
    ("nvcaffe", "BatchNormParameter", "scale_bias"): "use_weight_bias",
    ("nvcaffe", "BatchNormParameter", "scale_filler"): "filler",
}
_READING = ("cache", "precache", "threads")
# Fields that change only speed, memory or the format of files, by dialect and message.
_IDLE: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("bvlc", "SolverParameter"): ("layer_wise_reduce",),
    ("nvcaffe", "SolverParameter"): ("store_blobs_in_old_format",),
    ("nvcaffe", "NetParameter"): ("default_conv_algos_override", "eltwise_mem_sharing", "reduce_buckets"),
    ("nvcaffe", "DataParameter"): (*_READING, "parser_threads"),
    ("nvcaffe", "ImageDataParameter"): _READING,
    ("nvcaffe", "ConvolutionParameter"): ("conv_algos_override", "cudnn_convolution_algo_seeker"),
    ("nvcaffe", "TransformationParameter"): ("use_gpu_transform",),
}
_IS_IDLE = "which changes only speed, memory or files"


def convert_document(given: Document[Any], dialect: str) -> tuple[Document[Any], list[str]]:
    """Return a document of a dialect in our schema, and notes on each kind of field that changes.

    If it changes, the document keeps the message with all its fields in `given`. A net must be in the current
    format. Raises PrototxtError for the first field that ours has no equal of.
    """
    converted = deepcopy(to_any(given.message))
    notes: dict[str, str] = {}
    for path, note in _convert(converted, "", given, dialect):
        notes.setdefault(note, path)
    if not notes:
        return replace(given, message=to_ours(given.message)), []
    document = replace(given, message=to_ours(converted), given=to_any(given.message))
    in_order = sorted(notes.items(), key=lambda one: given.offsets.get(one[1], -1))
    return document, [f"{given.where(path)}: {note}" for note, path in in_order]


def _convert(message: Message, prefix: str, given: Document[Any], dialect: str) -> Iterator[tuple[str, str]]:
    """Convert a message in place; yield the path and a description of each change."""
    owner = message.DESCRIPTOR.full_name.removeprefix("caffe.")
    ours = names_of(owner)
    yield from ((f"{prefix}{path}", note) for path, note in _adjust(message, owner, dialect))
    for field, value in message.ListFields():
        path = f"{prefix}{field.name}{'[0]' if field.is_repeated else ''}"
        if field.name in ours:
            for index, item in enumerate(value if field.is_repeated else [value]):
                at = f"{prefix}{field.name}{f'[{index}]' if field.is_repeated else ''}"
                if isinstance(item, Message):
                    yield from _convert(item, f"{at}.", given, dialect)
                elif field.enum_type is not None:
                    yield from _convert_value(message, field, item, at, given, dialect)
            continue
        name = f"{owner}.{field.name}"
        equal = _EQUAL.get((dialect, owner, field.name))
        if equal is not None:
            _set(message, equal, value)
            yield path, f"{name} is {equal} here"
        elif _has_default(field, owner, value, dialect):
            yield path, f"drops {name}, which has its default"
        elif field.name in _IDLE.get((dialect, owner), ()):
            yield path, f"drops {name}, {_IS_IDLE}"
        else:
            raise _refusal(given.where(path), ForeignName(owner, field.name, 0), dialect)
        message.ClearField(field.name)


def _convert_value(
    message: Message, field: FieldDescriptor, number: int, path: str, given: Document[Any], dialect: str
) -> Iterator[tuple[str, str]]:
    """Drop an engine that our Caffe lacks; raise PrototxtError for any other such value of an enum."""
    assert field.enum_type is not None
    owner = field.enum_type.full_name.removeprefix("caffe.")
    name = field.enum_type.values_by_number[number].name
    if name in names_of(owner):
        return
    if field.name != "engine":
        raise _refusal(given.where(path), ForeignName(owner, name, 0, "enum value"), dialect)
    message.ClearField(field.name)
    yield path, f"drops {owner} {name}, {_IS_IDLE}"


def _set(message: Message, name: str, value: Any) -> None:  # noqa: ANN401 - any field's value
    if isinstance(value, Message):
        getattr(message, name).CopyFrom(value)
    else:
        setattr(message, name, value)


def _has_default(field: FieldDescriptor, owner: str, value: Any, dialect: str) -> bool:  # noqa: ANN401
    fork = FIELDS.get((owner, field.name))
    if fork is not None and fork.default:
        return bool(value == fork.default)
    is_known = find_dialect(dialect).knows(owner, field.name)
    is_single = not field.is_repeated and field.message_type is None
    return bool(is_known and is_single and value == field.default_value)


def _refusal(where: str, name: ForeignName, dialect: str) -> PrototxtError:
    what, hint = describe_name(name)
    if not find_dialect(dialect).knows(name.owner, name.name):
        return PrototxtError(where, what, hint)
    here = find_counterpart("surfsara", name.owner, name.name)
    what = f"{name.owner}.{name.name} of {TITLES[dialect]} has no equal in a recipe"
    return PrototxtError(where, what, f"remove it; here {here}" if here else "remove it")


def _adjust(message: Any, owner: str, dialect: str) -> Iterator[tuple[str, str]]:  # noqa: ANN401
    """Write what a dialect does without being asked; yield the path and a description of each change."""
    if dialect != "nvcaffe":
        return
    if owner == "SolverParameter" and message.test_interval and not message.HasField("test_initialization"):
        message.test_initialization = False
        yield "test_interval", "gets test_initialization: false, nvcaffe's default"
    if owner == "DataParameter" and message.shuffle and not message.cache:
        message.ClearField("shuffle")
        yield "shuffle", "drops shuffle, which nvcaffe ignores without cache"
    if owner == "LayerParameter" and message.type == "BatchNorm":
        for difference in find_meaning_differences(message, owner, dialect):
            yield "type", f"{difference.texts[0]}: {difference.texts[1]}"
        yield from _fix_rates(message)


_STATISTICS = 3  # the first blobs of a BatchNorm


def _fix_rates(layer: Any) -> Iterator[tuple[str, str]]:  # noqa: ANN401
    """Write the rates of a BatchNorm that nvcaffe sets: 0 for the statistics, 1 for scale and shift."""
    before = deepcopy(layer)
    for index, param in enumerate(layer.param):
        for rate in ("lr_mult", "decay_mult"):
            if index < _STATISTICS and getattr(param, rate) != 0:
                setattr(param, rate, 0)
            elif index >= _STATISTICS and getattr(param, rate) != 1:
                setattr(param, rate, 1)
    if layer != before:
        yield "param[0]", "writes the rates of a BatchNorm's param, which nvcaffe sets itself: 0 0 0 1 1"


def with_own_fields(net: pb.NetParameter, given: Message) -> Message:
    """Return a recipe's net with the fields of its own dialect, as they are in the `given` message of it.

    All layers but those of type Data are the given ones; those keep the fields that our Caffe lacks.
    """
    theirs, ours = share_schema(given, to_any(net))
    assert is_kind(theirs, pb.NetParameter) and is_kind(ours, pb.NetParameter)
    result = deepcopy(theirs)
    result.ClearField("layer")
    others = iter([layer for layer in theirs.layer if layer.type != "Data"])
    sources = [layer for layer in theirs.layer if layer.type == "Data"]
    for layer in ours.layer:
        made = result.layer.add()
        made.CopyFrom(layer if layer.type == "Data" else next(others))
        same = [one for one in sources if one.name == made.name and _phases(one) in ([], _phases(made))]
        if layer.type == "Data" and same:
            _add_foreign(made, same[0])
    return result


def _phases(layer: Any) -> list[int]:  # noqa: ANN401
    return [rule.phase for rule in layer.include]


def _add_foreign(message: Message, given: Message) -> None:
    """Add the fields of `given` that our Caffe does not have, in blocks that both have."""
    ours = names_of(given.DESCRIPTOR.full_name.removeprefix("caffe."))
    for field, value in given.ListFields():
        if field.name not in ours:
            _set(message, field.name, value)
        elif isinstance(value, Message) and message.HasField(field.name):
            _add_foreign(getattr(message, field.name), value)
