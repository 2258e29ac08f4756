"""Draw the curves of trainings: loss, accuracy and rate above each other, in the style of the schedules."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from caffe_recipes.caffe.measurements import is_top5
from caffe_recipes.errors import InputError
from caffe_recipes.review.inspect.curves import (
    EVALUATION,
    LOSS_KEY,
    RATE_KEY,
    Key,
    TrainingCurve,
    XAxis,
    is_test_loss,
    is_top1,
    running_means,
)
from caffe_recipes.review.inspect.plot_style import line_style, render_figure, require_matplotlib, scale_rates
from caffe_recipes.wording import printable, shorten_middle

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_CURVES = 20
_WIDTH_IN, _HEIGHTS_IN = 7.2, {"loss": 2.6, "accuracy": 1.9, "learning rate": 1.2}
_LETTER_IN, _LINE_IN = 0.058, 0.13  # of a label, at 7 points
_MOST_LETTERS = 36
_RIGHT_IN, _LEFT_IN, _TOP_IN, _BOTTOM_IN, _GAP_IN = 0.12, 0.8, 0.28, 0.42, 0.14
_FAINT = 0.28
_GREY = "0.45"
_ORDER = ("train", EVALUATION, "test")
_DOTS: dict[str, Any] = {"linewidth": 1.2, "marker": "o", "markersize": 2.2}
_TRIANGLES: dict[str, Any] = {
    **{"linewidth": 0.7, "marker": "^", "markersize": 2.8},
    **{"markerfacecolor": "white", "markeredgewidth": 0.6},
}


def render_curves(curves: Sequence[TrainingCurve], axis: XAxis, kind: str, *, log: bool = False) -> bytes:
    """Return a plot of curves as svg, png or pdf, the same bytes on any machine; `log` is for the rate.

    Raises InputError if matplotlib is missing, or if there is nothing or too much to draw.
    """
    require_matplotlib()
    if len(curves) > _MOST_CURVES:
        raise InputError(curves[0].name, f"{len(curves)} curves to draw", f"give {_MOST_CURVES} at most")
    panels = [panel for panel in _HEIGHTS_IN if any(_has(curve, panel) for curve in curves)]
    if not panels:
        hint = "give a .csv to write, or another log"
        raise InputError(curves[0].name, "shows no loss, accuracy or rate", hint)
    return render_figure(lambda: _draw(curves, axis, panels, log=log), kind)


def _has(curve: TrainingCurve, panel: str) -> bool:
    keys = curve.measured()
    if panel == "accuracy":
        return any(map(_is_accuracy, keys))
    return LOSS_KEY in keys or any(map(is_test_loss, keys)) if panel == "loss" else RATE_KEY in keys


def _is_accuracy(key: Key) -> bool:
    return is_top1(key) or is_top5(key[2])


def _draw(curves: Sequence[TrainingCurve], axis: XAxis, panels: Sequence[str], *, log: bool) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = [_shorten(curve.name) for curve in curves]
    right = _RIGHT_IN + _LETTER_IN * max(map(len, names))
    heights = [_HEIGHTS_IN[panel] for panel in panels]
    height = sum(heights) + _TOP_IN + _BOTTOM_IN + _GAP_IN * (len(panels) - 1)
    figure = Figure(figsize=(_WIDTH_IN, height))
    FigureCanvasAgg(figure)
    top, first = height - _TOP_IN, None
    for panel, panel_in in zip(panels, heights, strict=True):
        top -= panel_in
        box = (_LEFT_IN / _WIDTH_IN, top / height, 1 - (_LEFT_IN + right) / _WIDTH_IN, panel_in / height)
        axes = figure.add_axes(box, sharex=first)
        top -= _GAP_IN
        ends = [
            end for index, curve in enumerate(curves) for end in _draw_panel(axes, curve, axis, index, panel)
        ]
        axes.set_ylabel(panel)
        _draw_published(axes, curves, panel)
        _draw_marks(axes, curves, axis, is_top=first is None)
        _set_limits(axes, curves, axis, panel, log=log)
        first = first or axes
        axes.tick_params(labelbottom=panel == panels[-1])
        _write_key(axes, curves, panel)
        _write_ends(axes, [(end, names[end[0]]) for end in ends], panel_in)
    axes.set_xlabel(axis)
    axes.xaxis.set_major_formatter(lambda count, _: f"{count:,.10g}")
    return figure


End = tuple[int, float, float]  # the number of a curve, and its last point


def _draw_panel(axes: Axes, curve: TrainingCurve, axis: XAxis, index: int, panel: str) -> Iterator[End]:
    """Draw what a curve has for a panel; yield its last point."""
    style = line_style(index)
    end: End | None = None
    if panel == "accuracy":
        keys = filter(_is_accuracy, curve.measured())
        for key in sorted(
            keys, key=lambda key: (is_top1(key), _ORDER.index(key[0]))
        ):  # the last has the name
            end = _draw_accuracy(axes, curve, axis, index, key) or end
    elif panel == "learning rate":
        for piece in curve.pieces:
            xs, rates = piece.points(RATE_KEY, axis)
            axes.plot(xs, rates, **style, linewidth=1.1)
            end = (index, xs[-1], rates[-1]) if xs else end
    else:
        for piece in curve.pieces:
            xs, losses = piece.points(LOSS_KEY, axis)
            means = running_means(losses)
            axes.plot(xs, losses, color=style["color"], linewidth=0.6, alpha=_FAINT)
            axes.plot(xs, means, **style, linewidth=1.2)
            known = [(x, mean) for x, mean in zip(xs, means, strict=True) if math.isfinite(mean)]
            if known:
                end = (index, *known[-1])
                if len(known) < len(xs):  # it diverged
                    axes.plot(*known[-1], "X", color=style["color"], markersize=6, zorder=5)
        for key in filter(is_test_loss, curve.measured()):
            axes.plot(
                *_tested(curve, key, axis), "o", color=style["color"], markersize=2.6, markerfacecolor="white"
            )
    if end:
        yield end


def _tested(curve: TrainingCurve, key: Key, axis: XAxis) -> tuple[list[float], list[float]]:
    """Return the results of tests, without that of the untrained net, whose statistics are empty."""
    xs, values = curve.points(key, axis)
    skipped = bool(curve.pieces[0].series.get(key) and curve.pieces[0].series[key].iterations[0] == 0)
    return xs[skipped:], values[skipped:]


def _draw_accuracy(axes: Axes, curve: TrainingCurve, axis: XAxis, index: int, key: Key) -> End | None:
    xs, values = curve.points(key, axis)
    style, of_top5 = line_style(index), _TRIANGLES if is_top5(key[2]) else {}
    if key[0] == EVALUATION:
        axes.plot(xs, values, "*", color=style["color"], markersize=5, clip_on=False, zorder=5)
        return (index, xs[-1], values[-1]) if xs else None
    if key[0] == "test":
        axes.plot(xs, values, **{**style, **(of_top5 or _DOTS)})
        return (index, xs[-1], values[-1]) if xs else None
    if not of_top5:
        axes.plot(xs, values, color=style["color"], linewidth=0.6, alpha=_FAINT)
    smoothed = {"color": style["color"], "linestyle": ":", "linewidth": 0.8, "markevery": 0.1}
    axes.plot(xs, running_means(values), **{**smoothed, **of_top5})
    return (index, xs[-1], values[-1]) if xs else None


def _draw_published(axes: Axes, curves: Sequence[TrainingCurve], panel: str) -> None:
    """Draw the published results as lines, each once."""
    if panel == "accuracy":
        found = {
            curve.published_top1: f"published {curve.published_top1:.4g}"
            for curve in curves
            if curve.published_top1
        }
    elif panel == "loss":
        found = {
            curve.published_loss: f"published, tested: {curve.published_loss:.4g}"
            for curve in curves
            if curve.published_loss
        }
    else:
        return
    for value, text in found.items():
        assert value is not None
        axes.axhline(value, color=_GREY, linewidth=0.8, linestyle=(0, (6, 3)), zorder=1)
        axes.annotate(
            text, (0.01, value), (0, 2), xycoords=("axes fraction", "data"), textcoords="offset points",
            fontsize=6.5, color=_GREY,
        )  # fmt: skip


_DASHES = {"join": "solid", "restart": (0, (1, 1.5)), "warm-up": (0, (4, 2, 1, 2))}


def _draw_marks(axes: Axes, curves: Sequence[TrainingCurve], axis: XAxis, *, is_top: bool) -> None:
    """Draw joins, restarts and the ends of warm-ups; name them above the top panel of a single curve."""
    from matplotlib.transforms import blended_transform_factory

    taken_px = -math.inf
    for index, curve in enumerate(curves):
        colour = _GREY if len(curves) == 1 else line_style(index)["color"]
        for mark in sorted(curve.marks(axis), key=lambda mark: mark.x):
            axes.axvline(
                mark.x, color=colour, linewidth=0.6, linestyle=_DASHES[mark.what], alpha=0.7, zorder=1
            )
    if not is_top or len(curves) > 1:
        return
    placed = blended_transform_factory(axes.transData, axes.transAxes)
    axes.figure.canvas.draw()
    for mark in sorted(curves[0].marks(axis), key=lambda mark: mark.x):
        names = {"join": mark.name or "join", "restart": "restart", "warm-up": "warm-up ends"}
        text = _shorten(names[mark.what])
        x_px = float(axes.transData.transform((mark.x, 0))[0])
        if x_px < taken_px:
            continue
        axes.text(
            mark.x,
            1.01,
            text,
            transform=placed,
            fontsize=6.5,
            color=_GREY,
            ha="left",
            va="bottom",
        )
        taken_px = x_px + (len(text) + 1) * _LETTER_IN * axes.figure.dpi


def _set_limits(axes: Axes, curves: Sequence[TrainingCurve], axis: XAxis, panel: str, *, log: bool) -> None:
    """Set limits that a few outliers do not stretch."""
    axes.margins(x=0.01)
    if panel == "learning rate":
        scale_rates(axes, (rate for curve in curves for rate in curve.points(RATE_KEY, axis)[1]), log=log)
        return
    if panel != "loss":
        axes.set_ylim(bottom=0)
        return
    shown = [
        mean
        for curve in curves
        for piece in curve.pieces
        for mean in running_means(piece.points(LOSS_KEY, axis)[1])
    ]
    shown += [
        value
        for curve in curves
        for key in filter(is_test_loss, curve.measured())
        for value in _tested(curve, key, axis)[1]
    ]
    finite = sorted(value for value in shown if math.isfinite(value))
    if finite:
        usual = finite[int(0.98 * (len(finite) - 1))]
        axes.set_ylim(0, min(finite[-1] * 1.06, usual * 2) or 1.0)


def _write_ends(axes: Axes, ends: Sequence[tuple[End, str]], panel_in: float) -> None:
    """Write the names of the curves beside their ends, right of the axes, without collisions.

    A thin line leads from a curve that ends earlier to its name.
    """
    in_panel = axes.transData + axes.transAxes.inverted()
    right = axes.get_xlim()[1]
    axes.set_xlim(axes.get_xlim())
    step, places = _LINE_IN / panel_in, list[float]()
    ordered = sorted(ends, key=lambda end: (end[0][2], end[0][0]))
    for (_, _, y), _ in ordered:
        height = min(max(float(in_panel.transform((right, y))[1]), 0.0), 1.0)
        places.append(max(height, places[-1] + step if places else 0.0))
    for at in range(len(places)):  # push down what is above the top
        places[at] = min(places[at], 1.0 - step * (len(places) - 1 - at))
    for place, ((index, x, y), name) in zip(places, ordered, strict=True):
        colour = line_style(index)["color"]
        axes.text(1.012, place, name, transform=axes.transAxes, fontsize=7, color=colour, va="center")
        if 0.03 < (right - x) / (right - axes.get_xlim()[0]) < 0.25:  # a longer one would look like data
            leads_to = in_panel.inverted().transform((1.0, place))[1]
            # Thin and grey, as no data is.
            axes.plot([x, right], [y, leads_to], color=_GREY, linewidth=0.3, alpha=0.6, zorder=1)


def _write_key(axes: Axes, curves: Sequence[TrainingCurve], panel: str) -> None:
    """Write what the lines and circles of a panel are, where that is not obvious."""
    keys = [key for curve in curves for key in curve.measured()]
    if panel == "loss" and any(map(is_test_loss, keys)):
        text, y, side = "line: training, smoothed; circles: test", 0.97, "top"
    elif panel == "accuracy":
        phases = {key[0] for key in keys if _is_accuracy(key)}
        parts = ["line: test"] if "test" in phases else []
        parts += ["dots: training, smoothed"] if "train" in phases else []
        parts += ["stars: evaluated"] if EVALUATION in phases else []
        parts += ["with triangles: top-5"] if any(is_top5(key[2]) for key in keys) else []
        text, y, side = "; ".join(parts), 0.04, "bottom"
    else:
        return
    axes.text(
        0.99, y, text, transform=axes.transAxes, fontsize=6.5, color=_GREY, ha="right", va=side, zorder=6,
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1},
    )  # fmt: skip


def _shorten(name: str) -> str:
    # The names of logs often differ only at their end.
    return shorten_middle(printable(name), _MOST_LETTERS, "…")
