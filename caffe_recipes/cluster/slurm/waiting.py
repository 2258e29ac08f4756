"""Wait until Slurm answers, or until a job has ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from caffe_recipes.cluster.hosts import LocalHost
from caffe_recipes.cluster.slurm.calls import NoCommand, SchedulerAway
from caffe_recipes.cluster.slurm.jobs import Job, JobState
from caffe_recipes.cluster.slurm.queries import ask_node_groups, find_jobs

AskJob = Callable[[int], Iterable[Job]]
# A controller that restarts or fails over to another machine does not answer for minutes.
PATIENCE_S = 1800.0
_AGAIN_S = 2.0
# States that a job passes through after its processes got SIGTERM.
_ENDING = frozenset((JobState.COMPLETING, JobState.STAGE_OUT))


def is_ready(number: int) -> bool:
    """Return whether Slurm knows the state of a job's nodes. Raises SchedulerAway.

    A controller that has just started does not, until the nodes have registered; until then srun fails or
    hangs.
    """
    here = LocalHost()
    groups = (
        group for job in find_jobs(here, ids=[number]) for group in ask_node_groups(here, job.partition)
    )
    return not any(group.state.lower().startswith("unk") for group in groups)


def wait_for_slurm(
    job: str,
    ready: Callable[[int], bool] = is_ready,
    say: Callable[[str], None] = print,
    pause: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Wait for up to half an hour until Slurm can start ranks, since srun itself gives up within seconds.

    Return at once if the node has no Slurm commands.
    """
    until, waited_for = clock() + PATIENCE_S, ""
    while True:
        try:
            reason = "" if ready(int(job)) else "Slurm has just started and is waiting for its nodes"
        except NoCommand:
            return
        except SchedulerAway as error:
            reason = error.without_hint
        if reason and not waited_for:
            say(f"{reason}; waiting for Slurm, which starts the ranks")
        elif waited_for and not reason:
            say("Slurm answers")
        waited_for = waited_for or reason
        if not reason:
            return
        if clock() >= until:
            say("Slurm still does not answer; starting the ranks nevertheless")
            return
        pause(_AGAIN_S)


def wait_for_end(
    job: str,
    ask: AskJob,
    patience_s: float,
    say: Callable[[str], None],
    pause: Callable[[float], None],
    clock: Callable[[], float],
) -> JobState | None:
    """Wait up to `patience_s` seconds for a job to end; return None, or its state if it has not ended.

    Raises SchedulerAway if Slurm does not answer in that time.
    """
    until, is_reported = clock() + patience_s, False
    while True:
        try:
            state = next((each.state for each in ask(int(job)) if not each.state.is_over), None)
            if state not in _ENDING or clock() >= until:
                return state
            reason = f"job {job} is {state.value}"
        except SchedulerAway as error:
            if isinstance(error, NoCommand) or clock() >= until:
                raise
            reason = error.without_hint
        if not is_reported:
            say(f"{reason}; waiting until Slurm reports that job {job} has ended")
        is_reported = True
        pause(_AGAIN_S)


def ask_slurm(number: int) -> Iterable[Job]:
    """Return the job with an ID, or nothing if Slurm does not know it. Raises SchedulerAway."""
    return find_jobs(LocalHost(), ids=[number])
