"""How large a box is in print."""

from __future__ import annotations

from caffe_recipes.review.graph.boxes import Box
from caffe_recipes.review.graph.labels import shorten, text_width

TITLE, SMALL, HEADING = 11.0, 9.0, 13.0
TITLE_LINE, LINE, NOTE_LINE, PHASE_LINE = 15.0, 12.0, 13.0, 14.0
HEADING_HEIGHT = 30.0
PADDING = 7.0
_APART = 12.0


def box_width(box: Box) -> float:
    """Give the width that a box's longest line takes."""
    first, *others = box.lines
    widths = [text_width(shorten(first.name), TITLE, is_bold=True), text_width(first.what, SMALL)]
    for line in others:
        phase = text_width(f"{line.phase} only ", SMALL) if line.phase else 0
        widths.append(text_width(shorten(line.name), SMALL) + _APART + phase + text_width(line.what, SMALL))
    widths += [text_width(note, SMALL) + _APART for note in box.notes]
    return float(round(max(widths) + 2 * PADDING))


def box_height(box: Box) -> float:
    """Give the height of a box: its name, its type, a line for each other layer, notes and phase."""
    lines = TITLE_LINE + LINE * len(box.lines) + NOTE_LINE * len(box.notes) + PHASE_LINE * bool(box.phase)
    return lines + PADDING
