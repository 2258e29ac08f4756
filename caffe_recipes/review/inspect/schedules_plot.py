"""Draw schedules with matplotlib: learning rate and weight decay over epochs or iterations.

Jumps of more than 1% are labelled with both rates. The part of a phase after the snapshot that the next phase
starts from is a thin line. Branches have their own lanes. Labels overlap neither each other nor the lines.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import TYPE_CHECKING

from caffe_recipes.caffe.rates import POLICIES, key_rates, lr_at, step_iters
from caffe_recipes.caffe.text.writer import float_text
from caffe_recipes.errors import InputError
from caffe_recipes.review.inspect.plot_style import (
    line_colour,
    line_style,
    render_figure,
    require_matplotlib,
    scale_rates,
)
from caffe_recipes.wording import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.path import Path as MplPath
    from matplotlib.text import Annotation
    from matplotlib.transforms import Bbox

    from caffe_recipes.review.inspect.schedules import PlottedSchedule, Stretch

_SAMPLES = 600  # points of a stretch, about as many as a printed page can resolve


@dataclass(frozen=True)
class Curve:
    """The rates of a stretch at the sampled iterations; NaN where a rate is not finite.

    The first `taken` points lead to the snapshot that the next stretch starts from.
    """

    xs: tuple[float, ...]
    rates: tuple[float, ...]
    taken: int


@dataclass(frozen=True)
class Mark:
    """A jump from one rate to another, at the end of a warm-up or at the join of two phases."""

    x: float
    before: float
    after: float


def curve_of(stretch: Stretch, samples: int = _SAMPLES) -> Curve:
    """Return the rates of a stretch, sampled evenly and on both sides of each jump; empty for `plateau`."""
    if stretch.solver.lr_policy not in POLICIES:
        return Curve((), (), 0)
    iterations = sorted(set(_iterations(stretch, samples)))
    rates = (lr_at(stretch.solver, iteration) for iteration in iterations)
    return Curve(
        xs=tuple(stretch.x_at(iteration) for iteration in iterations),
        rates=tuple(rate if math.isfinite(rate) else math.nan for rate in rates),
        taken=sum(iteration <= stretch.taken_iter for iteration in iterations),
    )


def marks_of(schedule: PlottedSchedule) -> Iterator[Mark]:
    """Yield the jumps between finite rates in a schedule, from left to right within each stretch."""
    for stretch in schedule.stretches:
        rates = key_rates(stretch.solver, stretch.iterations)
        if rates is None:
            continue
        warmup_x = stretch.x_at(stretch.solver.warmup_iter)
        jumps = (
            (stretch.begins, stretch.rate_before, rates.first),
            (warmup_x, rates.warmup_end, rates.after_warmup),
        )
        for x, before, after in jumps:
            if before is not None and after is not None and math.isfinite(before) and math.isfinite(after):
                yield Mark(x, before, after)


def _iterations(stretch: Stretch, samples: int) -> Iterator[int]:
    last, solver = stretch.iterations - 1, stretch.solver
    yield from range(0, last + 1, max(1, last // samples))
    edges = (solver.warmup_iter, stretch.taken_iter, *step_iters(solver, last)[:samples])
    near = chain(*((edge - 1, edge) for edge in edges), (last,))
    yield from (iteration for iteration in near if 0 <= iteration <= last)


_Place = tuple[float, float, str]

# Distances from the anchor in points, nearest first; farther away, a label would need a line to its anchor.
_OFFSETS = ((5, 3), (5, -3), (5, 9), (5, -9), (7, 15), (7, -15))
_PLACES: tuple[_Place, ...] = tuple(
    place
    for right, up in _OFFSETS
    for place in (
        (right, up, "left"),
        (-right, up, "right"),
        (0, math.copysign(min(abs(up) + 7, 15), up), "center"),
    )
)
_CLEAR_PX = 1.5  # margin between a label and everything else


@dataclass(frozen=True)
class Label:
    """A text to place beside a point of the axes."""

    x: float
    y: float
    text: str
    colour: str


def place_labels(axes: Axes, labels: Sequence[Label], canvas: FigureCanvasAgg) -> None:
    """Draw each label at the nearest free place beside its point; drop labels that have no free place.

    A place is free if it is inside the axes and touches no line, marker or earlier label. The limits and
    lines of the axes must be final.
    """
    lines, taken = _lines_px(axes), _markers_px(axes)
    for label in labels:
        text = axes.annotate(
            label.text,
            (label.x, label.y),
            (0, 0),
            textcoords="offset points",
            fontsize=7,
            color=label.colour,
            va="center",
            zorder=6,
        )
        for place in _PLACES:
            box = _box_at(text, place, canvas)
            if _is_free(box, axes.bbox, taken, lines):
                taken.append(box)
                break
        else:
            text.remove()


def _lines_px(axes: Axes) -> list[MplPath]:
    return [line.get_transform().transform_path(line.get_path()) for line in axes.lines if _is_line(line)]


def _is_line(line: Line2D) -> bool:
    return line.get_linestyle() != "None" and len(line.get_xdata(orig=False)) > 1  # type: ignore[arg-type]


def _markers_px(axes: Axes) -> list[Bbox]:
    from matplotlib.transforms import Bbox

    boxes = []
    for line in axes.lines:
        if line.get_marker() not in ("None", None, ""):
            radius = line.get_markersize() / 2 * axes.figure.dpi / 72
            for x, y in line.get_transform().transform(line.get_xydata()):
                boxes.append(Bbox.from_extents(x - radius, y - radius, x + radius, y + radius))
    return boxes


def _box_at(text: Annotation, place: _Place, canvas: FigureCanvasAgg) -> Bbox:
    """Move a text to a place, and return the box that it covers, with a margin, in pixels."""
    right, up, align = place
    text.set_position((right, up))
    text.set_horizontalalignment(align)  # type: ignore[arg-type]  # one of the three words
    return text.get_window_extent(canvas.get_renderer()).padded(_CLEAR_PX)  # type: ignore[no-untyped-call]


def _is_free(box: Bbox, inside: Bbox, taken: Sequence[Bbox], lines: Sequence[MplPath]) -> bool:
    if not (inside.x0 < box.x0 and box.x1 < inside.x1 and inside.y0 < box.y0 and box.y1 < inside.y1):
        return False
    if any(box.overlaps(other) for other in taken):
        return False
    return not any(line.intersects_bbox(box, filled=False) for line in lines)


_GREYS = ("0.93", "0.84")
_MOST_PARTS, _MOST_POINTS = 100, 6000
_MOST_LABELS = 40  # per page; if there are more, the largest jumps are labelled
_VISIBLE_JUMP = 0.01  # fraction of the higher rate; smaller jumps are invisible
_SIMILAR = 4  # schedules whose highest rates differ by at most this factor share an axis
_MOST_PANELS = 6  # per page; with more schedules, all share a logarithmic axis
_WIDTH_IN, _RATE_IN, _PANEL_IN, _STRIP_IN = 7.2, 3.1, 1.5, 0.34
_TOP_IN, _BOTTOM_IN = 0.06, 0.45
_LANE = 0.5  # height of one lane, as a fraction of a strip
_DECAY_IN, _MOST_DECAY_IN, _TEXT_IN = 0.9, 2.2, 0.13
_LEAST_CHARACTERS = 3  # that a shortened phase name keeps


def render_plot(schedules: Sequence[PlottedSchedule], kind: str, *, log: bool = False) -> bytes:
    """Return a plot of schedules with the same unit as svg, png or pdf, the same bytes on any machine.

    Schedules with rates of similar scale share an axis; otherwise each has its own panel. Raises InputError
    if matplotlib is missing, if there are too many phases, or if no iteration has a rate above 0.
    """
    require_matplotlib()
    parts = sum(len(schedule.stretches) for schedule in schedules)
    if parts > _MOST_PARTS:
        raise InputError(schedules[0].name, f"{parts} phases to draw", f"give {_MOST_PARTS} at most")
    samples = _MOST_POINTS // max(parts, 10)
    curves = [[curve_of(stretch, samples) for stretch in schedule.stretches] for schedule in schedules]
    if not any(map(_highest, curves)):
        raise InputError(schedules[0].name, "no iteration has a rate above 0 to draw", "fix the schedule")
    return render_figure(lambda: draw_schedules(schedules, curves, log=log), kind)


def _highest(curves: Sequence[Curve]) -> float:
    """Return the highest rate of a schedule, at least 0."""
    return max((rate for curve in curves for rate in curve.rates if rate > 0), default=0.0)


def draw_schedules(
    schedules: Sequence[PlottedSchedule], curves: Sequence[Sequence[Curve]], *, log: bool
) -> Figure:
    """Return a figure of schedules and their sampled curves, at least one of which has a rate above 0."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = _panels(curves, log=log)
    log = log or (len(panels) == 1 and len(schedules) > _MOST_PANELS and not _have_similar_scale(curves))
    rate_in = _RATE_IN if len(panels) == 1 else _PANEL_IN
    heights = [
        height
        for panel in panels
        for height in (_STRIP_IN * sum(_strips(schedules[index]) for index in panel), rate_in)
    ]
    heights.append(_decay_in(_decays(schedules)))
    height = sum(heights) + _TOP_IN + _BOTTOM_IN
    figure = Figure(figsize=(_WIDTH_IN, height))
    canvas = FigureCanvasAgg(figure)
    top, bottom = 1 - _TOP_IN / height, _BOTTOM_IN / height
    grid = figure.add_gridspec(
        len(heights), 1, height_ratios=heights, hspace=0.07, left=0.118, right=0.975, top=top, bottom=bottom
    )
    decay = figure.add_subplot(grid[len(heights) - 1])
    end = max(stretch.x_at(stretch.iterations) for schedule in schedules for stretch in schedule.stretches)
    decay.set_xlim(0, end * 1.005)
    rates = []
    for row, panel in enumerate(panels):
        strips, rate = (figure.add_subplot(grid[2 * row + half], sharex=decay) for half in (0, 1))
        _draw_strips(strips, [(index, schedules[index]) for index in panel], canvas)
        if len(panel) == 1:
            for axes in (rate, decay) if len(panels) == 1 else (rate,):
                _shade(axes, schedules[panel[0]].stretches)
        _draw_panel(rate, [(index, schedules[index], curves[index]) for index in panel], canvas, log=log)
        rates.append(rate)
    for index, schedule in enumerate(schedules):
        _draw_decays(decay, schedule, index)
    _scale_decays(decay, schedules)
    decay.set_ylabel("weight decay")
    decay.set_xlabel(schedules[0].unit)
    decay.xaxis.set_major_formatter(lambda count, _: f"{count:,.10g}")
    figure.align_ylabels((*rates, decay))
    return figure


