"""Losses and the accuracy."""

from __future__ import annotations

from collections.abc import Iterator

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.layer_types.dimensions import (
    SCALAR,
    MisfitError,
    Shape,
    Shapes,
    canonical_axis,
    merge,
    product,
)
from caffe_recipes.caffe.layer_types.entry import Bound, LayerType, Refusal, Result, own_fillers, own_number


def _check_batch(bottoms: Shapes) -> None:
    """Check that predictions and labels have the same number of images."""
    predictions, labels = bottoms[:2]
    if not predictions or not labels:
        raise MisfitError("needs bottoms with at least one dimension")
    if None not in (predictions[0], labels[0]) and predictions[0] != labels[0]:
        raise MisfitError("needs bottoms with the same first dimension")


def _check_labels(bottoms: Shapes, axis: int) -> None:
    predictions, labels = bottoms[:2]
    classes = canonical_axis(predictions, axis)
    wanted, given = product((*predictions[:classes], *predictions[classes + 1 :])), product(labels)
    if None not in (wanted, given) and wanted != given:
        raise MisfitError(f"needs one label for each of its {wanted} predictions")


def _softmax_loss(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    _check_batch(bottoms)
    _check_labels(bottoms, layer.softmax_param.axis)
    counts = {product(bottom) for bottom in bottoms[1:]}
    if None not in counts and len(counts) > 1:
        raise MisfitError("needs one weight for each label")
    return [SCALAR, bottoms[0]], []


def _accuracy(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    _check_labels(bottoms, layer.accuracy_param.axis)
    return [SCALAR, (bottoms[0][canonical_axis(bottoms[0], layer.accuracy_param.axis)],)], []


def _seg_accuracy(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    """Three numbers of a map of classes. Source: src/caffe/layers/seg_accuracy_layer.cpp of hszhao/PSPNet."""
    if len(bottoms[0]) != 4:
        raise MisfitError("needs predictions with 4 axes")
    if getattr(getattr(layer, "seg_accuracy_param", None), "reset", "true") == "false":
        raise MisfitError("has reset: false, with which it counts all batches since the start")
    _check_batch(bottoms)
    _check_labels(bottoms, 1)
    return [(1, 1, 1, 3)], []


def _center_loss(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    """The blob is a center for each class. Source: center_loss_layer.cpp of ydwen/caffe-face."""
    _check_batch(bottoms)
    axis = canonical_axis(bottoms[0], own_number(layer, "center_loss_param", "axis", 1))
    return [SCALAR], [(own_number(layer, "center_loss_param", "num_output"), product(bottoms[0][axis:]))]


def _value_loss(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    _check_batch(bottoms)
    counts = {product(bottom) for bottom in bottoms[:2]}
    if None not in counts and len(counts) > 1:
        raise MisfitError("needs as many targets as predictions")
    return [SCALAR], []


def _image_loss(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    _check_batch(bottoms)
    return [SCALAR], []


def _label_loss(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    """Compare each image's predictions with its label; a third bottom is the infogain matrix."""
    _check_batch(bottoms)
    if product(bottoms[1][1:]) not in (1, None):
        raise MisfitError("needs one label per image")
    classes = product(bottoms[0][1:])
    if len(bottoms) > 2:
        matrix = (*bottoms[2], *[1] * (4 - len(bottoms[2])))
        if len(matrix) > 4 or any(
            None not in (given, wanted) and given != wanted
            for given, wanted in zip(matrix, (1, 1, classes, classes), strict=True)
        ):
            raise MisfitError(f"needs a matrix of 1 x 1 x {classes} x {classes} as its third bottom")
    return [SCALAR], []


def _legacy_dims(shape: Shape) -> Shape:
    """Return channels, height and width as Caffe's older layers see them: a missing axis has size 1."""
    if len(shape) > 4:
        raise MisfitError("needs bottoms with at most 4 axes")
    return (*shape, *[1] * (4 - len(shape)))[1:]


def _contrastive_loss(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    _check_batch(bottoms)
    for shape in bottoms:
        if product(_legacy_dims(shape)[1:]) not in (1, None):
            raise MisfitError("needs bottoms with height and width 1")
    merge([_legacy_dims(shape) for shape in bottoms[:2]])
    if _legacy_dims(bottoms[2])[0] not in (1, None):
        raise MisfitError("needs one number per pair as its third bottom")
    return [SCALAR], []


def _smooth_loss(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    _check_batch(bottoms)
    merge([_legacy_dims(shape) for shape in bottoms])
    return [SCALAR], []


def _check_infogain(layer: pb.LayerParameter) -> Iterator[Refusal]:
    if len(layer.bottom) == 2 and not layer.infogain_loss_param.source:
        yield Refusal(
            "infogain-source",
            "infogain_loss_param.source",
            "has neither a source nor a third bottom",
            "Caffe aborts: Infogain matrix source must be specified",
            'write infogain_loss_param { source: "H.binaryproto" }',
        )


_LABELS = (1,)  # the bottom that is not backpropagated to

TYPES = (
    LayerType(
        "Accuracy",
        shapes=_accuracy,
        bottoms=(2, 2),
        refuses=(
            Bound(
                "accuracy_param.top_k",
                lambda layer: layer.accuracy_param.top_k == 0,
                "no label is among the best 0: the accuracy is always 0",
                "write top_k: 1",
            ),
        ),
        no_backward=None,
        is_never_loss=True,
        is_classifier=True,
        is_result=True,
        details=lambda layer: f"top {layer.accuracy_param.top_k}",
        kind="end",
    ),
    LayerType(
        "CenterLoss",
        shapes=_center_loss,
        bottoms=(2, 2),
        learned=1,
        fillers=lambda layer: own_fillers(layer, "center_loss_param", "center_filler"),
        blob_names=lambda layer: ("centers",),
        no_backward=_LABELS,
        loss_weight=1,
    ),
    LayerType("ContrastiveLoss", shapes=_contrastive_loss, bottoms=(3, 3), loss_weight=1),
    LayerType("EuclideanLoss", shapes=_value_loss, bottoms=(2, 2), loss_weight=1),
    LayerType("HingeLoss", shapes=_image_loss, bottoms=(2, 2), no_backward=_LABELS, loss_weight=1),
    LayerType(
        "InfogainLoss",
        blocks=("softmax_param",),
        shapes=_label_loss,
        bottoms=(2, 3),
        refuses=(_check_infogain,),
        no_backward=(1, 2),
        loss_weight=1,
    ),
    LayerType("MultiBoxLoss", is_run=False, blocks=("loss_param",), no_backward=(2, 3)),
    LayerType(
        "MultinomialLogisticLoss", shapes=_label_loss, bottoms=(2, 2), no_backward=_LABELS, loss_weight=1
    ),
    LayerType(
        "SegAccuracy",
        shapes=_seg_accuracy,
        bottoms=(2, 2),
        no_backward=None,
        is_never_loss=True,
        is_classifier=True,
        is_result=True,
        kind="end",
    ),
    LayerType(
        "SigmoidCrossEntropyLoss",
        blocks=("sigmoid_param",),
        shapes=_value_loss,
        bottoms=(2, 2),
        no_backward=_LABELS,
        loss_weight=1,
        activation=("Sigmoid", "EuclideanLoss"),
    ),
    LayerType(
        "SmoothL1Loss",
        blocks=("loss_param",),
        shapes=_smooth_loss,
        bottoms=(2, 4),
        refuses=(
            Bound(
                "bottom[2]",
                lambda layer: len(layer.bottom) == 3,
                "Caffe aborts: If weights are used, must specify both inside and outside weights",
                "give two or four bottoms",
            ),
        ),
        loss_weight=0,
    ),
    LayerType("SmoothL1LossOHEM", is_run=False, blocks=("smooth_l1_loss_param", "loss_param"), loss_weight=0),
    LayerType(
        "SoftmaxWithLoss",
        blocks=("softmax_param", "loss_param"),
        v1="SOFTMAX_LOSS",
        shapes=_softmax_loss,
        bottoms=(2, 3),
        refuses=(
            Bound(
                "loss_param.label_smoothing",
                lambda layer: not 0 <= layer.loss_param.label_smoothing < 1,
                "the true class gets a share of 0 or less, so the gradient points away from it",
                "write label_smoothing: 0.1",
            ),
        ),
        no_backward=_LABELS,
        loss_weight=1,
        is_classifier=True,
        activation=("Softmax", "MultinomialLogisticLoss"),
    ),
    LayerType(
        "SoftmaxWithLossOHEM", is_run=False, blocks=("softmax_param", "loss_param"), is_classifier=True
    ),
)
