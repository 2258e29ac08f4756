"""Messages of launchers about ranks that signals have killed, as recorded."""

from __future__ import annotations

import pytest

from caffe_recipes.cluster.rank_exits import ENDED_BY_US, RankExitReader

KILLED = "node2: a rank was killed by signal 9 (out of memory?)"
KILLED_3 = KILLED.replace("a rank", "rank 3")
AT = "=   PID 3556 RUNNING AT node2"


def read(*lines: str) -> RankExitReader:
    ends = RankExitReader()
    for line in lines:
        ends.feed(line)
    return ends


def cause_of(*lines: str) -> str:
    return read(*lines).cause


def hydra(code: int, string: str = "") -> list[str]:
    words = [f"YOUR APPLICATION TERMINATED WITH THE EXIT STRING: {string}"] if string else []
    return ["=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES", AT, f"=   EXIT CODE: {code}", *words]


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        (hydra(11, "Segmentation fault (signal 11)"), "signal 11 (segmentation fault)"),
        (hydra(6, "Terminated (signal 15)"), "signal 6 (aborted)"),
        (hydra(9, "Segmentation fault (signal 11)"), "signal 11 (segmentation fault)"),
    ],
)
def test_hydra_s_block_names_the_host_and_the_signal(lines: list[str], what: str) -> None:
    ends = read(*lines)
    assert ends.cause == f"node2: a rank was killed by {what}"
    assert not ends.is_unsure


KILLED_SOMEWHERE = "a rank was killed by signal 9 (out of memory?)"


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        (hydra(9, "Killed (signal 9)"), KILLED_SOMEWHERE),
        (hydra(9), KILLED_SOMEWHERE),
        (hydra(137), KILLED_SOMEWHERE),
        (hydra(143), "the launcher or a rank was killed by signal 15 (terminated)"),
        (
            hydra(9, "Terminated (signal 15)"),
            "a rank was killed by a signal (the launcher reported: Terminated)",
        ),
        (["=   RANK 3 PID 12 RUNNING AT node2", "=   KILLED BY SIGNAL: 9 (Killed)"], KILLED_SOMEWHERE),
    ],
)
def test_a_signal_that_hydra_itself_sends_to_all_ranks_blames_no_host(lines: list[str], cause: str) -> None:
    ends = read(*lines)
    assert ends.cause == cause
    assert ends.is_unsure


def test_what_the_launcher_reports_once_the_run_ends_the_ranks_is_not_a_cause() -> None:
    ends = read(ENDED_BY_US, *hydra(9, "Killed (signal 9)"))
    assert (ends.cause, ends.is_unsure, ends.is_over) == ("", False, True)
    ends = read(*hydra(6), ENDED_BY_US, AT.replace("2", "7"))
    assert ends.cause == "node2: a rank was killed by signal 6 (aborted)"


def test_intel_s_hydra_names_the_rank_too() -> None:
    lines = ("=   RANK 3 PID 12 RUNNING AT node2", "=   KILLED BY SIGNAL: 11 (Segmentation fault)")
    cause = "node2: rank 3 was killed by signal 11 (segmentation fault)"
    assert cause_of(*lines) == cause
    again = ("=   RANK 5 PID 13 RUNNING AT node4", "=   KILLED BY SIGNAL: 9 (Killed)")
    assert cause_of(*lines, *again) == cause


@pytest.mark.parametrize("code", [1, 255, 256, 0])
def test_a_rank_that_exited_on_its_own_is_not_reported_as_killed(code: int) -> None:
    assert cause_of(*hydra(code)) == ""


def test_the_first_host_that_is_named_is_the_cause() -> None:
    cause = "node2: a rank was killed by signal 6 (aborted)"
    assert cause_of(*hydra(6), AT.replace("2", "7"), "=   EXIT CODE: 11") == cause


def test_a_message_of_srun_names_the_host_and_what_ended_the_rank() -> None:
    assert (
        cause_of("srun: error: node2: task 3: Killed", "srun: error: node1: tasks 0-1: Terminated")
        == KILLED_3
    )
    assert cause_of("srun: error: node2: tasks 2-3: Killed") == KILLED
    oom = "srun: error: node2: tasks 2-3: Out Of Memory"
    assert cause_of(oom) == "node2: a rank was killed: out of memory"
    crash = "srun: error: node2: task 3: Segmentation fault (core dumped)"
    assert cause_of(crash) == "node2: rank 3 was killed by signal 11 (segmentation fault)"
    assert cause_of("srun: error: node2: task 3: Exited with exit code 1") == ""


def test_what_srun_reports_of_each_rank_precedes_what_hydra_finds() -> None:
    ends = read(*hydra(11), "srun: error: node3: task 3: Killed")
    assert ends.cause == "node3: rank 3 was killed by signal 9 (out of memory?)"
    assert not ends.is_unsure


def test_the_ranks_of_a_job_that_is_cancelled_are_not_the_cause() -> None:
    cancelled = "slurmstepd: error: *** STEP 12.0 ON node1 CANCELLED AT 2026-01-02T03:04:05 ***"
    assert cause_of(cancelled, "srun: error: node2: task 3: Killed") == ""


def test_other_lines_are_ignored() -> None:
    assert cause_of("", "Killed", "node2: task 3: Killed", "RUNNING AT node2") == ""
