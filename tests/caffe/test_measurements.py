import csv
import os
import random
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from caffe_recipes.caffe.measurements import LOSS, RATE, MeasuredLog, Measurement, read_measurements

REFERENCE = Path(__file__).parents[3] / "shared" / "reference" / "parity"
needs_reference = pytest.mark.skipif(not REFERENCE.is_dir(), reason="../shared/reference is not here")
LOGS = [
    "p1_lenet/train",
    *(f"p2_miniresnet/{log}" for log in ("train_a", "train_a_resume", "train_b", "test")),
]
SCALE = int(os.environ.get("FUZZ_SCALE", "1"))

Key = tuple[str, str, str]


def glog(text: str, stamp: str = "1120 11:49:33.500000", place: str = "solver.cpp:312") -> str:
    return f"I{stamp}  6374 {place}] {text}"


def read(lines: Iterable[str]) -> tuple[MeasuredLog, list[Measurement]]:
    log = MeasuredLog()
    return log, log.read("".join(f"{line}\n" for line in lines))


def values_of(rows: Iterable[Measurement]) -> dict[Key, float]:
    """Write measurements as expected.csv does: the phase, the iteration and the column of each value."""
    columns = {LOSS: "loss", RATE: "lr", "total loss": "loss"}
    return {
        (
            row.phase.upper(),
            "" if row.iteration is None else str(row.iteration),
            columns.get(row.output, f"out_{row.output}"),
        ): row.value
        for row in rows
    }


def expected_values(name: str) -> dict[Key, float]:
    path = REFERENCE / f"{name}.log"
    with (path.parent / "expected.csv").open() as file:
        return {
            (row["phase"], row["iteration"], column): float(text)
            for row in csv.DictReader(file)
            if row["log"] == path.stem
            for column, text in row.items()
            if column not in ("log", "phase", "iteration") and text
        }


def label_ranks(lines: list[str], style: str, draw: random.Random) -> Iterator[str]:
    """Yield the lines as of 18 ranks, which print the same at about the same time, with labels."""
    waiting = {rank: list(reversed(lines)) for rank in range(18)}
    while waiting:
        rank = draw.choice(list(waiting))
        yield style.format(rank) + waiting[rank].pop()
        if not waiting[rank]:
            del waiting[rank]


@needs_reference
@pytest.mark.parametrize("name", LOGS)
def test_every_value_of_a_real_log_is_measured(name: str) -> None:
    log, rows = read((REFERENCE / f"{name}.log").read_text().splitlines())
    assert values_of(rows) == expected_values(name)
    assert (log.unreadable, log.others, log.measurements) == (0, 0, len(rows))


@needs_reference
@pytest.mark.parametrize("style", ["[{}] ", "{}: ", "[1,{}]<stderr>:"])
def test_labels_and_the_order_of_the_ranks_change_no_value(style: str) -> None:
    lines = (REFERENCE / "p1_lenet" / "train.log").read_text().splitlines()
    log, rows = read(label_ranks(lines, style, random.Random(1)))
    assert values_of(rows) == expected_values("p1_lenet/train")
    assert log.others == 17 * len(rows)


@needs_reference
def test_a_line_that_another_tears_is_lost_but_the_other_is_read() -> None:
    lines = (REFERENCE / "p1_lenet" / "train.log").read_text().splitlines()
    draw, torn = random.Random(3), []
    for line in lines:
        if " Iteration " in line and draw.random() < 0.3:
            torn.append(f"[17] {line[: draw.randrange(30, len(line))]}[0] {line}")
        else:
            torn.append(f"[0] {line}")
    log, rows = read(torn)
    assert values_of(rows) == expected_values("p1_lenet/train")
    assert log.unreadable == 0


