"""An sshd that refuses all logins for ten seconds: nothing fails."""

from __future__ import annotations

import threading

import pytest

from tests.cluster.faults.faulty_chain import FaultyChain

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize("at", ["Iteration 4, lr", "Optimization Done."])
def test_a_host_that_refuses_logins_for_ten_seconds_fails_no_phase(chain: FaultyChain, at: str) -> None:
    if at == "Iteration 4, lr":
        chain.behave(cyc1={"does": "waits", "at": 4})
    run = chain.start()
    run.wait_until(lambda: at in chain.log("cyc1"))
    chain.cluster.stop_sshd("node1")
    chain.cut_logins("node1")
    restart = threading.Timer(10, chain.cluster.start_sshd, ("node1",))
    restart.start()
    try:
        if at == "Iteration 4, lr":
            restart.join()
        chain.release()
        run.finish()
    finally:
        restart.join()
    assert chain.trained() == ["init", "cyc1", "last"]
    assert not chain.has_event("failed")
    chain.check_finished()
