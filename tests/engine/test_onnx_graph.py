"""The ONNX graph of a net has the names of its blobs, a free batch where the net allows one, and metadata."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from caffe_recipes.errors import InputError
from tests.engine.test_module import NAMES, NET
from tests.extras import needs_onnx

pytestmark = needs_onnx
INPUT = 'layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }\n'


def test_values_weights_and_metadata_have_their_names(tmp_path: Path) -> None:
    import onnx

    from caffe_recipes.engine.onnx_graph import build_onnx
    from tests.engine.onnx_operators.conftest import load_text

    module = load_text(tmp_path, f'name: "small"\n{NET}')
    model = build_onnx(module, {"classes": '["a"]'})
    onnx.checker.check_model(model, full_check=True)
    graph = model.graph
    assert (graph.name, [one.name for one in graph.output]) == ("small", ["prob"])
    dims = [dim.dim_param or dim.dim_value for dim in graph.input[0].type.tensor_type.shape.dim]
    assert (graph.input[0].name, dims) == ("data", ["batch", 3, 6, 6])
    assert {one.name for one in graph.initializer} >= NAMES.keys()
    assert {value for node in graph.node for value in node.output} >= {"a", "b", "fc", "prob"}
    assert [(one.key, one.value) for one in model.metadata_props] == [("classes", '["a"]')]
    again = build_onnx(load_text(tmp_path, f'name: "small"\n{NET}'), {"classes": '["a"]'})
    assert again.SerializeToString(deterministic=True) == model.SerializeToString(deterministic=True)


@pytest.mark.parametrize(
    ("text", "is_free"),
    [
        ('type: "Softmax"', True),
        ('type: "Reshape" reshape_param { shape { dim: 2 dim: 3 } }', False),
        ('type: "Flatten" flatten_param { axis: 0 }', False),
        ('type: "Tile" tile_param { axis: 0 tiles: 2 }', False),
    ],
)
def test_a_batch_is_free_if_the_net_takes_any(tmp_path: Path, text: str, is_free: bool) -> None:
    from caffe_recipes.engine.onnx_graph import free_shapes
    from tests.engine.onnx_operators.conftest import load_text

    module = load_text(tmp_path, f'{INPUT}layer {{ name: "l" bottom: "x" top: "y" {text} }}')
    assert (free_shapes(module)[0] == (-1, 3)) is is_free
    assert module.input_shapes == [(2, 3)]
    assert module(torch.zeros(2, 3)).numel() >= 6


def test_blobs_in_place_split_or_passed_on_keep_their_values(tmp_path: Path) -> None:
    from tests.engine.onnx_operators.conftest import load_text, run_onnx

    text = INPUT + (
        """layer { name: "a" type: "Power" bottom: "x" top: "y" power_param { shift: 1 } }
        layer { name: "b" type: "Power" bottom: "y" top: "y" power_param { scale: 2 } }
        layer { name: "c" type: "Eltwise" bottom: "x" bottom: "y" top: "sum" }
        layer { name: "d" type: "Dropout" bottom: "y" top: "drop" }
        layer { name: "e" type: "Dropout" bottom: "x" top: "same" }"""
    )
    x = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
    made = run_onnx(load_text(tmp_path, text), [x])
    np.testing.assert_array_equal(made["sum"], 3 * x + 2)
    np.testing.assert_array_equal(made["drop"], 2 * x + 2)
    np.testing.assert_array_equal(made["same"], x)


def test_an_output_in_place_of_an_input_gets_a_name_of_its_own(tmp_path: Path) -> None:
    from tests.engine.onnx_operators.conftest import load_text, run_onnx

    text = INPUT + 'layer { name: "a" type: "Power" bottom: "x" top: "x" power_param { shift: 1 } }'
    x = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
    (made,) = run_onnx(load_text(tmp_path, text), [x]).items()
    assert made[0] == "x_1"
    np.testing.assert_array_equal(made[1], x + 1)


def test_all_layers_without_a_counterpart_are_named_at_once(tmp_path: Path) -> None:
    from tests.engine.onnx_operators.conftest import load_text, run_onnx

    text = """layer { name: "in" type: "Input" top: "x" top: "c"
      input_param { shape { dim: 2 dim: 1 dim: 3 } shape { dim: 2 dim: 1 } } }
    layer { name: "r" type: "RNN" bottom: "x" bottom: "c" top: "r" recurrent_param { num_output: 3 } }
    layer { name: "n" type: "BatchNorm" bottom: "r" top: "n" batch_norm_param { use_global_stats: false } }
    layer { name: "o" type: "BatchNorm" bottom: "n" top: "o" batch_norm_param { use_global_stats: false } }
    layer { name: "s" type: "LSTM" bottom: "o" bottom: "c" top: "s" recurrent_param { num_output: 3 } }"""
    with pytest.raises(InputError) as caught:
        run_onnx(load_text(tmp_path, text), [])
    assert caught.value.what == (
        "cannot be exported to ONNX: layer 'r' (RNN), layer 's' (LSTM); layer 'n' (BatchNorm), "
        "layer 'o' (BatchNorm): statistics of the batch (write use_global_stats: true)"
    )
