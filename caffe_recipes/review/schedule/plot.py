"""Schedules as a picture: learning rate and weight decay over epochs or iterations, for screen and print.

A line's style tells schedules apart without colour; jumps are labelled with the rates on both sides. What a
phase trains past the snapshot that the next one starts from is thin. Branches have lanes of their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from typing import TYPE_CHECKING

from caffe_recipes.caffe.text.writer import float_text
from caffe_recipes.errors import InputError
from caffe_recipes.review.pictures import line_colour, line_style, need_matplotlib, render_figure
from caffe_recipes.review.schedule.curves import Curve, Mark, curve_of, marks_of
from caffe_recipes.review.schedule.labels import Label, place_labels
from caffe_recipes.review.schedule.schedules import Schedule, Stretch

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_GREYS = ("0.93", "0.84")
_MOST_PARTS, _MOST_POINTS = 100, 6000
_MOST_LABELS = 40  # of a page; beyond, those of the largest jumps
_WIDTH_IN, _RATE_IN, _STRIP_IN = 7.2, 3.1, 0.34
_LANE = 0.5  # of a strip: the blocks of one lane
_DECAY_IN, _MOST_DECAY_IN, _TEXT_IN = 0.9, 2.2, 0.13


def render_plot(schedules: Sequence[Schedule], kind: str, *, log: bool = False) -> bytes:
    """Draw schedules of one unit on one axis; `kind` is svg, png or pdf, and the bytes are the same anywhere.

    Raises InputError where matplotlib is missing, and where no iteration has a rate that can be drawn.
    """
    need_matplotlib()
    parts = sum(len(schedule.stretches) for schedule in schedules)
    if parts > _MOST_PARTS:
        raise InputError(schedules[0].name, f"{parts} phases to draw", f"give {_MOST_PARTS} at most")
    samples = _MOST_POINTS // max(parts, 10)
    curves = [[curve_of(stretch, samples) for stretch in schedule.stretches] for schedule in schedules]
    highest = max((rate for curve in chain(*curves) for rate in curve.rates if rate > 0), default=math.nan)
    if not math.isfinite(highest):
        raise InputError(schedules[0].name, "no iteration has a rate above 0 to draw", "mend the schedule")
    return render_figure(lambda: _draw(schedules, curves, highest, log=log), kind)


def _draw(
    schedules: Sequence[Schedule], curves: Sequence[Sequence[Curve]], highest: float, *, log: bool
) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    strips_in = _STRIP_IN * sum(map(_strips, schedules))
    heights = [strips_in, _RATE_IN, _decay_in(_decays(schedules))]
    figure = Figure(figsize=(_WIDTH_IN, sum(heights) + 0.75))
    canvas = FigureCanvasAgg(figure)
    grid = figure.add_gridspec(
        3, 1, height_ratios=heights, hspace=0.07, left=0.118, right=0.975, top=0.985, bottom=0.1
    )
    strips = figure.add_subplot(grid[0])
    rate, decay = (figure.add_subplot(grid[row], sharex=strips) for row in (1, 2))
    end = max(stretch.x_at(stretch.iterations) for schedule in schedules for stretch in schedule.stretches)
    strips.set_xlim(0, end * 1.005)
    _draw_strips(strips, schedules)
    if len(schedules) == 1:
        for axes in (rate, decay):
            _shade(axes, schedules[0].stretches)
    _scale_rates(rate, highest, curves, log=log)
    for index, (schedule, parts) in enumerate(zip(schedules, curves, strict=True)):
        _draw_rates(rate, schedule, parts, index)
        _draw_decays(decay, schedule, index)
    _scale_decays(decay, schedules)
    rate.tick_params(labelbottom=False)
    rate.set_ylabel("learning rate")
    decay.set_ylabel("weight decay")
    decay.set_xlabel(schedules[0].unit)
    figure.align_ylabels((rate, decay))
    labels = [label for index in range(len(schedules)) for label in _labels(schedules, curves, index)]
    lines = [point for curve in chain(*curves) for point in zip(curve.xs, curve.rates, strict=True)]
    place_labels(rate, labels, lines, canvas)
    return figure


def _draw_strips(axes: Axes, schedules: Sequence[Schedule]) -> None:
    """Draw a row for each schedule: its line's style, its name, its phases as blocks, branches beneath."""
    axes.set_ylim(sum(map(_strips, schedules)), 0)
    axes.axis("off")
    end, row = axes.get_xlim()[1], 0.0
    for number, schedule in enumerate(schedules):
        style = line_style(number)
        axes.plot([0, end * 0.05], [row + 0.24] * 2, **style, linewidth=1.3)
        axes.text(end * 0.06, row + 0.26, schedule.name, va="center", fontsize=8, color=style["color"])
        for lane in range(_lanes(schedule)):
            top = row + 0.5 + _LANE * lane
            for index, (stretch, left, right) in enumerate(_spans(schedule.stretches, lane)):
                axes.fill_between([left, right], top, top + 0.45, color=_GREYS[index % 2], linewidth=0)
                axes.text((left + right) / 2, top + 0.235, stretch.name, ha="center", va="center", fontsize=7)
        row += _strips(schedule)


