from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from caffe_recipes.cluster.commands import Host
from caffe_recipes.cluster.hosts import (
    LocalHost,
    ask_all,
    first_error,
    open_all,
    try_each,
)
from caffe_recipes.errors import HostFailed
from tests.stand_in_host import StandInHost


def make(count: int) -> list[StandInHost]:
    return [StandInHost(f"n{number}") for number in range(count)]


def test_answers_come_in_the_hosts_order_whatever_fails_on_some() -> None:
    hosts = make(5)
    hosts[1].fault = HostFailed("n1", "is gone", "wait")
    hosts[3].fault = HostFailed("n3", "is full", "wait")
    answers = ask_all(hosts, lambda host: host.run(["true"]).returncode, 5)
    assert [answer.host.name for answer in answers] == ["n0", "n1", "n2", "n3", "n4"]
    assert [answer.value for answer in answers] == [0, None, 0, None, 0]
    assert str(first_error(answers)) == "n1: is gone (and 1 more of 5 hosts failed); wait"
    assert first_error(answers[:3]) is hosts[1].fault
    assert first_error(answers[:1]) is None


def test_all_hosts_are_contacted_in_parallel_up_to_a_limit() -> None:
    meeting = threading.Barrier(8)
    assert len(ask_all(make(8), lambda host: meeting.wait(5), 10)) == 8
    now, most, lock = 0, 0, threading.Lock()

    def act(host: Host) -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.02)
        with lock:
            now -= 1

    ask_all(make(20), act, 10, at_once=3)
    assert most == 3


def test_a_host_that_takes_too_long_is_dropped_and_named() -> None:
    hosts = [LocalHost("quick"), LocalHost("slow")]
    started = time.monotonic()
    freed = threading.Event()

    def act(host: Host) -> str:
        if host.name == "slow":
            freed.wait(20)
        return host.name

    answers = ask_all(hosts, act, 0.3)
    freed.set()
    assert answers[0].value == "quick"
    assert str(answers[1].error) == "slow: did not respond within 0 s; check the host and its disks"
    assert time.monotonic() - started < 5


def test_a_host_that_waits_for_its_turn_is_not_late() -> None:
    answers = ask_all(make(6), lambda host: time.sleep(0.3), 1.0, at_once=1)
    assert all(answer.error is None for answer in answers)


def test_a_programming_error_is_not_reported_as_an_answer_of_a_host() -> None:
    with pytest.raises(ZeroDivisionError):
        ask_all(make(2), lambda host: 1 // 0, 5)


def test_no_hosts_give_no_answers() -> None:
    assert ask_all([], lambda host: host.connect(), 5) == ()


def test_failures_and_timeouts_are_reported_by_host() -> None:
    hosts = make(3)
    hosts[1].fault = HostFailed("n1", "is gone", "wait")
    freed = threading.Event()

    def act(host: Host) -> None:
        host.connect()
        if host.name == "n2":
            freed.wait(20)

    assert try_each(hosts, act, 0.3) == {"n1": "is gone", "n2": "did not respond within 0 s"}
    freed.set()


_WAITS_FOR_A_DEAD_HOST = """
import time
from caffe_recipes.cluster.hosts import ask_all, try_each
from tests.stand_in_host import StandInHost

{}([StandInHost("n0")], lambda host: time.sleep(600), 0.1)
print("done", flush=True)
"""


@pytest.mark.parametrize("function", ["try_each", "ask_all"])
def test_waiting_for_a_dead_host_does_not_delay_the_end_of_the_program(function: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _WAITS_FOR_A_DEAD_HOST.format(function)],
        cwd=Path(__file__).parents[2],  # from where the tests are imported
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == b"done\n"


def test_names_are_looked_up_all_at_once_and_their_order_is_kept() -> None:
    met = threading.Barrier(5, timeout=20)

    def connect(name: str) -> Host:
        met.wait()
        return StandInHost(name)

    names = [f"n{number}" for number in range(5)]
    assert [host.name for host in open_all(names, connect)] == names
    assert open_all([], connect) == ()
