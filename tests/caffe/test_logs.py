import csv
import math
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caffe_recipes.caffe import logs as ev
from caffe_recipes.caffe.logs import Entry, LogSummary, parse_line, summarize_log

E = TypeVar("E", bound=ev.LogEvent)
Row = tuple[str, str, str, float | None, float | None, dict[str, float]]

REFERENCE = Path(__file__).parents[3] / "shared" / "reference"
needs_reference = pytest.mark.skipif(not REFERENCE.is_dir(), reason="../shared/reference is not here")


def glog(source: str, text: str, stamp: str = "1120 11:49:33.581089") -> str:
    return f"I{stamp}  6374 {source}] {text}"


@pytest.mark.parametrize(
    ("line", "event"),
    [
        (glog("solver.cpp:397", "Solving TinyNet"), ev.Started("TinyNet")),
        (glog("solver.cpp:474", "Iteration 20, Testing net (#1)"), ev.TestStarted(20, 1)),
        (
            glog("solver.cpp:562", "    Test net output #0: loss = 71.5838 (* 1 = 71.5838 loss)"),
            ev.TestOutput(0, "loss", 71.5838),
        ),
        (glog("solver.cpp:562", "    Test net output #1: top-1 = 0.1"), ev.TestOutput(1, "top-1", 0.1)),
        (glog("solver.cpp:312", "Iteration 0, loss = 2.47564"), ev.Loss(0, 2.47564)),
        (
            glog("solver.cpp:333", "    Train net output #0: loss = 2.4 (* 1 = 2.4 loss)"),
            ev.TrainOutput(0, "loss", 2.4),
        ),
        (glog("sgd_solver.cpp:219", "Iteration 29, lr = 3.33334e-05"), ev.Rate(29, 3.33334e-05)),
        (
            glog("solver.cpp:770", "Snapshotting to binary proto file /tmp/a b_iter_30.caffemodel"),
            ev.Snapshot("/tmp/a b_iter_30.caffemodel"),
        ),
        (
            glog("sgd_solver.cpp:750", "Snapshotting solver state to binary proto file p1.solverstate"),
            ev.SolverState("p1.solverstate"),
        ),
        (glog("solver.cpp:436", "Iteration 30, loss = 0.87577"), ev.Loss(30, 0.87577)),
        (glog("solver.cpp:443", "Optimization Done."), ev.Done()),
        (glog("solver.cpp:440", "Optimization stopped early."), ev.StoppedEarly()),
        (glog("caffe.cpp:218", "Finetuning from p1.caffemodel"), ev.Finetuning("p1.caffemodel")),
        (glog("caffe.cpp:316", "Resuming from p1.solverstate"), ev.Resuming("p1.solverstate")),
        (glog("net.cpp:1137", "Ignoring source layer ip 1"), ev.IgnoredLayer("ip 1")),
        (glog("caffe.cpp:500", "Batch 0, loss = 0.423109"), ev.BatchOutput(0, "loss", 0.423109)),
        (glog("caffe.cpp:505", "Loss: 1.15437"), ev.MeanLoss(1.15437)),
        (
            glog("caffe.cpp:517", "loss = 0.375647 (* 1 = 0.375647 loss)"),
            ev.MeanOutput("loss", 0.375647),
        ),
        (glog("caffe.cpp:517", "loss3/top-1 = 0.762781"), ev.MeanOutput("loss3/top-1", 0.762781)),
        (
            "F1120 11:49:33.581089  6374 db_lmdb.hpp:15] Check failed: mdb_status == 0 (2 vs. 0)",
            ev.Fatal("Check failed: mdb_status == 0 (2 vs. 0)"),
        ),
        (
            "[libprotobuf ERROR google/protobuf/text_format.cc:274] Error parsing text-format "
            'caffe.SolverParameter: 19:12: Message type has no field named "x".',
            ev.Complaint(
                'Error parsing text-format caffe.SolverParameter: 19:12: Message type has no field named "x".'
            ),
        ),
        (
            "[libprotobuf FATAL google/protobuf/message_lite.cc:81] CHECK failed: (size) <= (0): x",
            ev.Fatal("CHECK failed: (size) <= (0): x"),
        ),
        (
            "*** SIGSEGV (@0x10) received by PID 7 (TID 0x7f) from PID 16; stack trace: ***",
            ev.Fatal("SIGSEGV"),
        ),
        ("caffe-torch: w.caffemodel: is empty", ev.Fatal("w.caffemodel: is empty")),
    ],
)
@pytest.mark.parametrize("prefix", ["", "[0] ", "    ", "\t[0] "])
def test_lines_as_caffe_prints_them_are_events(line: str, event: ev.LogEvent, prefix: str) -> None:
    entry = parse_line(prefix + line + "\n")
    assert entry is not None
    assert (entry.event, entry.rank) == (event, 0 if "[0]" in prefix else None)


