"""Silent links and stuck ranks, which no launcher notices, are named, and the launch stopped everywhere."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pytest

from tests.cluster.faults.faulty_chain import FaultyChain

pytestmark = pytest.mark.cluster

MakeChain = Callable[..., FaultyChain]


def test_a_cut_link_is_found_within_a_minute_and_no_other_host_is_left_training(
    make_chain: MakeChain,
) -> None:
    chain = make_chain()
    run = chain.start_amid("cyc1")
    chain.cluster.cut("node2")
    cut = time.monotonic()
    chain.release()
    run.wait_until(lambda: "; stopping the launch on every host" in run.read_output())
    assert time.monotonic() - cut < 60
    output = run.finish(3)
    assert "node2" in output.splitlines()[-1]
    assert chain.ranks_on("node1") == {}
    chain.cluster.reconnect("node2")
    chain.behave()
    chain.run()
    chain.check_finished()


def test_a_host_behind_a_cut_link_is_replaced_by_a_spare(make_chain: MakeChain) -> None:
    chain = make_chain(3)
    run = chain.start_amid("cyc1", "--on-failure", "replace")
    chain.cluster.cut("node2")
    chain.release()
    output = run.finish()
    assert "node3 replaces node2" in output
    assert set(chain.cluster.leftovers()) <= {"node2"}
    chain.cluster.reconnect("node2")
    chain.kill_all_on("node2")
    chain.check_finished()


def test_a_stuck_rank_is_named_with_its_host(chain: FaultyChain) -> None:
    run = chain.start_amid("cyc1")
    chain.signal_ranks("node2", signal.SIGSTOP, [3])
    chain.release()
    output = run.finish(3)
    assert "node2" in output.splitlines()[-1]
    assert "rank 3 is stopped (SIGSTOP)" in output.splitlines()[-1]
    assert chain.cluster.leftovers() == {}
    chain.behave()
    chain.run()
    chain.check_finished()
