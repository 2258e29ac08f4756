"""A net's summary as a table for people, as JSON and as CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

from caffe_recipes.caffe.shaping.dims import Dim, Shape
from caffe_recipes.review.columns import align_columns
from caffe_recipes.review.counts import Blob, LayerCount
from caffe_recipes.review.summary import Summary, per_image

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


def render_table(summary: Summary) -> str:
    """Write a line for each layer, then the totals; what is unknown is a `?`, and a 0 is left out."""
    batch = summary.batch
    rows = [_HEADINGS, _UNITS, *(_row(layer, batch) for layer in summary.layers)]
    if not any(layer.phase for layer in summary.layers):
        rows = [row[:2] + row[3:] for row in rows]
    return "\n".join([_title(summary), "", *align_columns(rows, _NUMBERS), "", *_totals(summary)])


def render_json(summary: Summary) -> str:
    """Write everything: null is unknown; counts are for a whole batch, unless they say `per_image`."""
    data: dict[str, Any] = asdict(summary)
    for layer in data["layers"]:
        layer["multiply_adds_per_image"] = _each(layer["multiply_adds"], summary.batch)
    totals = data["totals"]
    totals["multiply_adds_per_image"] = _each(totals["multiply_adds"], summary.batch)
    totals["parameter_bytes"] = 4 * totals["parameters"]
    return json.dumps(data, indent=2, ensure_ascii=False)


def render_csv(summary: Summary) -> str:
    """Write a row for each layer; several blobs are parted by `;`, unknown counts are empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_CSV)
    for layer in summary.layers:
        values: dict[str, object] = {
            **{name: getattr(layer, name) for name in _CSV if hasattr(layer, name)},
            "layer": layer.name,
            "bottoms": ";".join(map(_named, layer.bottoms)),
            "tops": ";".join(map(_named, layer.tops)),
            "in_place": int(layer.in_place),
            "multiply_adds_per_image": _each(layer.multiply_adds, summary.batch),
        }
        writer.writerow(["" if values[name] is None else values[name] for name in _CSV])
    return text.getvalue()


def show_dims(shape: Shape | None) -> str:
    """Write a shape in the least space.

    >>> show_dims((32, None, 7, 7)), show_dims(()), show_dims(None)
    ('32x?x7x7', '1', '?')
    """
    if shape is None:
        return "?"
    return "x".join("?" if dim is None else str(dim) for dim in shape) or "1"


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
        _number(_each(layer.multiply_adds, batch)) if layer.multiply_adds != 0 else "",
        _number(_each(layer.other_operations, batch)) if layer.other_operations != 0 else "",
        _number(layer.activation_bytes),
    )


def _shapes(layer: LayerCount) -> str:
    tops = ", ".join(show_dims(blob.shape) for blob in layer.tops)
    if layer.in_place and len(layer.bottoms) == 1:
        return f"{tops} in place"
    bottoms = ", ".join(show_dims(blob.shape) for blob in layer.bottoms)
    return " -> ".join(filter(None, [bottoms, tops])) if tops else f"{bottoms} ->"


def _totals(summary: Summary) -> Iterator[str]:
    totals, batch = summary.totals, summary.batch
    least = "at least " if totals.unknown else ""
    frozen = f", {totals.frozen:,} of them with lr_mult 0" if totals.frozen else ""
    lines = [
        ("learned parameters", f"{least}{totals.parameters:,} ({_size(4 * totals.parameters)}){frozen}"),
        ("batch-norm statistics", f"{least}{totals.statistics:,}"),
        ("multiply-adds", f"{least}{_both(totals.multiply_adds, batch)}: {_matrix_layers(summary.layers)}"),
        ("other operations", f"{least}{_both(totals.other_operations, batch)}"),
        (
            "activations",
            f"{least}{totals.activation_bytes:,} bytes a batch ({_size(totals.activation_bytes)})",
        ),
    ]
    yield from align_columns(lines)
    if summary.hint:
        yield f"unknown shapes in {len(totals.unknown)} layers: {summary.hint}"


def _matrix_layers(layers: Iterable[LayerCount]) -> str:
    counted = sorted({layer.type for layer in layers if layer.multiply_adds})
    return f"in {', '.join(counted)}" if counted else "no layer has any"


def _both(count: int, batch: int | None) -> str:
    each = per_image(count, batch)
    return f"{count:,} a batch" if each is None else f"{each:,} an image, {count:,} a batch"


def _each(count: Dim, batch: int | None) -> int | None:
    return None if count is None else per_image(count, batch)


def _number(count: Dim) -> str:
    if count is None:
        return "?"
    return f"{count:,}" if count else ""


def _named(blob: Blob) -> str:
    return f"{blob.name} {show_dims(blob.shape)}"


def _size(count_bytes: int) -> str:
    """Write a number of bytes in units of 1024.

    >>> _size(102228384), _size(500)
    ('97.5 MiB', '500 bytes')
    """
    size, units = float(count_bytes), iter(("KiB", "MiB", "GiB", "TiB"))
    if size < 1024:
        return f"{count_bytes} bytes"
    unit = ""
    while size >= 1024 and (following := next(units, "")):
        size, unit = size / 1024, following
    return f"{size:.1f} {unit}"