NV = "    [0.0]"  # how NVIDIA Caffe names the device of a TRAIN net


@pytest.mark.parametrize(
    ("place", "text", "event"),
    [
        # BVLC Caffe, src/caffe/solver.cpp:239
        ("solver.cpp:218", "Iteration 0 (-1.4e-45 iter/s, 0.013s/10 iters), loss = 2.3", ev.Loss(0, 2.3)),
        ("solver.cpp:239", "Iteration 100 (2.5 iter/s, 40s/100 iters), loss = nan", ev.Loss(100, math.inf)),
        # NVIDIA Caffe, src/caffe/solver.cpp:337 and its older versions
        ("solver.cpp:342", f"{NV} Iteration 0 (0.29 s), loss = 6.9", ev.Loss(0, 6.9)),
        ("solver.cpp:337", f"{NV} Iteration 9 (5 iter/s, 1.9s/10 iter), 0/0.9ep, loss = 6", ev.Loss(9, 6)),
        ("solver.cpp:334", "Iteration 100 (497.3 iter/s, 0.19s/98 iter), loss = 2.1", ev.Loss(100, 2.1)),
        ("solver.cpp:337", "    [3] Iteration 9 (0.5 s), 1.5e-05/90ep, loss = 6", ev.Loss(9, 6)),
        (
            "solver.cpp:358",
            f"{NV}     Train net output #0: a b = 6 (* 1 = 6 loss)",
            ev.TrainOutput(0, "a b", 6),
        ),
        ("solver.cpp:581", "    (0.0)    Test net output #1: top-1 = 0.5", ev.TestOutput(1, "top-1", 0.5)),
        ("solver.cpp:712", "Test net output mAP #0: eval = 0.7", ev.TestOutput(0, "eval", 0.7)),
        (
            "sgd_solver.cpp:180",
            "[0.0] Iteration 9, lr = 0.01, m = 0.9, lrm = 0.1, wd = 0.0005, gs = 1",
            ev.Rate(9, 0.01),
        ),
        ("solver.cpp:411", "[0.0] Solving My Net Learning Rate Policy: poly", ev.Started("My Net")),
        ("solver.cpp:443", "[0.0] Optimization stopped early.", ev.StoppedEarly()),
        ("caffe.cpp:262", "Optimization Done in 2m 3.5s", ev.Done()),
        # Caffe of 2013 and 2014
        ("solver.cpp:87", "Iteration 500, Testing net", ev.TestStarted(500, 0)),
        ("solver.cpp:114", "Test score #1: 1.27805", ev.TestOutput(1, "score", 1.27805)),
        ("solver.cpp:126", "Snapshotting to lenet_iter_10000", ev.Snapshot("lenet_iter_10000")),
        ("solver.cpp:133", "Snapshotting solver state to a.solverstate", ev.SolverState("a.solverstate")),
        # a fork that says how long it still takes
        ("solver.cpp:230", "Iteration 5 (1 iter/s, 5s/5 iter), loss = 2, remaining 1 hours", ev.Loss(5, 2)),
    ],
)
@pytest.mark.parametrize("stamp", ["0306 10:00:00.000000", "20260306 10:00:00.000000"])
@pytest.mark.parametrize("label", ["", "[0] ", "0: ", "[1,0]<stderr>:"])
def test_lines_of_other_caffes_are_events(
    place: str, text: str, event: ev.LogEvent, stamp: str, label: str
) -> None:
    entry = parse_line(label + glog(place, text, stamp))
    assert entry is not None and entry.rank == (0 if label else None)
    if isinstance(entry.event, ev.Loss) and math.isnan(entry.event.loss):
        entry = Entry(ev.Loss(entry.event.iteration, math.inf))
    assert entry.event == event


@pytest.mark.parametrize(
    "line",
    [
        "",
        "\n",
        'name: "LeNet"',
        "[0] ",
        "[3] layer {",
        "I1120 11:49:33",
        "I1120 11:49:33.581089  6374 solver.cpp:312] Iteration 0, loss = ",
        "I1120 11:49:33.581089  6374 solver.cpp:312] Iteration x, loss = 1",
        "I1120 11:49:33.581089  6374 solver.cpp:312] Iteration 0, loss = 1.5[1] I1120 11:49:33.581089  6374",
        f"I1120 11:49:33.581089  6374 solver.cpp:312] Iteration {'9' * 5000}, loss = 1",
        f"[{'9' * 5000}] I1120 11:49:33.581089  6374 solver.cpp:443] Optimization Done.",
        "I1120 11:49:33.581089  6374 caffe.cpp:472] Running for 4 iterations.",
        "W1120 11:49:33.581089  6374 solver.cpp:312] lr = 0.1",
        "I1120 11:49:33.581089  6374 net.cpp:1] loss = 0.1",
        "[libprotobuf WARNING google/protobuf/io/coded_stream.cc:537] Reading dangerously large message",
        "caffe-torch: ",
    ],
)
def test_other_lines_are_not_events(line: str) -> None:
    assert parse_line(line) is None


