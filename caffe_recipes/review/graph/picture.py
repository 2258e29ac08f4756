"""Draw a graph as SVG, readable in black and white: boxes, wires, stages, a title and a legend.

For PNG and PDF, matplotlib draws the elements of that SVG.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from caffe_recipes.errors import InputError
from caffe_recipes.review.graph.boxes import (
    HEADING,
    LINE,
    NOTE_LINE,
    PADDING,
    PHASE_LINE,
    SMALL,
    TITLE,
    TITLE_LINE,
    Box,
    build_graph,
    fit_box,
    text_width,
)
from caffe_recipes.review.graph.layout import lay_out
from caffe_recipes.review.inspect.summary import describe_sum, per_image
from caffe_recipes.wording import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from caffe_recipes.review.graph.boxes import (
        Graph,
    )
    from caffe_recipes.review.graph.layout import Band, Layout, PlacedBox, ShapeText, Wire
    from caffe_recipes.review.inspect.summary import LoadedNet, Summary

_FILLS = {
    "source": "#e4dcf1",
    "matrix": "#dbe8f7",
    "pooling": "#dcefd8",
    "join": "#fde9c4",
    "end": "#f8dad6",
    "other": "#ffffff",
}
_KINDS = {
    "source": "data",
    "matrix": "convolution, inner product",
    "pooling": "pooling",
    "join": "sum, concat",
    "end": "loss, accuracy",
    "other": "others",
}
_INK, _SOFT, _GROUND, _RULE = "#1a1a1a", "#555555", "#f4f4f2", "#c9c9c4"
_FONT = "'DejaVu Sans', Verdana, 'Liberation Sans', Arial, Helvetica, sans-serif"
_MARGIN = 30.0
_LEGEND_LINE = 22.0
_MOST_LAYERS = 5_000


def draw_graph(net: LoadedNet, summary: Summary) -> str:
    """Return a net's graph as SVG text.

    Raises PrototxtError if shapes do not fit, and InputError for a net with too many layers to draw.
    """
    count = len(net.message.layer)
    if count > _MOST_LAYERS:
        what = f"has {count:,} layers, but a picture can show only {_MOST_LAYERS:,}"
        raise InputError(net.path, what, "remove --graph")
    graph = build_graph(net)
    layout, wiring = lay_out(graph)
    legend = list(_legend(graph, has_notes=bool(wiring.distant)))
    title, subtitle = net.message.name or net.path, _subtitle(net, summary)
    least = max(text_width(title, 24, is_bold=True), text_width(subtitle, 11), 420.0) + 2 * _MARGIN
    width = max(layout.width, least)
    rows = _wrap(legend, width - 2 * _MARGIN)
    top = 92.0 + _LEGEND_LINE * len(rows)
    height = top + layout.height + _MARGIN
    body = [
        *_svg_header(width, height, title),
        _text(_MARGIN, 44, title, 24, weight="bold"),
        _text(_MARGIN, 64, subtitle, 11, fill=_SOFT),
        *(line for index, row in enumerate(rows) for line in _legend_row(row, 90 + _LEGEND_LINE * index)),
        f'<g transform="translate(0 {top:g})">',
        *_layout(layout),
        "</g>",
        "</svg>",
    ]
    return "\n".join(body) + "\n"


def render_graph(net: LoadedNet, summary: Summary, kind: str) -> bytes:
    """Return a net's graph as svg, png or pdf.

    Raises the errors of `draw_graph`, and InputError if png or pdf is asked for without matplotlib.
    """
    if kind == "svg":
        return draw_graph(net, summary).encode()
    from caffe_recipes.review.inspect.plot_style import render_figure, require_matplotlib

    require_matplotlib(f"a graph as {kind}")
    root = ElementTree.fromstring(draw_graph(net, summary))
    width, height = (float(root.attrib[side]) for side in ("width", "height"))
    dpi = min(_DPI, _MOST_SIDE_PX * 72 / max(width, height), (_MOST_PX * 72**2 / (width * height)) ** 0.5)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # names may have characters that the font lacks
        return render_figure(lambda: _draw_figure(root, width, height), kind, dpi)


def _draw_figure(root: ElementTree.Element, width: float, height: float) -> Figure:
    """Return a figure of the SVG, at 72 units per inch, with each element above the earlier ones."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width / 72, height / 72))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set(xlim=(0, width), ylim=(height, 0))

    def draw(parent: ElementTree.Element, down: float) -> None:
        for element in parent:
            draw_one = _DRAW.get(element.tag.rpartition("}")[2])
            if draw_one is not None:
                draw_one(axes, element.attrib, element.text or "", down)
            moved = re.fullmatch(r"translate\(0 (.*)\)", element.get("transform", ""))
            draw(element, down + float(moved[1]) if moved else down)

    draw(root, 0.0)
    return figure


