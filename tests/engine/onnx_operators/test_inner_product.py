"""Inner products and embeddings in onnxruntime give the engine's values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.extras import needs_onnx

pytestmark = needs_onnx


@pytest.mark.parametrize(
    ("text", "shape", "is_free"),
    [
        ("", (2, 3, 4, 5), True),
        ("bias_term: false", (2, 7), True),
        ("transpose: true", (2, 3, 4), True),
        ("axis: 2", (2, 3, 4, 5), True),
        ("axis: -1", (2, 3, 4), True),
        ("axis: 0", (2, 3), False),
    ],
)
def test_axes_are_joined_as_caffe_does(
    tmp_path: Path, text: str, shape: tuple[int, ...], is_free: bool
) -> None:
    from tests.engine.onnx_operators.conftest import check_layer

    layer = f'type: "InnerProduct" inner_product_param {{ num_output: 6 {text} }}'
    check_layer(tmp_path, layer, shape, is_free=is_free)


def test_rows_of_an_embedding_and_a_learned_blob(tmp_path: Path) -> None:
    from tests.engine.onnx_operators.conftest import inputs_text, load_text, run_onnx

    text = """layer { name: "e" type: "Embed" bottom: "x0" top: "e"
      embed_param { input_dim: 4 num_output: 3 } }
    layer { name: "p" type: "Parameter" top: "p" parameter_param { shape { dim: 2 dim: 3 } } }"""
    module = load_text(tmp_path, inputs_text((2, 3)) + text)
    x = np.array([[0, 3, 1], [2, 2, 0]], np.float32)
    made, wanted = run_onnx(module, [x]), module(torch.from_numpy(x))
    for name in ("e", "p"):
        np.testing.assert_array_equal(made[name], wanted[name].detach().numpy())
