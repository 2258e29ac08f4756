"""The types and fields of public forks: none is ours or a dialect's, and none is taken for a slip."""

from __future__ import annotations

import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.dialects import field_dialects, layer_type_dialects, nearest_layer_type
from caffe_recipes.caffe.dialects.unsupported_names import FIELDS, TYPES, find_fork_type
from caffe_recipes.caffe.text.hints import hint_for_field
from caffe_recipes.wording import find_slip


def test_no_dialect_has_a_type_or_field_of_a_fork() -> None:
    assert not [name for name in TYPES if layer_type_dialects(name)]
    assert not [name for name in FIELDS if field_dialects(*name)]


def test_no_type_or_field_of_a_fork_is_taken_for_a_slip() -> None:
    assert {nearest_layer_type(name) for name in TYPES} == {None}
    for owner, name in FIELDS:
        known = list(getattr(pb, owner).DESCRIPTOR.fields_by_name)
        assert hint_for_field(owner, known, name).startswith("it is a field of ")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("Convolutoin", "Convolution"),
        ("InnerProdct", "InnerProduct"),
        ("SoftMaxWithLoss", "SoftmaxWithLoss"),
        ("relu", "ReLU"),
        ("Poolling", "Pooling"),
        ("BN", None),
        ("ReLU7", None),
        ("Convo", None),
        ("DepthwiseConvolution", None),
        ("ConvolutionDepthwise", None),
        ("TripletLoss", None),
        ("Tiling", None),
        ("MarginInnerProduct", None),
        ("Correlation", None),
        ("Swisch", "Swish"),
    ],
)
def test_only_a_slip_of_the_keyboard_is_corrected(written: str, meant: str | None) -> None:
    assert nearest_layer_type(written) == meant


@pytest.mark.parametrize(
    "name", ["gn_param", "cpm_param", "bn_params", "transform_param2", "shuffle_param", "roi_param", "l"]
)
def test_a_block_of_a_fork_is_not_taken_for_one_of_ours(name: str) -> None:
    assert find_slip(name, list(pb.LayerParameter.DESCRIPTOR.fields_by_name)) is None


def test_an_old_layer_of_a_fork_has_the_name_that_the_fork_gives_it() -> None:
    assert find_fork_type("DENSE_IMAGE_DATA") == "DenseImageData"
    assert find_fork_type("UNKNOWN") is None
