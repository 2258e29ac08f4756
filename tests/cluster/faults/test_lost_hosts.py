"""Hosts that die are named, their peers stopped, and the run resumes once they are back, or without them."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.cluster.faults.faulty_chain import FaultyChain

pytestmark = pytest.mark.cluster

MakeChain = Callable[..., FaultyChain]


def test_a_host_that_dies_during_staging_is_named_and_staged_once_it_is_back(
    make_chain: MakeChain,
) -> None:
    chain = make_chain(4, nodes=4, records=40_000)
    run = chain.start()
    run.wait_until(lambda: chain.of("node3").is_dir() and any(chain.of("node3").glob("**/*")))
    chain.cluster.crash("node3")
    output = run.finish(3)
    assert "node3" in output.splitlines()[-1]
    assert not chain.has_event("launched")
    chain.cluster.boot("node3")
    chain.run()
    chain.check_finished()


def test_a_host_that_dies_while_training_is_named_and_the_run_continues_when_it_is_back(
    make_chain: MakeChain,
) -> None:
    chain = make_chain()
    run = chain.start_amid("cyc1")
    crashed = time.monotonic()
    chain.cluster.crash("node2")
    output = run.finish(3)
    assert time.monotonic() - crashed < 60
    assert "node2" in output.splitlines()[-1]
    assert chain.cluster.leftovers() == {}
    chain.cluster.boot("node2")
    chain.behave()
    output = chain.run()
    assert "init: already finished" in output
    chain.check_finished()


def test_rank_0s_dead_host_is_replaced_by_a_spare(make_chain: MakeChain) -> None:
    chain = make_chain(3)
    run = chain.start_amid("cyc1", "--on-failure", "replace")
    chain.cluster.crash("node1")
    chain.release()
    output = run.finish()
    assert "node3 replaces node1" in output
    assert chain.trained() == ["init", "cyc1", "cyc1", "last"]
    assert {path.name for path in chain.of("node3").iterdir()} >= {"lmdb", "last_iter_6.caffemodel"}
    chain.check_finished()


def test_with_retry_a_host_that_is_back_trains_again(make_chain: MakeChain) -> None:
    chain = make_chain()
    run = chain.start_amid("cyc1", "--on-failure", "retry")
    chain.cluster.crash("node2")
    chain.cluster.boot("node2")
    chain.release()
    run.finish()
    chain.check_finished()
