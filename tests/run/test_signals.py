"""Signals to stop: raised, held back, or noted."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from caffe_recipes.run.signals import CANCEL, STOPPING, Interrupted, Interrupts


@pytest.fixture(autouse=True)
def _listening() -> Iterator[None]:
    """Undo what nohup, or a shell's `&`, has the tests ignore."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (*STOPPING, CANCEL)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", STOPPING)
def test_a_signal_to_stop_is_raised(number: signal.Signals) -> None:
    interrupts = Interrupts()
    with pytest.raises(Interrupted) as raised, interrupts.raised():
        send(number)
    assert raised.value.number == number


def test_a_single_signal_can_be_handled_alone() -> None:
    with pytest.raises(Interrupted, match="SIGUSR1"), Interrupts().raised((signal.SIGUSR1,)):
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        send(signal.SIGUSR1)
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL


def test_a_signal_received_while_held_is_raised_at_the_end() -> None:
    interrupts, seen = Interrupts(), []
    with pytest.raises(Interrupted), interrupts.raised(), interrupts.held():
        send(signal.SIGINT)
        seen.append("went on")
    assert seen == ["went on"]


def test_the_first_is_noted_and_the_second_is_raised() -> None:
    interrupts, seen = Interrupts(), []
    with pytest.raises(Interrupted) as raised, interrupts.raised(), interrupts.noted():
        send(signal.SIGINT)
        seen.append(interrupts.asked)
        send(signal.SIGTERM)
    assert seen == [signal.SIGINT]
    assert raised.value.number == signal.SIGTERM


def test_a_cancel_stops_as_ctrl_c_does() -> None:
    with pytest.raises(Interrupted, match="SIGINT"), Interrupts().raised():
        send(CANCEL)


def test_a_cancel_never_counts_as_a_second_ctrl_c_which_a_later_one_does() -> None:
    interrupts, seen = Interrupts(), []
    with pytest.raises(Interrupted, match="SIGTERM"), interrupts.raised(), interrupts.noted():
        send(signal.SIGINT)
        send(CANCEL)
        send(CANCEL)
        interrupts.raise_urgent()
        seen.append(interrupts.asked)
        send(signal.SIGTERM)
    assert seen == [signal.SIGINT]


def test_a_job_whose_time_is_over_is_cancelled_without_losing_its_snapshot() -> None:
    interrupts = Interrupts()
    with interrupts.raised(), interrupts.noted():
        send(signal.SIGUSR1)
        send(CANCEL)
        interrupts.raise_urgent()
    assert interrupts.asked == signal.SIGINT  # SIGUSR1 would have it requeued


def test_a_noted_signal_is_raised_on_request() -> None:
    interrupts = Interrupts()
    with interrupts.raised():
        with interrupts.noted():
            send(signal.SIGINT)
        with pytest.raises(Interrupted):
            interrupts.raise_asked()
    Interrupts().raise_asked()


def test_other_threads_see_the_first_and_the_second_stop_request() -> None:
    interrupts, answered, ended = Interrupts(), threading.Event(), list[object]()

    def work() -> None:
        with interrupts.noted():
            while interrupts.asked is None:
                time.sleep(0.01)
            ended.append(interrupts.asked)
            answered.set()
            try:
                while True:
                    interrupts.raise_urgent()
                    time.sleep(0.01)
            except Interrupted as stop:
                ended.append(str(stop))

    thread = threading.Thread(target=work)
    with interrupts.raised():
        thread.start()
        with pytest.raises(Interrupted):
            send(signal.SIGINT)
        assert answered.wait(600)
        with pytest.raises(Interrupted), interrupts.noted():
            send(signal.SIGTERM)
        thread.join(10)
    assert ended == [signal.SIGINT, "SIGINT"]


def test_after_a_stop_request_another_thread_starts_nothing_more() -> None:
    interrupts, seen = Interrupts(), list[str]()

    def work() -> None:
        try:
            with interrupts.held():
                seen.append("started")
        except Interrupted as stop:
            seen.append(str(stop))

    for _ in range(2):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        with interrupts.raised(), interrupts.noted():
            send(signal.SIGTERM) if interrupts.asked is None else None
    assert seen == ["started", "SIGTERM"]
