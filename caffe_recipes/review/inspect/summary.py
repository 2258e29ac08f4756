"""Summarize a net in one phase, with the shapes and costs of each layer, as a table, JSON or CSV."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.dialects import layer_type_dialects, nearest_layer_type
from caffe_recipes.caffe.dialects.unsupported_names import TYPES, describe_fork
from caffe_recipes.caffe.layer_types import find_layer_type, type_of
from caffe_recipes.caffe.prototxt import MOST_BYTES, is_kind
from caffe_recipes.caffe.shapes import (
    LayerMisfit,
    apply_stats_batch_size,
    infer_shapes,
    select_layers,
    stats_images,
)
from caffe_recipes.errors import InputError, PrototxtError
from caffe_recipes.review.inspect.costs import count_layers, total
from caffe_recipes.review.inspect.nets import (
    image_reader,
    load_given_net,
    needs_image,
    with_batch,
    with_image,
)
from caffe_recipes.review.text_columns import align_columns, csv_row, wrap_line
from caffe_recipes.units import describe_binary
from caffe_recipes.wording import describe_count, shorten_middle

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from caffe_recipes.caffe.layer_types.dimensions import Dim, Image, Shape
    from caffe_recipes.caffe.prototxt import Document
    from caffe_recipes.caffe.shapes import (
        NetShapes,
    )
    from caffe_recipes.review.inspect.costs import BlobCost, LayerCount, Totals
    from caffe_recipes.review.inspect.nets import (
        GivenNet,
    )


@dataclass(frozen=True)
class SummaryOptions:
    """Options that override values of the net's file; None keeps the file's value."""

    phase: int | None = None
    level: int | None = None
    stages: tuple[str, ...] = ()
    batch: int | None = None
    image: Image | None = None
    caffe_root: Path | None = None
    max_bytes: int = MOST_BYTES
    dialect: str | None = None


@dataclass(frozen=True)
class Summary:
    """The summary of a net in one phase; `batch` is the first dimension of the first input, None if unknown.

    `hint` says why shapes are unknown and which option to give, or is empty. `stats_batch_sizes` are the
    numbers of images that BatchNorms of this phase normalize together, if not the whole batch.
    """

    path: str
    net: str
    phase: str
    level: int
    stages: tuple[str, ...]
    batch: int | None
    layers: tuple[LayerCount, ...]
    totals: Totals
    hint: str = ""
    stats_batch_sizes: tuple[int, ...] = ()


@dataclass(frozen=True)
class LoadedNet:
    """A loaded net with the options applied, the phase to summarize, and its level and stages.

    `failures` collects descriptions of the LMDBs that could not be read. `document` is the net's file, before
    it was upgraded; None for the net of a recipe.
    """

    path: str
    message: pb.NetParameter
    phase: int
    level: int
    stages: tuple[str, ...]
    options: SummaryOptions = field(default_factory=SummaryOptions)
    failures: list[str] = field(default_factory=list, compare=False)
    document: Document[Message] | None = field(default=None, compare=False)

    def infer(self, phase: int) -> NetShapes:
        """Return the shapes in one phase. Raises PrototxtError if they do not fit or a layer has no type."""
        layers = select_layers(self.message, phase, self.level, self.stages)
        for layer in layers:
            _check_type(layer, self)
        images = image_reader(self.options.image, self.options.caffe_root, self.failures)
        try:
            return infer_shapes(
                self.message, phase, level=self.level, stages=self.stages, images=images, path=self.path
            )
        except LayerMisfit as error:
            raise error.reworded(where=self.where(layers[error.index])) from None

    def where(self, layer: pb.LayerParameter) -> str:
        """Return `file:line:column` of a layer; only the path if its line is not known."""
        old = self.document.message if self.document else None
        if self.document is None or old is None or not is_kind(old, pb.NetParameter):
            return self.path
        # An upgrade may add layers, but keeps the order of those with the same name.
        same = [each for each in self.message.layer if each.name == layer.name]
        number = next(index for index, each in enumerate(same) if each is layer)
        written = [(f"layer[{index}]", each.name) for index, each in enumerate(old.layer)]
        written += [(f"layers[{index}]", each.name) for index, each in enumerate(old.layers)]
        places = [place for place, name in written if name == layer.name]
        return self.document.where(f"{places[number]}.type") if number < len(places) else self.path

    def only_phase(self, layers: Sequence[pb.LayerParameter]) -> list[str]:
        """Return the only phase of each layer; an empty string if it is in both."""
        kept = {
            pb.Phase.Name(phase): {
                id(layer) for layer in select_layers(self.message, phase, self.level, self.stages)
            }
            for phase in (pb.TRAIN, pb.TEST)
        }
        holding = [[name for name, ids in kept.items() if id(layer) in ids] for layer in layers]
        return [names[0] if len(names) == 1 else "" for names in holding]


def read_net(given: str, options: SummaryOptions) -> LoadedNet:
    """Return the net of a prototxt, a solver or a recipe, with the given batch and image size.

    Raises PrototxtError, RecipeError, or InputError for an option that has no effect.
    """
    found = load_given_net(given, options.phase, options.caffe_root, options.max_bytes)
    net = found.message
    if not net.layer:
        raise InputError(found.path, "has no layers", "give a net, a solver or a recipe")
    is_idle = options.image is not None and not needs_image(net)
    if options.image is not None:
        net = with_image(net, options.image, options.batch or 1)
    if options.batch is not None and not is_idle:
        net = with_batch(net, options.batch)
    level = found.state.level if options.level is None else options.level
    stages = options.stages or tuple(found.state.stage)
    phase = _default_phase(found, net, level, stages) if options.phase is None else options.phase
    read = LoadedNet(found.path, net, phase, level, stages, options, document=found.document)
    if is_idle:
        read.infer(phase)  # errors such as a bottom that no layer produces come first
        raise InputError(found.path, *_needs_no_image(net))
    return read


def _needs_no_image(net: pb.NetParameter) -> tuple[str, str]:
    """Return why --input has no effect on a net, and what to do instead."""
    for layer in net.layer:
        if not layer.bottom and layer.top and not type_of(layer).source:
            what = (
                f"layer '{layer.name}' ({layer.type}) produces blobs whose shapes are known only at run time"
            )
            return what, "--input is for data layers: replace the layer with an Input layer"
    return "already has the size of all its inputs", "remove --input"


def summarize(net: LoadedNet) -> Summary:
    """Return the summary of a net in its phase. Raises PrototxtError if shapes do not fit."""
    shapes = net.infer(net.phase)
    layers = count_layers(shapes, net.phase, net.only_phase([found.layer for found in shapes.layers]))
    if not layers:
        name = pb.Phase.Name(net.phase)
        raise InputError(net.path, f"has no layer in phase {name}", "give another --phase or --stage")
    totals = total(layers)
    return Summary(
        net.path,
        net.message.name,
        pb.Phase.Name(net.phase),
        net.level,
        net.stages,
        _batch(layers),
        layers,
        totals,
        _explain_unknown(layers, net.failures) if totals.unknown else "",
        _stats_batch_sizes(net, shapes),
    )


def _stats_batch_sizes(net: LoadedNet, shapes: NetShapes) -> tuple[int, ...]:
    norms = [found.layer for found in shapes.layers if found.layer.type == "BatchNorm"]
    found = {stats_images(apply_stats_batch_size(net.message, layer), net.phase) for layer in norms}
    return tuple(sorted(size for size in found if size))


def per_image(count: Dim, batch: int | None) -> int | None:
    """Return the count per image of a batch's count, rounded up; None if either of them is unknown.

    >>> per_image(130853896192, 32), per_image(5, None), per_image(None, 32)
    (4089184256, None, None)
    """
    return -(-count // batch) if batch and count is not None else None


def has_inputs(net: pb.NetParameter, phase: int, level: int = 0, stages: Sequence[str] = ()) -> bool:
    """Return whether a phase of the net has a layer that produces data."""
    return any(
        type_of(layer).source or not layer.bottom for layer in select_layers(net, phase, level, stages)
    )


def _check_type(layer: pb.LayerParameter, net: LoadedNet) -> None:
    if not layer.type:
        raise PrototxtError(net.where(layer), f"layer '{layer.name}' has no type", "Caffe aborts; set a type")


def _default_phase(found: GivenNet, net: pb.NetParameter, level: int, stages: Sequence[str]) -> int:
    """Return TRAIN if the net can be trained, else TEST: a deploy net has Input layers or no TRAIN data."""
    if found.state.HasField("phase"):
        return found.state.phase
    train = select_layers(net, pb.TRAIN, level, stages)
    makes_data = any(not layer.bottom and layer.type != "Input" for layer in train)
    if makes_data or not has_inputs(net, pb.TEST, level, stages):
        return pb.TRAIN
    is_deployed = any(layer.type == "Input" for layer in train)
    return pb.TEST if is_deployed or not has_inputs(net, pb.TRAIN, level, stages) else pb.TRAIN


def _batch(layers: Sequence[LayerCount]) -> int | None:
    for layer in layers:
        if not layer.bottoms and layer.tops and layer.tops[0].shape:
            return layer.tops[0].shape[0]
    return None


def _explain_unknown(layers: Sequence[LayerCount], failures: Sequence[str]) -> str:
    for layer in layers:
        if _has_shapes(layer.bottoms) and not _has_shapes(layer.tops):
            what = f"layer '{layer.name}' ({layer.type})"
            entry = find_layer_type(layer.type)
            if not entry.source and not entry.shapes:
                return f"{what} {_describe_type(layer.type)}: its output and all layers after it are unknown"
            if entry.source and failures:
                return f"{what} does not set the size of its images, and {failures[0]}: give --input C,H,W"
            if entry.source:
                return f"{what} does not set the size of its images: give --input C,H,W"
            return f"{what} produces blobs whose shapes are known only at run time"
    return ""


def _describe_type(name: str) -> str:
    if layer_type_dialects(name):
        return "has no shape rule here"
    near = nearest_layer_type(name)
    if near:
        return f"has an unknown type; did you mean '{near}'?"
    return f"is {describe_fork(TYPES[name], is_type=True)}" if name in TYPES else "has an unknown type"


def _has_shapes(blobs: Iterable[BlobCost]) -> bool:
    return all(blob.shape is not None and None not in blob.shape for blob in blobs)


_HEADINGS = (
    "layer",
    "type",
    "phase",
    "bottoms -> tops",
    "parameters",
    "statistics",
    "multiply-adds",
    "other ops",
    "activations",
)
_NUMBERS = set(_HEADINGS[4:])
_UNITS = ("", "", "", "", "", "", "per image", "per image", "bytes")
_CSV = (
    "layer",
    "type",
    "phase",
    "bottoms",
    "tops",
    "in_place",
    "parameters",
    "frozen",
    "statistics",
    "shares_with",
    "multiply_adds",
    "multiply_adds_per_image",
    "other_operations",
    "activation_bytes",
)


def render_table(summary: Summary, width: int | None = None) -> list[str]:
    """Return a table with a line for each layer, then the totals, `width` characters wide; unknowns are `?`.

    In a narrow terminal, the middle of the longest names and types is left out.
    """
    rows = [_NARROW, _NARROW_UNITS, *(_narrow_row(layer, summary.batch) for layer in summary.layers)]
    if width is not None:
        rows = _shorten_columns(rows, width)
    legend = _legend(summary.layers)
    return [
        *wrap_line(_title(summary), width),
        *(wrap_line(legend, width) if legend else ()),
        "",
        *align_columns(rows, set(_NARROW[4:])),
        "",
        *(part for line in _totals(summary) for part in wrap_line(line, width, 23)),
    ]


def render_wide_table(summary: Summary) -> list[str]:
    """Return a table with all values of each layer on one line, then the totals; zeros are blank."""
    batch = summary.batch
    rows = [_HEADINGS, _UNITS, *(_row(layer, batch) for layer in summary.layers)]
    if not any(layer.phase for layer in summary.layers):
        rows = [row[:2] + row[3:] for row in rows]
    return [_title(summary), "", *align_columns(rows, _NUMBERS), "", *_totals(summary)]


_NARROW = ("layer", "type", "kernel", "output", "parameters", "mult-adds")
_NARROW_UNITS = ("", "", "", "per image", "", "per image")
_LEAST_NAME = 12


def _narrow_row(layer: LayerCount, batch: int | None) -> tuple[str, ...]:
    adds = per_image(layer.multiply_adds, batch)
    return (
        layer.name,
        f"{layer.type} ({layer.phase})" if layer.phase else layer.type,
        layer.kernel,
        _output(layer, batch),
        "shared" if layer.shares_with else _number(layer.parameters),
        "?" if adds is None else _millions(adds),
    )


def _output(layer: LayerCount, batch: int | None) -> str:
    """Return the shape of the first top for one image, followed by `in all` if it has no batch axis."""
    if not layer.tops:
        return ""
    shape = layer.tops[0].shape
    if not shape or shape[0] == batch:
        return show_dims(shape and shape[1:])
    return f"{show_dims(shape)} in all"


def _millions(count: int) -> str:
    """Return a count in thousands, millions or billions, with two decimals.

    >>> _millions(118_013_952), _millions(972), _millions(0)
    ('118.01 M', '972', '')
    """
    for unit, name in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= unit:
            return f"{count / unit:.2f} {name}"
    return str(count or "")


def _shorten_columns(rows: Sequence[tuple[str, ...]], width: int) -> list[tuple[str, ...]]:
    """Return rows with names, then types, shortened until they fit in `width` or both are short."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    over = sum(widths) + 2 * (len(widths) - 1) - width
    for column in (0, 1):
        most = max(widths[column] - max(over, 0), _LEAST_NAME)
        over -= widths[column] - min(most, widths[column])
        rows = [(*row[:column], shorten_middle(row[column], most), *row[column + 1 :]) for row in rows]
    return list(rows)


