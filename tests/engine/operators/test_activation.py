"""Functions of single values against plain numpy loops or values worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from caffe_recipes.caffe import pb
from tests.engine.operators.conftest import apply


def test_dropout_keeps_the_mean_in_training_and_everything_in_testing() -> None:
    torch.manual_seed(0)
    x = torch.ones(100_000)
    text = 'type: "Dropout" dropout_param { dropout_ratio: 0.2 }'
    kept = apply(text, x)
    assert set(np.unique(kept)) == {0, np.float32(1.25)}
    assert kept.mean() == pytest.approx(1, abs=0.02)
    assert (apply(text, x, phase=pb.TEST) == 1).all()
