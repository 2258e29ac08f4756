"""Read, check and write caffemodels and solverstates; read mean images.

If `--weights` names an empty file, a folder or an HTML page, Caffe trains from random weights and returns 0.
The functions for weights raise WeightsError instead.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TypeVar, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, EncodeError, Message

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.hdf5_weights import MAGIC, HDF5FileError, parse_state, parse_weights
from caffe_recipes.caffe.layer_types.dimensions import MAX_AXES, Images, Shape, product
from caffe_recipes.caffe.packed_blobs import packed_data
from caffe_recipes.caffe.shapes import infer_shapes, show_shape
from caffe_recipes.caffe.upgrade import V1_TYPES
from caffe_recipes.errors import DataError, InputError, WeightsError, hint_for
from caffe_recipes.files.atomic_writes import write_whole
from caffe_recipes.files.bounded_reads import NotAFileError, load_within, open_file
from caffe_recipes.limits import hint_at_limit, limit
from caffe_recipes.wording import describe_count

M = TypeVar("M", bound=Message)

_LARGEST_BYTES = 2**31 - 1  # protobuf's limit for a binary message

# Kinds of wrong files: a pattern that matches the start of the file, its description, and the hint.
_BINARIES = [
    (rb"\x1f\x8b|BZh|\xfd7zXZ|PK\x03\x04", "a compressed archive", "unpack it first"),
]
_TEXTS = [
    (rb"version https://git-lfs", "a Git LFS pointer", "run `git lfs pull`"),
    (rb"(?i)\s*(<!doctype|<html|<\?xml|<head)", "an HTML page", "download it again"),
    (rb"(?s).*?\b(layers?|\w+_param)\s*:?\s*\{", "a prototxt of a net", "give the binary file"),
    (rb"(?s).*?\b(net|base_lr|max_iter)\s*:", "a prototxt of a solver", "give the binary file"),
    (rb"", "a text file", "give the binary file"),
]
# Protobuf's wire types: the length-delimited one, and those of fixed size, with their sizes in bytes.
_LENGTH = 2
_FIXED = {1: 8, 5: 4}
# Types whose values take no more bytes in memory than in the file.
_WIDE = frozenset(
    (
        FieldDescriptor.TYPE_BYTES,
        FieldDescriptor.TYPE_STRING,
        FieldDescriptor.TYPE_FLOAT,
        FieldDescriptor.TYPE_DOUBLE,
        FieldDescriptor.TYPE_FIXED32,
        FieldDescriptor.TYPE_FIXED64,
    )
)

# Of a binary file. Text has tabs, ends of lines and of pages.
CONTROL_CHARACTER = re.compile(rb"[\x00-\x08\x0e-\x1f]")


def load_weights(path: str | Path, sha256: str = "") -> pb.NetParameter:
    """Read a caffemodel, binary or in HDF5, converting V1 layers to `layer` with its blobs.

    Raises WeightsError, which names the path, if the file is missing, empty, truncated or of another kind, if
    it contains no blobs, if the number of values of a blob does not match its shape, or if the file does not
    have the digest that model.json gives.
    """
    data = _read(path, "caffemodel")
    if sha256 and hashlib.sha256(data).hexdigest() != sha256:
        what = "does not have the weights_sha256 of the model.json beside it: these are other weights"
        raise WeightsError(
            path, what, "copy both again from their run, or give the files with --net and --weights"
        )
    net = _parse_hdf5(data, parse_weights, path) or _parse(data, pb.NetParameter, path)
    if net is None or not (net.layer or net.layers):
        raise WeightsError(path, *_diagnose(data, "caffemodel", path))
    for old in net.layers:
        if old.HasField("layer"):  # the format from before 2013
            net.layer.add(name=old.layer.name, bottom=old.bottom, top=old.top, blobs=old.layer.blobs)
            continue
        kind = V1_TYPES[pb.V1LayerParameter.LayerType.Name(old.type)]
        net.layer.add(name=old.name, type=kind, bottom=old.bottom, top=old.top, blobs=old.blobs)
    del net.layers[:]
    if not any(layer.blobs for layer in net.layer):
        raise WeightsError(path, "has layers but no learned blobs", "give a trained caffemodel")
    for layer in net.layer:
        layer.name = _decoded(layer.name)
        for index, blob in enumerate(layer.blobs):
            _check_length(path, f"layer '{layer.name}', blob {index}", blob)
    return net


def _decoded(text: str | bytes) -> str:
    """Return a text of a message; protobuf gives bytes for one that is not UTF-8."""
    return text if isinstance(text, str) else text.decode(errors="replace")


def load_solverstate(path: str | Path) -> pb.SolverState:
    """Read a solverstate: its iteration, its history, and the name of its caffemodel.

    Raises WeightsError, which names the path, for the same reasons as load_weights, and if `learned_net` is
    missing, since Caffe would then resume from random weights.
    """
    data = _read(path, "solverstate")
    state = _parse_hdf5(data, parse_state, path) or _parse(data, pb.SolverState, path)
    if state is None or not (state.HasField("iter") and state.history):
        raise WeightsError(path, *_diagnose(data, "solverstate", path))
    if state.iter < 0:
        raise WeightsError(
            path, f"its iteration is negative ({state.iter})", "resume from another solverstate"
        )
    if not state.learned_net or isinstance(state.learned_net, bytes):
        what = (
            "the name of its learned_net is not UTF-8" if state.learned_net else "does not name a learned_net"
        )
        raise WeightsError(path, what, "resume from another solverstate")
    for index, blob in enumerate(state.history):
        _check_length(path, f"history {index}", blob)
    return state


def save_message(message: Message, path: str | Path) -> None:
    """Write a binary message atomically: after a crash, `path` holds either the message or its old content.

    Raises WeightsError if the file cannot be written.
    """
    save_bytes(serialize(message), path)


def serialize(message: Message) -> bytes:
    """Return the bytes of a message of less than 2 GiB. Raises MemoryError if there is no room for them."""
    try:
        return message.SerializeToString(deterministic=True)
    except EncodeError:
        raise MemoryError from None


def save_bytes(data: bytes, path: str | Path) -> None:
    """Write a file as save_message does."""
    try:
        write_whole({Path(path): data}, is_synced=True)
    except OSError as error:
        hint = hint_for(error, "check its folder")
        raise WeightsError(path, f"cannot be written: {error.strerror}", hint) from None


def check_weights(weights: pb.NetParameter, net: pb.NetParameter) -> list[str]:
    """Return the mismatches between a caffemodel and the layers of `net` in TRAIN; empty if it fits.

    Each learned layer must have its blobs, with finite values and the shapes that the net implies. Layers of
    the caffemodel that the net lacks are listed too, since Caffe silently ignores them. Raises PrototxtError
    for a net whose own shapes do not fit.
    """
    learned = {layer.layer.name: layer.learned for layer in infer_shapes(net, pb.TRAIN).layers}
    given = {layer.name: layer for layer in weights.layer if layer.blobs}
    missing = [name for name, blobs in learned.items() if blobs and name not in given]
    misfits = [f"layer '{name}' is missing" for name in missing]
    for name, layer in given.items():
        if name not in learned:
            misfits.append(f"layer '{name}' is not in the net")
            continue
        misfits += _compare_shapes(layer, learned[name])
        for index, blob in enumerate(layer.blobs):
            misfits += _check_finite(f"layer '{name}', blob {index}", blob)
    return misfits


def check_solverstate(state: pb.SolverState, net: pb.NetParameter, *, at_most_iter: int) -> list[str]:
    """Return the mismatches between a solverstate and the training of `net`; empty if it fits.

    Its iteration must be from 1 to `at_most_iter`. Its history must have a blob of finite values for each
    learned parameter, with its shape; a parameter that layers share counts once. AdaDelta, Adam and RMSProp
    keep two blobs per parameter: the first blobs of all parameters, then the second ones. Raises
    PrototxtError for a net whose own shapes do not fit.
    """
    misfits = []
    if not 0 < state.iter <= at_most_iter:
        misfits.append(f"its iteration is {state.iter:,}; expected 1 to {at_most_iter:,}")
    wanted = _learned_params(net)
    if wanted is not None and len(state.history) not in (len(wanted), 2 * len(wanted)):
        blobs = describe_count(len(state.history), "blob")
        what = f"it has {blobs} of history, but the net has {describe_count(len(wanted), 'parameter')}"
        return [*misfits, what]
    for index, blob in enumerate(state.history):
        where = f"history {index}"
        if wanted is not None and not fits_shape(blob, wanted[index % len(wanted)]):
            shapes = show_shape(blob_shape(blob)), show_shape(wanted[index % len(wanted)])
            misfits.append(f"{where} is {shapes[0]}, not {shapes[1]}")
        misfits += _check_finite(where, blob)
    return misfits


def weights_bytes(net: pb.NetParameter, images: Images = lambda source: None) -> int | None:
    """Return the bytes of a net's weights in float32; None if a shape depends on unavailable data.

    `images` returns the (channels, height, width) of a source's images, or None.

    A caffemodel also contains names and layer parameters: 102,441,076 bytes for ResNet-50 become 102,466,903.
    """
    layers = infer_shapes(net, pb.TRAIN, images=images).layers
    if any(layer.learned is None for layer in layers):
        return None
    counts = [product(shape) for layer in layers for shape in layer.learned or ()]
    return None if None in counts else 4 * sum(count for count in counts if count is not None)


def is_legacy(blob: pb.BlobProto) -> bool:
    """Return whether a blob has the format from before 2014: num, channels, height and width as its shape.

    A blob with neither these nor `shape` is a single value, without axes.
    """
    return any(blob.HasField(field) for field in ("num", "channels", "height", "width"))


def blob_shape(blob: pb.BlobProto) -> tuple[int, ...]:
    """Return a blob's shape, which has four dimensions in the format from before 2014."""
    if is_legacy(blob):
        return (blob.num, blob.channels, blob.height, blob.width)
    return tuple(blob.shape.dim)


