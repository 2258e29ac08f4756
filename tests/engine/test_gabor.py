"""The kernels of the gabor filler, against numbers of Caffe's own KernelGenerator."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from caffe_recipes.caffe import pb
from caffe_recipes.engine.fillers import fill
from caffe_recipes.engine.gabor import draw_kernels
from caffe_recipes.errors import InputError

# The sum of all |weights|, and of each weight times its index.
SUMS = {
    (32, 5): (252.37528176605701, 11850.251572422685),
    (64, 7): (1106.1863243403204, -31803.86455683288),
    (64, 3): (302.0409441497177, -456.2266358882189),
    (96, 11): (1888.1709299954236, -60757.72444835387),
}


@pytest.mark.parametrize(("count", "size"), SUMS)
def test_kernels_are_those_of_caffe(count: int, size: int) -> None:
    blob = torch.empty(count, 3, size, size)
    fill(blob, pb.FillerParameter(type="gabor"), torch.Generator())
    values = blob.numpy().astype(np.float64).reshape(-1)
    found = np.abs(values).sum(), values @ np.arange(values.size)
    assert found == pytest.approx(SUMS[count, size], rel=1e-6)


def test_single_weights_are_those_of_caffe() -> None:
    found = [draw_kernels(96, 11)[0, 0, 0, :2], draw_kernels(64, 7)[-1, 2, -1, :2]]
    wanted = [[-0.00233636, 0.0047999], [-0.10113505, -0.16235077]]
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


@pytest.mark.parametrize("shape", [(64, 3, 5, 5), (96, 1, 11, 11), (96, 3), ()])
def test_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="cannot fill") as caught:
        fill(torch.empty(shape), pb.FillerParameter(type="gabor"), torch.Generator())
    assert "96 x 3 x 11 x 11" in str(caught.value)
