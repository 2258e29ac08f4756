"""The watchdog with a simulated clock: which silence is a failure, and which host it names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from caffe_recipes.cluster.ranks import Pulse, RankPulse, Silence, Straggler, find_unstarted
from caffe_recipes.run.trainer_log import (
    BLOCKED_S,
    DONE_S,
    SILENT_S,
    STALL_S,
    START_STALL_S,
    STEP_WAIT_S,
    LogTail,
    StepWait,
    Trouble,
    Watchdog,
)


@dataclass
class Scene:
    """A growing log, hosts that send pulses or not, and the time."""

    log: Path
    now: float = 0.0
    silences: list[Silence] = field(default_factory=list)
    pulses: dict[str, list[Pulse]] = field(default_factory=dict)
    iteration: int = 0

    def silent(self, patience_s: float) -> Sequence[Silence]:
        return [silence for silence in self.silences if silence.seconds > patience_s]

    def histories(self) -> Mapping[str, Sequence[Pulse]]:
        return self.pulses

    def display(self) -> None:
        with self.log.open("a") as log:
            log.write(f"I1120 11:49:33.597563  6374 solver.cpp:312] Iteration {self.iteration}, loss = 2.4\n")
        self.iteration += 1

    def warn(self, text: str) -> None:
        with self.log.open("a") as log:
            log.write(f"W1120 11:{self.now:05.2f}.597563  6374 data_reader.cpp:83] {text}\n")

    def hold_up(self, state: str) -> None:
        """Let rank 1, on node2, be in a state at the last three pulses, and rank 0 run."""
        for host, rank, seen in (("node1", 0, "R"), ("node2", 1, state)):
            self.pulses[host] = [
                Pulse(host, self.now + at, (RankPulse(rank, 100 + rank, seen, at, 0),)) for at in (0, 5, 10)
            ]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path / "log")


def watch(scene: Scene, stall_s: float | None = None) -> tuple[Watchdog, LogTail]:
    return Watchdog(scene, stall_s, lambda: scene.now), LogTail(scene.log)


def pass_time(scene: Scene, dog: Watchdog, tail: LogTail, seconds: float) -> Trouble | None:
    """Let time pass without a new line, polling every second; return the last result."""
    trouble = dog.look(tail)
    for _ in range(round(seconds)):
        scene.now += 1
        trouble = dog.look(tail)
    return trouble


def train(scene: Scene, dog: Watchdog, tail: LogTail, *, displays: int = 3, every_s: float = 10.0) -> None:
    """Let some iterations pass undisturbed."""
    for _ in range(displays):
        scene.display()
        tail.read()
        assert pass_time(scene, dog, tail, every_s) is None


def test_a_growing_log_means_no_failure_whatever_ssh_reports(scene: Scene) -> None:
    dog, tail = watch(scene)
    train(scene, dog, tail)
    scene.display()
    tail.read()
    scene.silences = [Silence("node2", 300, "connection refused")]
    assert dog.look(tail) is None


def test_ssh_that_is_down_ends_no_training_whose_log_is_slow(scene: Scene) -> None:
    dog, tail = watch(scene)
    train(scene, dog, tail, every_s=60)
    scene.silences = [Silence("node2", 3000, "connection refused")]
    train(scene, dog, tail, every_s=60)


def test_a_host_is_lost_when_both_its_pulses_and_the_log_stop(scene: Scene) -> None:
    dog, tail = watch(scene)
    train(scene, dog, tail)
    scene.silences = [Silence("node2", SILENT_S + 1, "no answer")]
    trouble = pass_time(scene, dog, tail, SILENT_S)
    assert trouble == Trouble("no heartbeat for 21 s (no answer)", "node2", is_lost=True)


def test_a_slow_log_gives_a_silent_host_more_time(scene: Scene) -> None:
    dog, tail = watch(scene)
    train(scene, dog, tail, every_s=60)
    scene.silences = [Silence("node2", 150, "")]
    assert pass_time(scene, dog, tail, 30) is None
    trouble = pass_time(scene, dog, tail, 40)
    assert trouble == Trouble("no heartbeat for 2 min 30 s", "node2", is_lost=True)


@pytest.mark.parametrize(("display_s", "limit_s"), [(10, STALL_S), (100, 2000)])
def test_a_log_stalls_by_its_own_pace(scene: Scene, display_s: float, limit_s: float) -> None:
    dog, tail = watch(scene)
    train(scene, dog, tail, every_s=display_s)
    assert pass_time(scene, dog, tail, limit_s - display_s - 1) is None
    trouble = pass_time(scene, dog, tail, 2)
    assert trouble is not None
    assert trouble.host is None
    assert trouble.what.startswith("no output in the log for ")


def test_before_the_first_iteration_time_to_load_is_allowed(scene: Scene) -> None:
    dog, tail = watch(scene)
    assert pass_time(scene, dog, tail, START_STALL_S - 1) is None
    assert pass_time(scene, dog, tail, 2) == Trouble("no output in the log for 15 min 01 s")


def test_a_limit_of_the_users_is_the_limit(scene: Scene) -> None:
    dog, tail = watch(scene, stall_s=5)
    train(scene, dog, tail, every_s=2)
    assert pass_time(scene, dog, tail, 4) == Trouble("no output in the log for 6 s")


def pass_time_with_warnings(scene: Scene, dog: Watchdog, tail: LogTail, seconds: int) -> Trouble | None:
    """Let time pass while the log only repeats the same line each second."""
    trouble = None
    for second in range(seconds):
        scene.warn(f"Waiting for data, {second} times")
        tail.read()
        trouble = pass_time(scene, dog, tail, 1)
    return trouble


def test_a_repeated_warning_is_not_a_sign_of_life(scene: Scene) -> None:
    dog, tail = watch(scene, stall_s=60)
    train(scene, dog, tail)
    assert pass_time_with_warnings(scene, dog, tail, 49) is None
    what = "no progress in the log for 1 min 00 s, and its last line is: "
    trouble = pass_time_with_warnings(scene, dog, tail, 1)
    assert trouble is not None
    assert trouble.what.startswith(what)
    assert trouble.what.endswith("Waiting for data, 0 times")


def test_a_host_is_lost_though_other_ranks_continue_warning(scene: Scene) -> None:
    dog, tail = watch(scene)
    train(scene, dog, tail)
    scene.silences = [Silence("node2", 2 * SILENT_S, "no answer")]
    trouble = pass_time_with_warnings(scene, dog, tail, round(SILENT_S))
    assert trouble == Trouble("no heartbeat for 40 s (no answer)", "node2", is_lost=True)


def test_before_the_first_iteration_a_line_counts_once(scene: Scene) -> None:
    dog, tail = watch(scene, stall_s=60)
    for layer in ("conv", "pool", "ip"):
        scene.warn(f"Setting up {layer}")
        tail.read()
        assert pass_time(scene, dog, tail, 59) is None
    trouble = pass_time_with_warnings(scene, dog, tail, 61)
    assert trouble is not None
    assert trouble.what.startswith("no progress in the log for 1 min")


def test_a_slow_start_gives_a_silent_host_no_more_time(scene: Scene) -> None:
    dog, tail = watch(scene)
    assert pass_time(scene, dog, tail, 600) is None
    train(scene, dog, tail, every_s=1)
    scene.silences = [Silence("node2", 2 * SILENT_S, "")]
    trouble = pass_time(scene, dog, tail, SILENT_S)
    assert trouble == Trouble("no heartbeat for 40 s", "node2", is_lost=True)


def test_time_without_polling_does_not_count_as_silence(scene: Scene) -> None:
    dog, tail = watch(scene)
    train(scene, dog, tail)
    scene.now += 3600  # Ctrl-Z
    assert dog.look(tail) is None
    train(scene, dog, tail)
    trouble = pass_time(scene, dog, tail, STALL_S)
    assert trouble is not None
    assert trouble.what.startswith("no output in the log for 10 min")


def test_a_stopped_rank_is_a_failure_once_the_log_stalls(scene: Scene) -> None:
    dog, tail = watch(scene)
    train(scene, dog, tail, every_s=1)
    scene.hold_up("T")
    assert dog.look(tail) is None
    trouble = pass_time(scene, dog, tail, BLOCKED_S + 1)
    assert trouble == Trouble("blocks the others: rank 1 is stopped (SIGSTOP)", "node2")


def test_a_rank_that_waits_for_a_disk_is_only_suspected_until_the_log_stalls(scene: Scene) -> None:
    dog, tail = watch(scene)
    train(scene, dog, tail, every_s=1)
    scene.hold_up("D")
    assert pass_time(scene, dog, tail, BLOCKED_S + 1) is None
    assert dog.suspect is not None
    assert dog.suspect.host == "node2"
    trouble = pass_time(scene, dog, tail, STALL_S)
    assert trouble is not None
    assert trouble.host == "node2"
    assert trouble.what.endswith("rank 1 is waiting for a disk")


def test_a_rank_that_has_ended_is_named_unless_training_is_ending_or_stalls(scene: Scene) -> None:
    dog, tail = watch(scene)
    train(scene, dog, tail, every_s=1)
    scene.hold_up("R")
    scene.pulses["node2"] = [Pulse("node2", scene.now + at, (), frozenset({1})) for at in (0, 5, 10)]
    assert pass_time(scene, dog, tail, BLOCKED_S + 1) is None
    assert dog.suspect == Straggler("node2", 1, "rank 1 has ended while others continue")
    assert dog.look(tail, is_ending=True) is None
    assert dog.suspect is None
    scene.now += STALL_S
    for _ in range(round(STALL_S)):
        scene.now += 1
        trouble = dog.look(tail, is_ending=True)
    assert trouble is not None
    assert trouble.host == "node2"


def start_ranks(scene: Scene, dog: Watchdog, tail: LogTail, beats: int) -> Trouble | None:
    """Let node1's rank be seen at so many pulses, and none on node2."""
    trouble = None
    for _ in range(beats):
        scene.now += 5
        for host, ranks in (("node1", (RankPulse(0, 100, "S", 1.0, 0),)), ("node2", ())):
            scene.pulses.setdefault(host, []).append(Pulse(host, scene.now, ranks))
        tail.read()
        trouble = trouble or dog.look(tail)
    return trouble


