"""Each rule on what a net learns and is measured by: a wrong net, and its fixed twin."""

from __future__ import annotations

import pytest

from tests.review.lint.conftest import CheckText, ids_judging

NET = """
layer { name: "data" type: "Data" top: "data" top: "label"
  transform_param { mean_value: 1 mean_value: 2 mean_value: 3 crop_size: 8 }
  data_param { source: "a" batch_size: 2 backend: LMDB shuffle: true } }
layer { name: "ip1" type: "InnerProduct" bottom: "data" top: "ip1" param { lr_mult: 1 } param { lr_mult: 2 }
  inner_product_param { num_output: 50 weight_filler { type: "xavier" } } }
layer { name: "relu1" type: "ReLU" bottom: "ip1" top: "ip1" }
layer { name: "ip2" type: "InnerProduct" bottom: "ip1" top: "ip2" param { lr_mult: 1 } param { lr_mult: 2 }
  inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip2" bottom: "label" top: "loss" loss_weight: 1 }
layer { name: "accuracy" type: "Accuracy" bottom: "ip2" bottom: "label" top: "accuracy"
  include { phase: TEST } }
"""
TWICE = 'layer { name: "twice" type: "Silence" bottom: "loss" }'
READS_SCORES = TWICE.replace("loss", "prob") + TWICE.replace("loss", "prob").replace("twice", "again")
FROZEN = NET.replace("lr_mult: 1", "lr_mult: 0").replace("lr_mult: 2", "lr_mult: 0")
SCORES_LEARN = "".join(FROZEN.rsplit("param { lr_mult: 0 } param { lr_mult: 0 }", 1))

CASES: dict[str, tuple[str, str]] = {
    "nothing-learns": (FROZEN, SCORES_LEARN),
    "no-backward": (NET.replace('type: "ReLU"', 'type: "Threshold"'), NET),
    "loss-counted-twice": (NET + TWICE, NET.replace("loss_weight: 1", "") + TWICE),
    "loss-weight-moved": (
        NET.replace("loss_weight: 1", 'top: "prob" loss_weight: 1 loss_weight: 0') + TWICE,
        NET.replace("loss_weight: 1", 'top: "prob" loss_weight: 1 loss_weight: 0') + READS_SCORES,
    ),
    "scores-frozen": (
        NET.replace(
            "param { lr_mult: 1 } param { lr_mult: 2 }\n  inner_product_param { num_output: 4",
            "param { lr_mult: 0 } param { lr_mult: 0 }\n  inner_product_param { num_output: 4",
        ),
        NET,
    ),
    "rate-negative": (NET.replace("lr_mult: 1", "lr_mult: -1", 1), NET),
    "loss-weight-negative": (NET.replace("loss_weight: 1", "loss_weight: -1"), NET),
    "accuracy-elsewhere": (NET.replace('Accuracy" bottom: "ip2"', 'Accuracy" bottom: "ip1"'), NET),
    "blob-too-large": (
        NET.replace("batch_size: 2", "batch_size: 11184811"),
        NET.replace("batch_size: 2", "batch_size: 11184810"),
    ),
}


def test_every_rule_has_a_case() -> None:
    assert CASES.keys() == ids_judging("what a net learns")


@pytest.mark.parametrize("rule", CASES)
def test_a_wrong_net_is_found_and_its_fixed_twin_is_not(rule: str, check_text: CheckText) -> None:
    wrong, fixed = CASES[rule]
    assert check_text(wrong).keys() == {rule}
    assert check_text(fixed) == {}


def test_one_blob_that_learns_is_enough(check_text: CheckText) -> None:
    assert check_text(SCORES_LEARN) == {}
    assert list(check_text(FROZEN.replace("lr_mult: 0", "lr_mult: 1", 1))) == ["scores-frozen"]


@pytest.mark.parametrize(
    ("old", "new", "ids"),
    [
        ('type: "ReLU"', 'type: "ArgMax"', ["no-backward"]),
        ('bottom: "label" top: "loss"', 'bottom: "label" top: "loss" PROPAGATE', ["no-backward"]),
        ('bottom: "label" top: "accuracy"', 'bottom: "label" top: "accuracy" loss_weight: 1', []),
        ("lr_mult: 1 } param { lr_mult: 2 }", "lr_mult: 0 } param { lr_mult: 0 }", []),
    ],
)
def test_only_what_a_gradient_comes_to_needs_a_backward_pass(
    check_text: CheckText, old: str, new: str, ids: list[str]
) -> None:
    new = new.replace("PROPAGATE", "propagate_down: true propagate_down: true")
    net = NET.replace(old, new, 1)
    if not ids:
        net = net.replace('type: "ReLU"', 'type: "Threshold"') if "lr_mult" in old else net
    found = check_text(net)
    assert [one for one in found if one == "no-backward"] == ids


def test_a_negative_decay_is_found_at_its_field(check_text: CheckText) -> None:
    found = check_text(NET.replace("{ lr_mult: 2 }", "{ lr_mult: 2 decay_mult: -1 }", 1))["rate-negative"]
    assert "decay_mult -1" in found.what
    assert found.write.startswith("decay_mult: 1")


def test_an_accuracy_of_the_softmax_of_the_scores_is_right(check_text: CheckText) -> None:
    softmax = 'layer { name: "prob" type: "Softmax" bottom: "ip2" top: "prob" include { phase: TEST } }\n'
    net = NET.replace('layer { name: "accuracy"', f'{softmax}layer {{ name: "accuracy"')
    assert check_text(net.replace('Accuracy" bottom: "ip2"', 'Accuracy" bottom: "prob"')) == {}


def test_an_accuracy_of_scores_before_a_margin_is_right(check_text: CheckText) -> None:
    margin = 'layer { name: "margin" type: "Power" bottom: "ip2" top: "margin" power_param { scale: 30 } }\n'
    net = NET.replace('layer { name: "loss"', f'{margin}layer {{ name: "loss"')
    assert check_text(net.replace('Loss" bottom: "ip2"', 'Loss" bottom: "margin"')) == {}


def test_each_of_many_heads_has_its_accuracy(check_text: CheckText) -> None:
    heads = "".join(
        f"""
        layer {{ name: "h{i}" type: "InnerProduct" bottom: "{f"h{i - 1}" if i else "ip1"}" top: "h{i}"
          inner_product_param {{ num_output: {i + 7} weight_filler {{ type: "xavier" }} }} }}
        layer {{ name: "l{i}" type: "SoftmaxWithLoss" bottom: "h{i}" bottom: "label" top: "l{i}" }}
        layer {{ name: "a{i}" type: "Accuracy" bottom: "h{i}" bottom: "label" top: "a{i}" }}
        """
        for i in range(30)
    )
    assert check_text(NET + heads) == {}


def test_a_weight_of_too_many_numbers_is_an_error(check_text: CheckText) -> None:
    found = check_text(NET.replace("num_output: 50", "num_output: 11184811"))["blob-too-large"]
    assert "learns a blob of shape 11184811x192, which has 2,147,483,712 numbers" in found.what
    # Only some Caffes check the size, and ours, a fork of Intel's, is not among them.
    assert not found.effect.startswith("Caffe aborts")
    assert "Intel's allows it" in found.effect and "BVLC's and NVIDIA's Caffe abort" in found.effect
