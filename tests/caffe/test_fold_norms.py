"""Folded nets predict the same; OpenCV reads both, and is the reference here."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.deploy import Deploy, derive_deploy
from caffe_recipes.caffe.fold_norms import fold_file
from caffe_recipes.caffe.opencv_nets import rewrite_for_opencv
from caffe_recipes.caffe.prototxt import parse_document, parse_prototxt, render_checked, render_prototxt
from caffe_recipes.caffe.weights import save_message
from caffe_recipes.errors import WeightsError

NET = """name: "n"
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 2 dim: 6 dim: 6 } } }
layer { name: "c" type: "Convolution" bottom: "data" top: "c"
  convolution_param { num_output: 3 kernel_size: 3 bias_term: false } }
layer { name: "b" type: "BatchNorm" bottom: "c" top: "c" }
layer { name: "s" type: "Scale" bottom: "c" top: "c" scale_param { bias_term: true } }
layer { name: "p" type: "Softmax" bottom: "c" top: "p" }
"""
SHAPES: dict[str, list[tuple[int, ...]]] = {"c": [(3, 2, 3, 3)], "b": [(3,), (3,), (1,)], "s": [(3,), (3,)]}


def random_weights() -> pb.NetParameter:
    random, weights = np.random.default_rng(1), pb.NetParameter(name="n")
    for layer in parse_prototxt(NET, pb.NetParameter).layer:
        made = weights.layer.add(name=layer.name, type=layer.type)
        for shape in SHAPES.get(layer.name, []):
            values = random.uniform(0.5, 2, shape).ravel().tolist()
            made.blobs.add(shape=pb.BlobShape(dim=shape), data=values)
    return weights


def predict(deploy: Deploy, weights: pb.NetParameter) -> np.ndarray:
    parts = (render_prototxt(deploy.net).encode(), weights.SerializeToString())
    net = cv2.dnn.readNetFromCaffe(*(np.frombuffer(part, np.uint8) for part in parts))
    net.setInput(np.random.default_rng(2).normal(size=(1, 2, 6, 6)).astype(np.float32))
    return np.array(net.forward())


def test_a_folded_net_predicts_what_the_net_does(tmp_path: Path) -> None:
    deploy, weights = derive_deploy(parse_prototxt(NET, pb.NetParameter)), random_weights()
    save_message(weights, tmp_path / "n.caffemodel")
    folded, new = fold_file(deploy, tmp_path / "n.caffemodel")
    assert [layer.name for layer in folded.net.layer] == ["data", "c", "p"]
    assert [layer.name for layer in new.layer] == ["c"]
    np.testing.assert_allclose(predict(folded, new), predict(deploy, weights), atol=1e-5)


def test_comments_of_fields_that_are_folded_are_no_error(tmp_path: Path) -> None:
    save_message(random_weights(), tmp_path / "n.caffemodel")
    text = NET.replace("kernel_size: 3 bias_term: false", "kernel_size: 3 # 3x3\nbias_term: false # none\n")
    document = parse_document(text, "net.prototxt", pb.NetParameter)
    deploy = derive_deploy(document.message, comments=document.comments)
    folded, _ = fold_file(deploy, tmp_path / "n.caffemodel")
    written = render_checked(folded.net, folded.comments)
    assert "# 3x3" in written
    assert "# none" not in written


def merge_scale(weights: pb.NetParameter) -> None:
    """Put the blobs of the Scale into the BatchNorm, as Intel's MKL engines do."""
    weights.layer[2].blobs.extend(weights.layer[3].blobs)
    del weights.layer[3].blobs[:]


def test_a_batch_norm_that_holds_a_scale_is_folded_with_it(tmp_path: Path) -> None:
    deploy, weights = derive_deploy(parse_prototxt(NET, pb.NetParameter)), random_weights()
    save_message(weights, tmp_path / "two.caffemodel")
    merge_scale(weights)
    save_message(weights, tmp_path / "one.caffemodel")
    wanted, made = (fold_file(deploy, tmp_path / f"{name}.caffemodel") for name in ("two", "one"))
    assert (made[0].net, made[1]) == (wanted[0].net, wanted[1])


def test_weights_that_lack_a_folded_layer_are_refused(tmp_path: Path) -> None:
    weights = random_weights()
    del weights.layer[2]
    save_message(weights, tmp_path / "n.caffemodel")
    with pytest.raises(WeightsError, match="has no layer 'b'; give the weights of this net"):
        fold_file(derive_deploy(parse_prototxt(NET, pb.NetParameter)), tmp_path / "n.caffemodel")