def _have_similar_scale(curves: Sequence[Sequence[Curve]]) -> bool:
    """Return whether the highest rates of schedules have a similar scale."""
    highest = [high for high in map(_highest, curves) if high]
    return max(highest) <= _SIMILAR * min(highest)


def _panels(curves: Sequence[Sequence[Curve]], *, log: bool) -> list[list[int]]:
    """Return the indices of the schedules in each panel."""
    is_shared = log or len(curves) > _MOST_PANELS or _have_similar_scale(curves)
    return [list(range(len(curves)))] if is_shared else [[index] for index in range(len(curves))]


def _draw_panel(
    axes: Axes,
    schedules: Sequence[tuple[int, PlottedSchedule, Sequence[Curve]]],
    canvas: FigureCanvasAgg,
    *,
    log: bool,
) -> None:
    """Draw the rates and jumps of the schedules that share an axis, each in the style of its index."""
    rates = (rate for _, _, curves in schedules for curve in curves for rate in curve.rates)
    scale_rates(axes, rates, log=log)
    for index, schedule, curves in schedules:
        _draw_rates(axes, schedule, curves, index)
    axes.tick_params(labelbottom=False)
    axes.set_ylabel("learning rate")
    most = _MOST_LABELS // len(schedules)
    labels = [label for index, schedule, _ in schedules for label in _labels(schedule, index, most)]
    place_labels(axes, labels, canvas)


