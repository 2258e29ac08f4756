"""Rules on a net's blobs and names: what nothing makes, what nothing reads, what is made or named twice."""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Iterator

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.shaping.rules import RULES as SHAPE_RULES
from caffe_recipes.review.findings import Severity
from caffe_recipes.review.lint.nets.view import (
    LEARNED_TYPES,
    READERS,
    Draft,
    PhaseNet,
    is_in_place,
    is_loss,
    title,
)

RULES: dict[str, tuple[Severity, str]] = {
    "unknown-bottom": ("error", "a bottom that no layer above makes"),
    "top-made-twice": ("error", "a top that another layer makes already"),
    "in-place-shared": ("error", "a layer in place on a blob that another layer reads as well"),
    "in-place-type": ("error", "a layer in place whose type cannot compute so"),
    "no-top": ("error", "a layer without the top that its type needs"),
    "unused-top": ("warning", "a top that nothing reads, in a net with a loss or an accuracy"),
    "weights-name-twice": ("error", "two layers of one name in a phase, one of which learns"),
    "layer-name-twice": ("note", "two layers of one name in a phase, neither of which learns"),
}

# What stands at the end of a net: its unread tops are results.
_ENDS_WORDS = """
    Accuracy ArgMax BoxAnnotatorOHEM DetectionEvaluate DetectionOutput Filter HDF5Output Parameter
    Python Reduction Sigmoid Silence Softmax
"""
_ENDS = frozenset(_ENDS_WORDS.split())
# Their tops have another shape than their bottoms, or their backward pass needs what they overwrote.
_NOT_IN_PLACE_WORDS = """
    ArgMax Concat Convolution Crop Deconvolution Eltwise Embed Flatten Im2col InnerProduct LRN MVN
    Normalize Permute Pooling Reduction Reshape SPP Slice Split Tile
"""
_NOT_IN_PLACE = frozenset(_NOT_IN_PLACE_WORDS.split())
_MOST_UNKNOWN = 20
_TOPLESS = frozenset(("HDF5Output", "Silence"))


def check_blobs(phase: PhaseNet) -> Iterator[Draft]:
    """Check what makes and what reads each blob of a phase."""
    yield from _unknown_bottoms(phase)
    yield from _made_twice(phase)
    yield from _in_place(phase)
    yield from _tops(phase)
    yield from _names(phase)


def _unknown_bottoms(phase: PhaseNet) -> Iterator[Draft]:
    most = len(phase.flow.missing) if len(phase.flow.missing) <= _MOST_UNKNOWN else _MOST_UNKNOWN - 1
    for i, b in phase.flow.missing[:most]:
        layer, name = phase.layers[i], phase.layers[i].bottom[b]
        yield Draft(
            "unknown-bottom",
            phase.where(i),
            f"bottom[{b}]",
            f"{title(layer)} reads blob '{name}', which no layer above it makes",
            f"Caffe stops: Unknown bottom blob '{name}'",
            _mend_bottom(phase, i, name),
        )
    rest = phase.flow.missing[most:]
    if rest:
        yield Draft(
            "unknown-bottom",
            phase.where(rest[0][0]),
            f"bottom[{rest[0][1]}]",
            f"{len(rest)} more bottoms are blobs that no layer above makes",
            "Caffe stops: Unknown bottom blob",
            "mend the first ones",
            (("bottoms", len(rest)),),
        )


def _mend_bottom(phase: PhaseNet, index: int, name: str) -> str:
    later = [layer for layer in phase.layers[index:] if name in layer.top]
    if later and later[0] is not phase.layers[index]:
        return f"move {title(later[0])}, which makes it, above"
    elsewhere = [layer for layer in phase.net.layer if name in layer.top and layer not in phase.layers]
    if elsewhere:
        phase_name = pb.Phase.Name(phase.phase)
        return f"let {title(elsewhere[0])}, which makes it, be in {phase_name} too: see its include"
    made = dict.fromkeys([*phase.net.input, *(top for layer in phase.layers[:index] for top in layer.top)])
    near = difflib.get_close_matches(name, made, n=1)
    return f'bottom: "{near[0]}"' if near else "name a blob that a layer above makes"