def blob_values(blob: pb.BlobProto) -> Sequence[float]:
    """Return a blob's values in row-major order: `double_data` if present, as in Caffe, or else `data`."""
    return blob.double_data or blob.data


def load_mean(
    path: str | Path, name: str = "mean file", hint: str = "make it with compute_image_mean"
) -> pb.BlobProto:
    """Load a mean image, as compute_image_mean writes it, or what `name` says. Raises DataError."""
    data = load_within(path, "record-bytes", DataError, f"give the path to a {name}")
    try:
        blob = parse_message(data, pb.BlobProto)
    except ValueError:
        blob = pb.BlobProto()
    shape = mean_shape(blob)
    if len(shape) != 3 or min(shape) < 1 or math.prod(shape) != len(blob_values(blob)):
        raise DataError(path, f"is not a {name}", hint)
    if not math.isfinite(sum(blob_values(blob))):
        raise DataError(path, "has values that are not finite", hint)
    return blob


def mean_shape(blob: pb.BlobProto) -> tuple[int, ...]:
    """Return the (channels, height, width) of a mean image."""
    return blob_shape(blob)[-3:]


def show_image(shape: Sequence[int]) -> str:
    """Return the shape of an image as text.

    >>> show_image((3, 480, 640))
    '640x480 pixels and 3 channels'
    """
    channels, height, width = shape
    return f"{width}x{height} pixels and {describe_count(channels, 'channel')}"