@needs_reference
def test_damage_never_invents_a_value_nor_loses_a_line() -> None:
    text = (REFERENCE / "p2_miniresnet" / "train_a.log").read_text()
    expected, draw = set(expected_values("p2_miniresnet/train_a")), random.Random(5)
    for _ in range(40 * SCALE):
        lines = text.splitlines()
        for _ in range(20):
            at = draw.randrange(len(lines))
            damage = draw.randrange(3)
            if damage == 0:
                del lines[at]
            elif damage == 1:
                lines[at] = lines[at][: draw.randrange(20) + 1]
            else:
                lines.insert(at, draw.choice(("", "srun: error: x", "\0\x1b[31m", "=" * 5000, "[3] [0] ")))
        log, rows = read(lines)
        assert log.lines == len(lines)
        assert set(values_of(rows)) <= expected
        assert len(rows) >= len(expected) - 20 * 4


def test_the_formats_of_bvlc_and_nvidia_are_measured() -> None:
    # BVLC Caffe, src/caffe/solver.cpp; NVIDIA Caffe, src/caffe/solver.cpp and sgd_solver.cpp
    bvlc = ["Iteration 100 (2.5 iter/s, 40s/100 iters), loss = 1.5", "Iteration 100, lr = 0.01"]
    nvidia = [
        "    [0.0] Iteration 100 (5 iter/s, 1.9s/10 iter), 0.1/0.9ep, loss = 1.5",
        "    [0.0]     Train net output #0: loss = 1.25 (* 1 = 1.25 loss)",
        "[0.0] Iteration 100, lr = 0.01, m = 0.9, lrm = 0.1, wd = 0.0005, gs = 1",
    ]
    for texts in (bvlc, nvidia):
        _, rows = read(map(glog, texts))
        values = {row.output: row.value for row in rows if row.iteration == 100}
        assert values == {LOSS: 1.5, RATE: 0.01} | ({"loss": 1.25} if texts is nvidia else {})


def test_several_test_nets_and_outputs_are_told_apart() -> None:
    texts = [
        "Solving a",
        "Iteration 5, Testing net (#0)",
        "Test net output #0: p = 1",
        "Test net output #1: p = 2",
    ]
    _, rows = read(map(glog, [*texts, "Iteration 5, Testing net (#1)", "Test net output #0: p = 3"]))
    assert [(row.net, row.output, row.value) for row in rows] == [(0, "p", 1), (0, "p#1", 2), (1, "p", 3)]


@pytest.mark.parametrize(
    "texts",
    [
        ["Iteration 5, Testing net (#0)", *(f"    Test net output #{at}: p = {at}" for at in range(3))],
        [f"Batch 0, p = {at}" for at in range(3)],
        [f"p = {at}" for at in range(3)],
    ],
)
def test_a_log_may_begin_with_outputs(texts: list[str]) -> None:
    log, rows = read(glog(text, place="caffe.cpp:1") for text in texts)
    assert [(row.output, row.value) for row in rows] == [("p", 0), ("p#1", 1), ("p#2", 2)]
    assert log.unreadable == 0


def test_an_output_whose_iteration_is_lost_is_counted_as_unreadable() -> None:
    texts = [
        "Iteration 1, loss = 2",
        "    Train net output #0: a = 1",
        "Iteration 2, lo",
        "    Train net output #0: a = 9",
    ]
    log, rows = read(map(glog, texts))
    assert [(row.iteration, row.output) for row in rows] == [(1, LOSS), (1, "a")]
    assert (log.unreadable, log.first_unreadable) == (2, 3)


