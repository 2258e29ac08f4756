"""Each rule on blobs and names: a wrong net, and its fixed twin."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from caffe_recipes.review.lint.findings import Finding
from tests.review.lint.conftest import ids_judging

CheckText = Callable[..., dict[str, Finding]]

DATA = """
layer { name: "data" type: "Data" top: "data" top: "label"
  data_param { source: "a" batch_size: 2 backend: LMDB } }
"""
FC = """
layer { name: "fc" type: "InnerProduct" bottom: "data" top: "fc"
  inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
"""
LOSS = 'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "fc" bottom: "label" top: "loss" }'
RIGHT = DATA + FC + LOSS
SIDE = 'layer { name: "side" type: "Softmax" bottom: "fc" top: "side" }\n'
RELU = 'layer { name: "relu" type: "TanH" bottom: "fc" top: "fc" }\n'
TANH = RELU.replace("relu", "tanh")
POWER = TANH.replace("tanh", "power").replace("TanH", "Power")
DROP = TANH.replace("tanh", "drop").replace("TanH", "Dropout")
BELOW = FC.replace("fc", "fc2").replace('"data"', '"fc"')
LOSS2 = LOSS.replace('"fc"', '"fc2"')

CASES: dict[str, tuple[str, str]] = {
    "unknown-bottom": (RIGHT.replace('bottom: "fc"', 'bottom: "fcc"'), RIGHT),
    "top-made-twice": (DATA + FC + FC.replace('name: "fc"', 'name: "fd"') + LOSS, RIGHT),
    "in-place-shared": (DATA + FC + SIDE + RELU + LOSS, DATA + FC + RELU + SIDE + LOSS),
    "in-place-type": (
        DATA + FC.replace('top: "fc"', 'top: "data"') + LOSS.replace('"fc"', '"data"'),
        RIGHT,
    ),
    "in-place-gradient": (DATA + FC + POWER + BELOW + LOSS2, DATA + FC + TANH + BELOW + LOSS2),
    "in-place-overwrites": (DATA + FC + TANH + DROP + BELOW + LOSS2, DATA + FC + DROP + TANH + BELOW + LOSS2),
    "no-top": (RIGHT.replace('top: "fc"', ""), RIGHT.replace('top: "loss"', "")),
    "unused-top": (RIGHT + FC.replace("fc", "spare"), RIGHT + SIDE),
    "weights-name-twice": (
        RIGHT + FC.replace('top: "fc"', 'top: "spare"') + SIDE.replace('"fc"', '"spare"'),
        RIGHT,
    ),
    "layer-name-twice": (RIGHT + SIDE.replace('name: "side"', 'name: "loss"'), RIGHT + SIDE),
}


def test_every_rule_has_a_case() -> None:
    assert CASES.keys() == ids_judging("the blobs and names of a net")


@pytest.mark.parametrize("rule", CASES)
def test_a_wrong_net_is_found_and_its_fixed_twin_is_not(rule: str, check_text: CheckText) -> None:
    wrong, fixed = CASES[rule]
    assert rule in check_text(wrong)
    assert check_text(fixed) == {}


def test_an_unknown_bottom_names_the_nearest_blob(check_text: CheckText) -> None:
    found = check_text(CASES["unknown-bottom"][0])["unknown-bottom"]
    assert found.what == "layer 'loss' (SoftmaxWithLoss) reads blob 'fcc', which no layer above it produces"
    assert found.write == 'bottom: "fc"'


def test_a_long_unknown_bottom_is_not_compared_with_other_blobs(check_text: CheckText) -> None:
    long = "fc" * 101
    text = DATA + FC.replace('top: "fc"', f'top: "{long}"') + LOSS.replace('"fc"', f'"{long}c"')
    assert check_text(text)["unknown-bottom"].write == "use a blob that a layer above produces"


def test_an_unknown_bottom_made_by_a_later_layer_is_explained(check_text: CheckText) -> None:
    found = check_text(DATA + LOSS + FC)["unknown-bottom"]
    assert found.write == "move layer 'fc' (InnerProduct), which produces it, above this layer"


def test_a_layer_that_would_produce_its_other_tops_twice_is_not_advised(check_text: CheckText) -> None:
    train = DATA.replace('type: "Data"', 'type: "Data" include { phase: TRAIN }')
    test = DATA.replace('type: "Data"', 'type: "Data" include { phase: TEST }').replace(' top: "label"', "")
    name = test.partition('name: "')[2].partition('"')[0]
    found = check_text(train + test + FC + LOSS)["unknown-bottom"]
    assert found.write == f"add top: \"label\" to layer '{name}' (Data)"
    fed = 'layer { name: "in" type: "Input" top: "data" include { phase: TEST } }\n'
    assert "include" not in check_text(train + fed + FC + LOSS)["unknown-bottom"].write


def test_a_missing_bottom_has_its_own_name_in_each_finding(check_text: CheckText) -> None:
    layer = 'layer { name: "p" type: "Softmax" bottom: "data" bottom: "nowhere" top: "p" }'
    found = check_text(DATA + layer)
    assert "takes 1 bottom, not 2" in found["shape-misfit"].what
    assert found["shape-misfit"].what.endswith("'nowhere', which no layer produces")


def test_an_unknown_bottom_made_in_the_other_phase_is_explained(check_text: CheckText) -> None:
    train_only = FC.replace('type: "Inner', 'include { phase: TRAIN } type: "Inner')
    found = check_text(DATA + train_only + LOSS)["unknown-bottom"]
    assert found.write == "add layer 'fc' (InnerProduct), which produces it, to TEST too, by its include"


def test_a_layer_may_work_in_place_where_all_readers_are_below(check_text: CheckText) -> None:
    assert check_text(DATA + FC + RELU + DROP.replace("Dropout", "ReLU") + BELOW + LOSS2) == {}


def test_an_unused_label_is_reported_and_a_silence_layer_fixes_it(check_text: CheckText) -> None:
    second = DATA.replace('"data" top: "label"', '"target" top: "spare"').replace('name: "data"', 'name: "b"')
    text = DATA + second + FC + LOSS + 'layer { name: "s" type: "Silence" bottom: "target" }'
    found = check_text(text)["unused-top"]
    assert "layer 'b' (Data) produces blob 'spare', which nothing reads" in found.what
    assert check_text(text.replace('bottom: "target"', 'bottom: "target" bottom: "spare"')) == {}


def test_blobs_of_one_phase_and_unread_blobs_of_a_deploy_net_are_outputs(
    check_text: CheckText,
) -> None:
    own = FC.replace("fc", "spare").replace('type: "', 'include { phase: TEST } type: "', 1)
    assert check_text(RIGHT + own) == {}
    fed = 'layer { name: "data" type: "Input" top: "data" top: "label" input_param { shape { dim: 2 } } }'
    assert "unused-top" not in check_text(fed + FC + FC.replace("fc", "spare"))


def test_layers_of_one_name_in_different_phases_are_right(check_text: CheckText) -> None:
    both = "".join(
        FC.replace('type: "', f'include {{ phase: {phase} }} type: "', 1) for phase in ("TRAIN", "TEST")
    )
    assert check_text(DATA + both + LOSS) == {}


@pytest.mark.parametrize(
    ("layer", "ids"),
    [
        ('type: "AbsVal"', ["in-place-type"]),
        ('type: "SpatialDropout"', ["in-place-type"]),
        ('type: "BNLL"', ["in-place-gradient"]),
        ('type: "Log"', ["in-place-gradient"]),
        ('type: "MVN"', ["in-place-gradient"]),
        ('type: "MVN" mvn_param { normalize_variance: false }', []),
        ('type: "ReLU" relu_param { negative_slope: -1 }', ["in-place-gradient"]),
        ('type: "ReLU" relu_param { negative_slope: 0.1 }', []),
        ('type: "Exp"', []),
        ('type: "PReLU"', []),
        ('type: "Zyzzyva"', ["unknown-layer-type"]),
    ],
)
def test_each_type_works_in_place_as_its_passes_allow(
    check_text: CheckText, layer: str, ids: list[str]
) -> None:
    assert list(check_text(DATA + FC + POWER.replace('type: "Power"', layer) + BELOW + LOSS2)) == ids


def test_an_in_place_layer_that_no_gradient_passes_is_right(check_text: CheckText) -> None:
    on_images = POWER.replace('"fc"', '"data"')
    assert check_text(DATA + on_images + FC + LOSS) == {}


def test_a_written_loss_weight_reads_a_top_as_a_layer_does(check_text: CheckText) -> None:
    weighted = FC.replace('top: "fc"', 'top: "fc" loss_weight: 1')
    found = check_text(DATA + weighted + TANH + LOSS)
    assert "which the loss also reads" in found["in-place-shared"].what


def test_a_loss_without_a_weight_or_a_top_gets_a_top_of_its_own(check_text: CheckText) -> None:
    quiet = LOSS.replace('top: "loss"', "loss_weight: 0").replace('"loss"', '"quiet"')
    assert "no-top" not in check_text(RIGHT + quiet)
