"""Rules for TRAIN and TEST: the layers in each, and what must be the same in both."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.shapes import show_shape
from caffe_recipes.review.lint.net_text import layer_finding, shapes_fit, show_transform, title
from caffe_recipes.review.lint.net_view import is_loss, normalize_path
from caffe_recipes.review.lint.registry import finding
from caffe_recipes.review.lint.subjects import phase_rule
from caffe_recipes.wording import describe_count

if TYPE_CHECKING:
    from caffe_recipes.review.lint.findings import Finding
    from caffe_recipes.review.lint.net_view import NetView, PhaseNet


_COLORS = 3
_SAME_IN_BOTH = ("scale", "mean_value", "mean_file", "force_color", "force_gray")


@phase_rule(
    "include-and-exclude",
    "error",
    "a layer with both include and exclude rules",
    what="{layer} has both include and exclude",
    effect="Caffe aborts: Specify either include rules or exclude rules; not both",
    write="keep one of them",
)
@phase_rule(
    "phase-without-include",
    "warning",
    "`phase` set in a layer, which does not put the layer in that phase",
    what="{layer} has phase: {name}, which does not put it in that phase only",
    effect="the layer is in both phases, and in both it behaves as in {name}",
    write="include {{ phase: {name} }}",
)
def check_include_rules(view: NetView) -> Iterator[Finding]:
    """Check the include and exclude rules of each layer."""
    for index, layer in enumerate(view.net.layer):
        if layer.include and layer.exclude:
            yield layer_finding("include-and-exclude", view, index, "exclude[0]")
        if layer.HasField("phase"):
            name = pb.Phase.Name(layer.phase)
            yield layer_finding("phase-without-include", view, index, "phase", name=name)


@phase_rule(
    "no-train-data",
    "warning",
    "a net with layers for TRAIN, none of which produces its data",
    what="{layer} is for TRAIN, but no layer produces data for TRAIN",
    effect="the net can be tested but not trained: Caffe aborts at the first bottom",
    write="add a data layer with include {{ phase: TRAIN }}",
)
def _check_train_data(view: NetView) -> Iterator[Finding]:
    first = next((i for i, layer in enumerate(view.net.layer) if _is_train_only(layer)), None)
    is_staged = any(each.stages for each in view.phases)
    if view.phase(pb.TRAIN) is None and first is not None and not is_staged:
        yield layer_finding("no-train-data", view, first, "include[0]")


def _is_train_only(layer: pb.LayerParameter) -> bool:
    return bool(layer.include) and all(
        rule.HasField("phase") and rule.phase == pb.TRAIN for rule in layer.include
    )


@phase_rule(
    "no-loss",
    "error",
    "a net with data for TRAIN, but no loss",
    what="{layer} produces data for TRAIN, but TRAIN has no loss",
    effect="nothing is learned, and Caffe exits 0 at the end",
    write="add a loss, such as SoftmaxWithLoss",
)
def _check_loss(view: NetView) -> Iterator[Finding]:
    train = view.phase(pb.TRAIN)
    if train is None:
        return
    # Data layers alone are a part of a net, and a net with quantized layers is only tested.
    is_part = not any(layer.bottom for layer in train.layers)
    is_tested = any(layer.HasField("quantization_param") for layer in train.layers)
    if is_part or is_tested or any(map(is_loss, train.layers)):
        return
    for i, layer in enumerate(train.layers):
        if _is_train_only(layer) and not layer.bottom:
            yield layer_finding("no-loss", train, i, "include[0]")
            return


def _data_layer_pairs(view: NetView) -> Iterator[tuple[PhaseNet, int, PhaseNet, int]]:
    """Yield TRAIN and TEST, each with the index in it of data layers with the same first top and type."""
    train, test = view.phase(pb.TRAIN), view.phase(pb.TEST)
    if train is None or test is None:
        return
    by_top = {layer.top[0]: i for i, layer in enumerate(train.layers) if layer.top and not layer.bottom}
    for i, layer in enumerate(test.layers):
        twin = by_top.get(layer.top[0]) if layer.top and not layer.bottom else None
        if twin is not None and train.layers[twin].type == layer.type and train.layers[twin] != layer:
            yield train, twin, test, i


@phase_rule.add
def _check_mean_counts(view: NetView) -> Iterator[Finding]:
    """Find data layers with different numbers of mean_value in TRAIN and TEST."""
    for train, in_train, test, in_test in _data_layer_pairs(view):
        counts = [
            len(phase.layers[i].transform_param.mean_value)
            for phase, i in ((train, in_train), (test, in_test))
        ]
        if min(counts) < 2 or counts[0] == counts[1]:
            continue
        phase, i = (train, in_train) if counts[0] != _COLORS else (test, in_test)
        other = counts[1] if phase is train else counts[0]
        layer, count = phase.layers[i], len(phase.layers[i].transform_param.mean_value)
        where, there = ("TRAIN", "TEST") if phase is train else ("TEST", "TRAIN")
        yield finding(
            "mean-values-misfit",
            phase.where(i, "transform_param.mean_value[0]"),
            f"{title(layer)} has {count} mean_value fields in {where}, but {other} in {there}",
            effect="Caffe aborts: Specify either 1 mean_value or as many as channels",
            channels=other,
        )


@phase_rule(
    "test-on-train",
    "warning",
    "a TEST data layer that reads the records of TRAIN",
    what="{layer} reads '{source}' in TEST, as in TRAIN",
    effect="the accuracy is measured on images that the net was trained on",
    write="set source to the LMDB of held-out images",
)
@phase_rule(
    "phase-transforms-differ",
    "warning",
    "a mean or scale that differs between TRAIN and TEST",
    what="{layer} has {field} {ours} in TEST but {theirs} in TRAIN",
    effect="the net is tested on inputs that are scaled differently than in training, so the accuracy is "
    "wrong",
    write="use the same {field} in both phases",
)
def _check_transforms(view: NetView) -> Iterator[Finding]:
    for train, in_train, test, in_test in _data_layer_pairs(view):
        layer, twin = test.layers[in_test], train.layers[in_train]
        for field in _SAME_IN_BOTH:
            params = layer.transform_param, twin.transform_param
            ours, theirs = (show_transform(param, field) for param in params)
            counts = len(layer.transform_param.mean_value), len(twin.transform_param.mean_value)
            is_known = field == "mean_value" and min(counts) > 1 and counts[0] != counts[1]
            if ours != theirs and not is_known:
                yield layer_finding(
                    "phase-transforms-differ",
                    test,
                    in_test,
                    f"transform_param.{field}",
                    field=field,
                    ours=ours,
                    theirs=theirs,
                )
        source = layer.data_param.source
        if (
            layer.type == "Data"
            and source
            and normalize_path(source) == normalize_path(twin.data_param.source)
        ):
            yield layer_finding("test-on-train", test, in_test, "data_param.source", source=source)


@phase_rule(
    "phase-crops-differ",
    "warning",
    "a crop_size that differs between TRAIN and TEST",
    what="{layer} has crop_size {ours} in TEST but {theirs} in TRAIN",
    effect="objects appear at a different size than in training, or the weights do not fit",
    write="crop_size: {theirs}",
)
def _check_crops(view: NetView) -> Iterator[Finding]:
    for train, in_train, test, in_test in _data_layer_pairs(view):
        layer = test.layers[in_test]
        ours = layer.transform_param.crop_size
        theirs = train.layers[in_train].transform_param.crop_size
        # Images that are not cropped may have that size already.
        if ours and theirs and ours != theirs:
            yield layer_finding(
                "phase-crops-differ", test, in_test, "transform_param.crop_size", ours=ours, theirs=theirs
            )


@phase_rule(
    "dropout-test-only",
    "warning",
    "a Dropout layer that is only in TEST",
    what="{layer} is in TEST but not in TRAIN",
    effect="Dropout has no effect in TEST, and the net is trained without it",
    write="remove its include or exclude, so that it is in both phases",
)
def _check_dropouts(view: NetView) -> Iterator[Finding]:
    train, test = view.phase(pb.TRAIN), view.phase(pb.TEST)
    if train is None or test is None:
        return
    for i, layer in enumerate(test.layers):
        if layer.type == "Dropout" and layer.name not in {other.name for other in train.layers}:
            yield layer_finding("dropout-test-only", test, i, "include[0]" if layer.include else "exclude[0]")


@phase_rule("phase-weights-differ", "error", "a layer whose weights have different shapes in TEST and TRAIN")
def _check_weights(view: NetView) -> Iterator[Finding]:
    train, test = view.phase(pb.TRAIN), view.phase(pb.TEST)
    # With an unknown number of channels, shapes use the number of mean_value fields.
    if train is None or test is None or any(_check_mean_counts(view)):
        return
    shapes = {layer.name: train.learned(i) for i, layer in enumerate(train.layers)}
    for i, layer in enumerate(test.layers):
        ours, theirs = test.learned(i), shapes.get(layer.name)
        if not ours or not theirs:
            continue
        if len(ours) != len(theirs):
            yield finding(
                "phase-weights-differ",
                test.where(i, "name"),
                f"{title(layer)} learns {describe_count(len(ours), 'blob')} in TEST, {len(theirs)} in TRAIN",
                effect=f"Caffe aborts before it trains: Incompatible number of blobs for layer {layer.name}",
                write="use one definition for both phases, or a different name in one of them",
            )
            continue
        for param, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            if not shapes_fit(one, other):
                yield finding(
                    "phase-weights-differ",
                    test.where(i, "name"),
                    f"{title(layer)} has weights {show_shape(one)} in TEST but {show_shape(other)} in TRAIN",
                    effect=f"Caffe aborts before it trains: Cannot share param {param} weights from layer "
                    f"'{layer.name}'; shape mismatch",
                    write="use inputs of the same size in both phases (crop_size), or global pooling before "
                    "the layer",
                )
                break
