"""Compare two nets layer by layer, with their blobs and shared weights.

Layers are matched by name and phase, otherwise by function and position. Renamed blobs are reported once.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from google.protobuf.message import Message

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.text.writer import string_text
from caffe_recipes.review.diff.changes import NOT_SET, Change, ShownValue
from caffe_recipes.review.diff.messages import (
    block_text,
    diff_messages,
    longest_common,
    match_by_keys,
    match_unique,
    meaning_bytes,
)
from caffe_recipes.review.lint.net_view import trace_blobs

# Fields that name and connect a layer; all others define its function.
_NAMES = frozenset({"name", "bottom", "top"})
_CONDITIONS = frozenset({"include", "exclude"})
_RULES = frozenset(pb.LayerParameter.DESCRIPTOR.fields_by_name) - _CONDITIONS


class _LayerId(NamedTuple):
    """The identity of a layer: its name, its only phase if it has one, and its include and exclude rules."""

    name: str
    phase: str = ""
    rules: bytes = b""

    @classmethod
    def of(cls, layer: pb.LayerParameter) -> _LayerId:
        if all(field.name not in _CONDITIONS for field, _ in layer.ListFields()):
            return cls(layer.name)
        return cls(layer.name, phase_of(layer), meaning_bytes(layer, _RULES))


@dataclass(frozen=True)
class Matching:
    """Pairs of layer indices, old to new; `in_place` are the pairs in the same order in both nets."""

    pairs: Mapping[int, int]
    in_place: frozenset[int]  # indices of the old net


def phase_of(layer: pb.LayerParameter) -> str:
    """Return the only phase that a layer's rules allow, or an empty string if they allow both.

    >>> phase_of(pb.LayerParameter(exclude=[pb.NetStateRule(phase=pb.TEST)]))
    'TRAIN'
    """
    # Reading an unset list would allocate memory for the lifetime of the layer.
    given = {field.name: value for field, value in layer.ListFields() if field.name in _CONDITIONS}
    if not given:
        return ""
    include = given.get("include", ())
    both = {pb.TRAIN, pb.TEST}
    rules = [({rule.phase} if rule.HasField("phase") else both) for rule in include or given["exclude"]]
    matched = set().union(*rules)
    kept = matched if include else both - matched
    return pb.Phase.Name(kept.pop()) if len(kept) == 1 else ""


def title_of(layer: pb.LayerParameter) -> str:
    """Return a layer's name for reports, with its phase if it is in only one, e.g. `data (TRAIN)`.

    >>> title_of(pb.LayerParameter(name="data", include=[pb.NetStateRule(phase=pb.TRAIN)]))
    'data (TRAIN)'
    """
    name = layer.name if layer.name.isprintable() and layer.name else string_text(layer.name)
    phase = phase_of(layer)
    return f"{name} ({phase})" if phase else name


def match_layers(old: Sequence[pb.LayerParameter], new: Sequence[pb.LayerParameter]) -> Matching:
    """Return the pairs of layers of two nets that correspond.

    Layers are paired first by name and rules, then name and phase, then name, where these are unique; among
    several with the same name, by equal function, then in order. The rest, and layers without a name, are
    paired by equal function between the same neighbours, then by equal function with the same bottoms
    elsewhere, and last by type at the same position if less than half of their fields differ.
    """
    named = _match_names(old, new)
    tokens = _tokens(old, new, named)
    in_place = longest_common(*tokens)
    pairs = named | dict(in_place)
    _match_elsewhere(old, new, pairs, tokens)
    edited = _match_edited(old, new, pairs, in_place)
    return Matching(pairs | edited, frozenset(i for i, _ in in_place) | frozenset(edited))


def _match_names(old: Sequence[pb.LayerParameter], new: Sequence[pb.LayerParameter]) -> dict[int, int]:
    before, after = ([_LayerId.of(layer) for layer in layers] for layers in (old, new))
    keys: list[Callable[[_LayerId], Hashable]] = [
        lambda known: known,
        lambda known: (known.name, known.phase),
        lambda known: known.name,
    ]
    pairs = match_unique(before, after, keys)
    taken = set(pairs.values())
    old_rest = [i for i in range(len(old)) if i not in pairs and before[i].name]
    new_rest = [j for j in range(len(new)) if j not in taken and after[j].name]
    shared = {before[i].name for i in old_rest} & {after[j].name for j in new_rest}
    old_rest = [i for i in old_rest if before[i].name in shared]
    new_rest = [j for j in new_rest if after[j].name in shared]
    rest = [before[i] for i in old_rest], [after[j] for j in new_rest]
    alike = match_by_keys(
        [(before[i], meaning_bytes(old[i])) for i in old_rest],
        [(after[j], meaning_bytes(new[j])) for j in new_rest],
        [lambda item: item],
    )
    found = match_by_keys(*rest, keys, alike)
    return pairs | {old_rest[i]: new_rest[j] for i, j in found.items()}


def _tokens(
    old: Sequence[pb.LayerParameter], new: Sequence[pb.LayerParameter], pairs: Mapping[int, int]
) -> tuple[list[Hashable], list[Hashable]]:
    """Return a token for each layer: the same for both layers of a pair, otherwise the layer's function."""
    taken = set(pairs.values())
    return (
        [pairs[i] if i in pairs else meaning_bytes(layer, _NAMES) for i, layer in enumerate(old)],
        [j if j in taken else meaning_bytes(layer, _NAMES) for j, layer in enumerate(new)],
    )


