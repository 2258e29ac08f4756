"""Rules on data layers: where records come from, how many, and in which order.

Rules on `transform_param`: resizing, cropping, mirroring, means.

Rules on outputs and labels: what losses and accuracies compare.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from caffe_recipes.caffe import pb
from caffe_recipes.review.lint.net_view import (
    READERS,
    SOURCE_BLOCKS,
    Draft,
    show_number,
    title,
)
from caffe_recipes.review.lint.wiring_rules import lacks_batch_size

if TYPE_CHECKING:
    from caffe_recipes.review.lint.net_view import (
        NetView,
        PhaseNet,
    )
    from caffe_recipes.review.lint.rules import Severity

DATA_RULES: dict[str, tuple[Severity, str]] = {
    "no-batch-size": ("error", "a data layer without batch_size"),
    "no-source": ("error", "a data layer without source"),
    "backend-not-lmdb": ("warning", "backend LEVELDB, written or by default, for what is named an LMDB"),
    "shuffle-not-lmdb": ("warning", "shuffle on a LEVELDB"),
    "train-unshuffled": ("note", "TRAIN reads its records in the order of the LMDB or list"),
    "train-shuffles-differ": ("warning", "data layers of TRAIN of which one is shuffled and another is not"),
    "train-batches-differ": ("warning", "data layers of TRAIN that differ in batch_size"),
    "half-image-size": ("error", "new_height without new_width, or the other way round"),
}

_DATABASES = frozenset(("AnnotatedData", "Data"))
_SOURCELESS = frozenset(("MemoryData", "VideoData"))


def check_data(view: NetView) -> Iterator[Draft]:
    """Check each data layer of the file, whatever its phase."""
    for index, layer in enumerate(view.net.layer):
        block = SOURCE_BLOCKS.get(layer.type)
        if block is None:
            continue
        yield from _needed(index, layer, block)
        if layer.type in _DATABASES:
            yield from _backend(index, layer)
        if layer.type == "ImageData":
            yield from _image_size(index, layer)


def check_train_data(view: NetView, phase: PhaseNet) -> Iterator[Draft]:
    """Check the data layers of a phase that is trained, in the words of the view's dialect."""
    if phase.phase != pb.TRAIN:
        return
    yield from _shuffles(phase)
    sizes: dict[int, pb.LayerParameter] = {}
    for i, layer in enumerate(phase.layers):
        block = SOURCE_BLOCKS.get(layer.type)
        if block is None:
            continue
        size = getattr(getattr(layer, block), "batch_size", 0)
        other = next(iter(sizes.values()), None)
        if size and other is not None and size not in sizes:
            yield Draft(
                "train-batches-differ",
                phase.where(i),
                f"{block}.batch_size",
                f"{title(layer)} has batch_size {size}, {title(other)} has {next(iter(sizes))}",
                "with MLSL Caffe stops, for it knows one global batch; else images and labels drift apart",
                f"batch_size: {next(iter(sizes))}",
            )
        if size:
            sizes.setdefault(size, layer)
        yield from _order(view, phase, i, block)


def _needed(index: int, layer: pb.LayerParameter, block: str) -> Iterator[Draft]:
    if lacks_batch_size(layer):
        yield Draft(
            "no-batch-size",
            index,
            f"{block}.batch_size",
            f"{title(layer)} has no batch_size",
            "Caffe stops: a positive batch size is required",
            f"{block} {{ batch_size: 32 }}, images per rank and iteration",
        )
    if layer.type not in _SOURCELESS and not getattr(getattr(layer, block), "source", "-"):
        yield Draft(
            "no-source",
            index,
            f"{block}.source",
            f"{title(layer)} has no source",
            "Caffe stops: there is nothing to open",
            f'{block} {{ source: "path" }}',
        )


def _backend(index: int, layer: pb.LayerParameter) -> Iterator[Draft]:
    param = layer.data_param
    if param.backend == pb.DataParameter.LMDB:
        return
    written = "says backend: LEVELDB" if param.HasField("backend") else "has no backend, which means LEVELDB,"
    if "lmdb" in param.source.lower() and "leveldb" not in param.source.lower():
        yield Draft(
            "backend-not-lmdb",
            index,
            "data_param.backend",
            f"{title(layer)} {written} and its source is '{param.source}'",
            "Caffe stops if it is an LMDB: Failed to open leveldb",
            "backend: LMDB",
        )
    if param.shuffle:
        yield Draft(
            "shuffle-not-lmdb",
            index,
            "data_param.shuffle",
            f"{title(layer)} {written} and shuffle: true",
            "only LMDBs are shuffled",
            "backend: LMDB",
        )


