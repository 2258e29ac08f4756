"""OpenCV computes what the engine computes, or the difference is an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from caffe_recipes.caffe.deploy import Deploy
from caffe_recipes.caffe.dialects.schema import parse_lenient
from caffe_recipes.caffe.opencv_nets import rewrite_for_opencv
from caffe_recipes.caffe.weights import blob_values
from caffe_recipes.engine import opencv_check
from caffe_recipes.engine.opencv_check import compare_opencv, make_weights
from caffe_recipes.engine.settings import load_net
from caffe_recipes.errors import CheckFailed, InputError
from tests.engine.test_module import WORDS

INPUT = """layer { name: "data" type: "Input" top: "data"
  input_param { shape { dim: 1 dim: 4 dim: 6 dim: 7 } } }
"""


def compare(folder: Path, text: str) -> float:
    (folder / "n.prototxt").write_text(INPUT + text)
    net = load_net(str(folder / "n.prototxt"))
    return compare_opencv(rewrite_for_opencv(Deploy(net, {}, (), ())).net, None, "n.prototxt")


def layer(text: str, tops: str = 'top: "y"') -> str:
    return f'layer {{ name: "l" bottom: "data" {tops} {text} }}'


@pytest.mark.parametrize(
    "text",
    [
        layer('type: "DepthwiseConvolution" convolution_param { num_output: 4 kernel_size: 3 }'),
        layer('type: "LRN" lrn_param { local_size: 3 alpha: 2 k: 2 }'),
        layer('type: "Convolution" convolution_param { num_output: 3 kernel_size: 3 }'),
        layer('type: "Convolution" convolution_param { num_output: 3 kernel_h: 1 kernel_w: 3 pad_w: 1 }'),
        layer('type: "Deconvolution" convolution_param { num_output: 3 kernel_h: 3 kernel_w: 1 pad_h: 1 }'),
        layer('type: "ConvolutionDepthwise" convolution_param { num_output: 4 kernel_size: 3 pad_w: 1 }'),
        layer('type: "Slice"', 'top: "y" top: "z"'),
        layer('type: "SpatialDropout"'),
        layer('type: "Tile" tile_param { tiles: 3 }'),
        layer('type: "Pooling" pooling_param { pool: AVE kernel_size: 3 stride: 2 pad: 1 }'),
        layer('type: "InnerProduct" param { name: "w" } param { } inner_product_param { num_output: 5 }')
        + layer('type: "InnerProduct" param { name: "w" } inner_product_param { num_output: 5 }').replace(
            'name: "l" bottom: "data" top: "y"', 'name: "twin" bottom: "data" top: "z"'
        ),
        layer('type: "InnerProduct" inner_product_param { num_output: 5 }')
        + 'layer { name: "prob" type: "Softmax" bottom: "y" top: "prob" }',
    ],
)
def test_what_opencv_has_or_can_have_gives_the_numbers_of_the_engine(tmp_path: Path, text: str) -> None:
    assert compare(tmp_path, text) < 1e-5


def test_a_net_that_the_memory_cannot_hold_is_refused_before_weights_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dense = layer('type: "InnerProduct" inner_product_param { num_output: 5 bias_term: false }')
    need = 2 * 4 * (4 * 6 * 7 * (1 + 5) + 5)
    monkeypatch.setattr(opencv_check, "host_memory_bytes", lambda: need)
    compare(tmp_path, dense)
    monkeypatch.setattr(opencv_check, "host_memory_bytes", lambda: need - 1)
    with pytest.raises(InputError, match=r"n\.prototxt: needs .* GiB to be run and compared"):
        compare(tmp_path, dense)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('type: "MVN" mvn_param { eps: 0.5 }', r"numbers for this net: they differ by 0\.\d+ of the largest"),
        ('type: "Pooling" pooling_param { kernel_size: 1 stride: 4 }', "OpenCV gives 'y' another size"),
        ('type: "Log"', "its output 'y' is not finite, so that OpenCV's cannot be compared with it"),
        ('type: "Log" log_param { shift: 9 }', "OpenCV gives an output that is not finite for 'y'"),
        ('type: "Threshold"', "OpenCV cannot run this net: Can't create layer"),
    ],
)
def test_what_it_lacks_or_reads_wrong_is_a_failed_check(tmp_path: Path, text: str, what: str) -> None:
    with pytest.raises(CheckFailed, match=what) as caught:
        compare(tmp_path, layer(text))
    assert caught.value.where == "n.prototxt"


def test_a_batch_norm_of_nvidias_caffe_that_scales_is_named_with_the_way_out() -> None:
    text = INPUT + layer('type: "BatchNorm" batch_norm_param { scale_bias: true use_global_stats: true }')
    net: Any = parse_lenient(text, "n.prototxt").message
    what = r"layer 'l' \(BatchNorm\) has its own scale .* give --fold-bn"
    with pytest.raises(CheckFailed, match=what) as caught:
        compare_opencv(net, None, "n.prototxt")
    assert caught.value.where == "n.prototxt"


def test_what_the_engine_lacks_is_wrong_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="type 'Sudoku' is not supported"):
        compare(tmp_path, layer('type: "Sudoku"'))


def test_made_up_weights_have_positive_variances_in_any_shape(tmp_path: Path) -> None:
    (tmp_path / "n.prototxt").write_text(
        INPUT
        + layer('type: "BN" bn_param { slope_filler { } }')
        + 'layer { name: "c" type: "Convolution" bottom: "y" top: "c"'
        " convolution_param { num_output: 2 kernel_size: 3 } }"
    )
    norm, conv = make_weights(load_net(str(tmp_path / "n.prototxt"))).layer[1:3]
    assert all(min(blob_values(blob)) >= 0.5 for blob in norm.blobs)
    assert min(blob_values(conv.blobs[0])) < 0


def test_words_are_compared_on_words(tmp_path: Path) -> None:
    (tmp_path / "n.prototxt").write_text(WORDS)
    with pytest.raises(CheckFailed, match="OpenCV cannot run this net"):
        compare_opencv(load_net(str(tmp_path / "n.prototxt")), None, "n.prototxt")
