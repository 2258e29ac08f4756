"""The Slurm job of a run: requeue it at its time limit, and check that the jobs of earlier launches are over.

A requeued job may start on other nodes, from which the processes of its earlier start cannot be seen, so
Slurm is asked whether the job of an earlier launch is over.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from caffe_recipes.cluster.hosts import LocalHost
from caffe_recipes.cluster.slurm_jobs import Job, State
from caffe_recipes.cluster.slurm_queries import (
    NoCommand,
    SchedulerAway,
    ask_node_groups,
    find_jobs,
    join_complaints,
    run_command,
)
from caffe_recipes.cluster.slurm_steps import Step, end_steps, find_steps
from caffe_recipes.errors import ClusterError, InputError, RunFailed
from caffe_recipes.recipe.model import AnyRecipe
from caffe_recipes.run.events import Launch, RunState
from caffe_recipes.run.folders import run_folders
from caffe_recipes.run.plan import find_trainer
from caffe_recipes.wording import describe_count

AskJob = Callable[[int], Iterable[Job]]
# A controller that restarts or fails over to another machine does not answer for minutes.
_PATIENCE_S, _AGAIN_S = 1800.0, 2.0
# A job that is warned this soon after its start, in seconds, asked for too little time.
_SHORTEST_S = 120
_PAUSES_S = (0, 1, 2, 5, 10, 20, 30)
# States that a job passes through after its processes got SIGTERM.
_ENDING = frozenset((State.COMPLETING, State.STAGE_OUT))


@dataclass(frozen=True)
class JobStart:
    """A start of a Slurm job: its ID, and how many times it was requeued before."""

    job: str = ""
    restarts: int = 0


def this_job(environment: Mapping[str, str]) -> JobStart:
    """Return the job that this process runs in, and its restarts; outside a job, `job` is empty.

    sbatch(1): SLURM_RESTART_COUNT is not set until a job has been requeued.

    >>> this_job({"SLURM_JOB_ID": "12", "SLURM_RESTART_COUNT": "1"}), this_job({})
    (JobStart(job='12', restarts=1), JobStart(job='', restarts=0))
    """
    job, restarts = environment.get("SLURM_JOB_ID", ""), environment.get("SLURM_RESTART_COUNT", "0")
    if not _is_number(job):
        return JobStart()
    return JobStart(job, int(restarts) if _is_number(restarts) else 0)


def ask_slurm(number: int) -> Iterable[Job]:
    """Return the job with an ID, or nothing if Slurm does not know it. Raises SchedulerAway."""
    return find_jobs(LocalHost(), ids=[number])


def started_before(launch: Launch, state: RunState) -> bool:
    """Return whether a launch belongs to a job other than the run's, or to an earlier start of that job."""
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
    """Raise InputError if a launch from another host may still be running, according to its Slurm job.

    An earlier start of our own job is over, and so is a job that Slurm no longer knows. Inside a job, wait
    for Slurm to answer and for an ending job to end, since an error would make jobs that depend on ours fail.
    """
    what = f"phase {launch.phase} was started on {launch.host}"
    if not launch.job:
        raise InputError(folder, f"{what}, and its outcome is unknown", _hint(f"resume it on {launch.host}"))
    what += f" in Slurm job {launch.job}"
    if launch.job == here.job:
        if launch.restarts < here.restarts:
            return
        hint = _hint(f"resume it on {launch.host}")
        raise InputError(folder, f"{what}, and its outcome is unknown", hint)
    patience_s = _PATIENCE_S if here.job else 0
    try:
        state = _wait_for_end(launch.job, ask, patience_s, say, pause, clock)
    except SchedulerAway:
        hint = _hint("try again when Slurm responds")
        raise InputError(folder, f"{what}, and Slurm does not say whether that job has ended", hint) from None
    if state is not None:
        hint = _hint(f"let that job continue, or cancel it: scancel {launch.job}")
        raise InputError(folder, f"{what}, which is {state.value}", hint)


@dataclass(frozen=True)
class TimeOver:
    """A job near its time limit, warned `warned_s` after its start; `has_kept`: it has a new snapshot."""

    around: JobStart
    warned_s: float
    has_kept: bool


