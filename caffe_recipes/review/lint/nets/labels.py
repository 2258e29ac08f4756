"""Rules on outputs and labels: what losses and accuracies compare."""

from __future__ import annotations

from collections.abc import Iterator

from caffe_recipes.caffe import pb
from caffe_recipes.review.findings import Severity
from caffe_recipes.review.lint.nets.view import READERS, Draft, NetView, PhaseNet, title

RULES: dict[str, tuple[Severity, str]] = {
    "outputs-below-classes": ("error", "fewer outputs than classes: labels beyond them"),
    "outputs-above-classes": ("note", "more outputs than classes"),
    "top-k-above-outputs": ("error", "an accuracy among more outputs than there are"),
    "top-k-all-outputs": ("warning", "an accuracy among all outputs: it is always 1"),
    "single-output-softmax": ("warning", "a softmax loss over one output: it is always 0"),
    "label-not-label": ("error", "a label bottom that is computed, or the images themselves"),
    "activation-twice": (
        "warning",
        "a loss that applies the softmax or sigmoid which its bottom had already",
    ),
    "ignored-labels-differ": ("note", "a loss and an accuracy on one label that ignore other labels"),
}

_CLASSIFIERS = frozenset(("Accuracy", "SoftmaxWithLoss", "SoftmaxWithLossOHEM"))
# What these make is no class number, whatever goes in.
_COMPUTED_WORDS = """
    BatchNorm Convolution Deconvolution Dropout ELU InnerProduct LRN PReLU Scale Sigmoid Softmax
    TanH
"""
_COMPUTED = frozenset(_COMPUTED_WORDS.split())
# What their output means is what their first bottom means.
_PASSING = frozenset(("Flatten", "Reshape", "Split"))
# A loss, what it applies itself, and the loss that takes the applied.
_APPLIED = {
    "SoftmaxWithLoss": ("Softmax", "MultinomialLogisticLoss"),
    "SigmoidCrossEntropyLoss": ("Sigmoid", "EuclideanLoss"),
}


def check_labels(view: NetView, phase: PhaseNet) -> Iterator[Draft]:
    """Check what each loss and accuracy of a phase compares with what."""
    for i, layer in enumerate(phase.layers):
        if layer.type in _CLASSIFIERS and len(layer.bottom) > 1:
            yield from _label(phase, i)
            yield from _outputs(view, phase, i)
        if layer.type in _APPLIED and layer.bottom:
            yield from _applied(phase, i)
    yield from _ignored(phase)


def outputs_of(phase: PhaseNet, i: int) -> int | None:
    """Count the outputs among which a loss or an accuracy looks for the label."""
    layer, shape = phase.layers[i], phase.bottom_shape(i, 0)
    param = layer.accuracy_param if layer.type == "Accuracy" else layer.softmax_param
    if shape is None or not -len(shape) <= param.axis < len(shape):
        return None
    return shape[param.axis]


def _outputs(view: NetView, phase: PhaseNet, i: int) -> Iterator[Draft]:
    layer, outputs = phase.layers[i], outputs_of(phase, i)
    if outputs is None:
        return
    name, index, top_k = layer.bottom[0], phase.where(i), layer.accuracy_param.top_k
    if layer.type != "Accuracy":
        if outputs == 1:
            yield Draft(
                "single-output-softmax",
                index,
                "bottom[0]",
                f"{title(layer)} takes a softmax over one output, '{name}'",
                "the softmax of one number is 1, the loss always 0: nothing is learned",
                "num_output: 2, or a SigmoidCrossEntropyLoss",
            )
    elif top_k > outputs:
        yield Draft(
            "top-k-above-outputs",
            index,
            "accuracy_param.top_k",
            f"{title(layer)} looks among the best {top_k} of '{name}', which has {outputs} outputs",
            "Caffe stops: top_k must be less than or equal to the number of classes",
            f"top_k: {min(5, max(1, outputs - 1))}, or as many outputs as there are classes",
        )
    elif top_k == outputs:
        yield Draft(
            "top-k-all-outputs",
            index,
            "accuracy_param.top_k" if layer.accuracy_param.HasField("top_k") else "bottom[0]",
            f"{title(layer)} looks among the best {top_k} of '{name}', which has as many outputs",
            "the accuracy is always 1",
            f"top_k: {max(1, outputs // 2)}, or leave the layer out",
        )
    if view.classes is not None and outputs != view.classes and _reads_label(phase, i):
        yield _other_classes(phase, i, outputs, view.classes)


