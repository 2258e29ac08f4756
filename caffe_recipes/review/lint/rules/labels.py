"""Rules for outputs and labels: what losses and accuracies are computed from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from caffe_recipes.caffe.layer_types import type_of
from caffe_recipes.review.lint.net_text import layer_finding, title
from caffe_recipes.review.lint.net_view import find_origin, outputs_of
from caffe_recipes.review.lint.registry import finding
from caffe_recipes.review.lint.subjects import label_rule
from caffe_recipes.wording import describe_count

if TYPE_CHECKING:
    from caffe_recipes.caffe import pb
    from caffe_recipes.review.lint.findings import Finding
    from caffe_recipes.review.lint.net_view import NetView, PhaseNet


def _find_classifiers(phase: PhaseNet) -> list[int]:
    """Return the losses and accuracies that read predictions and labels."""
    layers = enumerate(phase.layers)
    return [i for i, layer in layers if type_of(layer).is_classifier and len(layer.bottom) > 1]


@label_rule(
    "label-not-label",
    "error",
    "a label bottom that is not a label, but computed or the images themselves",
    what="{layer} reads '{bottom}' as the label, but that is {fault}",
    effect="Caffe aborts, or uses these numbers as classes and reads past the outputs",
)
def check_labels(view: NetView, phase: PhaseNet) -> Iterator[Finding]:
    """Check that what each loss and accuracy reads as a label is one."""
    for i in _find_classifiers(phase):
        yield from _check_label(phase, i)


def _check_label(phase: PhaseNet, i: int) -> Iterator[Finding]:
    layer, origin = phase.layers[i], find_origin(phase, i, 1)
    if origin is None:
        return
    producer = phase.layers[origin[0]]
    images = type_of(producer).is_reader and origin[1] == 0 and origin[0] in set(phase.layers_above(i))
    if type_of(producer).is_never_label or images:
        what = (
            "the images that its predictions are computed from"
            if images
            else f"computed by {title(producer)}"
        )
        predictions = find_origin(phase, i, 0)
        swapped = predictions is not None and type_of(phase.layers[predictions[0]]).is_reader
        yield layer_finding(
            "label-not-label",
            phase,
            i,
            "bottom[1]",
            write=f'bottom: "{layer.bottom[1]}" bottom: "{layer.bottom[0]}": predictions first'
            if swapped
            else "use the label as the second bottom",
            bottom=layer.bottom[1],
            fault=what,
        )


@label_rule(
    "single-output-softmax",
    "warning",
    "a softmax loss over a single output, which is always 0",
    what="{layer} computes a softmax over a single output, '{name}'",
    effect="the softmax of one number is always 1 and the loss 0, so nothing is learned",
    write="set num_output: 2, or use a SigmoidCrossEntropyLoss",
)
@label_rule(
    "top-k-above-outputs",
    "error",
    "a top_k larger than the number of outputs",
    what="{layer} has top_k {top_k}, but '{name}' has {count}",
    effect="Caffe aborts: top_k must be less than or equal to the number of classes",
    write="top_k: {lower}, or set num_output to the number of classes",
)
@label_rule(
    "top-k-all-outputs",
    "warning",
    "a top_k equal to the number of outputs",
    what="{layer} has top_k {top_k}, and '{name}' has as many outputs",
    effect="the accuracy is always 1",
    write="top_k: {lower}, or remove the layer",
)
def check_outputs(view: NetView, phase: PhaseNet) -> Iterator[Finding]:
    """Check the number of outputs that each loss and accuracy reads."""
    for i in _find_classifiers(phase):
        yield from _check_outputs(view, phase, i)


def _check_outputs(view: NetView, phase: PhaseNet, i: int) -> Iterator[Finding]:
    layer, outputs = phase.layers[i], outputs_of(phase, i)
    if outputs is None:
        return
    name, top_k = layer.bottom[0], layer.accuracy_param.top_k
    if layer.type != "Accuracy":
        if outputs == 1:
            yield layer_finding("single-output-softmax", phase, i, "bottom[0]", name=name)
    elif top_k > outputs:
        yield layer_finding(
            "top-k-above-outputs",
            phase,
            i,
            "accuracy_param.top_k",
            top_k=top_k,
            name=name,
            count=describe_count(outputs, "output"),
            lower=min(5, max(1, outputs - 1)),
        )
    elif top_k == outputs:
        yield layer_finding(
            "top-k-all-outputs",
            phase,
            i,
            "accuracy_param.top_k" if layer.accuracy_param.HasField("top_k") else "bottom[0]",
            top_k=top_k,
            name=name,
            lower=max(1, outputs // 2),
        )
    if (source := _label_source(phase, i)) is None:
        return
    least, greatest = view.labels_of(source) or (0, None)
    if view.classes is not None and outputs != view.classes:
        yield _classes_differ(phase, i, outputs, view.classes)
    elif view.classes is None and greatest is not None and outputs <= greatest:
        yield _classes_differ(phase, i, outputs, greatest + 1, least)


@label_rule.also(
    "outputs-below-classes",
    "error",
    "fewer outputs than classes",
    effect="labels from {outputs} on make Caffe read past the outputs and crash (SIGSEGV) after some "
    "iterations",
    values=("outputs", "classes"),
)
@label_rule.also(
    "outputs-above-classes",
    "note",
    "more outputs than classes",
    effect="outputs from {classes} on are never used, which is harmless",
    values=("outputs", "classes"),
)
def _classes_differ(phase: PhaseNet, i: int, outputs: int, classes: int, least: int = 0) -> Finding:
    layer = phase.layers[i]
    producer = next(
        (k for k in phase.layers_above(i) if phase.layers[k].type in ("Convolution", "InnerProduct")), i
    )
    return finding(
        "outputs-below-classes" if outputs < classes else "outputs-above-classes",
        phase.where(producer, _output_field(phase.layers[producer])),
        f"'{layer.bottom[0]}' of {title(layer)} has {outputs} outputs for "
        + (f"labels {least} to {classes - 1}" if least else f"{classes} classes"),
        write=f"num_output: {classes}" + (", or number the labels from 0" if least else ""),
        outputs=outputs,
        classes=classes,
    )


def _output_field(layer: pb.LayerParameter) -> str:
    if layer.type == "InnerProduct":
        return "inner_product_param.num_output"
    return "convolution_param.num_output" if layer.type == "Convolution" else "bottom[0]"


def _label_source(phase: PhaseNet, i: int) -> str | None:
    """Return the source of the records that a layer's label comes from; None if it comes from elsewhere."""
    origin = find_origin(phase, i, 1)
    if origin is None or origin[1] != 1 or phase.layers[origin[0]].type not in ("Data", "ImageData"):
        return None
    return phase.layers[origin[0]].data_param.source


