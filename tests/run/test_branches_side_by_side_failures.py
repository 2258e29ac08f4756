"""What goes wrong beside the main line: hosts that fail, trainers that a killed run left, interruptions."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from caffe_recipes.cluster.commands import Host
from caffe_recipes.cluster.staging.stage import stage
from caffe_recipes.errors import HostFailed, RunFailed
from caffe_recipes.run.context import Run
from caffe_recipes.run.policy import Policy
from caffe_recipes.run.prepare import prepare
from tests.run.conftest import Place
from tests.run.two_lines import (
    AMID,
    SIDE,
    finish,
    log,
    make_graph,
    read_output,
    start,
    start_amid_both,
    wait_until,
)

CONTINUING = "the trainer of a killed run is still training; continuing with it"


@pytest.fixture
def graph(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return make_graph(place, tmp_path, monkeypatch)


def test_a_branch_whose_staging_is_repeated_leaves_the_main_line_its_hosts(
    graph: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [HostFailed("node2", "is full for a moment")]

    def fail_once(hosts: Sequence[Host], *rest: Any) -> Any:  # noqa: ANN401 - as `stage` takes and gives
        if [host.name for host in hosts] == ["node2"] and failures:
            raise failures.pop()
        return stage(hosts, *rest)

    monkeypatch.setattr("caffe_recipes.run.staging.stage", fail_once)
    graph.run(hostfile=graph.root / "hosts", side_by_side=True, policy=Policy("retry", retries=1))
    assert not failures
    run = graph.root / "runs/small-1"
    assert (run / "hostfile").read_text() == "localhost\n"
    assert (run / "branches/side/hostfile").read_text() == "node2\n"


@pytest.mark.slow
@pytest.mark.parametrize("words", [("--side-by-side",), ()])
def test_branches_that_the_main_lines_hosts_train_at_its_end_are_continued(
    graph: Place, words: tuple[str, ...]
) -> None:
    graph.edit(SIDE, SIDE + SIDE.replace("side", "also"))
    graph.behave(side="waits", also="waits")
    first = start(graph, "--side-by-side")
    wait_until(first, graph, lambda: all(AMID in log(graph, phase) for phase in ("side", "also")))
    assert "last" in graph.state().finished
    first.kill()
    first.wait()
    second = start(graph, *words)
    wait_until(
        second,
        graph,
        lambda: all(f"{phase}: {CONTINUING}" in read_output(graph) for phase in ("side", "also")),
    )
    (graph.root / "release").touch()
    finish(second, graph)
    assert sorted(graph.trained()) == ["also", "cyc1", "init", "last", "side"], "none is trained twice"


@pytest.mark.slow
def test_a_branch_that_fails_first_leaves_no_trainer_of_the_main_line_behind(
    graph: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = start_amid_both(graph)
    first.kill()
    first.wait()
    log_of_side = graph.root / "runs/small-1/branches/side/logs/side-1.log"

    def prepare_until_the_branch_has_failed(run: Run) -> None:
        prepare(run)
        with log_of_side.open("a") as log:
            log.write("I1122 13:00:00.000000 1 solver.cpp:312] Iteration 4, loss = nan\n")
        for thread in threading.enumerate():
            if thread.name.endswith("(_work)"):
                thread.join()
        threading.Timer(1, (graph.root / "release").touch).start()

    monkeypatch.setattr("caffe_recipes.run.runner.prepare", prepare_until_the_branch_has_failed)
    with pytest.raises(RunFailed, match="phase side: failed: the loss is nan"):
        graph.run(hostfile=graph.root / "hosts")
    graph.wait_for_no_process()
    assert set(graph.state().finished) == {"init", "cyc1"}