def _other_classes(phase: PhaseNet, i: int, outputs: int, classes: int) -> Draft:
    layer = phase.layers[i]
    below = outputs < classes
    maker = next((k for k in phase.above(i) if phase.layers[k].type in ("Convolution", "InnerProduct")), i)
    what = f"'{layer.bottom[0]}' of {title(layer)} has {outputs} outputs for {classes} classes"
    return Draft(
        "outputs-below-classes" if below else "outputs-above-classes",
        phase.where(maker),
        _output_field(phase.layers[maker]),
        what,
        f"labels {outputs} and above make Caffe read beyond the outputs: SIGSEGV after some iterations"
        if below
        else f"outputs {classes} and above are never right, and cost little",
        f"num_output: {classes}",
        (("outputs", outputs), ("classes", classes)),
    )


def _output_field(layer: pb.LayerParameter) -> str:
    if layer.type == "InnerProduct":
        return "inner_product_param.num_output"
    return "convolution_param.num_output" if layer.type == "Convolution" else "bottom[0]"


def _reads_label(phase: PhaseNet, i: int) -> bool:
    """Whether a layer's label is the one of a data layer's records."""
    made = _origin(phase, i, 1)
    return made is not None and made[1] == 1 and phase.layers[made[0]].type in ("Data", "ImageData")


def _origin(phase: PhaseNet, i: int, b: int) -> tuple[int, int] | None:
    """Find the (layer, top) that a bottom comes from, through layers that only hand it on."""
    made = phase.maker(i, b)
    while made is not None and made[0] >= 0 and phase.layers[made[0]].type in _PASSING:
        made = phase.maker(made[0], 0)
    return made if made is not None and made[0] >= 0 else None


def _label(phase: PhaseNet, i: int) -> Iterator[Draft]:
    layer, made = phase.layers[i], _origin(phase, i, 1)
    if made is None:
        return
    maker = phase.layers[made[0]]
    images = maker.type in READERS and made[1] == 0 and made[0] in set(phase.above(i))
    if maker.type in _COMPUTED or images:
        what = "the images that its predictions come from" if images else f"computed by {title(maker)}"
        predictions = _origin(phase, i, 0)
        swapped = predictions is not None and phase.layers[predictions[0]].type in READERS
        yield Draft(
            "label-not-label",
            phase.where(i),
            "bottom[1]",
            f"{title(layer)} takes '{layer.bottom[1]}' for the label, which is {what}",
            "Caffe stops, or takes these numbers for classes and reads beyond the outputs",
            f'bottom: "{layer.bottom[1]}" bottom: "{layer.bottom[0]}": predictions first'
            if swapped
            else "name the label as second bottom",
        )


def _applied(phase: PhaseNet, i: int) -> Iterator[Draft]:
    layer, made = phase.layers[i], _origin(phase, i, 0)
    applied, taker = _APPLIED[layer.type]
    if made is not None and phase.layers[made[0]].type == applied:
        maker = phase.layers[made[0]]
        yield Draft(
            "activation-twice",
            phase.where(i),
            "bottom[0]",
            f"{title(layer)} reads what {title(maker)} made, and applies the {applied.lower()} itself",
            "it is applied twice: gradients are far too small, and the loss hardly falls",
            f'bottom: "{maker.bottom[0]}"' if maker.bottom else f"use {taker}",
        )


def _ignored(phase: PhaseNet) -> Iterator[Draft]:
    losses: dict[str, pb.LayerParameter] = {}
    for layer in phase.layers:
        if layer.type == "SoftmaxWithLoss" and len(layer.bottom) > 1:
            losses.setdefault(layer.bottom[1], layer)
    for i, layer in enumerate(phase.layers):
        loss = losses.get(layer.bottom[1]) if layer.type == "Accuracy" and len(layer.bottom) > 1 else None
        if loss is None:
            continue
        ours, theirs = _ignores(layer.accuracy_param), _ignores(loss.loss_param)
        if ours != theirs:
            yield Draft(
                "ignored-labels-differ",
                phase.where(i),
                "accuracy_param.ignore_label" if ours != "none" else "bottom[1]",
                f"{title(layer)} ignores label {ours}, {title(loss)} ignores {theirs}",
                "the accuracy counts other images than the loss",
                f"accuracy_param {{ ignore_label: {theirs} }}"
                if theirs != "none"
                else "take ignore_label out of one, or write it in both",
            )


def _ignores(param: pb.LossParameter | pb.AccuracyParameter) -> str:
    return str(param.ignore_label) if param.HasField("ignore_label") else "none"
