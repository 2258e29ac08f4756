"""The Slurm job around a run, and whether that of an earlier launch is over, with all that it had started.

Where a job is queued again it may start on other nodes, from which nothing of its earlier start can be seen.
When its time is over the run has it queued again.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from caffe_recipes.cluster.hosts import LocalHost
from caffe_recipes.cluster.launcher import HYDRA
from caffe_recipes.cluster.slurm_jobs import Job, State
from caffe_recipes.cluster.slurm_queries import (
    NoCommand,
    SchedulerAway,
    ask_node_groups,
    find_jobs,
    join_complaints,
    run_command,
)
from caffe_recipes.errors import InputError, RunFailed
from caffe_recipes.run.events import Launch, RunState
from caffe_recipes.run.folders import run_folders
from caffe_recipes.wording import describe_count

AskJob = Callable[[int], Iterable[Job]]
# A controller that is restarted, or moved to another machine, is away for minutes.
_PATIENCE_S, _AGAIN_S = 1800.0, 2.0
# A job that is warned as early as that had too little time to ask for.
_SHORTEST_S = 120
_PAUSES_S = (0, 1, 2, 5, 10, 20, 30)
# What a job is for a while after all of it got SIGTERM.
_ENDING = frozenset((State.COMPLETING, State.STAGE_OUT))


@dataclass(frozen=True)
class JobStart:
    """A start of a Slurm job: its number, and how often it had been queued again before."""

    job: str = ""
    restarts: int = 0


def this_job(environment: Mapping[str, str]) -> JobStart:
    """Return the start of the job that this process runs in; one without a number outside of any job.

    sbatch(1): SLURM_RESTART_COUNT is not set before a job is queued again.

    >>> this_job({"SLURM_JOB_ID": "12", "SLURM_RESTART_COUNT": "1"}), this_job({})
    (JobStart(job='12', restarts=1), JobStart(job='', restarts=0))
    """
    job, restarts = environment.get("SLURM_JOB_ID", ""), environment.get("SLURM_RESTART_COUNT", "0")
    if not _is_number(job):
        return JobStart()
    return JobStart(job, int(restarts) if _is_number(restarts) else 0)


def ask_slurm(number: int) -> Iterable[Job]:
    """Return what Slurm knows of a job, nothing if it knows none of that number; raises SchedulerAway."""
    return find_jobs(LocalHost(), ids=[number])


def started_before(launch: Launch, state: RunState) -> bool:
    """Tell whether a launch belongs to another job, or to an earlier start of this one, than who goes on."""
    return launch.job != "" and (launch.job, launch.restarts) != (state.job, state.restarts)


def check_over(
    launch: Launch,
    folder: Path,
    here: JobStart,
    ask: AskJob,
    say: Callable[[str], None] = print,
    pause: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Make sure that Slurm has ended a launch that another host has started; raises InputError otherwise.

    An earlier start of the job around us is over, and so is a job that Slurm does not know any more. In a job
    an answer, and the end of one that is ending, is waited for: jobs that depend on it would end with it.
    """
    what = f"phase {launch.phase} was started on {launch.host}"
    if not launch.job:
        raise InputError(
            folder, f"{what}, and its outcome is unknown", _hint(f"go on with it on {launch.host}")
        )
    what += f" in Slurm job {launch.job}"
    if launch.job == here.job:
        if launch.restarts < here.restarts:
            return
        hint = _hint(f"go on with it on {launch.host}")
        raise InputError(folder, f"{what}, and its outcome is unknown", hint)
    patience_s = _PATIENCE_S if here.job else 0
    try:
        state = _wait_for_end(launch.job, ask, patience_s, say, pause, clock)
    except SchedulerAway:
        hint = _hint("try again when it does")
        raise InputError(folder, f"{what}, and Slurm does not say whether that is over", hint) from None
    if state is not None:
        hint = _hint(f"let that job go on with it, or end it: scancel {launch.job}")
        raise InputError(folder, f"{what}, which is {state.value}", hint)


@dataclass(frozen=True)
class TimeOver:
    """That the time of a job is over: `warned_s` seconds after the start, `has_kept` what to go on from."""

    around: JobStart
    warned_s: float
    has_kept: bool


