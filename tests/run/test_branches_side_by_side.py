"""Branches trained at the same time as the main line, with the same result as one after another."""

from __future__ import annotations

import io
import json
import os
import re
import signal
from contextlib import suppress
from pathlib import Path

import pytest
from rich.console import Console

from caffe_recipes.errors import HostFailed, InputError, RunFailed
from caffe_recipes.run.console import Reporter
from caffe_recipes.run.monitor.follow import AttachOptions, StatusOptions, attach
from caffe_recipes.run.monitor.logs import LogOptions, show_log
from caffe_recipes.run.monitor.status import find_status
from caffe_recipes.run.monitor.status_text import status_as_json, status_details
from tests.run.conftest import Place
from tests.run.monitor.test_follow import Watcher
from tests.run.several_hosts import connect
from tests.run.two_lines import (
    AMID,
    SIDE,
    check_end,
    finish,
    log,
    make_graph,
    read_output,
    start,
    start_amid_both,
    wait_until,
)
from tests.stand_in_host import StandInHost


@pytest.fixture
def graph(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return make_graph(place, tmp_path, monkeypatch)


def branch_events(place: Place) -> list[str]:
    path = place.root / "runs/small-1/branches/side/journal.jsonl"
    return [json.loads(line)["event"] for line in path.read_text().splitlines()]


def test_a_branch_trains_while_the_main_line_continues(graph: Place) -> None:
    run = start_amid_both(graph)
    status = find_status("small", StatusOptions(str(graph.root)))
    details = list(status_details(status, 0.0))
    assert ("phase", "cyc1 (2 of 4): iteration 4 of 6, lr 0.05, loss 0.5") in details
    assert ("branch", "side (3 of 4): iteration 4 of 6, lr 0.01, loss 0.5") in details
    (beside,) = status_as_json(status)["beside"]
    assert (beside["phase"], beside["log"]) == ("side", "runs/small-1/branches/side/logs/side-1.log")
    shown = io.StringIO()
    reporter = Reporter(Console(file=shown, soft_wrap=True, highlight=False))
    attach("small", AttachOptions(str(graph.root), once=True), reporter)
    assert re.search(r"\n  cyc1 +2/\d  4/6  lr 0.05 +loss 0.5", shown.getvalue())
    assert re.search(r"\n  side +\d/\d  4/6  lr 0.01 +loss 0.5", shown.getvalue())
    written: list[bytes] = []
    show_log("small", LogOptions(str(graph.root), phase="side"), written.append, lambda text: None)
    assert b"".join(written).decode() == log(graph, "side")
    (graph.root / "release").touch()
    finish(run, graph)
    check_end(graph)
    assert sorted(graph.trained()) == ["cyc1", "init", "last", "side"]
    assert "side: branch on node2; log: runs/small-1/branches/side/logs" in read_output(graph)


@pytest.mark.slow
def test_attach_shows_the_lines_of_the_branch_among_those_of_the_main_line(graph: Place) -> None:
    run, watcher = start_amid_both(graph), Watcher(graph)
    watcher.meanwhile = lambda output: (graph.root / "release").touch()
    printed = [line for line in watcher.watch().splitlines() if not line.startswith("  ")]
    finish(run, graph)
    whole = read_output(graph).splitlines()
    begins = next(at for at, line in enumerate(whole) if "log and state of this run" in line)
    run_s = [line for line in whole[begins:] if not line.startswith("  ")]
    assert sorted(printed) == sorted(run_s)
    for phase in ("side", "cyc1"):
        lines = [line for line in printed if line.startswith(f"{phase}: ")]
        assert lines == [line for line in run_s if line.startswith(f"{phase}: ")]
        assert any(line.startswith(f"{phase}: finished in ") for line in lines)


def test_the_end_is_that_of_one_phase_after_another(graph: Place) -> None:
    graph.edit(SIDE, SIDE + SIDE.replace("side", "deep").replace("weights: init", "weights: side"))
    (graph.root / "hosts").write_text("localhost\nnode2\nnode3\n")
    beside = graph.run(hostfile=graph.root / "hosts", side_by_side=True)
    in_turn = graph.run(hostfile=graph.root / "hosts", new=True)
    assert beside.evaluations == in_turn.evaluations
    digests = [{phase: done.sha256 for phase, done in state.finished.items()} for state in (beside, in_turn)]
    assert digests[0] == digests[1]
    names = [
        {path.name for path in (graph.root / f"runs/small-{number}/snapshots").iterdir()} for number in (1, 2)
    ]
    assert names[0] == names[1]
    assert not (graph.root / "runs/small-2/branches").exists()
    before = graph.tree()
    graph.run(hostfile=graph.root / "hosts", side_by_side=True)
    assert graph.tree() == before, "what is finished stays so"


@pytest.mark.slow
@pytest.mark.parametrize("words", [("--side-by-side",), ()])
def test_a_killed_run_continues_with_both_trainers_that_outlived_it(
    graph: Place, words: tuple[str, ...]
) -> None:
    first = start_amid_both(graph)
    first.kill()
    first.wait()
    assert graph.processes()
    second = start(graph, *words)
    continuing = "the trainer of a killed run is still training; continuing with it"
    wait_until(
        second,
        graph,
        lambda: all(f"{phase}: {continuing}" in read_output(graph) for phase in ("cyc1", "side")),
    )
    (graph.root / "release").touch()
    finish(second, graph)
    check_end(graph)
    assert sorted(graph.trained()) == ["cyc1", "init", "last", "side"], "none is trained twice"


@pytest.mark.slow
@pytest.mark.parametrize("words", [("--side-by-side",), ()])
@pytest.mark.parametrize("dies", ["cyc1", "side"])
def test_one_of_two_trainers_left_by_a_killed_run_may_have_died(
    graph: Place, words: tuple[str, ...], dies: str
) -> None:
    first = start_amid_both(graph)
    first.kill()
    first.wait()
    for pid in graph.processes():
        with suppress(OSError):
            if f"solver_{dies}.prototxt".encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)
    second = start(graph, *words)
    if words or dies == "cyc1":  # else the branch is continued after the main line
        wait_until(second, graph, lambda: AMID in log(graph, dies, attempt=2))
    (graph.root / "release").touch()
    finish(second, graph)
    check_end(graph)
    assert sorted(graph.trained()) == sorted(["cyc1", "init", "last", "side", dies])


