"""Plan staging: which hosts lack files, how long each method would take, and which to use.

The plan is a value computed from the states of the hosts. The cost model is simple, and its results are
printed, to explain the choice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from caffe_recipes.cluster.staging import WAYS, Way
from caffe_recipes.errors import ClusterError, InputError
from caffe_recipes.units import describe_bytes
from caffe_recipes.wording import describe_count, plural

if TYPE_CHECKING:  # `generate` estimates the time of staging, and needs no host
    from caffe_recipes.cluster.staging.file_sets import FileSet, NodeState, SetFile

# A launcher logs in to every host and starts Python there: fixed seconds, and seconds per host.
_LAUNCH_S, _LAUNCH_S_PER_HOST = 2.0, 0.1
_MIN_CHUNK_BYTES, _MAX_CHUNK_BYTES = 256 << 10, 4 << 20
# The last node of a chain starts one chunk later per hop: at most this fraction of the whole file.
_MAX_FILL = 0.01


@dataclass(frozen=True)
class CopyRates:
    """Transfer rates of a cluster in bytes per second; the defaults are conservative."""

    link: float = 1.25e9
    shared: float = 5e9
    disk: float = 0.5e9


@dataclass(frozen=True)
class Option:
    """A staging method, with its estimated time; `why` explains the estimate, or why it is not available."""

    how: Way
    why: str
    seconds: float | None = None


def chunk_bytes(size_bytes: int, hosts: int) -> int:
    """Return the message size of a chain in bytes, a power of two from 256 KiB to 4 MiB.

    >>> [chunk_bytes(n, hosts) >> 10 for n, hosts in ((256 * 10**6, 4), (42 * 10**9, 64), (42 * 10**9, 4))]
    [512, 4096, 4096]
    """
    most = min(_MAX_CHUNK_BYTES, _MAX_FILL * size_bytes / max(1, hosts - 1))
    chunk = _MIN_CHUNK_BYTES
    while chunk * 2 <= most:
        chunk *= 2
    return chunk


def copy_s(size_bytes: int, hosts: int, rates: CopyRates) -> float:
    """Return the seconds that `copy` takes: all nodes read from the shared file system at the same time.

    >>> round(copy_s(42 * 10**9, 64, CopyRates()))
    538
    """
    return max(hosts * size_bytes / rates.shared, size_bytes / min(rates.link, rates.disk))


def chain_s(size_bytes: int, hosts: int, rates: CopyRates) -> float:
    """Return the seconds that `chain` takes: one copy, plus one chunk per hop until the last node starts.

    >>> round(chain_s(42 * 10**9, 64, CopyRates()))
    93
    """
    rate = min(rates.link, rates.shared, rates.disk)
    fill_s = (hosts - 1) * chunk_bytes(size_bytes, hosts) / rates.link
    return _LAUNCH_S + _LAUNCH_S_PER_HOST * hosts + fill_s + size_bytes / rate


def star_s(size_bytes: int, hosts: int, rates: CopyRates) -> float:
    """Return the seconds that `ssh` takes, or `sbcast`, which waits for all nodes after every block.

    >>> round(star_s(42 * 10**9, 64, CopyRates()))
    2150
    """
    return max(hosts * size_bytes / rates.link, size_bytes / rates.disk)


# The seconds that each method takes for so many bytes, to so many hosts.
STAGING_S: Mapping[Way, Callable[[int, int, CopyRates], float]] = {
    "copy": copy_s,
    "chain": chain_s,
    "sbcast": star_s,
    "ssh": star_s,
}


@dataclass(frozen=True)
class StagingPlan:
    """Which hosts have their files, which lack some, and the chosen way; `how` is None if none is needed.

    `refused` holds the hosts that cannot be staged to, with reasons. `size_bytes` is the total to send.
    """

    files: FileSet
    size_bytes: int
    present: tuple[str, ...]
    missing: tuple[NodeState, ...]
    refused: tuple[tuple[str, str], ...]
    options: tuple[Option, ...]
    how: Way | None


@dataclass(frozen=True)
class ChainOrder:
    """The hosts of a chain; the first, rank 0, reads `source`, and writes no copy if `read_only`."""

    hosts: tuple[str, ...]
    source: str
    read_only: bool
    chunk_bytes: int


def plan_staging(
    states: Sequence[NodeState],
    files: FileSet,
    *,
    rates: CopyRates = CopyRates(),
    how: Way | None = None,
    unavailable: Mapping[Way, str] | None = None,
) -> StagingPlan:
    """Return the plan, with the fastest way or the requested one (`how`).

    `unavailable` holds the ways that are not available here, with reasons. Raises InputError if the requested
    way is not available, and ClusterError if none is.
    """
    judged = [(state, _refusal(state, files)) for state in states]
    missing = tuple(state for state, reason in judged if state.kind == "absent" and not reason)
    size_bytes = sum(file.size_bytes for state in missing for file in lacking_files(state, files))
    each_bytes = -(-size_bytes // max(1, len(missing)))
    options = _estimate_ways(missing, each_bytes, rates, unavailable or {}) if missing else ()
    return StagingPlan(
        files=files,
        size_bytes=size_bytes,
        present=tuple(state.host for state, reason in judged if state.kind == "present" and not reason),
        missing=missing,
        refused=tuple((state.host, reason) for state, reason in judged if reason),
        options=options,
        how=_choose_way(options, how) if missing else None,
    )


def lacking_files(state: NodeState, files: FileSet) -> list[SetFile]:
    """Return the files of the set that a host lacks."""
    return [file for file in files.wanted[state.host] if file.name not in state.found]


def plan_without(plan: StagingPlan, hosts: Collection[str], why: str) -> StagingPlan | None:
    """Return a plan for these hosts by the next best way, now that this one failed; None if there is none."""
    options = tuple(Option(option.how, why) if option.how == plan.how else option for option in plan.options)
    if all(option.seconds is None for option in options):
        return None
    missing = tuple(state for state in plan.missing if state.host in hosts)
    arrived = tuple(state.host for state in plan.missing if state.host not in hosts)
    return replace(
        plan,
        present=(*plan.present, *arrived),
        missing=missing,
        options=options,
        how=_choose_way(options, None),
    )


def order_chain(
    files: FileSet, lmdb: SetFile, missing: Sequence[NodeState], present: Sequence[str], here: str
) -> ChainOrder:
    """Return the order of a chain. It starts at a node that sees the source, or has a copy, or else here."""
    names, source = tuple(state.host for state in missing), str(lmdb.source.data)
    reader = next((state.host for state in missing if state.sees_source), None)
    chunk = chunk_bytes(lmdb.size_bytes, len(names) + 1)
    if reader is not None:
        rest = tuple(name for name in names if name != reader)
        return ChainOrder((reader, *rest), source, False, chunk)
    if present:
        return ChainOrder((present[0], *names), f"{files.folder}/{lmdb.name}", True, chunk)
    return ChainOrder((here, *names), source, True, chunk)


def render_plan(plan: StagingPlan) -> list[str]:
    """Return the plan as lines of text, one per method."""
    lines = [f"{host}: {reason}" for host, reason in plan.refused]
    if plan.how is None:
        rest = f"{len(plan.refused)} cannot be staged to" if plan.refused else "nothing to send"
        return [*lines, f"{plan.files.folder} is on {describe_count(len(plan.present), 'host')}, {rest}"]
    lmdb = plan.files.lmdb
    size = f"{lmdb.size_bytes / 1e9:.3g} GB" if lmdb else f"{plan.size_bytes / 1e9:.3g} GB in total"
    lines.append(
        f"{size} to {plan.files.folder} on "
        f"{describe_count(len(plan.missing), 'host')}; "
        f"{len(plan.present)} {plural(len(plan.present), 'has', 'have')} it"
    )
    for option in plan.options:
        takes = "n/a" if option.seconds is None else f"{option.seconds:,.0f} s"
        chosen = "  <- chosen" if option.how == plan.how else ""
        lines.append(f"  {option.how:6}  {takes:>8}  {option.why}{chosen}")
    return lines


def _refusal(state: NodeState, files: FileSet) -> str:
    """Return why a host cannot be staged to, or "" if it can."""
    if state.reason:
        return state.reason
    for file in files.wanted[state.host]:
        found = state.found.get(file.name)
        what = "has a different LMDB" if files.lmdb else f"{file.name} is a different file"
        if found and found.size_bytes != file.size_bytes:
            return f"{what} ({found.size_bytes:,} bytes; the source has {file.size_bytes:,})"
        if found and (file.digest is None or found.digest != file.digest):
            return f"{what} (same size as the source, but different content)"
    needed = sum(file.size_bytes for file in lacking_files(state, files))
    if state.free_bytes < needed:
        return f"not enough space: {state.free_bytes:,} bytes free, {needed:,} needed"
    return ""


def _estimate_ways(
    missing: Sequence[NodeState], size_bytes: int, rates: CopyRates, unavailable: Mapping[Way, str]
) -> tuple[Option, ...]:
    """Return every method with its estimated seconds; `unavailable` holds the others, with reasons."""
    count, link, shared = len(missing), describe_bytes(rates.link), describe_bytes(rates.shared)
    times = "once" if count == 1 else f"{count} times"
    seconds = {way: seconds_of(size_bytes, count, rates) for way, seconds_of in STAGING_S.items()}
    hosts = f"{describe_count(count, 'host')} {plural(count, 'passes', 'pass')}"
    why: dict[Way, str] = {
        "copy": f"{describe_count(count, 'reader')} of a shared file system at {shared}/s",
        "chain": f"one node reads, {hosts} it on at {link}/s",
        "sbcast": f"Slurm sends {times} at {link}/s",
        "ssh": f"this machine sends {times} at {link}/s",
    }
    blind = [state.host for state in missing if not state.sees_source]
    reasons: dict[Way, str] = {"copy": f"{blind[0]} cannot read the source"} if blind else {}
    reasons |= unavailable
    return tuple(
        Option(way, reasons[way]) if way in reasons else Option(way, why[way], seconds[way]) for way in WAYS
    )


def _choose_way(options: Sequence[Option], how: Way | None) -> Way:
    """Return the requested method, or the fastest. Raises InputError or ClusterError if it is unavailable."""
    if how is not None:
        requested = next(option for option in options if option.how == how)
        if requested.seconds is None:
            raise InputError("", f"staging by {how} is not possible: {requested.why}", "stage without --how")
        return how
    available = [option for option in options if option.seconds is not None]
    if not available:
        raise ClusterError("", "no staging method is available", "; ".join(option.why for option in options))
    return min(available, key=lambda option: option.seconds or 0.0).how
