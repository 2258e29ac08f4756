"""The steps of a Slurm job that a launch leaves are ended by their names; waiting for them is bounded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import pytest

from caffe_recipes.cluster.commands import Completed
from caffe_recipes.cluster.slurm.calls import SchedulerAway
from caffe_recipes.cluster.slurm.steps import (
    END_S,
    Step,
    describe_steps,
    end_given_up,
    end_steps,
    find_steps,
    parse_steps,
)
from tests.stand_in_host import StandInHost

RUN = "0123456789abcdef"
OURS = Step("8.1", ("node1", "node2"), f"{RUN}/cyc1-1")
LISTED = f"""\
8.1|node[1-2]|{RUN}/cyc1-1
8.2|node3|fedcba9876543210/init-1
8.3|node1|top|b
8.4|node3|{RUN}/cyc1-b-1
8.batch|node1|batch
8.extern|node[1-3]|extern
"""


class Controller:
    """A Slurm whose steps end `after` questions once they are cancelled; None: never."""

    def __init__(self, after: int | None = 1) -> None:
        self.after, self.asked, self.paused_s = after, 0, 0.0
        self.cancelled: list[tuple[str, ...]] = []
        self.host = StandInHost("node1", self.answer)

    def answer(self, argv: tuple[str, ...], stdin: bytes) -> Completed:
        if "scancel" in argv:
            self.cancelled.append(argv[argv.index("scancel") :])
            return Completed(0, "", "")
        self.asked += bool(self.cancelled)
        _, rest = LISTED.split("\n", 1)
        has_ended = self.after is not None and self.asked > self.after
        return Completed(0, rest if has_ended else LISTED, "")

    def pause(self, seconds: float) -> None:
        self.paused_s += seconds

    def end(self, phase: str = "cyc1") -> tuple[Sequence[Step], Sequence[Step]]:
        return end_steps(self.host, "8", f"{RUN}/{phase}-", self.pause, lambda: self.paused_s)


def test_the_steps_of_users_are_listed_and_slurm_s_own_are_not() -> None:
    assert parse_steps(LISTED)[0] == OURS
    assert [step.id for step in parse_steps(LISTED)] == ["8.1", "8.2", "8.3", "8.4"]
    assert parse_steps(LISTED)[2].name == "top|b"
    assert parse_steps("") == ()
    assert str(OURS) == f"step 8.1 ({RUN}/cyc1-1) on node1, node2"


def test_only_the_steps_of_the_phase_are_cancelled_and_waited_for() -> None:
    controller = Controller(after=2)
    assert controller.end() == ((OURS,), ())
    assert controller.cancelled == [("scancel", "8.1")]
    assert 0 < controller.paused_s < END_S


def test_a_step_on_a_lost_node_is_not_waited_for_without_end() -> None:
    controller = Controller(after=None)
    assert controller.end() == ((OURS,), (OURS,))
    assert controller.paused_s == pytest.approx(END_S)


def test_without_a_step_of_the_phase_nothing_is_cancelled() -> None:
    controller = Controller()
    assert controller.end("init") == ((), ())
    assert controller.cancelled == []  # scancel without ids would cancel all jobs


def test_a_slurm_that_does_not_answer_is_reported() -> None:
    host = StandInHost(
        "node1", lambda argv, stdin: Completed(1, "", "slurm_load_jobs error: Unable to contact")
    )
    with pytest.raises(SchedulerAway, match="squeue got no answer from Slurm: slurm_load_jobs"):
        find_steps(host, "8")


OLD = Step("12.3", ("c1", "c2"), "0123456789abcdef/cyc1-1")


@pytest.mark.parametrize(
    ("left", "message"),
    [
        ((), f"ended {OLD}"),
        ((OLD,), f"ended {OLD}; it does not end yet, so the next launch shares its nodes"),
    ],
)
def test_the_step_of_a_launch_that_was_given_up_is_ended_and_reported(
    left: tuple[Step, ...], message: str
) -> None:
    asked, messages = list[tuple[str, str]](), list[str]()

    def end(job: str, prefix: str) -> tuple[tuple[Step, ...], tuple[Step, ...]]:
        asked.append((job, prefix))
        return (OLD,), left

    end_given_up("12", "0123456789abcdef/cyc1", messages.append, end)
    assert asked == [("12", "0123456789abcdef/cyc1-")]
    assert messages == [message]


def test_a_slurm_that_cannot_end_a_step_stops_no_launch() -> None:
    def away(job: str, prefix: str) -> NoReturn:
        raise SchedulerAway("c1", "does not respond")

    messages: list[str] = []
    end_given_up("12", "0123456789abcdef/cyc1", messages.append, away)
    assert messages == ["the step of the launch before may still be there: c1: does not respond"]


def test_the_steps_that_hold_the_hosts_of_a_launch_are_described_with_what_ends_them() -> None:
    steps = [OLD, Step("12.4", ("c9",), "other"), Step("12.5", ("c2",), "top")]
    assert describe_steps("12", ["c2", "c3"], lambda job: steps) == (
        f"{OLD} and step 12.5 (top) on c2, which `scancel 12.3 12.5` ends"
    )
    assert describe_steps("12", ["c3"], lambda job: steps) == ""
