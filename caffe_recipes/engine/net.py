"""Set up a net in one phase with its learned blobs, and run its forward pass.

As in Caffe, layers are filtered by the net's state, and Split layers are inserted where a blob is used more
than once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, MutableSequence, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, field

import torch
from google.protobuf import text_format
from torch import Generator, Tensor
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.dialects import unsupported_names
from caffe_recipes.caffe.dialects.schema import foreign_values
from caffe_recipes.caffe.layer_types import type_of
from caffe_recipes.caffe.layer_types.normalization import unlearned_blobs
from caffe_recipes.caffe.refusals import find_refusals
from caffe_recipes.caffe.shapes import apply_stats_batch_size, infer_shapes, show_shape
from caffe_recipes.engine.calls import Call, Segment, divide_calls, list_calls, needs_float32
from caffe_recipes.engine.fillers import fill
from caffe_recipes.engine.glog import format_number
from caffe_recipes.engine.gradient_paths import check_backward, find_overwritten
from caffe_recipes.engine.memory import check_blobs, estimate_need, full_memory, is_full
from caffe_recipes.engine.nodes import LayerNode, label_error
from caffe_recipes.engine.operators import OPERATORS, STATEFUL
from caffe_recipes.engine.operators.data import (
    OUTPUTS,
    SOURCES,
    DataContext,
    declare_shapes,
    file_shapes,
    first_image_shape,
)
from caffe_recipes.engine.operators.loss import OverwrittenLoss
from caffe_recipes.engine.operators.normalization import BATCH_NORMS
from caffe_recipes.engine.operators.operator import (
    Forward,
    LabelError,
    LayerError,
    TensorShape,
    TensorShapes,
    format_shape,
    layer_error,
    require_known_shapes,
)
from caffe_recipes.engine.splits import filter_net, insert_splits, loss_weight
from caffe_recipes.engine.supported import check_layers
from caffe_recipes.errors import (
    CaffeRecipesError,
    DataError,
    InputError,
    PrototxtError,
    RunFailed,
    escaped_error,
)

_FREED = torch.empty(0)  # in place of a blob that no longer exists


@dataclass
class Param:
    """A learned blob and the layer that owns it. Other layers may share it by its param name.

    `explicit` names the multipliers (lr_mult, decay_mult) that a layer sets; a layer that shares the blob may
    set the others.
    """

    tensor: Tensor
    layer: str
    lr_mult: float
    decay_mult: float
    has_gradient: bool
    explicit: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Output:
    """A blob that no layer reads, and whose value is logged."""

    name: str
    index: int
    loss_weight: float


class RunnableNet:
    """A net with its layers set up and filled, for the phase, level and stages of `param.state`.

    The learned blobs of `shared` are used by layer name, as a TEST net uses those of its TRAIN net.
    Raises InputError, with file, layer and type, if the engine cannot run the net.
    """

    keeps_blobs = False  # whether `value` gives all blobs after a pass, not only the outputs

    def __init__(
        self,
        param: pb.NetParameter,
        path: str,
        context: DataContext,
        generator: Generator,
        shared: RunnableNet | None = None,
    ) -> None:
        self.path, self.name = path, param.name
        self.nodes: list[LayerNode] = []
        self.params: list[Param] = []
        self.outputs: list[Output] = []
        self._log, self._context, self._generator, self._shared = context.log, context, generator, shared
        self._named: dict[str, Param] = {}
        self._blob_index: dict[str, int] = {}
        self._shapes: list[TensorShape] = []
        self._values: list[Tensor] = []
        self._batch: list[list[Tensor]] = []  # the tops of the data layers in the last pass
        self.calls: list[Call] = []  # of a forward pass, in order
        self._segments: list[Segment] = []  # the calls, if some are computed again for the backward pass
        self.is_synchronised = context.statistics.sum is not None  # the ranks wait for each other in a pass
        self._overwritten: dict[int, OverwrittenLoss] = {}
        self._forwards: dict[tuple[TensorShape, ...], list[Forward]] = {}
        self._elements = 0
        self.pass_name = ""  # e.g. 'iteration 7', for error messages
        self.read_s = 0.0  # time spent waiting for the data layers
        try:
            self._build(param)
        except (LayerError, DataError) as error:
            raise error.reworded(where=f"{path}: {error.where}") from None

    def _build(self, param: pb.NetParameter) -> None:
        state = param.state
        filtered = filter_net(param, lambda text: self._log.info("net.cpp:1286", text))
        check_layers(filtered, self._context.ranks)
        for layer in filtered.layer:
            if layer.type in unsupported_names.TYPES:
                fork = unsupported_names.TYPES[layer.type].fork
                self._log.info("caffe-torch", f"layer '{layer.name}' ({layer.type}) is of {fork}")
        level, stages = state.level, list(state.stage)
        # Before splits are inserted, and with all layers: errors have the user's names of layers and blobs.
        infer_shapes(param, state.phase, level=level, stages=stages, path=self.path)
        for name in dict.fromkeys(f"{owner}.{name}" for _, owner, name, _ in foreign_values(filtered)):
            self._log.info("caffe-torch", f"field {name} is of another Caffe; numbers are float32 here")
        split = insert_splits(filtered)
        for layer in split.layer:
            layer.CopyFrom(apply_stats_batch_size(split, layer))
        self._log.info("net.cpp:206", "Initializing net from parameters: ")
        self._log.info("net.cpp:207", "\n" + text_format.MessageToString(split).rstrip("\n"))
        for layer in split.layer:
            if not layer.HasField("phase"):
                layer.phase = state.phase
            if next(find_refusals(layer), None):  # insert_splits may have cleared loss weights
                what = "has a loss that another layer also reads: Caffe clears its loss_weight and stops"
                raise layer_error(layer, what, "leave out the layers that read it, or the layer's other top")
        self._split = split
        sized = deepcopy(split)
        for layer in sized.layer:
            declare_shapes(layer, file_shapes(layer))
        found = infer_shapes(
            sized, state.phase, level=level, stages=stages, images=first_image_shape, path=self.path
        )
        for layer, shapes in zip(split.layer, found.layers, strict=True):
            try:
                self._add_layer(layer, require_known_shapes(shapes))
            except LayerError:
                raise
            except InputError as error:
                raise layer_error(layer, error.without_hint, error.hint) from None
        self._find_outputs()
        self._overwritten = find_overwritten(self.nodes)
        if state.phase == pb.TRAIN:
            check_backward(self.nodes)
        self._list_calls()
        self._forwards[tuple(self._shapes)] = [node.forward for node in self.nodes]
        self._log.info("net.cpp:491", "Network initialization done.")

    def _find_outputs(self) -> None:
        """List the blobs that no layer reads as outputs, sorted by the bytes of their names."""
        used = {index for node in self.nodes for index in node.bottoms}
        weights = {index: weight for node in self.nodes for index, weight in node.weighted}
        for name in sorted(self._blob_index, key=str.encode):
            index = self._blob_index[name]
            if index not in used:
                self._log.info("net.cpp:451", f"This network produces output {name}")
                self.outputs.append(Output(name, index, weights.get(index, 0.0)))

    def _add_layer(self, layer: pb.LayerParameter, shapes: TensorShapes) -> None:
        check_blobs(layer, shapes)
        self._log.info("net.cpp:261", f"Creating Layer {layer.name}")
        for blob in layer.bottom:
            self._log.info("net.cpp:1498", f"{layer.name} <- {blob}")
        bottoms = [self._blob_index[blob] for blob in layer.bottom]
        source = output = None
        if layer.type in SOURCES:
            source = SOURCES[layer.type](layer, shapes, self._context)
            forward = source.forward
        elif layer.type in OUTPUTS:
            output = OUTPUTS[layer.type](layer, shapes)
            forward = output.forward
        else:
            forward = self._set_up(layer, shapes)
        detached = [not down for down in layer.propagate_down]
        tops = self._add_tops(layer, shapes)
        node = LayerNode(layer, forward, bottoms, tops, detached, source=source, output=output)
        named = [other for other in self.nodes if other.param.name == layer.name]
        if any(shapes.learned or other.learned for other in named):
            what = "has the same name as another layer: Caffe cannot load snapshots of such a net"
            raise layer_error(layer, what, "rename one of the two")
        node.blobs, node.learned = self._make_blobs(layer, shapes), shapes.learned
        self._set_loss_weights(node)
        self.nodes.append(node)

    def _set_up(self, layer: pb.LayerParameter, shapes: TensorShapes) -> Forward:
        """Return the forward function of a layer."""
        try:
            if layer.type in BATCH_NORMS:
                return BATCH_NORMS[layer.type](layer, shapes, self._context.statistics)
            return OPERATORS[layer.type](layer, shapes)
        except CaffeRecipesError:
            raise
        except Exception as error:
            raise escaped_error(self._where(layer), error) from error

    def _where(self, layer: pb.LayerParameter) -> str:
        parts = (self.path, f"layer '{layer.name}' ({layer.type})", self.pass_name)
        return ": ".join(part for part in parts if part)

    def _add_tops(self, layer: pb.LayerParameter, shapes: TensorShapes) -> list[int]:
        """Return a new index for each top, even if it is computed in place."""
        for blob in layer.top:
            in_place = blob in layer.bottom
            mark = " (in-place)" if in_place else ""
            self._log.info("net.cpp:1459" if in_place else "net.cpp:1472", f"{layer.name} -> {blob}{mark}")
        self._log.info("net.cpp:330", f"Setting up {layer.name}")
        indices = []
        for blob, shape in zip(layer.top, shapes.tops, strict=True):
            indices.append(len(self._shapes))
            self._shapes.append(shape)
            self._blob_index[blob] = indices[-1]
        if not layer.top and type_of(layer).loss_weight == 1:  # the loss gets an unnamed top
            self._log.info("net.cpp:1472", f"{layer.name} -> (automatic)")
            indices.append(len(self._shapes))
            self._shapes.append(())
        return indices

    def _set_loss_weights(self, node: LayerNode) -> None:
        weights = [loss_weight(node.param, top) for top in range(len(node.tops))]
        for index, weight in zip(node.tops, weights, strict=True):
            shape = self._shapes[index]
            self._log.info("net.cpp:337", f"Top shape: {format_shape(shape)}")
            if weight:
                self._log.info("net.cpp:340", f"    with loss weight {format_number(weight)}")
                node.weighted.append((index, weight))
            self._elements += math.prod(shape)
        self._log.info("net.cpp:345", f"Memory required for data: {self._elements * 4}")
        if node.weighted:
            node.param.loss_weight[:] = weights

    def _make_blobs(self, layer: pb.LayerParameter, shapes: TensorShapes) -> list[Tensor]:
        """Return a layer's learned blobs: shared by param name, from the shared net, or new and filled."""
        if len(layer.param) > len(shapes.learned):
            what = f"has {len(layer.param)} params for {len(shapes.learned)} learned blobs"
            raise layer_error(layer, what, "remove the others")
        kept = self._shared.blobs().get(layer.name, []) if self._shared else []
        known = self._shared.learned_shapes().get(layer.name, ()) if self._shared else ()
        if kept and known != shapes.learned:
            mine, other = (", ".join(map(show_shape, of)) for of in (shapes.learned, known))
            what = f"has blobs {mine} here, but {other} in the TRAIN net"
            raise layer_error(layer, what, "give both the same settings and inputs")
        tensors = []
        fillers = type_of(layer).starting_fillers(layer)
        for index, shape in enumerate(shapes.learned):
            spec = layer.param[index] if index < len(layer.param) else pb.ParamSpec()
            if spec.name in self._named:
                tensors.append(self._share(layer, spec, shape))
                continue
            tensor = kept[index] if kept else torch.empty(shape)
            if not kept:
                fill(tensor, fillers[index], self._generator)  # by the CPU: the same values for any device
                tensor = tensor.to(self._context.device)
            explicit = {name for name in ("lr_mult", "decay_mult") if spec.HasField(name)}
            learns = index not in unlearned_blobs(layer)
            owned = Param(tensor, layer.name, spec.lr_mult, spec.decay_mult, learns, explicit)
            self.params.append(owned)
            if spec.name:
                self._named[spec.name] = owned
            tensors.append(tensor)
        return tensors

    def _share(self, layer: pb.LayerParameter, spec: pb.ParamSpec, shape: TensorShape) -> Tensor:
        owner = self._named[spec.name]
        mine, theirs = shape, tuple(owner.tensor.shape)
        is_permissive = spec.share_mode == pb.ParamSpec.PERMISSIVE
        if math.prod(mine) != math.prod(theirs) if is_permissive else mine != theirs:
            first = show_shape(tuple(owner.tensor.shape))
            what = f"shares param '{spec.name}' of layer '{owner.layer}' ({first})"
            raise layer_error(layer, f"{what} as {show_shape(shape)}", "give both the same shape")
        for name in ("lr_mult", "decay_mult"):
            if not spec.HasField(name):
                continue
            if name in owner.explicit and getattr(spec, name) != getattr(owner, name):
                raise layer_error(
                    layer, f"shares param '{spec.name}' with a different {name}", "give both the same"
                )
            setattr(owner, name, getattr(spec, name))
            owner.explicit.add(name)
        return owner.tensor

    def learned_shapes(self) -> dict[str, tuple[TensorShape, ...]]:
        """Return the shapes of the learned blobs by layer, as each layer uses them."""
        return {node.param.name: node.learned for node in self.nodes if node.learned}

    def blobs(self) -> dict[str, list[Tensor]]:
        """Return the learned blobs by layer."""
        return {node.param.name: node.blobs for node in self.nodes if node.blobs}

    def replace_blobs(self, replacement: Callable[[Tensor], Tensor]) -> None:
        """Replace each learned blob with `replacement(blob)`, so that blobs can be views of one buffer."""
        for param in self.params:
            param.tensor = replacement(param.tensor)
        for node in self.nodes:
            node.blobs = [replacement(blob) for blob in node.blobs]
        self._list_calls()

    def _list_calls(self) -> None:
        self._values = [_FREED] * len(self._shapes)
        self.calls = list_calls(self.nodes)
        self._segments = divide_calls(self.calls) if self._context.recomputes else []

    def forward(self) -> Tensor:
        """Run all layers on the next batch, and return the loss: the weighted sum of the losses.

        Raises DataError, with the record, if a label is not one of the classes.
        """
        read, losses = self._read(), list[Tensor]()
        if self._split.state.phase == pb.TRAIN:
            self._batch = [*read]
        keeps_all = self.keeps_blobs or not torch.is_grad_enabled()
        with self._in_bf16():
            for segment in self._segments or [Segment(self.calls)]:
                if segment.is_recomputed and not keeps_all:
                    self._run_recomputed(segment)
                else:
                    for call in segment.calls:
                        losses += self._run_call(call, self._values, read)
        return sum(losses[1:], losses[0]) if losses else torch.zeros(())

    def _in_bf16(self) -> torch.autocast:
        kind = torch.device(self._context.device).type
        return torch.autocast(kind, torch.bfloat16, enabled=self._context.uses_bf16)

    @torch.no_grad()
    def find_not_finite(self) -> LayerNode | None:
        """Return the first layer whose output is not finite, found by another pass with the last batch."""
        read = [*self._batch]
        try:
            with self._in_bf16():
                for call in self.calls:
                    self._run_call(call, self._values, read)
                    if not all(self._values[index].isfinite().all() for index in call.tops):
                        return call.node
        except Exception:  # such as full memory; the caller reports the failure of the first pass
            return None
        return None

    def _run_recomputed(self, segment: Segment) -> None:
        """Run a segment whose blobs are computed again for the backward pass."""
        values = self._values

        def compute(*inputs: Tensor) -> list[Tensor]:
            own = dict(zip(segment.inputs, inputs, strict=True))
            for call in segment.calls:
                self._run_call(call, own, [])
            return [own[index] for index in segment.outputs]

        # All of a segment is computed again: it would end early by an exception in the midst of a layer.
        with set_checkpoint_early_stop(False):
            made = checkpoint(
                compute,
                *(values[index] for index in segment.inputs),
                use_reentrant=False,
                context_fn=lambda: (nullcontext(), self._context.statistics.recomputing()),
            )
        for call in segment.calls:
            for index in call.spent:
                values[index] = _FREED
        for index, value in zip(segment.outputs, made, strict=True):
            values[index] = value

    def _run_call(
        self, call: Call, values: MutableSequence[Tensor] | dict[int, Tensor], read: list[list[Tensor]]
    ) -> list[Tensor]:
        """Run one call on blobs, and return its weighted losses; `read` has the tops of data layers."""
        node, blobs = call.node, call.blobs
        xs = [values[index] for index in node.bottoms]
        if node.detached:
            xs = [x.detach() if detached else x for x, detached in zip(xs, node.detached, strict=True)]
        if self._context.uses_bf16 and needs_float32(call):
            xs = [x.float() for x in xs]
        if call.shapes:
            blobs = [blob.reshape(shape) for blob, shape in zip(blobs, call.shapes, strict=True)]
        if call.overwriting and not self.keeps_blobs:
            place = call.overwritten
            with self._naming(node):
                tops = [call.overwriting([xs[place], *xs[:place], *xs[place + 1 :]])]
        else:
            tops = read.pop(0) if node.source is not None else self.run_layer(node, xs, blobs)
        self.follow(node, tops)
        for index, top in zip(call.tops, tops, strict=True):
            values[index] = top
        losses = [self._weighted(index, weight, values[index]) for index, weight in call.weighted]
        if not self.keeps_blobs:  # then only what the backward pass needs stays in memory
            for index in call.spent:
                values[index] = _FREED
        return losses

    def _weighted(self, index: int, weight: float, value: Tensor) -> Tensor:
        """Return the contribution of a loss to the whole loss."""
        if index in self._overwritten:
            return self._overwritten[index].contribution(value)
        part = value.sum() if value.dim() else value
        return part if weight == 1 else part * weight

    def run_layer(self, node: LayerNode, xs: list[Tensor], blobs: list[Tensor]) -> list[Tensor]:
        """Run one layer. Errors name the layer."""
        with self._naming(node):
            return node.forward(xs, blobs)

    @contextmanager
    def _naming(self, node: LayerNode) -> Iterator[None]:
        """Name the layer in errors."""
        try:
            yield
        except LabelError as error:
            raise label_error(self.nodes, node, error, self.path) from None
        except CaffeRecipesError:
            raise
        except Exception as error:
            raise self.explain(self._where(node.param), error) from error

    def explain(self, where: str, error: Exception) -> RunFailed:
        """Return an error of PyTorch as one line."""
        if is_full(error, self._context.device):
            weights = sum(param.tensor.numel() for param in self.params)
            need = estimate_need(self.calls, self._shapes, weights)
            keeps_blobs = torch.is_grad_enabled() and not self._context.recomputes
            return full_memory(where, need, self._context.device, keeps_blobs=keeps_blobs)
        return escaped_error(where, error)

    def _read(self) -> list[list[Tensor]]:
        """Run the data layers, and return the tops of each in net order.

        Sets up the other layers again if the size of a batch has changed.
        """
        sources = [node for node in self.nodes if node.source is not None]
        start_s = time.perf_counter()
        device = self._context.device
        made = [self.run_layer(node, [], node.blobs) for node in sources]
        self.read_s += time.perf_counter() - start_s
        read = [[top.to(device, non_blocking=True) for top in tops] for tops in made]
        self.fit((node, [tuple(top.shape) for top in tops]) for node, tops in zip(sources, read, strict=True))
        return read

    def follow(self, node: LayerNode, tops: Sequence[Tensor]) -> None:
        """Set up the layers after one whose tops have as many images as the values of its bottoms say."""
        if type_of(node.param).is_sized_by_values:
            self.fit([(node, [tuple(top.shape) for top in tops])])

    def fit(self, tops: Iterable[tuple[LayerNode, Sequence[TensorShape]]]) -> None:
        """Set up the layers again if the tops of some, such as data layers, have other shapes than before.

        Raises DataError if the net does not take them.
        """
        changed = None
        for node, shapes in tops:
            for index, shape in zip(node.tops, shapes, strict=True):
                if self._shapes[index] != shape:
                    self._shapes[index], changed = shape, node
        if changed is not None:
            self._reshape(changed)

    def _reshape(self, changed: LayerNode) -> None:
        """Set up the layers for a new batch size, as Caffe does in each pass."""
        net, is_before = type(self._split)(), True
        for node in self.nodes:
            layer = net.layer.add()
            layer.CopyFrom(node.param)
            layer.ClearField("include")
            layer.ClearField("exclude")
            if node.source or (type_of(node.param).is_sized_by_values and is_before):
                declare_shapes(layer, [self._shapes[index] for index in node.tops])
            is_before &= node is not changed
        try:
            found = [require_known_shapes(shapes) for shapes in infer_shapes(net, net.state.phase).layers]
        except PrototxtError as error:
            raise self._size_error(changed, error.what) from None
        for node, shapes in zip(self.nodes, found, strict=True):
            if shapes.learned != node.learned:
                raise self._size_error(changed, f"layer '{node.param.name}' was set up for a different size")
            for index, shape in zip(node.tops, shapes.tops, strict=False):  # a loss may have an unnamed top
                self._shapes[index] = shape
        key = tuple(self._shapes)
        if key not in self._forwards:
            self._forwards[key] = [
                node.forward if _keeps_state(node) else self._set_up(node.param, shapes)
                for node, shapes in zip(self.nodes, found, strict=True)
            ]
        for node, forward in zip(self.nodes, self._forwards[key], strict=True):
            node.forward = forward

    def _size_error(self, changed: LayerNode, what: str) -> DataError:
        record = changed.source
        if type_of(changed.param).is_sized_by_values:
            kept = (
                f"after layer '{changed.param.name}' has selected {self._shapes[changed.tops[0]][0]} images"
            )
            return DataError(self.path, f"{what} {kept}", "filter all blobs that are used together")
        if record is None or not record.keys:
            return DataError(self.path, what, "give crop_size")
        return DataError(record.where, f"record '{record.keys[0]}': {what}", "give crop_size")

    def find_failing_layer(self) -> str:
        """Return where the backward pass fails: the layer, found by another pass with hooks."""
        reached = ""
        tensors: set[int] = set()

        def note(where: str) -> Callable[[Tensor], None]:
            def noted(_: Tensor) -> None:
                nonlocal reached
                reached = where

            return noted

        self.keeps_blobs = True
        try:
            loss = self.forward()
            for node in self.nodes:
                for index in node.tops:
                    value = self._values[index]
                    if value.requires_grad and id(value) not in tensors:
                        tensors.add(id(value))
                        value.register_hook(note(self._where(node.param)))
            loss.backward()
        except Exception:  # the same failure, or a new one
            return reached or f"{self.path}: {self.pass_name}"
        return reached or f"{self.path}: {self.pass_name}"

    def value(self, index: int) -> Tensor:
        """Return an output after a forward pass, or any blob if `keeps_blobs` was set before it."""
        return self._values[index].detach()

    def shape(self, index: int) -> TensorShape:
        """Return the shape of the blob with this index."""
        return self._shapes[index]

    def scores(self) -> list[tuple[Output, float]]:
        """Return each element of the output blobs after a forward pass."""
        return [
            (output, float(value))
            for output in self.outputs
            for value in self._values[output.index].detach().reshape(-1).tolist()
        ]

    def close(self) -> None:
        """Stop prefetching."""
        for node in self.nodes:
            if node.source is not None:
                node.source.close()


def _keeps_state(node: LayerNode) -> bool:
    """Return whether a layer keeps something from pass to pass, and so is set up once for all sizes."""
    return bool(node.source or node.output) or node.param.type in STATEFUL
