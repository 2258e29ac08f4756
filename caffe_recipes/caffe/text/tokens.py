"""Tokens and literals of protobuf's text format, the language of prototxt files."""

from __future__ import annotations

import re

TOKEN = re.compile(
    r"""
    [ \t\r\n\v\f]*+ (?:
        (?P<name>    [A-Za-z_][A-Za-z0-9_]*+ )
      | (?P<mark>    [:{}<>\[\],;-] )
      | (?P<number>  \.?[0-9](?:[eE][+-]|[0-9A-Za-z_.])*+ )
      | (?P<string>  "(?:[^"\\\n\0]++|\\[^\n\0])*+" | '(?:[^'\\\n\0]++|\\[^\n\0])*+' )
      | (?P<comment> \#[^\n\0]*+ )
      | (?P<end>     \Z )
      | (?P<bad>     . )
    )""",
    re.VERBOSE | re.DOTALL,
)

_ESCAPE = re.compile(
    r"""\\(?:
        (?P<octal> [0-7]{1,3} )
      | x(?P<hex> [0-9a-fA-F]{1,2} )
      | X(?P<capital> [0-9a-fA-F]{1,2} )
      | (?P<pair> u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2} )
      | u(?P<short> [0-9a-fA-F]{4} )
      | U(?P<long> [0-9a-fA-F]{8} )
      | (?P<letter> [^uUx] )
      | (?P<bad> .? )
    )""",
    re.VERBOSE | re.DOTALL,
)
_FOREIGN_BYTE = re.compile("[\udc80-\udcff]")
_LETTERS = dict(zip("abfnrtv\\?'\"", b"\a\b\f\n\r\t\v\\?'\"", strict=True))


def line_column(text: str, offset: int) -> tuple[int, int]:
    """Return the line and column of a character, both counted from 1.

    >>> line_column("net: 1\\ngama: 2", 7)
    (2, 1)
    """
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)


def parse_int(literal: str) -> int:
    """Read a decimal, hexadecimal (`0x1F`) or octal (`017`) integer. Raises ValueError for anything else.

    >>> parse_int("0x1F"), parse_int("017"), parse_int("42")
    (31, 15, 42)
    """
    _refuse_underscore(literal)
    return int(literal, 16 if literal[:2] in ("0x", "0X") else 8 if _has_leading_zero(literal) else 10)


def parse_float(literal: str) -> float:
    """Read a decimal number such as `1.`, `.5`, `1e-3` or `1f`. Raises ValueError if it is not one.

    A leading zero is refused: some versions of protobuf read `010` as 8, others as 10, and most refuse it.

    >>> parse_float("1."), parse_float(".5f"), parse_float("1e-3")
    (1.0, 0.5, 0.001)
    """
    _refuse_underscore(literal)
    if _has_leading_zero(literal):
        raise ValueError(literal)
    return float(literal[:-1] if literal[-1] in "fF" else literal)


def parse_string(literal: str) -> bytes:
    """Read a quoted string with C's escapes into UTF-8 bytes. Raises ValueError with the first bad escape.

    >>> parse_string(r'"\\x41\\102\\u00e9\\n"')
    b'AB\\xc3\\xa9\\n'
    """
    body = literal[1:-1]
    if "\\" not in body:
        return body.encode()
    parts: list[bytes] = []
    end = 0
    for escape in _ESCAPE.finditer(body):
        parts += body[end : escape.start()].encode(), _unescape(escape)
        end = escape.end()
    return b"".join([*parts, body[end:].encode()])


def find_foreign_byte(text: str) -> int | None:
    r"""Return the offset of the first character outside comments that stands for a byte that is not UTF-8.

    The text must have been decoded with `surrogateescape`. Returns None if there is no such character.

    >>> find_foreign_byte("net: 'a' # \udce9"), find_foreign_byte("net: '\udce9'")
    (None, 6)
    """
    for match in TOKEN.finditer(text):
        found = None if match.lastgroup == "comment" else _FOREIGN_BYTE.search(match[0])
        if found:
            return match.start() + found.start()
    return None


def _refuse_underscore(literal: str) -> None:
    if "_" in literal:  # Python would read 1_000
        raise ValueError(literal)


def _has_leading_zero(literal: str) -> bool:
    return literal[0] == "0" and literal[1:2].isdigit()


def _unescape(escape: re.Match[str]) -> bytes:
    kind, digits = escape.lastgroup, escape[escape.lastgroup or 0]
    if kind == "octal":
        return bytes([int(digits, 8) & 0xFF])
    if kind == "hex":
        return bytes([int(digits, 16)])
    if kind == "pair":
        return bytes.fromhex(digits[1:5] + digits[7:]).decode("utf-16-be").encode()
    if kind in ("short", "long") and not 0xD800 <= int(digits, 16) < 0xE000 and int(digits, 16) < 0x110000:
        return chr(int(digits, 16)).encode()
    if kind == "letter" and digits in _LETTERS:
        return bytes([_LETTERS[digits]])
    raise ValueError(escape[0])