def test_branch_results_that_a_killed_run_did_not_record_are_taken_over(graph: Place) -> None:
    graph.run(hostfile=graph.root / "hosts", side_by_side=True)
    journal = graph.root / "runs/small-1/journal.jsonl"
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    kept = [
        line
        for line in lines
        if line["event"] != "evaluated" and (line["event"], line.get("phase")) != ("finished", "side")
    ]
    journal.write_text("".join(f"{json.dumps(line)}\n" for line in kept))
    snapshot = graph.root / "runs/small-1/snapshots/side_iter_6.caffemodel"
    whole = snapshot.read_bytes()
    snapshot.write_bytes(b"spoilt")
    with pytest.raises(RunFailed, match="no longer the snapshot that phase side finished with"):
        graph.run(hostfile=graph.root / "hosts")
    snapshot.write_bytes(whole)
    graph.run(hostfile=graph.root / "hosts")
    check_end(graph)
    assert len(graph.trained()) == 4


@pytest.mark.slow
def test_after_a_stop_signal_both_branches_end_cleanly_and_can_be_resumed(graph: Place) -> None:
    run = start_amid_both(graph)
    run.send_signal(signal.SIGINT)
    finish(run, graph, 130)
    assert graph.events()[-1]["event"] == branch_events(graph)[-1] == "interrupted"
    graph.behave()
    finish(start(graph, "--side-by-side"), graph)
    check_end(graph)
    assert sorted(graph.trained()) == ["cyc1", "cyc1", "init", "last", "side", "side"]


