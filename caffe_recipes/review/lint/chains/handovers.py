"""Weights handed from one net of a chain to the next, by the names of layers: what fits, what is left out."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping

from caffe_recipes.caffe.shapes import infer_shapes, show_shape
from caffe_recipes.caffe.shaping.dims import Shape
from caffe_recipes.errors import PrototxtError
from caffe_recipes.review.findings import Finding
from caffe_recipes.review.lint.chains.chain import Chain, Link, Net, plan_starts
from caffe_recipes.review.lint.chains.states import train_state
from caffe_recipes.review.lint.nets.view import show_names
from caffe_recipes.review.lint.rules import finding

# The blobs that each layer learns, by its name; None where their shapes are not known.
_Learned = Mapping[str, tuple[Shape, ...] | None]


def check_handovers(chain: Chain) -> Iterator[Finding]:
    """Find layers that do not take over what the net that a phase starts from has learned."""
    known: dict[int, _Learned | None] = {}
    for index, start in enumerate(plan_starts(chain)):
        if start is None:
            continue
        before, link = chain.links[start.index], chain.links[index]
        for number in (start.index, index):
            if number not in known:
                known[number] = _learned(chain.links[number])
        theirs, ours = known[start.index], known[index]
        if theirs is not None and ours is not None and link.net and before.net:
            yield from _misfits(before, link, link.net, theirs, ours)
            yield from _missing(before, link, link.net, theirs, ours)
            yield from _unused(before, link, before.net, theirs, ours)


def show_misfit(ours: tuple[Shape, ...], theirs: tuple[Shape, ...]) -> str:
    """Say how the first blob that does not fit differs; empty if all fit, what is not known included.

    >>> show_misfit(((10, 64), (10,)), ((20, 64), (20,)))
    '10x64, not 20x64'
    >>> show_misfit(((10, None),), ((10, 64),)), show_misfit(((10, 64),), ((10, 64), (10,)))
    ('', '1 blob, not 2')
    """
    if len(ours) != len(theirs):
        return f"{len(ours)} blob{'' if len(ours) == 1 else 's'}, not {len(theirs)}"
    for one, other in zip(ours, theirs, strict=True):
        if len(one) != len(other) or any(
            a != b for a, b in zip(one, other, strict=True) if a is not None and b is not None
        ):
            return f"{show_shape(one)}, not {show_shape(other)}"
    return ""


def _learned(link: Link) -> _Learned | None:
    """Give what a phase's net learns; None where its shapes do not fit, which is a rule of the net's own."""
    if link.net is None:
        return None
    net = link.net.message
    state = train_state(link.solver.message, net)
    try:
        layers = infer_shapes(net, state.phase, level=state.level, stages=state.stages).layers
    except PrototxtError:
        return None
    return {each.layer.name: each.learned for each in layers if each.learned is None or each.learned}


def _misfits(before: Link, link: Link, net: Net, theirs: _Learned, ours: _Learned) -> Iterator[Finding]:
    unfit = {}
    for name, shapes in ours.items():
        given = theirs.get(name)
        said = show_misfit(shapes, given) if shapes and given else ""
        if said:
            unfit[name] = said
    if unfit:
        (first, said), *others = unfit.items()
        more = f"; nor do {show_names([name for name, _ in others])}" if others else ""
        what = f"layer '{first}' of {link.name} does not fit the weights of {before.name}: {said}{more}"
        effect = f"Caffe stops with `Cannot copy param 0 weights from layer '{first}'; shape mismatch`"
        if "blob" in said:
            effect = f"Caffe stops with `Incompatible number of blobs for layer {first}`"
        write = "the same shape in both nets, or another name for the layer, so that it starts anew"
        yield finding("handover-misfit", _place(net, first), what, effect, write, link.name, count=len(unfit))


def _missing(before: Link, link: Link, net: Net, theirs: _Learned, ours: _Learned) -> Iterator[Finding]:
    new = [name for name, shapes in ours.items() if shapes and name not in theirs]
    if new:
        left = [name for name in theirs if name not in ours]
        near = difflib.get_close_matches(new[0], left, n=1, cutoff=0.3)
        verb = "learns, and is" if len(new) == 1 else "learn, and are"
        what = f"{_layers(new)} of {link.name} {verb} not in the net of {before.name}"
        pronoun = "it starts" if len(new) == 1 else "they start"
        effect = f"{pronoun} from the fillers, as if never trained; Caffe says nothing of it"
        write = f'name: "{near[0]}", as in {before.name}' if near else "nothing, if it is meant"
        yield finding("handover-missing", _place(net, new[0]), what, effect, write, link.name, count=len(new))


def _unused(before: Link, link: Link, net: Net, theirs: _Learned, ours: _Learned) -> Iterator[Finding]:
    left = [name for name, shapes in theirs.items() if shapes and name not in ours]
    if left:
        verb = "learns, and is" if len(left) == 1 else "learn, and are"
        what = f"{_layers(left)} of {before.name} {verb} not in the net of {link.name}"
        effect = f"Caffe says `Ignoring source layer {left[0]}`, and what was learned there is lost"
        write = "the same names in both nets, if it is to be kept"
        yield finding(
            "handover-unused", _place(net, left[0]), what, effect, write, link.name, count=len(left)
        )


def _layers(names: list[str]) -> str:
    return f"layer '{names[0]}'" if len(names) == 1 else f"{len(names)} layers ({show_names(names)})"


def _place(net: Net, name: str) -> str:
    index = next(index for index, layer in enumerate(net.message.layer) if layer.name == name)
    return net.where(f"layer[{index}].name")