def _image_size(index: int, layer: pb.LayerParameter) -> Iterator[Draft]:
    param = layer.image_data_param
    if (param.new_height > 0) != (param.new_width > 0):
        given = "new_height" if param.new_height else "new_width"
        yield Draft(
            "half-image-size",
            index,
            f"image_data_param.{given}",
            f"{title(layer)} has {given} alone",
            "Caffe stops: new_height and new_width must be set at the same time",
            "give both",
        )


def _shuffles(phase: PhaseNet) -> Iterator[Draft]:
    """Find the first data layer that is shuffled where the first one is not, or the other way round."""
    readers = _readers(phase)
    for i in readers[1:]:
        one, other = phase.layers[readers[0]], phase.layers[i]
        if _is_shuffled(one) == _is_shuffled(other):
            continue
        shuffled, kept = (one, other) if _is_shuffled(one) else (other, one)
        yield Draft(
            "train-shuffles-differ",
            phase.where(i),
            SOURCE_BLOCKS[other.type],
            f"{title(shuffled)} is shuffled in TRAIN, and {title(kept)} is not",
            "if one holds the labels of the other's images, they are no longer together",
            f"shuffle: false in {title(shuffled)}, and records that were shuffled together when built",
        )
        return


def _readers(phase: PhaseNet) -> list[int]:
    """Index the layers of a phase that read records in an order."""
    types = SOURCE_BLOCKS.keys() - _SOURCELESS
    return [i for i, layer in enumerate(phase.layers) if layer.type in types]


def _is_shuffled(layer: pb.LayerParameter) -> bool:
    return bool(getattr(getattr(layer, SOURCE_BLOCKS[layer.type]), "shuffle", False))


def _order(view: NetView, phase: PhaseNet, i: int, block: str) -> Iterator[Draft]:
    layer = phase.layers[i]
    lmdb = layer.type == "Data" and layer.data_param.backend == pb.DataParameter.LMDB
    if not lmdb and layer.type != "ImageData":
        return
    # What is in TRAIN by stage, or for want of a rule, may not be there to be trained on.
    trained = any(rule.HasField("phase") and rule.phase == pb.TRAIN for rule in layer.include)
    if getattr(layer, block).shuffle or not trained:
        return
    readers = _readers(phase)
    if any(_is_shuffled(phase.layers[other]) for other in readers):
        return  # the rule on shuffles that differ says more
    can_shuffle = layer.type == "ImageData" or view.dialect.knows("DataParameter", "shuffle")
    write = "shuffle: true" if can_shuffle else "convert_imageset --shuffle, when the LMDB is built"
    if len(readers) > 1:
        write = "one random order for all data layers, when their records are built: shuffle separates them"
    yield Draft(
        "train-unshuffled",
        phase.where(i),
        block,
        f"{title(layer)} reads '{getattr(layer, block).source}' in its own order, in every epoch",
        "batches are the same in each epoch; of one class only, if the records were not shuffled when built",
        write,
    )


TRANSFORM_RULES: dict[str, tuple[Severity, str]] = {
    "raw-datums-scrambled": ("error", "random resizing or aspect ratio on Datums that are not encoded"),
    "mean-twice": ("error", "mean_file and mean_value in one layer"),
    "color-and-gray": ("error", "force_color and force_gray in one layer"),
    "mean-values-misfit": ("error", "another number of mean_value than channels"),
    "mean-value-alone": ("warning", "one mean_value for several channels, which threads copy without a lock"),
    "crop-above-image": ("error", "crop_size larger than the image"),
    "resize-range": ("error", "max_size of random_resize_param below its min_size"),
    "aspect-ratio-range": ("error", "random_aspect_ratio_param without crop_size, or with an empty range"),
    "test-random": ("warning", "mirror or random resizing in TEST"),
}


