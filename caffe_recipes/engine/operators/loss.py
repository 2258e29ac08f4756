"""Losses and accuracy, with Caffe's clamping, ties and normalization."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.logs import SATURATED_LOSS
from caffe_recipes.caffe.weights import blob_values, load_mean
from caffe_recipes.engine.operators.operator import Forward, Setup, TensorShapes, class_indices, layer_error
from caffe_recipes.errors import RunFailed

FLT_MIN = 1.17549435e-38  # Caffe clamps probabilities to this before it takes the logarithm
MAX_SATURATED_PASSES = 10  # in a row, since a small batch may occasionally be all wrong


class _SoftmaxLosses(torch.autograd.Function):
    """-log softmax(row)[label] of each row of logits.

    As in Caffe, the loss clamps the probability and ignores label smoothing, while the gradient does not
    clamp and applies the smoothing, over `count` numbers: the scores of a whole image.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, smoothing: float, count: int) -> Tensor:  # noqa: ANN401
        probabilities = torch.softmax(logits, 1)
        ctx.save_for_backward(probabilities, labels)
        ctx.smoothing, ctx.count = smoothing, count
        return probabilities.gather(1, labels[:, None]).squeeze(1).clamp_(FLT_MIN, 1).log_().neg_()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:  # noqa: ANN401
        probabilities, labels = ctx.saved_tensors
        true, other = 1 - ctx.smoothing, ctx.smoothing / ctx.count
        if ctx.smoothing:
            total = true + (ctx.count - 1) * other
            slope = probabilities * total - other
        else:
            slope = probabilities.clone()
        slope.scatter_add_(1, labels[:, None], slope.new_full((len(labels), 1), other - true))
        return slope.mul_(grads[0][:, None]), None, None, None


def _as_rows(x: Tensor, axis: int) -> Tensor:
    """Return a blob reshaped to (outer * inner, classes), in the order of its labels."""
    if x.dim() == 2 and axis == 1:
        return x
    return x.movedim(axis, -1).reshape(-1, x.shape[axis])


class Diverged(RunFailed):
    """A loss that is not finite, or has stayed at its limit."""


@dataclass
class _Saturation:
    """Counts consecutive passes in which all losses are saturated, a sign that training has diverged."""

    name: str
    passes: int = 0

    def watch(self, losses: Tensor) -> None:
        self.passes = self.passes + 1 if bool((losses >= SATURATED_LOSS).all()) else 0
        if self.passes == MAX_SATURATED_PASSES:
            passes = f"{MAX_SATURATED_PASSES} passes in a row"
            what = f"the loss has been {SATURATED_LOSS:.6g}, its limit, for {passes}"
            hint = "lower the learning rate; Caffe would continue and return 0"
            raise Diverged(f"layer '{self.name}'", what, hint)


def _softmax_loss(layer: pb.LayerParameter, shapes: TensorShapes) -> Forward:
    """-sum(log p[label]) / normalizer; tops: the loss, and the probabilities."""
    shape, param = shapes.bottoms[0], layer.loss_param
    axis = layer.softmax_param.axis % len(shape)
    outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    count = shape[axis] * inner
    smoothing, saturation = param.label_smoothing, _Saturation(layer.name)
    ignored = param.ignore_label if param.HasField("ignore_label") else None
    normalize = _normalizer(layer, outer, inner)
    of_class = _class_weights(layer, shape[axis])

    def forward(xs: Sequence[Tensor], _: Sequence[Tensor]) -> list[Tensor]:
        labels = class_indices(xs[1], shape[axis], ignored).reshape(-1)
        losses: Tensor = _SoftmaxLosses.apply(_as_rows(xs[0], axis), labels, smoothing, count)  # type: ignore[no-untyped-call]
        if of_class is not None:
            losses = losses * of_class.to(losses)[labels]
        if layer.phase == pb.TRAIN and torch.is_grad_enabled():  # not in a pass whose loss is only displayed
            saturation.watch(losses.detach())
        weights = xs[2].detach().reshape(-1) if len(xs) == 3 else None
        mask = None if ignored is None else (xs[1].reshape(-1) != ignored).to(losses.dtype)
        if mask is not None:
            weights = mask if weights is None else weights * mask
        total = (losses if weights is None else losses * weights).sum()
        if len(xs) == 3 and weights is not None:
            loss = total / weights.sum()
        else:
            loss = total / normalize(len(losses) if mask is None else int(mask.sum()))
        return [loss] if len(layer.top) < 2 else [loss, torch.softmax(xs[0].detach(), axis)]

    return forward


