"""Rules for data layers: the source, number and order of records.

Rules for `transform_param`: resizing, cropping, mirroring, means.

Rules for outputs and labels: what losses and accuracies are computed from.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.layer_types import type_of
from caffe_recipes.caffe.layer_types.dimensions import describe_lack
from caffe_recipes.review.lint.net_view import (
    layer_field,
    layer_finding,
    record_shape,
    show_number,
    title,
)
from caffe_recipes.review.lint.rules import Explanation, finding, rule
from caffe_recipes.review.lint.wiring_rules import lacks_batch_size
from caffe_recipes.wording import describe_count

if TYPE_CHECKING:
    from caffe_recipes.review.lint.net_view import (
        NetView,
        PhaseNet,
    )
    from caffe_recipes.review.lint.rules import Finding

data_rule = partial(rule, "the data layers of a net: the source, number and order of records")
transform_rule = partial(rule, "the `transform_param` of a net: resizing, cropping, mirroring, means")
label_rule = partial(rule, "the outputs and labels of a net: what losses and accuracies are computed from")

_DATABASES = frozenset(("AnnotatedData", "Data"))
_SOURCELESS = frozenset(("MemoryData", "VideoData"))


def check_data(view: NetView) -> Iterator[Finding]:
    """Check each data layer in the file, whatever its phase."""
    for index, layer in enumerate(view.net.layer):
        block = type_of(layer).batch_block
        if not block:
            continue
        yield from _check_required_fields(view, index, layer, block)
        if layer.type in _DATABASES:
            yield from _check_backend(view, index, layer)
        if layer.type == "ImageData":
            yield from _check_image_size(view, index, layer)


@data_rule(
    "train-batches-differ",
    "warning",
    "data layers of TRAIN that differ in batch_size",
    what="{layer} has batch_size {size}, but {other} has {batch_size}",
    effect="with MLSL Caffe aborts, because it allows only one global batch size; without MLSL, "
    "images and labels no longer match",
    write="batch_size: {batch_size}",
)
def check_train_data(view: NetView, phase: PhaseNet) -> Iterator[Finding]:
    """Check the data layers of a training phase, for the fields of the view's dialect."""
    if phase.phase != pb.TRAIN:
        return
    yield from _check_shuffle_agrees(phase)
    sizes: dict[int, pb.LayerParameter] = {}
    for i, layer in enumerate(phase.layers):
        block = type_of(layer).batch_block
        if not block:
            continue
        size = getattr(getattr(layer, block), "batch_size", 0)
        other = next(iter(sizes.values()), None)
        if size and other is not None and size not in sizes:
            yield layer_finding(
                "train-batches-differ",
                phase,
                i,
                f"{block}.batch_size",
                size=size,
                other=title(other),
                batch_size=next(iter(sizes)),
            )
        if size:
            sizes.setdefault(size, layer)
        yield from _check_unshuffled(view, phase, i, block)


@data_rule(
    "no-batch-size",
    "error",
    "a data layer without batch_size, or with 0",
    what="{layer} {lack}",
    effect="Caffe aborts: a positive batch size is required",
    write="{block} {{ batch_size: 32 }}: images per rank per iteration",
)
@data_rule(
    "no-source",
    "error",
    "a data layer without source",
    what="{layer} has no source",
    effect="Caffe aborts, because it has no source to open",
    write='{block} {{ source: "path" }}',
)
def _check_required_fields(
    view: NetView, index: int, layer: pb.LayerParameter, block: str
) -> Iterator[Finding]:
    if lacks_batch_size(layer):
        lack = describe_lack(getattr(layer, block), "batch_size")
        yield layer_finding("no-batch-size", view, index, f"{block}.batch_size", block=block, lack=lack)
    if layer.type not in _SOURCELESS and not getattr(getattr(layer, block), "source", "-"):
        yield layer_finding("no-source", view, index, f"{block}.source", block=block)