def test_a_host_without_ranks_is_blamed_within_a_minute_of_the_others_first(scene: Scene) -> None:
    dog, tail = watch(scene)
    assert start_ranks(scene, dog, tail, 7) is None
    what = "no rank has started there for 35 s, while 1 host has theirs"
    assert start_ranks(scene, dog, tail, 1) == Trouble(what, "node2")


@pytest.mark.parametrize(
    "line",
    [
        "Host key verification failed.",
        "ssh: connect to host node2 port 22: Connection refused",
        "root@node2: Permission denied (publickey).",
        "sh: 1: /usr/bin/hydra_pmi_proxy: not found",
    ],
)
def test_an_ssh_error_names_the_only_host_without_ranks_early(scene: Scene, line: str) -> None:
    dog, tail = watch(scene)
    scene.log.write_text(f"{line}\n")
    assert start_ranks(scene, dog, tail, 2) is None
    assert start_ranks(scene, dog, tail, 1) == Trouble(f"no rank has started there: {line}", "node2")


def test_a_host_that_was_booted_before_a_pulse_showed_its_ranks_is_found_by_that(scene: Scene) -> None:
    dog, tail = watch(scene)
    scene.display()
    tail.read()
    what = "no rank has started there for 35 s, while 1 host has theirs"
    assert start_ranks(scene, dog, tail, 8) == Trouble(what, "node2")