_KERNEL = re.compile(r"(?P<size>[\dx]+)(?:\+(?P<pad>[\dx]+))?(?:/(?P<stride>[\dx]+))?")


def _legend(layers: Sequence[LayerCount]) -> str:
    """Explain the marks in the kernels of a net by kernels that it has; empty without marks."""
    kernels = [kernel for kernel in (layer.kernel.split(" ") for layer in layers) if kernel != [""]]
    marked = max((kernel[0] for kernel in kernels), key=lambda one: ("+" in one) + ("/" in one), default="")
    match = _KERNEL.fullmatch(marked)
    parts = []
    if match and (match["pad"] or match["stride"]):
        named = [f"{name} {value}" for name, value in match.groupdict().items() if value]
        parts.append(f"kernel {marked} is {', '.join(named)}")
    marks = {mark[0]: mark for kernel in kernels for mark in kernel[1:]}
    parts += [f"{marks['d']} is dilation {marks['d'][1:]}"] if "d" in marks else []
    parts += [f"{marks['g']} is {marks['g'][1:]} groups"] if "g" in marks else []
    return ", ".join(parts)


def render_summary_json(summary: Summary) -> str:
    """Return everything as JSON: null is unknown; counts are for a whole batch unless named `per_image`."""
    data: dict[str, Any] = asdict(summary)
    for layer in data["layers"]:
        del layer["kernel"]  # programs read it from the net
        layer["multiply_adds_per_image"] = per_image(layer["multiply_adds"], summary.batch)
    totals = data["totals"]
    totals["multiply_adds_per_image"] = per_image(totals["multiply_adds"], summary.batch)
    totals["parameter_bytes"] = 4 * totals["parameters"]
    return json.dumps(data, indent=2)