@data_rule(
    "backend-not-lmdb",
    "warning",
    "backend LEVELDB, set or by default, for a source named like an LMDB",
    what="{layer} {written}, but its source is '{source}'",
    effect="if it is an LMDB, Caffe aborts: Failed to open leveldb",
    write="backend: LMDB",
)
@data_rule(
    "shuffle-not-lmdb",
    "warning",
    "shuffle on a LEVELDB",
    what="{layer} {written} and shuffle: true",
    effect="it has no effect: only LMDBs are shuffled",
    write="backend: LMDB",
)
def _check_backend(view: NetView, index: int, layer: pb.LayerParameter) -> Iterator[Finding]:
    param = layer.data_param
    if param.backend == pb.DataParameter.LMDB:
        return
    written = "has backend: LEVELDB" if param.HasField("backend") else "has no backend (default LEVELDB)"
    if "lmdb" in param.source.lower() and "leveldb" not in param.source.lower():
        yield layer_finding(
            "backend-not-lmdb", view, index, "data_param.backend", written=written, source=param.source
        )
    if param.shuffle:
        yield layer_finding("shuffle-not-lmdb", view, index, "data_param.shuffle", written=written)


@data_rule(
    "half-image-size",
    "error",
    "new_height without new_width, or new_width without new_height",
    what="{layer} has only {given}",
    effect="Caffe aborts: new_height and new_width must be set at the same time",
    write="set both",
)
def _check_image_size(view: NetView, index: int, layer: pb.LayerParameter) -> Iterator[Finding]:
    param = layer.image_data_param
    if (param.new_height > 0) != (param.new_width > 0):
        given = "new_height" if param.new_height else "new_width"
        yield layer_finding("half-image-size", view, index, f"image_data_param.{given}", given=given)


@data_rule(
    "train-shuffles-differ",
    "warning",
    "data layers of TRAIN of which only some are shuffled",
    what="{shuffled} is shuffled in TRAIN, but {kept} is not",
    effect="if one layer reads the labels of the other's images, the labels no longer match the images",
    write="set shuffle: false in {shuffled}, and shuffle both together when you build the LMDBs",
)
def _check_shuffle_agrees(phase: PhaseNet) -> Iterator[Finding]:
    """Find the first data layer that is shuffled while the first one is not, or the reverse."""
    readers = _record_layers(phase)
    for i in readers[1:]:
        one, other = phase.layers[readers[0]], phase.layers[i]
        if _is_shuffled(one) == _is_shuffled(other):
            continue
        shuffled, kept = (one, other) if _is_shuffled(one) else (other, one)
        yield finding(
            "train-shuffles-differ",
            phase.where(i, type_of(other).batch_block),
            shuffled=title(shuffled),
            kept=title(kept),
        )
        return


def _record_layers(phase: PhaseNet) -> list[int]:
    """Return the indexes of the layers of a phase that read a sequence of records."""
    return [
        i
        for i, layer in enumerate(phase.layers)
        if type_of(layer).batch_block and layer.type not in _SOURCELESS
    ]


def _is_shuffled(layer: pb.LayerParameter) -> bool:
    return bool(getattr(getattr(layer, type_of(layer).batch_block), "shuffle", False))


@data_rule(
    "train-unshuffled",
    "note",
    "a training data layer that reads records in the order of the LMDB or list, without shuffling",
    what="{layer} reads '{source}' in the stored order in every epoch",
    effect="every epoch has the same batches; if the records are sorted by class, each batch has only one "
    "class",
    explanation=Explanation(
        "Records are read in the order of the LMDB, which is the same in every epoch: batches never "
        "change, and have one class each if the LMDB is sorted by class.",
        "Set shuffle: true if your Caffe supports it and TRAIN has one data layer; otherwise, "
        "build the LMDB in random order.",
    ),
)
def _check_unshuffled(view: NetView, phase: PhaseNet, i: int, block: str) -> Iterator[Finding]:
    layer = phase.layers[i]
    lmdb = layer.type == "Data" and layer.data_param.backend == pb.DataParameter.LMDB
    if not lmdb and layer.type != "ImageData":
        return
    # A layer that is in TRAIN because of a stage, or has no rule, may not be used for training.
    trained = any(rule.HasField("phase") and rule.phase == pb.TRAIN for rule in layer.include)
    if getattr(layer, block).shuffle or not trained:
        return
    readers = _record_layers(phase)
    if any(_is_shuffled(phase.layers[other]) for other in readers):
        return  # train-shuffles-differ is more specific
    can_shuffle = layer.type == "ImageData" or view.dialect.knows("DataParameter", "shuffle")
    write = "build the LMDB with convert_imageset --shuffle"
    if can_shuffle:
        write = f"shuffle: true; if your Caffe lacks it, as BVLC's does, {write}" if lmdb else "shuffle: true"
    if len(readers) > 1:
        write = "build the LMDBs of all data layers in the same random order; shuffle would separate them"
    yield layer_finding("train-unshuffled", phase, i, block, write=write, source=getattr(layer, block).source)


