"""Rules for what a net learns: rate multipliers, loss weights, and accuracies."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.dialects.check import BATCH_DIVIDING
from caffe_recipes.caffe.layer_types import bottoms_without_backward, type_of
from caffe_recipes.caffe.layer_types.dimensions import product
from caffe_recipes.caffe.layer_types.normalization import has_own_scale
from caffe_recipes.caffe.shapes import show_shape
from caffe_recipes.review.lint.layer_blocks import LINEAR_BLOCKS
from caffe_recipes.review.lint.net_text import layer_finding, layers_finding, show_number, title
from caffe_recipes.review.lint.net_view import has_loss_top, is_computed, is_loss, outputs_of
from caffe_recipes.review.lint.subjects import learning_rule, multiplier_rule

if TYPE_CHECKING:
    from caffe_recipes.caffe.layer_types.dimensions import Shape
    from caffe_recipes.review.lint.findings import Finding
    from caffe_recipes.review.lint.net_view import Blob, NetView, PhaseNet


_MAX_NUMBERS = 2**31 - 1
_MAX_LOSSES = 20  # with the same label


@multiplier_rule(
    "loss-weight-negative",
    "warning",
    "a negative loss_weight, which maximizes the loss",
    what="{layer} has loss_weight {weight}",
    effect="training increases this loss without bound",
    write="loss_weight: {opposite}",
)
@multiplier_rule(
    "rate-negative",
    "warning",
    "a negative lr_mult or decay_mult",
    what="{layer} has {field} {value}",
    write="{field}: {opposite}, or 0",
)
def check_multipliers(view: NetView) -> Iterator[Finding]:
    """Check the signs of each layer's rate multipliers and loss weights."""
    for index, layer in enumerate(view.net.layer):
        for p, param in enumerate(layer.param):
            for field in ("lr_mult", "decay_mult"):
                value = getattr(param, field)
                if value < 0:
                    yield layer_finding(
                        "rate-negative",
                        view,
                        index,
                        f"param[{p}].{field}",
                        effect="its weights follow the gradient upwards, so the loss grows"
                        if field == "lr_mult"
                        else "each update makes its weights larger",
                        field=field,
                        value=show_number(value),
                        opposite=show_number(-value),
                    )
        for t, weight in enumerate(layer.loss_weight):
            if weight < 0:
                yield layer_finding(
                    "loss-weight-negative",
                    view,
                    index,
                    f"loss_weight[{t}]",
                    weight=show_number(weight),
                    opposite=show_number(-weight),
                )


@learning_rule(
    "no-backward",
    "error",
    "a layer without a backward pass between learned weights and the loss",
    what="{layer} has no backward pass, but is between '{name}', which is learned, and the loss",
    effect="Caffe aborts at the first backward pass: Not Implemented Yet, or Cannot backpropagate",
    write="move the layer out of the path to the loss, or set propagate_down: false for this bottom",
)
def _check_backward(view: NetView, phase: PhaseNet) -> Iterator[Finding]:
    for i, layer in enumerate(phase.layers if phase.phase == pb.TRAIN else ()):
        back = [b for b in bottoms_without_backward(layer) if (i, b) in phase.gradients]
        if not back:
            continue
        # Another rule reports a computed label.
        is_loss_of_labels = type_of(layer).is_classifier and layer.type != "Accuracy"
        if not (is_loss_of_labels and is_computed(phase, i, back[0])):
            name = layer.bottom[back[0]]
            yield layer_finding("no-backward", phase, i, f"bottom[{back[0]}]", name=name)


