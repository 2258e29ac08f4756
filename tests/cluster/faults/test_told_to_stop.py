"""Ctrl-C, SIGTERM, and SIGINT to Caffe itself, on several hosts."""

from __future__ import annotations

import signal
import time

import pytest

from tests.cluster.faults.faulty_chain import FaultyChain

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize("numbers", [(signal.SIGTERM,)])
def test_the_second_ctrl_c_and_sigterm_stop_at_once(
    chain: FaultyChain, numbers: tuple[signal.Signals, ...]
) -> None:
    chain.behave(cyc1={"does": "waits", "at": 4})
    run = chain.start()
    run.wait_until(lambda: "Iteration 4, lr" in chain.log("cyc1"))
    for number in numbers:
        run.kill(number)
        time.sleep(0.5)
    asked = time.monotonic()
    run.finish(128 + numbers[-1])
    assert time.monotonic() - asked < 15
    assert chain.cluster.leftovers() == {}
    chain.behave()
    chain.run()
    chain.check_finished()


def test_a_training_that_somebody_ends_by_sigint_is_not_finished(chain: FaultyChain) -> None:
    chain.behave(cyc1={"does": "waits", "at": 4})
    run = chain.start()
    run.wait_until(lambda: "Iteration 4, lr" in chain.log("cyc1"))
    for host in chain.cluster.nodes[: chain.nodes]:
        chain.signal_ranks(host, signal.SIGINT)
    (chain.root / "release").touch()
    said = run.finish(3)
    assert "stopped early" in said.splitlines()[-1]
    assert "Optimization Done." in chain.log("cyc1")
    assert sorted(chain.models()) == ["init_iter_8.caffemodel"]
    chain.behave()
    chain.run()
    chain.check_finished()
