"""Operators that move values against plain numpy loops or values worked out by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from tests.engine.operators.conftest import Array, apply, noise, set_up


def test_layers_that_only_move_values() -> None:
    x = noise(2, 6, 3, 2)
    a = x.numpy()
    assert (apply('type: "Flatten"', x) == a.reshape(2, 36)).all()
    assert (apply('type: "Flatten" flatten_param { axis: 1 end_axis: 2 }', x) == a.reshape(2, 18, 2)).all()
    reshape = 'type: "Reshape" reshape_param { shape { dim: 0 dim: -1 dim: 4 } }'
    assert (apply(reshape, x) == a.reshape(2, 9, 4)).all()
    permute = 'type: "Permute" permute_param { order: 0 order: 2 order: 3 order: 1 }'
    assert (apply(permute, x) == a.transpose(0, 2, 3, 1)).all()
    assert (apply('type: "Concat" concat_param { axis: 2 }', x, x) == np.concatenate([a, a], 2)).all()
    crop = 'type: "Crop" crop_param { axis: 2 offset: 1 }'
    assert (apply(crop, x, noise(9, 9, 2, 1)) == a[:, :, 1:3, 1:2]).all()


def test_slice_cuts_at_points_or_into_equal_parts() -> None:
    x = noise(2, 6, 3)
    at, _ = set_up('type: "Slice" slice_param { slice_point: 1 slice_point: 4 }', (2, 6, 3), tops=3)
    assert [tuple(part.shape) for part in at([x], [])] == [(2, 1, 3), (2, 3, 3), (2, 2, 3)]
    even, _ = set_up('type: "Slice"', (2, 6, 3), tops=2)
    assert torch.equal(torch.cat(even([x], []), 1), x)


@pytest.mark.parametrize(
    ("operation", "function"),
    [
        ("SUM", lambda x: x.sum((1, 2))),
        ("ASUM", lambda x: np.abs(x).sum((1, 2))),
        ("SUMSQ", lambda x: (x * x).sum((1, 2))),
        ("MEAN", lambda x: x.mean((1, 2))),
    ],
)
def test_reduction(operation: str, function: Callable[[Array], Array]) -> None:
    x = noise(3, 4, 5)
    text = f'type: "Reduction" reduction_param {{ operation: {operation} axis: 1 coeff: 2 }}'
    assert apply(text, x) == pytest.approx(2 * function(x.numpy()), rel=1e-5, abs=1e-5)


def test_arg_max_gives_of_equals_the_later_class() -> None:
    x = torch.tensor([[1.0, 3.0, 3.0, 0.0], [5.0, 1.0, 2.0, 5.0]])
    assert apply('type: "ArgMax"', x).tolist() == [[[2.0]], [[3.0]]]
    both = apply('type: "ArgMax" argmax_param { top_k: 2 out_max_val: true }', x)
    assert both.tolist() == [[[2, 1], [3, 3]], [[3, 0], [5, 5]]]
    assert apply('type: "ArgMax" argmax_param { axis: 1 out_max_val: true }', x).tolist() == [[3], [5]]
