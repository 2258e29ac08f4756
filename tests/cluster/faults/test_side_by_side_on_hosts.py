"""A branch beside the main line, two hosts each: undisturbed, killed, and stopped by a signal."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from tests.cluster.faults.faulty_chain import GRAPH, FaultyChain, Started

pytestmark = pytest.mark.cluster

MakeChain = Callable[..., FaultyChain]
BOTH = ("cyc1", "side")


def log(chain: FaultyChain, phase: str, attempt: int = 1) -> str:
    folder = chain.run_folder / "branches/side" if phase == "side" else chain.run_folder
    path = folder / f"logs/{phase}-{attempt}.log"
    return path.read_text() if path.exists() else ""


def start_amid_both(chain: FaultyChain) -> Started:
    """Return once both train at the same time; they continue to iteration 6 once a file `release` exists."""
    waits = [{"does": "waits", "at": 4}, {"does": "waits", "at": 6, "until": "doomsday"}]
    chain.behave(cyc1=waits, side=waits)
    run = chain.start("--side-by-side")
    run.wait_until(lambda: all("Iteration 4, lr" in log(chain, phase) for phase in BOTH))
    return run


def test_a_run_killed_while_both_train_resumes_both_on_their_hosts(graph: FaultyChain) -> None:
    graph.behave(cyc1={"does": "waits", "at": 4}, side={"does": "waits", "at": 4})
    run = graph.start("--side-by-side")
    run.wait_until(lambda: all("Iteration 4, lr" in log(graph, phase) for phase in BOTH))
    ranks = [sorted(graph.ranks_on(name).values()) for name in graph.cluster.nodes]
    assert ranks == [[0, 1], [2, 3]] * 2
    run.kill()
    again = graph.start("--side-by-side")
    continuing = "the trainer of a killed run is still training; continuing with it"
    again.wait_until(lambda: all(f"{phase}: {continuing}" in again.read_output() for phase in BOTH))
    graph.release()
    again.finish()
    graph.check_finished()
    assert sorted(graph.trained()) == ["cyc1", "init", "last", "side"], "none is trained twice"


def test_the_first_ctrl_c_keeps_a_snapshot_of_each_from_which_they_continue(graph: FaultyChain) -> None:
    run = start_amid_both(graph)
    run.kill(signal.SIGINT)
    run.wait_until(lambda: run.read_output().count("asked Caffe for a snapshot") == 2)
    graph.release()
    run.finish(130)
    assert graph.cluster.leftovers() == {}
    graph.behave()
    graph.run("--side-by-side")
    for phase in BOTH:
        assert f"Resuming from {graph.tmp}/{phase}_iter_5.solverstate" in log(graph, phase, 2)
    graph.check_finished()


def test_the_second_ctrl_c_stops_both_at_once(graph: FaultyChain) -> None:
    run = start_amid_both(graph)
    run.kill(signal.SIGINT)
    run.wait_until(lambda: run.read_output().count("asked Caffe for a snapshot") == 2)
    run.kill(signal.SIGINT)
    run.finish(130)
    assert graph.cluster.leftovers() == {}


def test_a_spare_takes_the_place_of_a_branch_s_dead_host(make_chain: MakeChain) -> None:
    graph = make_chain(3, nodes=1, recipe=GRAPH)
    graph.behave(cyc1={"does": "waits", "at": 4}, side={"does": "waits", "at": 4})
    run = graph.start("--side-by-side", "--on-failure", "replace")
    run.wait_until(lambda: all("Iteration 4, lr" in log(graph, phase) for phase in BOTH))
    assert graph.ranks_on("node3"), "the branch trains on the last host"
    graph.cluster.crash("node3")
    graph.release()
    output = run.finish()
    assert "side: node2 replaces node3" in output
    assert sorted(graph.trained()) == ["cyc1", "init", "last", "side", "side"]
    graph.check_finished()
