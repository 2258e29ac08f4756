"""A module computes what the net of phase TEST computes, on any batch, from a state dict with plain names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from google.protobuf import text_format

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.layer_types.normalization import statistic_blobs
from caffe_recipes.caffe.shapes import infer_shapes
from caffe_recipes.caffe.weights import save_message
from caffe_recipes.engine.glog import Log
from caffe_recipes.engine.module import load_module
from caffe_recipes.engine.net import RunnableNet
from caffe_recipes.engine.operators.data import DataContext
from caffe_recipes.engine.settings import load_net
from caffe_recipes.engine.snapshot import copy_weights
from caffe_recipes.errors import DataError, InputError

NET = """
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 3 dim: 6 dim: 6 } } }
layer { name: "conv.1" type: "Convolution" bottom: "data" top: "a"
  convolution_param { num_output: 4 kernel_size: 3 bias_term: false } }
layer { name: "type" type: "BatchNorm" bottom: "a" top: "a" }
layer { name: "scale/1" type: "Scale" bottom: "a" top: "a" scale_param { bias_term: true } }
layer { name: "relu" type: "ReLU" bottom: "a" top: "a" }
layer { name: "slope" type: "PReLU" bottom: "a" top: "b" }
layer { name: "drop" type: "Dropout" bottom: "b" top: "b" }
layer { name: "fc" type: "InnerProduct" bottom: "b" top: "fc" inner_product_param { num_output: 5 } }
layer { name: "prob" type: "Softmax" bottom: "fc" top: "prob" }
"""
NAMES = {
    "conv.1.weight": (4, 3, 3, 3),
    "type.running_mean": (4,),
    "type.running_var": (4,),
    "scale/1.weight": (4,),
    "scale/1.bias": (4,),
    "slope.weight": (4,),
    "fc.weight": (5, 64),
    "fc.bias": (5,),
}


def parse_net(text: str) -> pb.NetParameter:
    net = text_format.Parse(text, pb.NetParameter())
    net.state.phase = pb.TEST
    return net


def random_weights(net: pb.NetParameter, seed: int = 0) -> pb.NetParameter:
    """Return positive values for each blob of a net, since some are variances."""
    random = np.random.default_rng(seed)
    weights = pb.NetParameter()
    weights.layer.add(name="of another net").blobs.add(shape=pb.BlobShape(dim=[1]), data=[0.0])
    for one in infer_shapes(net, pb.TEST).layers:
        layer = weights.layer.add(name=one.layer.name, type=one.layer.type)
        for index, shape in enumerate(one.learned or ()):
            dims = [dim or 1 for dim in shape]
            is_signed = len(dims) > 1 and index not in statistic_blobs(one.layer)
            values = random.uniform(0.1, 1.0, dims) * (random.choice([-1, 1], dims) if is_signed else 1)
            layer.blobs.add(
                shape=pb.BlobShape(dim=dims), data=(values / (dims[-1] if dims else 1)).ravel().tolist()
            )
    return weights


def write_net(folder: Path, text: str, seed: int = 0) -> tuple[Path, Path]:
    folder.mkdir(exist_ok=True)
    paths = folder / "deploy.prototxt", folder / "w.caffemodel"
    paths[0].write_text(text)
    save_message(random_weights(load_net(str(paths[0])), seed), paths[1])
    return paths


def run_net(text: str, x: torch.Tensor, seed: int = 0) -> dict[str, torch.Tensor]:
    """Return the outputs of the engine's own net, in which BatchNorm divides by its factor."""
    param = parse_net(text)
    net = RunnableNet(param, "n", DataContext(0, 1, 0, 0, Log(enabled=False)), torch.Generator())
    copy_weights(net, random_weights(param, seed), "w", Log(enabled=False))
    net.nodes[0].forward = lambda xs, blobs: [x]
    net.forward()
    return {output.name: net.value(output.index) for output in net.outputs}


def test_any_batch_gives_the_outputs_of_the_net(tmp_path: Path) -> None:
    module = load_module(*write_net(tmp_path, NET))
    assert not module.training
    assert (module.input_names, module.output_names) == (("data",), ("prob",))
    for batch in (1, 3):
        x = torch.randn(batch, 3, 6, 6)
        kept = x.clone()
        torch.testing.assert_close(module(x), run_net(NET, x)["prob"])
        assert torch.equal(x, kept)
    module.train()
    x = torch.randn(2, 3, 6, 6)
    torch.testing.assert_close(module(x), run_net(NET, x)["prob"])


def test_the_state_dict_is_named_by_layer_and_role_and_can_be_loaded(tmp_path: Path) -> None:
    module = load_module(*write_net(tmp_path, NET))
    state = module.state_dict()
    assert {name: tuple(values.shape) for name, values in state.items()} == NAMES
    other = load_module(*write_net(tmp_path, NET, seed=1))
    x = torch.randn(2, 3, 6, 6)
    assert not torch.allclose(other(x), module(x))
    other.load_state_dict(state)
    assert torch.equal(other(x), module(x))
    doubled = module.double()
    assert doubled(x.double()).dtype == torch.float64