def check_transforms(view: NetView) -> Iterator[Draft]:
    """Check the transform of each data layer of the file."""
    for index, layer in enumerate(view.net.layer):
        if not layer.HasField("transform_param"):
            continue
        datum = view.datum_of(layer.data_param.source) if layer.data_param.source else None
        yield from _means(index, layer, datum)
        if view.dialect.knows("NetParameter", "engine"):
            yield from _mean_alone(index, layer, datum)
        yield from _sizes(index, layer, datum)
        yield from _aspect_ratio(index, layer)
        yield from _raw(index, layer, datum)


def check_test_transforms(phase: PhaseNet) -> Iterator[Draft]:
    """Check that what a test reads is the same in each test."""
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
            yield Draft(
                "test-random",
                phase.where(i),
                f"transform_param.{field}",
                f"{title(layer)} has {field} in TEST, where it is as random as in TRAIN",
                "each test sees other images: the accuracy varies from test to test",
                {
                    "mirror": "mirror: false",
                    "random_resize_param": "min_size and max_size of one value",
                }.get(field, "random_resize_param { min_size: 256 max_size: 256 }"),
            )


def _means(index: int, layer: pb.LayerParameter, datum: pb.Datum | None) -> Iterator[Draft]:
    param, channels = layer.transform_param, _channels(layer, datum)
    if param.HasField("mean_file") and param.mean_value:
        yield Draft(
            "mean-twice",
            index,
            "transform_param.mean_file",
            f"{title(layer)} has mean_file and mean_value",
            "Caffe stops: Cannot specify mean_file and mean_value at the same time",
            "keep one of them",
        )
    if param.force_color and param.force_gray:
        yield Draft(
            "color-and-gray",
            index,
            "transform_param.force_gray",
            f"{title(layer)} has force_color and force_gray",
            "Caffe stops: cannot set both force_color and force_gray",
            "keep one of them",
        )
    if channels and len(param.mean_value) not in (0, 1, channels):
        yield Draft(
            "mean-values-misfit",
            index,
            "transform_param.mean_value[0]",
            f"{title(layer)} has {len(param.mean_value)} mean_value for images of {channels} channels",
            f"Caffe stops: Specify either 1 mean_value or as many as channels: {channels}",
            f"give 1 or {channels}",
        )


def _mean_alone(index: int, layer: pb.LayerParameter, datum: pb.Datum | None) -> Iterator[Draft]:
    param, channels = layer.transform_param, _channels(layer, datum) or 0
    if len(param.mean_value) == 1 and channels > 1:
        value = show_number(param.mean_value[0])
        yield Draft(
            "mean-value-alone",
            index,
            "transform_param.mean_value[0]",
            f"{title(layer)} has one mean_value for {channels} channels",
            "OpenMP threads append the others to one list at once: now and then Caffe stops with `Specify "
            "either 1 mean_value or as many as channels`",
            " ".join([f"mean_value: {value}"] * channels),
        )


def _channels(layer: pb.LayerParameter, datum: pb.Datum | None) -> int | None:
    if layer.type == "ImageData":
        return 3 if layer.image_data_param.is_color else 1
    if datum is not None and not datum.encoded:
        return datum.channels
    if layer.type != "Data" or layer.transform_param.force_color == layer.transform_param.force_gray:
        return None
    return 3 if layer.transform_param.force_color else 1


def _sizes(index: int, layer: pb.LayerParameter, datum: pb.Datum | None) -> Iterator[Draft]:
    param = layer.transform_param
    resize = param.random_resize_param
    if param.HasField("random_resize_param"):
        if resize.max_size and resize.max_size < resize.min_size:
            yield Draft(
                "resize-range",
                index,
                "transform_param.random_resize_param.max_size",
                f"{title(layer)} resizes to between {resize.min_size} and {resize.max_size} pixels",
                "Caffe stops, or draws a size at random",
                f"min_size: {resize.max_size} max_size: {resize.min_size}",
            )
        smallest, what = resize.min_size, "min_size"
    elif param.HasField("random_aspect_ratio_param"):  # it resizes to crop_size before it crops
        return
    elif layer.type == "ImageData":
        image = layer.image_data_param
        smallest, what = min(image.new_height, image.new_width), "new_height or new_width"
    else:
        raw = datum is not None and not datum.encoded
        smallest = min(datum.height, datum.width) if datum is not None and raw else 0
        what = "the height or width of the records"
    if smallest and param.crop_size > smallest:
        yield Draft(
            "crop-above-image",
            index,
            "transform_param.crop_size",
            f"{title(layer)} crops to {param.crop_size} pixels, and {what} is {smallest}",
            "Caffe stops at the first image that small: Check failed: height >= crop_size",
            f"crop_size: {smallest}, or larger images",
        )


