"""Nets whose batches have as many images as a Filter selects."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.prototxt import parse_prototxt
from caffe_recipes.engine.module import build_module
from caffe_recipes.engine.net import RunnableNet
from caffe_recipes.errors import DataError, InputError
from tests.engine.operators.test_data import make_net

h5py = pytest.importorskip("h5py")

KEEP = [[1, 0, 1, 1], [0, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 1]]
FILTER = 'layer { name: "f" type: "Filter" bottom: "x" bottom: "label" bottom: "keep" top: "y" top: "l" }'
SCORES = (
    'layer { name: "ip" type: "InnerProduct" bottom: "y" top: "ip" '
    'inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }'
    'layer { name: "r" type: "Reshape" bottom: "ip" top: "r" '
    "reshape_param { shape { dim: 0 dim: 3 dim: 1 } } }"
)


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return an HDF5Data layer of batches of 4 with the selectors KEEP."""
    monkeypatch.chdir(tmp_path)
    values = np.random.default_rng(0).standard_normal((16, 2, 3)).astype(np.float32)
    with h5py.File("a.h5", "w") as file:
        file["x"], file["keep"] = values, np.array(KEEP, np.float32).reshape(-1)
        file["label"] = np.arange(16, dtype=np.float32) % 3
    Path("list").write_text("a.h5\n")
    return (
        'layer { name: "d" type: "HDF5Data" top: "x" top: "label" top: "keep" '
        'hdf5_data_param { source: "list" batch_size: 4 } }'
    )


def test_the_layers_after_a_filter_take_as_many_images_as_it_selects(source: str) -> None:
    loss = 'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip2" bottom: "l" top: "loss" }'
    flat = 'layer { name: "flat" type: "Flatten" bottom: "r" top: "ip2" }'
    net = make_net(source + FILTER + SCORES + flat + loss)
    weight, bias = net.blobs()["ip"]
    with h5py.File("a.h5") as file:
        x, labels = torch.from_numpy(file["x"][:]), torch.from_numpy(file["label"][:]).long()
    for weights in (weight, bias):
        weights.requires_grad_()
    for start, keep in enumerate(KEEP):
        chosen = [4 * start + place for place, is_kept in enumerate(keep) if is_kept]
        scores = x[chosen].flatten(1) @ weight.T + bias
        wanted = torch.nn.functional.cross_entropy(scores, labels[chosen])
        (slope,) = torch.autograd.grad(wanted, weight)
        found = net.forward()
        assert float(found.detach()) == pytest.approx(float(wanted.detach()), rel=1e-6)
        assert torch.allclose(torch.autograd.grad(found, weight)[0], slope, atol=1e-6)


def test_blobs_of_other_sizes_are_named_with_the_number_of_images(source: str) -> None:
    loss = 'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "r" bottom: "label" top: "loss" }'
    net = make_net(source + FILTER + SCORES + loss)
    with pytest.raises(DataError, match="after layer 'f' has selected 3 images; filter all blobs"):
        net.forward()


def test_a_batch_of_which_nothing_is_selected_stops_the_run(source: str) -> None:
    with h5py.File("a.h5", "a") as file:
        file["keep"][...] = 0
    with pytest.raises(DataError, match=r"layer 'f'.*selects none of the 4 images"):
        make_net(source + FILTER).forward()


def test_a_label_that_is_no_class_is_not_blamed_on_a_record(source: str) -> None:
    with h5py.File("a.h5", "a") as file:
        file["label"][2] = 7
    loss = 'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "l" top: "loss" }'
    with pytest.raises(InputError, match="label 7 is not one of the 3 classes"):
        make_net(source + FILTER + SCORES + loss).forward()


def test_a_module_with_a_filter_takes_any_selection() -> None:
    inputs = "".join(
        f'layer {{ name: "{name}" type: "Input" top: "{name}" input_param {{ shape {{ {dims} }} }} }}'
        for name, dims in (("x", "dim: 4 dim: 2 dim: 3"), ("keep", "dim: 4"))
    )
    text = inputs + FILTER.replace('bottom: "label"', "").replace('top: "l"', "") + SCORES
    made = make_net(text, phase=pb.TEST)
    weights = pb.NetParameter(layer=[pb.LayerParameter(name="ip")])
    for blob in made.blobs()["ip"]:
        weights.layer[0].blobs.add(data=blob.flatten().tolist()).shape.dim.extend(blob.shape)
    module = build_module(parse_prototxt(text, pb.NetParameter), weights, "net", "weights")
    for keep in KEEP:
        assert module(torch.ones(4, 2, 3), torch.tensor(keep)).shape == (sum(keep), 3, 1)


def test_a_recurrent_layer_goes_on_where_only_other_layers_get_batches_of_another_size(source: str) -> None:
    recurrent = (
        'layer { name: "cont" type: "DummyData" top: "cont" dummy_data_param { shape { dim: 4 dim: 2 } '
        "data_filler { value: 1 } } }"
        'layer { name: "rnn" type: "RNN" bottom: "x" bottom: "cont" top: "rnn" recurrent_param '
        '{ num_output: 2 weight_filler { type: "uniform" min: -1 max: 1 } } }'
    )
    layers = source + recurrent + 'layer { name: "out" type: "Split" bottom: "rnn" top: "out" }'
    alone, beside = make_net(layers), make_net(layers + FILTER + SCORES)
    for blob, other in zip(beside.blobs()["rnn"], alone.blobs()["rnn"], strict=True):
        blob.copy_(other)

    def run(net: RunnableNet) -> torch.Tensor:
        net.keeps_blobs = True
        net.forward()
        return net.value(next(node.tops[0] for node in net.nodes if node.param.name == "rnn"))

    for _ in KEEP:
        assert torch.equal(run(beside), run(alone))