@given(st.text() | st.binary().map(lambda data: data.decode(errors="surrogateescape")))
def test_garbage_never_raises(text: str) -> None:
    summary = LogSummary()
    for line in (text, f"[0] {text}", glog("caffe.cpp:1", text), glog("solver.cpp:1", f"Iteration {text}")):
        summary.feed(line)


@pytest.mark.parametrize("text", ["nan", "-nan", "inf", "-inf"])
def test_losses_and_rates_that_are_not_finite_are_read(text: str) -> None:
    loss = parse_line(glog("solver.cpp:312", f"Iteration 3, loss = {text}"))
    rate = parse_line(glog("sgd_solver.cpp:219", f"Iteration 3, lr = {text}"))
    assert loss is not None and isinstance(loss.event, ev.Loss)
    assert rate is not None and isinstance(rate.event, ev.Rate)
    for value in (loss.event.loss, rate.event.rate):
        assert math.isnan(value) if "nan" in text else value == float(text)


def test_a_time_may_include_the_year() -> None:
    text = "Optimization Done."
    new = parse_line(glog("solver.cpp:443", text, "20261120 11:49:33.581089"), year=1999)
    old = parse_line(glog("solver.cpp:443", text, "1120 11:49:33.581089"), year=2026)
    assert new == old == Entry(ev.Done(), None, datetime(2026, 11, 20, 11, 49, 33, 581089))


def test_an_impossible_time_is_unknown() -> None:
    assert parse_line(glog("solver.cpp:443", "Optimization Done.", "1399 99:99:99.000000")) == Entry(
        ev.Done()
    )


def events_of(lines: Iterable[str], kind: type[E]) -> list[E]:
    entries = (parse_line(line) for line in lines)
    return [entry.event for entry in entries if entry and isinstance(entry.event, kind)]


def rows_of(name: str, lines: Sequence[str]) -> list[Row]:
    """Write a log as the rows of expected.csv: log, phase, iteration, lr, loss, outputs."""
    summary = summarize_log(lines)
    rows: list[Row] = [
        (name, "TRAIN", str(i), summary.rates.get(i), loss, summary.outputs[i])
        for i, loss in summary.losses.items()
    ]
    rows += [(name, "TEST", str(test.iteration), None, None, test.outputs) for test in summary.tests]
    rows += [(name, "BATCH", str(i), None, None, outputs) for i, outputs in summary.batches.items()]
    if summary.mean_outputs:
        (mean,) = events_of(lines, ev.MeanLoss)
        rows.append((name, "MEAN", "", None, mean.loss, summary.mean_outputs))
    return sorted(rows, key=lambda row: row[:3])


def expected_rows(case: Path, log: str) -> list[Row]:
    rows = []
    with (case / "expected.csv").open() as file:
        for row in csv.DictReader(file):
            if row["log"] == log:
                outputs = {
                    key.removeprefix("out_"): float(value)
                    for key, value in row.items()
                    if key.startswith("out_") and value
                }
                lr, loss = (float(row[key]) if row[key] else None for key in ("lr", "loss"))
                rows.append((log, row["phase"], row["iteration"], lr, loss, outputs))
    return sorted(rows, key=lambda row: row[:3])


LOGS = ["p1_lenet/train"] + [
    f"p2_miniresnet/{log}" for log in ("train_a", "train_a_resume", "train_b", "test")
]


@needs_reference
@pytest.mark.parametrize("name", LOGS)
def test_a_complete_log_gives_every_expected_value(name: str) -> None:
    path = REFERENCE / "parity" / f"{name}.log"
    expected = expected_rows(path.parent, path.stem)
    assert expected
    with path.open() as lines:
        assert rows_of(path.stem, list(lines)) == expected


@needs_reference
def test_a_complete_log_gives_the_starting_weights_and_the_snapshots() -> None:
    folder = REFERENCE / "parity" / "p2_miniresnet"
    lines = (folder / "train_b.log").read_text().splitlines()
    summary = summarize_log(lines)
    assert summary.net == "mini-ResNet"
    assert events_of(lines, ev.Finetuning) == [ev.Finetuning("a_iter_40.caffemodel")]
    assert summary.snapshots == ["b_iter_30.caffemodel"]
    assert summary.solverstates == ["b_iter_30.solverstate"]
    assert (summary.done, summary.stopped_early, summary.fatal) == (True, False, None)
    assert timedelta(0) < summary.times[30] - summary.times[0] < timedelta(minutes=1)
    with (folder / "train_a_resume.log").open() as resumed:
        assert events_of(resumed, ev.Resuming) == [ev.Resuming("a_iter_20.solverstate")]