def _aspect_ratio(index: int, layer: pb.LayerParameter) -> Iterator[Draft]:
    if not layer.transform_param.HasField("random_aspect_ratio_param"):
        return
    param = layer.transform_param.random_aspect_ratio_param
    low, high, change = param.min_area_ratio, param.max_area_ratio, param.aspect_ratio_change
    faults = {
        "": None if layer.transform_param.crop_size else "but no crop_size, to which it resizes",
        ".min_area_ratio": None
        if 0 < low <= high
        else f"with areas from {show_number(low)} to {show_number(high)}: nothing lies between",
        ".aspect_ratio_change": None
        if 0 < change <= 1
        else f"with aspect_ratio_change {show_number(change)}, outside 0 to 1",
    }
    for field, fault in faults.items():
        if fault:
            yield Draft(
                "aspect-ratio-range",
                index,
                f"transform_param.random_aspect_ratio_param{field}",
                f"{title(layer)} has random_aspect_ratio_param, {fault}",
                "Caffe stops at the first image, or makes images of no size",
                "crop_size: 224"
                if not field
                else "min_area_ratio: 0.08 max_area_ratio: 1 aspect_ratio_change: 0.75",
            )


def _raw(index: int, layer: pb.LayerParameter, datum: pb.Datum | None) -> Iterator[Draft]:
    if datum is None or datum.encoded:
        return
    for field in ("random_resize_param", "random_aspect_ratio_param"):
        if layer.transform_param.HasField(field):
            yield Draft(
                "raw-datums-scrambled",
                index,
                f"transform_param.{field}",
                f"{title(layer)} has {field}, and the records of '{layer.data_param.source}' are not encoded",
                "this Caffe scrambles the pixels of raw Datums when it resizes them",
                "build the LMDB with convert_imageset --encoded, or resize the images when it is built",
            )
            return


LABEL_RULES: dict[str, tuple[Severity, str]] = {
    "outputs-below-classes": ("error", "fewer outputs than classes: labels beyond them"),
    "outputs-above-classes": ("note", "more outputs than classes"),
    "top-k-above-outputs": ("error", "an accuracy among more outputs than there are"),
    "top-k-all-outputs": ("warning", "an accuracy among all outputs: it is always 1"),
    "single-output-softmax": ("warning", "a softmax loss over one output: it is always 0"),
    "label-not-label": ("error", "a label bottom that is computed, or the images themselves"),
    "relu-on-scores": ("warning", "a ReLU on the scores that a softmax loss, or a sigmoid one, reads"),
    "activation-twice": (
        "warning",
        "a loss that applies the softmax or sigmoid which its bottom had already",
    ),
    "ignored-labels-differ": ("note", "a loss and an accuracy on one label that ignore other labels"),
}

CLASSIFIERS = frozenset(("Accuracy", "SoftmaxWithLoss", "SoftmaxWithLossOHEM"))
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
        if layer.type in CLASSIFIERS and len(layer.bottom) > 1:
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


def is_computed(phase: PhaseNet, i: int, b: int) -> bool:
    """Whether a bottom is made by a layer whose output is no class number."""
    made = _origin(phase, i, b)
    return made is not None and phase.layers[made[0]].type in _COMPUTED


def _applied(phase: PhaseNet, i: int) -> Iterator[Draft]:
    layer, made = phase.layers[i], _origin(phase, i, 0)
    applied, taker = _APPLIED[layer.type]
    if made is not None and phase.layers[made[0]].type == "ReLU":
        maker = phase.layers[made[0]]
        yield Draft(
            "relu-on-scores",
            phase.where(made[0]),
            "type",
            f"{title(layer)} reads what {title(maker)} made: scores below 0 become 0",
            "a class whose score is below 0 gets no gradient, and may never be learned",
            "take the ReLU out",
        )
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
