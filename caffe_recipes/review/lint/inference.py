"""The shapes of a phase's blobs, and the layers that do not fit together."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from caffe_recipes.caffe.layer_types import type_of
from caffe_recipes.caffe.shapes import LayerMisfit, infer_shapes
from caffe_recipes.errors import PrototxtError
from caffe_recipes.review.lint.net_view import record_shape
from caffe_recipes.review.lint.registry import finding

if TYPE_CHECKING:
    from caffe_recipes.caffe import pb
    from caffe_recipes.caffe.image_headers import ImageShape
    from caffe_recipes.caffe.layer_types.dimensions import LayerShapes
    from caffe_recipes.review.lint.findings import Finding
    from caffe_recipes.review.lint.net_view import DatumOf, PhaseNet


# Limit the findings: a wrong layer leaves those below it with unknown shapes.
_MAX_MISFITS = 20


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


def _shape_misfit(where: str, error: PrototxtError) -> Finding:
    return finding("shape-misfit", where, error.what, write=error.hint)