def check_weights_files(paths: Sequence[str | Path]) -> None:
    """Raise WeightsError for the first file of -weights that load_weights does not read.

    Called before a net is set up, whose log would hide the error. Reading 100 MB takes 0.15 s.
    """
    for path in paths:
        try:
            load_weights(path)
        except WeightsError as error:
            unsplit = ",".join(map(str, paths))
            if os.path.lexists(path) or not os.path.isfile(unsplit):  # noqa: PTH113 - false for any text
                raise
            hint = "-weights is split at commas, as in Caffe; rename a file whose name has one"
            raise error.reworded(hint=hint) from None


@contextmanager
def _opened(path: str | Path, kind: str) -> Iterator[tuple[BinaryIO, int]]:
    """Open a file of weights; give it and its size."""
    hint = f"give the path to a {kind}"
    try:
        if Path(path).is_dir():
            raise WeightsError(path, "is a folder", hint)
        with open_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > _LARGEST_BYTES:
                raise NotAFileError
            if not size:
                raise WeightsError(path, "is empty", "copy it again: a complete snapshot is never empty")
            yield file, size
    except FileNotFoundError:
        raise WeightsError(path, "no such file", hint) from None
    except NotAFileError:
        what = f"is not a {kind}: expected a file of at most 2 GiB"
        raise WeightsError(path, what, hint) from None
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        reason = getattr(error, "strerror", None) or error
        raise WeightsError(path, f"cannot be read: {reason}", hint_for(error, hint)) from None