def render_csv(summary: Summary) -> list[str]:
    """Return the rows of a CSV: one for each layer; blobs are separated by `;`, unknown counts are empty."""
    rows = [csv_row(_CSV)]
    for layer in summary.layers:
        values: dict[str, object] = {
            **{name: getattr(layer, name) for name in _CSV if hasattr(layer, name)},
            "layer": layer.name,
            "bottoms": ";".join(map(_format_blob, layer.bottoms)),
            "tops": ";".join(map(_format_blob, layer.tops)),
            "in_place": int(layer.in_place),
            "multiply_adds_per_image": per_image(layer.multiply_adds, summary.batch),
        }
        rows.append(csv_row(values[name] for name in _CSV))
    return rows


def show_dims(shape: Shape | None, times: str = "x") -> str:
    """Return a shape in compact form, with `times` between its dimensions.

    >>> show_dims((32, None, 7, 7)), show_dims(()), show_dims(None)
    ('32x?x7x7', '1', '?')
    """
    if shape is None:
        return "?"
    return times.join("?" if dim is None else str(dim) for dim in shape) or "1"


def _title(summary: Summary) -> str:
    stages = f", stage {', '.join(summary.stages)}" if summary.stages else ""
    level = f", level {summary.level}" if summary.level else ""
    name = f" '{summary.net}'" if summary.net else ""
    batch = "of unknown size" if summary.batch is None else f"of {summary.batch:,}"
    return f"{summary.path}: net{name}, phase {summary.phase}{level}{stages}, batches {batch}"


