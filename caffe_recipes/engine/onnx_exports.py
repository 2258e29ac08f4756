"""Export a model as ONNX, after onnxruntime has given the numbers of the engine with it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from onnx import ModelProto

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.models import Model
from caffe_recipes.caffe.weights import blob_values, load_mean, serialize
from caffe_recipes.engine.module import CaffeModule
from caffe_recipes.engine.onnx_graph import build_onnx, free_shapes
from caffe_recipes.engine.opened_model import open_module
from caffe_recipes.engine.operators.operator import TensorShape
from caffe_recipes.engine.predictor import ImageValues, Predictor
from caffe_recipes.engine.state_files import describe_export, write_export
from caffe_recipes.errors import CaffeRecipesError, CheckFailed, InputError
from caffe_recipes.files.atomic_writes import check_output

TOLERANCE = 1e-4  # of the largest output
_LARGEST_BYTES = 2**31 - 1  # of a protobuf message


def export_onnx(model: Model, images: Sequence[Path], out: Path) -> str:
    """Write an ONNX file, and return a line on how exactly onnxruntime agrees with the engine.

    Both get random inputs, in batches of two sizes if the net takes any, and each image, transformed.
    Raises InputError for a net that cannot be exported, and CheckFailed, with nothing written, if any output
    differs by more than TOLERANCE of the largest one.
    """
    check_output(out, [model.net, model.weights, *images], "--out")
    module = open_module(model)
    made = build_onnx(module, describe_export(model, module))
    if made.ByteSize() > _LARGEST_BYTES:
        raise InputError(model.net, "is too large for one ONNX file (2 GiB)", "export it as safetensors")
    data = serialize(made)
    is_free = free_shapes(module)[0][:1] == (-1,)
    batches = [_random_inputs(module, model.transform, more) for more in ((0, 1) if is_free else (0,))]
    if images:
        predictor = Predictor(model)
        batches += [[predictor.prepare(image)[None]] for image in images]
    worst = compare_onnx(module, made, module.output_indexes, batches)
    below = _below_outputs(module)
    indexes = [*module.output_indexes, *below]
    worst = max(worst, compare_onnx(module, build_onnx(module, {}, below), indexes, batches))
    also = f" and {len(images)} given" if images else ""
    kind = "a batch of any size" if is_free else f"batches of {module.input_shapes[0][0]}"
    write_export(out, data)
    return f"{kind}; onnxruntime agrees within {worst:.1g} of the largest value, on random images{also}"


def compare_onnx(
    module: CaffeModule, model: ModelProto, indexes: Sequence[int], batches: Sequence[Sequence[ImageValues]]
) -> float:
    """Return by how much onnxruntime differs from the engine, relative to the largest value of a blob.

    `indexes` are those of the model's outputs. Raises CheckFailed if it differs by more than TOLERANCE, or
    cannot run the net.
    """
    import onnxruntime

    worst = 0.0
    path, names = module.net.path, [one.name for one in model.graph.output]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # the error itself says what its log would
    try:
        data = serialize(model)
        session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        for inputs in batches:
            made = session.run(names, dict(zip(module.input_names, inputs, strict=True)))
            with torch.no_grad():
                wanted = module.compute([torch.from_numpy(each) for each in inputs], indexes)
            for name, index, values in zip(names, indexes, made, strict=True):
                worst = max(worst, _difference(values, wanted[index].numpy(), f"{path}: output '{name}'"))
    except (CaffeRecipesError, MemoryError):
        raise
    except Exception as error:  # its exceptions have no common class
        reason = " ".join(str(error).split())
        raise CheckFailed(path, f"onnxruntime cannot run the net: {reason}", "report it") from None
    return worst


def _below_outputs(module: CaffeModule) -> list[int]:
    """Return what the outputs are computed from: a softmax of large scores hides how they differ."""
    nodes, ends = module.net.nodes, set(module.output_indexes)
    given = {index for node in nodes if node.source is not None for index in node.tops}
    below = {index for node in nodes if not ends.isdisjoint(node.tops) for index in node.bottoms}
    return sorted(below - given - ends)


def _difference(values: ImageValues, wanted: ImageValues, where: str) -> float:
    largest = float(np.abs(wanted).max(initial=0.0))
    if not np.isfinite(largest):
        raise CheckFailed(where, "has values that are not finite", "check the weights")
    found = float(np.abs(values - wanted).max(initial=0.0)) / (largest or 1.0)
    if not found <= TOLERANCE:
        what = f"onnxruntime differs by {found:.2g} of the largest value ({largest:.3g})"
        raise CheckFailed(where, what, "no file was written; report it with the net")
    return found


def _random_inputs(
    module: CaffeModule, transform: pb.TransformationParameter, more: int
) -> list[ImageValues]:
    """Return inputs with `more` images than the net was written for: pixels, words, or fractions of 1."""
    random, words = np.random.default_rng(more), module.word_counts
    return [
        _random_input(random, (shape[0] + more, *shape[1:]) if more else shape, words.get(index), transform)
        for index, shape in zip(module.input_indexes, module.input_shapes, strict=True)
    ]


def _random_input(
    random: np.random.Generator,
    shape: TensorShape,
    words: int | None,
    transform: pb.TransformationParameter,
) -> ImageValues:
    if words is not None:
        return random.integers(words, size=shape).astype(np.float32)
    if len(shape) != 4:
        return random.random(shape, np.float32)
    pixels = random.uniform(0, 255, shape).astype(np.float32)
    if len(transform.mean_value) in (1, shape[1]):
        pixels -= np.array(transform.mean_value, np.float32).reshape(-1, 1, 1)
    elif transform.HasField("mean_file"):
        pixels -= np.mean(blob_values(load_mean(transform.mean_file)), dtype=np.float32)
    return pixels * np.float32(transform.scale)
