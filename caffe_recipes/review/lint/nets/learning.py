"""Rules on what a net learns, and is measured by: rates of its weights, weights of its losses, accuracies."""

from __future__ import annotations

from collections.abc import Iterator

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.shapes import show_shape
from caffe_recipes.caffe.shaping.dims import Shape, product
from caffe_recipes.review.findings import Severity
from caffe_recipes.review.lint.nets.labels import outputs_of
from caffe_recipes.review.lint.nets.view import (
    LEARNED_TYPES,
    Blob,
    Draft,
    NetView,
    PhaseNet,
    is_loss,
    number,
    title,
)

RULES: dict[str, tuple[Severity, str]] = {
    "nothing-learns": ("warning", "lr_mult 0 for all that a net with a loss could learn"),
    "rate-negative": ("warning", "a negative lr_mult or decay_mult"),
    "loss-weight-negative": ("warning", "a negative loss_weight: the loss is maximized"),
    "accuracy-elsewhere": ("warning", "an accuracy on another blob than the scores of the loss on its label"),
    "blob-too-large": ("error", "a blob of more than 2,147,483,647 numbers"),
}

_MOST_NUMBERS = 2**31 - 1
_MOST_LOSSES = 20  # of one label
# Statistics, not learned by gradients.
_COUNTED = frozenset(("BatchNorm", "MKLBatchNorm"))
# What their output ranks is what their bottom ranks.
_RANKING = frozenset(("Flatten", "LogSoftmax", "Reshape", "Softmax", "Split"))


def check_multipliers(view: NetView) -> Iterator[Draft]:
    """Check the signs of each layer's rates and loss weights."""
    for index, layer in enumerate(view.net.layer):
        for p, param in enumerate(layer.param):
            for field in ("lr_mult", "decay_mult"):
                value = getattr(param, field)
                if value < 0:
                    yield Draft(
                        "rate-negative",
                        index,
                        f"param[{p}].{field}",
                        f"{title(layer)} has {field} {number(value)}",
                        "its weights move up the gradient: the loss grows"
                        if field == "lr_mult"
                        else "each update makes its weights larger",
                        f"{field}: {number(-value)}, or 0",
                    )
        for t, weight in enumerate(layer.loss_weight):
            if weight < 0:
                yield Draft(
                    "loss-weight-negative",
                    index,
                    f"loss_weight[{t}]",
                    f"{title(layer)} has loss_weight {number(weight)}",
                    "training makes this loss larger, without bound",
                    f"loss_weight: {number(-weight)}",
                )


def check_learning(phase: PhaseNet) -> Iterator[Draft]:
    """Check that a phase learns, that its accuracies look at scores, and that its blobs are not too large."""
    if phase.phase == pb.TRAIN:
        yield from _nothing(phase)
    yield from _accuracies(phase)
    yield from _large(phase)


def _nothing(phase: PhaseNet) -> Iterator[Draft]:
    learning = [
        i
        for i, layer in enumerate(phase.layers)
        if layer.type in LEARNED_TYPES - _COUNTED and phase.learned(i) != ()
    ]
    # A net of layers that are not known may learn in those.
    if not learning or not any(map(is_loss, phase.layers)) or None in map(phase.learned, learning):
        return
    rates = [rate for i in learning for rate in _rates(phase.layers[i], len(phase.learned(i) or ()))]
    if any(rates) or any(layer.type == "Python" for layer in phase.layers):
        return
    first = learning[0]
    yield Draft(
        "nothing-learns",
        phase.where(first),
        "param[0].lr_mult",
        f"all {len(learning)} layers that could learn have lr_mult 0",
        "nothing is learned, and Caffe trains to the end and exits 0",
        "lr_mult: 1 for what is to learn",
        (("layers", len(learning)),),
    )


def _rates(layer: pb.LayerParameter, count: int) -> list[float]:
    return [layer.param[p].lr_mult if p < len(layer.param) else 1.0 for p in range(count)]


def _accuracies(phase: PhaseNet) -> Iterator[Draft]:
    losses: dict[Blob | None, list[int]] = {}
    for i, layer in enumerate(phase.layers):
        if layer.type.startswith("SoftmaxWithLoss") and len(layer.bottom) > 1:
            losses.setdefault(_ranked(phase, i, 1), []).append(i)
    scores = {i: _ranked(phase, i, 0) for alike in losses.values() for i in alike}
    scored, behind = set(scores.values()), dict[Blob | None, set[Blob]]()
    for i, layer in enumerate(phase.layers):
        if layer.type != "Accuracy" or len(layer.bottom) < 2:
            continue
        ours, of_label = _ranked(phase, i, 0), losses.get(_ranked(phase, i, 1), [])[:_MOST_LOSSES]
        if ours is None or not of_label or ours in scored:
            continue
        for j in of_label:
            if scores[j] not in behind:
                behind[scores[j]] = _behind(phase, scores[j])
        # Of one label there may be several scores: only what lies behind those of each is no score.
        if all(ours in behind[scores[j]] and outputs_of(phase, j) != outputs_of(phase, i) for j in of_label):
            loss = phase.layers[of_label[0]]
            yield Draft(
                "accuracy-elsewhere",
                phase.where(i),
                "bottom[0]",
                f"{title(layer)} reads '{layer.bottom[0]}', and {title(loss)} the scores '{loss.bottom[0]}'",
                "the accuracy ranks what is no score of a class: it stays at that of guessing",
                f'bottom: "{loss.bottom[0]}"',
            )


def _ranked(phase: PhaseNet, i: int, b: int) -> Blob | None:
    """Find the blob that a bottom ranks as, before layers that keep the order of its numbers."""
    made = phase.maker(i, b)
    while made is not None and made[0] >= 0 and phase.layers[made[0]].type in _RANKING:
        made = phase.maker(made[0], 0)
    return made


def _behind(phase: PhaseNet, blob: Blob | None) -> set[Blob]:
    """Give all blobs that a blob is computed from, and itself."""
    found: set[Blob] = set()
    waiting = [blob]
    while waiting:
        made = waiting.pop()
        if made is not None and made not in found:
            found.add(made)
            if made[0] >= 0:
                waiting += [phase.maker(made[0], b) for b in range(len(phase.layers[made[0]].bottom))]
    return found


def _large(phase: PhaseNet) -> Iterator[Draft]:
    for i, layer in enumerate(phase.layers):
        shapes = phase.shapes[i] if phase.shapes else None
        if shapes is None:
            continue
        kinds: dict[str, tuple[Shape | None, ...]] = {"makes": shapes.tops, "learns": shapes.learned or ()}
        for kind, blobs in kinds.items():
            large = next((shape for shape in blobs if _is_large(shape)), None)
            if large is not None:
                yield Draft(
                    "blob-too-large",
                    phase.where(i),
                    "type",
                    f"{title(layer)} {kind} a blob {show_shape(large)}, of {product(large):,} numbers",
                    "Caffe stops: blob size exceeds INT_MAX",
                    "a smaller batch_size, num_output or image",
                )
                return  # those after it are as large


def _is_large(shape: Shape | None) -> bool:
    count = product(shape) if shape is not None else None
    return count is not None and count > _MOST_NUMBERS
