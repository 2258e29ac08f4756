"""Normalization as ONNX nodes, by running statistics."""

from __future__ import annotations

import numpy as np

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.layer_types.normalization import averaging, bn_mode, has_averages
from caffe_recipes.caffe.shapes import stats_images
from caffe_recipes.engine.onnx_operators.converter import Converter, NotExportedError, Site


def _batch_norm(site: Site) -> list[str]:
    if stats_images(site.layer, pb.TEST) is not None:
        raise NotExportedError("statistics of the batch (write use_global_stats: true)")
    mean = site.blobs["running_mean"]
    names = {"weight": np.ones_like(mean), "bias": np.zeros_like(mean), **site.blobs}
    inputs = [site.constant(names[name], name) for name in ("weight", "bias", "running_mean", "running_var")]
    return [site.add("BatchNormalization", site.xs[0], *inputs, epsilon=site.layer.batch_norm_param.eps)]


def _bn(site: Site) -> list[str]:
    """By the averages of yjxiong's BN. SegNet's normalizes by the batch; its deploy nets only scale."""
    if has_averages(site.layer):
        channels = (site.shapes.bottoms[0][1],)
        names = ("weight", "bias", "running_mean", "running_var")
        _, eps = averaging(site.layer)
        inputs = [site.blob(name, channels) for name in names]
        return [site.add("BatchNormalization", site.xs[0], *inputs, epsilon=eps)]
    if bn_mode(site.layer) == "LEARN":
        raise NotExportedError("statistics of the batch (fold them, and write bn_mode: INFERENCE)")
    scaled = site.add("Mul", site.xs[0], site.blob("weight"))
    return [site.add("Add", scaled, site.blob("bias"))]


def _lrn(site: Site) -> list[str]:
    param, x = site.layer.lrn_param, site.xs[0]
    if param.norm_region == param.ACROSS_CHANNELS:
        return [site.add("LRN", x, alpha=param.alpha, beta=param.beta, bias=param.k, size=param.local_size)]
    half = param.local_size // 2
    window = {"kernel_shape": [param.local_size] * 2, "pads": [half] * 4, "count_include_pad": 1}
    squares = site.add("AveragePool", site.add("Mul", x, x), **window)
    sums = site.add("Add", site.add("Mul", squares, site.floats(param.alpha)), site.floats(1))
    return [site.add("Mul", x, site.add("Pow", sums, site.floats(-param.beta)))]


def _mvn(site: Site) -> list[str]:
    param, shape = site.layer.mvn_param, site.shapes.tops[0]
    rows = shape[:1] if param.across_channels else shape[:2]
    x = site.reshape(site.xs[0], (*rows, -1) if -1 not in rows else (0, *rows[1:], _rest(shape, len(rows))))
    last = site.integers(-1)
    y = site.add("Sub", x, site.add("ReduceMean", x, last))
    if param.normalize_variance:
        deviation = site.add("Sqrt", site.add("ReduceMean", site.add("Mul", y, y), last))
        y = site.add("Div", y, site.add("Add", deviation, site.floats(param.eps)))
    return [site.reshape(y, shape)]


def _rest(shape: tuple[int, ...], first: int) -> int:
    return int(np.prod(shape[first:], dtype=np.int64))


def _normalize(site: Site) -> list[str]:
    param, shape = site.layer.norm_param, site.shapes.bottoms[0]
    axes = site.integers(*(range(1, len(shape)) if param.across_spatial else (1,)))
    squares = site.add("ReduceSum", site.add("Mul", site.xs[0], site.xs[0]), axes)
    length = site.add("Sqrt", site.add("Add", squares, site.floats(param.eps)))
    y = site.add("Div", site.xs[0], length)
    return [site.add("Mul", y, site.blob("weight", (-1, *[1] * (len(shape) - 2))))]


CONVERTERS: dict[str, Converter] = {
    "BatchNorm": _batch_norm,
    "BN": _bn,
    "LRN": _lrn,
    "MVN": _mvn,
    "Normalize": _normalize,
}