def _draw_strips(
    axes: Axes, schedules: Sequence[tuple[int, PlottedSchedule]], canvas: FigureCanvasAgg
) -> None:
    """Draw a row for each schedule: its line style, its name, its phases as blocks, and branches below."""
    axes.set_ylim(sum(_strips(schedule) for _, schedule in schedules), 0)
    axes.axis("off")
    end, row = axes.get_xlim()[1], 0.0
    for number, schedule in schedules:
        style = line_style(number)
        axes.plot([0, end * 0.05], [row + 0.24] * 2, **style, linewidth=1.3)
        name = printable(schedule.name)
        axes.text(end * 0.06, row + 0.26, name, va="center", fontsize=8, color=style["color"])
        for lane in range(_lanes(schedule)):
            top = row + 0.5 + _LANE * lane
            for index, (stretch, left, right) in enumerate(_spans(schedule.stretches, lane)):
                axes.fill_between([left, right], top, top + 0.45, color=_GREYS[index % 2], linewidth=0)
                _write_between(axes, stretch.name, left, right, top + 0.235, canvas)
        row += _strips(schedule)


def _write_between(
    axes: Axes, name: str, left: float, right: float, y: float, canvas: FigureCanvasAgg
) -> None:
    """Write a name between two x positions; shrink a long name, cut it before its number, or drop it."""
    (left_px, _), (right_px, _) = axes.transData.transform([(left, y), (right, y)])
    text = axes.text((left + right) / 2, y, name, ha="center", va="center", fontsize=7)
    letters = name.rstrip("0123456789")
    shorter = (
        f"{name[:count]}…{name[len(letters) :]}"
        for count in range(len(letters) - 2, _LEAST_CHARACTERS - 1, -1)
    )
    for size, shown in ((7, name), (6, name), *((6, each) for each in shorter)):
        text.set_text(shown)
        text.set_fontsize(size)
        width = text.get_window_extent(canvas.get_renderer()).width  # type: ignore[no-untyped-call]
        if width + _CLEAR_PX <= right_px - left_px:
            return
    text.remove()


