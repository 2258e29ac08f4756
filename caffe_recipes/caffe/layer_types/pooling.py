"""Pooling: of windows, of whole channels, and of pyramids of windows."""

from __future__ import annotations

from collections.abc import Iterator

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.dialects.schema import rounds_down
from caffe_recipes.caffe.layer_types.dimensions import (
    Dim,
    LayerShapes,
    MisfitError,
    Shapes,
    canonical_axis,
    merge,
    product,
    require,
    sum_counts,
    sum_sizes,
)
from caffe_recipes.caffe.layer_types.entry import Bound, LayerType, Refusal, Result, own_number
from caffe_recipes.caffe.layer_types.windows import (
    check_windows,
    describe_window,
    pool_size,
    show_window,
    volume_type,
    windows,
)

_POOLED_AXES = (2, 3)


def _pooling(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    """Pool windows or whole channels; with MAX, there may be a second top, the mask."""
    param, bottom = layer.pooling_param, bottoms[0]
    channel = canonical_axis(bottom, param.axis)
    size = bottom[channel + 1 :]
    if len(size) not in _POOLED_AXES:
        raise MisfitError("needs 2 or 3 axes after the channels")
    if len(size) == 2 and len(bottom) != 4:
        raise MisfitError("needs a bottom with 4 axes")
    if param.global_pooling:
        pooled: list[Dim] = [1] * len(size)
    else:
        kernel, stride, pad = windows(param, len(size))
        for width, around in zip(kernel, pad, strict=True):
            if around >= width:
                raise MisfitError(f"has pad {around}, not smaller than its kernel_size {width}")
        is_floor = rounds_down(param)
        # Caffe drops windows beyond the input only with padding, or of one value.
        if not (is_floor or any(pad) or (len(size) == 2 and 1 in kernel)):
            for side, width, step in zip(size, kernel, stride, strict=True):
                if side is not None and -(-(side - width) // step) * step >= side:
                    raise MisfitError(f"has stride {step}, with which its last window would be empty")
        pooled = [pool_size(*of, is_floor=is_floor) for of in zip(size, kernel, stride, pad, strict=True)]
    return [(*bottom[: channel + 1], *pooled)] * (2 if param.pool == param.MAX else 1), []


def _spatial_pyramid(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    """Pool into 1, 2 x 2, 4 x 4, ... windows, on `pyramid_height` levels, and join all into one vector.

    The side of a window is the input size divided by the number of windows, rounded up. The excess is
    padding, half of it (rounded up) on each side. The output of a single level stays 1 x 1.
    """
    levels, bottom = layer.spp_param.pyramid_height, bottoms[0]
    require(layer.spp_param, "pyramid_height")
    if levels > 16:
        raise MisfitError(f"has pyramid_height {levels}")
    if len(bottom) != 4:
        raise MisfitError("needs a bottom with 4 axes")
    if levels == 1:
        return [(*bottom[:2], 1, 1)], []
    windows = [product(_pyramid_size(size, 2**level) for size in bottom[2:]) for level in range(levels)]
    return [(bottom[0], product([bottom[1], sum_counts(windows)]))], []


def pyramid_window(size: int, windows: int) -> tuple[int, int]:
    """Return the side and the padding of each of `windows` windows over an axis.

    >>> pyramid_window(7, 2), pyramid_window(7, 4)
    ((4, 1), (2, 1))
    """
    kernel = -(-size // windows)
    return kernel, (kernel * windows - size + 1) // 2


def _pyramid_size(size: Dim, windows: int) -> Dim:
    if size is None:
        return None
    kernel, pad = pyramid_window(size, windows)
    if pad >= kernel:
        raise MisfitError(f"cannot divide {size} into {windows} windows")
    return pool_size(size, kernel, kernel, pad)


def _upsample(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    """Enlarge planes to upsample_h and upsample_w, or by a scale, less a row or column of pad_out.

    Source: alexgkendall/caffe-segnet, src/caffe/layers/upsample_layer.cpp.
    """
    if len(bottoms) != 2 or any(len(bottom) != 4 for bottom in bottoms):
        raise MisfitError("needs a bottom and its mask with 4 axes: only SegNet's layer is known exactly")
    merge(bottoms)
    numbers = {name: own_number(layer, "upsample_param", name) for name in _UPSAMPLE}
    if numbers["upsample_h"] and numbers["upsample_w"]:
        return [(*bottoms[0][:2], numbers["upsample_h"], numbers["upsample_w"])], []
    both = numbers["scale"] or 2
    scales = [numbers["scale_h"] or both, numbers["scale_w"] or both]
    block = getattr(layer, "upsample_param", None)
    pads = [getattr(block, name, "") in ("true", "1") for name in ("pad_out_h", "pad_out_w")]
    if any(pad and scale != 2 for pad, scale in zip(pads, scales, strict=True)) or min(scales) < 2:
        raise MisfitError("has a scale below 2, or pad_out and another scale than 2")
    sides = zip(bottoms[0][2:], scales, pads, strict=True)
    return [(*bottoms[0][:2], *(None if d is None else d * scale - pad for d, scale, pad in sides))], []


_UPSAMPLE = ("scale", "scale_h", "scale_w", "upsample_h", "upsample_w")


def _check_pooling(layer: pb.LayerParameter) -> Iterator[Refusal]:
    param = layer.pooling_param
    kernel = param.kernel_size or param.HasField("kernel_h") or param.HasField("kernel_w")
    pad = list(param.pad) or [param.pad_h, param.pad_w]
    stride = list(param.stride) or [param.stride_h, param.stride_w]
    if param.global_pooling:
        given = {
            "kernel_size": bool(kernel),
            "pad": any(pad),
            "stride": any(side != 1 for side in stride),
        }
        wrong = [name for name, is_given in given.items() if is_given]
        if wrong:
            yield Refusal(
                "global-pooling-sized",
                f"pooling_param.{wrong[0]}[0]",
                f"has global_pooling and {' and '.join(wrong)}",
                "Caffe aborts: with global_pooling the kernel is the whole image, pad 0 and stride 1",
                f"remove {' and '.join(wrong)}, or global_pooling",
            )
    if param.pool == param.STOCHASTIC:
        yield Refusal(
            "pooling-stochastic",
            "pooling_param.pool",
            "has pool: STOCHASTIC",
            "Caffe aborts on CPUs: Not Implemented Yet",
            "write pool: MAX or pool: AVE",
        )


def _operations(found: LayerShapes, phase: int) -> Dim:
    """Count the whole window for each output, even at the borders; global pooling reads each input once."""
    param, top = found.layer.pooling_param, found.tops[:1]
    if param.global_pooling:
        return sum_sizes(found.bottoms)
    if param.HasField("kernel_h"):
        return product([sum_sizes(top), param.kernel_h, param.kernel_w])
    axes = len(top[0] or ()) - param.axis - 1 if top else 0
    kernel = list(param.kernel_size)
    return product([sum_sizes(top), *(kernel * axes if len(kernel) == 1 else kernel)])


def _details(layer: pb.LayerParameter) -> str:
    param = layer.pooling_param
    method = pb.PoolingParameter.PoolMethod.Name(param.pool)
    return f"{method} global" if param.global_pooling else f"{method} {', '.join(describe_window(param))}"


_POOLING = LayerType(
    "Pooling",
    has_engine=True,
    shapes=_pooling,
    refuses=(check_windows, _check_pooling),
    is_never_loss=True,
    operations=_operations,
    kernel=lambda layer: "global" if layer.pooling_param.global_pooling else show_window(layer.pooling_param),
    details=_details,
    kind="pooling",
)

TYPES = (
    _POOLING,
    volume_type(_POOLING),
    LayerType("Upsample", shapes=_upsample, bottoms=(2, 2)),
    LayerType(
        "SPP",
        shapes=_spatial_pyramid,
        refuses=(
            Bound(
                "spp_param.pool",
                lambda layer: layer.spp_param.pool == pb.SPPParameter.STOCHASTIC,
                "Caffe aborts on CPUs: Not Implemented Yet",
                "write pool: MAX or pool: AVE",
            ),
        ),
        # Each level reads each number once.
        operations=lambda found, phase: product(
            [sum_sizes(found.bottoms), found.layer.spp_param.pyramid_height]
        ),
    ),
)
