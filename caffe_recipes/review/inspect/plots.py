"""Schedules as a picture: learning rate and weight decay over epochs or iterations, for screen and print.

A line's style tells schedules apart without colour; jumps are labelled with the rates on both sides. What a
phase trains past the snapshot that the next one starts from is thin. Branches have lanes of their own.

The points and the marks that a picture of a schedule is drawn from.

Labels beside the points of a picture, where they hide neither each other nor the lines.

Pictures of matplotlib's for screen and print: one look, and the same bytes anywhere.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from caffe_recipes.caffe.rates import POLICIES, lr_at, step_iters, telling_rates
from caffe_recipes.caffe.text.writer import float_text
from caffe_recipes.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation
    from matplotlib.transforms import Bbox

    from caffe_recipes.review.inspect.schedules import PlottedSchedule, Stretch


_SAMPLES = 600  # of a schedule's part: as many as a page has dots


@dataclass(frozen=True)
class Curve:
    """The rates of a stretch at the iterations that its line needs; NaN where there is no finite rate.

    The first `taken` points lead to the snapshot that the next stretch starts from.
    """

    xs: tuple[float, ...]
    rates: tuple[float, ...]
    taken: int


@dataclass(frozen=True)
class Mark:
    """A jump: at a warm-up's end or at a join, from one rate to another."""

    x: float
    before: float
    after: float
    is_join: bool


def curve_of(stretch: Stretch, samples: int = _SAMPLES) -> Curve:
    """Sample a stretch evenly, and on both sides of each jump; no points for `plateau`."""
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
    """Yield the jumps of a schedule that are finite numbers, from left to right in each stretch."""
    for stretch in schedule.stretches:
        rates = telling_rates(stretch.solver, stretch.iterations)
        if rates is None:
            continue
        warmup_x = stretch.x_at(stretch.solver.warmup_iter)
        jumps = (
            (stretch.begins, stretch.rate_before, rates.first, True),
            (warmup_x, rates.warmup_end, rates.after_warmup, False),
        )
        for x, before, after, is_join in jumps:
            if before is not None and after is not None and math.isfinite(before) and math.isfinite(after):
                yield Mark(x, before, after, is_join)


