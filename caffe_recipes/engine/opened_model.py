"""A model with its weights as a module, after checks that the net is the one that the model describes."""

from __future__ import annotations

import math

from caffe_recipes.caffe.models import Model
from caffe_recipes.caffe.weights import load_weights
from caffe_recipes.engine.module import CaffeModule, build_module
from caffe_recipes.engine.operators.operator import TensorShape
from caffe_recipes.engine.settings import load_net
from caffe_recipes.errors import InputError
from caffe_recipes.wording import describe_count


def open_module(model: Model) -> CaffeModule:
    """Return the module of a model.

    Raises InputError if the description, the transform or the classes do not fit the net, and WeightsError
    for other weights than the described ones.
    """
    described = model.description
    weights = load_weights(model.weights, described.weights_sha256)
    module = build_module(load_net(str(model.net)), weights, str(model.net), str(model.weights))
    shapes = module.input_shapes
    if described.shape and described.shape != shapes[0][1:]:
        texts = [" x ".join(map(str, each)) for each in (described.shape, shapes[0][1:])]
        what = f"shape: is {texts[0]}, and the net beside it takes {texts[1]}"
        raise InputError(model.described_in, what, "copy both files again from their run")
    output = find_scores(module)
    if output is not None and len(shapes) == 1 and len(shapes[0]) == 4 and not module.word_counts:
        _check_images(model, shapes[0])
    if output is not None and _types_of_outputs(module)[output] == "Softmax":
        check_names(model, module, output)
    return module


def _check_images(model: Model, shape: TensorShape) -> None:
    means, channels, crop = len(model.transform.mean_value), shape[1], model.transform.crop_size
    if means not in (0, 1, channels):
        what = f"has {describe_count(means, 'value')}, and the net has {describe_count(channels, 'channel')}"
        where = "--mean" if model.is_resized else f"{model.described_in}: transform.mean_value"
        raise InputError(where, what, "give one for each channel, or one for all")
    if crop and shape[2:] != (crop, crop):
        what = f"takes images of {shape[2]} x {shape[3]}, but the transform crops them to {crop} x {crop}"
        raise InputError(model.net, what, "give the transform with which this net was trained")


def check_names(model: Model, module: CaffeModule, output: str) -> None:
    """Raise InputError for more names than scores of an output, or too few that are not of a run."""
    count = _shapes_of_outputs(module)[output][1]
    names = len(model.description.classes or ())
    is_short = model.is_resized and 0 < names < count  # a run may have seen only some classes
    if names > count or is_short:
        given = describe_count(names, "name is", "names are")
        what = f"{model.net} has {describe_count(count, 'class', 'classes')}, but {given} given"
        raise InputError(model.described_in, what, "give one name for each class")


def find_scores(module: CaffeModule) -> str | None:
    """Return the output with one score for each class: the first softmax, or else the only output."""
    shapes = _shapes_of_outputs(module)
    types = _types_of_outputs(module)
    best = [name for name in shapes if types[name] == "Softmax"] or list(shapes)
    shape = shapes[best[0]]
    return best[0] if len(best) == 1 and len(shape) >= 2 and math.prod(shape[2:]) == 1 else None


def _types_of_outputs(module: CaffeModule) -> dict[str, str]:
    return {top: node.param.type for node in module.net.nodes for top in node.param.top}


def _shapes_of_outputs(module: CaffeModule) -> dict[str, TensorShape]:
    return dict(zip(module.output_names, module.output_shapes, strict=True))
