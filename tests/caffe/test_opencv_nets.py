"""Layers are rewritten for OpenCV only where they need it, and comments stay with their layers."""

from __future__ import annotations

from google.protobuf import text_format

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.deploy import Deploy
from caffe_recipes.caffe.opencv_nets import rewrite_for_opencv
from caffe_recipes.caffe.prototxt import Comment, parse_document, render_checked

NET = """layer { name: "data" type: "Input" top: "data"
  input_param { shape { dim: 1 dim: 4 dim: 6 dim: 7 } } }
layer { name: "norm" type: "LRN" bottom: "data" top: "norm" lrn_param { local_size: 3 alpha: 3 k: 2 } }
layer { name: "s" type: "Slice" bottom: "norm" top: "a" top: "b" }
layer { name: "relu" type: "ReLU" bottom: "a" top: "a" }"""


def deploy_of(text: str) -> Deploy:
    comments = {"layer[3]": Comment(("last",)), "name": Comment(("first",))}
    return Deploy(text_format.Parse(text, pb.NetParameter()), comments, ("a", "b"), ("note",))


def test_layers_are_replaced_by_exact_equivalents() -> None:
    made = rewrite_for_opencv(deploy_of(NET))
    norm, factor, cut = made.net.layer[1:4]
    assert (norm.lrn_param.alpha, norm.lrn_param.k) == (1.5, 1)
    assert (factor.name, factor.type, list(factor.bottom), list(factor.top)) == (
        "norm_k",
        "Power",
        ["norm"],
        ["norm"],
    )
    assert abs(factor.power_param.scale - 2**-0.75) < 1e-6
    assert list(cut.slice_param.slice_point) == [2]
    assert made.notes == ("note", "written so that OpenCV reads them: 'norm' (LRN), 's' (Slice)")
    assert sorted(made.comments) == ["layer[4]", "name"]


def test_a_net_that_opencv_reads_is_left_alone() -> None:
    plain = deploy_of(NET.replace("k: 2", "").replace('type: "Slice"', 'type: "Split"'))
    assert rewrite_for_opencv(plain) is plain


def test_comments_of_fields_that_are_replaced_are_no_error() -> None:
    text = (
        NET.replace("k: 2", "\nk: 2 # the k\n")
        + """layer { name: "t" type: "Tile" bottom: "a" top: "t" # thrice
      tile_param { axis: 1 # the channels
        tiles: 3 # copies
      } }
    layer { name: "u" type: "Tile" bottom: "t" top: "u" tile_param { tiles: 2 } }"""
    )
    document = parse_document(text, "net.prototxt", pb.NetParameter)
    made = rewrite_for_opencv(Deploy(document.message, document.comments, ("u",), ()))
    written = render_checked(made.net, made.comments)
    assert "concat_param {\n    axis: 1 # the channels\n  }" in written
    assert "# thrice" in written
    assert "# the k" not in written