def test_a_host_whose_ranks_have_ended_or_whose_launch_has_begun_is_not_unstarted(scene: Scene) -> None:
    dog, tail = watch(scene)
    for _ in range(12):
        scene.display()
        assert start_ranks(scene, dog, tail, 1) is None
    ended = Pulse("node2", scene.now, (), frozenset({1}))
    assert find_unstarted({"node1": scene.pulses["node1"], "node2": [ended] * 8}) is None


def test_without_any_rank_anywhere_only_a_host_that_ssh_names_is_blamed() -> None:
    none = {host: [Pulse(host, at, ()) for at in range(8)] for host in ("node1", "node11")}
    assert find_unstarted(none) is None
    assert find_unstarted(none, ["Host key verification failed."]) is None
    found = find_unstarted(none, ["ssh: connect to host node11 port 22: No route to host"])
    assert found is not None
    assert found.host == "node11"


BUSY = "srun: Job 8 step creation temporarily disabled, retrying (Requested nodes are busy)"
HOLDERS = "step 8.0 (caffe) on node1, which `scancel 8.0` ends"


def test_an_srun_that_waits_for_the_nodes_of_other_steps_is_quoted_and_given_up(scene: Scene) -> None:
    wait, tail = StepWait(lambda: HOLDERS, lambda: scene.now), LogTail(scene.log)
    assert wait.look(tail) is None
    assert wait.message == ""
    scene.log.write_text(f"{BUSY}\n{BUSY.replace('temporarily', 'still')}\n")
    tail.read()
    assert wait.look(tail) is None
    assert wait.message == f"{BUSY.replace('temporarily', 'still')}; {HOLDERS}"
    scene.now += STEP_WAIT_S
    assert wait.look(tail) == Trouble(f"no rank has started for 2 min 00 s: {wait.message}")


def test_an_srun_whose_step_was_created_waits_no_longer(scene: Scene) -> None:
    wait, tail = StepWait(str, lambda: scene.now), LogTail(scene.log)
    scene.log.write_text(f"{BUSY}\n")
    tail.read()
    assert wait.look(tail) is None
    assert wait.message == BUSY
    with scene.log.open("a") as log:
        log.write("srun: Step created for StepId=8.1\n")
    tail.read()
    scene.now += STEP_WAIT_S
    assert wait.look(tail) is None


def test_a_trainer_that_does_not_exit_after_its_last_line_is_ended_within_a_minute(scene: Scene) -> None:
    dog, tail = watch(scene)
    train(scene, dog, tail, every_s=1)
    with scene.log.open("a") as log:
        log.write("[0] I1120 11:59:33.000000  6374 solver.cpp:329] Optimization Done.\n")
    tail.read()
    assert pass_time(scene, dog, tail, DONE_S - 2) is None
    trouble = pass_time(scene, dog, tail, 4)
    assert trouble is not None
    assert trouble.what.startswith("no output in the log for 1 min")
    assert not trouble.is_spoilt
