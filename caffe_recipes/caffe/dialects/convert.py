"""Convert a solver or a net of another Caffe to ours, field by field, where ours has an equal one.

A field that has its default, or that changes only speed, memory or the format of files, is dropped. For any
other field that our Caffe lacks there is one error, with file and line.

Sources: `caffe.proto` of NVIDIA/caffe and BVLC/caffe; NVIDIA's batch_norm_layer.cpp, batch_norm_layer.cu and
cudnn_batch_norm_layer.cu for the rates of a BatchNorm, which it sets itself, for use_global_stats, which none
of them reads after setup, and for the least eps; its data_layer.cpp for shuffle.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.dialects import TITLES, find_counterpart, find_dialect, names_of
from caffe_recipes.caffe.dialects.check import BATCH_SIZE, find_meaning_differences
from caffe_recipes.caffe.dialects.schema import describe_name, share_schema, to_any, to_ours
from caffe_recipes.caffe.dialects.unsupported_names import FIELDS
from caffe_recipes.caffe.joined_nets import JoinedDocument, join_documents
from caffe_recipes.caffe.layer_types.normalization import has_own_scale
from caffe_recipes.caffe.prototxt import LAYER, Document, is_kind
from caffe_recipes.caffe.shapes import select_layers
from caffe_recipes.caffe.text.parser import ForeignName
from caffe_recipes.caffe.upgrade import as_current_net
from caffe_recipes.errors import PrototxtError, join_errors

# Fields of ours that are equal to those of another Caffe, by dialect, message and name.
_EQUAL: Mapping[tuple[str, str, str], str] = {
    # It is false here: `_split_norms` has replaced those that are true.
    ("nvcaffe", "BatchNormParameter", "scale_bias"): "use_weight_bias",
}
# Fields that a phase of a recipe has in another place.
_ELSEWHERE: Mapping[tuple[str, str, str], str] = {("bvlc", "SolverParameter", "weights"): "`weights`"}
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


def convert_nets(
    documents: Sequence[Document[Any]], dialect: str, notes: list[str] | None = None
) -> Document[pb.NetParameter]:
    """Return the net of one file, or that of a train_net and a test_net as one, in our schema.

    Nets in the old format are upgraded, as Caffe does. `notes` gets a line for each kind of change. Raises
    PrototxtError for a file that is not a net, and for nets that cannot be upgraded, converted or joined.
    """
    notes = [] if notes is None else notes
    for document in documents:
        if not is_kind(document.message, pb.NetParameter):
            raise PrototxtError(document.path, "is not a net", "name the prototxt of a net")
        if document.message.layers:
            notes.append(f"{Path(document.path).name} is in the old format: upgraded, as Caffe does")
    current = [_as_current(document) for document in documents]
    names = {layer.name for document in current for layer in document.message.layer}
    nets = []
    for document in current:
        net, more = convert_document(document, dialect, names)
        nets.append(net)
        notes += [note for note in more if note not in notes]
    return nets[0] if len(nets) == 1 else join_documents(*nets)


def _as_current(document: Document[Any]) -> Document[Any]:
    try:
        return as_current_net(document)
    except PrototxtError as error:
        raise error.reworded(where=document.where(error.where)) from None


def convert_document(
    given: Document[Any],
    dialect: str,
    names: Collection[str] = (),
    refused: list[PrototxtError] | None = None,
) -> tuple[Document[Any], list[str]]:
    """Return a document of a dialect in our schema, and notes on each kind of field that changes.

    If it changes, the document keeps the message with all its fields in `given`. A net must be in the current
    format; a layer that is added to it gets none of `names`. Raises PrototxtError for the fields that ours
    has no equal of; if the list `refused` is given, it gets an error for each instead, and they are left out.
    """
    found: dict[tuple[str, str], PrototxtError] = {}  # by owner and name
    converted = deepcopy(to_any(given.message))
    notes: dict[str, str] = {}
    placed = given
    if dialect == "nvcaffe" and is_kind(converted, pb.NetParameter):
        placed = replace(given, offsets=_split_norms(converted, given.offsets, names, notes))
    for path, note in _convert(converted, "", placed, dialect, found):
        notes.setdefault(note, path)
    if found and refused is None:
        raise join_errors([*found.values()])
    if refused is not None:
        refused.extend(found.values())
    if not notes:
        return replace(given, message=to_ours(given.message)), []
    document = replace(placed, message=to_ours(converted), given=to_any(given.message))
    in_order = sorted(notes.items(), key=lambda one: placed.offsets.get(one[1], -1))
    return document, [f"{placed.where(path)}: {note}" for note, path in in_order]


def _split_norms(
    net: pb.NetParameter, offsets: Mapping[str, int], names: Collection[str], notes: dict[str, str]
) -> Mapping[str, int]:
    """Put a Scale after each BatchNorm of nvcaffe that scales, in place; return the offsets of the new net.

    Ours scales only in its MKL-DNN engine, and a Scale means the same in every engine.
    """
    layers, places = list(net.layer), []
    taken = {*names, *(layer.name for layer in layers)}
    scaling = {i for i, layer in enumerate(layers) if layer.type == "BatchNorm" and has_own_scale(layer)}
    if not scaling:
        return offsets
    del net.layer[:]
    for index, layer in enumerate(layers):
        places.append(index)
        made = net.layer.add()
        made.CopyFrom(layer)
        if index not in scaling:
            continue
        places.append(index)
        _add_scale(net, made, taken)
        path = f"layer[{len(net.layer) - 2}].type"
        notes.setdefault("a Scale layer after it holds the scale and shift of a BatchNorm", path)
    new: dict[str, int] = {}
    for path, offset in offsets.items():
        match = LAYER.match(path)
        moved = [at for at, index in enumerate(places) if match and index == int(match[1])]
        for at in moved or [-1]:
            new[f"layer[{at}]{path[match.end() :]}" if match and moved else path] = offset
    return new


_STATISTICS = 3  # the first blobs of a BatchNorm


def _add_scale(net: pb.NetParameter, layer: Any, names: Collection[str]) -> None:  # noqa: ANN401
    """Move the scale and shift of a BatchNorm, the last layer of a net, to a Scale with a name of its own.

    BatchNorms of one name, as for TRAIN and for TEST, get Scales of one name, which share their blobs.
    """
    norm = layer.batch_norm_param
    name = f"{layer.name}_scale"
    while name in names:
        name += "_"
    made = net.layer.add(name=name, type="Scale", bottom=layer.top, top=layer.top)
    made.include.extend(layer.include)
    made.exclude.extend(layer.exclude)
    made.scale_param.bias_term = True
    for field, theirs in (("filler", "scale_filler"), ("bias_filler", "bias_filler")):
        if norm.HasField(theirs):
            getattr(made.scale_param, field).CopyFrom(getattr(norm, theirs))
        norm.ClearField(theirs)
    norm.ClearField("scale_bias")
    shared = layer.param[_STATISTICS:]
    if any(param.name or param.share_mode for param in shared):
        made.param.extend(shared)
        for param in made.param:  # nvcaffe sets the rates of scale and shift to 1
            param.ClearField("lr_mult")
            param.ClearField("decay_mult")
    del layer.param[_STATISTICS:]


def _convert(
    message: Message,
    prefix: str,
    given: Document[Any],
    dialect: str,
    refused: dict[tuple[str, str], PrototxtError],
) -> Iterator[tuple[str, str]]:
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
                    yield from _convert(item, f"{at}.", given, dialect, refused)
                elif field.enum_type is not None:
                    yield from _convert_value(message, field, item, at, given, dialect, refused)
            continue
        name = f"{owner}.{field.name}"
        equal = _EQUAL.get((dialect, owner, field.name))
        if equal is not None:
            _set(message, equal, value)
            yield path, f"{name} is {equal} here"
        elif (dialect, owner, field.name) in _ELSEWHERE:
            yield path, f"{name} is {_ELSEWHERE[dialect, owner, field.name]} of the phase"
        elif _has_default(field, owner, value, dialect):
            yield path, f"drops {name}, which has its default"
        elif field.name in _IDLE.get((dialect, owner), ()):
            yield path, f"drops {name}, {_IS_IDLE}"
        else:
            _refuse(refused, given.where(path), ForeignName(owner, field.name, 0), dialect)
        message.ClearField(field.name)


def _convert_value(
    message: Message,
    field: FieldDescriptor,
    number: int,
    path: str,
    given: Document[Any],
    dialect: str,
    refused: dict[tuple[str, str], PrototxtError],
) -> Iterator[tuple[str, str]]:
    """Drop an engine that our Caffe lacks; add any other such value of an enum to `refused`."""
    assert field.enum_type is not None
    owner = field.enum_type.full_name.removeprefix("caffe.")
    name = field.enum_type.values_by_number[number].name
    if name in names_of(owner):
        return
    if field.name != "engine":
        _refuse(refused, given.where(path), ForeignName(owner, name, 0, "enum value"), dialect)
        return
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


def _refuse(
    refused: dict[tuple[str, str], PrototxtError], where: str, name: ForeignName, dialect: str
) -> None:
    """Add the error for a name, unless it has one already."""
    refused.setdefault((name.owner, name.name), _refusal(where, name, dialect))


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
    for difference in find_meaning_differences(message, owner, dialect):
        if difference.name in ("BatchNorm", BATCH_SIZE):
            yield difference.field, f"{difference.texts[0]}: {difference.texts[1]}"
    if owner == "LayerParameter" and message.type == "BatchNorm":
        yield from _fix_rates(message)
    if owner == "BatchNormParameter":
        least = message.DESCRIPTOR.fields_by_name["eps"].default_value
        if message.HasField("use_global_stats"):
            message.ClearField("use_global_stats")
            yield "use_global_stats", "drops use_global_stats, which nvcaffe ignores"
        if message.eps < least:
            message.ClearField("eps")
            yield "eps", f"drops eps, since nvcaffe uses at least {least:.6g}"


def _fix_rates(layer: Any) -> Iterator[tuple[str, str]]:  # noqa: ANN401
    """Write the rates of a BatchNorm's statistics, which nvcaffe sets to 0 itself."""
    before = deepcopy(layer)
    for param in layer.param[:_STATISTICS]:
        for rate in ("lr_mult", "decay_mult"):
            if getattr(param, rate) != 0:
                setattr(param, rate, 0)
    if layer != before:
        yield "param[0]", "writes 0 for the rates of a BatchNorm's statistics, as nvcaffe does itself"


