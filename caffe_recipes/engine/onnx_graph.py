"""Build the ONNX graph of a deploy net, in which a batch may have any size if the net allows it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, ValueInfoProto, helper

from caffe_recipes.caffe.layer_types import type_of
from caffe_recipes.engine.module import CaffeModule
from caffe_recipes.engine.nodes import LayerNode
from caffe_recipes.engine.onnx_operators import CONVERTERS
from caffe_recipes.engine.onnx_operators.converter import NotExportedError, OnnxGraph, Site
from caffe_recipes.engine.operators.operator import TensorShape, TensorShapes
from caffe_recipes.errors import DataError, InputError

OPSET = 18
_IR_VERSION = 8  # of the ONNX release with this opset, so that programs of its time read the file
_FREE = -1  # a dimension that grows with the batch


def build_onnx(module: CaffeModule, metadata: Mapping[str, str], also: Sequence[int] = ()) -> ModelProto:
    """Return the ONNX model of a net, whose outputs are also the blobs with the indexes `also`.

    Raises InputError that names all layers without a counterpart.
    """
    net = module.net
    shapes = free_shapes(module)
    state = {name: values.numpy() for name, values in module.state_dict().items()}
    graph, names, failures = OnnxGraph(), dict[int, str](), dict[str, list[str]]()
    for blob in {top for node in net.nodes for top in node.param.top}:
        graph.reserve(blob)
    for node in net.nodes:
        names.update(zip(node.tops, node.param.top, strict=False))
        if node.source is not None:
            continue
        where = f"layer '{node.param.name}' ({node.param.type})"
        if node.param.type not in CONVERTERS:
            failures.setdefault("", []).append(where)
            continue
        bottoms, tops = (tuple(shapes[index] for index in of) for of in (node.bottoms, node.tops))
        site = Site(
            graph,
            node.param,
            TensorShapes(bottoms, tops, node.learned),
            [names[index] for index in node.bottoms],
            _blobs(node, state),
        )
        try:
            names.update(zip(node.tops, CONVERTERS[node.param.type](site), strict=True))
        except NotExportedError as error:
            failures.setdefault(f": {error}", []).append(where)
    if failures:
        layers = "; ".join(", ".join(wheres) + why for why, wheres in failures.items())
        what = f"cannot be exported to ONNX: {layers}"
        raise InputError(net.path, what, "use cr.torch_module; docs/models.md says what is not exported")
    outputs = _name_blobs(graph, module, names)
    model = _assemble(graph, module, shapes, outputs)
    helper.set_model_props(model, dict(metadata))
    model.graph.output.extend(
        helper.make_tensor_value_info(names[index], TensorProto.FLOAT, None) for index in also
    )
    return model


def _blobs(node: LayerNode, state: Mapping[str, NDArray[np.float32]]) -> dict[str, NDArray[np.float32]]:
    """Return the blobs of a layer by name, in the shapes that it uses."""
    names = type_of(node.param).blob_names(node.param)
    return {
        name: state[f"{node.param.name}.{name}"].reshape(shape)
        for name, shape in zip(names, node.learned, strict=False)
        if name != "factor"
    }


def free_shapes(module: CaffeModule) -> Sequence[TensorShape]:
    """Return the shapes of all blobs, with -1 as the batch if the net takes any number of images.

    It does if, with one image more, each blob only gets a first dimension that is larger by one, or stays.
    """
    given = module.input_shapes
    first = _all_shapes(module, given)
    batch = given[0][0] if given[0] else 0
    if not batch or any(not shape or shape[0] != batch for shape in given):
        return first
    try:
        grown = _all_shapes(module, [(batch + 1, *shape[1:]) for shape in given])
    except DataError:
        return first
    finally:
        _all_shapes(module, given)
    pairs = list(zip(first, grown, strict=True))
    if any(a != b and (a[:1], b[:1], a[1:]) != ((batch,), (batch + 1,), b[1:]) for a, b in pairs):
        return first
    return [a if a == b else (_FREE, *a[1:]) for a, b in pairs]


def _all_shapes(module: CaffeModule, inputs: Sequence[TensorShape]) -> list[TensorShape]:
    module.resize(inputs)
    net = module.net
    count = 1 + max(index for node in net.nodes for index in node.tops)
    return [net.shape(index) for index in range(count)]


def _name_blobs(graph: OnnxGraph, module: CaffeModule, names: dict[int, str]) -> list[str]:
    """Give the last value of each blob the name of the blob, and return the names of the outputs.

    An output is a value of its own. One that a layer computes in place of an input gets a new name.
    """
    nodes = module.net.nodes
    last = {name: index for node in nodes for name, index in _named_tops(node)}
    made = {name for node in graph.nodes for name in node.output}
    renamed: dict[str, str] = {}
    for node in nodes:
        for blob, index in _named_tops(node):
            value = names[index]
            is_free = blob not in module.input_names and value not in renamed
            if last[blob] == index and value in made and is_free:
                renamed[value] = blob
    for each in graph.nodes:
        for values in (each.input, each.output):
            values[:] = [renamed.get(value, value) for value in values]
    names.update({index: renamed.get(value, value) for index, value in names.items()})
    outputs = []
    for blob, index in zip(module.output_names, module.output_indexes, strict=True):
        outputs.append(graph.reserve(blob) if blob in module.input_names else blob)
        if names[index] != outputs[-1]:
            graph.nodes.append(helper.make_node("Identity", [names[index]], [outputs[-1]], outputs[-1]))
    return outputs


def _named_tops(node: LayerNode) -> Iterator[tuple[str, int]]:
    return zip(node.param.top, node.tops, strict=False)


def _assemble(
    graph: OnnxGraph, module: CaffeModule, shapes: Sequence[TensorShape], outputs: Sequence[str]
) -> ModelProto:
    def describe(names: Sequence[str], indexes: Sequence[int]) -> list[ValueInfoProto]:
        return [
            helper.make_tensor_value_info(
                name, TensorProto.FLOAT, ["batch" if dim == _FREE else dim for dim in shapes[index]]
            )
            for name, index in zip(names, indexes, strict=True)
        ]

    made = helper.make_graph(
        graph.nodes,
        module.net.name or "net",
        describe(module.input_names, module.input_indexes),
        describe(outputs, module.output_indexes),
        list(graph.constants.values()),
    )
    opset = helper.make_opsetid("", OPSET)
    return helper.make_model(
        made, producer_name="caffe-recipes", opset_imports=[opset], ir_version=_IR_VERSION
    )