def _class_weights(layer: pb.LayerParameter, classes: int) -> Tensor | None:
    """Return the weight of each class of SegNet's `weight_by_label_freqs`; None without it."""
    param: Any = layer.loss_param  # in the schema of all Caffes
    if getattr(param, "weight_by_label_freqs", "") not in ("true", "1"):
        return None
    texts = list(param.class_weighting)
    if len(texts) != classes:
        raise layer_error(
            layer, f"has {len(texts)} class_weighting for {classes} classes", "give one for each"
        )
    try:
        return torch.tensor([float(text.rstrip("f")) for text in texts], dtype=torch.float64)
    except ValueError:
        raise layer_error(layer, "has a class_weighting that is not a number", "correct it") from None


def _normalizer(layer: pb.LayerParameter, outer: int, inner: int) -> Callable[[int], float]:
    """Return a function that maps the number of valid labels to the divisor of the loss."""
    param = layer.loss_param
    mode = param.normalization if param.HasField("normalization") else param.VALID
    if not param.HasField("normalization") and param.HasField("normalize"):
        mode = param.VALID if param.normalize else param.BATCH_SIZE
    divisors: dict[int, Callable[[int], float]] = {
        param.FULL: lambda valid: outer * inner,
        param.VALID: lambda valid: valid,
        param.BATCH_SIZE: lambda valid: outer,
        param.PRE_FIXED: lambda valid: param.pre_fixed_normalizer,
        param.NONE: lambda valid: 1,
    }
    return lambda valid: max(1.0, divisors[mode](valid))


def _accuracy(layer: pb.LayerParameter, shapes: TensorShapes) -> Forward:
    """The fraction of labels among the top_k predictions. Of equal predictions, the later class ranks first.

    A second top is the accuracy of each class, or 0 for a class without labels.
    """
    shape, param = shapes.bottoms[0], layer.accuracy_param
    axis = param.axis % len(shape)
    if not 1 <= param.top_k <= shape[axis]:
        raise layer_error(layer, f"top_k is {param.top_k} of {shape[axis]} classes")
    ignored = param.ignore_label if param.HasField("ignore_label") else None

    def forward(xs: Sequence[Tensor], _: Sequence[Tensor]) -> list[Tensor]:
        x = _as_rows(xs[0].detach(), axis)
        labels = class_indices(xs[1], shape[axis], ignored).reshape(-1, 1)
        places = torch.arange(shape[axis], device=x.device)
        score = x.gather(1, labels)
        ahead = (x > score) | ((x == score) & (places > labels))
        hits = (ahead.sum(1) < param.top_k).to(x.dtype)
        mask = torch.ones_like(hits) if ignored is None else (xs[1].reshape(-1) != ignored).to(x.dtype)
        hits = hits * mask
        tops = [hits.sum() / mask.sum()]
        if len(layer.top) > 1:
            found = x.new_zeros(shape[axis]).index_add_(0, labels[:, 0], hits)
            present = x.new_zeros(shape[axis]).index_add_(0, labels[:, 0], mask)
            tops.append(torch.where(present > 0, found / present.clamp(min=1), 0.0))
        return tops

    return forward


def _seg_accuracy(layer: pb.LayerParameter, shapes: TensorShapes) -> Forward:
    """Of the pixels whose label is not ignored: accuracy, mean recall of classes that occur, and mean IoU.

    A class that occurs in neither predictions nor labels has an IoU of 1. Of equal scores, the later class
    wins.
    """
    classes, given = shapes.bottoms[0][1], getattr(layer, "seg_accuracy_param", None)
    texts = getattr(given, "ignore_label", "")
    ignored = [int(text) for text in ([texts] if isinstance(texts, str) else texts) if text]

    def forward(xs: Sequence[Tensor], _: Sequence[Tensor]) -> list[Tensor]:
        x, labels = xs[0].detach(), xs[1].reshape(-1)
        found = classes - 1 - x.flip(1).argmax(1).reshape(-1)
        kept = ~torch.isin(labels, labels.new_tensor(ignored)) if ignored else torch.ones_like(labels).bool()
        true, found = class_indices(labels[kept], classes), found[kept]
        counts = x.new_zeros(classes * classes)
        counts.index_add_(0, true * classes + found, torch.ones_like(found, dtype=x.dtype))
        counts = counts.view(classes, classes)
        hits, actual, union = counts.diagonal(), counts.sum(1), counts.sum(0) + counts.sum(1)
        union = union - hits
        recall = (hits / actual.clamp(min=1)).sum() / (actual > 0).sum().clamp(min=1)
        overlap = torch.where(union > 0, hits / union.clamp(min=1), 1.0).mean()
        accuracy = hits.sum() / counts.sum().clamp(min=1)
        return [torch.stack([accuracy, recall, overlap]).view(1, 1, 1, 3)]

    return forward