def _lanes(schedule: Schedule) -> int:
    return 1 + max(stretch.lane for stretch in schedule.stretches)


def _strips(schedule: Schedule) -> float:
    """Give the height of a schedule's row; one without branches has 1."""
    return 1 + _LANE * (_lanes(schedule) - 1)


def _spans(stretches: Sequence[Stretch], lane: int | None = None) -> Iterator[tuple[Stretch, float, float]]:
    """Yield each stretch, or those of a lane, with the part of the axis that the model spends in it."""
    for stretch in stretches:
        if lane is None or stretch.lane == lane:
            yield stretch, stretch.begins, stretch.x_at(stretch.taken_iter)


def _shade(axes: Axes, stretches: Sequence[Stretch]) -> None:
    for index, (_, left, right) in enumerate(_spans(stretches, 0)):
        if index % 2 == 0:
            axes.axvspan(left, right, color="0.955", linewidth=0, zorder=0)


def _scale_rates(axes: Axes, highest: float, curves: Sequence[Sequence[Curve]], *, log: bool) -> None:
    if not log:
        axes.set_ylim(0, highest * 1.12)
        return
    # A rate that ends at 0 would stretch the axis without end; four decades hold all that trains.
    lowest = min(rate for curve in chain(*curves) for rate in curve.rates if rate > 0)
    axes.set_yscale("log")
    axes.set_ylim(max(lowest, highest * 1e-4) * 0.8, highest * 2.5)
    axes.yaxis.set_major_formatter(lambda rate, _: f"{rate:g}")


def _draw_rates(axes: Axes, schedule: Schedule, curves: Sequence[Curve], index: int) -> None:
    style = line_style(index)
    for curve in curves:
        taken = curve.taken
        axes.plot(curve.xs[:taken], curve.rates[:taken], **style, linewidth=1.3, zorder=3)
        axes.plot(
            curve.xs[taken - 1 :], curve.rates[taken - 1 :], color=style["color"], linewidth=0.5, zorder=2
        )
    for mark in marks_of(schedule):
        axes.plot([mark.x] * 2, [mark.before, mark.after], color=style["color"], linewidth=0.6, zorder=2)
        axes.plot(
            mark.x, mark.before, "o", color="white", markeredgecolor=style["color"], markersize=3.2, zorder=4
        )
        axes.plot(mark.x, mark.after, "o", color=style["color"], markersize=2.6, zorder=4)


def _draw_decays(axes: Axes, schedule: Schedule, index: int) -> None:
    style = line_style(index)
    for stretch, left, right in _spans(schedule.stretches):
        value, before = stretch.solver.weight_decay, stretch.decay_before
        if before is not None and before != value:
            axes.plot([left, left], [before, value], color=style["color"], linewidth=0.6)
        axes.plot([left, right], [value, value], **style, linewidth=1.3)


def _scale_decays(axes: Axes, schedules: Sequence[Schedule]) -> None:
    values = _decays(schedules)
    if values[0] > 0:
        axes.set_yscale("log")
        axes.set_ylim(*_decay_limits(values))
    else:
        axes.set_ylim(0, max(values[-1], 1e-12) * 1.4)
    axes.minorticks_off()
    # Few values, and it is these that are looked for.
    axes.set_yticks(values, [float_text(value) for value in values])
    axes.grid(axis="y", linewidth=0.3, color="0.75")


def _decays(schedules: Sequence[Schedule]) -> list[float]:
    values = {each.solver.weight_decay for schedule in schedules for each in schedule.stretches}
    return sorted(value for value in values if math.isfinite(value)) or [0.0]


def _decay_limits(values: Sequence[float]) -> tuple[float, float]:
    return values[0] / 2, values[-1] * 2.5


def _decay_in(values: Sequence[float]) -> float:
    """Give the height at which the values beside the axis do not touch."""
    if len(values) < 2 or values[0] <= 0:
        return _DECAY_IN
    low, high = _decay_limits(values)
    nearest = min(math.log(above / below) for below, above in pairwise(values))
    return min(max(_TEXT_IN * math.log(high / low) / nearest, _DECAY_IN), _MOST_DECAY_IN)


def _labels(schedules: Sequence[Schedule], curves: Sequence[Sequence[Curve]], index: int) -> Iterator[Label]:
    """Yield a label for each jump of a schedule; of several schedules, the highest point has its name too."""
    schedule, colour = schedules[index], line_colour(index)
    marks = sorted(marks_of(schedule), key=lambda mark: -abs(mark.after - mark.before))[
        : _MOST_LABELS // len(schedules)
    ]
    texts = {
        (mark.x, max(mark.before, mark.after)): _jump(mark) for mark in sorted(marks, key=lambda mark: mark.x)
    }
    points = [point for curve in curves[index] for point in zip(curve.xs, curve.rates, strict=True)]
    if len(schedules) > 1 and points:
        top = max(texts or points, key=lambda point: point[1])
        texts[top] = f"{schedule.name}\n{texts[top]}" if top in texts else schedule.name
    yield from (Label(x, y, text, colour) for (x, y), text in texts.items())


def _jump(mark: Mark) -> str:
    return f"{mark.before:.4g} → {mark.after:.4g}"
