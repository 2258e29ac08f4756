"""Submit a script to Slurm, and distinguish a refused job from one that may have been submitted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from caffe_recipes.cluster.commands import Completed, Host
from caffe_recipes.cluster.hostfile import is_host_name
from caffe_recipes.cluster.slurm.calls import (
    ASK_S,
    SBATCH_ENVIRONMENT,
    NoCommand,
    SchedulerAway,
    is_away,
    join_complaints,
    on_cluster,
    run_command,
)
from caffe_recipes.cluster.slurm.jobs import Job, render_limit
from caffe_recipes.cluster.slurm.queries import find_jobs
from caffe_recipes.errors import ClusterError, HostFailed

# sbatch itself retries for a while if the controller is busy.
SUBMIT_S = 60.0
MAIL_TYPES = "END,FAIL,REQUEUE"
_JOB_ID = re.compile(r"(\d{1,10})(?:;(\S+))?")
_REFUSED = re.compile(
    r"error: |fatal: |allocation failure|unrecognized option|invalid option|requires an argument|ambiguous"
)
# Exit codes of `timeout`, and of a shell whose child was killed; sbatch's own are 1 and 255.
_KILLED = range(124, 255)
_ENDED = re.compile(r"invalid job id|already completing or completed|job not found", re.IGNORECASE)


@dataclass(frozen=True)
class Request:
    """A job to submit; None and empty values leave the choice to the site, or to the script's #SBATCH lines.

    `dependency` is the id of the job that must succeed first. `options` are passed to sbatch unchanged, after
    ours. The job inherits the submitter's environment, to which `environment` is added. `arguments` are the
    arguments of the script.
    """

    script: str
    name: str
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    time_s: float | None = None
    nodes: int | None = None
    exclude: tuple[str, ...] = ()
    dependency: int | None = None
    mail_user: str | None = None
    options: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Submitted:
    """Slurm accepted the job; `cluster` is set if sbatch chose a cluster, or was given one."""

    job_id: int
    cluster: str = ""


@dataclass(frozen=True)
class Refused:
    """The job was certainly not submitted; `text` is Slurm's reason, on one line."""

    text: str


@dataclass(frozen=True)
class Unsure:
    """The job may have been submitted; search for its name before a retry. `text` says what is known."""

    text: str


def sbatch_argv(request: Request, *, test_only: bool = False) -> tuple[str, ...]:
    """Return the command that submits a script, or only tests the submission. Raises ClusterError.

    Variables are set in the environment of sbatch, since --export splits values at commas.

    >>> " ".join(sbatch_argv(Request("chain.sbatch", "chain-0123", partition="normal", time_s=5400, nodes=4)))
    'sbatch --parsable --job-name=chain-0123 --partition=normal --time=01:30:00 --nodes=4 -- chain.sbatch'
    >>> sbatch_argv(Request("a b.sh", "a", environment={"RUN": "1, 2"}, dependency=7, arguments=("-q",)))[:5]
    ('env', 'RUN=1, 2', 'sbatch', '--parsable', '--job-name=a')
    """
    _check(request)
    entries = [f"{name}={value}" for name, value in request.environment.items()]
    options = ["--test-only" if test_only else "--parsable", *_options(request)]
    if entries:
        options.append("--export=ALL")
    head = ["env", *entries] if entries else []
    return (*head, "sbatch", *options, *request.options, "--", request.script, *request.arguments)


def try_submission(host: Host, request: Request) -> str | None:
    """Return None if Slurm would accept a job, else its reason on one line; nothing is submitted.

    Slurm also accepts jobs that can never start; see check_limits. Raises SchedulerAway.
    """
    done = run_command(host, sbatch_argv(request, test_only=True), ASK_S, SBATCH_ENVIRONMENT)
    if done.returncode == 0:
        return None
    reason = join_complaints(done.stderr) or f"exit code {done.returncode}"
    if is_away(done.stderr) or done.returncode in _KILLED:
        raise SchedulerAway(host.name, f"sbatch got no answer from Slurm: {reason}")
    return reason


