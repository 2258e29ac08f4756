"""A sweep as a picture: time and node-hours over nodes, a line for all local batches that take the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import median
from typing import TYPE_CHECKING

from caffe_recipes.errors import InputError
from caffe_recipes.review.inspect.estimates import group_lines
from caffe_recipes.review.inspect.plots import (
    RIGHT,
    WIDTH_IN,
    line_colour,
    line_style,
    render_figure,
    stack_axes,
)
from caffe_recipes.units import unit_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from caffe_recipes.recipe.estimate import Estimate
    from caffe_recipes.units import Unit


_TIMES_IN, _HOURS_IN = 3.1, 1.7
_LEFT = 0.105  # of the width: where the axes begin
_MOST_LINES = 8
_SAME = 0.002  # as iterations are whole
_ALIKE = 0.01  # as near as two thin lines can be told apart
_DIGIT_IN, _GAP_IN = 0.075, 0.1  # of a tick's label


def render_sweep_plot(estimates: Sequence[Estimate], kind: str) -> bytes:
    """Draw a sweep; `kind` is svg, png or pdf. What is beyond what is known has an open mark.

    Raises InputError for more local batches than lines can be told apart, and where matplotlib is missing.
    """
    lines = _merge(group_lines(estimates))
    if len(lines) > _MOST_LINES:
        what = f"{len(lines)} local batches to draw"
        raise InputError(estimates[0].recipe, what, f"sweep {_MOST_LINES} at most")
    return render_figure(lambda: _draw(estimates, lines), kind)


def _merge(lines: dict[str, list[Estimate]]) -> dict[str, list[Estimate]]:
    """Make one of the lines that would lie on one another: by their pace their batches take the same time."""
    alike: list[list[str]] = []
    for name, line in lines.items():
        group = next((names for names in alike if _lies_on(line, lines[names[0]])), None)
        if group is None:
            alike.append([name])
        else:
            group.append(name)
    merged = {}
    for names in alike:
        batches, kinds = zip(*(name.split(" ", 1) for name in names), strict=True)
        # The one that is known best tells how well all of them are.
        best = min(names, key=lambda name: sum(bool(each.pace.notes) for each in lines[name]))
        merged[f"{', '.join(batches)} {kinds[0]}"] = lines[best]
    return merged


def _lies_on(line: Sequence[Estimate], other: Sequence[Estimate]) -> bool:
    """Tell if two lines of the same counts of nodes cannot be told apart."""
    return [each.shape.nodes for each in line] == [each.shape.nodes for each in other] and all(
        math.isclose(one.total_s, two.total_s, rel_tol=_SAME) for one, two in zip(line, other, strict=True)
    )


def _draw(estimates: Sequence[Estimate], lines: dict[str, list[Estimate]]) -> Figure:
    heights = (_TIMES_IN, _HOURS_IN)
    figure, (times, hours) = stack_axes(heights, _LEFT, top=0.95, bottom=0.085, gap=0.08)
    unit = unit_of(median(each.total_s for each in estimates))
    for index, (name, line) in enumerate(lines.items()):
        _draw_line(times, line, lambda each: each.total_s / unit.seconds, index, name)
        _draw_line(hours, line, lambda each: each.node_hours, index, name)
    label = "of it training" if len(lines) == 1 else "of the first one training"
    _draw_training(times, next(iter(lines.values())), unit, label)
    if any(each.pace.notes for line in lines.values() for each in line):
        _mark(times, [], [], "white", line_colour(0), label="beyond what is known")
    _scale(times, estimates)
    times.tick_params(labelbottom=False)
    times.set_title(estimates[0].recipe, fontsize=8, loc="left")
    times.set_ylabel(unit.name)
    times.legend(frameon=False, fontsize=7)
    hours.set_ylabel("node-hours")
    hours.set_ylim(0, 1.1 * max(each.node_hours for each in estimates))
    hours.yaxis.set_major_formatter(lambda count, _: f"{count:,.10g}")
    hours.set_xlabel("nodes")
    hours.grid(axis="y")
    figure.align_ylabels((times, hours))
    return figure


def _draw_line(
    axes: Axes, line: Sequence[Estimate], value: Callable[[Estimate], float], index: int, name: str
) -> None:
    nodes, values = [each.shape.nodes for each in line], [value(each) for each in line]
    colour = line_colour(index)
    axes.plot(nodes, values, **line_style(index), linewidth=1.3, label=name, zorder=3)
    for each, x, y in zip(line, nodes, values, strict=True):
        fill = "white" if each.pace.notes else colour
        _mark(axes, [x], [y], fill, colour)


def _mark(axes: Axes, x: list[float], y: list[float], fill: str, edge: str, label: str | None = None) -> None:
    axes.plot(x, y, "o", color=fill, markeredgecolor=edge, markersize=3.2, zorder=4, label=label)


def _draw_training(axes: Axes, line: Sequence[Estimate], unit: Unit, label: str) -> None:
    """Draw, thin, the training alone, and what it would be if every node were as fast as among the fewest."""
    nodes = [each.shape.nodes for each in line]
    training = [each.duration.training_s / unit.seconds for each in line]
    ideal = [training[0] * nodes[0] / each for each in nodes]
    # One would lie on the other.
    is_linear = all(math.isclose(a, b, rel_tol=_ALIKE) for a, b in zip(training, ideal, strict=True))
    label += ": linear scaling" if is_linear and len(nodes) > 1 else ""
    axes.plot(nodes, training, color="black", linewidth=0.5, label=label, zorder=2)
    if is_linear:
        return
    axes.plot(
        nodes, ideal, color="0.6", linewidth=0.5, linestyle=(0, (1, 2)), label="linear scaling", zorder=1
    )


def _scale(axes: Axes, estimates: Sequence[Estimate]) -> None:
    from matplotlib.ticker import LogLocator

    nodes = sorted({each.shape.nodes for each in estimates})
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.minorticks_off()
    axes.set_xticks(find_ticks(nodes))
    axes.xaxis.set_major_formatter(lambda count, _: f"{count:,.0f}")
    axes.yaxis.set_major_formatter(lambda count, _: f"{count:,.10g}")
    axes.grid(axis="y")


def find_ticks(nodes: Sequence[int]) -> list[int]:
    """Return of rising counts on a log axis those whose labels have room: the first, the last, some between.

    >>> find_ticks([64, 65, 66, 1000]), find_ticks([256, 512, 1408, 1472, 1536])
    ([64, 1000], [256, 512, 1536])
    """
    first, *between = nodes
    if not between:
        return [first]
    last = between.pop()
    # The axis goes on beyond the counts by a twentieth at either end.
    width_in = WIDTH_IN * (RIGHT - _LEFT) / 1.1
    label_in = len(f"{last:,}") * _DIGIT_IN + _GAP_IN
    room = math.log(last / first) * label_in / width_in
    kept = [first]
    for count in between:
        if math.log(count / kept[-1]) >= room <= math.log(last / count):
            kept.append(count)
    return [*kept, last]
