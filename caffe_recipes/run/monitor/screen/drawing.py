"""Draw the screen of a run as lines of text, for a terminal of any size from 40 x 12 characters on.

Whatever has a colour also has a word or a sign of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from rich.cells import cell_len
from rich.text import Text

from caffe_recipes.run.console import write_loss
from caffe_recipes.run.monitor.screen.contents import CurvePoint, HostCell, PhaseRow, ScreenContents
from caffe_recipes.units import write_clock
from caffe_recipes.wording import describe_count, one_line

MIN_WIDTH, MIN_HEIGHT = 40, 12
_FOOTER = "Ctrl-C stops watching; the run continues"
_BRAILLE, _DOTS = 0x2800, ((0x40, 0x04, 0x02, 0x01), (0x80, 0x20, 0x10, 0x08))  # from the bottom
_LOG_FROM = 20  # a curve whose highest value is this many times the lowest has a logarithmic scale
_SIGNS = {"ok": ("●", "o", "green"), "late": ("▼", "v", "yellow"), "blamed": ("✗", "x", "red")}
_STATES = {"ok": "at work", "late": "late", "blamed": "ended a launch"}
_COLOURS = {"finished": "green", "training": "bold cyan", "branch": "bold cyan", "starting": "cyan"}


def draw_screen(
    contents: ScreenContents, lines: Sequence[str], width: int, height: int, *, can_draw: bool = True
) -> list[Text]:
    """Return `height` lines of at most `width` characters; without `can_draw` they are ASCII.

    `lines` are the last lines of the run; as many as there is room for are shown.
    """
    top = [_title(contents, width), *_phase_lines(contents, width, max(2, height // 3), can_draw=can_draw)]
    top += _alarm_lines(contents, width, 4 if height >= 40 else 2)
    top.append(_speed_line(contents, width))
    top += _host_lines(contents.hosts, width, max(1, height // 12), can_draw=can_draw)
    room = height - len(top) - 1
    chart = min(24, max(0, room * 2 // 3))
    top += _charts(contents, width, chart, can_draw=can_draw) if chart >= 3 else []
    tail = [_cut(Text(one_line(line)), width) for line in lines[-max(0, height - len(top) - 1) :]]
    blank = [Text() for _ in range(height - len(top) - len(tail) - 1)]
    return [*top, *blank, *tail, _cut(Text(_FOOTER, "dim"), width)][:height]


def _title(contents: ScreenContents, width: int) -> Text:
    left = Text.assemble((contents.name, "bold"), "  ", contents.doing)
    ran = "" if contents.ran_s is None else f"{write_clock(contents.ran_s)} since the start"
    remaining = "" if contents.left_s is None else f"{write_clock(contents.left_s)} left"
    times = ", ".join(filter(None, (ran, remaining)))
    if remaining and cell_len(left.plain) + 2 + cell_len(times) > width:
        times = remaining
        left = _cut(left, max(0, width - 2 - cell_len(times)))
    return _justify(left, Text(times), width)


def _phase_lines(contents: ScreenContents, width: int, most: int, *, can_draw: bool) -> list[Text]:
    """Return a bar for each phase, of many those around the one in progress, and one for the chain."""
    rows = list(contents.phases)
    if len(rows) > most:
        at = next((index for index, row in enumerate(rows) if row.word != "finished"), len(rows) - 1)
        first = min(max(0, at - most // 2), len(rows) - most)
        rows = rows[first : first + most]
    name_width = min(max(map(len, ["chain", *(row.name for row in rows)])), width // 4)
    share = contents.epochs / contents.all_epochs if contents.all_epochs else 0.0
    epochs = f"epoch {contents.epochs:.1f} of {contents.all_epochs:.1f}"
    lines = [_phase_line(row, name_width, width, can_draw=can_draw) for row in rows]
    return [*lines, _bar_line("chain", name_width, share, epochs, "bold", width, can_draw=can_draw)]


def _phase_line(row: PhaseRow, name_width: int, width: int, *, can_draw: bool) -> Text:
    word, loss = f"{row.word:8}", "" if row.loss is None else f"loss {write_loss(row.loss)}"
    speed = f"{row.images_per_s:,.0f} images/s" if row.images_per_s and width >= 100 else ""
    remaining = f"{write_clock(row.left_s)} left" if row.left_s and row.word != "finished" else ""
    done = f"{row.iteration:,}/{row.last_iter:,}"
    parts = [word, done, loss, speed, remaining]
    for part in (word, loss, done):  # a narrow terminal keeps the time left
        if remaining and len(_join(parts)) > width - name_width - _bar_length(width) - 9:
            parts.remove(part)
    share = row.iteration / row.last_iter if row.last_iter else 0.0
    colour = _COLOURS.get(row.word, "dim")
    return _bar_line(row.name, name_width, share, _join(parts), colour, width, can_draw=can_draw)


def _join(parts: Sequence[str]) -> str:
    return "  ".join(filter(None, parts))


def _bar_length(width: int) -> int:
    return max(6, min(40, width // 5))


def _bar_line(
    name: str, name_width: int, share: float, text: str, colour: str, width: int, *, can_draw: bool
) -> Text:
    length = _bar_length(width)
    done = math.floor(length * min(1.0, max(0.0, share)))
    full, empty = ("━", "─") if can_draw else ("#", "-")
    name = _cut(Text(name), name_width).plain
    line = Text.assemble(
        f"{name}{' ' * (name_width - cell_len(name))}  ",
        (full * done, colour),
        (empty * (length - done), "dim"),
        f" {math.floor(100 * min(1.0, max(0.0, share))):3}%  {text}",
    )
    return _cut(line, width)


def _alarm_lines(contents: ScreenContents, width: int, most: int) -> list[Text]:
    if not contents.alarms:
        return [_cut(Text("no alarms", "green"), width)]
    lines = [_cut(Text(f"ALARM {one_line(alarm)}", "bold red"), width) for alarm in contents.alarms]
    more = len(lines) - most
    return lines if more <= 0 else [*lines[: most - 1], Text(f"ALARM and {more + 1} more", "bold red")]


def _speed_line(contents: ScreenContents, width: int) -> Text:
    parts = []
    if contents.images_per_s is not None:
        speed = f"{contents.images_per_s:,.0f} images/s"
        nodes = sum(host.state != "blamed" for host in contents.hosts)
        parts.append(f"{speed}, {contents.images_per_s / nodes:,.0f} a node" if nodes > 1 else speed)
    elif contents.waits_for:
        parts.append(contents.waits_for)
    if contents.tested is not None:
        source = f" (reported: {contents.reported_percent:g}%)" if contents.reported_percent else ""
        parts.append(f"test top-1 {contents.tested:.2%}{source}")
    return _cut(Text("  ".join(parts)), width)


def _host_lines(hosts: Sequence[HostCell], width: int, most: int, *, can_draw: bool) -> list[Text]:
    """Return the hosts as a grid of signs, with the names of those that are not at work as usual."""
    if not hosts:
        return []
    counts = {state: sum(host.state == state for host in hosts) for state in _STATES}
    words = [f"{count} {_STATES[state]}" for state, count in counts.items() if count]
    names = [host.name for host in hosts if host.state != "ok"]
    head = f"{describe_count(len(hosts), 'host')}: {', '.join(words)}"
    head += f": {', '.join(names)}" if names else ""
    per_line = max(1, width)
    grid = []
    for start in range(0, min(len(hosts), most * per_line), per_line):
        line = Text()
        for host in hosts[start : start + per_line]:
            drawn, plain, colour = _SIGNS[host.state]
            line.append(drawn if can_draw else plain, colour)
        grid.append(line)
    one = Text.assemble(head, "  ", *grid[:1]) if len(grid) == 1 else None
    if one is not None and cell_len(one.plain) <= width:
        return [one]
    return [_cut(Text(head), width), *grid]


def _charts(contents: ScreenContents, width: int, height: int, *, can_draw: bool) -> list[Text]:
    """Return the charts of the loss and the rate side by side, each with its bounds in its title."""
    left = (width - 2) * 3 // 5
    charts = [
        _chart("loss", contents.losses, left, height, "cyan", can_draw=can_draw),
        _chart("rate", contents.rates, width - 2 - left, height, "magenta", can_draw=can_draw),
    ]
    return [Text.assemble(_fill(one, left), "  ", other) for one, other in zip(*charts, strict=True)]


def _chart(
    name: str, points: Sequence[CurvePoint], width: int, height: int, colour: str, *, can_draw: bool
) -> list[Text]:
    finite = [(x, y) for x, y in points if math.isfinite(y)]
    if not finite:
        return [_cut(Text(f"{name}: none yet", "dim"), width), *(Text() for _ in range(height - 1))]
    low, high = min(y for _, y in finite), max(y for _, y in finite)
    is_log = low > 0 and high >= _LOG_FROM * low
    title = f"{name} {points[-1][1]:.4g}"
    more = (f"  {low:.3g} to {high:.3g}{', log scale' if is_log else ''}", f", epoch {finite[0][0]:.1f} on")
    for part in more:
        title += part if len(title) + len(part) <= width else ""
    if is_log:
        finite = [(x, math.log(y)) for x, y in finite]
    rows = draw_curve(finite, width, height - 1, can_draw=can_draw)
    return [_cut(Text(title), width), *(Text(row, colour) for row in rows)]


def draw_curve(points: Sequence[CurvePoint], width: int, height: int, *, can_draw: bool = True) -> list[str]:
    """Draw a curve on `height` rows of `width` characters, through the mean of the points in each column.

    Braille characters have two columns and four rows of dots each; ASCII has one of each.

    >>> draw_curve([(0, 0), (1, 1), (3, 3)], 4, 4, can_draw=False)
    ['   *', '  * ', ' *  ', '*   ']
    """
    across, up = (2, 4) if can_draw else (1, 1)
    heights = _column_heights(points, width * across, height * up)
    cells = [[0] * width for _ in range(height)]
    for column, row in enumerate(heights):
        dot = _DOTS[column % 2][row % 4] if can_draw else 1
        cells[height - 1 - row // up][column // across] |= dot
    blank = _BRAILLE if can_draw else ord(" ")
    return ["".join(chr(blank + cell) if can_draw else " *"[cell] for cell in line) for line in cells]


def _column_heights(points: Sequence[CurvePoint], columns: int, rows: int) -> list[int]:
    """Return the row of each column, counted from the bottom; between points, they follow a line."""
    first, last = points[0][0], max(x for x, _ in points)
    sums: dict[int, tuple[float, int]] = {}
    for x, y in points:
        at = min(columns - 1, max(0, round((x - first) / ((last - first) or 1.0) * (columns - 1))))
        total, count = sums.get(at, (0.0, 0))
        sums[at] = total + y, count + 1
    means = [(at, total / count) for at, (total, count) in sorted(sums.items())]
    low, high = min(mean for _, mean in means), max(mean for _, mean in means)
    # Means of equal values may differ in their last digits.
    span = high - low if high - low > 1e-9 * abs(high) else 1.0
    heights = []
    for (at, mean), (following, later) in pairwise([*means, (means[-1][0] + 1, means[-1][1])]):
        for column in range(at, following):
            value = mean + (later - mean) * (column - at) / (following - at)
            heights.append(min(rows - 1, max(0, math.floor((value - low) / span * rows))))
    return heights


def _cut(text: Text, width: int) -> Text:
    text.truncate(width, overflow="ellipsis")
    return text


def _fill(text: Text, width: int) -> Text:
    text.truncate(width, pad=True)
    return text


def _justify(left: Text, right: Text, width: int) -> Text:
    gap = width - cell_len(left.plain) - cell_len(right.plain)
    return Text.assemble(left, " " * gap, right) if gap >= 2 else _cut(left, width)