POOLING = (
    NET[: NET.index("layer {", 9)]
    + """layer { name: "pool" type: "Pooling" bottom: "data" top: "pool"
  pooling_param { kernel_size: 2 stride: 2 } }
"""
)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int16, torch.int64])
def test_integers_become_the_type_of_the_weights(tmp_path: Path, dtype: torch.dtype) -> None:
    image = torch.randint(0, 2, (1, 3, 6, 6)).to(dtype)
    if dtype == torch.int64:
        image += 2**24 + 1  # float32 rounds it, as Caffe does
    norm = '"BatchNorm" batch_norm_param { use_global_stats: false }'
    for text in (NET, POOLING, NET.replace('"BatchNorm"', norm)):
        module = load_module(*write_net(tmp_path, text))
        assert torch.equal(module(image), module(image.float()))


def test_the_conversion_of_integers_reads_no_values(tmp_path: Path) -> None:
    module = load_module(*write_net(tmp_path, NET)).to("meta")
    assert module(torch.zeros(1, 3, 6, 6, dtype=torch.int64, device="meta")).dtype == torch.float32


def test_numbers_that_are_not_those_of_the_weights_are_refused_by_name(tmp_path: Path) -> None:
    module, x = load_module(*write_net(tmp_path, NET)), torch.ones(1, 3, 6, 6)
    wrong = r"input 'data' is float64, but the weights are float32; convert it: x.to\(torch.float32\)$"
    with pytest.raises(DataError, match=wrong):
        module(x.double())
    with torch.autocast("cpu", torch.bfloat16):
        assert module(x.half()).shape == (1, 5)
        with pytest.raises(DataError, match=wrong):
            module(x.double())
    pooling = load_module(*write_net(tmp_path, POOLING))
    for each in (module, pooling):
        with pytest.raises(DataError, match=r"is complex64, but the weights are float32; give real numbers$"):
            each(x + 1j)
    assert pooling(x.double()).dtype == torch.float64


def test_integers_that_weights_of_16_bits_may_not_represent_are_refused(tmp_path: Path) -> None:
    module, image = load_module(*write_net(tmp_path, NET)).bfloat16(), torch.full((1, 3, 6, 6), 200)
    assert torch.equal(module(image.to(torch.uint8)), module(image.bfloat16()))
    wrong = r"is int64, whose values bfloat16 may not represent; .*or convert it: x.to\(torch.bfloat16\)$"
    with pytest.raises(DataError, match=wrong):
        module(image)


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ((), r"takes 1 tensor \(data\), not 0"),
        ((None,), "input 'data' is a NoneType, not a tensor$"),
        (
            (np.zeros((1, 3, 6, 6)),),
            r"input 'data' is a ndarray, not a tensor; convert it: torch.from_numpy\(x\)",
        ),
    ],
)
def test_what_is_not_a_tensor_for_each_input_is_refused(
    tmp_path: Path, inputs: tuple[object, ...], text: str
) -> None:
    with pytest.raises(TypeError, match=text):
        load_module(*write_net(tmp_path, NET))(*inputs)


def test_gradients_reach_the_weights_and_the_input(tmp_path: Path) -> None:
    module = load_module(*write_net(tmp_path, NET))
    x = torch.randn(1, 3, 6, 6, requires_grad=True)
    module(x)[0, 1].backward()
    assert all(parameter.grad is not None for parameter in module.parameters())
    assert x.grad is not None


def test_several_inputs_and_outputs_go_by_their_names(tmp_path: Path) -> None:
    two = """layer { name: "in" type: "Input" top: "x" top: "y" input_param { shape { dim: 2 dim: 3 } } }
    layer { name: "s" type: "Eltwise" bottom: "x" bottom: "y" top: "sum" }
    layer { name: "t" type: "TanH" bottom: "x" top: "t" }
    layer { name: "w" type: "Bias" bottom: "x" top: "w" }"""
    module = load_module(*write_net(tmp_path, two))
    x, y = torch.randn(4, 3), torch.randn(4, 3)
    made = module(x, y)
    assert list(made) == ["sum", "t", "w"]
    torch.testing.assert_close(made["sum"], x + y)
    torch.testing.assert_close(made["w"], x + module.state_dict()["w.bias"])
    with pytest.raises(TypeError, match=r"takes 2 tensors \(x, y\)"):
        module(x)


