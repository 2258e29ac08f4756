"""Plot a sweep: time and node-hours over the swept key.

Over nodes, local batches that take the same time share a line.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from caffe_recipes.errors import InputError
from caffe_recipes.review.inspect.plot_style import line_colour, line_style, render_figure, require_matplotlib
from caffe_recipes.review.inspect.sweep import FIRST_RANKS, explain_rises, group_lines
from caffe_recipes.units import unit_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from caffe_recipes.recipe.estimate import Estimate
    from caffe_recipes.recipe.pace import RunSize
    from caffe_recipes.units import Unit


_WIDTH_IN, _TIMES_IN, _HOURS_IN = 7.2, 3.1, 1.7
_LEFT, _RIGHT = 0.105, 0.975  # edges of the axes, as fractions of the width
_MOST_LINES = 8
_NOTE_IN, _NOTE_CHARACTERS = 0.13, 105  # height of a line below the plot, and characters in it
_TIME_TOLERANCE = 0.002  # because iterations are rounded to whole ones
_LINE_TOLERANCE = 0.01  # two thin lines nearer than this look like one
_DIGIT_IN, _GAP_IN = 0.075, 0.1  # width of a digit of a tick label, and the gap between labels


@dataclass(frozen=True)
class _Axis:
    """A key that can be swept: its axis label, and how to read it from a shape."""

    title: str
    value: Callable[[RunSize], int]


_AXES = {
    "nodes": _Axis("nodes", lambda shape: shape.nodes),
    "batch_per_rank": _Axis("images per rank", lambda shape: shape.batch_per_rank),
    "global_batch": _Axis("images per iteration", lambda shape: shape.global_batch),
}


def render_sweep_plot(estimates: Sequence[Estimate], kind: str, swept: Sequence[str] = ("nodes",)) -> bytes:
    """Return the plot of a sweep over the keys `swept`; `kind` is svg, png or pdf.

    The x axis is the number of nodes, unless that is constant and another key is swept. Extrapolated points
    are open circles. Speed-ups, if there are any, are drawn over the ranks instead. Where a node is faster
    among more nodes, a note below the plot says why.

    Raises InputError if there are too many local batches to tell their lines apart, or if matplotlib is
    missing.
    """
    require_matplotlib()
    nodes = {each.shape.nodes for each in estimates}
    other = next((key for key in swept if key != "nodes"), None)
    if len(nodes) == 1 and other:
        axis = _AXES[other]
        (count,) = nodes
        lines = {f"{count:,} node{'s' if count != 1 else ''}": list(estimates)}
    else:
        axis, lines = _AXES["nodes"], _merge_lines(group_lines(estimates))
    if len(lines) > _MOST_LINES:
        what = f"{len(lines)} local batches to draw"
        raise InputError(estimates[0].recipe, what, f"sweep {_MOST_LINES} at most")
    if estimates[0].speedup is not None:
        return render_figure(lambda: _draw_speedups(estimates[0].recipe, group_lines(estimates)), kind)
    return render_figure(lambda: _draw(estimates, lines, axis), kind)


def _merge_lines(lines: dict[str, list[Estimate]]) -> dict[str, list[Estimate]]:
    """Merge lines that would coincide: local batches that take the same time at their pace."""
    alike: list[list[str]] = []
    for name, line in lines.items():
        group = next((names for names in alike if _coincides(line, lines[names[0]])), None)
        if group is None:
            alike.append([name])
        else:
            group.append(name)
    merged = {}
    for names in alike:
        batches, kinds = zip(*(name.split(" ", 1) for name in names), strict=True)
        # Keep the line with the fewest extrapolated points.
        best = min(names, key=lambda name: sum(bool(each.pace.notes) for each in lines[name]))
        merged[f"{', '.join(batches)} {kinds[0]}"] = lines[best]
    return merged


def _coincides(line: Sequence[Estimate], other: Sequence[Estimate]) -> bool:
    """Return whether two lines have the same node counts and nearly the same times."""
    return [each.shape.nodes for each in line] == [each.shape.nodes for each in other] and all(
        math.isclose(one.total_s, two.total_s, rel_tol=_TIME_TOLERANCE)
        for one, two in zip(line, other, strict=True)
    )


def _draw(estimates: Sequence[Estimate], lines: dict[str, list[Estimate]], axis: _Axis) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    notes = [textwrap.fill(note, _NOTE_CHARACTERS) for line in lines.values() for note in explain_rises(line)]
    notes_in = _NOTE_IN * sum(note.count("\n") + 1 for note in notes)
    height = _TIMES_IN + _HOURS_IN + 0.75 + notes_in
    figure = Figure(figsize=(_WIDTH_IN, height))
    FigureCanvasAgg(figure)
    figure.text(_LEFT, 0.06 / height, "\n".join(notes), fontsize=7, va="bottom")
    grid = figure.add_gridspec(
        2,
        1,
        height_ratios=[_TIMES_IN, _HOURS_IN],
        hspace=0.08,
        left=_LEFT,
        right=_RIGHT,
        top=1 - 0.28 / height,
        bottom=(0.47 + notes_in) / height,
    )
    unit = unit_of(median(each.total_s for each in estimates))
    times = figure.add_subplot(grid[0])
    hours = figure.add_subplot(grid[1], sharex=times)
    for index, (name, line) in enumerate(lines.items()):
        _draw_line(times, axis, line, lambda each: each.total_s / unit.seconds, index, name)
        _draw_line(hours, axis, line, lambda each: each.node_hours, index, name)
    label = "training only" if len(lines) == 1 else "training only, first line"
    _draw_training(times, axis, next(iter(lines.values())), unit, label)
    if any(each.pace.notes for line in lines.values() for each in line):
        _mark(times, [], [], "white", line_colour(0), label="extrapolated")
    _scale(times, axis, estimates)
    times.tick_params(labelbottom=False)
    times.set_title(estimates[0].recipe, fontsize=8, loc="left")
    times.set_ylabel(unit.name)
    times.legend(framealpha=1, edgecolor="none", fontsize=7)
    hours.set_ylabel("node-hours")
    hours.set_ylim(0, 1.1 * max(each.node_hours for each in estimates))
    hours.yaxis.set_major_formatter(lambda count, _: f"{count:,.10g}")
    hours.set_xlabel(axis.title)
    hours.grid(axis="y", linewidth=0.3, color="0.75")
    figure.align_ylabels((times, hours))
    return figure


def _draw_speedups(title: str, lines: dict[str, list[Estimate]]) -> Figure:
    """Draw the speed-up over four ranks, and linear scaling, as in the paper's Figures 1 and 2."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH_IN, _TIMES_IN + _HOURS_IN))
    FigureCanvasAgg(figure)
    axes = figure.add_axes((_LEFT, 0.1, _RIGHT - _LEFT, 0.84))
    most = max(each.shape.ranks for line in lines.values() for each in line)
    linear = [0, most], [0, most / FIRST_RANKS]
    axes.plot(*linear, color="0.6", linewidth=0.5, linestyle=(0, (1, 2)), label="linear scaling", zorder=1)
    for index, (name, line) in enumerate(lines.items()):
        ranks, speedups = zip(*((each.shape.ranks, each.speedup or 0) for each in line), strict=True)
        axes.plot(ranks, speedups, **line_style(index), linewidth=1.3, label=name, zorder=3)
        for each, x, y in zip(line, ranks, speedups, strict=True):
            colour = line_colour(index)
            _mark(axes, [x], [y], "white" if each.pace.notes else colour, colour)
    if any(each.pace.notes for line in lines.values() for each in line):
        _mark(axes, [], [], "white", line_colour(0), label="extrapolated")
    for number in (axes.xaxis, axes.yaxis):
        number.set_major_formatter(lambda count, _: f"{count:,.10g}")
    axes.set_title(title, fontsize=8, loc="left")
    axes.set_xlabel("ranks")
    axes.set_ylabel(f"speed-up over {FIRST_RANKS} ranks")
    axes.grid(axis="y", linewidth=0.3, color="0.75")
    axes.legend(framealpha=1, edgecolor="none", fontsize=7)
    return figure


