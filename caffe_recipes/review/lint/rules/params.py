"""Rules for learned and shared blobs: their `param` blocks, names and shapes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.layer_types import type_of
from caffe_recipes.caffe.layer_types.dimensions import product
from caffe_recipes.caffe.shapes import show_shape
from caffe_recipes.review.lint.net_text import layer_finding, shapes_fit, show_layers, title
from caffe_recipes.review.lint.registry import finding
from caffe_recipes.review.lint.subjects import shape_rule
from caffe_recipes.wording import describe_count, find_similar

if TYPE_CHECKING:
    from caffe_recipes.caffe.layer_types.dimensions import Shape
    from caffe_recipes.review.lint.findings import Finding
    from caffe_recipes.review.lint.net_view import NetView, PhaseNet


_MAX_ALONE = 200
_ALIKE = 0.6


def _find_named_params(phase: PhaseNet) -> dict[str, list[tuple[int, int]]]:
    """Return each (layer, param) by the name of the param; the first of a name owns its weights."""
    uses: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for i, layer in enumerate(phase.layers):
        for p, param in enumerate(layer.param):
            if param.name:
                uses[param.name].append((i, p))
    return uses


@shape_rule(
    "share-name-alone",
    "warning",
    "a param name that only one layer has, in a net that shares other params",
    what="only {layer} has a param '{nearest}', and only {other} has '{name}'",
    effect="the two layers learn separate weights, unlike layers that share a name",
    write='name: "{name}" in both, if they should share weights',
)
def _check_lone_names(view: NetView, phase: PhaseNet) -> Iterator[Finding]:
    """Find pairs of similar names that are each used once, in a net that shares others."""
    uses = _find_named_params(phase)
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
def _check_param_counts(view: NetView, phase: PhaseNet) -> Iterator[Finding]:
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
def _check_shared_weights(view: NetView, phase: PhaseNet) -> Iterator[Finding]:
    for owner, *others in _find_named_params(phase).values():
        for other in others:
            yield from _check_shared_pair(phase, owner, other)


def _check_shared_pair(phase: PhaseNet, owner: tuple[int, int], other: tuple[int, int]) -> Iterator[Finding]:
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
