"""A /tmp that fills up: while staging, and where rank 0 writes its snapshot."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.cluster.faults.faulty_chain import FaultyChain

pytestmark = pytest.mark.cluster

MakeChain = Callable[..., FaultyChain]


def test_a_full_tmp_where_the_snapshot_is_written_fails_the_phase_and_keeps_nothing_of_it(
    make_chain: MakeChain,
) -> None:
    chain = make_chain(tmp="64m")
    run = chain.start_amid("cyc1")
    chain.fill("node1", leave_bytes=20_000)
    chain.release()
    said = run.finish(3)
    assert "phase cyc1: failed: Check failed: proto.SerializeToOstream" in said.splitlines()[-1]
    assert chain.cluster.leftovers() == {}
    assert sorted(chain.models()) == ["init_iter_8.caffemodel"]
    chain.behave()
    said = chain.run(code=2)
    assert "node1" in said.splitlines()[-1]
    chain.unfill("node1")
    chain.run()
    chain.check_finished()


def test_a_tmp_that_fills_up_while_it_is_staged_is_named(make_chain: MakeChain) -> None:
    chain = make_chain(4, nodes=4, tmp="64m", records=10_000)
    chain.fill("node3", leave_bytes=2_000_000)
    said = chain.run(code=2)
    assert "node3" in said.splitlines()[-1]
    assert "no room" in said.splitlines()[-1]
    chain.unfill("node3")
    run = chain.start("--how", "sftp")
    run.wait_until(lambda: chain.of("node3").is_dir() and any(chain.of("node3").glob("**/*")))
    chain.fill("node3", leave_bytes=0)
    said = run.finish(3)
    assert "node3" in said.splitlines()[-1]
    assert not chain.has_event("launched")
    chain.unfill("node3")
    chain.run()
    chain.check_finished()
