"""Findings of the preflight, each on one subject, with the hosts on which it fails.

Also: the commands that it is running, so that all of them can be stopped.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from caffe_recipes.cluster.commands import Completed, Host, Running
from caffe_recipes.cluster.hostfile import fold_hosts
from caffe_recipes.errors import CaffeRecipesError, ClusterError, HostFailed
from caffe_recipes.wording import describe_names

# The most characters of host names in a message; more would hide what follows them.
_NAMES = 60


@dataclass(frozen=True)
class CheckResult:
    """A finding: a `message`, which may be a warning, or an error.

    `hosts` are those on which the check fails; empty if it is not about particular hosts. If `unfit`, they
    are spares that must not be used. `is_checked` is false if there was nothing to check. If `is_left_out`,
    the check was not done beside a training, and `is_running` marks the finding that names this training,
    with what to do instead of starting the run.
    """

    subject: str
    message: str
    error: CaffeRecipesError | None = None
    warns: bool = False
    hosts: tuple[str, ...] = ()
    unfit: bool = False
    is_checked: bool = True
    is_left_out: bool = False
    is_running: bool = False

    @property
    def mark(self) -> Literal["ok", "warn", "failed"]:
        """The status as one word."""
        return "failed" if self.error else "warn" if self.warns else "ok"


@dataclass(frozen=True)
class HostProblem:
    """What is wrong on one host, at a path or `place` there; only a warning unless it `fails`."""

    host: str
    what: str
    hint: str = ""
    place: str = ""
    fails: bool = True
    error: CaffeRecipesError | None = field(default=None, compare=False)


def as_problem(host: str, error: CaffeRecipesError) -> HostProblem:
    """Return an error about a host as a problem of that host."""
    # An error on a jump host keeps the jump host's name.
    place = error.place if isinstance(error, HostFailed) and error.host == host else error.where
    return HostProblem(host, error.what, error.hint, place, error=error)


def as_findings(subject: str, problems: Sequence[HostProblem], when_fine: str = "") -> list[CheckResult]:
    """Return one finding per problem, with all of its hosts; the message `when_fine` if there is no problem.

    >>> full = [HostProblem("n1", "is full"), HostProblem("n2", "is full")]
    >>> [one.message for one in as_findings("disk", full)]
    ['n[1-2]: is full']
    """
    groups: dict[tuple[str, str, bool], list[HostProblem]] = {}
    for problem in problems:
        groups.setdefault((problem.place, problem.what, problem.fails), []).append(problem)
    found = [
        _finding(subject, group) for group in sorted(groups.values(), key=lambda group: not group[0].fails)
    ]
    return found if found or not when_fine else [CheckResult(subject, when_fine)]


def describe_outcome(found: Sequence[CheckResult]) -> str:
    """Return a summary of all findings in one line, with what to do next.

    >>> describe_outcome([CheckResult("disk", "is full", HostFailed("n1", "full"))])
    '1 check failed (disk): fix what is listed above, and try again'
    """
    failed = list(dict.fromkeys(finding.subject for finding in found if finding.error))
    warned = list(dict.fromkeys(finding.subject for finding in found if finding.warns))
    if failed:
        hosts = list(dict.fromkeys(host for finding in found if finding.error for host in finding.hosts))
        on = f" on {fold_names(hosts)}" if hosts else ""
        fails = "check failed" if len(failed) == 1 else "checks failed"
        return f"{len(failed)} {fails}{on} ({', '.join(failed)}): fix what is listed above, and try again"
    running = next((finding for finding in found if finding.is_running), None)
    if running:
        return f"no check failed; {running.message}"
    if warned:
        return f"no check failed; read the warnings ({', '.join(warned)}), then start the training with `run`"
    return "all checks passed; start the training with `run`"


def fold_names(names: Sequence[str]) -> str:
    """Return hosts as a node list, or the first few names if that is long.

    >>> fold_names(["c401-001", "c401-002"])
    'c401-[001-002]'
    """
    folded = fold_hosts(names)
    return folded if len(folded) <= _NAMES else describe_names(names)


def _finding(subject: str, group: Sequence[HostProblem]) -> CheckResult:
    first, hosts = group[0], tuple(problem.host for problem in group)
    where = ":".join(part for part in (fold_names(hosts), first.place) if part)
    error = (first.error or HostFailed(first.host, "")).reworded(where, first.what, first.hint)
    if first.fails:
        return CheckResult(subject, str(error), error, hosts=hosts)
    return CheckResult(subject, str(error), warns=True, hosts=hosts)


@dataclass
class Commands:
    """The commands that are running; after `stop` none can be started."""

    _running: set[Running] = field(default_factory=set)
    _stopped: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, host: Host, argv: Sequence[str], limit_s: float, stdin: bytes = b"") -> Completed:
        """Run a command on a host and wait for it. Raises ClusterError, also after `stop`."""
        running = host.start(argv, limit_s)
        with self._lock:
            self._running.add(running)
            stopped = self._stopped
        try:
            if stopped:
                running.stop()
                raise HostFailed(host.name, "was not checked: the preflight was stopped", "repeat it")
            return running.finish(limit_s, stdin)
        finally:
            with self._lock:
                self._running.discard(running)

    def pause(self, seconds: float) -> None:
        """Sleep. Raises ClusterError after `stop`."""
        time.sleep(seconds)
        if self._stopped:
            raise ClusterError("", "the preflight was stopped", "repeat it")

    def stop(self) -> None:
        """End all running commands, and allow no new ones."""
        with self._lock:
            self._stopped, running = True, list(self._running)
        for one in running:
            one.stop()