def _row(layer: LayerCount, batch: int | None) -> tuple[str, ...]:
    parameters = f"as {layer.shares_with}" if layer.shares_with else _number(layer.parameters)
    return (
        layer.name,
        layer.type,
        f"{layer.phase} only" if layer.phase else "",
        _shapes(layer),
        parameters,
        _number(layer.statistics),
        _number(per_image(layer.multiply_adds, batch)) if layer.multiply_adds != 0 else "",
        _number(per_image(layer.other_operations, batch)) if layer.other_operations != 0 else "",
        _number(layer.activation_bytes),
    )


def _shapes(layer: LayerCount) -> str:
    tops = ", ".join(show_dims(blob.shape) for blob in layer.tops)
    if layer.in_place and len(layer.bottoms) == 1:
        return f"{tops} in place"
    bottoms = ", ".join(show_dims(blob.shape) for blob in layer.bottoms)
    return " -> ".join(filter(None, [bottoms, tops])) if tops else f"{bottoms} ->"


def describe_sum(summary: Summary, name: str, text: str) -> str:
    """Return `text`, which states the total `name`, as a lower bound or as unknown if layers lack a count."""
    if all(getattr(layer, name) is not None for layer in summary.layers):
        return text
    return f"at least {text}" if getattr(summary.totals, name) else "unknown"


