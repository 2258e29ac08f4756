"""Rules for a net's blobs and names: missing, unread and duplicate ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.dialects import layer_type_dialects
from caffe_recipes.caffe.layer_types import type_of
from caffe_recipes.review.lint.net_text import layer_finding, title
from caffe_recipes.review.lint.net_view import has_loss_top, is_in_place, is_loss
from caffe_recipes.review.lint.registry import finding
from caffe_recipes.review.lint.subjects import blob_rule
from caffe_recipes.wording import find_similar

if TYPE_CHECKING:
    from caffe_recipes.review.lint.findings import Finding
    from caffe_recipes.review.lint.net_view import NetView, PhaseNet


# In place, these keep the values of the top above that get a gradient.
_KEEPS_TOP = frozenset(("Python", "ReLU"))
_MAX_UNKNOWN = 20


@blob_rule("unknown-bottom", "error", "a bottom that no layer above produces", values=("bottoms",))
def _check_unknown_bottoms(view: NetView, phase: PhaseNet) -> Iterator[Finding]:
    shown = len(phase.flow.missing) if len(phase.flow.missing) <= _MAX_UNKNOWN else _MAX_UNKNOWN - 1
    for i, b in phase.flow.missing[:shown]:
        layer, name = phase.layers[i], phase.layers[i].bottom[b]
        yield finding(
            "unknown-bottom",
            phase.where(i, f"bottom[{b}]"),
            f"{title(layer)} reads blob '{name}', which no layer above it produces",
            effect=f"Caffe aborts: Unknown bottom blob '{name}'",
            write=_suggest_bottom(phase, i, name),
        )
    rest = phase.flow.missing[shown:]
    if rest:
        yield finding(
            "unknown-bottom",
            phase.where(rest[0][0], f"bottom[{rest[0][1]}]"),
            f"{len(rest)} more bottoms are blobs that no layer above produces",
            effect="Caffe aborts: Unknown bottom blob",
            write="fix the first ones",
            bottoms=len(rest),
        )


def _suggest_bottom(phase: PhaseNet, index: int, name: str) -> str:
    later = [layer for layer in phase.layers[index:] if name in layer.top]
    if later and later[0] is not phase.layers[index]:
        return f"move {title(later[0])}, which produces it, above this layer"
    elsewhere = [layer for layer in phase.net.layer if name in layer.top and layer not in phase.layers]
    for layer in elsewhere:
        # In this phase, too, it would produce its other tops twice.
        twin = next((own for own in phase.layers if set(own.top) & set(layer.top)), None)
        if twin is None:
            phase_name = pb.Phase.Name(phase.phase)
            return f"add {title(layer)}, which produces it, to {phase_name} too, by its include"
        if twin.type == layer.type:
            return f'add top: "{name}" to {title(twin)}'
    tops = dict.fromkeys([*phase.net.input, *(top for layer in phase.layers[:index] for top in layer.top)])
    near = find_similar(name, tops)
    return f'bottom: "{near}"' if near else "use a blob that a layer above produces"


@blob_rule(
    "top-made-twice",
    "error",
    "a top that another layer already produces",
    what="{layer} produces blob '{name}', which {producer} already produces",
    effect="Caffe aborts: Top blob '{name}' produced by multiple sources",
    write="rename one of the tops and the bottoms that read it",
)
def _check_duplicate_tops(view: NetView, phase: PhaseNet) -> Iterator[Finding]:
    for (i, t), (first, _) in phase.flow.redefined.items():
        layer = phase.layers[i]
        name = layer.top[t]
        producer = "the net's input" if first < 0 else title(phase.layers[first])
        yield layer_finding("top-made-twice", phase, i, f"top[{t}]", name=name, producer=producer)


@blob_rule(
    "in-place-type",
    "error",
    "an in-place layer whose type cannot compute in place",
    what="{layer} overwrites its bottom '{name}', but its type cannot compute in place",
    effect="Caffe aborts, or computes wrong values",
    write='top: "{layer_name}", and read that below',
)
@blob_rule(
    "in-place-gradient",
    "error",
    "an in-place layer whose backward pass needs the blob that it overwrote",
    what="{layer} overwrites its bottom '{name}', which its backward pass needs",
    effect="Caffe trains with a wrong gradient, and exits 0",
    write='top: "{layer_name}", and read that below',
)
def _check_in_place(view: NetView, phase: PhaseNet) -> Iterator[Finding]:
    for i, layer in enumerate(phase.layers):
        for t, name in enumerate(layer.top):
            blob = phase.producer(i, t)
            if blob is None or not is_in_place(layer, t):
                continue
            if not type_of(layer).in_place and layer_type_dialects(layer.type):
                yield layer_finding("in-place-type", phase, i, f"top[{t}]", name=name)
                continue
            yield from _check_shared_blob(phase, i, t, blob)
            if (i, t) in phase.gradients and type_of(layer).loses_bottom(layer):
                yield layer_finding("in-place-gradient", phase, i, f"top[{t}]", name=name)
            yield from _check_overwrites(phase, i, t)


@blob_rule.also(
    "in-place-shared",
    "error",
    "an in-place layer on a blob that another layer also reads",
    what="{layer} computes in place on blob '{name}', which {reader} also reads",
    effect="Caffe copies the blob for each reader, then aborts: Top blob '{name}' produced by "
    "multiple sources",
    write='top: "{layer_name}", and read that below; or let both read the in-place result',
)
def _check_shared_blob(phase: PhaseNet, i: int, t: int, blob: tuple[int, int]) -> Iterator[Finding]:
    layer = phase.layers[i]
    name, (producer, top) = layer.top[t], blob
    others = [title(phase.layers[reader[0]]) for reader in phase.flow.readers[blob] if reader != (i, t)]
    weights = phase.layers[producer].loss_weight if producer >= 0 else ()
    # Caffe counts an explicit loss_weight as a reader.
    others += ["the loss"] if len(weights) > top and weights[top] else []
    if others:
        yield layer_finding("in-place-shared", phase, i, f"top[{t}]", name=name, reader=others[0])


@blob_rule.also(
    "in-place-overwrites",
    "warning",
    "an in-place layer that overwrites values that the layer above needs for its backward pass",
    what="{layer} overwrites the top of {producer}, whose backward pass reads it",
    effect="the gradients of the layers above are wrong, so they learn worse; Caffe prints no message",
    write='top: "{layer_name}", and read that below',
)
def _check_overwrites(phase: PhaseNet, i: int, t: int) -> Iterator[Finding]:
    layer, above = phase.layers[i], phase.producer(i, t)
    while above is not None and above[0] >= 0 and layer.type not in _KEEPS_TOP:
        j, top = above
        producer = phase.layers[j]
        if type_of(producer).backward_reads_top and (j, 0) in phase.gradients:
            yield layer_finding("in-place-overwrites", phase, i, f"top[{t}]", producer=title(producer))
            return
        above = phase.producer(j, top) if is_in_place(producer, top) else None


@blob_rule(
    "no-top",
    "error",
    "a layer without the top that its type needs",
    what="{layer} has no top",
    effect="Caffe aborts when it checks the number of tops",
    write='top: "{layer_name}"',
)
@blob_rule(
    "unused-top",
    "warning",
    "a top that nothing reads, in a net with a loss or an accuracy",
    what="{layer} produces blob '{name}', which nothing reads",
    effect="Caffe treats it as an output of the net and prints all its values at every display",
)
def _check_tops(view: NetView, phase: PhaseNet) -> Iterator[Finding]:
    # A misspelt bottom also leaves a top without a reader: one finding is enough.
    ends = not phase.is_fed_by_code and not phase.flow.missing and any(map(_is_end, phase.layers))
    for i, layer in enumerate(phase.layers):
        entry = type_of(layer)
        if not layer.top and (entry.is_reader or entry.shapes):
            if entry.makes_tops and not has_loss_top(layer):
                yield layer_finding("no-top", phase, i, "type")
            continue
        # An unread top in one phase only is probably meant to be printed.
        if not ends or _is_end(layer) or entry.is_result or (layer.bottom and layer.include):
            continue
        for t, name in enumerate(layer.top):
            if not phase.flow.readers[i, t]:
                yield layer_finding(
                    "unused-top", phase, i, f"top[{t}]", write=_suggest_top(layer, name), name=name
                )


def _is_end(layer: pb.LayerParameter) -> bool:
    return is_loss(layer) or has_loss_top(layer) or layer.type == "Accuracy"


def _suggest_top(layer: pb.LayerParameter, name: str) -> str:
    silence = f'layer {{ name: "silence" type: "Silence" bottom: "{name}" }}'
    if type_of(layer).is_reader and len(layer.top) > 1:
        return f"remove the top, or {silence}"
    return f"read it, remove the layer, or {silence}"


@blob_rule(
    "weights-name-twice",
    "error",
    "two layers with the same name in a phase, at least one of them with weights",
    effect="weights are copied by name: from --weights and --snapshot, Caffe copies those of both to the "
    "first, or aborts: Incompatible number of blobs",
    write='name: "{name}_2"',
)
@blob_rule(
    "layer-name-twice",
    "note",
    "two layers with the same name in a phase, both without weights",
    effect="lines of the log do not distinguish them; a layer with weights must not have this name",
    write='name: "{name}_2"',
)
def _check_names(view: NetView, phase: PhaseNet) -> Iterator[Finding]:
    named: dict[str, list[int]] = defaultdict(list)
    for i, layer in enumerate(phase.layers):
        named[layer.name].append(i)
    for name, [first, *others] in named.items():
        for i in others:
            pair = phase.layers[first], phase.layers[i]
            learned = any(type_of(layer).learned for layer in pair)
            yield finding(
                "weights-name-twice" if learned else "layer-name-twice",
                phase.where(i, "name"),
                f"{title(pair[1])} has the same name as {title(pair[0])}"
                if name
                else f"{title(pair[1])} and {title(pair[0])} have no name",
                name=name or suggest_name(pair[1]),
            )


def suggest_name(layer: pb.LayerParameter) -> str:
    """Return a name for a layer that has none: its first top, or its type."""
    return layer.top[0] if layer.top else layer.type.lower()
