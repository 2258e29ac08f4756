"""Each rule on outputs and labels: a wrong net, and its fixed twin."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.prototxt import parse_document
from caffe_recipes.review.lint.check import check_net
from caffe_recipes.review.lint.findings import Finding
from tests.review.lint.conftest import ids_judging

CheckText = Callable[..., dict[str, Finding]]

NET = """
layer { name: "data" type: "Data" top: "data" top: "label"
  transform_param { crop_size: 4 mean_value: 1 mean_value: 2 mean_value: 3 }
  data_param { source: "a" batch_size: 2 backend: LMDB } }
layer { name: "fc" type: "InnerProduct" bottom: "data" top: "fc"
  inner_product_param { num_output: 10 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "fc" bottom: "label" top: "loss" }
layer { name: "top" type: "Accuracy" bottom: "fc" bottom: "label" top: "top" accuracy_param { top_k: 5 } }
"""
SOFTMAX = """
layer { name: "prob" type: "Softmax" bottom: "fc" top: "prob" }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "prob\
"""


def outputs(count: int, top_k: int = 1) -> str:
    return NET.replace("num_output: 10", f"num_output: {count}").replace("top_k: 5", f"top_k: {top_k}")


CASES: dict[str, tuple[str, str]] = {
    "outputs-below-classes": (outputs(9), NET),
    "outputs-above-classes": (outputs(11), NET),
    "top-k-above-outputs": (outputs(10, 11), NET),
    "top-k-all-outputs": (outputs(10, 10), NET),
    "single-output-softmax": (outputs(1), NET),
    "label-not-label": (NET.replace('bottom: "label" top: "loss"', 'bottom: "fc" top: "loss"'), NET),
    "relu-on-scores": (
        NET.replace(
            '\nlayer { name: "loss"',
            '\nlayer { name: "r" type: "ReLU" bottom: "fc" top: "fc" }\nlayer { name: "loss"',
        ),
        NET,
    ),
    "activation-twice": (
        NET.replace('\nlayer { name: "loss" type: "SoftmaxWithLoss" bottom: "fc', SOFTMAX),
        NET,
    ),
    "ignored-labels-differ": (
        NET.replace('top: "loss"', 'top: "loss" loss_param { ignore_label: 255 }'),
        NET.replace('top: "loss"', 'top: "loss" loss_param { ignore_label: 255 }').replace(
            "top_k: 5", "top_k: 5 ignore_label: 255"
        ),
    ),
}


def test_every_rule_has_a_case() -> None:
    assert CASES.keys() == ids_judging("the outputs and labels of a net")


@pytest.mark.parametrize("rule", CASES)
def test_a_wrong_net_is_found_and_its_fixed_twin_is_not(rule: str, check_text: CheckText) -> None:
    wrong, fixed = CASES[rule]
    assert rule in check_text(wrong, classes=10)
    assert check_text(fixed, classes=10) == {}


def test_outputs_are_compared_with_the_classes_only_if_given(check_text: CheckText) -> None:
    assert check_text(outputs(9)) == {}
    found = check_text(outputs(9), classes=10)["outputs-below-classes"]
    assert (found.values["outputs"], found.values["classes"]) == (9, 10)
    assert found.write == "num_output: 10"
    line = next(at for at, each in enumerate(NET.splitlines(), 1) if "num_output" in each)
    assert found.where.startswith(f"net.prototxt:{line}:")


@pytest.mark.parametrize(
    ("count", "labels", "write"),
    [
        (2, (1, 2), "num_output: 3, or number the labels from 0"),
        (2, (0, 2), "num_output: 3"),
        (3, (1, 2), ""),
        (1000, (0, 9), ""),
        (2, None, ""),
    ],
)
def test_outputs_are_compared_with_the_labels_of_the_lmdb_on_this_machine(
    check_text: CheckText, count: int, labels: tuple[int, int] | None, write: str
) -> None:
    found = check_text(outputs(count), labels_of=lambda source: labels)
    assert [one.write for name, one in found.items() if name.startswith("outputs")] == [write] * bool(write)
    assert not check_text(outputs(10), classes=10, labels_of=lambda source: (0, 99))


def test_outputs_of_a_loss_on_another_label_are_their_own_matter(check_text: CheckText) -> None:
    cut = 'layer { name: "cut" type: "Slice" bottom: "label" top: "l0" top: "l1" slice_param { axis: 0 } }'
    net = NET.replace('\nlayer { name: "fc"', f'\n{cut}\nlayer {{ name: "fc"')
    net = net.replace('bottom: "label"', 'bottom: "l0"').replace(
        'bottom: "l0" top: "l0"', 'bottom: "label" top: "l0"'
    )
    assert "outputs-below-classes" not in check_text(net, classes=1000)


def test_swapped_bottoms_are_reported_with_the_right_order(check_text: CheckText) -> None:
    found = check_text(
        NET.replace('bottom: "fc" bottom: "label" top: "loss"', 'bottom: "label" bottom: "fc" top: "loss"')
    )
    assert found["label-not-label"].write == 'bottom: "fc" bottom: "label": predictions first'


def test_the_images_are_not_a_label_but_images_of_labels_are(check_text: CheckText) -> None:
    images = NET.replace('bottom: "label" top: "loss"', 'bottom: "data" top: "loss"')
    assert "label-not-label" in check_text(images)
    labels = (
        'layer { name: "l" type: "Data" top: "m" data_param { source: "b" batch_size: 2 backend: LMDB } }'
    )
    own = NET.replace('\nlayer { name: "fc"', f'\n{labels}\nlayer {{ name: "fc"')
    assert check_text(own.replace('bottom: "label" top: "loss"', 'bottom: "m" top: "loss"')) == {}


def test_a_sigmoid_before_the_loss_that_applies_it_is_reported(check_text: CheckText) -> None:
    sigmoid = 'layer { name: "s" type: "Sigmoid" bottom: "fc" top: "s" }\n'
    loss = 'layer { name: "x" type: "SigmoidCrossEntropyLoss" bottom: "%s" bottom: "t" top: "x" }'
    target = 'layer { name: "t" type: "HDF5Data" top: "t" hdf5_data_param { source: "h" batch_size: 2 } }\n'
    assert list(check_text(NET + target + sigmoid + loss % "s")) == ["activation-twice"]
    assert check_text(NET + target + sigmoid + loss % "fc") == {}


def test_too_few_outputs_are_reported_once_of_a_loss_and_an_accuracy() -> None:
    found = check_net(parse_document(outputs(9), "net.prototxt", pb.NetParameter), classes=10)
    assert [one.id for one in found].count("outputs-below-classes") == 1
