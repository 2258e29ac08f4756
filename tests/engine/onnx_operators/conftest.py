"""A layer in a net, run by the engine and, as its ONNX graph, by onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray

from caffe_recipes.engine.module import CaffeModule, load_module
from caffe_recipes.engine.onnx_graph import build_onnx
from tests.engine.test_module import write_net

Array = NDArray[np.float32]


def load_text(folder: Path, text: str) -> CaffeModule:
    """Return the module of a net with random weights."""
    return load_module(*write_net(folder, text))


def run_onnx(module: CaffeModule, inputs: Sequence[Array]) -> dict[str, Array]:
    session = onnxruntime.InferenceSession(build_onnx(module, {}).SerializeToString())
    names = [one.name for one in session.get_outputs()]
    return dict(
        zip(names, session.run(names, dict(zip(module.input_names, inputs, strict=True))), strict=True)
    )


def inputs_text(*shapes: tuple[int, ...]) -> str:
    """Return an Input layer with the tops x0, x1, ... of these shapes."""
    tops = " ".join(f'top: "x{index}"' for index in range(len(shapes)))
    dims = " ".join("shape { " + " ".join(f"dim: {dim}" for dim in shape) + " }" for shape in shapes)
    return f'layer {{ name: "in" type: "Input" {tops} input_param {{ {dims} }} }}\n'


def check_layer(
    folder: Path, text: str, *shapes: tuple[int, ...], tops: int = 1, is_free: bool = True
) -> None:
    """Assert that onnxruntime gives the engine's values for a layer, also with one image more."""
    bottoms = " ".join(f'bottom: "x{index}"' for index in range(len(shapes)))
    named = " ".join(f'top: "y{index}"' for index in range(tops))
    module = load_text(folder, f'{inputs_text(*shapes)}layer {{ name: "l" {bottoms} {named} {text} }}')
    random = np.random.default_rng(0)
    for more in range(1 + is_free):
        given = [random.standard_normal((s[0] + more, *s[1:]), np.float32) for s in shapes]
        made = run_onnx(module, given)
        with torch.no_grad():
            wanted = module(*map(torch.from_numpy, given))
        wanted = wanted if isinstance(wanted, dict) else {module.output_names[0]: wanted}
        assert list(made) == list(wanted)
        for name, values in wanted.items():
            np.testing.assert_allclose(made[name], values.numpy(), rtol=1e-5, atol=1e-5, err_msg=name)
