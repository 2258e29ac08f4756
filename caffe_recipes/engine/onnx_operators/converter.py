"""What a converter is: it adds the ONNX nodes of a layer type to a graph.

Shapes come from `caffe.shapes`; a dimension that grows with the batch is -1, at most once in a shape, and
always the first one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

from caffe_recipes.caffe import pb
from caffe_recipes.engine.operators.operator import TensorShape, TensorShapes


class NotExportedError(Exception):
    """A setting of a layer has no counterpart in ONNX; the text says which, after the layers that have it."""


class OnnxGraph:
    """The nodes and constants of an ONNX graph, whose values have unique names."""

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.constants: dict[str, TensorProto] = {}
        self._taken: set[str] = set()

    def reserve(self, name: str) -> str:
        """Return a name that no value has yet: this one, or with a number."""
        unique, number = name, 1
        while unique in self._taken:
            unique, number = f"{name}_{number}", number + 1
        self._taken.add(unique)
        return unique


@dataclass(frozen=True)
class Site:
    """A layer in the graph: the names of its bottoms in `xs`, and its blobs by their names."""

    graph: OnnxGraph
    layer: pb.LayerParameter
    shapes: TensorShapes
    xs: Sequence[str]
    blobs: dict[str, NDArray[np.float32]]

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:  # noqa: ANN401
        """Add a node with one output, and return the name of that."""
        return self.add_several(operator, 1, *inputs, **attributes)[0]

    def add_several(self, operator: str, outputs: int, *inputs: str, **attributes: Any) -> list[str]:  # noqa: ANN401
        """Add a node, and return the names of its outputs."""
        name = self.layer.name or self.layer.type
        names = [self.graph.reserve(f"{name}:{operator}") for _ in range(outputs)]
        self.graph.nodes.append(helper.make_node(operator, list(inputs), names, names[0], **attributes))
        return names

    def floats(self, *values: float) -> str:
        """Return the name of a constant: one number, or a vector of several."""
        return self.constant(np.array(values[0] if len(values) == 1 else values, np.float32))

    def integers(self, *values: int) -> str:
        """Return the name of a constant vector."""
        return self.constant(np.array(values, np.int64))

    def constant(self, values: NDArray[np.float32] | NDArray[np.int64], name: str = "constant") -> str:
        """Return the name of a constant array."""
        unique = self.graph.reserve(f"{self.layer.name}.{name}")
        self.graph.constants[unique] = numpy_helper.from_array(np.ascontiguousarray(values), unique)
        return unique

    def blob(self, name: str, shape: TensorShape | None = None) -> str:
        """Return the name of a learned blob, which is that of the state dict; `shape` replaces its own."""
        values = self.blobs[name]
        return self.constant(values if shape is None else values.reshape(shape), name)

    def reshape(self, x: str, shape: Sequence[int]) -> str:
        """Return a value in another shape."""
        return self.add("Reshape", x, self.integers(*shape))


Converter = Callable[[Site], list[str]]
