"""Rules for a net's blobs and names: missing, unread and duplicate ones.

Rules for shapes: layers that do not fit together, and learned or shared blobs.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.dialects import layer_type_dialects
from caffe_recipes.caffe.image_headers import ImageShape
from caffe_recipes.caffe.layer_types import type_of
from caffe_recipes.caffe.layer_types.dimensions import product
from caffe_recipes.caffe.shapes import LayerMisfit, infer_shapes, show_shape
from caffe_recipes.errors import PrototxtError
from caffe_recipes.review.lint.net_view import (
    has_loss_top,
    is_in_place,
    is_loss,
    layer_finding,
    record_shape,
    shapes_fit,
    show_layers,
    title,
)
from caffe_recipes.review.lint.rules import finding, rule
from caffe_recipes.wording import describe_count, find_similar

if TYPE_CHECKING:
    from caffe_recipes.caffe.layer_types.dimensions import LayerShapes, Shape
    from caffe_recipes.review.lint.net_view import (
        DatumOf,
        PhaseNet,
    )
    from caffe_recipes.review.lint.rules import Finding

blob_rule = partial(
    rule,
    "the blobs and names of a net: missing, unread and duplicate ones",
)
shape_rule = partial(
    rule, "the shapes of a net: layers that do not fit together, and learned or shared blobs"
)

# In place, these keep the values of the top above that get a gradient.
_KEEPS_TOP = frozenset(("Python", "ReLU"))
_MAX_UNKNOWN = 20


def check_blobs(phase: PhaseNet) -> Iterator[Finding]:
    """Check the producers and readers of each blob of a phase."""
    yield from _check_unknown_bottoms(phase)
    yield from _check_duplicate_tops(phase)
    yield from _check_in_place(phase)
    yield from _check_tops(phase)
    yield from _check_names(phase)


@blob_rule("unknown-bottom", "error", "a bottom that no layer above produces", values=("bottoms",))
def _check_unknown_bottoms(phase: PhaseNet) -> Iterator[Finding]:
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
def _check_duplicate_tops(phase: PhaseNet) -> Iterator[Finding]:
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
def _check_in_place(phase: PhaseNet) -> Iterator[Finding]:
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


@blob_rule(
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


@blob_rule(
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
def _check_tops(phase: PhaseNet) -> Iterator[Finding]:
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
def _check_names(phase: PhaseNet) -> Iterator[Finding]:
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


# Limit the findings: a wrong layer leaves those below it with unknown shapes.
_MAX_MISFITS = 20
_MAX_ALONE = 200
_ALIKE = 0.6


def infer_phase(phase: PhaseNet, datum_of: DatumOf) -> tuple[PhaseNet, list[Finding]]:
    """Infer the shapes of a phase, and report each layer that does not fit.

    A layer that does not fit gets unknown shapes, so that the layers below it are still checked.
    """
    net, missing = _copy_phase(phase)
    misfits: list[Finding] = []
    # Another rule reports a missing batch_size.
    blank = {i for i, layer in enumerate(phase.layers) if lacks_batch_size(layer)}
    for i in blank:
        net.layer[i].type = ""

    def image(source: str) -> ImageShape | None:
        return record_shape(datum_of(source) if source else None)

    for layer in net.layer:
        # Caffe applies force_color and force_gray only to encoded records, which it decodes itself.
        datum = datum_of(layer.data_param.source) if layer.data_param.source else None
        if layer.type == "ImageData" or (datum is not None and not datum.encoded):
            layer.transform_param.ClearField("force_color")
            layer.transform_param.ClearField("force_gray")

    while len(misfits) < _MAX_MISFITS:
        try:
            shapes = infer_shapes(net, phase.phase, images=image, missing=missing)
        except PrototxtError as error:
            at = error.index if isinstance(error, LayerMisfit) else None
            if at is None or at in blank:
                return phase, [*misfits, _shape_misfit("", error)]
            misfits.append(_shape_misfit(phase.where(at, "type"), error))
            blank.add(at)
            net.layer[at].type = ""
            continue
        inferred: tuple[LayerShapes | None, ...] = tuple(
            # Use the layer of the net itself, not of the copy.
            None if i in blank else dataclasses.replace(of, layer=phase.layers[i])
            for i, of in enumerate(shapes.layers)
        )
        return dataclasses.replace(phase, shapes=inferred), misfits
    return phase, misfits


def lacks_batch_size(layer: pb.LayerParameter) -> bool:
    """Return whether a data layer that needs a batch_size has none."""
    block = type_of(layer).batch_block
    return bool(block) and getattr(layer, block).batch_size == 0


def _copy_phase(phase: PhaseNet) -> tuple[pb.NetParameter, dict[str, str]]:
    """Return a copy of the layers of a phase; missing bottoms and duplicate tops get new names.

    The second value maps the new names of missing bottoms to theirs.
    """
    source: Any = phase.net if phase.given is None else phase.given
    net: pb.NetParameter = type(source)(input=source.input, input_dim=source.input_dim)
    net.input_shape.extend(source.input_shape)
    if source.HasField("bn_stats_batch_size"):
        net.bn_stats_batch_size = source.bn_stats_batch_size
    net.layer.extend(phase.given_layer(i) for i in range(len(phase.layers)))
    for layer in net.layer:
        layer.ClearField("include")
        layer.ClearField("exclude")
    known = {*net.input, *(name for layer in net.layer for name in (*layer.bottom, *layer.top))}
    missing: dict[str, str] = {}
    for i, b in phase.flow.missing:
        name = _unused_name(f"bottom {i} {b}", known)
        missing[name] = net.layer[i].bottom[b]
        net.layer[i].bottom[b] = name
    for i, t in phase.flow.redefined:
        net.layer[i].top[t] = _unused_name(f"top {i} {t}", known)
    return net, missing


def _unused_name(name: str, known: set[str]) -> str:
    """Return the name, or a similar one if a blob already has it."""
    while name in known:
        name += "'"
    return name


@shape_rule(
    "shape-misfit",
    "error",
    "a layer whose bottoms have wrong shapes, or whose own shape is incomplete",
    effect="Caffe aborts when it sets up the net",
)
def _shape_misfit(where: str, error: PrototxtError) -> Finding:
    return finding("shape-misfit", where, error.what, write=error.hint)


def check_learned(phase: PhaseNet) -> Iterator[Finding]:
    """Check `param` blocks against the blobs that each layer learns, or shares by name."""
    owners: dict[str, tuple[int, int]] = {}
    uses: dict[str, list[tuple[int, int]]] = defaultdict(list)
    yield from _check_param_counts(phase)
    for i, layer in enumerate(phase.layers):
        for p, param in enumerate(layer.param):
            if not param.name:
                continue
            owner = owners.setdefault(param.name, (i, p))
            uses[param.name].append((i, p))
            if owner != (i, p):
                yield from _check_shared_weights(phase, owner, (i, p))
    yield from _check_lone_names(phase, uses)


@shape_rule(
    "share-name-alone",
    "warning",
    "a param name that only one layer has, in a net that shares other params",
    what="only {layer} has a param '{nearest}', and only {other} has '{name}'",
    effect="the two layers learn separate weights, unlike layers that share a name",
    write='name: "{name}" in both, if they should share weights',
)
def _check_lone_names(phase: PhaseNet, uses: Mapping[str, Sequence[tuple[int, int]]]) -> Iterator[Finding]:
    """Find pairs of similar names that are each used once, in a net that shares others."""
    shared = [name for name, places in uses.items() if len(places) > 1]
    alone = {name: places[0] for name, places in uses.items() if len(places) == 1}
    paired: set[str] = set()
    for name, (i, _) in alone.items() if shared and len(alone) <= _MAX_ALONE else ():
        others = [other for other in alone if other != name and alone[other][0] != i]
        near = find_similar(name, others, _ALIKE)
        if not near or name in paired:
            continue
        paired.add(near)
        (j, q), layer = alone[near], phase.layers[i]
        if layer.type == phase.layers[j].type:
            yield layer_finding(
                "share-name-alone",
                phase,
                j,
                f"param[{q}].name",
                other=title(layer),
                nearest=near,
                name=name,
            )


@shape_rule(
    "too-many-params",
    "error",
    "more `param` blocks than learned blobs in a layer",
    effect="Caffe aborts: Too many params specified for layer {layer_name}",
)
def _check_param_counts(phase: PhaseNet) -> Iterator[Finding]:
    """Find layers with too many `param` blocks; similar layers share one finding."""
    alike: dict[tuple[str, int, int], list[int]] = {}
    for i, layer in enumerate(phase.layers):
        limit = _max_blobs(phase, i)
        if limit is not None and len(layer.param) > limit:
            alike.setdefault((layer.type, len(layer.param), limit), []).append(i)
    for (kind, count, limit), [i, *others] in alike.items():
        layer, learns = phase.layers[i], describe_count(limit, "blob") if limit else "no blobs"
        what = f"{title(layer)} has {describe_count(count, 'param block')} but learns {learns}"
        if others:
            layers = show_layers([phase.layers[k].name for k in (i, *others)], kind)
            what = f"{layers} have {describe_count(count, 'param block')} but learn {learns}"
        yield finding(
            "too-many-params",
            phase.where(i, f"param[{limit}]"),
            what,
            write=f"keep {limit}" if limit else "remove them",
            layer_name=layer.name,
        )


def _max_blobs(phase: PhaseNet, i: int) -> int | None:
    """Return the number of blobs that a layer learns at most; None if unknown."""
    layer, learned = phase.layers[i], phase.learned(i)
    if learned is None and type_of(layer).shapes and not type_of(layer).learned:
        learned = ()
    if learned is None:
        return None
    # A BatchNorm has more blobs in an engine that also learns scale and shift.
    return type_of(layer).learned if layer.type == "BatchNorm" else len(learned)


@shape_rule(
    "shared-shapes-differ",
    "error",
    "weights shared by name that differ in shape",
    what="{second} shares '{param}', {theirs}, with {first}, where it is {ours}",
    effect="Caffe aborts: Cannot share param '{param}' owned by layer '{owner}'; shape mismatch",
    write="use the same shape in both layers, or another param name",
)
@shape_rule(
    "shared-rates-differ",
    "error",
    "weights shared by name that differ in lr_mult or decay_mult",
    what="{second} shares '{param}' with {first}, but has a different {field}",
    effect="Caffe aborts: Shared param '{param}' has mismatched {field}",
    write="use the same {field} in both",
)
def _check_shared_weights(
    phase: PhaseNet, owner: tuple[int, int], other: tuple[int, int]
) -> Iterator[Finding]:
    (i, p), (j, q) = owner, other
    first, second = phase.layers[i], phase.layers[j]
    ours, theirs = _shared_shape(phase, owner), _shared_shape(phase, other)
    param = second.param[q]
    loose = param.share_mode == pb.ParamSpec.PERMISSIVE
    if ours is not None and theirs is not None and not _shared_shapes_fit(ours, theirs, loose):
        yield finding(
            "shared-shapes-differ",
            phase.where(j, f"param[{q}].name"),
            second=title(second),
            param=param.name,
            theirs=show_shape(theirs),
            first=title(first),
            ours=show_shape(ours),
            owner=first.name,
        )
    for field in ("lr_mult", "decay_mult"):
        both = first.param[p].HasField(field) and param.HasField(field)
        if both and getattr(first.param[p], field) != getattr(param, field):
            yield finding(
                "shared-rates-differ",
                phase.where(j, f"param[{q}].{field}"),
                second=title(second),
                param=param.name,
                first=title(first),
                field=field,
            )


def _shared_shape(phase: PhaseNet, of: tuple[int, int]) -> Shape | None:
    learned = phase.learned(of[0])
    return learned[of[1]] if learned and of[1] < len(learned) else None


def _shared_shapes_fit(one: Shape, other: Shape, loose: bool) -> bool:
    if loose:
        counts = product(one), product(other)
        return None in counts or counts[0] == counts[1]
    return shapes_fit(one, other)
