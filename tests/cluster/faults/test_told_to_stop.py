"""Ctrl-C, SIGTERM, and SIGINT to Caffe itself, on several hosts."""

from __future__ import annotations

import signal
import time

import pytest

from caffe_recipes.cluster.ssh_config import KEEPALIVE_S
from caffe_recipes.cluster.ssh_login import KEEPALIVE_COUNT
from tests.cluster.faults.faulty_chain import FaultyChain

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_ctrl_c_keeps_a_snapshot_from_which_the_same_command_continues(
    chain: FaultyChain, number: signal.Signals
) -> None:
    chain.behave(cyc1=[{"does": "waits", "at": 4}, {"does": "waits", "at": 6, "until": "doomsday"}])
    run = chain.start()
    run.wait_until(lambda: "Iteration 4, lr" in chain.log("cyc1"))
    run.kill(number)
    run.wait_until(lambda: "asked Caffe for a snapshot" in run.read_output())
    chain.release()
    output = run.finish(128 + number)
    assert "Snapshot begin" in chain.log("cyc1")
    assert "run the same command again to resume" in output
    assert chain.cluster.leftovers() == {}
    chain.behave()
    chain.run()
    assert f"Resuming from {chain.tmp}/cyc1_iter_5.solverstate" in chain.log("cyc1", 2)
    assert "Iteration 4," not in chain.log("cyc1", 2)
    chain.check_finished()


def test_the_second_ctrl_c_stops_at_once(chain: FaultyChain) -> None:
    run = chain.start_amid("cyc1")
    run.kill(signal.SIGINT)
    run.wait_until(lambda: "asked Caffe for a snapshot" in run.read_output())
    asked = time.monotonic()
    run.kill(signal.SIGINT)
    run.finish(130)
    assert time.monotonic() - asked < 30
    assert chain.cluster.leftovers() == {}
    chain.behave()
    chain.run()
    chain.check_finished()


def test_a_run_that_was_suspended_ends_like_an_undisturbed_one(chain: FaultyChain) -> None:
    run = chain.start_amid("cyc1", "--checkpoint-every", "2")
    run.kill(signal.SIGSTOP)
    chain.release()
    time.sleep(KEEPALIVE_COUNT * KEEPALIVE_S + 1)  # then all connections seem lost when it continues
    run.kill(signal.SIGCONT)
    run.wait_until(lambda: "model: " in run.read_output())
    finished = time.monotonic()
    run.finish()
    assert time.monotonic() - finished < 10
    assert chain.trained() == ["init", "cyc1", "last"]
    chain.check_finished()


def test_a_training_stopped_by_an_outside_sigint_is_not_finished(chain: FaultyChain) -> None:
    run = chain.start_amid("cyc1")
    for host in chain.cluster.nodes[: chain.nodes]:
        chain.signal_ranks(host, signal.SIGINT)
    chain.release()
    output = run.finish(3)
    assert "stopped early" in output.splitlines()[-1]
    assert "Optimization Done." in chain.log("cyc1")
    assert sorted(chain.models()) == ["init_iter_8.caffemodel"]
    chain.behave()
    chain.run()
    chain.check_finished()
