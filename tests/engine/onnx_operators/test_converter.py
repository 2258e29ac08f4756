"""Names in a graph are unique."""

from __future__ import annotations

from tests.extras import needs_onnx

pytestmark = needs_onnx


def test_a_name_that_is_taken_gets_a_number() -> None:
    from caffe_recipes.engine.onnx_operators.converter import OnnxGraph

    graph = OnnxGraph()
    assert [graph.reserve("a") for _ in range(3)] == ["a", "a_1", "a_2"]
