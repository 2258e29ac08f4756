"""What a look gives: findings, each of one subject, with the hosts on which it fails."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from caffe_recipes.chain.units import describe_names
from caffe_recipes.cluster.nodelists import fold_hosts
from caffe_recipes.errors import CaffeRecipesError, ClusterError

# A longer list of names hides what is said of them.
_NAMES = 60


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: what was seen, which may be worth a warning, or the error.

    `hosts` are those on which it fails; none if it is not about particular hosts. `unfit` hosts are spares
    that are not to be used.
    """

    subject: str
    said: str
    error: CaffeRecipesError | None = None
    warns: bool = False
    hosts: tuple[str, ...] = ()
    unfit: bool = False

    @property
    def mark(self) -> Literal["ok", "warn", "failed"]:
        """Say in a word how it is."""
        return "failed" if self.error else "warn" if self.warns else "ok"


@dataclass(frozen=True)
class Trouble:
    """What is wrong on one host, at a `place` there if it has one; without `fails` it is worth a warning."""

    host: str
    what: str
    hint: str = ""
    place: str = ""
    fails: bool = True
    kind: type[CaffeRecipesError] = field(default=ClusterError)


def trouble_of(host: str, error: CaffeRecipesError) -> Trouble:
    """Return what an error of one host says of it."""
    place = error.where.removeprefix(host).removeprefix(":") if error.where.startswith(host) else error.where
    return Trouble(host, error.what, error.hint, place, kind=type(error))


def tell(subject: str, troubles: Sequence[Trouble], otherwise: str = "") -> list[Finding]:
    """Return a finding for each thing that is wrong, all of its hosts in one; `otherwise`, if nothing is.

    >>> [one.said for one in tell("disk", [Trouble("n1", "is full"), Trouble("n2", "is full")])]
    ['n[1-2]: is full']
    """
    groups: dict[tuple[str, str, bool], list[Trouble]] = {}
    for trouble in troubles:
        groups.setdefault((trouble.place, trouble.what, trouble.fails), []).append(trouble)
    found = [
        _finding(subject, group) for group in sorted(groups.values(), key=lambda group: not group[0].fails)
    ]
    return found if found or not otherwise else [Finding(subject, otherwise)]


def describe_outcome(found: Sequence[Finding]) -> str:
    """Say in a line what all findings come to, and what to do.

    >>> describe_outcome([Finding("disk", "is full", ClusterError("n1", "full"))])
    '1 check fails (disk): mend what is said above, and repeat'
    """
    failed = list(dict.fromkeys(finding.subject for finding in found if finding.error))
    warned = list(dict.fromkeys(finding.subject for finding in found if finding.warns))
    if failed:
        hosts = list(dict.fromkeys(host for finding in found if finding.error for host in finding.hosts))
        on = f" on {fold_names(hosts)}" if hosts else ""
        fails = "check fails" if len(failed) == 1 else "checks fail"
        return f"{len(failed)} {fails}{on} ({', '.join(failed)}): mend what is said above, and repeat"
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


def _finding(subject: str, group: Sequence[Trouble]) -> Finding:
    first, hosts = group[0], tuple(trouble.host for trouble in group)
    where = ":".join(part for part in (fold_names(hosts), first.place) if part)
    error = first.kind(where, first.what, first.hint)
    if first.fails:
        return Finding(subject, str(error), error, hosts=hosts)
    return Finding(subject, str(error), warns=True, hosts=hosts)