def check_transforms(view: NetView) -> Iterator[Finding]:
    """Check the transform of each data layer in the file."""
    for index, layer in enumerate(view.net.layer):
        if not layer.HasField("transform_param"):
            continue
        datum = view.datum_of(layer.data_param.source) if layer.data_param.source else None
        yield from _check_means(view, index, layer, datum)
        if view.dialect.knows("NetParameter", "engine"):
            yield from _check_single_mean(view, index, layer, datum)
        yield from _check_sizes(view, index, layer, datum)
        yield from _check_aspect_ratio(view, index, layer)
        yield from _check_raw_datums(view, index, layer, datum)


@transform_rule(
    "test-random",
    "warning",
    "mirror or random resizing in TEST",
    what="{layer} has {field} in TEST, where it is as random as in TRAIN",
    effect="each test sees different images, so the accuracy varies from test to test",
)
def check_test_transforms(phase: PhaseNet) -> Iterator[Finding]:
    """Check that every test reads the same images."""
    if phase.phase != pb.TEST:
        return
    for i, layer in enumerate(phase.layers):
        param = layer.transform_param
        resize = param.random_resize_param
        random = {
            "mirror": param.mirror,
            "random_aspect_ratio_param": param.HasField("random_aspect_ratio_param"),
            "random_resize_param": param.HasField("random_resize_param")
            and resize.min_size != resize.max_size,
        }
        for field in (name for name, on in random.items() if on):
            yield layer_finding(
                "test-random",
                phase,
                i,
                f"transform_param.{field}",
                write={
                    "mirror": "mirror: false",
                    "random_resize_param": "min_size and max_size equal",
                }.get(field, "random_resize_param { min_size: 256 max_size: 256 }"),
                field=field,
            )


mean_values_misfit = transform_rule(
    "mean-values-misfit",
    "error",
    "a number of mean_value fields that is neither 1 nor the number of channels",
    write="set 1 or {channels} mean_value fields",
)


@transform_rule(
    "mean-twice",
    "error",
    "mean_file and mean_value in one layer",
    what="{layer} has mean_file and mean_value",
    effect="Caffe aborts: Cannot specify mean_file and mean_value at the same time",
    write="keep one of them",
)
@transform_rule(
    "color-and-gray",
    "error",
    "force_color and force_gray in one layer",
    what="{layer} has force_color and force_gray",
    effect="Caffe aborts: cannot set both force_color and force_gray",
    write="keep one of them",
)
@mean_values_misfit
def _check_means(
    view: NetView, index: int, layer: pb.LayerParameter, datum: pb.Datum | None
) -> Iterator[Finding]:
    param, channels = layer.transform_param, _count_channels(layer, datum)
    if param.HasField("mean_file") and param.mean_value:
        yield layer_finding("mean-twice", view, index, "transform_param.mean_file")
    if param.force_color and param.force_gray:
        yield layer_finding("color-and-gray", view, index, "transform_param.force_gray")
    if channels and len(param.mean_value) not in (0, 1, channels):
        yield finding(
            "mean-values-misfit",
            layer_field(index, "transform_param.mean_value[0]"),
            f"{title(layer)} has {len(param.mean_value)} mean_value fields for images with "
            f"{describe_count(channels, 'channel')}",
            effect=f"Caffe aborts: Specify either 1 mean_value or as many as channels: {channels}",
            write="" if channels > 1 else "keep one mean_value, or build the LMDB of colored images",
            channels=channels,
        )