def _draw_rect(axes: Axes, attributes: Mapping[str, str], text: str, down: float) -> None:
    from matplotlib.patches import FancyBboxPatch

    corner, round_by = (
        (float(attributes.get("x", 0)), float(attributes.get("y", 0)) + down),
        float(attributes.get("rx", 0)),
    )
    shape = f"round,pad=0,rounding_size={round_by}" if round_by else "square,pad=0"
    axes.add_patch(
        FancyBboxPatch(
            corner,
            float(attributes["width"]),
            float(attributes["height"]),
            boxstyle=shape,
            **_stroke(axes, attributes),
        )
    )


def _draw_path(axes: Axes, attributes: Mapping[str, str], text: str, down: float) -> None:
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Outline

    codes = {"M": Outline.MOVETO, "L": Outline.LINETO}
    steps = re.findall(r"([ML])(\S+) (\S+)", attributes["d"])
    points = [(float(x), float(y) + down) for _, x, y in steps]
    kinds = [codes[step] for step, _, _ in steps]
    if attributes["d"].endswith("z"):
        points, kinds = [*points, points[0]], [*kinds, Outline.CLOSEPOLY]
    axes.add_patch(PathPatch(Outline(points, kinds), **_stroke(axes, attributes)))


def _draw_text(axes: Axes, attributes: Mapping[str, str], text: str, down: float) -> None:
    axes.text(
        float(attributes["x"]),
        float(attributes["y"]) + down,
        text,
        fontsize=float(attributes["font-size"]),
        color=attributes["fill"],
        weight=attributes.get("font-weight", "normal"),
        style=attributes.get("font-style", "normal"),
        ha={"middle": "center", "end": "right"}.get(attributes.get("text-anchor", ""), "left"),
        va="baseline",
        zorder=_next_zorder(axes),
    )


def _stroke(axes: Axes, attributes: Mapping[str, str]) -> dict[str, Any]:
    width = float(attributes.get("stroke-width", 1))
    dashes = [float(length) / width for length in attributes.get("stroke-dasharray", "").split()]
    return {
        "facecolor": attributes["fill"],
        "edgecolor": attributes.get("stroke", "none"),
        "linewidth": width if "stroke" in attributes else 0,
        "linestyle": (0, dashes) if dashes else "solid",
        "capstyle": "butt",
        "zorder": _next_zorder(axes),
    }


def _next_zorder(axes: Axes) -> int:
    return len(axes.patches) + len(axes.texts)


_DRAW: Mapping[str, Callable[[Axes, Mapping[str, str], str, float], None]] = {
    "rect": _draw_rect,
    "path": _draw_path,
    "text": _draw_text,
}
_DPI = 144
_MOST_SIDE_PX, _MOST_PX = 30_000, 100_000_000