def test_several_runs_in_one_file_are_told_apart() -> None:
    texts = [
        "Solving a",
        "Iteration 0, loss = 2",
        "Iteration 9, loss = 1",
        "Snapshotting to x_iter_9.caffemodel",
    ]
    texts += [
        "Optimization Done.",
        "Finetuning from x_iter_9.caffemodel",
        "Solving b",
        "Iteration 0, loss = 3",
    ]
    texts += [
        "Iteration 4, loss = 2.5",
        "Resuming from y_iter_2.solverstate",
        "Solving b",
        "Iteration 2, loss = 3",
    ]
    log, rows = read(["Wed Nov 20: job 17 starts", *map(glog, texts), "srun: done"])
    assert [(run.net, run.weights, run.state, run.first_iter, run.last_iter) for run in log.runs] == [
        ("a", "", "", 0, 9),
        ("b", "x_iter_9.caffemodel", "", 0, 4),
        ("b", "", "y_iter_2.solverstate", 2, 2),
    ]
    assert [row.run for row in rows] == [1, 1, 2, 2, 3]
    assert (log.unknown, log.runs[0].snapshots, log.runs[0].is_done) == (2, 1, True)


def test_the_threads_of_a_run_on_several_gpus_are_one_run() -> None:
    """NVIDIA's Caffe has a thread for each GPU, and each of them says what it solves."""
    threads = ["Solving a", "Learning Rate Policy: poly"] * 4
    texts = [
        "Finetuning from x.caffemodel",
        *threads,
        "Iteration 0, loss = 2",
        "Optimization Done.",
        *threads,
    ]
    log, rows = read(map(glog, [*texts, "Iteration 0, loss = 3", *threads[:2], "Iteration 4, loss = 1"]))
    assert [(run.net, run.weights, run.first_iter) for run in log.runs] == [
        ("a", "x.caffemodel", 0),
        ("a", "", 0),
        ("a", "", 4),
    ]
    assert [row.run for row in rows] == [1, 2, 3]


def test_iterations_that_go_back_begin_a_run() -> None:
    log, _ = read(map(glog, ["Iteration 5, loss = 2", "Iteration 6, loss = 2", "Iteration 5, loss = 2"]))
    assert [(run.first_iter, run.last_iter) for run in log.runs] == [(5, 6), (5, 5)]


@pytest.mark.parametrize(
    ("stamps", "seconds"),
    [
        (("1120 23:59:59.500000", "1121 00:00:01.500000"), 2),
        (("1231 23:59:59.500000", "0101 00:00:01.500000"), 2),
        (("20271231 23:59:59.500000", "20280101 00:00:01.500000"), 2),
        (("0228 23:59:59.500000", "0301 00:00:01.500000"), 2),
        (("20280228 23:59:59.500000", "20280301 00:00:01.500000"), 86402),
        (("0229 23:59:59.500000", "0301 00:00:01.500000"), 2),
        (("1120 12:00:00.000000", "1120 11:59:59.000000"), -1),
        (("1399 12:00:00.000000", "1120 12:00:00.000000"), 0),
    ],
)
def test_seconds_count_from_the_first_time(stamps: tuple[str, str], seconds: float) -> None:
    _, rows = read(glog(f"Iteration {index}, loss = 1", stamp) for index, stamp in enumerate(stamps))
    assert rows[1].seconds == seconds


@pytest.mark.parametrize(
    ("days", "expected"),
    [
        (("1231", "0101", "1231", "0101"), [0, 1, 0, 1]),
        (("0101", "1231", "0101"), [0, -1, 0]),
        (("0229", "0801", "1231", "0101", "1231", "0101"), [0, 154, 306, 307, 306, 307]),
        (("1231", "0229", "0301"), [0, 60, 61]),
    ],
)
def test_lines_of_ranks_that_cross_the_new_year_in_turn_add_no_year(
    days: tuple[str, ...], expected: list[int]
) -> None:
    _, rows = read(glog(f"Iteration {at}, loss = 1", f"{day} 12:00:00.000000") for at, day in enumerate(days))
    assert [(row.seconds or 0) / 86400 for row in rows] == expected


def test_the_last_line_is_read_only_if_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text(f"{glog('Iteration 1, loss = 2.5')}\n{glog('Iteration 2, loss = 2.4')}")
    log = MeasuredLog()
    rows = [row for group in read_measurements(path, log) for row in group]
    assert [row.value for row in rows] == [2.5]
    assert (log.lines, log.is_cut) == (2, True)
