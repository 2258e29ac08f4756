"""Deploy nets of random nets are exported with the numbers of the engine, or refused in one line."""

from __future__ import annotations

import numpy as np
import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.deploy import derive_deploy
from caffe_recipes.engine.module import build_module
from caffe_recipes.engine.opencv_check import compare_opencv, make_weights
from caffe_recipes.errors import CaffeRecipesError, CheckFailed, InputError
from tests.engine.random_nets import random_net
from tests.extras import needs_onnx

pytestmark = needs_onnx
SEEDS = range(0, 120)


def deploy_nets() -> list[pb.NetParameter]:
    found = []
    for seed in SEEDS:
        try:
            found.append(derive_deploy(random_net(seed), path=f"net {seed}").net)
        except CaffeRecipesError:
            continue
    return found


def export(net: pb.NetParameter) -> None:
    from caffe_recipes.engine.onnx_exports import compare_onnx
    from caffe_recipes.engine.onnx_graph import build_onnx, free_shapes

    module = build_module(net, make_weights(net), "net", "weights")
    model = build_onnx(module, {})
    is_free = free_shapes(module)[0][:1] == (-1,)
    for more in (0, 1) if is_free else (0,):
        shapes = [(shape[0] + more, *shape[1:]) for shape in module.input_shapes]
        inputs = [np.random.default_rng(more).random(shape, np.float32) for shape in shapes]
        compare_onnx(module, model, module.output_indexes, [inputs])


def test_random_nets_are_exported_or_refused() -> None:
    exported = 0
    for net in deploy_nets():
        try:
            export(net)
            exported += 1
        except CheckFailed as error:
            assert "not finite" in error.what
        except InputError:
            continue
    assert exported > 20


def test_random_nets_never_end_opencv_in_a_traceback() -> None:
    for net in deploy_nets():
        try:
            compare_opencv(net, None, "net")
        except (InputError, CheckFailed) as error:
            assert "\n" not in str(error)


@pytest.mark.parametrize("batch", [1, 3])
def test_a_net_without_weights_is_exported(batch: int) -> None:
    net = pb.NetParameter()
    net.layer.add(name="x", type="Input", top=["x"]).input_param.shape.add(dim=[batch, 2])
    net.layer.add(name="y", type="Softmax", bottom=["x"], top=["y"])
    export(net)
