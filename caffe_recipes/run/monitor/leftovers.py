"""Find the ranks of killed runs that still train, on all of their hosts at once; read-only.

They are found as `run` finds those that it ends: by the name of the launch in their environment.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from caffe_recipes.cluster.commands import Host
from caffe_recipes.cluster.hostfile import fold_hosts
from caffe_recipes.cluster.hosts import try_each
from caffe_recipes.cluster.ranks import find_ranks
from caffe_recipes.errors import CaffeRecipesError
from caffe_recipes.run.context import Connect
from caffe_recipes.run.events import RunState
from caffe_recipes.run.journal import JOURNAL
from caffe_recipes.run.monitor.run_files import RunFiles
from caffe_recipes.wording import describe_count, plural

# A host that has not answered after this time may still have ranks.
_LIMIT_S = 5.0


@dataclass(frozen=True)
class Leftovers:
    """What is left of a killed run, as a text; whether it `trains`, or may do so on hosts that are silent."""

    text: str
    trains: bool


class KilledRun(Protocol):
    """The part of a run that is read here."""

    @property
    def path(self) -> str:
        """Its folder."""

    @property
    def state(self) -> RunState:
        """Its state, with the launch that has not ended."""


def find_leftovers(runs: Iterable[KilledRun], files: RunFiles, connect: Connect) -> dict[str, Leftovers]:
    """Return what is left of killed runs, by folder: the ranks that still train, and the silent hosts.

    A run of which nothing is left is not listed. Nor is that of another user asked about: its journal could
    name any host, to which ssh would offer our keys.
    """
    asked: dict[str, list[KilledRun]] = defaultdict(list)
    for run in runs:
        for name in _hosts_of(run) if files.is_own(f"{run.path}/{JOURNAL}") else ():
            asked[name].append(run)
    hosts: dict[str, Host] = {}
    silent: dict[str, str] = {}
    for name in asked:
        try:
            hosts[name] = connect(name, "auto")
        except CaffeRecipesError as error:
            silent[name] = error.what
    counts: dict[tuple[str, str], int] = {}

    def count(host: Host) -> None:
        for run in asked[host.name]:
            name = run.state.launch.id if run.state.launch else ""
            ranks = {one.rank for one in find_ranks(host, name) if one.rank is not None}
            counts[run.path, host.name] = len(ranks)
        host.close()

    silent |= try_each([*hosts.values()], count, _LIMIT_S)
    return _describe(asked, dict(counts), silent)


def _hosts_of(run: KilledRun) -> Sequence[str]:
    """Return the hosts of a run's launch; the run's own machine, if that is all that the launch names."""
    launch = run.state.launch
    if launch is None or not launch.id:
        return ()
    local = launch.host or "localhost"
    return tuple(dict.fromkeys(local if name == "localhost" else name for name in launch.hosts or (local,)))


def _describe(
    asked: Mapping[str, Sequence[KilledRun]],
    counts: Mapping[tuple[str, str], int],
    silent: Mapping[str, str],
) -> dict[str, Leftovers]:
    found: dict[str, Leftovers] = {}
    for path in dict.fromkeys(run.path for runs in asked.values() for run in runs):
        names = [name for name, runs in asked.items() if any(run.path == path for run in runs)]
        left = [name for name in names if counts.get((path, name))]
        total, parts = sum(counts[path, name] for name in left), []
        if total:
            trains = plural(total, "trains", "train")
            parts.append(f"{describe_count(total, 'rank')} on {fold_hosts(left)} still {trains}")
        if unknown := [name for name in names if name in silent]:
            parts.append(f"{fold_hosts(unknown)} did not answer, and may have ranks of it")
        if parts:
            found[path] = Leftovers("; ".join(parts), total > 0)
    return found