@label_rule(
    "relu-on-scores",
    "warning",
    "a ReLU on the scores that a softmax or sigmoid loss reads",
    what="{loss} reads the output of {layer}, where scores below 0 become 0",
    effect="a class whose score is below 0 gets no gradient and may never be learned",
    write="remove the ReLU",
)
@label_rule(
    "activation-twice",
    "warning",
    "a loss that applies a softmax or sigmoid a second time",
    what="{layer} reads the output of {producer}, but applies the {function} itself",
    effect="the gradients are far too small, and the loss hardly decreases",
)
def check_activations(view: NetView, phase: PhaseNet) -> Iterator[Finding]:
    """Check what computes the scores that a loss applies a softmax or sigmoid to."""
    for i, layer in enumerate(phase.layers):
        if type_of(layer).activation and layer.bottom:
            yield from _check_activation(phase, i)


def _check_activation(phase: PhaseNet, i: int) -> Iterator[Finding]:
    layer, origin = phase.layers[i], find_origin(phase, i, 0)
    applied, replacement = type_of(layer).activation or ("", "")
    if origin is not None and phase.layers[origin[0]].type == "ReLU":
        producer = phase.layers[origin[0]]
        yield layer_finding("relu-on-scores", phase, origin[0], "type", loss=title(layer))
    if origin is not None and phase.layers[origin[0]].type == applied:
        producer = phase.layers[origin[0]]
        yield layer_finding(
            "activation-twice",
            phase,
            i,
            "bottom[0]",
            write=f'bottom: "{producer.bottom[0]}"' if producer.bottom else f"use {replacement}",
            producer=title(producer),
            function=applied.lower(),
        )


@label_rule(
    "ignored-labels-differ",
    "note",
    "a loss and an accuracy of the same label that differ in ignore_label",
    what="{layer} ignores label {ours}, but {loss} ignores {theirs}",
    effect="the accuracy counts different images from the loss",
)
def _check_ignored_labels(view: NetView, phase: PhaseNet) -> Iterator[Finding]:
    losses: dict[str, pb.LayerParameter] = {}
    for layer in phase.layers:
        if layer.type == "SoftmaxWithLoss" and len(layer.bottom) > 1:
            losses.setdefault(layer.bottom[1], layer)
    for i, layer in enumerate(phase.layers):
        loss = losses.get(layer.bottom[1]) if layer.type == "Accuracy" and len(layer.bottom) > 1 else None
        if loss is None:
            continue
        ours, theirs = _show_ignored_label(layer.accuracy_param), _show_ignored_label(loss.loss_param)
        if ours != theirs:
            yield layer_finding(
                "ignored-labels-differ",
                phase,
                i,
                "accuracy_param.ignore_label" if ours != "none" else "bottom[1]",
                write=f"accuracy_param {{ ignore_label: {theirs} }}"
                if theirs != "none"
                else "remove ignore_label from one, or set it in both",
                ours=ours,
                loss=title(loss),
                theirs=theirs,
            )


def _show_ignored_label(param: pb.LossParameter | pb.AccuracyParameter) -> str:
    return str(param.ignore_label) if param.HasField("ignore_label") else "none"