@transform_rule(
    "mean-value-alone",
    "warning",
    "one mean_value for several channels, which OpenMP threads expand without a lock",
    what="{layer} has one mean_value for {channels} channels",
    effect="threads append to the same list at the same time, so Caffe sometimes aborts with `Specify "
    "either 1 mean_value or as many as channels`",
)
def _check_single_mean(
    view: NetView, index: int, layer: pb.LayerParameter, datum: pb.Datum | None
) -> Iterator[Finding]:
    param, channels = layer.transform_param, _count_channels(layer, datum) or 0
    if len(param.mean_value) == 1 and channels > 1:
        value = show_number(param.mean_value[0])
        yield layer_finding(
            "mean-value-alone",
            view,
            index,
            "transform_param.mean_value[0]",
            write=" ".join([f"mean_value: {value}"] * channels),
            channels=channels,
        )


def _count_channels(layer: pb.LayerParameter, datum: pb.Datum | None) -> int | None:
    if layer.type == "ImageData":
        return 3 if layer.image_data_param.is_color else 1
    if datum is not None and not datum.encoded:
        return datum.channels
    if layer.type != "Data":
        return None
    if layer.transform_param.force_color == layer.transform_param.force_gray:
        shape = record_shape(datum)
        return shape[0] if shape else None
    return 3 if layer.transform_param.force_color else 1


@transform_rule(
    "crop-above-image",
    "error",
    "crop_size larger than the image",
    what="{layer} crops to {crop_size} pixels, but {fault} is {smallest}",
    effect="Caffe aborts at the first such image: Check failed: height >= crop_size",
    write="crop_size: {smallest}, or larger images",
)
@transform_rule(
    "resize-range",
    "error",
    "random_resize_param with a max_size below its min_size",
    what="{layer} resizes to between {min_size} and {max_size} pixels",
    effect="Caffe aborts, or picks an arbitrary size",
    write="min_size: {max_size} max_size: {min_size}",
)
def _check_sizes(
    view: NetView, index: int, layer: pb.LayerParameter, datum: pb.Datum | None
) -> Iterator[Finding]:
    param = layer.transform_param
    resize = param.random_resize_param
    if param.HasField("random_resize_param"):
        if resize.max_size and resize.max_size < resize.min_size:
            yield layer_finding(
                "resize-range",
                view,
                index,
                "transform_param.random_resize_param.max_size",
                min_size=resize.min_size,
                max_size=resize.max_size,
            )
        smallest, what = resize.min_size, "min_size"
    elif param.HasField("random_aspect_ratio_param"):  # random_aspect_ratio_param resizes to crop_size first
        return
    elif layer.type == "ImageData":
        image = layer.image_data_param
        smallest, what = min(image.new_height, image.new_width), "new_height or new_width"
    else:
        shape = record_shape(datum)
        smallest = min(shape[1:]) if shape and not param.HasField("resize_param") else 0
        what = "the height or width of the first record"
    if smallest and param.crop_size > smallest:
        yield layer_finding(
            "crop-above-image",
            view,
            index,
            "transform_param.crop_size",
            crop_size=param.crop_size,
            fault=what,
            smallest=smallest,
        )


@transform_rule(
    "aspect-ratio-range",
    "error",
    "random_aspect_ratio_param without crop_size, or with an empty range",
    what="{layer} has random_aspect_ratio_param, {fault}",
    effect="Caffe aborts at the first image, or produces empty images",
)
def _check_aspect_ratio(view: NetView, index: int, layer: pb.LayerParameter) -> Iterator[Finding]:
    if not layer.transform_param.HasField("random_aspect_ratio_param"):
        return
    param = layer.transform_param.random_aspect_ratio_param
    low, high, change = param.min_area_ratio, param.max_area_ratio, param.aspect_ratio_change
    faults = {
        "": None if layer.transform_param.crop_size else "but no crop_size to resize to",
        ".min_area_ratio": None
        if 0 < low <= high
        else f"with an empty range of areas, {show_number(low)} to {show_number(high)}",
        ".aspect_ratio_change": None
        if 0 < change <= 1
        else f"with aspect_ratio_change {show_number(change)}, outside 0 to 1",
    }
    for field, fault in faults.items():
        if fault:
            yield layer_finding(
                "aspect-ratio-range",
                view,
                index,
                f"transform_param.random_aspect_ratio_param{field}",
                write="crop_size: 224"
                if not field
                else "min_area_ratio: 0.08 max_area_ratio: 1 aspect_ratio_change: 0.75",
                fault=fault,
            )