def _lanes(schedule: PlottedSchedule) -> int:
    return 1 + max(stretch.lane for stretch in schedule.stretches)


def _strips(schedule: PlottedSchedule) -> float:
    """Return the height of a schedule's row in strips: 1 without branches."""
    return 1 + _LANE * (_lanes(schedule) - 1)


def _spans(stretches: Sequence[Stretch], lane: int | None = None) -> Iterator[tuple[Stretch, float, float]]:
    """Yield each stretch, or those of a lane, with the ages at which the model enters and leaves it."""
    for stretch in stretches:
        if lane is None or stretch.lane == lane:
            yield stretch, stretch.begins, stretch.x_at(stretch.taken_iter)


def _shade(axes: Axes, stretches: Sequence[Stretch]) -> None:
    for index, (_, left, right) in enumerate(_spans(stretches, 0)):
        if index % 2 == 0:
            axes.axvspan(left, right, color="0.955", linewidth=0, zorder=0)


def _draw_rates(axes: Axes, schedule: PlottedSchedule, curves: Sequence[Curve], index: int) -> None:
    style = line_style(index)
    for curve in curves:
        taken = curve.taken
        axes.plot(curve.xs[:taken], curve.rates[:taken], **style, linewidth=1.3, zorder=3)
        axes.plot(
            curve.xs[taken - 1 :], curve.rates[taken - 1 :], color=style["color"], linewidth=0.5, zorder=2
        )
    for mark in marks_of(schedule):
        if not _is_visible(mark):
            continue
        axes.plot([mark.x] * 2, [mark.before, mark.after], color=style["color"], linewidth=0.6, zorder=2)
        axes.plot(
            mark.x, mark.before, "o", color="white", markeredgecolor=style["color"], markersize=3.2, zorder=4
        )
        axes.plot(mark.x, mark.after, "o", color=style["color"], markersize=2.6, zorder=4)


def _draw_decays(axes: Axes, schedule: PlottedSchedule, index: int) -> None:
    style = line_style(index)
    for stretch, left, right in _spans(schedule.stretches):
        value, before = stretch.solver.weight_decay, stretch.decay_before
        if before is not None and before != value:
            axes.plot([left, left], [before, value], color=style["color"], linewidth=0.6)
        axes.plot([left, right], [value, value], **style, linewidth=1.3)


def _scale_decays(axes: Axes, schedules: Sequence[PlottedSchedule]) -> None:
    values = _decays(schedules)
    if values[0] > 0:
        axes.set_yscale("log")
        axes.set_ylim(*_decay_limits(values))
    else:
        axes.set_ylim(0, max(values[-1], 1e-12) * 1.4)
    axes.minorticks_off()
    # There are few values, and readers look for exactly these.
    axes.set_yticks(values, [float_text(value) for value in values])
    axes.grid(axis="y", linewidth=0.3, color="0.75")


def _decays(schedules: Sequence[PlottedSchedule]) -> list[float]:
    values = {each.solver.weight_decay for schedule in schedules for each in schedule.stretches}
    return sorted(value for value in values if math.isfinite(value)) or [0.0]


def _decay_limits(values: Sequence[float]) -> tuple[float, float]:
    return values[0] / 2, values[-1] * 2.5


def _decay_in(values: Sequence[float]) -> float:
    """Return the height of the decay panel, in inches, at which its tick labels do not touch."""
    if len(values) < 2 or values[0] <= 0:
        return _DECAY_IN
    low, high = _decay_limits(values)
    nearest = min(math.log(above / below) for below, above in pairwise(values))
    return min(max(_TEXT_IN * math.log(high / low) / nearest, _DECAY_IN), _MOST_DECAY_IN)


def _labels(schedule: PlottedSchedule, index: int, most: int) -> list[Label]:
    """Return labels for the visible jumps of a schedule, largest first, at most `most` of them."""
    real = [mark for mark in marks_of(schedule) if _is_visible(mark)]
    real.sort(key=lambda mark: -abs(mark.after - mark.before))
    return [
        Label(mark.x, max(mark.before, mark.after), _format_jump(mark), line_colour(index))
        for mark in real[:most]
    ]


def _is_visible(mark: Mark) -> bool:
    return abs(mark.after - mark.before) > _VISIBLE_JUMP * max(abs(mark.after), abs(mark.before))


def _format_jump(mark: Mark) -> str:
    return f"{mark.before:.4g} → {mark.after:.4g}"