def test_a_layer_in_place_on_the_input_leaves_the_given_tensor_as_it_is(tmp_path: Path) -> None:
    text = """layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 1 dim: 3 } } }
    layer { name: "r" type: "ReLU" bottom: "x" top: "x" }"""
    module = load_module(*write_net(tmp_path, text))
    x = torch.tensor([[-1.0, 0.0, 2.0]])
    assert module(x).tolist() == [[0, 0, 2]]
    assert x.tolist() == [[-1, 0, 2]]


def test_layers_that_share_a_blob_share_a_parameter(tmp_path: Path) -> None:
    shared = """layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 1 dim: 3 } } }
    layer { name: "a" type: "InnerProduct" bottom: "x" top: "a" param { name: "w" }
      inner_product_param { num_output: 3 bias_term: false } }
    layer { name: "b" type: "InnerProduct" bottom: "a" top: "b" param { name: "w" }
      inner_product_param { num_output: 3 bias_term: false } }"""
    module = load_module(*write_net(tmp_path, shared))
    assert sorted(module.state_dict()) == ["a.weight", "b.weight"]
    assert len(list(module.parameters())) == 1
    w, x = module.state_dict()["a.weight"], torch.randn(2, 3)
    torch.testing.assert_close(module(x), x @ w.T @ w.T)


def test_statistics_of_the_batch_do_not_change_the_running_ones(tmp_path: Path) -> None:
    text = """layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }
    layer { name: "bn" type: "BatchNorm" bottom: "x" top: "y"
      batch_norm_param { use_global_stats: false } }"""
    module = load_module(*write_net(tmp_path, text))
    before = {name: values.clone() for name, values in module.state_dict().items()}
    x = torch.randn(5, 3)
    torch.testing.assert_close(module(x), run_net(text, x)["y"])
    assert all(torch.equal(before[name], values) for name, values in module.state_dict().items())


def test_images_of_another_size_and_nets_that_read_data_are_refused(tmp_path: Path) -> None:
    module = load_module(*write_net(tmp_path, NET))
    for _ in range(2):
        with pytest.raises(DataError, match="'fc' was set up for a different size; give inputs of the sizes"):
            module(torch.randn(1, 3, 8, 8))
    assert module(torch.randn(1, 3, 6, 6)).shape == (1, 5)
    dummy = NET.replace('"Input"', '"DummyData"').replace("input_param", "dummy_data_param")
    absent = 'layer { name: "data" type: "Data" top: "data" data_param { source: "absent" batch_size: 1 } }'
    for kind, text in (("DummyData", dummy), ("Data", "\n".join([absent, *NET.strip().splitlines()[1:]]))):
        (tmp_path / "train.prototxt").write_text(text)
        what = rf"layer 'data' \({kind}\) reads its data itself; derive a net with"
        with pytest.raises(InputError, match=what):
            load_module(tmp_path / "train.prototxt", tmp_path / "w.caffemodel")


def test_a_bn_with_moving_averages_has_them_as_running_statistics(tmp_path: Path) -> None:
    bn = 'layer { name: "bn" type: "BN" bottom: "data" top: "n" bn_param { slope_filler { value: 1 } } }'
    (tmp_path / "net.prototxt").write_text(NET.strip().splitlines()[0] + bn)
    blobs = {"weight": [1, 2, 3], "bias": [4, 5, 6], "running_mean": [7, 8, 9], "running_var": [1, 4, 16]}
    weights = pb.NetParameter(layer=[pb.LayerParameter(name="bn", type="BN")])
    for values in blobs.values():
        weights.layer[0].blobs.add(shape=pb.BlobShape(dim=[1, 3]), data=values)
    save_message(weights, tmp_path / "w.caffemodel")
    module = load_module(tmp_path / "net.prototxt", tmp_path / "w.caffemodel")
    assert {name: value.flatten().tolist() for name, value in module.state_dict().items()} == {
        f"bn.{name}": values for name, values in blobs.items()
    }
    x = torch.randn(2, 3, 6, 6)
    scale, shift, mean, variance = (torch.tensor(values).view(1, 3, 1, 1) for values in blobs.values())
    wanted = (x - mean) / (variance + 1e-5).sqrt() * scale + shift
    with torch.no_grad():
        assert torch.allclose(module(x), wanted, atol=1e-5)


WORDS = """
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 1 dim: 5 dim: 1 } } }
layer { name: "flat" type: "Flatten" bottom: "data" top: "flat" }
layer { name: "embed" type: "Embed" bottom: "flat" top: "embed"
  embed_param { input_dim: 7 num_output: 3 bias_term: false } }
"""


def test_words_that_a_layer_does_not_have_are_one_line(tmp_path: Path) -> None:
    module = load_module(*write_net(tmp_path, WORDS))
    assert list(module.word_counts.values()) == [7]
    assert module(torch.full((2, 1, 5, 1), 6.0)).shape == (2, 5, 3)
    with pytest.raises(DataError, match="layer 'embed': index 7 is not one of 0 to 6"):
        module(torch.full((2, 1, 5, 1), 7.0))