@transform_rule(
    "raw-datums-scrambled",
    "error",
    "random_resize_param or random_aspect_ratio_param on Datums that are not encoded",
    what="{layer} has {field}, but the records of '{source}' are not encoded",
    effect="Intel's Caffe scrambles the pixels of raw Datums when it resizes them",
    write="build the LMDB with convert_imageset --encoded, or resize the images when you build it",
)
def _check_raw_datums(
    view: NetView, index: int, layer: pb.LayerParameter, datum: pb.Datum | None
) -> Iterator[Finding]:
    if datum is None or datum.encoded:
        return
    for field in ("random_resize_param", "random_aspect_ratio_param"):
        if layer.transform_param.HasField(field):
            yield layer_finding(
                "raw-datums-scrambled",
                view,
                index,
                f"transform_param.{field}",
                field=field,
                source=layer.data_param.source,
            )
            return


def check_labels(view: NetView, phase: PhaseNet) -> Iterator[Finding]:
    """Check the predictions and labels that each loss and accuracy of a phase reads."""
    for i, layer in enumerate(phase.layers):
        if type_of(layer).is_classifier and len(layer.bottom) > 1:
            yield from _check_label(phase, i)
            yield from _check_outputs(view, phase, i)
        if type_of(layer).activation and layer.bottom:
            yield from _check_activation(phase, i)
    yield from _check_ignored_labels(phase)


def outputs_of(phase: PhaseNet, i: int) -> int | None:
    """Return the number of class outputs that a loss or an accuracy reads; None if unknown."""
    layer, shape = phase.layers[i], phase.bottom_shape(i)
    param = layer.accuracy_param if layer.type == "Accuracy" else layer.softmax_param
    if shape is None or not -len(shape) <= param.axis < len(shape):
        return None
    return shape[param.axis]


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


@label_rule(
    "outputs-below-classes",
    "error",
    "fewer outputs than classes",
    effect="labels from {outputs} on make Caffe read past the outputs and crash (SIGSEGV) after some "
    "iterations",
    values=("outputs", "classes"),
)
@label_rule(
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
    origin = _origin(phase, i, 1)
    if origin is None or origin[1] != 1 or phase.layers[origin[0]].type not in ("Data", "ImageData"):
        return None
    return phase.layers[origin[0]].data_param.source


def _origin(phase: PhaseNet, i: int, b: int) -> tuple[int, int] | None:
    """Find the (layer, top) that a bottom comes from, through layers that pass it on unchanged."""
    origin = phase.producer_through(i, b, lambda entry: entry.is_view)
    return origin if origin is not None and origin[0] >= 0 else None


@label_rule(
    "label-not-label",
    "error",
    "a label bottom that is not a label, but computed or the images themselves",
    what="{layer} reads '{bottom}' as the label, but that is {fault}",
    effect="Caffe aborts, or uses these numbers as classes and reads past the outputs",
)
def _check_label(phase: PhaseNet, i: int) -> Iterator[Finding]:
    layer, origin = phase.layers[i], _origin(phase, i, 1)
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
        predictions = _origin(phase, i, 0)
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


def is_computed(phase: PhaseNet, i: int, b: int) -> bool:
    """Return whether a bottom comes from a layer whose output is never a class number."""
    origin = _origin(phase, i, b)
    return origin is not None and type_of(phase.layers[origin[0]]).is_never_label


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
def _check_activation(phase: PhaseNet, i: int) -> Iterator[Finding]:
    layer, origin = phase.layers[i], _origin(phase, i, 0)
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
def _check_ignored_labels(phase: PhaseNet) -> Iterator[Finding]:
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
