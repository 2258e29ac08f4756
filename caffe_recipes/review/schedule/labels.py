"""Labels beside the points of a picture, where they hide neither each other nor the lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Annotation
    from matplotlib.transforms import Bbox

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
_MOST_POINTS = 4000  # of lines, that each place is held against
_LEADER_FROM = 12  # points: a label farther off is led to its anchor by a line


@dataclass(frozen=True)
class Label:
    """A text for a point of the axes."""

    x: float
    y: float
    text: str
    colour: str


def place_labels(
    axes: Axes, labels: Sequence[Label], lines: Sequence[_Point], canvas: FigureCanvasAgg
) -> None:
    """Write each label in the best place beside its point; `lines` are points that lines go through.

    The axes' limits are final.
    """
    some = list(lines)[:: len(lines) // _MOST_POINTS + 1]
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
        boxes = [_box_at(text, place, canvas) for place in _PLACES]
        costs = [order + _cost(box, axes.bbox, taken, drawn) for order, box in enumerate(boxes)]
        best = costs.index(min(costs))
        taken.append(_box_at(text, _PLACES[best], canvas))
        _draw_leader(axes, label, _PLACES[best], label.text.count("\n") + 1)


def _box_at(text: Annotation, place: _Place, canvas: FigureCanvasAgg) -> Bbox:
    """Move a text, and return what it covers, in pixels."""
    right, up, align = place
    text.set_position((right, up))
    text.set_horizontalalignment(align)  # type: ignore[arg-type]  # one of the three words
    return text.get_window_extent(canvas.get_renderer())  # type: ignore[no-untyped-call]


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
