"""A launch that Slurm starts waits for a Slurm that restarts."""

from __future__ import annotations

import pytest

from caffe_recipes.cluster.slurm.calls import NoCommand, SchedulerAway
from caffe_recipes.cluster.slurm.waiting import wait_for_slurm

STARTED = "Slurm has just started and is waiting for its nodes"


class Slurm:
    """A Slurm that does not respond to some queries, and then answers others as if just started."""

    def __init__(self, away: float, young: int = 0) -> None:
        self.away, self.young, self.asked, self.paused_s = away, young, 0, 0.0
        self.messages: list[str] = []

    def is_ready(self, number: int) -> bool:
        self.asked += 1
        if self.asked <= self.away:
            raise SchedulerAway("c1", "does not respond", "ask again later")
        return self.asked > self.away + self.young

    def pause(self, seconds: float) -> None:
        self.paused_s += seconds

    def wait(self) -> None:
        wait_for_slurm("12", self.is_ready, self.messages.append, self.pause, lambda: self.paused_s)


@pytest.mark.parametrize(
    ("away", "young", "expected"),
    [
        (0, 0, []),
        (3, 2, ["c1: does not respond; waiting for Slurm, which starts the ranks", "Slurm answers"]),
        (
            0,
            2,
            [f"{STARTED}; waiting for Slurm, which starts the ranks", "Slurm answers"],
        ),
    ],
)
def test_ranks_that_slurm_starts_are_started_when_it_knows_its_nodes(
    away: int, young: int, expected: list[str]
) -> None:
    (slurm := Slurm(away, young)).wait()
    assert slurm.asked == away + young + 1
    assert slurm.messages == expected


def test_slurm_is_not_waited_for_forever() -> None:
    (slurm := Slurm(away=float("inf"))).wait()
    assert 600 <= slurm.paused_s < 7200
    assert slurm.messages[1:] == ["Slurm still does not answer; starting the ranks nevertheless"]


def test_on_a_node_without_slurm_commands_slurm_is_not_waited_for() -> None:
    def nobody(number: int) -> bool:
        raise NoCommand("c1", "scontrol not found on its PATH", "")

    def pause(seconds: float) -> None:
        raise AssertionError("nothing is waited for")

    wait_for_slurm("12", nobody, pytest.fail, pause)
