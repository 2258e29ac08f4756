"""Two nets, layer by layer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from caffe_recipes.caffe import pb
from caffe_recipes.review.diff.blobs import count_readers, find_blob_renames, find_rewired
from caffe_recipes.review.diff.changes import NOT_SET, Change, Given
from caffe_recipes.review.diff.layers import Matching, match_layers, title_of
from caffe_recipes.review.diff.messages import block_text, diff_messages


@dataclass(frozen=True)
class _Nets:
    """Both nets and what is known of them before any layer is compared."""

    old: Sequence[pb.LayerParameter]
    new: Sequence[pb.LayerParameter]
    matching: Matching
    blobs: Mapping[str, str]  # renamed ones, old name to new
    old_blobs: Mapping[str, str]
    readers: Counter[str]
    rewired: frozenset[int]
    defaults: bool


def diff_nets(old: pb.NetParameter, new: pb.NetParameter, *, defaults: bool = False) -> list[Change]:
    """Give what changed in meaning between two nets, in the order of the new one.

    A blob that only got another name is told where it is made, and not again where it is read.

    >>> def layer(name, pad):
    ...     return pb.LayerParameter(name=name, convolution_param=pb.ConvolutionParameter(pad=[pad]))
    >>> [change] = diff_nets(pb.NetParameter(layer=[layer("c", 1)]), pb.NetParameter(layer=[layer("c", 3)]))
    >>> change.layer, change.field, change.old.text, change.new.text
    ('c', 'convolution_param.pad', '1', '3')
    """
    # Lists, because each access to a repeated field makes its items anew.
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
        defaults,
    )
    told = set(old.input) if len(old.input) == len(new.input) else set()
    return [*diff_messages(old, new, defaults=defaults, skip={"layer"}), *_diff_layers(nets, told)]


def _diff_layers(nets: _Nets, told: set[str]) -> Iterator[Change]:
    """Walk the new net; what was removed comes where it stood. `told` are blobs whose new name is told."""
    old_of = {j: i for i, j in nets.matching.pairs.items()}
    stays = [*sorted(nets.matching.in_place), len(nets.old)]
    next_stay = dict(pairwise(stays))
    yield from _removed(nets, range(stays[0]))
    for j in range(len(nets.new)):
        i = old_of.get(j)
        if i is None:
            yield _whole("added", nets.new, j)
            continue
        yield from _diff_pair(nets, i, j, told)
        if i in next_stay:
            yield from _removed(nets, range(i + 1, next_stay[i]))


def _removed(nets: _Nets, indices: range) -> Iterator[Change]:
    return (_whole("removed", nets.old, i) for i in indices if i not in nets.matching.pairs)


def _whole(kind: str, layers: Sequence[pb.LayerParameter], index: int) -> Change:
    layer = layers[index]
    if kind == "removed":
        return Change("removed", "", _place(layers, index), NOT_SET, title_of(layer), layer.type)
    copy = pb.LayerParameter()
    copy.CopyFrom(layer)
    for name in ("name", "type", "include", "exclude"):
        copy.ClearField(name)
    return Change(
        "added", "", NOT_SET, _place(layers, index), title_of(layer), f"{layer.type} {block_text(copy)}"
    )


def _diff_pair(nets: _Nets, i: int, j: int, told: set[str]) -> Iterator[Change]:
    old, new = nets.old[i], nets.new[j]
    is_moved = i not in nets.matching.in_place
    if old == new and not is_moved:
        return
    title = title_of(new)
    tops = list(_renamed_tops(nets, old, new, told))
    if old.name != new.name:
        a, b = title_of(old), title
        same = [(old.name, new.name) == (x, y) for _, x, y in tops]
        notes = ["its blob too" if same[k] else f"its blob {x} -> {y}" for k, (_, x, y) in enumerate(tops)]
        yield Change("renamed", "", Given(a, a), Given(b, b), title, "; ".join(notes))
    if is_moved:
        note = "" if j in nets.rewired else "no connection changes"
        yield Change("moved", "", _place(nets.old, i), _place(nets.new, j), title, note)
    if old.name == new.name:
        for place, x, y in tops:
            name = f"top[{place}]" if len(old.top) > 1 else "top"
            yield Change("changed", name, _quoted(x), _quoted(y), title, _read_by(nets, x))
    shown = _with_old_blobs(nets, old, new)
    for change in diff_messages(old, shown, defaults=nets.defaults, skip={"name"}):
        yield replace(change, layer=title)


def _renamed_tops(
    nets: _Nets, old: pb.LayerParameter, new: pb.LayerParameter, told: set[str]
) -> Iterator[tuple[int, str, str]]:
    if len(old.top) == len(new.top):
        for place, (a, b) in enumerate(zip(old.top, new.top, strict=True)):
            if nets.blobs.get(a) == b and a not in told:
                told.add(a)
                yield place, a, b


def _with_old_blobs(nets: _Nets, old: pb.LayerParameter, new: pb.LayerParameter) -> pb.LayerParameter:
    """Copy the new layer with the old names of blobs that are only called otherwise."""
    copy = pb.LayerParameter()
    copy.CopyFrom(new)
    for before, after in ((old.bottom, copy.bottom), (old.top, copy.top)):
        names = [nets.old_blobs.get(name, name) for name in after]
        if len(before) == len(names):
            after[:] = [a if a == name else b for a, name, b in zip(before, names, after, strict=True)]
        elif list(before) == names:
            after[:] = names
    return copy


def _read_by(nets: _Nets, blob: str) -> str:
    count = nets.readers[blob]
    return f"and where {count} layer{'s read' if count > 1 else ' reads'} it" if count else ""


def _quoted(name: str) -> Given:
    return Given(f'"{name}"', name)


def _place(layers: Sequence[pb.LayerParameter], index: int) -> Given:
    """Say what a layer stands behind; as JSON the layer's name, or null."""
    before = title_of(layers[index - 1]) if index else None
    return Given(f"after {before}" if before is not None else "first", before)