def requeue_job(
    over: TimeOver, most: int, say: Callable[[str], None], wait: Callable[[float], bool] | None = None
) -> int:
    """Have Slurm queue the job around us again, at most `most` times; return the exit code.

    That is 138 if it is queued, as for a run that SIGUSR1 has stopped, and 143 where a signal to end came
    meanwhile, which `wait` tells. Raises RunFailed where it is not queued.
    """
    job, restarts = over.around.job, over.around.restarts
    if not job:
        say("not in a Slurm job: nothing to requeue")
        return 128 + signal.SIGUSR1
    if restarts >= most:
        what = f"its time is over, and it was queued again {describe_count(restarts, 'time')} already"
        raise RunFailed(f"job {job}", what, "submit it again to resume")
    # Started again it would be warned as soon, and come no further.
    if over.warned_s < _SHORTEST_S and not over.has_kept:
        what = f"warned of its end {over.warned_s:.0f} s after its start, before there was a snapshot"
        hint = "give it more time (sbatch --time), or a later warning (sbatch --signal=B:USR1@60)"
        raise RunFailed(f"job {job}", what, hint)
    # Said before: Slurm may end this process before scontrol returns.
    say(f"the time is over; job {job} is requeued to resume (restart {restarts + 1} of {most})")
    reason = ""
    with _signals_to_end() as ended:
        for pause_s in _PAUSES_S:  # the controller may be busy for a while
            if (wait or ended.wait)(pause_s):
                say(f"told to end; job {job} is not queued again")
                return 128 + signal.SIGTERM
            try:
                done = run_command(LocalHost(), ("scontrol", "requeue", job))
                reason = join_complaints(done.stderr or done.stdout) or f"exit {done.returncode}"
                if done.returncode == 0:
                    return 128 + signal.SIGUSR1
            except SchedulerAway as error:
                reason = error.without_hint
    raise RunFailed(f"job {job}", f"is not queued again: {reason}", "submit it again to resume")


@contextmanager
def _signals_to_end() -> Iterator[threading.Event]:
    """Note a signal to end: by scontrol's own success, too, which must not look like a cancelling."""
    ended = threading.Event()
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = {number: signal.signal(number, lambda *_: ended.set()) for number in numbers}
    before[signal.SIGUSR1] = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        yield ended
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def list_kept(root: Path, recipe_name: str) -> frozenset[tuple[str, int]]:
    """Return what the latest run of a recipe, and its branches, can go on from: weights, and when written."""
    kept: set[tuple[str, int]] = set()
    with suppress(OSError):  # a disk that is away keeps nothing, and must not end a stop in order
        for folder in run_folders(root, recipe_name)[-1:]:
            for path in (*folder.glob("*/*.caffemodel"), *folder.glob("branches/*/*/*.caffemodel")):
                with suppress(FileNotFoundError):  # an old checkpoint that is just being dropped
                    kept.add((str(path), path.stat().st_mtime_ns))
    return frozenset(kept)


def asks_slurm(program: str, environment: Mapping[str, str]) -> bool:
    """Tell whether a launcher of this environment has Slurm start the ranks, inside a job of Slurm's.

    hydra calls srun there for its proxies, unless it is to call ssh: then it was given words for that.
    """
    return program != HYDRA or "HYDRA_LAUNCHER_EXTRA_ARGS" not in environment


def is_ready(number: int) -> bool:
    """Tell whether Slurm knows the state of a job's nodes; raises SchedulerAway.

    A controller that was just started does not, until they have spoken to it: a srun of then fails, or hangs.
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
    """Wait, for half an hour at most, until Slurm can start ranks: srun itself gives up after some seconds.

    Where the node has no command of Slurm's there is nothing to wait for.
    """
    until, waited_for = clock() + _PATIENCE_S, ""
    while True:
        try:
            reason = "" if ready(int(job)) else "Slurm has just been started and looks for its nodes"
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
            say("Slurm gives no answer still; starting the ranks nevertheless")
            return
        pause(_AGAIN_S)


def _wait_for_end(
    job: str,
    ask: AskJob,
    patience_s: float,
    say: Callable[[str], None],
    pause: Callable[[float], None],
    clock: Callable[[], float],
) -> State | None:
    """Wait, as long as there is patience, until a job that ends is over; return the state of one that is not.

    Raises SchedulerAway where there is no answer in the end.
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
            say(f"{reason}; waiting until Slurm says that job {job} is over")
        is_reported = True
        pause(_AGAIN_S)


def _hint(first: str) -> str:
    return f"{first}, or start another run with --new"


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 19