def submit(host: Host, request: Request) -> Submitted | Refused | Unsure:
    """Submit a job, in one attempt. Raises ClusterError if the request is not valid."""
    argv = sbatch_argv(request)
    try:
        host.connect()
    except ClusterError as error:
        return Refused(str(error))
    try:
        return _judge(run_command(host, argv, SUBMIT_S, SBATCH_ENVIRONMENT))
    except NoCommand as error:
        return Refused(str(error))
    except SchedulerAway as error:
        return Unsure(str(error))


def find_submission(host: Host, name: str, cluster: str = "") -> Job | None:
    """Return the job with a name that is used only once; None if Slurm knows no such job.

    Without accounting, Slurm forgets a job some minutes after it ends (MinJobAge). A busy controller may
    accept a job shortly after sbatch has given up. Raises SchedulerAway.
    """
    return next(iter(find_jobs(host, names=(name,), cluster=cluster)), None)


def cancel_jobs(
    host: Host,
    ids: Iterable[int | str],
    *,
    signal: str | None = None,
    batch: bool = False,
    cluster: str = "",
) -> None:
    """Cancel jobs or steps, or send a signal to the steps of jobs, or with `batch` only to their scripts.

    Jobs that have ended or are unknown are skipped. Raises SchedulerAway, and ClusterError if Slurm refuses.
    """
    words = [str(job_id) for job_id in dict.fromkeys(ids)]
    if not words:
        return  # without ids scancel would cancel all jobs
    options = [*([f"--signal={signal}"] if signal else []), *(["--batch"] if batch else [])]
    done = run_command(host, on_cluster(["scancel", *options, *words], cluster))
    if done.returncode == 0:
        return
    left = "\n".join(line for line in done.stderr.splitlines() if not _ENDED.search(line))
    reason = join_complaints(left)
    if is_away(left) or done.returncode in _KILLED:
        raise SchedulerAway(host.name, f"scancel got no answer from Slurm: {reason}")
    if reason:
        raise HostFailed(host.name, f"scancel failed: {reason}", "see scontrol show job")


def _options(request: Request) -> Iterator[str]:
    yield f"--job-name={request.name}"
    for option in ("partition", "account", "qos", "constraint"):
        value = getattr(request, option)
        if value is not None:
            yield f"--{option}={value}"
    if request.time_s is not None:
        yield f"--time={render_limit(request.time_s)}"
    if request.nodes is not None:
        yield f"--nodes={request.nodes}"
    if request.exclude:
        yield f"--exclude={','.join(request.exclude)}"
    if request.dependency is not None:
        yield f"--dependency=afterok:{request.dependency}"
        yield "--kill-on-invalid-dep=yes"  # else the job waits forever if that job fails
    if request.mail_user is not None:
        yield f"--mail-user={request.mail_user}"
        yield f"--mail-type={MAIL_TYPES}"


def _check(request: Request) -> None:
    """Raise ClusterError for values that sbatch would misread."""
    if not request.script:
        raise ClusterError("sbatch", "no script given", "name one")
    if not request.name or not request.name.isprintable():
        raise ClusterError("--job-name", f"{request.name[:80]!r} is not a job name", "use letters and digits")
    if request.options and not request.options[0].startswith("-"):
        what = f"{request.options[0][:80]!r} is not an option; sbatch would read it as the script"
        raise ClusterError("sbatch", what, "start it with --")
    for name in request.environment:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise ClusterError(
                "environment", f"{name[:80]!r} is not a variable name", "use letters and digits"
            )
    for host in request.exclude:
        if not is_host_name(host):
            raise ClusterError("--exclude", f"{host[:80]!r} is not a host name", "write the name of a host")


def _judge(done: Completed) -> Submitted | Refused | Unsure:
    # A site's wrapper may print other lines, but the job id is alone on its line.
    numbers = [found for line in done.stdout.splitlines() if (found := _JOB_ID.fullmatch(line.strip()))]
    if done.returncode == 0 and numbers:
        return Submitted(int(numbers[-1][1]), numbers[-1][2] or "")
    reason = join_complaints(done.stderr)
    sure = done.returncode != 0 and done.returncode not in _KILLED and not numbers
    if sure and _REFUSED.search(done.stderr) and not is_away(done.stderr):
        return Refused(reason)
    return Unsure(reason or f"sbatch printed no job id and exited with {done.returncode}")
