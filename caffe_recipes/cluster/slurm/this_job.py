"""The Slurm job that this process runs in: its hosts, its restarts, and requeueing it at its time limit."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from caffe_recipes.cluster.hostfile import find_duplicate, parse_nodelist
from caffe_recipes.cluster.hosts import LocalHost
from caffe_recipes.cluster.slurm.calls import SchedulerAway, join_complaints, run_command
from caffe_recipes.errors import InputError, RunFailed
from caffe_recipes.wording import describe_count

SLURM_VARIABLES = ("SLURM_JOB_NODELIST", "SLURM_NODELIST")
# A job that is warned this soon after its start, in seconds, asked for too little time.
_SHORTEST_S = 120
_PAUSES_S = (0, 1, 2, 5, 10, 20, 30)


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


def slurm_hosts(environment: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the hosts of the Slurm job that this process runs in, in order; None outside a job.

    Raises InputError if a host appears twice, since hydra would count it once and reuse hosts.

    >>> slurm_hosts({"SLURM_JOB_NODELIST": "c401-[001-002]"})
    ('c401-001', 'c401-002')
    """
    for name in SLURM_VARIABLES:
        if environment.get(name):
            hosts = parse_nodelist(environment[name], f"${name}")
            duplicate = find_duplicate(hosts)
            if duplicate is not None:
                raise InputError(f"${name}", f"host {hosts[duplicate]} appears twice", "give a --hostfile")
            return hosts
    return None


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


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 19
