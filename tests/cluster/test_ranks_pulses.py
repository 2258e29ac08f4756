from __future__ import annotations

import os
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from caffe_recipes.cluster.commands import Running
from caffe_recipes.cluster.hosts import LocalHost
from caffe_recipes.cluster.ranks import LAUNCH_VARIABLE, PulseMonitor, RankPulse, Silence, parse_beat
from caffe_recipes.cluster.remote import Conversation
from caffe_recipes.errors import ClusterError, HostFailed


@dataclass(frozen=True)
class Doubtful(LocalHost):
    """A node, imitated by this machine, which can refuse connections or answer nothing."""

    name: str = "node1"
    is_local: bool = False
    refusing: threading.Event = field(default_factory=threading.Event)
    mute: threading.Event = field(default_factory=threading.Event)
    woken: threading.Event = field(default_factory=threading.Event)

    def start(self, argv: Sequence[str], limit_s: float | None = None) -> Running:
        if self.mute.is_set():
            self.woken.wait()
        if self.refusing.is_set():
            raise HostFailed(self.name, "Connection refused")
        return super().start(argv, limit_s)


@pytest.fixture
def launch() -> str:
    return f"{secrets.token_hex(8)}/init-1"


@pytest.fixture
def start(launch: str) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Give a function that starts a process of a rank."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*argv: str, rank: int = 0) -> subprocess.Popen[bytes]:
        environment = {"PATH": os.environ["PATH"], LAUNCH_VARIABLE: launch, "PMI_RANK": str(rank)}
        started.append(subprocess.Popen(argv, env=environment))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def commands(launch: str) -> list[int]:
    """Return the node-side processes that send this launch's pulses."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and launch.encode() in (entry / "cmdline").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def until(holds: Callable[[], object], within_s: float = 600.0) -> bool:
    deadline = time.monotonic() + within_s
    while not (held := holds()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return bool(held)


def states(pulses: PulseMonitor, host: str = "node1") -> dict[int, str]:
    latest = pulses.latest().get(host)
    return {rank.rank: rank.state for rank in latest.ranks} if latest else {}


def test_pulses_report_ranks_as_they_start_stop_and_end(
    launch: str, start: Callable[..., subprocess.Popen[bytes]]
) -> None:
    with PulseMonitor([Doubtful()], launch, every_s=0.05) as pulses:
        assert until(lambda: "node1" in pulses.latest())
        assert states(pulses) == {}
        first, second = start("sleep", "600"), start("sh", "-c", "while :; do :; done", rank=12)
        assert until(lambda: states(pulses) == {0: "S", 12: "R"})
        assert until(lambda: max(rank.cpu_s for rank in pulses.latest()["node1"].ranks) > 0.1)
        assert all(rank.memory_bytes > 100_000 for rank in pulses.latest()["node1"].ranks)
        assert {rank.pid for rank in pulses.latest()["node1"].ranks} == {first.pid, second.pid}
        second.send_signal(signal.SIGSTOP)
        assert until(lambda: states(pulses)[12] == "T")
        first.kill()
        assert until(lambda: states(pulses)[0] == "Z")
        assert pulses.latest()["node1"].living == {12}
        first.wait()
        assert until(lambda: states(pulses) == {12: "T"})
        # Also when no pulse is kept that has it living.
        assert until(lambda: pulses.histories()["node1"][0].ended == pulses.latest()["node1"].ended == {0})
        assert pulses.silent(5.0) == ()
        times_s = [pulse.heard_at_s for pulse in pulses.histories()["node1"]]
        assert times_s == sorted(times_s)
    assert until(lambda: not commands(launch))


def test_a_host_that_refuses_connections_is_silent_with_the_reason_until_it_answers_again(
    launch: str,
) -> None:
    now = [100.0]
    good, bad = Doubtful("node1"), Doubtful("node2")
    with PulseMonitor([good, bad], launch, every_s=0.05, clock=lambda: now[0], retry_s=0.05) as pulses:
        assert until(lambda: len(pulses.latest()) == 2)
        bad.refusing.set()
        for pid in commands(launch):  # the connections of both are lost
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert until(lambda: pulses.silent(-1.0)[1].reason == "Connection refused")
        now[0] = 130.0
        assert until(lambda: pulses.latest()["node1"].heard_at_s == 130.0)
        assert pulses.silent(20.0) == (Silence("node2", 30.0, "Connection refused"),)
        assert pulses.silent(30.0) == ()
        bad.refusing.clear()
        assert until(lambda: pulses.silent(20.0) == ())


def test_an_unexpected_exception_is_the_reason_of_the_silence_and_does_not_end_the_polling(
    launch: str,
) -> None:
    class Broken(Doubtful):
        def start(self, argv: Sequence[str], limit_s: float | None = None) -> Running:
            if self.refusing.is_set():
                raise ValueError("a mistake of ours")
            return super().start(argv, limit_s)

    host = Broken()
    host.refusing.set()
    with PulseMonitor([host], launch, every_s=0.05, retry_s=0.05) as pulses:
        assert until(lambda: pulses.silent(-1.0)[0].reason == "ValueError: a mistake of ours", 60)
        host.refusing.clear()
        assert until(lambda: pulses.is_responding("node1"), 60)


def test_a_silent_host_delays_neither_the_others_nor_the_end(launch: str) -> None:
    mute = Doubtful("node2")
    mute.mute.set()
    try:
        pulses = PulseMonitor([Doubtful("node1"), mute], launch, every_s=0.05)
        assert until(lambda: "node1" in pulses.latest())
        (silence,) = pulses.silent(-1.0)[1:]
        assert (silence.host, silence.reason) == ("node2", "no answer")
        started = time.monotonic()
        pulses.close()
        assert time.monotonic() - started < 10
        assert until(lambda: not commands(launch))
    finally:
        mute.woken.set()
    assert until(lambda: all(thread.name != "pulse-node2" for thread in threading.enumerate()))
    assert until(lambda: not commands(launch))  # what came late is ended, too


def test_this_machine_is_never_lost(launch: str) -> None:
    here, node = Doubtful("here", is_local=True), Doubtful("node1")
    for host in (here, node):
        host.refusing.set()
    with PulseMonitor([here, node], launch, every_s=0.05, retry_s=0.05) as pulses:
        assert [silence.host for silence in pulses.silent(-1.0)] == ["node1"]


def test_invalid_launches_and_pulses_are_refused() -> None:
    with pytest.raises(ClusterError, match="is not the name of a run or launch"):
        PulseMonitor([], "x y")
    assert parse_beat("node1", ["rank 1 2 D 1500 4096"]) == (RankPulse(1, 2, "D", 1.5, 4096),)
    for record in ("hello", "rank 1 2 D 1500", "rank -1 2 D 1 1"):
        with pytest.raises(HostFailed, match="node1: cannot parse the answer to `beat`"):
            parse_beat("node1", [record])


def test_a_pulse_command_without_requests_ends_by_itself(launch: str) -> None:
    """As on a node behind a cut link, whose sshd keeps the command's input open."""
    with PulseMonitor([Doubtful()], launch, every_s=0.05) as pulses:
        assert until(lambda: "node1" in pulses.latest())
    assert until(lambda: not commands(launch))
    with Conversation(LocalHost(), "ranks", "beat", launch, "1") as conversation:
        assert conversation.ask() == []
        assert until(lambda: not commands(launch))