def _made_twice(phase: PhaseNet) -> Iterator[Draft]:
    for (i, t), (first, _) in phase.flow.twice.items():
        layer = phase.layers[i]
        name = layer.top[t]
        maker = "the net's input" if first < 0 else title(phase.layers[first])
        yield Draft(
            "top-made-twice",
            phase.where(i),
            f"top[{t}]",
            f"{title(layer)} makes blob '{name}', which {maker} makes already",
            f"Caffe stops: Top blob '{name}' produced by multiple sources",
            "give one of the tops, and the bottoms that read it, another name",
        )


def _in_place(phase: PhaseNet) -> Iterator[Draft]:
    for i, layer in enumerate(phase.layers):
        for t, name in enumerate(layer.top):
            blob = phase.maker(i, t)
            if blob is None or not is_in_place(layer, t):
                continue
            if layer.type in _NOT_IN_PLACE:
                yield Draft(
                    "in-place-type",
                    phase.where(i),
                    f"top[{t}]",
                    f"{title(layer)} writes its top over its bottom '{name}', which its type cannot",
                    "Caffe stops, or computes nonsense",
                    f'top: "{layer.name}", and read that below',
                )
                continue
            others = [reader for reader in phase.flow.readers[blob] if reader != (i, t)]
            if others:
                other = phase.layers[others[0][0]]
                yield Draft(
                    "in-place-shared",
                    phase.where(i),
                    f"top[{t}]",
                    f"{title(layer)} works in place on blob '{name}', which {title(other)} reads too",
                    f"Caffe copies the blob for each reader, then stops: Top blob '{name}' produced by "
                    "multiple sources",
                    f'top: "{layer.name}", and read that below; or let both read what is in place',
                )


def _tops(phase: PhaseNet) -> Iterator[Draft]:
    # A bottom of a wrong name leaves a top without a reader: the one finding is enough.
    ends = not phase.is_fed and not phase.flow.missing and any(map(_is_end, phase.layers))
    for i, layer in enumerate(phase.layers):
        if not layer.top and (layer.type in READERS or layer.type in SHAPE_RULES) and not is_loss(layer):
            if layer.type not in _TOPLESS:
                yield Draft(
                    "no-top",
                    phase.where(i),
                    "type",
                    f"{title(layer)} has no top",
                    "Caffe stops: it checks how many tops a type makes",
                    f'top: "{layer.name}"',
                )
            continue
        # What a phase has for itself and nothing reads is there to be looked at.
        if not ends or _is_end(layer) or layer.type in _ENDS or (layer.bottom and layer.include):
            continue
        for t, name in enumerate(layer.top):
            if not phase.flow.readers[i, t]:
                yield Draft(
                    "unused-top",
                    phase.where(i),
                    f"top[{t}]",
                    f"{title(layer)} makes blob '{name}', which nothing reads",
                    "Caffe takes it for an output of the net and prints all its values at every display",
                    _mend_top(layer, name),
                )


def _is_end(layer: pb.LayerParameter) -> bool:
    return is_loss(layer) or "Loss" in layer.type or layer.type == "Accuracy"


def _mend_top(layer: pb.LayerParameter, name: str) -> str:
    silence = f'layer {{ name: "silence" type: "Silence" bottom: "{name}" }}'
    if layer.type in READERS and len(layer.top) > 1:
        return f"take the top out, or {silence}"
    return f"read it, take the layer out, or {silence}"


def _names(phase: PhaseNet) -> Iterator[Draft]:
    named: dict[str, list[int]] = defaultdict(list)
    for i, layer in enumerate(phase.layers):
        named[layer.name].append(i)
    for name, [first, *others] in named.items():
        for i in others:
            pair = phase.layers[first], phase.layers[i]
            learned = any(layer.type in LEARNED_TYPES for layer in pair)
            yield Draft(
                "weights-name-twice" if learned else "layer-name-twice",
                phase.where(i),
                "name",
                f"{title(pair[1])} has the name of another: {title(pair[0])}"
                if name
                else f"{title(pair[1])} has no name, nor has {title(pair[0])}",
                "weights are copied by name: from --weights and --snapshot Caffe gives those of both to the "
                "first, or stops: Incompatible number of blobs"
                if learned
                else "log lines do not tell them apart; a layer that learns must not get this name",
                f'name: "{name or layer_word(pair[1])}_2"',
            )


def layer_word(layer: pb.LayerParameter) -> str:
    """Suggest a name for a layer that has none."""
    return layer.top[0] if layer.top else layer.type.lower()
