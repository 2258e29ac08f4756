"""Each rule on phases: a wrong net, and its fixed twin."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from caffe_recipes.review.lint.findings import Finding
from tests.review.lint.conftest import ids_judging

CheckText = Callable[..., dict[str, Finding]]


def data(phase: str, more: str = "crop_size: 8 mean_value: 1 mean_value: 2 mean_value: 3") -> str:
    return f"""
    layer {{ name: "data" type: "Data" top: "data" top: "label" include {{ phase: {phase} }}
      transform_param {{ {more} }}
      data_param {{ source: "{phase}" batch_size: 2 backend: LMDB shuffle: true }} }}
    """


FC = """
layer { name: "fc" type: "InnerProduct" bottom: "data" top: "fc"
  inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
"""
LOSS = 'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "fc" bottom: "label" top: "loss" }'
RIGHT = data("TRAIN") + data("TEST") + FC + LOSS
OTHER_CROP = RIGHT.replace("crop_size: 8", "crop_size: 6", 1)
DROP = 'layer { name: "drop" type: "Dropout" bottom: "fc" top: "drop" }'
OTHER_MEAN = RIGHT.replace("mean_value: 1", "mean_value: 7", 1)

CASES: dict[str, tuple[str, str]] = {
    "no-data": (FC, RIGHT),
    "no-train-data": (
        data("TEST") + FC + LOSS.replace('type: "', 'include { phase: TRAIN } type: "'),
        data("TEST") + FC + LOSS,
    ),
    "no-loss": (data("TRAIN") + FC, data("TRAIN") + FC + LOSS),
    "include-and-exclude": (
        RIGHT.replace("include { phase: TRAIN }", "include { phase: TRAIN } exclude { phase: TEST }"),
        RIGHT,
    ),
    "phase-without-include": (
        RIGHT + 'layer { name: "p" type: "Softmax" bottom: "fc" top: "p" phase: TEST }',
        RIGHT,
    ),
    "phase-transforms-differ": (OTHER_MEAN, RIGHT),
    "phase-crops-differ": (OTHER_CROP, RIGHT),
    "dropout-test-only": (RIGHT + DROP.replace("bottom", "include { phase: TEST } bottom", 1), RIGHT),
    "phase-weights-differ": (OTHER_CROP, RIGHT),
    "test-on-train": (RIGHT.replace('source: "TEST"', 'source: "TRAIN"'), RIGHT),
}


def test_a_net_without_data_is_checked_with_the_data_layer_that_a_recipe_adds(check_text: CheckText) -> None:
    found = check_text(FC + DROP.replace(' top: "drop"', ' top: "drop" dropout_param { dropout_ratio: 2 }'))
    assert "a recipe that names the net adds its own" in found["no-data"].write
    assert found["no-data"].where == "net.prototxt"
    assert found["dropout-ratio"].where.startswith("net.prototxt:4:")
    misspelt = check_text((FC + LOSS).replace('bottom: "fc"', 'bottom: "fcc"'))
    assert misspelt["unknown-bottom"].where.startswith("net.prototxt:4:")
    assert set(check_text(FC + LOSS)) == {"no-data"}
    old = FC.replace("layer {", "layers {").replace('"InnerProduct"', "INNER_PRODUCT")
    loss = LOSS.replace("layer {", "layers {").replace('"SoftmaxWithLoss"', "SOFTMAX_LOSS")
    assert set(check_text(old + loss)) == {"no-data", "old-format"}
    found = check_text('name: "of no layer"')
    assert set(found) == {"no-data"}
    assert found["no-data"].what == "the net has no layers"


def test_a_layer_that_learns_more_blobs_in_one_phase_is_found(check_text: CheckText) -> None:
    train = FC.replace("bottom", "include { phase: TRAIN } bottom", 1)
    test = FC.replace("bottom", "include { phase: TEST } bottom", 1)
    test = test.replace("inner_product_param {", "inner_product_param { bias_term: false ")
    found = check_text(data("TRAIN") + data("TEST") + train + test + LOSS)
    assert "learns 1 blob in TEST, 2 in TRAIN" in found["phase-weights-differ"].what


@pytest.mark.parametrize("written", ["TRAIN/", ".//TRAIN", "x/../TRAIN"])
def test_one_lmdb_is_found_however_its_path_is_written(check_text: CheckText, written: str) -> None:
    found = check_text(RIGHT.replace('source: "TEST"', f'source: "{written}"'))
    assert f"'{written}'" in found["test-on-train"].what


@pytest.mark.parametrize(
    ("wrong", "phase"),
    [
        (RIGHT.replace(" mean_value: 3", "", 1), "TRAIN"),
        (RIGHT.replace("mean_value: 3", "mean_value: 3 mean_value: 4", 1), "TRAIN"),
        (data("TRAIN") + data("TEST", "crop_size: 8 mean_value: 1 mean_value: 2") + FC + LOSS, "TEST"),
    ],
)
def test_means_of_other_channels_in_one_phase_are_one_finding(
    check_text: CheckText, wrong: str, phase: str
) -> None:
    found = check_text(wrong)
    assert found.keys() == {"mean-values-misfit"}
    assert f"mean_value fields in {phase}, but 3 in " in found["mean-values-misfit"].what


def test_every_rule_has_a_case() -> None:
    assert CASES.keys() == ids_judging("the phases of a net")


@pytest.mark.parametrize("rule", CASES)
def test_a_wrong_net_is_found_and_its_fixed_twin_is_not(rule: str, check_text: CheckText) -> None:
    wrong, fixed = CASES[rule]
    assert rule in check_text(wrong)
    assert check_text(fixed) == {}


def test_a_net_without_test_data_is_checked_in_train_only(check_text: CheckText) -> None:
    assert check_text(data("TRAIN") + FC + LOSS) == {}


def test_a_net_without_a_loss_that_is_for_no_phase_extracts_features(check_text: CheckText) -> None:
    assert check_text(data("TRAIN").replace("include { phase: TRAIN }", "") + FC) == {}


def test_a_loss_of_weight_0_is_not_a_loss(check_text: CheckText) -> None:
    weightless = LOSS.replace('top: "loss"', 'top: "loss" loss_weight: 0')
    assert list(check_text(data("TRAIN") + FC + weightless)) == ["no-loss"]
    assert check_text(data("TRAIN") + FC + weightless + LOSS.replace("loss", "loss2")) == {}


def test_another_crop_in_test_fits_where_the_pooling_is_global(check_text: CheckText) -> None:
    pool = (
        'layer { name: "p" type: "Pooling" bottom: "data" top: "p" pooling_param { global_pooling: true } }'
    )
    net = data("TRAIN") + data("TEST") + pool + FC.replace('bottom: "data"', 'bottom: "p"') + LOSS
    assert list(check_text(net.replace("crop_size: 8", "crop_size: 6", 1))) == ["phase-crops-differ"]


def test_both_means_are_reported(check_text: CheckText) -> None:
    what = check_text(OTHER_MEAN)["phase-transforms-differ"].what
    assert what == "layer 'data' (Data) has mean_value 1, 2, 3 in TEST but 7, 2, 3 in TRAIN"


def test_images_that_one_phase_does_not_crop_may_be_of_the_others_size(check_text: CheckText) -> None:
    assert "phase-crops-differ" not in check_text(RIGHT.replace("crop_size: 8", "", 1))
