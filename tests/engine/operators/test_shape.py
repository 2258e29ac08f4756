"""Operators that move values against plain numpy loops or values worked out by hand."""

from __future__ import annotations

import torch

from tests.engine.operators.conftest import apply


def test_arg_max_gives_of_equals_the_later_class() -> None:
    x = torch.tensor([[1.0, 3.0, 3.0, 0.0], [5.0, 1.0, 2.0, 5.0]])
    assert apply('type: "ArgMax"', x).tolist() == [[[2.0]], [[3.0]]]
    both = apply('type: "ArgMax" argmax_param { top_k: 2 out_max_val: true }', x)
    assert both.tolist() == [[[2, 1], [3, 3]], [[3, 0], [5, 5]]]
    assert apply('type: "ArgMax" argmax_param { axis: 1 out_max_val: true }', x).tolist() == [[3], [5]]
