"""Trying the nets of a folder: which ones train two iterations, and why not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from caffe_recipes.engine.zoo import Tried, main, render_zoo, train_twice, try_nets
from caffe_recipes.errors import InputError

HDF5 = 'layer { name: "d" type: "HDF5Data" top: "x" top: "y" hdf5_data_param { source: "f" batch_size: 9 } }'
IP = 'layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip" inner_product_param { num_output: 3 } }'
LOSS = 'layer { name: "l" type: "%s" bottom: "ip" bottom: "y" top: "l" }'


@pytest.mark.parametrize("loss", ["SoftmaxWithLoss", "EuclideanLoss", "SigmoidCrossEntropyLoss"])
def test_a_net_trains_on_made_up_data_and_targets_of_its_shapes(tmp_path: Path, loss: str) -> None:
    net = tmp_path / "net.prototxt"
    net.write_text(HDF5 + IP + LOSS % loss)
    train_twice(net)


def test_a_net_that_fits_no_data_says_why(tmp_path: Path) -> None:
    net = tmp_path / "net.prototxt"
    net.write_text(HDF5 + IP.replace("num_output: 3", "num_output: 0") + LOSS % "EuclideanLoss")
    with pytest.raises(InputError, match="has num_output 0"):
        train_twice(net)


def test_a_loss_that_is_not_finite_is_why_a_net_does_not_train(tmp_path: Path) -> None:
    huge = 'num_output: 3 weight_filler { type: "constant" value: 1e30 }'
    (tmp_path / "net.prototxt").write_text(HDF5 + IP.replace("num_output: 3", huge) + LOSS % "EuclideanLoss")
    (tried,) = try_nets(tmp_path)
    assert tried.why.startswith("iteration 0: the loss is inf")


def test_reasons_are_given_by_line_without_the_folder_they_were_read_in(tmp_path: Path) -> None:
    foreign = '\nlayer { name: "g" type: "G" detectnet_groundtruth_param {} detectnet_augmentation_param {} }'
    (tmp_path / "net.prototxt").write_text(HDF5 + IP + LOSS % "EuclideanLoss" + foreign)
    (tried,) = try_nets(tmp_path)
    assert re.match(r"[0-9]+:[0-9]+: LayerParameter\.detectnet_.* also [0-9]+:[0-9]+: ", tried.why)


def test_nets_with_code_of_the_users_own_are_listed_but_not_counted(tmp_path: Path) -> None:
    python = 'layer { name: "p" type: "Python" bottom: "ip" top: "p" loss_weight: 1 }'
    (tmp_path / "a.prototxt").write_text(HDF5 + IP + python)
    (tmp_path / "b.prototxt").write_text(HDF5 + IP)  # without a loss
    (tmp_path / "solver.prototxt").write_text("base_lr: 1")
    (tried,) = try_nets(tmp_path)
    assert (tried.path, tried.is_counted) == ("a.prototxt", False)


def test_a_reader_of_another_caffe_is_replaced_by_data_of_its_size_and_named(tmp_path: Path) -> None:
    reader = (
        'layer { name: "d" type: "DenseImageData" top: "x" top: "y" dense_image_data_param { source: "f" } }'
    )
    (tmp_path / "a.prototxt").write_text(reader + IP + LOSS % "SoftmaxWithLoss")
    (tried,) = try_nets(tmp_path)
    assert (tried.why, tried.replaced) == ("", "DenseImageData")
    text = render_zoo([tried])
    assert "1 of them have a reader" in text and "| yes, without DenseImageData |" in text


def test_a_net_whose_data_are_of_a_stage_trains_in_it(tmp_path: Path) -> None:
    net = tmp_path / "net.prototxt"
    rule = 'include { stage: "%s" } hdf5_data_param'
    readers = [HDF5.replace("hdf5_data_param", rule % stage) for stage in ("train", "val")]
    net.write_text("".join(readers) + IP + LOSS % "SoftmaxWithLoss")
    train_twice(net)


def test_labels_of_a_reader_of_their_own_are_as_many_as_the_predictions(tmp_path: Path) -> None:
    net = tmp_path / "net.prototxt"
    one = HDF5.replace('top: "y"', "")
    net.write_text(one.replace('"d"', '"e"').replace('"x"', '"y"') + one + IP + LOSS % "EuclideanLoss")
    train_twice(net)


def test_labels_that_a_layer_passes_on_are_those_of_its_top(tmp_path: Path) -> None:
    net = tmp_path / "net.prototxt"
    gather = 'layer { name: "g" type: "Gather" bottom: "ip" bottom: "y" top: "ip2" top: "y2" }'
    loss = (LOSS % "SoftmaxWithLoss").replace('"ip"', '"ip2"').replace('"y"', '"y2"')
    net.write_text(HDF5 + IP + gather + loss)
    train_twice(net)


def test_made_up_text_consists_of_words(tmp_path: Path) -> None:
    net = tmp_path / "net.prototxt"
    param = "embed_param { num_output: 3 input_dim: 5 bias_term: false }"
    flat = 'layer { name: "f" type: "Flatten" bottom: "x" top: "f" }'
    embed = f'layer {{ name: "e" type: "Embed" bottom: "f" top: "x2" {param} }}'
    net.write_text(HDF5 + flat + embed + IP.replace('"x"', '"x2"') + LOSS % "SoftmaxWithLoss")
    train_twice(net)


def test_labels_that_are_resized_are_images_of_classes(tmp_path: Path) -> None:
    net = tmp_path / "net.prototxt"
    conv = IP.replace("InnerProduct", "Convolution").replace(
        "inner_product_param {", "convolution_param { kernel_size: 1"
    )
    interp = 'layer { name: "i" type: "Interp" bottom: "y" top: "z" interp_param { height: 224 width: 224 } }'
    net.write_text(HDF5 + conv + interp + (LOSS % "SoftmaxWithLoss").replace('"y"', '"z"'))
    train_twice(net)


def test_the_table_gives_the_share_of_the_counted_nets() -> None:
    nets = [
        Tried("a", 3, "", True),
        Tried("b", 3, "no | more", True, is_detector=True),
        Tried("c", 1, "own code", False),
    ]
    text = render_zoo(nets)
    assert text.startswith("1 of 2 nets with a loss train two iterations (50%), and 100% of the 1 that are")
    assert "| b | 3 | no | no \\| more |" in text


def test_a_folder_that_does_not_exist_exits_2() -> None:
    assert main(["no-folder"]) == 2
