"""A kept snapshot that is damaged while the run is active is never used for training."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.cluster.faults.faulty_chain import FaultyChain

pytestmark = pytest.mark.cluster


def damage(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data if how == "one bit flipped" else data[: len(data) // 2])


@pytest.mark.parametrize("how", ["truncated", "one bit flipped"])
def test_before_a_retry_it_is_fetched_again_from_where_it_was_trained(chain: FaultyChain, how: str) -> None:
    run = chain.start_amid("cyc1", "--on-failure", "retry")
    damage(chain.run_folder / "snapshots/init_iter_8.caffemodel", how)
    chain.signal_ranks("node2", signal.SIGKILL)
    chain.release()
    output = run.finish()
    assert "init_iter_8.caffemodel: was damaged; fetched again from node1" in output
    killed = "phase cyc1: failed: a rank was killed by signal 9 (out of memory?) after iteration"
    assert killed in output
    assert "; on which of node[1-2] is not known: the launcher ends the others at once" in output
    assert chain.trained() == ["init", "cyc1", "cyc1", "last"]
    chain.check_finished()


def test_before_a_branch_it_is_fetched_again(graph: FaultyChain) -> None:
    run = graph.start_amid(
        "cyc1", "--on-failure", "retry"
    )  # our copy may be under verification after cyc1 has read it
    damage(graph.run_folder / "snapshots/init_iter_8.caffemodel", "one bit flipped")
    graph.release()
    run.finish()
    assert graph.has_event("restored")
    assert set(graph.trained()) == {"init", "cyc1", "side", "last"}
    graph.check_finished()


@pytest.mark.promise("what changed in transit is not used")
def test_without_a_whole_copy_the_run_fails_and_trains_nothing_from_it(chain: FaultyChain) -> None:
    run = chain.start_amid("cyc1", "--on-failure", "retry")
    kept = chain.run_folder / "snapshots/init_iter_8.caffemodel"
    whole = kept.read_bytes()
    for path in (kept, chain.of("node1", "init_iter_8.caffemodel")):
        damage(path, "one bit flipped")
    chain.signal_ranks("node2", signal.SIGKILL)
    chain.release()
    output = run.finish(3)
    assert "is no longer the snapshot that phase init finished with; restore it" in output.splitlines()[-1]
    assert chain.trained() == ["init", "cyc1"]
    kept.write_bytes(whole)
    chain.behave()
    chain.run()
    chain.check_finished()
