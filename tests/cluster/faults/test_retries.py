"""Failed launches are retried by policy."""

from __future__ import annotations

import pytest

from tests.cluster.faults.faulty_chain import FaultyChain

pytestmark = pytest.mark.cluster


def test_with_retry_a_chain_survives_a_fault_in_every_phase(chain: FaultyChain) -> None:
    chain.behave(
        init=[{"does": "empty", "once": True}],
        cyc1=[{"does": "dies", "once": True, "rank": 3}],
        last=[{"does": "nan", "once": True}],
    )
    chain.run("--on-failure", "retry")
    chain.check_finished()
    assert chain.trained() == ["init", "init", "cyc1", "cyc1", "last", "last"]


def test_a_persistent_fault_ends_the_run_after_the_allowed_retries(chain: FaultyChain) -> None:
    chain.behave(cyc1="renamed")
    output = chain.run("--on-failure", "retry", "--retries", "2", code=3)
    assert chain.trained() == ["init", "cyc1", "cyc1", "cyc1"]
    assert "cyc1" in output.splitlines()[-1]
