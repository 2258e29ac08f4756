"""Rules on shapes: layers that do not fit together, and the blobs that they learn or share."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.shapes import LayerShapes, infer_shapes, show_shape
from caffe_recipes.caffe.shaping.dims import Shape, product
from caffe_recipes.caffe.shaping.rules import RULES as SHAPE_RULES
from caffe_recipes.errors import PrototxtError
from caffe_recipes.review.findings import Severity
from caffe_recipes.review.lint.nets.view import (
    LEARNED_TYPES,
    SOURCE_BLOCKS,
    DatumOf,
    Draft,
    PhaseNet,
    show_names,
    title,
)

RULES: dict[str, tuple[Severity, str]] = {
    "shape-misfit": ("error", "a layer that cannot take its bottoms, or lacks what its shape needs"),
    "too-many-params": ("error", "more `param` blocks than the layer learns blobs"),
    "shared-shapes-differ": ("error", "weights shared by name that differ in shape"),
    "shared-rates-differ": ("error", "weights shared by name that differ in lr_mult or decay_mult"),
}

# One wrong layer hides those below it; so many are found at most.
_MOST_MISFITS = 20
# Where the engine learns scale and shift too, a BatchNorm has five blobs.
_MOST_BLOBS = {"BatchNorm": 5}


def infer_phase(phase: PhaseNet, datum_of: DatumOf) -> tuple[PhaseNet, list[Draft]]:
    """Give the phase with the shapes that can be inferred, and a finding for each layer that does not fit.

    A layer that does not fit is taken for one of unknown shape, so that those below it are looked at too.
    """
    net = _copy(phase)
    unfit: list[Draft] = []
    # A missing batch_size is told by its own rule.
    blank = {i for i, layer in enumerate(phase.layers) if lacks_batch_size(layer)}
    for i in blank:
        net.layer[i].type = ""

    def image(source: str) -> tuple[int, int, int] | None:
        datum = datum_of(source)
        known = datum is not None and not datum.encoded and min(datum.channels, datum.height, datum.width) > 0
        return (datum.channels, datum.height, datum.width) if datum is not None and known else None

    while len(unfit) < _MOST_MISFITS:
        try:
            shapes = infer_shapes(net, phase.phase, images=image)
        except PrototxtError as error:
            at = _culprit(phase, error.what, blank)
            if at is None:
                return phase, [*unfit, _misfit(None, error)]
            unfit.append(_misfit(phase.where(at), error))
            blank.add(at)
            net.layer[at].type = ""
            continue
        inferred: tuple[LayerShapes | None, ...] = tuple(
            # The net's own layer, so that the copy need not be kept.
            None if i in blank else dataclasses.replace(of, layer=phase.layers[i])
            for i, of in enumerate(shapes.layers)
        )
        return dataclasses.replace(phase, shapes=inferred), unfit
    return phase, unfit


def lacks_batch_size(layer: pb.LayerParameter) -> bool:
    """Whether a source that needs a batch_size has none."""
    block = SOURCE_BLOCKS.get(layer.type)
    return block is not None and getattr(getattr(layer, block), "batch_size", 1) == 0


def _copy(phase: PhaseNet) -> pb.NetParameter:
    """Copy the layers of a phase, with new names for bottoms that are missing and tops made twice."""
    net = pb.NetParameter(input=phase.net.input, input_dim=phase.net.input_dim)
    net.input_shape.extend(phase.net.input_shape)
    net.layer.extend(phase.layers)
    for layer in net.layer:
        layer.ClearField("include")
        layer.ClearField("exclude")
    for i, b in phase.flow.missing:
        net.layer[i].bottom[b] = f"\0bottom {i} {b}"
        net.input.append(net.layer[i].bottom[b])
    for i, t in phase.flow.twice:
        net.layer[i].top[t] = f"\0top {i} {t}"
    return net


def _culprit(phase: PhaseNet, what: str, blank: set[int]) -> int | None:
    """Find the layer that an error of infer_shapes begins with."""
    return next(
        (i for i, layer in enumerate(phase.layers) if i not in blank and what.startswith(title(layer))), None
    )


def _misfit(index: int | None, error: PrototxtError) -> Draft:
    return Draft(
        "shape-misfit",
        index,
        "type" if index is not None else "",
        error.what.replace("\0", ""),
        "Caffe stops when it sets the net up",
        error.hint,
    )


def check_learned(phase: PhaseNet) -> Iterator[Draft]:
    """Check `param` blocks against what each layer learns, and what is shared by name."""
    owners: dict[str, tuple[int, int]] = {}
    yield from _counts(phase)
    for i, layer in enumerate(phase.layers):
        for p, param in enumerate(layer.param):
            if not param.name:
                continue
            owner = owners.setdefault(param.name, (i, p))
            if owner != (i, p):
                yield from _shared(phase, owner, (i, p))


def _counts(phase: PhaseNet) -> Iterator[Draft]:
    """Find layers with too many `param` blocks, those alike once."""
    alike: dict[tuple[str, int, int], list[int]] = {}
    for i, layer in enumerate(phase.layers):
        most = _most_blobs(phase, i)
        if most is not None and len(layer.param) > most:
            alike.setdefault((layer.type, len(layer.param), most), []).append(i)
    for (kind, count, most), [i, *others] in alike.items():
        layer, learns = phase.layers[i], f"{most or 'no'} blobs"
        what = f"{title(layer)} has {count} param blocks and learns {learns}"
        if others:
            names = show_names([phase.layers[k].name for k in (i, *others)])
            what = (
                f"{len(others) + 1} layers ({names}) of {kind} have {count} param blocks and learn {learns}"
            )
        yield Draft(
            "too-many-params",
            phase.where(i),
            f"param[{most}]",
            what,
            f"Caffe stops: Too many params specified for layer {layer.name}",
            f"keep {most}" if most else "take them out",
        )


def _most_blobs(phase: PhaseNet, i: int) -> int | None:
    """Count the blobs that a layer learns at most; None if that is not known."""
    layer, learned = phase.layers[i], phase.learned(i)
    if learned is None and layer.type in SHAPE_RULES and layer.type not in LEARNED_TYPES:
        learned = ()
    return None if learned is None else _MOST_BLOBS.get(layer.type, len(learned))


def _shared(phase: PhaseNet, owner: tuple[int, int], other: tuple[int, int]) -> Iterator[Draft]:
    (i, p), (j, q) = owner, other
    first, second = phase.layers[i], phase.layers[j]
    ours, theirs = _blob(phase, owner), _blob(phase, other)
    param = second.param[q]
    loose = param.share_mode == pb.ParamSpec.PERMISSIVE
    if ours is not None and theirs is not None and not _fit(ours, theirs, loose):
        yield Draft(
            "shared-shapes-differ",
            phase.where(j),
            f"param[{q}].name",
            f"{title(second)} shares '{param.name}' {show_shape(theirs)} with {title(first)}, whose is "
            f"{show_shape(ours)}",
            f"Caffe stops: Cannot share param '{param.name}' owned by layer '{first.name}'; shape mismatch",
            "give both layers one shape, or the param another name",
        )
    for field in ("lr_mult", "decay_mult"):
        both = first.param[p].HasField(field) and param.HasField(field)
        if both and getattr(first.param[p], field) != getattr(param, field):
            yield Draft(
                "shared-rates-differ",
                phase.where(j),
                f"param[{q}].{field}",
                f"{title(second)} shares '{param.name}' with {title(first)}, with another {field}",
                f"Caffe stops: Shared param '{param.name}' has mismatched {field}",
                f"give both the same {field}",
            )


def _blob(phase: PhaseNet, of: tuple[int, int]) -> Shape | None:
    learned = phase.learned(of[0])
    return learned[of[1]] if learned and of[1] < len(learned) else None


def _fit(one: Shape, other: Shape, loose: bool) -> bool:
    if loose:
        counts = product(one), product(other)
        return None in counts or counts[0] == counts[1]
    return len(one) == len(other) and all(
        a == b for a, b in zip(one, other, strict=True) if a is not None and b is not None
    )