def test_weights_that_lack_any_learned_layer_are_refused(tmp_path: Path) -> None:
    text = NET[: NET.index('layer { name: "p"')]
    text += """layer { name: "fc" type: "InnerProduct" bottom: "c" top: "fc"
      inner_product_param { num_output: 2 } }
    layer { name: "last" type: "PReLU" bottom: "fc" top: "last" }"""
    save_message(random_weights(), tmp_path / "n.caffemodel")
    with pytest.raises(WeightsError, match=r"n\.caffemodel: has no layers 'fc', 'last'; give the weights of"):
        fold_file(derive_deploy(parse_prototxt(text, pb.NetParameter)), tmp_path / "n.caffemodel")


def test_weights_that_lack_a_convolution_are_refused_also_with_a_scale_in_the_norm(tmp_path: Path) -> None:
    weights = random_weights()
    merge_scale(weights)
    del weights.layer[1]
    save_message(weights, tmp_path / "n.caffemodel")
    with pytest.raises(WeightsError, match="has no layer 'c'; give the weights of this net"):
        fold_file(derive_deploy(parse_prototxt(NET, pb.NetParameter)), tmp_path / "n.caffemodel")


def test_batch_norms_are_folded_into_depthwise_convolutions(tmp_path: Path) -> None:
    text = NET.replace('"Convolution"', '"DepthwiseConvolution"').replace("num_output: 3", "num_output: 2")
    weights = random_weights()
    for layer in weights.layer[1:]:
        for blob in layer.blobs:
            count = min(len(blob.data), 2 * 9 if layer.name == "c" else 2)
            shape = (2, 1, 3, 3) if layer.name == "c" else (count,)
            blob.CopyFrom(pb.BlobProto(shape=pb.BlobShape(dim=shape), data=blob.data[:count]))
    save_message(weights, tmp_path / "n.caffemodel")
    deploy = derive_deploy(parse_prototxt(text, pb.NetParameter))
    folded, new = fold_file(deploy, tmp_path / "n.caffemodel")
    assert [layer.name for layer in folded.net.layer] == ["data", "c", "p"]
    wanted = predict(rewrite_for_opencv(deploy), weights)
    np.testing.assert_allclose(predict(rewrite_for_opencv(folded), new), wanted, atol=1e-5)


def test_batch_norms_that_stay_are_reported(tmp_path: Path) -> None:
    save_message(random_weights(), tmp_path / "n.caffemodel")
    text = NET.replace('type: "BatchNorm" bottom: "c" top: "c"', 'type: "BatchNorm" bottom: "c" top: "b"')
    text += 'layer { name: "sum" type: "Eltwise" bottom: "b" bottom: "p" top: "sum" }'
    folded, _ = fold_file(derive_deploy(parse_prototxt(text, pb.NetParameter)), tmp_path / "n.caffemodel")
    assert folded.notes == (
        "0 layers folded into the convolutions before them",
        "BatchNorm b stays: only one that alone reads a convolution, and uses the statistics in the weights, "
        "is folded",
    )


def test_a_convolution_of_several_blobs_stays(tmp_path: Path) -> None:
    text = NET.replace('bottom: "data" top: "c"', 'bottom: "data" bottom: "data" top: "c" top: "d"')
    save_message(random_weights(), tmp_path / "n.caffemodel")
    folded, _ = fold_file(derive_deploy(parse_prototxt(text, pb.NetParameter)), tmp_path / "n.caffemodel")
    assert [layer.name for layer in folded.net.layer] == ["data", "c", "b", "s", "p"]


def test_weights_that_lack_a_blob_are_refused(tmp_path: Path) -> None:
    weights = random_weights()
    del weights.layer[2].blobs[2]
    save_message(weights, tmp_path / "n.caffemodel")
    with pytest.raises(WeightsError, match="layer 'b' has 2 of 3 blobs; give the weights of this net"):
        fold_file(derive_deploy(parse_prototxt(NET, pb.NetParameter)), tmp_path / "n.caffemodel")


def test_weights_of_other_shapes_are_refused(tmp_path: Path) -> None:
    save_message(random_weights(), tmp_path / "n.caffemodel")
    grey = parse_prototxt(NET.replace("dim: 1 dim: 2", "dim: 1 dim: 1"), pb.NetParameter)
    with pytest.raises(WeightsError, match="layer 'c', blob 0, is 3x2x3x3, but 3x1x3x3 in the net"):
        fold_file(derive_deploy(grey), tmp_path / "n.caffemodel")


def test_a_batch_norm_that_normalizes_by_the_batch_stays(tmp_path: Path) -> None:
    text = NET.replace(
        'bottom: "c" top: "c" }', 'bottom: "c" top: "c" batch_norm_param { use_global_stats: false } }', 1
    )
    save_message(random_weights(), tmp_path / "n.caffemodel")
    folded, new = fold_file(derive_deploy(parse_prototxt(text, pb.NetParameter)), tmp_path / "n.caffemodel")
    assert [layer.name for layer in folded.net.layer] == ["data", "c", "b", "s", "p"]
    assert [layer.name for layer in new.layer] == ["c", "b", "s"]
    assert new.layer[0] == random_weights().layer[1]
