"""Rules on phases: which layers are in which, and what must be the same in both."""

from __future__ import annotations

from collections.abc import Iterator

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.shapes import show_shape
from caffe_recipes.caffe.shaping.dims import Shape
from caffe_recipes.review.findings import Severity
from caffe_recipes.review.lint.nets.view import Draft, NetView, PhaseNet, is_loss, number, same_path, title

RULES: dict[str, tuple[Severity, str]] = {
    "no-data": ("error", "no layer makes data, in either phase"),
    "no-train-data": ("warning", "layers for TRAIN, but none that makes its data"),
    "no-loss": ("error", "data for TRAIN, but no loss"),
    "include-and-exclude": ("error", "a layer with both include and exclude rules"),
    "phase-without-include": ("warning", "`phase` in a layer, which does not choose its phase"),
    "phase-transforms-differ": ("warning", "mean or scale of TRAIN and TEST differ"),
    "phase-weights-differ": ("error", "weights of one layer have another shape in TEST than in TRAIN"),
    "test-on-train": ("warning", "TEST reads the records that TRAIN reads"),
}

_COLORS = 3
_SAME_IN_BOTH = ("scale", "mean_value", "mean_file", "force_color", "force_gray")


def check_rules_of_layers(view: NetView) -> Iterator[Draft]:
    """Check the include and exclude rules of each layer."""
    for index, layer in enumerate(view.net.layer):
        if layer.include and layer.exclude:
            yield Draft(
                "include-and-exclude",
                index,
                "exclude[0]",
                f"{title(layer)} has both include and exclude",
                "Caffe stops: Specify either include rules or exclude rules; not both",
                "keep one of them",
            )
        if layer.HasField("phase"):
            name = pb.Phase.Name(layer.phase)
            yield Draft(
                "phase-without-include",
                index,
                "phase",
                f"{title(layer)} says phase: {name}, which does not choose the phases that it is in",
                "the layer is in both phases, and behaves in both as in this one",
                f"include {{ phase: {name} }}",
            )


def check_phases(view: NetView) -> Iterator[Draft]:
    """Check that each phase has what it needs, and that both fit together."""
    train, test = view.phase(pb.TRAIN), view.phase(pb.TEST)
    first = next((i for i, layer in enumerate(view.net.layer) if _only_train(layer)), None)
    if not view.phases:
        yield Draft(
            "no-data",
            None,
            "",
            "no layer makes data: each has a bottom, and there is no `input`",
            "Caffe stops: Unknown bottom blob",
            "add a data layer for each phase, or an Input layer",
        )
    elif train is None and first is not None and not any(each.stages for each in view.phases):
        yield Draft(
            "no-train-data",
            first,
            "include[0]",
            f"{title(view.net.layer[first])} is for TRAIN, for which no layer makes data",
            "the net can be tested, not trained: Caffe stops at the first bottom",
            "add a data layer with include { phase: TRAIN }",
        )
    if train is not None:
        yield from _loss(train)
    if train is not None and test is not None:
        counted = list(_mean_counts(train, test))
        yield from counted
        yield from _transforms(train, test)
        # Images of unknown channels have as many as they have means.
        if not counted:
            yield from _weights(train, test)


def _only_train(layer: pb.LayerParameter) -> bool:
    return bool(layer.include) and all(
        rule.HasField("phase") and rule.phase == pb.TRAIN for rule in layer.include
    )


def _loss(train: PhaseNet) -> Iterator[Draft]:
    if any(map(is_loss, train.layers)):
        return
    for index, layer in zip(train.indexes, train.layers, strict=True):
        if _only_train(layer) and not layer.bottom:
            yield Draft(
                "no-loss",
                index,
                "include[0]",
                f"{title(layer)} makes data for TRAIN, where no layer is a loss",
                "nothing is learned, and Caffe exits 0 at the end",
                "add a loss, such as SoftmaxWithLoss",
            )
            return


def _twins(train: PhaseNet, test: PhaseNet) -> Iterator[tuple[int, int]]:
    """Yield the data layers of one top and type that differ: indexes in TRAIN, and in TEST."""
    makers = {layer.top[0]: i for i, layer in enumerate(train.layers) if layer.top and not layer.bottom}
    for i, layer in enumerate(test.layers):
        twin = makers.get(layer.top[0]) if layer.top and not layer.bottom else None
        if twin is not None and train.layers[twin].type == layer.type and train.layers[twin] != layer:
            yield twin, i


def _mean_counts(train: PhaseNet, test: PhaseNet) -> Iterator[Draft]:
    """Find phases whose means are of other numbers of channels; the odder of both is the wrong one."""
    for in_train, in_test in _twins(train, test):
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
        yield Draft(
            "mean-values-misfit",
            phase.where(i),
            "transform_param.mean_value[0]",
            f"{title(layer)} has {count} mean_value in {where}, and {other} in {there}",
            "Caffe stops: Specify either 1 mean_value or as many as channels",
            f"give 1 or {other}",
        )


def _transforms(train: PhaseNet, test: PhaseNet) -> Iterator[Draft]:
    for in_train, in_test in _twins(train, test):
        index, layer, twin = test.where(in_test), test.layers[in_test], train.layers[in_train]
        for field in _SAME_IN_BOTH:
            ours, theirs = _value(layer.transform_param, field), _value(twin.transform_param, field)
            counts = len(layer.transform_param.mean_value), len(twin.transform_param.mean_value)
            is_told = field == "mean_value" and min(counts) > 1 and counts[0] != counts[1]
            if ours != theirs and not is_told:
                yield Draft(
                    "phase-transforms-differ",
                    index,
                    f"transform_param.{field}",
                    f"{title(layer)} has {field} {ours} in TEST and {theirs} in TRAIN",
                    "the net is tested on other numbers than it was trained on: the accuracy says little",
                    f"give both phases the same {field}",
                )
        source = layer.data_param.source
        if layer.type == "Data" and source and same_path(source) == same_path(twin.data_param.source):
            yield Draft(
                "test-on-train",
                index,
                "data_param.source",
                f"{title(layer)} reads '{source}' in TEST, as in TRAIN",
                "the accuracy is of images that the net was trained on",
                "name the LMDB that was held out",
            )


def _value(param: pb.TransformationParameter, field: str) -> str:
    value = getattr(param, field)
    if field == "mean_value":
        return ", ".join(map(number, value)) or "none"
    if isinstance(value, bool):
        return str(value).lower()
    return (f"'{value}'" if value else "none") if isinstance(value, str) else number(value)


def _weights(train: PhaseNet, test: PhaseNet) -> Iterator[Draft]:
    shapes = {layer.name: train.learned(i) for i, layer in enumerate(train.layers)}
    for i, layer in enumerate(test.layers):
        ours, theirs = test.learned(i), shapes.get(layer.name)
        if not ours or not theirs:
            continue
        for one, other in zip(ours, theirs, strict=False):
            if _differ(one, other):
                yield Draft(
                    "phase-weights-differ",
                    test.where(i),
                    "name",
                    f"{title(layer)} has weights {show_shape(one)} in TEST and {show_shape(other)} in TRAIN",
                    "Caffe stops before it trains: Cannot share param 0 weights from layer "
                    f"'{layer.name}'; shape mismatch",
                    "give both phases inputs of one size (crop_size), or pool globally before the layer",
                )
                break


def _differ(one: Shape, other: Shape) -> bool:
    if len(one) != len(other):
        return True
    return any(a != b for a, b in zip(one, other, strict=True) if a is not None and b is not None)