def _iterations(stretch: Stretch, samples: int) -> Iterator[int]:
    last, solver = stretch.iterations - 1, stretch.solver
    yield from range(0, last + 1, max(1, last // samples))
    edges = (solver.warmup_iter, stretch.taken_iter, *step_iters(solver, last)[:samples])
    near = chain(*((edge - 1, edge) for edge in edges), (last,))
    yield from (iteration for iteration in near if 0 <= iteration <= last)


_Point = tuple[float, float]
_Place = tuple[float, float, str]

# Points from the anchor, the nearest place first.
_OFFSETS = (
    (5, 3),
    (5, -3),
    (5, 9),
    (5, -9),
    (9, 15),
    (9, -15),
    (14, 22),
    (20, 30),
    (26, 40),
    (32, 52),
    (40, 64),
)
_PLACES: tuple[_Place, ...] = tuple(
    place
    for right, up in _OFFSETS
    for place in ((right, up, "left"), (-right, up, "right"), (0, abs(up) + 7, "center"))
)
_MOST_LINE_POINTS = 4000  # of lines, that each place is held against
_LEADER_FROM = 12  # points: a label farther off is led to its anchor by a line


@dataclass(frozen=True)
class Label:
    """A text for a point of the axes."""

    x: float
    y: float
    text: str
    colour: str


def place_labels(axes: Axes, labels: Sequence[Label], lines: Sequence[_Point]) -> None:
    """Write each label in the best place beside its point; `lines` are points that lines go through.

    The axes' limits are final.
    """
    some = list(lines)[:: len(lines) // _MOST_LINE_POINTS + 1]
    drawn = [(float(x), float(y)) for x, y in axes.transData.transform(some)] if some else []
    taken: list[Bbox] = []
    for label in labels:
        text = axes.annotate(
            label.text,
            (label.x, label.y),
            (0, 0),
            textcoords="offset points",
            fontsize=7,
            linespacing=1.15,
            color=label.colour,
            va="center",
            zorder=6,
        )
        boxes = [_box_at(text, place) for place in _PLACES]
        costs = [order + _cost(box, axes.bbox, taken, drawn) for order, box in enumerate(boxes)]
        best = costs.index(min(costs))
        taken.append(_box_at(text, _PLACES[best]))
        _draw_leader(axes, label, _PLACES[best], label.text.count("\n") + 1)


def _box_at(text: Annotation, place: _Place) -> Bbox:
    """Move a text, and return what it covers, in pixels."""
    right, up, align = place
    text.set_position((right, up))
    text.set_horizontalalignment(align)  # type: ignore[arg-type]  # one of the three words
    return text.get_window_extent()


def _draw_leader(axes: Axes, label: Label, place: _Place, rows: int) -> None:
    right, up, align = place
    if abs(up) <= _LEADER_FROM:
        return
    end = (right, up - 4.5 * rows) if align == "center" else (right, up)
    style = {"arrowstyle": "-", "linewidth": 0.4, "color": label.colour, "shrinkA": 0, "shrinkB": 2}
    axes.annotate("", (label.x, label.y), end, textcoords="offset points", arrowprops=style)


def _cost(box: Bbox, inside: Bbox, taken: Sequence[Bbox], drawn: Sequence[_Point]) -> float:
    """Say how bad a place is: outside the axes or on a label is worst, on a line somewhat."""
    outside = bool(box.x0 < inside.x0 or box.x1 > inside.x1 or box.y0 < inside.y0 or box.y1 > inside.y1)
    on_labels = sum(bool(box.overlaps(other)) for other in taken)
    on_lines = sum(box.x0 <= x <= box.x1 and box.y0 <= y <= box.y1 for x, y in drawn)
    return float(400 * outside + 1000 * on_labels + 8 * min(on_lines, 20))


# What each format would say of the machine and the day.
_METADATA: dict[str, dict[str, None]] = {
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
_STYLES = ("solid", (0, (5, 1.5)), (0, (5, 1.2, 1, 1.2)), (0, (1, 1)), (0, (8, 2, 1, 2, 1, 2)))
_COLOURS = ("black", "#b3331d", "#1f5a9c", "#3f7d20", "#7a4a9e")
WIDTH_IN = 7.2
RIGHT = 0.975  # of the width: where the axes end
_SETTINGS: dict[Any, Any] = {
    "svg.hashsalt": "caffe-recipes",
    "font.size": 8,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "pdf.fonttype": 42,
    "text.parse_math": False,  # a $ in a path is meant
    "axes.formatter.limits": (-5, 7),
    "grid.linewidth": 0.3,
    "grid.color": "0.75",
}


def format_of(path: Path) -> str:
    """Return the picture format that a file's name asks for; InputError for one that we do not write."""
    kind = path.suffix.lower().removeprefix(".")
    if kind not in _METADATA:
        raise InputError(path, "no picture's name", "end it in .svg, .png or .pdf")
    return kind


def render_figure(draw: Callable[[], Figure], kind: str) -> bytes:
    """Draw a figure in our look; `kind` is svg, png or pdf, and the bytes are the same anywhere.

    Raises InputError where matplotlib is missing.
    """
    if find_spec("matplotlib") is None:
        raise InputError("", "plot needs matplotlib", "pip install 'caffe-recipes[plot]'")
    import matplotlib as mpl

    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_SETTINGS)
        figure = draw()
        picture = io.BytesIO()
        figure.savefig(picture, format=kind, dpi=200, metadata=_METADATA[kind])
    return picture.getvalue()


def stack_axes(
    heights_in: Sequence[float], left: float, *, top: float, bottom: float, gap: float
) -> tuple[Figure, list[Axes]]:
    """Return a figure of axes of such heights, one below the other, over one x axis.

    `left`, `top` and `bottom` are shares of the page; `gap` is one of the axes' mean height.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_IN, sum(heights_in) + 0.75))
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(
        len(heights_in),
        1,
        height_ratios=heights_in,
        hspace=gap,
        left=left,
        right=RIGHT,
        top=top,
        bottom=bottom,
    )
    first = figure.add_subplot(grid[0])
    others = [figure.add_subplot(grid[row], sharex=first) for row in range(1, len(heights_in))]
    return figure, [first, *others]


def line_style(index: int) -> dict[str, Any]:
    """Return the colour and dashes of the n-th line, which are told apart without colour."""
    return {"color": line_colour(index), "linestyle": _STYLES[index % len(_STYLES)]}


def line_colour(index: int) -> str:
    """Return the colour of the n-th line."""
    # With as many colours as styles, the second round pairs them anew.
    return _COLOURS[(index + index // len(_STYLES)) % len(_COLOURS)]


_GREYS = ("0.93", "0.84")
_MOST_PARTS, _MOST_POINTS = 100, 6000
_MOST_LABELS = 40  # of a page; beyond, those of the largest jumps
_RATE_IN, _STRIP_IN = 3.1, 0.34
_LANE = 0.5  # of a strip: the blocks of one lane
_DECAY_IN, _MOST_DECAY_IN, _TEXT_IN = 0.9, 2.2, 0.13


def render_plot(schedules: Sequence[PlottedSchedule], kind: str, *, log: bool = False) -> bytes:
    """Draw schedules of one unit on one axis; `kind` is svg, png or pdf, and the bytes are the same anywhere.

    Raises InputError where matplotlib is missing, and where no iteration has a rate that can be drawn.
    """
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
    schedules: Sequence[PlottedSchedule], curves: Sequence[Sequence[Curve]], highest: float, *, log: bool
) -> Figure:
    strips_in = _STRIP_IN * sum(map(_strips, schedules))
    heights = [strips_in, _RATE_IN, _decay_in(_decays(schedules))]
    figure, (strips, rate, decay) = stack_axes(heights, 0.118, top=0.985, bottom=0.1, gap=0.07)
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
    place_labels(rate, labels, lines)
    return figure


def _draw_strips(axes: Axes, schedules: Sequence[PlottedSchedule]) -> None:
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


def _lanes(schedule: PlottedSchedule) -> int:
    return 1 + max(stretch.lane for stretch in schedule.stretches)


def _strips(schedule: PlottedSchedule) -> float:
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


def _draw_rates(axes: Axes, schedule: PlottedSchedule, curves: Sequence[Curve], index: int) -> None:
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
    # Few values, and it is these that are looked for.
    axes.set_yticks(values, [float_text(value) for value in values])
    axes.grid(axis="y")


def _decays(schedules: Sequence[PlottedSchedule]) -> list[float]:
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


def _labels(
    schedules: Sequence[PlottedSchedule], curves: Sequence[Sequence[Curve]], index: int
) -> Iterator[Label]:
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
