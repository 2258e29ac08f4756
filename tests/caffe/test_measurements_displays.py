"""Many lines at once are read as each of them alone, however they are damaged."""

import os
import random
from collections.abc import Sequence

import pytest

from caffe_recipes.caffe.logs import Loss, Rate, TrainOutput, find_displays, find_event
from caffe_recipes.caffe.measurements import MeasuredLog

CASES = 400 * int(os.environ.get("FUZZ_SCALE", "1"))
STAMPS = ["1120 11:49:33", "1231 23:59:59", "0101 00:00:00", "20261120 11:49:33", "0229 12:00:00"]
ODD_STAMPS = ["1399 11:49:33", "1120 25:00:00", "2026112 11:49:33", "1120 1:1:1:1:", "112 11:49:33"]
NUMBERS = ["2.5", "0.001", "1e-05", "-1", "nan", "inf", "-inf", "1."]
ODD_NUMBERS = ["1_0", ".5", "1E5", "1.2.3", "infinity", "+", "1e", "\u0663.5", "0x1", "2.5 ", "- 1"]
NAMES = ["loss", "top-1", "a:b:c:d:e", "(x)", "a+b"]
ODD_NAMES = ["", "a b", "a = 1", "loss = 2 (* 1", "x" * 200]
WEIGHTS = ["", " (* 1 = 2 loss)"]
ODD_WEIGHTS = [
    " (* 1 = 2 loss",
    " (* 1: 2 loss)",
    " (* 1 = I1120 11:49:33.581089 7 a.cpp:1] x loss)",
    " loss)",
]
SPEEDS = ["", " (2.5 iter/s, 40s/100 iters)"]
ODD_SPEEDS = [" (12:30 left)", " (a (b))", " ("]
ENDS = ["", ", m = 0.9, lrm = 0.1"]
ODD_ENDS = [
    ", remaining 1:30",
    ",",
    ", I1120 11:49:33.581089  6374 solver.cpp:312] Iteration 7, loss = 3",
    " x",
]
LABELS = ["", "[0] ", "[1] ", "[17] ", "0: ", "000: ", "017: ", "[1,0]<stderr>:"]
ODD_LABELS = ["[00] ", "[007] ", "3: ", "[5] [0] ", "[0]", "[123456789012345678] ", "[\u0660] ", "[0] [0] "]
PLACES = ["solver.cpp:312] ", "    [0.0] ", "sgd_solver.cpp:219] [0.1] "]
OTHERS = [
    "", "Solving TinyNet", "Iteration 5, Testing net (#0)", "    Test net output #0: top-1 = 0.5",
    "Snapshotting to x_iter_5.caffemodel", "Finetuning from y.caffemodel", "Optimization Done.",
    "Iteration 5, waited 3% for data", "    Train net output #0: loss = 2", "Iteration 9, lr = 0.1",
    "Iteration 3, loss = 9", "Batch 3, loss = 2", "Iteration 5, lo", "Creating layer data",
]  # fmt: skip


def draw_lines(draw: random.Random) -> list[str]:
    """Return the lines of displays, mostly alike, of one rank or of several in turn, with others between."""

    def pick(usual: Sequence[str], odd: Sequence[str]) -> str:
        return draw.choice(odd if draw.random() < 0.02 else usual)

    label, speed, end, place = (draw.choice(each) for each in (LABELS, SPEEDS, ENDS, PLACES))
    names = draw.sample(NAMES, draw.randrange(4)) + draw.choice([[], [], [], ["loss"]])
    lines: list[str] = []
    has_waits = draw.random() < 0.3
    iteration, stamp = 0, draw.choice(STAMPS)

    def write(text: str) -> None:
        source = "solver.cpp:7] " if place.startswith(" ") else ""
        micro = f"{draw.randrange(10**6):06}"
        second = pick([stamp], STAMPS)
        lines.append(f"{pick([label], ODD_LABELS)}I{second}.{micro}  6374 {source}{place}{text}")

    for _ in range(draw.randrange(2, 12)):
        iteration = draw.randrange(30) if draw.random() < 0.05 else iteration + draw.choice([0, 1, 20])
        if draw.random() < 0.2:
            stamp = pick(STAMPS, ODD_STAMPS)
        speeds, ends = pick([speed], ODD_SPEEDS), pick([end], ODD_ENDS)
        write(
            f"Iteration {iteration}{speeds}, loss = {pick(NUMBERS, ODD_NUMBERS)}{pick(['', ends], ODD_ENDS)}"
        )
        for index, name in enumerate(names):
            value, weight = pick(NUMBERS, ODD_NUMBERS), pick(WEIGHTS, ODD_WEIGHTS)
            at = index if draw.random() > 0.02 else draw.randrange(12)
            write(f"    Train net output #{at}: {pick([name], ODD_NAMES)} = {value}{weight}")
        at = iteration if draw.random() > 0.02 else iteration + 1
        if has_waits and draw.random() > 0.1:
            write(f"Iteration {at}, waited 3% for data{pick([''], [':', ', 0% for other ranks', ' x'])}")
        write(f"Iteration {at}, lr = {pick(NUMBERS, ODD_NUMBERS)}{ends}")
        if draw.random() < 0.3:
            write(draw.choice(OTHERS))
    if draw.random() < 0.3:
        second = [draw.choice(LABELS) + line.removeprefix(label) for line in lines]
        lines = [line for pair in zip(lines, second, strict=True) for line in pair]
    return lines


