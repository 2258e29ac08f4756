"""Which layer of one net is which layer of another: by name and phase, else by what it does and where."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from google.protobuf.message import Message

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.text.writer import string_text
from caffe_recipes.review.diff.alignment import longest_common, match_by_keys, match_unique
from caffe_recipes.review.diff.messages import diff_messages, fingerprint

# What names a layer and connects it; the rest is what it does.
_NAMES = frozenset({"name", "bottom", "top"})
_CONDITIONS = frozenset({"include", "exclude"})
_RULES = frozenset(pb.LayerParameter.DESCRIPTOR.fields_by_name) - _CONDITIONS


class _Name(NamedTuple):
    """What a layer goes by: its name, the one phase it is in, and all its rules."""

    name: str
    phase: str = ""
    rules: bytes = b""

    @classmethod
    def of(cls, layer: pb.LayerParameter) -> _Name:
        if all(field.name not in _CONDITIONS for field, _ in layer.ListFields()):
            return cls(layer.name)
        return cls(layer.name, phase_of(layer), fingerprint(layer, _RULES))


@dataclass(frozen=True)
class Matching:
    """Pairs of layers by index, old to new; `in_place` are the pairs whose order both nets share."""

    pairs: Mapping[int, int]
    in_place: frozenset[int]  # indices of the old net


def phase_of(layer: pb.LayerParameter) -> str:
    """Name the one phase that a layer's rules leave it, or nothing.

    >>> phase_of(pb.LayerParameter(exclude=[pb.NetStateRule(phase=pb.TEST)]))
    'TRAIN'
    """
    # A list that is not set takes memory for as long as the layer is held once it was looked at.
    given = {field.name: value for field, value in layer.ListFields() if field.name in _CONDITIONS}
    if not given:
        return ""
    include = given.get("include", ())
    both = {pb.TRAIN, pb.TEST}
    rules = [({rule.phase} if rule.HasField("phase") else both) for rule in include or given["exclude"]]
    met = set().union(*rules)
    kept = met if include else both - met
    return pb.Phase.Name(kept.pop()) if len(kept) == 1 else ""


def title_of(layer: pb.LayerParameter) -> str:
    """Name a layer for a reader, with its phase if it is in one only: `data (TRAIN)`.

    >>> title_of(pb.LayerParameter(name="data", include=[pb.NetStateRule(phase=pb.TRAIN)]))
    'data (TRAIN)'
    """
    name = layer.name if layer.name.isprintable() and layer.name else string_text(layer.name)
    phase = phase_of(layer)
    return f"{name} ({phase})" if phase else name


def match_layers(old: Sequence[pb.LayerParameter], new: Sequence[pb.LayerParameter]) -> Matching:
    """Pair the layers of two nets.

    First by name and rules, name and phase, and name: where only one layer has it, then, where several have
    it, those that do the same, and the rest in order. Then, of the rest and of layers without a name, those
    that do the same between the same neighbours; those that do the same with the same bottoms elsewhere; and
    those of one type that stand in one place and differ in less than half of their fields.
    """
    named = _match_names(old, new)
    tokens = _tokens(old, new, named)
    in_place = longest_common(*tokens)
    pairs = named | dict(in_place)
    _match_elsewhere(old, new, pairs, tokens)
    edited = _match_edited(old, new, pairs, in_place)
    return Matching(pairs | edited, frozenset(i for i, _ in in_place) | frozenset(edited))


def _match_names(old: Sequence[pb.LayerParameter], new: Sequence[pb.LayerParameter]) -> dict[int, int]:
    before, after = ([_Name.of(layer) for layer in layers] for layers in (old, new))
    keys: list[Callable[[_Name], Hashable]] = [
        lambda known: known,
        lambda known: (known.name, known.phase),
        lambda known: known.name,
    ]
    pairs = match_unique(before, after, keys)
    taken = set(pairs.values())
    left = [i for i in range(len(old)) if i not in pairs and before[i].name]
    come = [j for j in range(len(new)) if j not in taken and after[j].name]
    shared = {before[i].name for i in left} & {after[j].name for j in come}
    left = [i for i in left if before[i].name in shared]
    come = [j for j in come if after[j].name in shared]
    rest = [before[i] for i in left], [after[j] for j in come]
    alike = match_by_keys(
        [(before[i], fingerprint(old[i])) for i in left],
        [(after[j], fingerprint(new[j])) for j in come],
        [lambda item: item],
    )
    found = match_by_keys(*rest, keys, alike)
    return pairs | {left[i]: come[j] for i, j in found.items()}


def _tokens(
    old: Sequence[pb.LayerParameter], new: Sequence[pb.LayerParameter], pairs: Mapping[int, int]
) -> tuple[list[Hashable], list[Hashable]]:
    """Give each layer a token: its pair's, or else what it does."""
    taken = set(pairs.values())
    return (
        [pairs[i] if i in pairs else fingerprint(layer, _NAMES) for i, layer in enumerate(old)],
        [j if j in taken else fingerprint(layer, _NAMES) for j, layer in enumerate(new)],
    )