def _subtitle(net: LoadedNet, summary: Summary) -> str:
    totals = summary.totals
    each = per_image(totals.multiply_adds, summary.batch)
    parts = [describe_sum(summary, "parameters", f"{totals.parameters:,} learned parameters")]
    if each is not None:
        parts.append(describe_sum(summary, "multiply_adds", f"{each:,} multiply-adds an image"))
    parts = [part for part in parts if part != "unknown"]
    phases = f"phase {summary.phase}" if net.options.phase is not None else "both phases"
    return "; ".join([*parts, phases])


def _svg_header(width: float, height: float, title: str) -> Iterator[str]:
    yield '<?xml version="1.0" encoding="UTF-8"?>'
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}" font-family="{_FONT}">'
    )
    yield f"<title>{_escape(title)}</title>"
    yield f'<rect width="{width:g}" height="{height:g}" fill="#ffffff"/>'


def _layout(layout: Layout) -> Iterator[str]:
    for band in layout.bands:
        yield from _band(band)
    yield from _wires(layout.wires)
    for band in layout.bands:
        yield from _heading(band)
    for text in layout.shapes:
        yield _shape(text)
    for box in layout.boxes:
        yield from _box(box)


def _band(band: Band) -> Iterator[str]:
    yield (
        f'<rect class="stage" x="{band.x:g}" y="{band.y:g}" width="{band.width:g}" height="{band.height:g}" '
        f'rx="6" fill="{_GROUND}" stroke="{_RULE}" stroke-width="0.8"/>'
    )


def _heading(band: Band) -> Iterator[str]:
    """Yield a stage's title on a background that hides wires behind it."""
    width = text_width(band.title, HEADING, is_bold=True)
    x, y = band.title_x - 2, band.y + 7
    yield f'<rect x="{x:g}" y="{y:g}" width="{width + 4:g}" height="17" fill="{_GROUND}"/>'
    yield _text(band.title_x, band.y + 20, band.title, HEADING, fill=_SOFT, weight="bold")


def _wires(wires: Sequence[Wire]) -> Iterator[str]:
    """Yield one path for the wires of each blob, so that shared parts are no thicker, then the arrowheads."""
    by_blob: dict[tuple[int, str], list[Wire]] = {}
    for wire in wires:
        by_blob.setdefault((wire.edge.source, wire.edge.blob), []).append(wire)
    for bundle in by_blob.values():
        path = " ".join(
            f"{'L' if index else 'M'}{x:g} {y:g}"
            for wire in bundle
            for index, (x, y) in enumerate(wire.points)
        )
        yield f'<path class="wire" d="{path}" fill="none" stroke="{_INK}" stroke-width="1.1"/>'
    yield from (_arrow(wire) for wire in wires)


def _arrow(wire: Wire) -> str:
    """Return the arrowhead of a wire, with its tip on the box."""
    (from_x, _), (x, y) = wire.points[-2:]
    if from_x == x:
        back = f"{x - 3:g} {y - 7:g} L{x + 3:g} {y - 7:g}"
    else:
        behind = x - 7 if from_x < x else x + 7
        back = f"{behind:g} {y - 3:g} L{behind:g} {y + 3:g}"
    return f'<path class="arrow" d="M{x:g} {y:g} L{back} z" fill="{_INK}"/>'


def _shape(text: ShapeText) -> str:
    return _text(text.x, text.y, text.text, SMALL, fill=_SOFT)


def _box(placed: PlacedBox) -> Iterator[str]:
    box, x, y = placed.box, placed.x, placed.y
    names = ", ".join(line.name for line in box.lines)
    yield f'<g class="box"><title>{_escape(names)}</title>'
    yield _frame(box, x, y, placed.width, placed.height)
    left, right = x + PADDING, x + placed.width - PADDING
    y += PADDING / 2
    if box.phase:
        yield from _badge(box.phase, right, y + 1)
        y += PHASE_LINE
    first, *others = box.lines
    y += TITLE_LINE
    yield _text(left, y - 4, fit_box(first.name), TITLE, weight="bold")
    y += LINE
    yield _text(left, y - 3, first.what, SMALL)
    for line in others:
        y += LINE
        yield _text(left, y - 3, fit_box(line.name), SMALL, fill=_SOFT)
        phase = f"{line.phase} only " if line.phase else ""
        yield _text(right, y - 3, phase + line.what, SMALL, fill=_SOFT, anchor="end")
    for note in box.notes:
        y += NOTE_LINE
        yield _text(left, y - 3, note, SMALL, style="italic")
    yield "</g>"