def with_own_fields(net: pb.NetParameter, document: Document[Any]) -> pb.NetParameter:
    """Return a recipe's net with the fields of its own dialect, as `document`, which it comes from, has them.

    All layers but those of type Data are the given ones; those keep the fields that our Caffe lacks. A layer
    that two joined nets share, and the net itself, have the fields of the training net.
    """
    parts = document.nets if isinstance(document, JoinedDocument) else (document,)
    if not any(part.given for part in parts):
        return net
    train, test = (part.given or to_any(part.message) for part in (parts[0], parts[-1]))
    train, test = share_schema(train, test)
    train, ours = share_schema(train, to_any(net))
    test = type(train).FromString(test.SerializePartialToString())
    assert is_kind(train, pb.NetParameter) and is_kind(test, pb.NetParameter)
    assert is_kind(ours, pb.NetParameter)
    if len(parts) == 1:
        own = [_by_name(train.layer)]
    else:
        own = [_by_name(select_layers(train, pb.TRAIN)), _by_name(select_layers(test, pb.TEST))]
    result = deepcopy(train)
    result.ClearField("layer")
    for layer in ours.layer:
        phases = [rule.phase for rule in layer.include]
        its = [own[phases[0]]] if len(own) > 1 and phases else own
        key = layer.name, layer.type
        if layer.type == "Data":
            data = its[0].get(key, [])
            same = [one for one in data if [rule.phase for rule in one.include] == phases]  # or of both
            made = result.layer.add()
            made.CopyFrom(layer)
            for one in (same or data)[:1]:
                _add_foreign(made, one)
            continue
        given = [table[key].pop(0) for table in its if table.get(key)]
        if given:  # or else a Scale that the conversion added
            made = result.layer.add()
            made.CopyFrom(given[0])
            del made.include[:], made.exclude[:]
            made.include.extend(layer.include)
            made.exclude.extend(layer.exclude)
    return result


def _by_name(layers: Iterable[Any]) -> dict[tuple[str, str], list[Any]]:
    """Return layers by name and type, in their order."""
    found: dict[tuple[str, str], list[Any]] = {}
    for layer in layers:
        found.setdefault((layer.name, layer.type), []).append(layer)
    return found


def _add_foreign(message: Message, given: Message) -> None:
    """Add the fields of `given` that our Caffe does not have, in blocks that both have."""
    ours = names_of(given.DESCRIPTOR.full_name.removeprefix("caffe."))
    for field, value in given.ListFields():
        if field.name not in ours:
            _set(message, field.name, value)
        elif isinstance(value, Message) and message.HasField(field.name):
            _add_foreign(getattr(message, field.name), value)