@pytest.mark.slow
def test_after_a_stop_signal_a_branch_that_outlasts_the_main_line_ends_cleanly(graph: Place) -> None:
    graph.behave(side="waits")
    run = start(graph, "--side-by-side")
    wait_until(run, graph, lambda: AMID in log(graph, "side") and "last" in graph.state().finished)
    run.send_signal(signal.SIGTERM)
    finish(run, graph, 143)
    assert branch_events(graph)[-1] == "interrupted"


@pytest.mark.slow
def test_after_a_branch_that_fails_nothing_more_is_begun(graph: Place) -> None:
    graph.behave(cyc1="waits", side="ends-early")
    run = start(graph, "--side-by-side")
    wait_until(
        run, graph, lambda: "the run ends after the phases that are training now" in read_output(graph)
    )
    (graph.root / "release").touch()
    finish(run, graph, 3)
    assert (
        read_output(graph)
        .splitlines()[-1]
        .startswith("Error: phase side: failed: it ended after iteration 4 of 6")
    )
    assert set(graph.state().finished) == {"init", "cyc1"}
    assert graph.events()[-1]["event"] == "failed"
    graph.behave()
    finish(start(graph), graph)
    check_end(graph)
    assert sorted(graph.trained()) == ["cyc1", "init", "last", "side", "side"]


@pytest.mark.slow
def test_when_the_main_line_fails_the_branch_is_finished_first(graph: Place) -> None:
    graph.behave(cyc1="nan", side="waits")
    run = start(graph, "--side-by-side")
    wait_until(run, graph, lambda: "waiting for side to finish first" in read_output(graph))
    (graph.root / "release").touch()
    finish(run, graph, 3)
    assert read_output(graph).splitlines()[-1].startswith("Error: phase cyc1: failed: the loss is nan")
    assert set(graph.state().finished) == {"init", "side"}


@pytest.mark.slow
def test_a_branch_has_retries_of_its_own(graph: Place) -> None:
    graph.behave(side="ends-early")
    run = start(graph, "--side-by-side", "--retry")
    finish(run, graph, 3)
    assert "phase side: failed: it ended after iteration 4 of 6" in read_output(graph).splitlines()[-1]
    assert read_output(graph).splitlines()[-1].endswith("side-2.log; after 1 retry")
    assert graph.trained().count("side") == 2
    assert "cyc1" in graph.state().finished


@pytest.mark.parametrize(
    ("hosts", "part"),
    [
        (
            "localhost\n",
            "--side-by-side: needs at least 2 hosts, 1 for the main line and 1 for a branch",
        ),
        ("localhost\ndead\n", "--side-by-side: needs at least 2 hosts, .*; only 1 can be used"),
        (None, "--side-by-side: needs at least 2 hosts"),
    ],
)
def test_with_too_few_hosts_nothing_changes(graph: Place, hosts: str | None, part: str) -> None:
    if hosts is None:
        (graph.root / "hosts").unlink()
    else:
        (graph.root / "hosts").write_text(hosts)
    dead = StandInHost("dead", fault=HostFailed("dead", "does not answer"))
    graph.connect = lambda name: dead if name == "dead" else connect(name)
    before = graph.tree()
    with pytest.raises(InputError, match=part):
        graph.run(side_by_side=True, **({"hostfile": graph.root / "hosts"} if hosts else {}))
    assert graph.tree() == before


def test_a_recipe_without_branches_is_refused(place: Place) -> None:
    before = place.tree()
    with pytest.raises(InputError, match="--side-by-side: small has no branches; leave it out"):
        place.run(side_by_side=True)
    assert place.tree() == before


@pytest.mark.slow
def test_new_is_refused_while_a_branch_of_a_killed_run_trains(graph: Place) -> None:
    graph.behave(side="waits")
    first = start(graph, "--side-by-side")
    wait_until(first, graph, lambda: AMID in log(graph, "side") and "last" in graph.state().finished)
    first.kill()
    first.wait()
    with pytest.raises(InputError, match=r"side-1\.log: process \d+ of a killed run is still training"):
        graph.run(hostfile=graph.root / "hosts", new=True)
    (graph.root / "release").touch()
    finish(start(graph), graph)
    check_end(graph)
