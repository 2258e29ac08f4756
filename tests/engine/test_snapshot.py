"""The batch norms of Intel's MKL engines are taken apart into a net's BatchNorm and Scale."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.weights import load_weights, save_message
from caffe_recipes.engine.module import load_module
from caffe_recipes.errors import WeightsError
from tests.engine.test_module import NET, write_net


def merge_norm(path: Path) -> None:
    """Merge the Scale into the BatchNorm, as the file of an MKL engine has them."""
    weights = load_weights(path)
    layers = {layer.name: layer for layer in weights.layer}
    layers["type"].blobs.extend(layers["scale/1"].blobs)
    del layers["scale/1"].blobs[:]
    save_message(weights, path)


def test_five_blobs_are_those_of_the_norm_and_of_the_scale_after_it(tmp_path: Path) -> None:
    net, weights = write_net(tmp_path, NET)
    x = torch.randn(2, 3, 6, 6)
    wanted = load_module(net, weights)(x)
    merge_norm(weights)
    assert torch.equal(load_module(net, weights)(x), wanted)


def test_five_blobs_without_a_scale_in_the_net_are_refused(tmp_path: Path) -> None:
    net, weights = write_net(tmp_path, NET)
    merge_norm(weights)
    bare = NET.replace("scale_param { bias_term: true }", "").replace('type: "Scale"', 'type: "Power"')
    net.write_text(bare)
    with pytest.raises(WeightsError, match="layer 'type' has 5 blobs, but 3 in"):
        load_module(net, weights)


def test_blobs_of_another_shape_are_named_with_both_shapes(tmp_path: Path) -> None:
    net, weights = write_net(tmp_path, NET)
    net.write_text(NET.replace("num_output: 5", "num_output: 6"))
    with pytest.raises(WeightsError, match=r"'fc', blob 0, is 5x64, but 6x64 in"):
        load_module(net, weights)


def test_the_formats_from_before_2014_are_read(tmp_path: Path) -> None:
    net, weights = write_net(tmp_path, NET)
    old, oldest = pb.NetParameter(), pb.NetParameter()
    for layer in load_weights(weights).layer:
        blobs = []
        for blob in layer.blobs:
            n, c, h, w = [1] * (4 - len(blob.shape.dim)) + list(blob.shape.dim)
            blobs.append(pb.BlobProto(data=blob.data, num=n, channels=c, height=h, width=w))
        old.layers.add(name=layer.name, blobs=blobs)
        oldest.layers.add(layer=pb.V0LayerParameter(name=layer.name, blobs=blobs))
    x = torch.randn(2, 3, 6, 6)
    wanted = load_module(net, weights)(x)
    for message in (old, oldest):
        save_message(message, tmp_path / "old.caffemodel")
        assert torch.equal(load_module(net, tmp_path / "old.caffemodel")(x), wanted)