def _draw_line(
    axes: Axes,
    axis: _Axis,
    line: Sequence[Estimate],
    value: Callable[[Estimate], float],
    index: int,
    name: str,
) -> None:
    xs, values = [axis.value(each.shape) for each in line], [value(each) for each in line]
    colour = line_colour(index)
    axes.plot(xs, values, **line_style(index), linewidth=1.3, label=name, zorder=3)
    for each, x, y in zip(line, xs, values, strict=True):
        fill = "white" if each.pace.notes else colour
        _mark(axes, [x], [y], fill, colour)


def _mark(axes: Axes, x: list[float], y: list[float], fill: str, edge: str, label: str | None = None) -> None:
    axes.plot(x, y, "o", color=fill, markeredgecolor=edge, markersize=3.2, zorder=4, label=label)


def _draw_training(axes: Axes, axis: _Axis, line: Sequence[Estimate], unit: Unit, label: str) -> None:
    """Draw thin lines for the training time, and for the training time if scaling were linear."""
    xs = [axis.value(each.shape) for each in line]
    training = [each.duration.training_s / unit.seconds for each in line]
    scaling = [each.pace.scaling for each in line]
    ideal = [time * (one.efficiency if one else 1) for time, one in zip(training, scaling, strict=True)]
    is_linear = all(math.isclose(a, b, rel_tol=_LINE_TOLERANCE) for a, b in zip(training, ideal, strict=True))
    is_swept = axis is _AXES["nodes"]
    label += ": linear scaling" if is_linear and is_swept and len(xs) > 1 else ""
    axes.plot(xs, training, color="black", linewidth=0.5, label=label, zorder=2)
    if is_linear or not is_swept:
        return
    axes.plot(xs, ideal, color="0.6", linewidth=0.5, linestyle=(0, (1, 2)), label="linear scaling", zorder=1)


def _scale(axes: Axes, axis: _Axis, estimates: Sequence[Estimate]) -> None:
    from matplotlib.ticker import LogLocator

    xs = sorted({axis.value(each.shape) for each in estimates})
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.minorticks_off()
    axes.set_xticks(find_ticks(xs))
    axes.xaxis.set_major_formatter(lambda count, _: f"{count:,.0f}")
    axes.yaxis.set_major_formatter(lambda count, _: f"{count:,.10g}")
    axes.grid(axis="y", linewidth=0.3, color="0.75")


def find_ticks(nodes: Sequence[int]) -> list[int]:
    """Return those of the increasing counts whose labels fit on a log axis, always the first and the last.

    >>> find_ticks([64, 65, 66, 1000]), find_ticks([256, 512, 1408, 1472, 1536])
    ([64, 1000], [256, 512, 1536])
    """
    first, *between = nodes
    if not between:
        return [first]
    last = between.pop()
    # The axis extends beyond the counts by a twentieth at either end.
    width_in = _WIDTH_IN * (_RIGHT - _LEFT) / 1.1
    label_in = len(f"{last:,}") * _DIGIT_IN + _GAP_IN
    room = math.log(last / first) * label_in / width_in
    kept = [first]
    for count in between:
        if math.log(count / kept[-1]) >= room <= math.log(last / count):
            kept.append(count)
    return [*kept, last]
