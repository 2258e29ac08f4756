"""Blobs of two nets: which are only called otherwise, and who reads what from whom."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from caffe_recipes.caffe import pb
from caffe_recipes.review.diff.layers import phase_of

Layers = Sequence[pb.LayerParameter]
Edges = set[tuple[int, int, int, str]]


def find_blob_renames(old: pb.NetParameter, new: pb.NetParameter, pairs: Mapping[int, int]) -> dict[str, str]:
    """Give the blobs that are the same under another name, old name to new.

    A blob is renamed if all that make it make the other one now, nothing else does, and neither name stands
    where it stood before.
    """
    makers: defaultdict[str, set[str]] = defaultdict(set)
    made: defaultdict[str, set[str]] = defaultdict(set)
    kept: set[str] = set()
    for a, b, is_top in _slots(old, new, pairs):
        if a == b:
            kept.add(a)
        elif is_top:
            makers[a].add(b)
            made[b].add(a)
    return {
        a: b
        for a, names in makers.items()
        for b in names
        if len(names) == 1 and len(made[b]) == 1 and not {a, b} & kept
    }


def count_readers(layers: Layers) -> Counter[str]:
    """Count by blob the layers that read it and make another."""
    return Counter(blob for layer in layers for blob in set(layer.bottom) - set(layer.top))


def find_rewired(old: Layers, new: Layers, pairs: Mapping[int, int]) -> set[int]:
    """Give the new net's layers that read from, or are read by, another layer than in the old net.

    Only connections between layers that both nets have count.
    """
    common = set(pairs.values())
    before = {
        (pairs[maker], pairs[reader], slot, phase)
        for maker, reader, slot, phase in _edges(old)
        if maker in pairs and reader in pairs
    }
    after = {edge for edge in _edges(new) if edge[0] in common and edge[1] in common}
    return {layer for maker, reader, *_ in before ^ after for layer in (maker, reader)}


def _slots(
    old: pb.NetParameter, new: pb.NetParameter, pairs: Mapping[int, int]
) -> Iterator[tuple[str, str, bool]]:
    """Yield the two names of what stands in one place of both nets, and whether it is made there."""
    if len(old.input) == len(new.input):
        yield from ((a, b, True) for a, b in zip(old.input, new.input, strict=True))
    layers = [(old.layer[i], new.layer[j]) for i, j in pairs.items()]
    for a, b in layers:
        if len(a.top) == len(b.top):
            yield from ((x, y, True) for x, y in zip(a.top, b.top, strict=True))
        if len(a.bottom) == len(b.bottom):
            yield from ((x, y, False) for x, y in zip(a.bottom, b.bottom, strict=True))


def _edges(layers: Layers) -> Edges:
    """Give who makes what is read: maker, reader, place among its bottoms, phase."""
    found: Edges = set()
    phases = [phase_of(layer) for layer in layers]
    for phase in ("TRAIN", "TEST"):
        makers: dict[str, int] = {}
        for index, layer in enumerate(layers):
            if phases[index] not in ("", phase):
                continue
            for slot, blob in enumerate(layer.bottom):
                if blob in makers:
                    found.add((makers[blob], index, slot, phase))
            makers.update(dict.fromkeys(layer.top, index))
    return found