def _read(path: str | Path, kind: str) -> bytes:
    with _opened(path, kind) as (file, size):
        return file.read(size)


def parse_message(data: bytes, cls: type[M]) -> M:
    """Parse a binary message. Raises ValueError if it is malformed, or has more than `weights-fields` fields.

    Fields are counted first, since an empty layer takes 2 bytes in a file but 700 in memory.
    """
    count_fields(data, cast(Descriptor, cls.DESCRIPTOR), limit("weights-fields"))
    try:
        return cls.FromString(data)
    except DecodeError as error:
        raise ValueError("is not a valid message") from error


class TooManyFieldsError(ValueError):
    """A binary message has more fields than the limit `weights-fields`."""


def count_fields(data: bytes, descriptor: Descriptor, left: int) -> None:
    """Raise TooManyFieldsError if a message, with those nested in it, has more fields than `left`.

    Packed floats count as one field. Every byte of packed integers counts, since it may grow to 8 bytes. Data
    that is not a message is read as far as possible; the parser will refuse it.
    """
    pending = [(0, len(data), descriptor)]
    while pending:
        at, end, kind = pending.pop()
        known = kind.fields_by_number
        while at < end:
            left -= 1
            tag, at = _read_varint(data, at, end)
            field, wire = known.get(tag >> 3), tag & 7
            if wire == _LENGTH:
                size, at = _read_varint(data, at, end)
                if field is not None and field.message_type is not None:
                    pending.append((at, min(at + size, end), field.message_type))
                elif field is not None and field.type not in _WIDE:
                    left -= size
                at += size
            else:  # the start and end of a group have no payload
                at = _read_varint(data, at, end)[1] if wire == 0 else at + _FIXED.get(wire, 0)
            if left < 0:
                raise TooManyFieldsError