@learning_rule(
    "scores-frozen",
    "warning",
    "lr_mult 0 in the layer that computes the scores, while others learn",
    what="{layer} computes the scores of {reader}, but has lr_mult 0",
    effect="unless --weights sets its weights, they stay random, and the scores are meaningless",
    write="lr_mult: 10 for a new layer",
)
def _check_scores_frozen(view: NetView, phase: PhaseNet) -> Iterator[Finding]:
    """Find score layers with lr_mult 0: a new one would keep the values of its fillers."""
    for i, layer in enumerate(phase.layers if phase.phase == pb.TRAIN else ()):
        if not (layer.type.startswith("SoftmaxWithLoss") and is_loss(layer)):
            continue
        blob = _score_source(phase, i, 0)
        producer = phase.layers[blob[0]] if blob is not None and blob[0] >= 0 else None
        if producer is None or blob is None or producer.type not in LINEAR_BLOCKS or not producer.param:
            continue
        filler = getattr(producer, LINEAR_BLOCKS[producer.type]).weight_filler
        others = [k for k in range(len(phase.layers)) if k != blob[0] and _learns(phase, k)]
        if filler.type != "constant" and others and not _learns(phase, blob[0]):
            yield layer_finding("scores-frozen", phase, blob[0], "param[0].lr_mult", reader=title(layer))


def _has_weights(layer: pb.LayerParameter) -> bool:
    return type_of(layer).learned > 0 and not type_of(layer).has_statistics


def _learns(phase: PhaseNet, i: int) -> bool:
    layer = phase.layers[i]
    if not _has_weights(layer):
        return False
    learned = phase.learned(i)
    return any(_lr_mults(layer, len(learned) if learned is not None else max(len(layer.param), 1)))


@learning_rule(
    "loss-counted-twice",
    "note",
    "a loss with an explicit loss_weight whose top another layer reads",
    what="{layer} has a loss_weight, but another layer reads its top",
    effect="Caffe splits the top and gives the weight to a copy, while the layer gets the default "
    "1: the printed loss includes both, the gradient only one",
    write="remove loss_weight: 1, or read this loss from the log",
)
def _check_loss_counted_twice(view: NetView, phase: PhaseNet) -> Iterator[Finding]:
    for i, layer in enumerate(phase.layers if phase.phase == pb.TRAIN else ()):
        is_alone = has_loss_top(layer) and len(layer.top) < 2
        if is_alone and any(layer.loss_weight) and phase.flow.readers.get((i, 0)):
            yield layer_finding("loss-counted-twice", phase, i, "loss_weight[0]")


@learning_rule(
    "loss-weight-moved",
    "error",
    "a loss with two tops, one of which has a loss_weight and is read by another layer",
    what="{layer} has a loss_weight for '{top}', which another layer reads, and {tops} tops",
    effect="Caffe splits '{top}', gives the weight to a copy, and clears those of the layer; then it aborts, "
    "since a loss without any gets one by default: loss_weight must be specified once per top blob",
    write="leave out the layers that read '{top}', or the other top of this layer",
)
def _check_loss_weight_moved(view: NetView, phase: PhaseNet) -> Iterator[Finding]:
    for i, layer in enumerate(phase.layers):
        tops = len(layer.top)
        if type_of(layer).loss_weight != 1 or tops < 2 or len(layer.loss_weight) != tops:
            continue
        for t, weight in enumerate(layer.loss_weight):
            if weight and phase.flow.readers.get((i, t)):
                yield layer_finding(
                    "loss-weight-moved", phase, i, f"loss_weight[{t}]", top=layer.top[t], tops=tops
                )


@learning_rule(
    "nothing-learns",
    "warning",
    "a net with a loss, but lr_mult 0 in all layers that could learn",
    what="all {layers} layers that could learn have lr_mult 0",
    effect="nothing is learned, but Caffe trains to the end and exits 0",
    write="lr_mult: 1 for the layers that should learn",
    values=("layers",),
)
def _check_nothing_learns(view: NetView, phase: PhaseNet) -> Iterator[Finding]:
    learning = [i for i, layer in enumerate(phase.layers) if _has_weights(layer) and phase.learned(i) != ()]
    # Layers of unknown types may learn.
    if (
        phase.phase != pb.TRAIN
        or not learning
        or not any(map(is_loss, phase.layers))
        or None in map(phase.learned, learning)
    ):
        return
    rates = [rate for i in learning for rate in _lr_mults(phase.layers[i], len(phase.learned(i) or ()))]
    if any(rates) or any(
        layer.type == "Python" or has_own_scale(phase.given_layer(i)) for i, layer in enumerate(phase.layers)
    ):
        return
    yield layers_finding("nothing-learns", phase, learning, "param[0].lr_mult")