class _CenterLosses(torch.autograd.Function):
    """sum((x - center of its class)^2) / (2 * items).

    The gradient of a center does not depend on the loss's weight: the sum of (center - x) over the items of
    its class, divided by one more than their number.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, centers: Tensor, labels: Tensor) -> Tensor:  # noqa: ANN401
        difference = x - centers[labels]
        ctx.save_for_backward(difference, labels)
        ctx.classes = len(centers)
        return difference.square().sum() / (2 * len(x))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:  # noqa: ANN401
        difference, labels = ctx.saved_tensors
        sums = difference.new_zeros(ctx.classes, difference.shape[1]).index_add_(0, labels, -difference)
        counts = torch.bincount(labels, minlength=ctx.classes).to(sums.dtype)
        return difference * (grads[0] / len(difference)), sums / (counts[:, None] + 1), None


def _center_loss(layer: pb.LayerParameter, shapes: TensorShapes) -> Forward:
    classes, size = shapes.learned[0]

    def forward(xs: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        x = xs[0].reshape(-1, size)
        labels = class_indices(xs[1].reshape(-1), classes)
        loss: Tensor = _CenterLosses.apply(x, blobs[0], labels)  # type: ignore[no-untyped-call]
        return [loss]

    return forward


def _euclidean_loss(layer: pb.LayerParameter, shapes: TensorShapes) -> Forward:
    """sum((a - b)^2) / (2 * items)."""
    items = shapes.bottoms[0][0]

    def forward(xs: Sequence[Tensor], _: Sequence[Tensor]) -> list[Tensor]:
        difference = xs[0].reshape(-1) - xs[1].reshape(-1)
        return [difference.dot(difference) / (2 * items)]

    return forward


def _sigmoid_cross_entropy_loss(layer: pb.LayerParameter, shapes: TensorShapes) -> Forward:
    """-sum(t log s(x) + (1 - t) log(1 - s(x))) / items, where s is the logistic function.

    Unlike in BVLC's Caffe, the layer ignores loss_param.
    """
    items = shapes.bottoms[0][0]

    def forward(xs: Sequence[Tensor], _: Sequence[Tensor]) -> list[Tensor]:
        x, target = xs[0].reshape(-1), xs[1].reshape(-1)
        losses = x.clamp(min=0) - x * target + torch.log1p(torch.exp(-x.abs()))
        return [losses.sum() / items]

    return forward


def _first_labels(labels: Tensor, items: int, classes: int) -> Tensor:
    """Return one label per item, as Caffe does even if there are more."""
    return class_indices(labels.reshape(-1)[:items], classes, None).reshape(-1, 1)


def _hinge_loss(layer: pb.LayerParameter, shapes: TensorShapes) -> Forward:
    """sum(max(0, 1 - y x)^p) / items over all classes, with y = 1 for the label, else -1, and p 1 or 2."""
    items, classes = shapes.bottoms[0][0], math.prod(shapes.bottoms[0][1:])
    squared = layer.hinge_loss_param.norm == pb.HingeLossParameter.L2

    def forward(xs: Sequence[Tensor], _: Sequence[Tensor]) -> list[Tensor]:
        x, labels = xs[0].reshape(items, classes), _first_labels(xs[1], items, classes)
        signs = torch.ones_like(x).scatter_(1, labels, -1.0)
        margins = torch.relu(1 + signs * x)  # without a gradient at 0
        return [(margins * margins if squared else margins).sum() / items]

    return forward


def _multinomial_logistic_loss(layer: pb.LayerParameter, shapes: TensorShapes) -> Forward:
    """-sum(log max(p[label], 1e-20)) / items, where p are probabilities."""
    items, classes = shapes.bottoms[0][0], math.prod(shapes.bottoms[0][1:])

    def forward(xs: Sequence[Tensor], _: Sequence[Tensor]) -> list[Tensor]:
        labels = _first_labels(xs[1], items, classes)
        chosen = xs[0].reshape(items, classes).gather(1, labels)
        # Below the threshold Caffe's gradient is 1 / threshold, while that of a clamp would be 0.
        clamped = chosen + (chosen.clamp(min=1e-20) - chosen).detach()
        return [-torch.log(clamped).sum() / items]

    return forward


def _smooth_l1_loss(layer: pb.LayerParameter, shapes: TensorShapes) -> Forward:
    """sum(outside * f(inside * (a - b))) / items.

    f(d) is s^2 d^2 / 2 where |d| < 1 / s^2, else |d| - 1 / (2 s^2), and s is sigma.
    Source: Intel Caffe, src/caffe/layers/smooth_L1_loss_layer.cpp.
    """
    squared = layer.smooth_l1_loss_param.sigma**2
    bound = 1 / squared if squared else math.inf  # as in Caffe, whose loss is then 0
    items = 1 if layer.loss_param.normalization == pb.LossParameter.NONE else shapes.bottoms[0][0]

    def forward(xs: Sequence[Tensor], _: Sequence[Tensor]) -> list[Tensor]:
        difference = xs[0].reshape(-1) - xs[1].reshape(-1)
        if len(xs) == 4:
            difference = xs[2].detach().reshape(-1) * difference
        size = difference.abs()
        errors = torch.where(size < bound, 0.5 * squared * difference**2, size - 0.5 * bound)
        return [(xs[3].detach().reshape(-1) * errors if len(xs) == 4 else errors).sum() / items]

    return forward


def _infogain_loss(layer: pb.LayerParameter, shapes: TensorShapes) -> Forward:
    """-sum(H[label, k] * log max(p[k], 1e-20)) / items, where H is the third bottom, or in a file."""
    items, classes = shapes.bottoms[0][0], math.prod(shapes.bottoms[0][1:])
    source, fixed = layer.infogain_loss_param.source, None
    if len(shapes.bottoms) == 2:
        matrix = load_mean(source, "matrix of InfogainLoss", "write a BlobProto of classes x classes")
        fixed = torch.tensor(list(blob_values(matrix)))
    if fixed is not None and fixed.numel() != classes**2:
        what = f"reads a matrix of {fixed.numel():,} numbers for {classes} classes"
        raise layer_error(layer, what, f"give one of {classes} x {classes}")

    def forward(xs: Sequence[Tensor], _: Sequence[Tensor]) -> list[Tensor]:
        labels = _first_labels(xs[1], items, classes)[:, 0]
        matrix = xs[2].detach() if fixed is None else fixed.to(xs[0].device)
        p = xs[0].reshape(items, classes)
        floor = p.clamp(min=1e-20)
        # Below the floor Caffe's gradient is 1 / floor, while that of a clamp would be 0.
        return [
            -(matrix.reshape(classes, classes)[labels] * torch.log(p + (floor - p).detach())).sum() / items
        ]

    return forward


def _contrastive_loss(layer: pb.LayerParameter, shapes: TensorShapes) -> Forward:
    """sum(d^2) / 2 / items for similar pairs, and max(0, margin - d)^2 for others, at a distance d.

    The third bottom is 0 for pairs that are not similar. With `legacy_version`, their loss is
    max(0, margin - d^2).
    """
    param, rows = layer.contrastive_loss_param, shapes.bottoms[0][0]

    def forward(xs: Sequence[Tensor], _: Sequence[Tensor]) -> list[Tensor]:
        difference = (xs[0] - xs[1]).reshape(rows, -1)
        square = (difference * difference).sum(1)
        similar = xs[2].detach().reshape(rows).trunc() != 0
        if param.legacy_version:
            losses = torch.where(similar, square, (param.margin - square).clamp(min=0))
        else:
            distance = square.detach().sqrt()
            short = (param.margin - distance).clamp(min=0)
            # The slope of short^2 over `square`. As in Caffe, 1e-4 keeps it finite for equal pairs.
            slope = torch.where(similar, 1.0, -short / (distance + 1e-4))
            value = torch.where(similar, square.detach(), short * short)
            losses = value + slope * (square - square.detach())
        return [losses.sum() / rows / 2]

    return forward


@dataclass
class OverwrittenLoss:
    """The weight of a loss that also gets a gradient from a later layer that reads it.

    Caffe stores the weight in the blob's diff, which that gradient overwrites. Therefore the loss trains
    nothing, and from the second pass on, the printed loss is weighted by the previous gradient (layer.hpp).
    """

    weight: Tensor | float
    _previous: Tensor | None = None

    def contribution(self, value: Tensor) -> Tensor:
        """Return the blob's contribution to the loss in this pass."""
        if self._previous is not None and self._previous.grad is not None:
            self.weight = self._previous.grad
        if value.requires_grad:
            value.retain_grad()
            self._previous = value
        return (value.detach() * self.weight).sum()


OPERATORS: dict[str, Setup] = {
    "SoftmaxWithLoss": _softmax_loss,
    "Accuracy": _accuracy,
    "SegAccuracy": _seg_accuracy,
    "CenterLoss": _center_loss,
    "EuclideanLoss": _euclidean_loss,
    "SigmoidCrossEntropyLoss": _sigmoid_cross_entropy_loss,
    "HingeLoss": _hinge_loss,
    "MultinomialLogisticLoss": _multinomial_logistic_loss,
    "SmoothL1Loss": _smooth_l1_loss,
    "InfogainLoss": _infogain_loss,
    "ContrastiveLoss": _contrastive_loss,
}
