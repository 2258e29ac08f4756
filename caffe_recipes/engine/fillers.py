"""Fill blobs with initial values by Caffe's fillers."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Generator, Tensor

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.refusals import find_filler_refusals
from caffe_recipes.engine.gabor import BANKS, draw_kernels
from caffe_recipes.errors import InputError

_Fill = Callable[[Tensor, pb.FillerParameter, Generator], object]


def fill(blob: Tensor, filler: pb.FillerParameter, generator: Generator) -> None:
    """Fill `blob` in place. Raises InputError if the filler is unknown or does not fit the blob's shape."""
    check_filler(filler)
    with torch.no_grad():
        FILLERS[filler.type](blob, filler, generator)


def check_filler(filler: pb.FillerParameter) -> None:
    """Raise InputError if the filler is unknown, or Caffe refuses its settings."""
    if filler.type not in FILLERS:
        known = ", ".join(sorted(FILLERS))
        raise InputError(f"filler '{filler.type}'", "is unknown, or not supported", f"choose from {known}")
    for refusal in find_filler_refusals(filler):
        raise InputError(f"filler '{filler.type}'", refusal.what, refusal.write)


def fan(shape: tuple[int, ...], norm: int) -> float:
    """Return the fan-in (FAN_IN) or fan-out (FAN_OUT) of a weight blob, or the mean of the two (AVERAGE).

    >>> fan((64, 3, 7, 7), pb.FillerParameter.FAN_IN), fan((64, 3, 7, 7), pb.FillerParameter.FAN_OUT)
    (147, 3136)
    """
    count = math.prod(shape)
    into = count // shape[0] if shape else 1
    out_of = count // shape[1] if len(shape) > 1 else count
    if norm == pb.FillerParameter.AVERAGE:
        return (into + out_of) / 2
    return out_of if norm == pb.FillerParameter.FAN_OUT else into


def _gaussian(blob: Tensor, filler: pb.FillerParameter, generator: Generator) -> None:
    blob.normal_(filler.mean, filler.std, generator=generator)
    if filler.sparse >= 0:
        if not blob.dim():
            raise InputError("filler 'gaussian'", "cannot make a single value sparse", "remove sparse")
        # On average `sparse` weights of each output are not 0.
        share = filler.sparse / blob.shape[0]
        if share > 1:
            what = f"has sparse: {filler.sparse}, for {blob.shape[0]} outputs"
            raise InputError("filler 'gaussian'", what, f"sparse: {blob.shape[0]} at most")
        blob *= torch.rand(blob.shape, generator=generator) < share


def _positive_unitball(blob: Tensor, filler: pb.FillerParameter, generator: Generator) -> None:
    rows = blob.view(blob.shape[0], -1) if blob.dim() else blob.view(1, 1)
    rows.uniform_(0, 1, generator=generator)
    rows /= rows.sum(1, keepdim=True)


def _xavier(blob: Tensor, filler: pb.FillerParameter, generator: Generator) -> None:
    bound = math.sqrt(3 / fan(tuple(blob.shape), filler.variance_norm))
    blob.uniform_(-bound, bound, generator=generator)


def _msra(blob: Tensor, filler: pb.FillerParameter, generator: Generator) -> None:
    deviation = filler.scale * math.sqrt(2 / fan(tuple(blob.shape), filler.variance_norm))
    blob.normal_(0, deviation, generator=generator)


def _bilinear(blob: Tensor, filler: pb.FillerParameter, generator: Generator) -> None:
    if blob.dim() != 4 or blob.shape[2] != blob.shape[3]:
        raise InputError("filler 'bilinear'", f"cannot fill {tuple(blob.shape)}", "it is for square kernels")
    half = math.ceil(blob.shape[3] / 2)
    centre = (2 * half - 1 - half % 2) / (2 * half)
    line = 1 - (torch.arange(blob.shape[3]) / half - centre).abs()
    blob.copy_(line[:, None] * line[None, :])


def _gabor(blob: Tensor, filler: pb.FillerParameter, generator: Generator) -> None:
    known = {(count, 3, size, size) for count, size in BANKS}
    shape = tuple(blob.shape)
    if shape not in known:
        shapes = ", ".join(" x ".join(map(str, each)) for each in sorted(known))
        raise InputError(
            "filler 'gabor'", f"cannot fill {' x '.join(map(str, shape))}", f"it is for {shapes}"
        )
    blob.copy_(torch.from_numpy(draw_kernels(shape[0], shape[2])))


FILLERS: dict[str, _Fill] = {
    "constant": lambda blob, filler, generator: blob.fill_(filler.value),
    "uniform": lambda blob, filler, generator: blob.uniform_(filler.min, filler.max, generator=generator),
    "gaussian": _gaussian,
    "positive_unitball": _positive_unitball,
    "xavier": _xavier,
    "msra": _msra,
    "bilinear": _bilinear,
    "gabor": _gabor,
}