def _lr_mults(layer: pb.LayerParameter, count: int) -> list[float]:
    return [layer.param[p].lr_mult if p < len(layer.param) else 1.0 for p in range(count)]


@learning_rule(
    "accuracy-elsewhere",
    "warning",
    "an accuracy that does not read the scores that the loss on its label reads",
    what="{layer} reads '{bottom}', but {loss} reads '{scores}'",
    effect="the accuracy is computed from values that are not class scores, so it stays at chance level",
    write='bottom: "{scores}"',
)
def _check_accuracies(view: NetView, phase: PhaseNet) -> Iterator[Finding]:
    losses: dict[Blob | None, list[int]] = {}
    for i, layer in enumerate(phase.layers):
        if layer.type.startswith("SoftmaxWithLoss") and len(layer.bottom) > 1:
            losses.setdefault(_score_source(phase, i, 1), []).append(i)
    scores = {i: _score_source(phase, i, 0) for alike in losses.values() for i in alike}
    scored, ancestors = set(scores.values()), cache(phase.ancestors)
    for i, layer in enumerate(phase.layers):
        if layer.type != "Accuracy" or len(layer.bottom) < 2:
            continue
        ours, of_label = _score_source(phase, i, 0), losses.get(_score_source(phase, i, 1), [])[:_MAX_LOSSES]
        if ours is None or not of_label or ours in scored:
            continue
        # A label may have several scores: a blob that all of them are computed from is not a score.
        if all(
            (blob := scores[j]) is not None
            and ours in ancestors(blob)
            and outputs_of(phase, j) != outputs_of(phase, i)
            for j in of_label
        ):
            loss = phase.layers[of_label[0]]
            yield layer_finding(
                "accuracy-elsewhere",
                phase,
                i,
                "bottom[0]",
                bottom=layer.bottom[0],
                loss=title(loss),
                scores=loss.bottom[0],
            )


def _score_source(phase: PhaseNet, i: int, b: int) -> Blob | None:
    """Return the blob that a bottom comes from, looking through layers that keep the order of its numbers."""
    return phase.producer_through(i, b, lambda entry: entry.keeps_order)


@learning_rule(
    "blob-too-large",
    "error",
    "a blob of more than 2,147,483,647 numbers",
    what="{layer} {kind} a blob of shape {shape}, which has {count:,} numbers",
    effect="BVLC's and NVIDIA's Caffe abort: blob size exceeds INT_MAX; Intel's allows it (its limit is "
    "LONG_MAX), but layers such as ReLU count in 32 bits, so the count overflows",
    write="a smaller batch_size, num_output or image",
)
def _check_blob_sizes(view: NetView, phase: PhaseNet) -> Iterator[Finding]:
    # NVIDIA's Caffe divides batch_size among an unknown number of GPUs.
    is_divided = view.dialect.name in BATCH_DIVIDING and not phase.is_fed_by_code
    for i, shapes in enumerate(phase.shapes):
        if shapes is None:
            continue
        tops = () if is_divided else shapes.tops
        kinds: dict[str, tuple[Shape | None, ...]] = {"produces": tops, "learns": shapes.learned or ()}
        for kind, blobs in kinds.items():
            large = next((shape for shape in blobs if _is_large(shape)), None)
            if large is not None:
                yield layer_finding(
                    "blob-too-large",
                    phase,
                    i,
                    "type",
                    kind=kind,
                    shape=show_shape(large),
                    count=product(large),
                )
                return  # the blobs after it are as large


def _is_large(shape: Shape | None) -> bool:
    count = product(shape) if shape is not None else None
    return count is not None and count > _MAX_NUMBERS
