"""Caffemodels and solverstates whose values are a function of one digest, and that digest read back.

Written by hand, field by field: protobuf would need a second for what takes a ResNet-50 0.2 s here.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from math import prod

Shapes = Sequence[tuple[str, str, Sequence[tuple[int, ...]]]]  # a layer's name, its type, its blobs
DIGEST_BYTES = 32


def render_model(name: str, shapes: Shapes, digest: bytes) -> bytes:
    """Write a caffemodel (NetParameter): all values lie in [0.5, 1), or their negative."""
    layers = (
        _field(1, layer.encode())
        + _field(2, kind.encode())
        + b"".join(
            _field(7, _blob(shape, _values(digest + f"{layer}/{index}".encode(), prod(shape))))
            for index, shape in enumerate(blobs)
        )
        for layer, kind, blobs in shapes
    )
    return _field(1, name.encode()) + b"".join(_field(100, layer) for layer in layers)


def render_state(iteration: int, model: str, shapes: Shapes, digest: bytes) -> bytes:
    """Write a solverstate: the history begins with the digest, a float for each byte; the rest is made."""
    blobs = [shape for _, _, blobs in shapes for shape in blobs]
    kept = b"".join(_BYTES[byte] for byte in digest)
    values = kept + _values(digest + b"history", sum(map(prod, blobs)))[len(kept) :]
    history, at = [], 0
    for shape in blobs:
        history.append(_field(3, _blob(shape, values[at : at + 4 * prod(shape)])))
        at += 4 * prod(shape)
    return _number(1, iteration) + _field(2, model.encode()) + b"".join(history) + _number(4, 0)


def digest_in(values: Iterator[float]) -> bytes:
    """Return the digest that a history begins with."""
    return bytes(int(value * 256) for value, _ in zip(values, range(DIGEST_BYTES), strict=False))


_BYTES = [struct.pack("<f", byte / 256) for byte in range(256)]


def _values(seed: bytes, count: int) -> bytes:
    """Make float32s of random sign and mantissa, and one exponent: always finite."""
    made = int.from_bytes(hashlib.shake_128(seed).digest(4 * count), "little")
    keep = int.from_bytes(b"\xff\xff\x7f\x80" * count, "little")
    exponent = int.from_bytes(b"\x00\x00\x00\x3f" * count, "little")
    return (made & keep | exponent).to_bytes(4 * count, "little")


def _blob(shape: tuple[int, ...], values: bytes) -> bytes:
    return _field(5, values) + _field(7, _field(1, b"".join(map(_varint, shape))))


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _varint(value: int) -> bytes:
    low = bytearray()
    while value > 0x7F:
        low.append(value & 0x7F | 0x80)
        value >>= 7
    low.append(value)
    return bytes(low)