def requeue_job(
    over: TimeOver, most: int, say: Callable[[str], None], wait: Callable[[float], bool] | None = None
) -> int:
    """Requeue our own job unless it was requeued `most` times before; return the exit code.

    That is 138 if the job was requeued, as for a run that SIGUSR1 stopped, or 143 if a signal to end arrived
    meanwhile, in which case `wait` returns True. Raises RunFailed if the job cannot be requeued.
    """
    job, restarts = over.around.job, over.around.restarts
    if not job:
        say("not in a Slurm job: nothing to requeue")
        return 128 + signal.SIGUSR1
    if restarts >= most:
        what = f"is near its time limit, and was already requeued {describe_count(restarts, 'time')}"
        raise RunFailed(f"job {job}", what, "submit it again to resume")
    # After a restart it would be warned just as early, and get no further.
    if over.warned_s < _SHORTEST_S and not over.has_kept:
        what = f"was warned of its time limit {over.warned_s:.0f} s after its start, before any snapshot"
        hint = "give it more time (sbatch --time), or a later warning (sbatch --signal=B:USR1@60)"
        raise RunFailed(f"job {job}", what, hint)
    # Printed before the call: Slurm may end this process before scontrol returns.
    say(f"the time limit is near; requeueing job {job} to resume (restart {restarts + 1} of {most})")
    reason = ""
    with _signals_to_end() as ended:
        for pause_s in _PAUSES_S:  # retry, since the controller may be busy for a while
            if (wait or ended.wait)(pause_s):
                say(f"stopped by a signal; job {job} is not requeued")
                return 128 + signal.SIGTERM
            try:
                done = run_command(LocalHost(), ("scontrol", "requeue", job))
                reason = join_complaints(done.stderr or done.stdout) or f"exit {done.returncode}"
                if done.returncode == 0:
                    return 128 + signal.SIGUSR1
            except SchedulerAway as error:
                reason = error.without_hint
    raise RunFailed(f"job {job}", f"is not requeued: {reason}", "submit it again to resume")


@contextmanager
def _signals_to_end() -> Iterator[threading.Event]:
    """Set an event on a signal to end, which a successful requeue sends as well; it must not kill us."""
    ended = threading.Event()
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = {number: signal.signal(number, lambda *_: ended.set()) for number in numbers}
    before[signal.SIGUSR1] = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        yield ended
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def list_kept(root: Path, recipe: AnyRecipe) -> frozenset[tuple[str, int]]:
    """Return (path, mtime in ns) of all models that the latest run and its branches can resume from."""
    kept: set[tuple[str, int]] = set()
    suffix = find_trainer(recipe).model_suffix
    with suppress(OSError):  # an unreachable disk must not prevent an orderly stop
        for folder in run_folders(root, recipe.name)[-1:]:
            for path in (*folder.glob(f"*/*{suffix}"), *folder.glob(f"branches/*/*/*{suffix}")):
                with suppress(FileNotFoundError):  # an old checkpoint that has just been deleted
                    kept.add((str(path), path.stat().st_mtime_ns))
    return frozenset(kept)


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
    until, waited_for = clock() + _PATIENCE_S, ""
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


def end_given_up(
    job: str,
    phase: str,
    say: Callable[[str], None],
    end: Callable[[str, str], tuple[Sequence[Step], Sequence[Step]]] = lambda job, prefix: end_steps(
        LocalHost(), job, prefix
    ),
) -> None:
    """End the steps of launches that were given up, and report them; `phase` is as in `RUN/init`."""
    try:
        ended, left = end(job, f"{phase}-")
    except NoCommand:
        return
    except ClusterError as error:  # the next launch shares the nodes in any case
        say(f"the step of the launch before may still be there: {error.without_hint}")
        return
    for step in ended:
        stays = "; it does not end yet, so the next launch shares its nodes" if step in left else ""
        say(f"ended {step}{stays}")


def describe_steps(
    job: str,
    hosts: Collection[str],
    find: Callable[[str], Iterable[Step]] = lambda job: find_steps(LocalHost(), job),
) -> str:
    """Return the steps of a job on some hosts, and how to end them; "" if none is known."""
    try:
        steps = [step for step in find(job) if not set(hosts).isdisjoint(step.hosts)]
    except ClusterError:
        return ""
    ends = " ".join(step.id for step in steps)
    return f"{' and '.join(map(str, steps))}, which `scancel {ends}` ends" if steps else ""


def _wait_for_end(
    job: str,
    ask: AskJob,
    patience_s: float,
    say: Callable[[str], None],
    pause: Callable[[float], None],
    clock: Callable[[], float],
) -> State | None:
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


def _hint(first: str) -> str:
    return f"{first}, or start another run with --new"


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 19
