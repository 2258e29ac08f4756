"""Ways to damage a text, drawn from a seeded random number generator: the same seed, the same bytes."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

import pytest

_WORD = re.compile(rb"\s+|[\w.+-]+|\"[^\"\n]*\"|.", re.DOTALL)
_NUMBER = re.compile(rb"(?<![\w.])-?\d+(?:\.\d+)?(?![\w.])")
_NASTY = (
    b"{", b"}", b"<", b">", b"[", b"]", b":", b",", b";", b'"', b"'", b"#", b"\\", b"\n", b"\r", b"\t", b"-",
    b"&a", b"*a", b"!!", b"|", b"? ", b"%", b"\0", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xef\xbb\xbf",
    b"\xe2\x80\xa8",
    b"\\x", b"\\400", b"\\ud800", b"layer {", b"layers { layer {", b"- ", b": {", b"<<: *a",
    b"!!python/name:os.system ",
)  # fmt: skip
_NUMBERS = (
    b"0", b"-1", b"1e400", b"-1e-400", b"nan", b"inf", b"-inf", b"1e5", b"0x7fffffff", b"017", b"2147483647",
    b"-2147483648", b"4294967296", b"9223372036854775807", b"9" * 400, b"1" + b"0" * 5000, b"1.5.2", b".",
    b"1:30", b"0.30000000000000004", b"3.5e38",
)  # fmt: skip

Mutate = Callable[[bytes, random.Random], bytes]


@pytest.fixture(scope="session")
def spoil() -> Mutate:
    """Damage a text in one to four ways."""

    def spoil(text: bytes, draw: random.Random) -> bytes:
        for _ in range(draw.choice((1, 1, 1, 2, 2, 4))):
            text = draw.choice(_WAYS)(text, draw)
        return text

    return spoil


def _flip(text: bytes, draw: random.Random) -> bytes:
    at = draw.randrange(len(text) + 1)
    return text[:at] + bytes(byte ^ 1 << draw.randrange(8) for byte in text[at : at + 1]) + text[at + 1 :]


def _insert(text: bytes, draw: random.Random) -> bytes:
    at = draw.randrange(len(text) + 1)
    return text[:at] + draw.choice(_NASTY) * draw.choice((1, 1, 1, 2, 50)) + text[at:]


def _delete(text: bytes, draw: random.Random) -> bytes:
    start, end = _slice(text, draw)
    return text[:start] + text[end:]


def _repeat(text: bytes, draw: random.Random) -> bytes:
    start, end = _slice(text, draw)
    return text[:end] + text[start:end] * draw.choice((1, 1, 3, 20)) + text[end:]


def _cut(text: bytes, draw: random.Random) -> bytes:
    return text[: draw.randrange(len(text) + 1)]


def _swap(text: bytes, draw: random.Random) -> bytes:
    words = _WORD.findall(text)
    if len(words) < 2:
        return text
    one, other = draw.randrange(len(words)), draw.randrange(len(words))
    words[one], words[other] = words[other], words[one]
    return b"".join(words)


def _put_word(text: bytes, draw: random.Random) -> bytes:
    words = _WORD.findall(text) or [b""]
    words[draw.randrange(len(words))] = draw.choice(words)
    return b"".join(words)


def _put_number(text: bytes, draw: random.Random) -> bytes:
    numbers = list(_NUMBER.finditer(text))
    if not numbers:
        return text
    number = draw.choice(numbers)
    return text[: number.start()] + draw.choice(_NUMBERS) + text[number.end() :]


def _drop_line(text: bytes, draw: random.Random) -> bytes:
    lines = text.splitlines(keepends=True) or [b""]
    del lines[draw.randrange(len(lines))]
    return b"".join(lines)


def _slice(text: bytes, draw: random.Random) -> tuple[int, int]:
    start = draw.randrange(len(text) + 1)
    return start, min(len(text), start + draw.choice((1, 3, 10, 40, 200)))


_WAYS: tuple[Mutate, ...] = (
    _flip, _insert, _delete, _repeat, _cut, _swap, _put_word, _put_number, _put_number, _drop_line,
)  # fmt: skip
