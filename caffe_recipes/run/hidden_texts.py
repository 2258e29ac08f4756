"""Texts that reports leave out, such as secrets; a journal keeps only their salted digests.

By these, a report that is written later, on another machine or with another profile, leaves them out, too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from caffe_recipes.wording import HIDDEN, SHORTEST_SECRET

_MOST_DIGESTS = 1000  # of a run; each takes time at every place of a text, and a journal may hold anything


def digest_texts(texts: Iterable[str], salt: str) -> tuple[str, ...]:
    """Return the length, the checksum and the digest of each text that is to be hidden.

    >>> digest_texts(["hunter2", "no"], "0123")
    ('7:200:aa6de192f47c1b1349f2b9b976d65918',)
    """
    kept = sorted({text for text in texts if len(text) >= SHORTEST_SECRET})
    return tuple(f"{len(text)}:{_checksum(map(ord, text))}:{_digest(text, salt).hex()}" for text in kept)


def _checksum(codes: Iterable[int]) -> int:
    """Return a sum that is quick to compute at each place of a text, where a digest is not."""
    return sum(codes) % 256


def _digest(text: str, salt: str) -> bytes:
    data = text.encode(errors="surrogatepass")
    return hashlib.blake2b(data, digest_size=16, key=salt.encode()[:64]).digest()


@dataclass
class TextHider:
    """Leaves out of values the texts whose digests runs keep; `digests` has the salt and digests of each."""

    digests: Sequence[tuple[str, Sequence[str]]]
    _known: list[tuple[int, str, dict[int, set[bytes]]]] = field(init=False)
    _done: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Order the digests by length, the longest first; one that is damaged is ignored."""
        found: dict[tuple[int, str], dict[int, set[bytes]]] = {}
        for salt, digests in self.digests:
            known = sorted(set(map(_parse, digests)), reverse=True)
            for length, checksum, digest in known[:_MOST_DIGESTS]:
                if length >= SHORTEST_SECRET:
                    found.setdefault((length, salt), {}).setdefault(checksum, set()).add(digest)
        self._known = [(*each, found[each]) for each in sorted(found, reverse=True)]

    def hide(self, value: object) -> object:
        """Return a value, or a tree of lists and mappings, without the texts."""
        if type(value) is str:
            return self.hide_text(value)
        if isinstance(value, Mapping):
            return {key: self.hide(one) for key, one in value.items()}
        return [self.hide(one) for one in value] if isinstance(value, list) else value

    def hide_text(self, text: str) -> str:
        """Return a text without the texts that are to be hidden; call it before a text is shortened."""
        if not self._known:
            return text
        if text not in self._done:
            self._done[text] = self._hide(text)
        return self._done[text]

    def _hide(self, text: str) -> str:
        for length, salt, digests in self._known:
            sums = [0, *accumulate(map(ord, text))]
            likely = [
                at
                for at, (first, last) in enumerate(zip(sums, sums[length:], strict=False))
                if (last - first) % 256 in digests
            ]
            parts, end = [], 0
            for at in likely:
                part = text[at : at + length]
                if at >= end and _digest(part, salt) in digests[_checksum(map(ord, part))]:
                    parts += [text[end:at], HIDDEN]
                    end = at + length
            text = "".join([*parts, text[end:]])
        return text


def _parse(digest: str) -> tuple[int, int, bytes]:
    try:
        length, checksum, digits = digest.split(":")
        return int(length), int(checksum), bytes.fromhex(digits)
    except ValueError:
        return 0, 0, b""
