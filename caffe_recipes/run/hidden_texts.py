"""Texts such as secrets, which a report leaves out: of them a journal keeps only salted digests.

So they are also left out of a report that is written later, on another machine or with another profile.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

HIDDEN = "(hidden)"
# A shorter text is no secret, and would hide parts of words.
_SHORTEST = 4
_MOST_LENGTHS = 200  # each takes a pass over all texts, and a journal may hold anything


def digest_texts(texts: Iterable[str], salt: str) -> tuple[str, ...]:
    """Return the length and the digest of each text that is to be hidden.

    >>> digest_texts(["hunter2", "no"], "0123")
    ('7:aa6de192f47c1b1349f2b9b976d65918',)
    """
    kept = sorted({text for text in texts if len(text) >= _SHORTEST})
    return tuple(f"{len(text)}:{_digest(text, salt).hex()}" for text in kept)


def _digest(text: str, salt: str) -> bytes:
    data = text.encode(errors="surrogatepass")
    return hashlib.blake2b(data, digest_size=16, key=salt.encode()[:64]).digest()


@dataclass
class TextHider:
    """Leaves out of values the texts whose digests runs keep, by the salt of each."""

    digests: Mapping[str, Sequence[str]]
    _known: list[tuple[int, str, frozenset[bytes]]] = field(init=False)
    _done: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Order the digests by length, the longest first; one that is damaged is ignored."""
        found: dict[tuple[int, str], set[bytes]] = {}
        for salt, digests in self.digests.items():
            for length, digest in map(_parse, digests):
                if length >= _SHORTEST:
                    found.setdefault((length, salt), set()).add(digest)
        self._known = [
            (*each, frozenset(found[each])) for each in sorted(found, reverse=True)[:_MOST_LENGTHS]
        ]

    def hide(self, value: object) -> object:
        """Return a value, or a tree of lists and mappings, without the texts."""
        if type(value) is str and self._known:
            if value not in self._done:
                self._done[value] = self._hide_text(value)
            return self._done[value]
        if isinstance(value, Mapping):
            return {key: self.hide(one) for key, one in value.items()}
        return [self.hide(one) for one in value] if isinstance(value, list) else value

    def _hide_text(self, text: str) -> str:
        for length, salt, digests in self._known:
            at = 0
            while at + length <= len(text):
                if _digest(text[at : at + length], salt) in digests:
                    text = text[:at] + HIDDEN + text[at + length :]
                    at += len(HIDDEN)
                else:
                    at += 1
        return text


def _parse(digest: str) -> tuple[int, bytes]:
    length, _, digits = digest.partition(":")
    try:
        return int(length), bytes.fromhex(digits)
    except ValueError:
        return 0, b""