def _match_elsewhere(
    old: Sequence[pb.LayerParameter],
    new: Sequence[pb.LayerParameter],
    pairs: dict[int, int],
    tokens: tuple[Sequence[Hashable], Sequence[Hashable]],
) -> None:
    """Add the pairs of layers that were renamed and moved: those with the same function and bottoms."""
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
    """Return the pairs of layers that were renamed and edited, but not moved."""
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
    """Return the new name of each old top of the paired layers."""
    return {a: b for i, j in pairs.items() for a, b in zip(old[i].top, new[j].top, strict=False)}


def _is_alike(old: pb.LayerParameter, new: pb.LayerParameter) -> bool:
    most = max(_count_values(old), _count_values(new))
    return 2 * len(diff_messages(old, new, skip=_NAMES)) < most


def _count_values(message: Message) -> int:
    """Return the number of values in a message and its blocks."""
    count = 0
    for field, value in message.ListFields():
        items = value if field.is_repeated and field.message_type is not None else [value]
        count += sum(_count_values(item) if field.message_type is not None else 1 for item in items)
    return count


Layers = Sequence[pb.LayerParameter]
Edges = set[tuple[int, int, int, str]]


def find_blob_renames(old: pb.NetParameter, new: pb.NetParameter, pairs: Mapping[int, int]) -> dict[str, str]:
    """Return the blobs that were only renamed, as old name to new name.

    A blob was renamed if exactly the layers that produced it now produce the other one, and if no slot keeps
    either name.
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
    """Return for each blob the number of layers that read it without writing it in place."""
    return Counter(blob for layer in layers for blob in set(layer.bottom) - set(layer.top))


def find_rewired(old: Layers, new: Layers, pairs: Mapping[int, int]) -> set[int]:
    """Return the layers, by index in the new net, whose connections to other layers changed.

    Only connections between layers that are in both nets count.
    """
    common = set(pairs.values())
    before = {
        (pairs[maker], pairs[reader], slot, phase)
        for maker, reader, slot, phase in _edges(old)
        if maker in pairs and reader in pairs
    }
    after = {edge for edge in _edges(new) if edge[0] in common and edge[1] in common}
    return {layer for maker, reader, *_ in before ^ after for layer in (maker, reader)}


class Sharing:
    """The weights that layers share by a name in `param`, before and after.

    A weight is identified by its layer and its position in `param`. A name that only one weight has is
    ignored, and names may change as long as the same weights share one.
    """

    def __init__(self, old: Layers, new: Layers, pairs: Mapping[int, int]) -> None:
        """Find the shared weights of both nets; `pairs` are the layers in both, old to new."""
        self._old, self._new = _weights_by_name(old), _weights_by_name(new)
        # The old weights of each name, by layer index in the new net; indices of removed layers are negative.
        self._moved = {
            name: frozenset((pairs.get(layer, -1 - layer), place) for layer, place in weights)
            for name, weights in self._old.items()
        }
        self._changed: dict[tuple[str, str], tuple[list[int], list[int]]] = {}

    def is_shared(self, name: str) -> bool:
        """Return whether several weights of the new net have this name."""
        return name in self._new

    def is_kept(self, a: str, b: str) -> bool:
        """Return whether the weights named `a` before are those named `b` now, or neither name is shared."""
        return not any(self.find_changed(a, b)) and (a in self._old) == (b in self._new)

    def find_changed(self, a: str, b: str) -> tuple[list[int], list[int]]:
        """Return the layers whose weights had the name `a` and lack `b` now, and those that gained `b`.

        Layers are indices in the new net, negative for removed ones. The weight's own layer may be included.
        """
        if (a, b) not in self._changed:
            before, after = self._moved.get(a, frozenset()), self._new.get(b, frozenset())
            lost, gained = ({layer for layer, _ in one} for one in (before - after, after - before))
            self._changed[a, b] = sorted(lost), sorted(gained)
        return self._changed[a, b]


def _weights_by_name(layers: Layers) -> dict[str, frozenset[tuple[int, int]]]:
    """Return the weights of each name that is used more than once."""
    found: defaultdict[str, set[tuple[int, int]]] = defaultdict(set)
    for index, layer in enumerate(layers):
        for field, params in layer.ListFields():
            if field.name == "param":
                for place, param in enumerate(params):
                    found[param.name].add((index, place))
    return {name: frozenset(weights) for name, weights in found.items() if name and len(weights) > 1}


def _slots(
    old: pb.NetParameter, new: pb.NetParameter, pairs: Mapping[int, int]
) -> Iterator[tuple[str, str, bool]]:
    """Yield the old and new name of each matching top and bottom, and whether it is a top."""
    if len(old.input) == len(new.input):
        yield from ((a, b, True) for a, b in zip(old.input, new.input, strict=True))
    layers = [(old.layer[i], new.layer[j]) for i, j in pairs.items()]
    for a, b in layers:
        if len(a.top) == len(b.top):
            yield from ((x, y, True) for x, y in zip(a.top, b.top, strict=True))
        if len(a.bottom) == len(b.bottom):
            yield from ((x, y, False) for x, y in zip(a.bottom, b.bottom, strict=True))


def _edges(layers: Layers) -> Edges:
    """Return the connections between layers, as (producer, reader, index of the bottom, phase)."""
    found: Edges = set()
    phases = [phase_of(layer) for layer in layers]
    for phase in ("TRAIN", "TEST"):
        places = [place for place, own in enumerate(phases) if own in ("", phase)]
        flow = trace_blobs((), [layers[place] for place in places])
        found |= {
            (places[maker], places[reader], slot, phase)
            for (reader, slot), (maker, _) in flow.producers.items()
        }
    return found


_MOST_PARTNERS = 3
_PARAM = re.compile(r"param\[(\d+)\]")


@dataclass(frozen=True)
class _Nets:
    """Both nets, and what is computed once before layers are compared."""

    old: Sequence[pb.LayerParameter]
    new: Sequence[pb.LayerParameter]
    matching: Matching
    blobs: Mapping[str, str]  # renamed blobs, old name to new
    old_blobs: Mapping[str, str]
    readers: Counter[str]
    rewired: frozenset[int]
    sharing: Sharing
    defaults: bool


def diff_nets(old: pb.NetParameter, new: pb.NetParameter, *, defaults: bool = False) -> list[Change]:
    """Return the changes in meaning between two nets, in the order of the new one.

    A blob that was only renamed is reported where it is produced, not where it is read.

    >>> def layer(name, pad):
    ...     return pb.LayerParameter(name=name, convolution_param=pb.ConvolutionParameter(pad=[pad]))
    >>> [change] = diff_nets(pb.NetParameter(layer=[layer("c", 1)]), pb.NetParameter(layer=[layer("c", 3)]))
    >>> change.layer, change.field, change.old.text, change.new.text
    ('c', 'convolution_param.pad', '1', '3')
    """
    # Copied to lists, because each access to a repeated field would create its items again.
    before, after = list(old.layer), list(new.layer)
    matching = match_layers(before, after)
    moved = matching.pairs.keys() - matching.in_place
    blobs = find_blob_renames(old, new, matching.pairs)
    nets = _Nets(
        before,
        after,
        matching,
        blobs,
        {b: a for a, b in blobs.items()},
        count_readers(before),
        frozenset(find_rewired(before, after, matching.pairs) if moved else ()),
        Sharing(before, after, matching.pairs),
        defaults,
    )
    reported = set(old.input) if len(old.input) == len(new.input) else set()
    return [*diff_messages(old, new, defaults=defaults, skip={"layer"}), *_diff_layers(nets, reported)]


def _diff_layers(nets: _Nets, reported: set[str]) -> Iterator[Change]:
    """Yield the changes of layers in the order of the new net, with removed layers at their old position.

    `reported` collects the renamed blobs that have been reported.
    """
    old_of = {j: i for i, j in nets.matching.pairs.items()}
    stays = [*sorted(nets.matching.in_place), len(nets.old)]
    next_stay = dict(pairwise(stays))
    yield from _removed(nets, range(stays[0]))
    for j in range(len(nets.new)):
        i = old_of.get(j)
        if i is None:
            yield _layer_change("added", nets.new, j)
            continue
        yield from _diff_pair(nets, i, j, reported)
        if i in next_stay:
            yield from _removed(nets, range(i + 1, next_stay[i]))


def _removed(nets: _Nets, indices: range) -> Iterator[Change]:
    return (_layer_change("removed", nets.old, i) for i in indices if i not in nets.matching.pairs)


def _layer_change(kind: str, layers: Sequence[pb.LayerParameter], index: int) -> Change:
    layer = layers[index]
    if kind == "removed":
        return Change("removed", "", _position(layers, index), NOT_SET, title_of(layer), layer.type)
    copy = deepcopy(layer)
    for name in ("name", "type", "include", "exclude"):
        copy.ClearField(name)
    return Change(
        "added", "", NOT_SET, _position(layers, index), title_of(layer), f"{layer.type} {block_text(copy)}"
    )


def _diff_pair(nets: _Nets, i: int, j: int, reported: set[str]) -> Iterator[Change]:
    old, new = nets.old[i], nets.new[j]
    is_moved = i not in nets.matching.in_place
    if old == new and not is_moved:
        return
    title = title_of(new)
    tops = list(_renamed_tops(nets, old, new, reported))
    if old.name != new.name:
        a, b = title_of(old), title
        same = [(old.name, new.name) == (x, y) for _, x, y in tops]
        notes = ["its blob too" if same[k] else f"its blob {x} -> {y}" for k, (_, x, y) in enumerate(tops)]
        yield Change("renamed", "", ShownValue(a, a), ShownValue(b, b), title, "; ".join(notes))
    if is_moved:
        note = "" if j in nets.rewired else "no connection changes"
        yield Change("moved", "", _position(nets.old, i), _position(nets.new, j), title, note)
    if old.name == new.name:
        for place, x, y in tops:
            name = f"top[{place}]" if len(old.top) > 1 else "top"
            yield Change("changed", name, _quoted(x), _quoted(y), title, _read_by(nets, x))
    shown = _with_old_blobs(nets, old, new)
    old, shared = _without_unchanged_names(nets, j, old, shown)
    for change in diff_messages(old, shown, defaults=nets.defaults, skip={"name"}):
        param = _PARAM.match(change.field)
        note = shared.get(int(param[1]), "") if param else ""
        yield replace(change, layer=title, note=note or change.note)


def _renamed_tops(
    nets: _Nets, old: pb.LayerParameter, new: pb.LayerParameter, reported: set[str]
) -> Iterator[tuple[int, str, str]]:
    if len(old.top) == len(new.top):
        for place, (a, b) in enumerate(zip(old.top, new.top, strict=True)):
            if nets.blobs.get(a) == b and a not in reported:
                reported.add(a)
                yield place, a, b


def _with_old_blobs(nets: _Nets, old: pb.LayerParameter, new: pb.LayerParameter) -> pb.LayerParameter:
    """Return a copy of the new layer with the old names of renamed blobs."""
    copy = deepcopy(new)
    for before, after in ((old.bottom, copy.bottom), (old.top, copy.top)):
        names = [nets.old_blobs.get(name, name) for name in after]
        if len(before) == len(names):
            after[:] = [a if a == name else b for a, name, b in zip(before, names, after, strict=True)]
        elif list(before) == names:
            after[:] = names
    return copy


def _without_unchanged_names(
    nets: _Nets, j: int, old: pb.LayerParameter, new: pb.LayerParameter
) -> tuple[pb.LayerParameter, dict[int, str]]:
    """Return the old layer without the names of weights whose sharing is unchanged, and a note on each other.

    The names are also removed from the new layer, in place.
    """
    notes: dict[int, str] = {}
    if "param" not in {field.name for field, _ in (*old.ListFields(), *new.ListFields())}:
        return old, notes
    copy = deepcopy(old)
    for place in range(max(len(old.param), len(new.param))):
        sides = [layer.param[place] if place < len(layer.param) else None for layer in (copy, new)]
        a, b = (side.name if side is not None else "" for side in sides)
        if a == b or not nets.sharing.is_kept(a, b):
            notes |= {place: _shared_note(nets, j, a, b)} if a != b else {}
            continue
        for side in sides:
            if side is None:
                continue
            if nets.sharing.is_shared(b):
                side.name = a
            else:
                side.ClearField("name")
    return copy, notes


def _shared_note(nets: _Nets, j: int, a: str, b: str) -> str:
    """Return a note on the layers that a weight of layer `j` is no longer, or now, shared with."""
    parts = []
    for what, layers in zip(("no longer", "now"), nets.sharing.find_changed(a, b), strict=True):
        others = [layer for layer in layers if 0 <= layer != j]
        names = [title_of(nets.new[layer]) for layer in others[:_MOST_PARTNERS]]
        more = [f"{len(others) - len(names)} more"] if len(others) > len(names) else []
        parts += [f"{what} shared with {', '.join([*names, *more])}"] if names else []
    return "; ".join(parts)


def _read_by(nets: _Nets, blob: str) -> str:
    count = nets.readers[blob]
    return f"and where {count} layer{'s read' if count > 1 else ' reads'} it" if count else ""


def _quoted(name: str) -> ShownValue:
    return ShownValue(f'"{name}"', name)


def _position(layers: Sequence[pb.LayerParameter], index: int) -> ShownValue:
    """Return a layer's position: the layer before it; in JSON, its name or null."""
    before = title_of(layers[index - 1]) if index else None
    return ShownValue(f"after {before}" if before is not None else "first", before)