def _match_elsewhere(
    old: Sequence[pb.LayerParameter],
    new: Sequence[pb.LayerParameter],
    pairs: dict[int, int],
    tokens: tuple[Sequence[Hashable], Sequence[Hashable]],
) -> None:
    """Add pairs of layers that were renamed and moved: they do the same with the same bottoms."""
    blobs = _blob_names(old, new, pairs)
    taken = set(pairs.values())
    waiting: defaultdict[Hashable, list[int]] = defaultdict(list)
    for j, layer in enumerate(new):
        if j not in taken and layer.bottom:
            waiting[tokens[1][j], tuple(layer.bottom)].append(j)
    for i, layer in enumerate(old):
        if i not in pairs and layer.bottom:
            found = waiting.pop((tokens[0][i], tuple(blobs.get(name, name) for name in layer.bottom)), [])
            if len(found) == 1:
                pairs[i] = found[0]


def _match_edited(
    old: Sequence[pb.LayerParameter],
    new: Sequence[pb.LayerParameter],
    pairs: Mapping[int, int],
    in_place: Sequence[tuple[int, int]],
) -> dict[int, int]:
    """Pair layers that were renamed and edited where they stand."""
    blobs = _blob_names(old, new, pairs)
    taken = set(pairs.values())
    found: dict[int, int] = {}
    for olds, news in _gaps(len(old), len(new), in_place):
        waiting: defaultdict[Hashable, deque[int]] = defaultdict(deque)
        for j in news:
            if j not in taken:
                waiting[new[j].type, phase_of(new[j]), tuple(new[j].bottom)].append(j)
        last = -1
        for i in olds:
            bottoms = tuple(blobs.get(name, name) for name in old[i].bottom)
            near = waiting[old[i].type, phase_of(old[i]), bottoms]
            if i not in pairs and near and near[0] > last and _is_alike(old[i], new[near[0]]):
                last = found[i] = near.popleft()
                blobs |= zip(old[i].top, new[last].top, strict=False)
    return found


def _gaps(old: int, new: int, in_place: Sequence[tuple[int, int]]) -> Iterator[tuple[range, range]]:
    i = j = 0
    for end_i, end_j in [*in_place, (old, new)]:
        if i < end_i and j < end_j:
            yield range(i, end_i), range(j, end_j)
        i, j = end_i + 1, end_j + 1


def _blob_names(
    old: Sequence[pb.LayerParameter], new: Sequence[pb.LayerParameter], pairs: Mapping[int, int]
) -> dict[str, str]:
    """Give what the tops of paired layers are called in the new net, by their old names."""
    return {a: b for i, j in pairs.items() for a, b in zip(old[i].top, new[j].top, strict=False)}


def _is_alike(old: pb.LayerParameter, new: pb.LayerParameter) -> bool:
    most = max(_count_values(old), _count_values(new))
    return 2 * len(diff_messages(old, new, skip=_NAMES)) < most


def _count_values(message: Message) -> int:
    """Count the values in a message and its blocks."""
    count = 0
    for field, value in message.ListFields():
        items = value if field.is_repeated and field.message_type is not None else [value]
        count += sum(_count_values(item) if field.message_type is not None else 1 for item in items)
    return count