PUBLISHED = """\
I0402 13:18:56.347950 30419 caffe.cpp:517] loss = 0.942313 (* 1 = 0.942313 loss)
I0402 13:18:56.347960 30419 caffe.cpp:517] loss3/top-1 = 0.762781
I0402 13:18:56.348022 30419 caffe.cpp:517] loss3/top-5 = 0.931862
"""


def test_the_published_accuracy_is_read() -> None:
    means = {"loss": 0.942313, "loss3/top-1": 0.762781, "loss3/top-5": 0.931862}
    assert summarize_log(PUBLISHED.splitlines()).mean_outputs == means


def test_in_interleaved_logs_rank_0_counts_but_any_rank_may_fail() -> None:
    summary = summarize_log(
        [
            "[1] " + glog("solver.cpp:312", "Iteration 0, loss = 9"),
            "[0] " + glog("solver.cpp:312", "Iteration 0, loss = 2"),
            "[1] " + glog("solver.cpp:333", "    Train net output #0: loss = 9 (* 1 = 9 loss)"),
            "[0] " + glog("solver.cpp:333", "    Train net output #0: loss = 2 (* 1 = 2 loss)"),
            "[1] F1120 11:49:33.581089  6374 math.cpp:1] Check failed: first",
            "[0] F1120 11:49:33.581089  6374 math.cpp:1] Check failed: second",
        ]
    )
    assert summary.losses == {0: 2}
    assert summary.outputs == {0: {"loss": 2}}
    assert summary.fatal == "Check failed: first"


def test_a_protobuf_error_is_not_fatal_but_explains_a_fatal_one() -> None:
    complaint = "[libprotobuf ERROR google/protobuf/text_format.cc:274] Error parsing x"
    summary = summarize_log([f"[2] {complaint}"])
    assert (summary.fatal, summary.complaint) == (None, "Error parsing x")
    summary.feed("[2] F1120 11:49:33.581089  6374 upgrade_proto.cpp:90] Check failed: y")
    summary.feed(complaint.replace("x", "z"))
    assert summary.fatal == "Error parsing x; then: Check failed: y"


def test_layers_of_the_weights_that_were_ignored_are_reported_once() -> None:
    lines = [glog("net.cpp:1137", f"Ignoring source layer {name}") for name in ("data", "ip1", "ip1")]
    summary = summarize_log([*lines, "[1] " + glog("net.cpp:1137", "Ignoring source layer ip2")])
    assert list(summary.ignored) == ["data", "ip1"]


def test_further_elements_of_an_output_are_numbered() -> None:
    lines = [glog("solver.cpp:312", "Iteration 0, loss = 2")]
    lines += [glog("solver.cpp:333", f"    Train net output #{i}: p = {i}") for i in range(3)]
    assert summarize_log(lines).outputs == {0: {"p": 0, "p#1": 1, "p#2": 2}}


def test_outputs_without_their_iteration_are_dropped() -> None:
    lines = [
        glog("solver.cpp:333", "    Train net output #0: loss = 2"),
        glog("solver.cpp:562", "    Test net output #0: loss = 2"),
    ]
    assert summarize_log(lines) == LogSummary()


def test_a_log_is_read_line_by_line_as_it_grows() -> None:
    summary = LogSummary()
    assert summary.feed(glog("solver.cpp:397", "Solving a")) is not None
    assert (summary.net, summary.losses) == ("a", {})
    summary.feed(glog("solver.cpp:312", "Iteration 7, loss = 2"))
    assert summary.losses == {7: 2}
    assert summary.feed("noise") is None
    summary.feed(glog("solver.cpp:440", "Optimization stopped early."))
    assert summary.stopped_early and not summary.done


def test_thousands_of_values_of_one_output_keep_their_places() -> None:
    lines = [
        f"I1120 11:49:33.581089  6374 solver.cpp:333]     Train net output #{i}: emb = {i}"
        for i in range(20000)
    ]
    first = "I1120 11:49:33.581089  6374 solver.cpp:312] Iteration 0, loss = 2.5"
    outputs = summarize_log([first, *lines]).outputs[0]
    assert len(outputs) == 20000
    assert (outputs["emb"], outputs["emb#1"], outputs["emb#19999"]) == (0, 1, 19999)