def damage(lines: list[str], draw: random.Random) -> list[str]:
    """Return the lines with some of them torn, lost, repeated, swapped or foreign."""
    for _ in range(draw.choice([0, 0, 1, 3])):
        at, other = draw.randrange(len(lines)), draw.randrange(len(lines))
        line, cut = lines[at], draw.randrange(len(lines[at]) + 1)
        lines[at : at + 1] = draw.choice(
            [
                [],
                [line[:cut]],
                [line[cut:]],
                [line, line],
                [line[:cut] + lines[other]],
                [line + "[3] "],
                [line + "\r"],
                [line, draw.choice(["", "srun: error: x", "\0\x1b[31m", "=" * 5000, "[3] [0] "])],
                [line[:cut] + draw.choice("0:1 \u0663\0") + line[cut + 1 :]],
                [lines[other], line],
            ]
        )
        lines = lines or [""]
    return lines


def read_in(pieces: Sequence[Sequence[str]]) -> tuple[MeasuredLog, str]:
    """Read lines in pieces; return the log, and all that is known of it as text, in which NaN equals NaN."""
    log = MeasuredLog()
    rows = [row for piece in pieces for row in log.read("".join(f"{line}\n" for line in piece))]
    counts = log.lines, log.unknown, log.others, log.unreadable, log.first_unreadable, log.measurements
    return log, f"{rows} {counts} {log.runs} {log.excess}"


def test_lines_are_read_together_as_each_alone() -> None:
    for index in range(CASES):
        draw = random.Random(index)
        lines = damage(draw_lines(draw), draw)
        _, expected = read_in([[line] for line in lines])
        cut = draw.randrange(len(lines) + 1)
        for pieces in ([lines], [lines[:cut], lines[cut:]], [lines[:3], lines[3:cut], lines[max(3, cut) :]]):
            log, found = read_in(pieces)
            assert found == expected, (index, pieces)
        for texts in find_displays("".join(f"{line}\n" for line in lines), log._outputs):
            for line in texts[-2].splitlines():
                found_event = find_event(line)
                assert found_event is not None and found_event[1], (index, line)
                assert found_event[0] in (Loss, Rate, TrainOutput), (index, line)


@pytest.mark.parametrize("label", ["", "[0] "])
@pytest.mark.parametrize("names", [(), ("loss",), ("a", "b:c"), ("p", "p", "q", "p")])
@pytest.mark.parametrize("waited", [[], ["Iteration {}, waited 3% for data, 0% for other ranks"]])
def test_displays_are_found_between_other_lines(
    label: str, names: tuple[str, ...], waited: list[str]
) -> None:
    start = f"{label}I1120 11:49:33.581089  6374 solver.cpp:312] "
    outputs = [f"    Train net output #{at}: {name} = 2 (* 1 = 2 loss)" for at, name in enumerate(names)]
    form = ["Iteration {}, loss = 2.5", *outputs, *waited, "Iteration {}, lr = 0.1"]
    texts = [[text.format(at) for text in form] for at in range(9)]
    lines = [f"{start}{text}\n" for each in (*texts[:5], ["Snapshot end"], *texts[5:]) for text in each]
    other = "[3] I1120 11:49:33.581089  6374 solver.cpp:312] Iteration 4, loss = 2.5\n"
    found = find_displays("".join([*lines, other, other]), names)
    assert [each[2] for each in found] == [*"01234", "", *"5678", ""]
    assert [each[-1] for each in found if each[-1]] == [f"{start}Snapshot end"]
    assert found[-1][-2] == other * 2
    log, _ = read_in([[line[:-1] for line in lines]])
    assert log._outputs == names
