"""What a look gives: findings, each of one subject, with the hosts on which it fails.

Commands under way, so that whoever stops a preflight stops them all.
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

# A longer list of names hides what follows them.
_NAMES = 60


@dataclass(frozen=True)
class CheckResult:
    """One thing that was looked at: a `message` of what was seen, which may be worth a warning, or the error.

    `hosts` are those on which it fails; none if it is not about particular hosts. `unfit` hosts are spares
    that are not to be used.
    """

    subject: str
    message: str
    error: CaffeRecipesError | None = None
    warns: bool = False
    hosts: tuple[str, ...] = ()
    unfit: bool = False

    @property
    def mark(self) -> Literal["ok", "warn", "failed"]:
        """Say in a word how it is."""
        return "failed" if self.error else "warn" if self.warns else "ok"


@dataclass(frozen=True)
class HostProblem:
    """What is wrong on one host, at a `place` there if it has one; without `fails` it is worth a warning."""

    host: str
    what: str
    hint: str = ""
    place: str = ""
    fails: bool = True
    error: CaffeRecipesError | None = field(default=None, compare=False)


def trouble_of(host: str, error: CaffeRecipesError) -> HostProblem:
    """Return what an error of one host says of it."""
    # What befell a jump host keeps that one's name.
    place = error.place if isinstance(error, HostFailed) and error.host == host else error.where
    return HostProblem(host, error.what, error.hint, place, error=error)


def as_findings(subject: str, troubles: Sequence[HostProblem], when_fine: str = "") -> list[CheckResult]:
    """Return a finding for each thing that is wrong, with all of its hosts; `when_fine`, if nothing is wrong.

    >>> full = [HostProblem("n1", "is full"), HostProblem("n2", "is full")]
    >>> [one.message for one in as_findings("disk", full)]
    ['n[1-2]: is full']
    """
    groups: dict[tuple[str, str, bool], list[HostProblem]] = {}
    for trouble in troubles:
        groups.setdefault((trouble.place, trouble.what, trouble.fails), []).append(trouble)
    found = [
        _finding(subject, group) for group in sorted(groups.values(), key=lambda group: not group[0].fails)
    ]
    return found if found or not when_fine else [CheckResult(subject, when_fine)]


def describe_outcome(found: Sequence[CheckResult]) -> str:
    """Say in a line what all findings come to, and what to do.

    >>> describe_outcome([CheckResult("disk", "is full", HostFailed("n1", "full"))])
    '1 check fails (disk): fix what is listed above, and repeat'
    """
    failed = list(dict.fromkeys(finding.subject for finding in found if finding.error))
    warned = list(dict.fromkeys(finding.subject for finding in found if finding.warns))
    if failed:
        hosts = list(dict.fromkeys(host for finding in found if finding.error for host in finding.hosts))
        on = f" on {fold_names(hosts)}" if hosts else ""
        fails = "check fails" if len(failed) == 1 else "checks fail"
        return f"{len(failed)} {fails}{on} ({', '.join(failed)}): fix what is listed above, and repeat"
    if warned:
        return f"nothing fails; look at the warnings ({', '.join(warned)}), then start it with `run`"
    return "all is well; start it with `run`"


def fold_names(names: Sequence[str]) -> str:
    """Write hosts as a node list; the first few of them where that is long.

    >>> fold_names(["c401-001", "c401-002"])
    'c401-[001-002]'
    """
    folded = fold_hosts(names)
    return folded if len(folded) <= _NAMES else describe_names(names)


def _finding(subject: str, group: Sequence[HostProblem]) -> CheckResult:
    first, hosts = group[0], tuple(trouble.host for trouble in group)
    where = ":".join(part for part in (fold_names(hosts), first.place) if part)
    error = (first.error or HostFailed(first.host, "")).reworded(where, first.what, first.hint)
    if first.fails:
        return CheckResult(subject, str(error), error, hosts=hosts)
    return CheckResult(subject, str(error), warns=True, hosts=hosts)


@dataclass
class Commands:
    """What runs now; once stopped, nothing is started any more."""

    _running: set[Running] = field(default_factory=set)
    _stopped: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, host: Host, argv: Sequence[str], limit_s: float, stdin: bytes = b"") -> Completed:
        """Run a command on a host to its end; raises ClusterError."""
        running = host.start(argv, limit_s)
        with self._lock:
            self._running.add(running)
            stopped = self._stopped
        try:
            if stopped:
                running.stop()
                raise HostFailed(host.name, "is not asked any more: the preflight was stopped", "repeat it")
            return running.finish(limit_s, stdin)
        finally:
            with self._lock:
                self._running.discard(running)

    def pause(self, seconds: float) -> None:
        """Wait; raises ClusterError once stopped."""
        time.sleep(seconds)
        if self._stopped:
            raise ClusterError("", "nothing is waited for any more: the preflight was stopped", "repeat it")

    def stop(self) -> None:
        """End all that runs."""
        with self._lock:
            self._stopped, running = True, list(self._running)
        for one in running:
            one.stop()
