"""A sweep as a picture: minutes and node-hours over nodes, a line for each local batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from caffe_recipes.errors import InputError
from caffe_recipes.recipe.estimate import Estimate
from caffe_recipes.review.estimate.sweep import group_lines
from caffe_recipes.review.pictures import line_colour, line_style, need_matplotlib, render_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH_IN, _MINUTES_IN, _HOURS_IN = 7.2, 3.1, 1.7
_MOST_LINES = 8
_MOST_TICKS = 12


def render_sweep_plot(estimates: Sequence[Estimate], kind: str) -> bytes:
    """Draw a sweep; `kind` is svg, png or pdf. What is beyond what is known has an open mark.

    Raises InputError for more local batches than lines can be told apart, and where matplotlib is missing.
    """
    need_matplotlib()
    lines = group_lines(estimates)
    if len(lines) > _MOST_LINES:
        what = f"{len(lines)} local batches to draw"
        raise InputError(estimates[0].recipe, what, f"sweep {_MOST_LINES} at most")
    return render_figure(lambda: _draw(estimates, lines), kind)


def _draw(estimates: Sequence[Estimate], lines: dict[str, list[Estimate]]) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH_IN, _MINUTES_IN + _HOURS_IN + 0.75))
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(
        2,
        1,
        height_ratios=[_MINUTES_IN, _HOURS_IN],
        hspace=0.08,
        left=0.105,
        right=0.975,
        top=0.95,
        bottom=0.085,
    )
    minutes = figure.add_subplot(grid[0])
    hours = figure.add_subplot(grid[1], sharex=minutes)
    for index, (name, line) in enumerate(lines.items()):
        _draw_line(minutes, line, lambda each: each.total_s / 60, index, name)
        _draw_line(hours, line, lambda each: each.node_hours, index, name)
    first = next(iter(lines.values()))
    _draw_training(minutes, first)
    _scale(minutes, estimates)
    minutes.tick_params(labelbottom=False)
    minutes.set_title(estimates[0].recipe, fontsize=8, loc="left")
    minutes.set_ylabel("minutes")
    minutes.legend(frameon=False, fontsize=7)
    hours.set_ylabel("node-hours")
    hours.set_ylim(bottom=0)
    hours.set_xlabel("nodes")
    hours.grid(axis="y", linewidth=0.3, color="0.75")
    figure.align_ylabels((minutes, hours))
    return figure


def _draw_line(
    axes: Axes, line: Sequence[Estimate], value: Callable[[Estimate], float], index: int, name: str
) -> None:
    nodes, values = [each.shape.nodes for each in line], [value(each) for each in line]
    colour = line_colour(index)
    axes.plot(nodes, values, **line_style(index), linewidth=1.3, label=name, zorder=3)
    for each, x, y in zip(line, nodes, values, strict=True):
        fill = "white" if each.pace.notes else colour
        axes.plot(x, y, "o", color=fill, markeredgecolor=colour, markersize=3.2, zorder=4)


def _draw_training(axes: Axes, line: Sequence[Estimate]) -> None:
    """Draw, thin, the training alone, and what it would be if every node were as fast as among the fewest."""
    nodes = [each.shape.nodes for each in line]
    training = [each.duration.training_s / 60 for each in line]
    axes.plot(nodes, training, color="black", linewidth=0.5, label="of it training", zorder=2)
    ideal = [training[0] * nodes[0] / each for each in nodes]
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
    axes.set_xticks(nodes[:: -(-len(nodes) // _MOST_TICKS)])
    axes.xaxis.set_major_formatter(lambda count, _: f"{count:g}")
    axes.yaxis.set_major_formatter(lambda count, _: f"{count:g}")
    axes.grid(axis="y", linewidth=0.3, color="0.75")
