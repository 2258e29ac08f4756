"""Losses and accuracy against numpy, with the clamps, ties and normalisers of Caffe."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.prototxt import parse_prototxt
from caffe_recipes.engine.operators.loss import OPERATORS
from caffe_recipes.engine.operators.operator import Forward, LabelError, TensorShapes
from caffe_recipes.errors import InputError, RunFailed
from tests.engine.operators.conftest import apply, noise
from tests.engine.operators.conftest import set_up as set_up_layer

LOGITS = torch.from_numpy(np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32))
LABELS = torch.tensor([0.0, 3.0, 4.0, 1.0])


def set_up(text: str, *bottoms: Tensor, tops: int = 1, phase: pb.Phase = pb.TRAIN) -> Forward:
    layer = parse_prototxt(f'name: "l" {text}', pb.LayerParameter)
    layer.phase = phase
    layer.top.extend("ab"[:tops])
    return OPERATORS[layer.type](layer, TensorShapes(tuple(tuple(b.shape) for b in bottoms), (), ()))


def value(text: str, *bottoms: Tensor) -> float:
    return float(set_up(text, *bottoms)(bottoms, [])[0])


def softmax(x: NDArray[np.float64]) -> NDArray[np.float64]:
    powers = np.exp(x - x.max(1, keepdims=True))
    return np.asarray(powers / powers.sum(1, keepdims=True))


def each_loss() -> NDArray[np.float64]:
    chosen = softmax(LOGITS.numpy().astype(np.float64))[range(4), LABELS.int().numpy()]
    return np.asarray(-np.log(chosen))


def test_softmax_loss_is_the_mean_over_the_labels() -> None:
    assert value('type: "SoftmaxWithLoss"', LOGITS, LABELS) == pytest.approx(each_loss().mean(), rel=1e-6)


@pytest.mark.parametrize(
    ("param", "want"),
    [
        ("", lambda kept: kept.sum() / 3),
        ("normalization: VALID", lambda kept: kept.sum() / 3),
        ("normalization: FULL", lambda kept: kept.sum() / 4),
        ("normalization: BATCH_SIZE", lambda kept: kept.sum() / 4),
        ("normalization: NONE", lambda kept: kept.sum()),
        ("normalization: PRE_FIXED pre_fixed_normalizer: 10", lambda kept: kept.sum() / 10),
        ("normalize: false", lambda kept: kept.sum() / 4),
        ("normalize: true", lambda kept: kept.sum() / 3),
        ("normalize: false normalization: VALID", lambda kept: kept.sum() / 3),
    ],
)
def test_ignored_labels_count_only_if_the_normaliser_includes_them(param: str, want: object) -> None:
    assert callable(want)
    text = f'type: "SoftmaxWithLoss" loss_param {{ ignore_label: 3 {param} }}'
    kept = each_loss()[[0, 2, 3]]
    assert value(text, LOGITS, LABELS) == pytest.approx(want(kept), rel=1e-6)


def test_labels_of_planes_are_smoothed_over_all_scores_of_an_image() -> None:
    logits = torch.from_numpy(np.random.default_rng(1).standard_normal((1, 3, 2, 2))).requires_grad_()
    labels = torch.tensor([[[0.0, 1], [2, 0]]])
    (loss,) = set_up('type: "SoftmaxWithLoss" loss_param { label_smoothing: 0.3 }', logits, labels)(
        [logits, labels], []
    )
    (gradient,) = torch.autograd.grad(loss, logits)
    share = 0.3 / 12  # of 3 classes in 4 places
    chosen = torch.nn.functional.one_hot(labels.long(), 3).permute(0, 3, 1, 2)
    want = torch.softmax(logits, 1) * (0.7 + 11 * share) - share - chosen * (0.7 - share)
    assert torch.allclose(gradient, want / 4)


def test_a_hinge_has_no_gradient_where_it_begins() -> None:
    scores = torch.tensor([[1.0, -1.0, 0.0]], requires_grad=True)
    (loss,) = set_up('type: "HingeLoss"', scores, torch.zeros(1))([scores, torch.zeros(1)], [])
    assert torch.autograd.grad(loss, scores)[0].tolist() == [[0, 0, 1]]


def test_no_labels_at_all_make_no_loss() -> None:
    text = 'type: "SoftmaxWithLoss" loss_param { ignore_label: 3 }'
    assert value(text, LOGITS, torch.full((4,), 3.0)) == 0


def test_softmax_loss_over_planes_takes_a_label_per_place() -> None:
    logits = torch.from_numpy(np.random.default_rng(1).standard_normal((2, 3, 2, 2)).astype(np.float32))
    labels = torch.tensor([[[0.0, 1], [2, 0]], [[1, 1], [0, 2]]])
    rows = logits.numpy().transpose(0, 2, 3, 1).reshape(8, 3).astype(np.float64)
    chosen = softmax(rows)[range(8), labels.int().numpy().ravel()]
    assert value('type: "SoftmaxWithLoss"', logits, labels) == pytest.approx(-np.log(chosen).mean(), rel=1e-6)


def test_weights_in_a_third_bottom_weigh_the_mean() -> None:
    weights = torch.tensor([1.0, 0.0, 2.0, 1.0])
    want = (each_loss() * weights.numpy()).sum() / 4
    assert value('type: "SoftmaxWithLoss"', LOGITS, LABELS, weights) == pytest.approx(want, rel=1e-6)


def test_the_gradient_is_the_probabilities_less_one_at_the_label() -> None:
    logits = LOGITS.clone().requires_grad_()
    set_up('type: "SoftmaxWithLoss"', logits, LABELS)([logits, LABELS], [])[0].backward()
    want = softmax(LOGITS.numpy().astype(np.float64))
    want[range(4), LABELS.int().numpy()] -= 1
    assert logits.grad is not None
    assert logits.grad.numpy() == pytest.approx(want / 4, abs=1e-6)


def test_label_smoothing_is_in_the_gradient_and_not_in_the_loss() -> None:
    text = 'type: "SoftmaxWithLoss" loss_param { label_smoothing: 0.1 }'
    logits = LOGITS.clone().requires_grad_()
    loss = set_up(text, logits, LABELS)([logits, LABELS], [])[0]
    loss.backward()
    assert loss.item() == pytest.approx(each_loss().mean(), rel=1e-6)
    target = np.full((4, 5), 0.1 / 5)
    target[range(4), LABELS.int().numpy()] = 0.9
    want = softmax(LOGITS.numpy().astype(np.float64)) * (0.9 + 4 * 0.02) - target
    assert logits.grad is not None
    assert logits.grad.numpy() == pytest.approx(want / 4, abs=1e-6)


def test_the_probability_is_clamped_in_the_loss_and_not_in_the_gradient() -> None:
    logits = torch.tensor([[0.0, 200.0], [0.0, 0.0]], requires_grad=True)
    labels = torch.tensor([0.0, 0.0])
    loss = set_up('type: "SoftmaxWithLoss"', logits, labels)([logits, labels], [])[0]
    loss.backward()
    assert loss.item() == pytest.approx((-math.log(1.17549435e-38) + math.log(2)) / 2, rel=1e-6)
    assert logits.grad is not None
    assert logits.grad.tolist() == [[-0.5, 0.5], [-0.25, 0.25]]


def test_a_loss_at_its_limit_ten_times_in_a_row_fails_in_training() -> None:
    wrong, right, labels = torch.tensor([[0.0, 200.0]]), torch.tensor([[200.0, 0.0]]), torch.tensor([0.0])
    forward = set_up('type: "SoftmaxWithLoss"', wrong, labels)
    for logits in [wrong] * 9 + [right] + [wrong] * 9:
        forward([logits, labels], [])
    with torch.no_grad():  # the display after the last update
        forward([wrong, labels], [])
    with pytest.raises(RunFailed, match=r"87\.3365, its limit, for 10 passes in a row"):
        forward([wrong, labels], [])
    testing = set_up('type: "SoftmaxWithLoss"', wrong, labels, phase=pb.TEST)
    values = [float(testing([wrong, labels], [])[0]) for _ in range(12)]
    assert values == pytest.approx([87.3365] * 12, abs=1e-3)


def test_the_second_top_is_the_probabilities() -> None:
    forward = set_up('type: "SoftmaxWithLoss"', LOGITS, LABELS, tops=2)
    assert forward([LOGITS, LABELS], [])[1].numpy() == pytest.approx(softmax(LOGITS.numpy()), abs=1e-6)


def test_a_probability_below_the_threshold_of_multinomial_logistic_loss_gets_its_gradient() -> None:
    """Caffe divides by the threshold there, too, so that a probability of 0 still grows."""
    probabilities = torch.tensor([[0.0, 1.0], [0.25, 0.75]], requires_grad=True)
    forward = set_up('type: "MultinomialLogisticLoss"', probabilities, torch.zeros(2))
    loss = forward([probabilities, torch.zeros(2)], [])[0]
    loss.backward()
    assert float(loss.detach()) == pytest.approx(-(math.log(1e-20) + math.log(0.25)) / 2)
    assert probabilities.grad is not None
    assert probabilities.grad.tolist() == [pytest.approx([-0.5e20, 0]), pytest.approx([-2, 0])]


@pytest.mark.parametrize("kind", ["SoftmaxWithLoss", "Accuracy", "HingeLoss", "MultinomialLogisticLoss"])
@pytest.mark.parametrize("label", [5.0, -1.0])
def test_a_label_that_is_not_a_class_is_found(kind: str, label: float) -> None:
    labels = torch.tensor([0.0, 1.0, label, 2.0])
    with pytest.raises(LabelError) as caught:
        value(f'type: "{kind}"', LOGITS, labels)
    assert (caught.value.position, caught.value.label, caught.value.classes) == (2, int(label), 5)


def test_accuracy_counts_the_label_among_the_top_k() -> None:
    scores = torch.tensor([[0.1, 0.9, 0.5], [0.7, 0.2, 0.1], [0.3, 0.4, 0.3]])
    labels = torch.tensor([1.0, 2.0, 0.0])
    assert value('type: "Accuracy"', scores, labels) == pytest.approx(1 / 3)
    assert value('type: "Accuracy" accuracy_param { top_k: 3 }', scores, labels) == 1


def test_among_equal_predictions_the_later_class_comes_first() -> None:
    scores = torch.zeros(1, 4)
    hits = [
        value('type: "Accuracy" accuracy_param { top_k: 2 }', scores, torch.tensor([c])) for c in range(4)
    ]
    assert hits == [0, 0, 1, 1]


def test_accuracy_leaves_ignored_labels_out_and_counts_each_class() -> None:
    scores = torch.tensor([[0.1, 0.9, 0.5], [0.7, 0.2, 0.1], [0.3, 0.4, 0.3], [0.0, 1.0, 0.0]])
    labels = torch.tensor([1.0, 255.0, 0.0, 1.0])
    text = 'type: "Accuracy" accuracy_param { ignore_label: 255 }'
    overall, classes = set_up(text, scores, labels, tops=2)([scores, labels], [])
    assert float(overall) == pytest.approx(2 / 3)
    assert classes.tolist() == [0, 1, 0]


def test_top_k_beyond_the_classes_is_refused() -> None:
    with pytest.raises(InputError, match="top_k is 6 of 5 classes"):
        set_up('type: "Accuracy" accuracy_param { top_k: 6 }', LOGITS, LABELS)


def test_sigmoid_cross_entropy_loss() -> None:
    target = (LOGITS.flip(0) > 0).float()
    p = 1 / (1 + np.exp(-LOGITS.numpy().astype(np.float64)))
    losses = -(target.numpy() * np.log(p) + (1 - target.numpy()) * np.log(1 - p))
    assert value('type: "SigmoidCrossEntropyLoss"', LOGITS, target) == pytest.approx(
        losses.sum() / 4, rel=1e-5
    )
    # BVLC's reads loss_param, this Caffe's does not.
    other = 'type: "SigmoidCrossEntropyLoss" loss_param { ignore_label: 1 normalization: VALID }'
    assert value(other, LOGITS, target) == pytest.approx(losses.sum() / 4, rel=1e-5)


@pytest.mark.parametrize("type_", ["HingeLoss", "MultinomialLogisticLoss"])
def test_with_several_labels_per_item_only_as_many_as_items_are_read(type_: str) -> None:
    scores, several = torch.softmax(LOGITS, 1), torch.tensor([[0.0, 3.0], [4.0, 1.0], [9.0, 9.0], [9.0, 9.0]])
    got = value(f'type: "{type_}"', scores, several)
    assert got == pytest.approx(value(f'type: "{type_}"', scores, LABELS), rel=1e-6)


def test_weights_in_a_third_bottom_get_no_gradient() -> None:
    weights = torch.ones(4, requires_grad=True)
    logits = LOGITS.clone().requires_grad_()
    set_up('type: "SoftmaxWithLoss"', LOGITS, LABELS, weights)([logits, LABELS, weights], [])[0].backward()
    assert weights.grad is None


def test_multinomial_logistic_loss_clamps_at_1e_20() -> None:
    probabilities, labels = torch.tensor([[0.5, 0.5], [1.0, 0.0]]), torch.tensor([0.0, 1.0])
    want = (-math.log(0.5) - math.log(1e-20)) / 2
    assert value('type: "MultinomialLogisticLoss"', probabilities, labels) == pytest.approx(want, rel=1e-6)


def test_seg_accuracy_is_that_of_pixels_and_the_means_over_classes() -> None:
    scores = noise(2, 4, 3, 5)
    scores[0, :, 0, 0] = 1.0  # of equal scores, the last class wins
    labels = torch.from_numpy(np.random.default_rng(1).integers(0, 3, (2, 1, 3, 5))).float()
    labels[1, 0, 2] = 255
    found = apply('type: "SegAccuracy" seg_accuracy_param { ignore_label: 255 }', scores, labels)
    pairs = [
        (int(labels[n, 0, h, w]), max(range(4), key=lambda c: (float(scores[n, c, h, w]), c)))
        for n, h, w in np.ndindex(2, 3, 5)
        if labels[n, 0, h, w] != 255
    ]
    hits = [sum(pair == (c, c) for pair in pairs) for c in range(4)]
    actual = [sum(true == c for true, _ in pairs) for c in range(4)]
    union = [sum(c in pair for pair in pairs) for c in range(4)]
    recall = [hits[c] / actual[c] for c in range(4) if actual[c]]
    overlap = [hits[c] / union[c] if union[c] else 1 for c in range(4)]
    wanted = [sum(hits) / len(pairs), sum(recall) / len(recall), sum(overlap) / 4]
    assert found.shape == (1, 1, 1, 3)
    np.testing.assert_allclose(found.ravel(), wanted, rtol=1e-6)


def test_center_loss_pulls_centers_by_one_more_than_the_items_of_a_class() -> None:
    text = 'type: "CenterLoss" center_loss_param { num_output: 3 center_filler { type: "xavier" } }'
    x, labels, centers = noise(4, 2).requires_grad_(), torch.tensor([0.0, 2, 0, 0]), noise(3, 2, seed=1)
    centers.requires_grad_()
    forward, learned = set_up_layer(text, (4, 2), (4,))
    (loss,) = forward([x, labels], [centers])
    (2 * loss).backward()
    away = x.detach() - centers.detach()[[0, 2, 0, 0]]
    assert learned == [(3, 2)] and x.grad is not None and centers.grad is not None
    assert float(loss.detach()) == pytest.approx(float((away**2).sum() / 8))
    np.testing.assert_allclose(x.grad.numpy(), 2 * away.numpy() / 4, rtol=1e-5)
    pulls = np.stack([-away[[0, 2, 3]].sum(0) / 4, np.zeros(2), -away[1] / 2])
    np.testing.assert_allclose(centers.grad.numpy(), pulls, rtol=1e-5)