def _read_varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Read an integer of at most ten bytes; return it and the offset after it."""
    value = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            break
    return value, at


def _parse(data: bytes, cls: type[M], path: str | Path) -> M | None:
    try:
        return parse_message(data, cls)
    except TooManyFieldsError:
        what = f"has more than {limit('weights-fields'):,} layers, blobs, names and other fields"
        raise WeightsError(path, what, hint_at_limit("weights-fields")) from None
    except ValueError:
        return None


def _parse_hdf5(data: bytes, parse: Callable[[bytes], M], path: str | Path) -> M | None:
    """Return the message in an HDF5 file; None for other data."""
    if not data.startswith(MAGIC):
        return None
    try:
        return parse(data)
    except HDF5FileError as error:
        raise WeightsError(path, f"is an HDF5 file that {error.what}", error.hint) from None
    except InputError as error:
        raise WeightsError(path, f"is an HDF5 file, but {error.what}", error.hint) from None


def _diagnose(data: bytes, kind: str, path: str | Path) -> tuple[str, str]:
    """Return what is wrong with `data`, which is not a `kind`, and a hint."""
    head = data[:4096]
    for pattern, name, hint in _BINARIES if CONTROL_CHARACTER.search(head) else _TEXTS:
        if re.match(pattern, head):
            return f"is {name}, not a {kind}", hint
    state, net = _parse(data, pb.SolverState, path), _parse(data, pb.NetParameter, path)
    if kind != "solverstate" and state is not None and state.history:
        return f"is a solverstate, not a {kind}", f"give its caffemodel, {state.learned_net}"
    if kind != "caffemodel" and net is not None and (net.layer or net.layers):
        return f"is a caffemodel, not a {kind}", "give the solverstate, or use it with -weights"
    return f"is not a {kind}, or a truncated one ({len(data):,} bytes)", "copy it again and compare sizes"


def _check_length(path: str | Path, where: str, blob: pb.BlobProto) -> None:
    shape, count = blob_shape(blob), len(blob_values(blob))
    # Caffe aborts at more axes, and multiplying them could take arbitrarily long.
    if len(shape) > MAX_AXES or count != math.prod(shape) or min(shape, default=1) < 1:
        what = f"{where} has shape {show_shape(shape)} and {count:,} values"
        if len(shape) > MAX_AXES:
            what = f"{where} has {len(shape):,} axes, more than Caffe's {MAX_AXES}"
        raise WeightsError(path, what, "the file is damaged; copy it again")


def _learned_params(net: pb.NetParameter) -> list[Shape] | None:
    """Return the shapes of the parameters that a solver updates, in its order; None if one is unknown."""
    params: list[Shape] = []
    named: set[str] = set()
    for layer in infer_shapes(net, pb.TRAIN).layers:
        if layer.learned is None:
            return None
        for index, shape in enumerate(layer.learned):
            name = layer.layer.param[index].name if index < len(layer.layer.param) else ""
            if name not in named:
                params.append(shape)
            if name:
                named.add(name)
    return params


def _compare_shapes(layer: pb.LayerParameter, wanted: tuple[Shape, ...] | None) -> list[str]:
    if wanted is None:
        return []
    if len(layer.blobs) != len(wanted):
        blobs = describe_count(len(layer.blobs), "blob")
        return [f"layer '{layer.name}' has {blobs}, but the net needs {len(wanted)}"]
    return [
        f"layer '{layer.name}', blob {index} is {show_shape(blob_shape(blob))}, not {show_shape(shape)}"
        for index, (blob, shape) in enumerate(zip(layer.blobs, wanted, strict=True))
        if not fits_shape(blob, shape)
    ]


def fits_shape(blob: pb.BlobProto, wanted: Shape) -> bool:
    """Return whether a blob has the wanted shape; an unknown dimension fits any."""
    given = blob_shape(blob)
    if is_legacy(blob):  # it has four dimensions: missing ones are 1, in front
        wanted = (1,) * (len(given) - len(wanted)) + wanted
    return len(given) == len(wanted) and all(w in (g, None) for g, w in zip(given, wanted, strict=True))


def _check_finite(where: str, blob: pb.BlobProto) -> list[str]:
    if not blob.double_data and _are_below_2_to_127(blob):
        return []
    values = blob_values(blob)
    odd = [value for value in values if not math.isfinite(value)]
    return (
        [f"{where} has {len(odd)} of {len(values)} values that are not finite, such as {odd[0]}"]
        if odd
        else []
    )


def _are_below_2_to_127(blob: pb.BlobProto) -> bool:
    """Return whether all of `data` are finite and below 2^127.

    The last of a float32's four bytes holds the sign and all but one bit of the exponent. These seven bits
    are ones for numbers from 2^127 on, for infinities and for NaNs.
    """
    last = packed_data(blob)[3::4]
    return b"\x7f" not in last and b"\xff" not in last
