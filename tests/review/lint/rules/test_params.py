"""Each rule on shapes and shared weights: a wrong net, and its fixed twin."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.prototxt import parse_document
from caffe_recipes.review.lint.check import check_net
from caffe_recipes.review.lint.findings import Finding
from tests.review.lint.conftest import ids_judging

CheckText = Callable[..., dict[str, Finding]]

INPUT = """
layer { name: "in" type: "Input" top: "a" top: "b"
  input_param { shape { dim: 2 dim: 3 dim: 8 dim: 8 } } }
"""


def conv(name: str, bottom: str, outputs: int = 4, param: str = "") -> str:
    return f"""
    layer {{ name: "{name}" type: "Convolution" bottom: "{bottom}" top: "{name}" {param}
      convolution_param {{ num_output: {outputs} kernel_size: 3 weight_filler {{ type: "msra" }} }} }}
    """


def add(one: str, other: str, name: str = "sum") -> str:
    return f'layer {{ name: "{name}" type: "Eltwise" bottom: "{one}" bottom: "{other}" top: "{name}" }}\n'


PARAM = "param { lr_mult: 1 } "
NAMED = 'param { name: "w" lr_mult: 1 } '
RIGHT = INPUT + conv("x", "a") + conv("y", "b") + add("x", "y")
SHARED = INPUT + conv("x", "a", 4, NAMED) + conv("y", "b", 4, NAMED)
SIAMESE = SHARED + "".join(conv(f"{name}2", name, 4, 'param { name: "w_y" } ') for name in "xy")

CASES: dict[str, tuple[str, str]] = {
    "shape-misfit": (INPUT + conv("x", "a") + conv("y", "b", 5) + add("x", "y"), RIGHT),
    "too-many-params": (INPUT + conv("x", "a", 4, PARAM * 3), INPUT + conv("x", "a", 4, PARAM * 2)),
    "shared-shapes-differ": (INPUT + conv("x", "a", 4, NAMED) + conv("y", "b", 5, NAMED), SHARED),
    "share-name-alone": (SIAMESE.replace('"w_y"', '"w_z"', 1), SIAMESE),
    "shared-rates-differ": (SHARED.replace("lr_mult: 1", "lr_mult: 2", 1), SHARED),
}


def test_every_rule_has_a_case() -> None:
    assert CASES.keys() == ids_judging("the shapes of a net")


@pytest.mark.parametrize("rule", CASES)
def test_a_wrong_net_is_found_and_its_fixed_twin_is_not(rule: str, check_text: CheckText) -> None:
    wrong, fixed = CASES[rule]
    assert list(check_text(wrong)) == [rule]
    assert check_text(fixed) == {}


def test_a_misfit_stands_at_its_layer_and_names_those_that_made_the_blobs(check_text: CheckText) -> None:
    text = CASES["shape-misfit"][0]
    found = check_text(text)["shape-misfit"]
    line = next(at for at, each in enumerate(text.splitlines(), 1) if "Eltwise" in each)
    assert found.where.startswith(f"net.prototxt:{line}:")
    assert "layer 'sum' (Eltwise) needs bottoms of the same shape" in found.what
    assert "'y' is 2x5x6x6 (from layer 'y')" in found.what


def test_layers_beside_a_misfit_or_a_missing_blob_are_checked_too(check_text: CheckText) -> None:
    wrong = INPUT + conv("x", "a") + add("x", "a", "one") + add("x", "b", "two") + conv("z", "none")
    found = check_text(wrong)
    assert list(found) == ["shape-misfit", "unknown-bottom"]
    assert "layer 'one'" in found["shape-misfit"].what
    wrong = wrong.replace('bottom: "a" top: "one"', 'bottom: "x" top: "one"')
    assert "layer 'two'" in check_text(wrong)["shape-misfit"].what


def test_layers_of_unknown_type_stop_nothing(check_text: CheckText) -> None:
    custom = 'layer { name: "c" type: "Python" bottom: "x" top: "c" python_param { module: "m" layer: "L" } }'
    assert check_text(INPUT + conv("x", "a") + custom + conv("y", "c") + add("x", "y")) == {}


def test_a_batch_norm_of_the_engine_may_have_five_params(check_text: CheckText) -> None:
    norm = """
    layer { name: "n" type: "BatchNorm" bottom: "x" top: "x" %s }
    layer { name: "s" type: "Scale" bottom: "x" top: "x" scale_param { bias_term: true } }
    """
    zeros = "param { lr_mult: 0 } " * 3
    net = INPUT + conv("x", "a").replace("kernel_size", "bias_term: false kernel_size")
    assert check_text(net + norm % (zeros + PARAM * 2)) == {}
    assert list(check_text(net + norm % (zeros + PARAM * 3))) == ["too-many-params"]


def test_layers_with_too_many_params_are_reported_once() -> None:
    wrong = INPUT + "".join(
        f'layer {{ name: "r{i}" type: "ReLU" bottom: "a" top: "r{i}" {PARAM} }}' for i in range(6)
    )
    found = check_net(parse_document(wrong, "net.prototxt", pb.NetParameter))
    (params,) = [one for one in found if one.id == "too-many-params"]
    assert params.what.startswith("6 ReLU layers (r0, r1, r2, r3 and 2 more) have 1 param block but")


def test_a_misfit_of_both_phases_is_reported_once() -> None:
    data = """layer {{ name: "d" type: "Data" top: "d" top: "l" include {{ phase: {} }}
      transform_param {{ crop_size: 8 }} data_param {{ source: "{}" batch_size: {} backend: LMDB }} }}"""
    net = data.format("TRAIN", "a", 2) + data.format("TEST", "b", 5)
    wrong = net + conv("x", "d") + add("x", "l", "sum")
    found = check_net(parse_document(wrong, "net.prototxt", pb.NetParameter))
    (misfit,) = [one for one in found if one.id == "shape-misfit"]
    assert "layer 'sum'" in misfit.what


def test_a_dilated_kernel_is_as_wide_as_its_holes(check_text: CheckText) -> None:
    wrong = INPUT + conv("x", "a").replace("kernel_size", "dilation: 300 kernel_size")
    assert "with dilation 300 (601 wide)" in check_text(wrong)["shape-misfit"].what


def test_a_layer_that_learns_nothing_has_no_params(check_text: CheckText) -> None:
    relu = f'layer {{ name: "r" type: "ReLU" bottom: "a" top: "r" {PARAM} }}'
    assert "learns no blobs" in check_text(INPUT + relu)["too-many-params"].what


def test_caffe_forces_the_colors_of_what_it_decodes_alone(check_text: CheckText) -> None:
    net = """layer { name: "d" type: "Data" top: "d" top: "l" transform_param { force_gray: true }
      data_param { source: "a" batch_size: 2 backend: LMDB } }
    layer { name: "q" type: "Silence" bottom: "l" }
    layer { name: "c" type: "Convolution" bottom: "d" top: "c" convolution_param { num_output: 3 group: 3
      kernel_size: 1 weight_filler { type: "msra" } } }"""
    raw = pb.Datum(channels=3, height=8, width=8, data=bytes(192))
    encoded = pb.Datum(encoded=True, data=b"jpeg")
    assert check_text(net, datum_of=lambda source: raw) == {}
    assert list(check_text(net, datum_of=lambda source: encoded)) == ["shape-misfit"]