def _totals(summary: Summary) -> Iterator[str]:
    totals, batch = summary.totals, summary.batch
    frozen = f", {totals.frozen:,} of them with lr_mult 0" if totals.frozen else ""
    adds = f"{_per_image_and_batch(totals.multiply_adds, batch)}: {_matrix_layers(summary.layers)}"
    texts = {
        "parameters": f"{totals.parameters:,} ({describe_binary(4 * totals.parameters)}){frozen}",
        "statistics": f"{totals.statistics:,}{_describe_stats_batches(summary.stats_batch_sizes)}",
        "multiply_adds": adds if totals.multiply_adds else "none: no layer has any",
        "other_operations": _per_image_and_batch(totals.other_operations, batch),
        "activation_bytes": f"{totals.activation_bytes:,} bytes per batch"
        f" ({describe_binary(totals.activation_bytes)})",
    }
    yield from align_columns(
        [(_TOTALS[name], describe_sum(summary, name, text)) for name, text in texts.items()]
    )
    if summary.hint:
        count = sum(not _has_shapes(layer.bottoms) or not _has_shapes(layer.tops) for layer in summary.layers)
        yield f"unknown shapes in {describe_count(count, 'layer')}: {summary.hint}"


_TOTALS = {
    "parameters": "learned parameters",
    "statistics": "batch-norm statistics",
    "multiply_adds": "multiply-adds",
    "other_operations": "other operations",
    "activation_bytes": "activations",
}


def _describe_stats_batches(sizes: tuple[int, ...]) -> str:
    return f"; for groups of {' or '.join(map(str, sizes))} images" if sizes else ""


def _matrix_layers(layers: Iterable[LayerCount]) -> str:
    return f"in {', '.join(sorted({layer.type for layer in layers if layer.multiply_adds}))}"


def _per_image_and_batch(count: int, batch: int | None) -> str:
    each = per_image(count, batch)
    return f"{count:,} per batch" if each is None else f"{each:,} per image, {count:,} per batch"


def _number(count: Dim) -> str:
    if count is None:
        return "?"
    return f"{count:,}" if count else ""


def _format_blob(blob: BlobCost) -> str:
    return f"{blob.name} {show_dims(blob.shape)}"
