"""A phase resumes from its newest good checkpoint after everything was killed."""

from __future__ import annotations

import re
import signal

import pytest

from tests.cluster.faults.faulty_chain import FaultyChain

pytestmark = pytest.mark.cluster

EVERY = ("--checkpoint-every", "2")


def is_checkpoint(expected: dict[str, object], phase: str, iteration: int) -> bool:
    return (expected["event"], expected.get("phase"), expected.get("iteration")) == (
        "checkpointed",
        phase,
        iteration,
    )


def kill_all(chain: FaultyChain, *, spoils: bool) -> None:
    """Kill the run and every rank during cyc1, once two checkpoints are kept; damage the newer one."""
    chain.behave(cyc1={"does": "waits", "at": 5})
    run = chain.start(*EVERY)
    run.wait_until(lambda: [event for event in chain.events() if is_checkpoint(event, "cyc1", 4)])
    run.kill()
    for host in chain.cluster.nodes[: chain.nodes]:
        chain.signal_ranks(host, signal.SIGKILL)
    assert chain.cluster.leftovers(10) == {}
    chain.behave()
    if spoils:
        kept = chain.run_folder / "checkpoints/cyc1_iter_4.solverstate"
        kept.write_bytes(kept.read_bytes()[:-100])


@pytest.mark.parametrize(("spoils", "at"), [(False, 4), (True, 2)])
def test_a_phase_resumes_from_its_newest_good_checkpoint(chain: FaultyChain, spoils: bool, at: int) -> None:
    kill_all(chain, spoils=spoils)
    chain.run(*EVERY)
    log = chain.log("cyc1", 2)
    assert f"Resuming from {chain.tmp}/cyc1_iter_{at}.solverstate" in log
    assert re.findall(r"Iteration (\d+), loss", log)[0] == str(at)
    assert chain.trained() == ["init", "cyc1", "cyc1", "last"]
    chain.check_finished()


def test_with_retry_a_phase_that_fails_resumes_from_its_checkpoint(chain: FaultyChain) -> None:
    chain.behave(cyc1=[{"does": "waits", "at": 5}, {"does": "dies", "at": 6, "rank": 2, "once": True}])
    run = chain.start(*EVERY, "--on-failure", "retry")
    run.wait_until(lambda: [event for event in chain.events() if is_checkpoint(event, "cyc1", 4)])
    chain.release()
    run.finish()
    assert re.search(r"Resuming from .*/cyc1_iter_[46]\.solverstate", chain.log("cyc1", 2))
    chain.check_finished()
