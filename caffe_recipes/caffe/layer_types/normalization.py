"""Normalization: over the batch, over neighbours, over channels, and to unit length."""

from __future__ import annotations

import math
from collections.abc import Sequence

from google.protobuf.message import Message

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.layer_types.dimensions import (
    SCALAR,
    Dim,
    LayerShapes,
    MisfitError,
    Shapes,
    canonical_axis,
)
from caffe_recipes.caffe.layer_types.entry import Bound, LayerType, Result, own_fillers, per_value


def _batch_norm(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    """Keep the shape; the blobs are the sum of means, the sum of variances, and the running factor.

    NVIDIA's has two more with `scale_bias` or a filler: scale and shift (its batch_norm_layer.cpp).
    """
    channels = bottoms[0][canonical_axis(bottoms[0], 1)]  # with one axis, Caffe aborts when it reshapes
    return [bottoms[0]], [(channels,), (channels,), (1,), *[(channels,)] * 2 * has_own_scale(layer)]


def has_own_scale(layer: pb.LayerParameter) -> bool:
    """Return whether a BatchNorm of NVIDIA's Caffe scales and shifts by itself, without a Scale layer."""
    param = layer.batch_norm_param
    if not hasattr(param, "scale_bias"):  # bias_filler alone is Intel's, whose plain engine ignores it
        return False
    return param.scale_bias or param.HasField("scale_filler") or param.HasField("bias_filler")


def _lrn(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    if layer.lrn_param.local_size % 2 == 0:
        raise MisfitError(f"has local_size {layer.lrn_param.local_size}, which is not odd")
    if len(bottoms[0]) != 4:
        raise MisfitError("needs a bottom with 4 axes")
    return [bottoms[0]], []


def _mvn(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    """Return four axes: Caffe adds those that the bottom lacks."""
    if len(bottoms[0]) > 4:
        raise MisfitError("needs a bottom with at most 4 axes")
    return [(*bottoms[0], *[1] * (4 - len(bottoms[0])))], []


def _normalize(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    if not 2 <= len(bottoms[0]) <= 4:
        raise MisfitError("needs a bottom with 2 to 4 axes")
    return [bottoms[0]], [SCALAR if layer.norm_param.channel_shared else (bottoms[0][1],)]


_SEGNETS = {"bn_mode", "scale_filler", "shift_filler"}
_AVERAGED = {"slope_filler", "bias_filler", "frozen", "momentum", "eps", "engine"}


def _bn_fields(layer: pb.LayerParameter) -> set[str]:
    block = getattr(layer, "bn_param", None)
    return {field.name for field, _ in block.ListFields()} if isinstance(block, Message) else set()


def has_averages(layer: pb.LayerParameter) -> bool:
    """Return whether a BN keeps moving averages, as yjxiong's and PSPNet's do: only these have a slope."""
    names = _bn_fields(layer)
    return "slope_filler" in names and names <= _AVERAGED


def averaging(layer: pb.LayerParameter) -> tuple[float, float]:
    """Return the momentum and the eps of a BN with moving averages. Raises MisfitError."""
    block = getattr(layer, "bn_param", None)
    try:
        momentum, eps = float(getattr(block, "momentum", "") or 0.9), float(getattr(block, "eps", "") or 1e-5)
    except (TypeError, ValueError):
        raise MisfitError("takes numbers as momentum and eps of bn_param") from None
    if not (0 <= momentum <= 1 and 0 <= eps < math.inf):
        raise MisfitError(f"has momentum {momentum:g} (0 to 1) and eps {eps:g} (0 or more) in bn_param")
    return momentum, eps


def is_frozen(layer: pb.LayerParameter) -> bool:
    """Return whether a BN with moving averages uses them in TRAIN, too, and learns nothing."""
    return getattr(getattr(layer, "bn_param", None), "frozen", "") == "true"


def statistic_blobs(layer: pb.LayerParameter) -> Sequence[int]:
    """Return the indexes of the blobs that hold running statistics, which no gradient changes."""
    if layer.type == "BatchNorm":
        return range(5)
    return (2, 3) if layer.type == "BN" and has_averages(layer) else ()


def unlearned_blobs(layer: pb.LayerParameter) -> Sequence[int]:
    """Return the indexes of the blobs of a layer that no gradient changes."""
    return range(4) if layer.type == "BN" and is_frozen(layer) else statistic_blobs(layer)


def bn_mode(layer: pb.LayerParameter) -> str:
    """Return the bn_mode of SegNet's BN. Raises MisfitError if it may be that of another Caffe."""
    names = _bn_fields(layer)
    if not names or names - _SEGNETS:
        other = f"gives {', '.join(sorted(names))} in" if names else "has no"
        raise MisfitError(f"{other} bn_param: two kinds are known, SegNet's and one with slope_filler")
    mode: str = getattr(layer.bn_param, "bn_mode", "") or "LEARN"  # type: ignore[attr-defined]
    if mode not in ("LEARN", "INFERENCE"):
        raise MisfitError(f"has bn_mode {mode}")
    return mode


def _bn(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    """Keep the shape. Blobs are scale and shift, and moving averages of mean and variance if it has those.

    In SegNet's, a second and a third top are mean and variance. Sources: src/caffe/layers/bn_layer.cpp of
    alexgkendall/caffe-segnet, and of yjxiong/caffe.
    """
    _bn_fillers(layer)  # raises MisfitError
    if has_averages(layer):
        averaging(layer)
        return [bottoms[0]], [(1, bottoms[0][canonical_axis(bottoms[0], 1)])] * 4
    bn_mode(layer)
    if len(bottoms[0]) != 4:
        raise MisfitError("needs a bottom with 4 axes")
    of_channel = (1, bottoms[0][1], 1, 1)
    return [bottoms[0], *[of_channel] * (len(layer.top) - 1)][:3], [of_channel] * 2


def _bn_fillers(layer: pb.LayerParameter) -> list[pb.FillerParameter]:
    if has_averages(layer):
        zero = pb.FillerParameter()
        one = pb.FillerParameter(value=1 if is_frozen(layer) else 0)
        return [*own_fillers(layer, "bn_param", "slope_filler", "bias_filler"), zero, one]
    return own_fillers(layer, "bn_param", "scale_filler", "shift_filler")


def _normalize_fillers(layer: pb.LayerParameter) -> list[pb.FillerParameter]:
    one = pb.FillerParameter(type="constant", value=1)
    return [layer.norm_param.scale_filler if layer.norm_param.HasField("scale_filler") else one]


def _batch_norm_passes(found: LayerShapes, phase: int) -> Dim:
    """Count 1 operation per number to normalize, and 2 more for the mean and variance of the batch."""
    param = found.layer.batch_norm_param
    is_global = param.use_global_stats if param.HasField("use_global_stats") else phase == pb.TEST
    return per_value(found, 1 if is_global else 3)


def _lrn_window(found: LayerShapes, phase: int) -> Dim:
    param = found.layer.lrn_param
    return per_value(found, param.local_size ** (1 if param.norm_region == param.ACROSS_CHANNELS else 2))


def _bn_passes(found: LayerShapes, phase: int) -> Dim:
    """Count 1 operation per number to scale it, 1 to normalize it, and 2 for the statistics of the batch."""
    if has_averages(found.layer):
        return per_value(found, 2 if is_frozen(found.layer) or phase == pb.TEST else 4)
    return per_value(found, 1 if bn_mode(found.layer) == "INFERENCE" else 4)


TYPES = (
    LayerType(
        "BatchNorm",
        has_engine=True,
        shapes=_batch_norm,
        # Two of them in an engine that also learns scale and shift, whose `filler` the plain engine ignores.
        learned=5,
        has_statistics=True,
        blob_names=lambda layer: ("running_mean", "running_var", "factor", "weight", "bias"),
        refuses=(
            Bound(
                "batch_norm_param.eps",
                lambda layer: layer.batch_norm_param.eps < 0,
                "Caffe takes the square root of a negative number, which is NaN",
                "write eps: 1e-5",
            ),
        ),
        in_place=True,
        is_never_loss=True,
        is_never_label=True,
        operations=_batch_norm_passes,
    ),
    LayerType(
        "BN",
        shapes=_bn,
        learned=4,
        fillers=_bn_fillers,
        blob_names=lambda layer: ("weight", "bias", "running_mean", "running_var"),
        in_place=True,
        is_never_loss=True,
        operations=_bn_passes,
    ),
    LayerType(
        "MKLBatchNorm",
        is_run=False,
        blocks=("batch_norm_param",),
        learned=5,
        has_statistics=True,
        in_place=True,
    ),
    LayerType(
        "LRN",
        has_engine=True,
        shapes=_lrn,
        refuses=(
            Bound(
                "lrn_param.k",
                lambda layer: layer.lrn_param.k <= 0 and layer.lrn_param.norm_region == 0,
                "Caffe divides by a power of it where all channels are 0, which gives NaN",
                "write k: 1",
            ),
            Bound(
                "lrn_param.alpha",
                lambda layer: layer.lrn_param.alpha < 0,
                "Caffe takes a root of a number that may be negative, which gives NaN",
                "write alpha: 0.0001",
            ),
        ),
        backward_reads_top=True,
        is_never_loss=True,
        is_never_label=True,
        operations=_lrn_window,
        details=lambda layer: str(layer.lrn_param.local_size),
    ),
    LayerType(
        "MVN",
        shapes=_mvn,
        in_place=True,
        loses_bottom=lambda layer: layer.mvn_param.normalize_variance,
        operations=lambda found, phase: per_value(found, 2 + found.layer.mvn_param.normalize_variance),
    ),
    LayerType(
        "Normalize",
        blocks=("norm_param",),
        shapes=_normalize,
        learned=1,
        fillers=_normalize_fillers,
        operations=lambda found, phase: per_value(found, 2),
    ),
)
