"""An ONNX file is written only if onnxruntime gives the engine's numbers with it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from caffe_recipes.errors import CheckFailed, InputError
from tests.engine.test_module import NET, WORDS
from tests.engine.test_state_files import model_in
from tests.extras import needs_onnx

pytestmark = needs_onnx


def test_the_line_says_how_exactly_both_agree_on_which_inputs(tmp_path: Path) -> None:
    import onnxruntime

    from caffe_recipes.engine.onnx_exports import export_onnx

    cv2.imwrite(str(tmp_path / "i.png"), np.full((6, 6, 3), 50, np.uint8))
    line = export_onnx(model_in(tmp_path), [tmp_path / "i.png"], tmp_path / "a.onnx")
    assert line.startswith("a batch of any size; onnxruntime agrees within ")
    assert line.endswith(" of the largest value, on random images and 1 given")
    session = onnxruntime.InferenceSession(tmp_path / "a.onnx")
    (scores,) = session.run(None, {"data": np.zeros((4, 3, 6, 6), np.float32)})
    assert scores.shape == (4, 5)
    assert session.get_modelmeta().custom_metadata_map["classes"] == '["ant", "bee"]'


def test_a_file_does_not_name_more_classes_than_the_net_has(tmp_path: Path) -> None:
    from caffe_recipes.engine.onnx_exports import export_onnx

    model = model_in(tmp_path)
    more = replace(model, description=model.description.model_copy(update={"classes": tuple("abcdef")}))
    with pytest.raises(InputError, match="has 5 classes, but 6 names are given"):
        export_onnx(more, [], tmp_path / "a.onnx")


def test_a_file_that_differs_is_refused(tmp_path: Path) -> None:
    from caffe_recipes.engine.module import load_module
    from caffe_recipes.engine.onnx_exports import compare_onnx
    from caffe_recipes.engine.onnx_graph import build_onnx

    first, second = model_in(tmp_path), model_in(tmp_path / "b", seed=1)
    other = build_onnx(load_module(first.net, first.weights), {})
    module = load_module(second.net, second.weights)
    inputs = [np.random.default_rng(0).random((1, 3, 6, 6), np.float32)]
    with pytest.raises(CheckFailed, match=r"output 'prob': onnxruntime differs by .* of the largest value"):
        compare_onnx(module, other, module.output_indexes, [inputs])
    del other.graph.node[0]
    with pytest.raises(CheckFailed, match="onnxruntime cannot run the net"):
        compare_onnx(module, other, module.output_indexes, [inputs])


def test_a_net_whose_output_is_not_finite_is_refused(tmp_path: Path) -> None:
    from caffe_recipes.engine.onnx_exports import export_onnx

    text = NET.replace('type: "Softmax"', 'type: "Log"')
    with pytest.raises(CheckFailed, match="has values that are not finite"):
        export_onnx(model_in(tmp_path, text), [], tmp_path / "a.onnx")
    assert not (tmp_path / "a.onnx").exists()


def test_inputs_that_are_words_are_compared_on_words(tmp_path: Path) -> None:
    from caffe_recipes.engine.onnx_exports import export_onnx

    line = export_onnx(model_in(tmp_path, WORDS), [], tmp_path / "a.onnx")
    assert line.startswith("a batch of any size; onnxruntime agrees")
