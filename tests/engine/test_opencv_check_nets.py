"""OpenCV and onnxruntime give the engine's numbers for nets such as AlexNet, GoogLeNet and ResNet-50."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.engine.module import build_module
from caffe_recipes.engine.opencv_check import compare_opencv, make_weights
from caffe_recipes.engine.settings import load_net
from caffe_recipes.review.deploy import DeployChoices, load_deploy
from tests.extras import needs_onnx

pytestmark = needs_onnx


def conv(name: str, bottom: str, outputs: int, kernel: int, more: str = "") -> str:
    return f"""layer {{ name: "{name}" type: "Convolution" bottom: "{bottom}" top: "{name}"
      convolution_param {{ num_output: {outputs} kernel_size: {kernel} {more} }} }}
    layer {{ name: "{name}_relu" type: "ReLU" bottom: "{name}" top: "{name}" }}
    """


def pool(name: str, bottom: str, settings: str) -> str:
    ends = f'name: "{name}" bottom: "{bottom}" top: "{name}"'
    return f'layer {{ {ends} type: "Pooling" pooling_param {{ {settings} }} }}\n'


def norm(name: str, bottom: str) -> str:
    settings = "local_size: 5 alpha: 0.0001 beta: 0.75"
    ends = f'name: "{name}" bottom: "{bottom}" top: "{name}"'
    return f'layer {{ {ends} type: "LRN" lrn_param {{ {settings} }} }}\n'


def head(bottom: str) -> str:
    return f"""layer {{ name: "drop" type: "Dropout" bottom: "{bottom}" top: "{bottom}" }}
    layer {{ name: "fc" type: "InnerProduct" bottom: "{bottom}" top: "fc"
      inner_product_param {{ num_output: 10 }} }}
    layer {{ name: "prob" type: "Softmax" bottom: "fc" top: "prob" }}"""


ALEX = (
    conv("conv1", "data", 16, 11, "stride: 4")
    + norm("norm1", "conv1")
    + pool("pool1", "norm1", "kernel_size: 3 stride: 2")
    + conv("conv2", "pool1", 24, 5, "pad: 2 group: 2")
    + pool("pool2", "conv2", "kernel_size: 3 stride: 2")
    + head("pool2")
)
GOOGLE = (
    conv("conv1", "data", 8, 7, "pad: 3 stride: 2")
    + pool("pool1", "conv1", "kernel_size: 3 stride: 2")
    + norm("norm1", "pool1")
    + conv("one/1x1", "norm1", 4, 1)
    + conv("one/3x3_reduce", "norm1", 4, 1)
    + conv("one/3x3", "one/3x3_reduce", 8, 3, "pad: 1")
    + pool("one/pool", "norm1", "kernel_size: 3 stride: 1 pad: 1")
    + conv("one/pool_proj", "one/pool", 4, 1)
    + """layer { name: "one/output" type: "Concat" top: "one/output"
      bottom: "one/1x1" bottom: "one/3x3" bottom: "one/pool_proj" }
    """
    + pool("pool2", "one/output", "pool: AVE kernel_size: 5 stride: 3 pad: 1")
    + head("pool2")
)
INPUT = """layer { name: "data" type: "Input" top: "data"
  input_param { shape { dim: 1 dim: 3 dim: 67 dim: 67 } } }
"""


def check(net: pb.NetParameter) -> None:
    from caffe_recipes.engine.onnx_exports import compare_onnx
    from caffe_recipes.engine.onnx_graph import build_onnx

    assert compare_opencv(net, None, "net") < 1e-4
    module = build_module(net, make_weights(net), "net", "weights")
    inputs = [np.random.default_rng(0).standard_normal(shape, np.float32) for shape in module.input_shapes]
    model = build_onnx(module, {})
    assert compare_onnx(module, model, module.output_indexes, [inputs]) < 1e-4


@pytest.mark.parametrize("layers", [ALEX, GOOGLE], ids=["alex", "google"])
def test_nets_with_norms_groups_and_branches(tmp_path: Path, layers: str) -> None:
    (tmp_path / "n.prototxt").write_text(INPUT + layers)
    check(load_net(str(tmp_path / "n.prototxt")))


@pytest.mark.parametrize(
    "recipe", ["digits-local", pytest.param("stampede2-64n-72ep", marks=pytest.mark.slow)]
)
def test_deploy_nets_of_recipes(recipe: str) -> None:
    check(load_deploy(recipe, DeployChoices()).net)