def _frame(box: Box, x: float, y: float, width: float, height: float) -> str:
    line = {"TRAIN": 'stroke-width="2.4"', "TEST": 'stroke-width="1.4" stroke-dasharray="5 3"'}
    style = line.get(box.phase, 'stroke-width="1"')
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4" fill="{_FILLS[box.kind]}" '
        f'stroke="{_INK}" {style}/>'
    )


def _badge(phase: str, right: float, y: float) -> Iterator[str]:
    """Yield a label with the phase: white on black for TRAIN, black on white for TEST."""
    text = f"{phase} only"
    width = text_width(text, 8, is_bold=True) + 8
    fill, ink = (_INK, "#ffffff") if phase == "TRAIN" else ("#ffffff", _INK)
    yield (
        f'<rect x="{right - width:g}" y="{y:g}" width="{width:g}" height="12" rx="3" fill="{fill}" '
        f'stroke="{_INK}" stroke-width="0.8"/>'
    )
    yield _text(right - width / 2, y + 9, text, 8, fill=ink, weight="bold", anchor="middle")


def _legend(graph: Graph, *, has_notes: bool) -> Iterator[tuple[str, str]]:
    """Yield the legend entries that the picture needs, as (mark, text)."""
    kinds = {box.kind for box in graph.boxes}
    for kind, words in _KINDS.items():
        if kind in kinds:
            yield kind, words
    phases = {box.phase for box in graph.boxes} | {line.phase for box in graph.boxes for line in box.lines}
    for phase in ("TRAIN", "TEST"):
        if phase in phases:
            yield phase, f"in phase {phase} only"
    yield "", "64×56×56: channels × height × width of an image"
    if any(len(box.lines) > 1 for box in graph.boxes):
        yield "", "grey lines: in-place layers"
    if has_notes:
        yield "", "← label: read from a distant layer (wire not drawn)"


def _legend_width(entry: tuple[str, str]) -> float:
    return (26 if entry[0] else 0) + text_width(entry[1], 10) + 22


def _wrap(entries: Sequence[tuple[str, str]], width: float) -> list[list[tuple[str, str]]]:
    rows: list[list[tuple[str, str]]] = [[]]
    room = width
    for entry in entries:
        if _legend_width(entry) > room and rows[-1]:
            rows.append([])
            room = width
        rows[-1].append(entry)
        room -= _legend_width(entry)
    return rows


def _legend_row(entries: Sequence[tuple[str, str]], y: float) -> Iterator[str]:
    x = _MARGIN
    for mark, words in entries:
        if mark:
            is_phase = mark in ("TRAIN", "TEST")
            yield _frame(
                Box(0, (), "other" if is_phase else mark, mark if is_phase else "", None), x, y - 11, 20, 14
            )
        yield _text(x + (26 if mark else 0), y, words, 10)
        x += _legend_width((mark, words))


def _text(
    x: float,
    y: float,
    text: str,
    size: float,
    *,
    fill: str = _INK,
    weight: str = "",
    style: str = "",
    anchor: str = "",
) -> str:
    more = "".join(
        f' {name}="{value}"'
        for name, value in (("font-weight", weight), ("font-style", style), ("text-anchor", anchor))
        if value
    )
    return f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" fill="{fill}"{more}>{_escape(text)}</text>'


def _escape(text: str) -> str:
    """Return text escaped for XML; characters that XML forbids are written as Python escapes."""
    return (
        printable(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")
    )
