"""Plan staging: which hosts lack the LMDB, how long each way would take, and which way to use.

The plan is a value computed from the states of the hosts. The cost model is simple, and its results are
printed, to explain the choice. The functions that call `node.sh` (`probe_node` to `clean_node`) are here too.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from caffe_recipes.cluster.commands import COMMAND_S, Host
from caffe_recipes.cluster.hosts import ask_all
from caffe_recipes.cluster.remote import NodeRefusal, ask_node, seconds_for
from caffe_recipes.cluster.staging.relay import DATA
from caffe_recipes.errors import CaffeRecipesError, ClusterError, InputError
from caffe_recipes.wording import describe_count, plural

How = Literal["copy", "chain", "sbcast", "ssh"]
WAYS: tuple[How, ...] = ("copy", "chain", "sbcast", "ssh")

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
    """A way of staging, with its estimated time; `why` explains the estimate, or why it is not available."""

    how: How
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


def render_rate(bytes_per_s: float) -> str:
    """Return a rate as text.

    >>> render_rate(1.25e9), render_rate(12.5e6)
    ('1.25 GB/s', '12.5 MB/s')
    """
    return f"{bytes_per_s / 1e9:.3g} GB/s" if bytes_per_s >= 1e9 else f"{bytes_per_s / 1e6:.3g} MB/s"


T = TypeVar("T")

_MAX_S = 86400.0


@dataclass(frozen=True)
class NodeState:
    """What a host has at the path of the LMDB.

    A `present` copy with a digest was verified by staging and has not changed since. For `refused`, `reason`
    says why nothing can be copied there; for `unreachable`, why the host does not answer.
    """

    host: str
    kind: Literal["absent", "present", "refused", "unreachable"]
    size_bytes: int = 0
    digest: str | None = None
    free_bytes: int = 0
    sees_source: bool = False
    reason: str = ""


def on_each(
    hosts: Sequence[Host], act: Callable[[Host], T], timeout_s: float = _MAX_S
) -> list[T | CaffeRecipesError | None]:
    """Call `act` on all hosts in parallel; return the results or errors in the order of the hosts."""
    return [answer.error or answer.value for answer in ask_all(hosts, act, timeout_s)]


def probe_node(host: Host, lmdb: str, source: str, source_bytes: int) -> NodeState:
    """Return what a host has at the path of an LMDB; never raises, since `unreachable` is a state, too."""
    try:
        words = ask_node(host, "probe", lmdb, source, str(source_bytes))
    except NodeRefusal as refusal:
        return NodeState(host.name, "refused", reason=refusal.what)
    except ClusterError as error:
        return NodeState(host.name, "unreachable", reason=error.what)
    if words[0] == "absent":
        return NodeState(host.name, "absent", free_bytes=int(words[1]), sees_source=words[2] == "1")
    return NodeState(host.name, "present", int(words[1]), None if words[2] == "-" else words[2])


def hash_node(host: Host, lmdb: str, size_bytes: int) -> str:
    """Return the digest of the LMDB on a host. Raises ClusterError."""
    return ask_node(host, "digest", lmdb, timeout_s=seconds_for(size_bytes))[1]


def reserve_part(host: Host, lmdb: str, part: str, size_bytes: int) -> None:
    """Create the folder and an empty file in it, if there is enough space. Raises ClusterError."""
    ask_node(host, "reserve", lmdb, part, str(size_bytes))


def pull_part(
    host: Host, lmdb: str, part: str, source: str, size_bytes: int, *, room_bytes: int, digest: str | None
) -> None:
    """Reserve a part, and let the node itself copy the source to it; commit it if the digest is known.

    This is a single command, since every command on 64 nodes takes time. Raises ClusterError.
    """
    limit_s = seconds_for(size_bytes)
    words = (part, str(room_bytes), source, f"{limit_s:.0f}", str(size_bytes), digest or "-")
    ask_node(host, "take", lmdb, *words, timeout_s=2 * limit_s + COMMAND_S)


def commit_part(host: Host, lmdb: str, part: str, size_bytes: int, digest: str) -> None:
    """Verify a part, and give it its final name. Raises ClusterError."""
    ask_node(host, "commit", lmdb, part, str(size_bytes), digest, timeout_s=seconds_for(size_bytes))


def abandon_part(host: Host, lmdb: str) -> None:
    """Remove an unfinished copy. Raises ClusterError."""
    ask_node(host, "abandon", lmdb)


def clean_node(host: Host, lmdb: str) -> tuple[str, str]:
    """Remove the staged copy from a host; return `cleaned` with bytes, `kept` with a reason, or `nothing`."""
    words = ask_node(host, "clean", lmdb)
    return words[0], " ".join(words[1:])


def normalize_lmdb(lmdb: str) -> str:
    """Return an LMDB's path in normal form. Raises InputError unless it is the absolute path of a folder.

    >>> normalize_lmdb("/tmp//lmdb/")
    '/tmp/lmdb'
    """
    if not lmdb.startswith("/") or ".." in lmdb.split("/") or "\0" in lmdb:
        raise InputError(
            lmdb, "is not an absolute path", "give the full path of the folder on the nodes, without `..`"
        )
    path = "/" + posixpath.normpath(lmdb).lstrip("/")
    if path == "/":
        raise InputError(lmdb, "is not a folder for an LMDB", "give one, e.g. /tmp/train_lmdb")
    return path


@dataclass(frozen=True)
class StagingPlan:
    """Which hosts have the LMDB, which lack it, and the chosen way; `how` is None if there is nothing to do.

    `refused` holds the hosts that cannot be staged to, with reasons. `size_bytes` is per host, or the total
    if files are split among the hosts.
    """

    lmdb: str
    source: str
    size_bytes: int
    present: tuple[str, ...]
    missing: tuple[NodeState, ...]
    refused: tuple[tuple[str, str], ...]
    options: tuple[Option, ...]
    how: How | None
    is_split: bool = False


@dataclass(frozen=True)
class ChainOrder:
    """The hosts of a chain; the first, rank 0, reads `source`, and writes no copy if `read_only`."""

    hosts: tuple[str, ...]
    source: str
    read_only: bool
    chunk_bytes: int


def plan_staging(
    states: Sequence[NodeState],
    *,
    lmdb: str,
    source: str,
    size_bytes: int,
    digest: str | None,
    rates: CopyRates = CopyRates(),
    how: How | None = None,
    unavailable: Mapping[How, str] | None = None,
) -> StagingPlan:
    """Return the plan, with the fastest way or the requested one (`how`).

    `unavailable` holds the ways that are not available here, with reasons. Raises InputError if the requested
    way is not available, and ClusterError if none is.
    """
    judged = [(state, _refusal(state, size_bytes, digest)) for state in states]
    missing = tuple(state for state, reason in judged if state.kind == "absent" and not reason)
    options = estimate_ways(missing, size_bytes, rates, unavailable or {}) if missing else ()
    return StagingPlan(
        lmdb=lmdb,
        source=source,
        size_bytes=size_bytes,
        present=tuple(state.host for state, reason in judged if state.kind == "present" and not reason),
        missing=missing,
        refused=tuple((state.host, reason) for state, reason in judged if reason),
        options=options,
        how=choose_way(options, how) if missing else None,
    )


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
        how=choose_way(options, None),
    )


def plan_chain(
    missing: Sequence[NodeState],
    present: Sequence[str],
    *,
    lmdb: str,
    source: str,
    size_bytes: int,
    here: str,
) -> ChainOrder:
    """Return the order of a chain. It starts at a node that sees the source, or has a copy, or else here."""
    names = tuple(state.host for state in missing)
    reader = next((state.host for state in missing if state.sees_source), None)
    chunk = chunk_bytes(size_bytes, len(names) + 1)
    if reader is not None:
        rest = tuple(name for name in names if name != reader)
        return ChainOrder((reader, *rest), source, False, chunk)
    if present:
        return ChainOrder((present[0], *names), f"{lmdb}/{DATA}", True, chunk)
    return ChainOrder((here, *names), source, True, chunk)


def render_plan(plan: StagingPlan) -> list[str]:
    """Return the plan as lines of text, one per way."""
    lines = [f"{host}: {reason}" for host, reason in plan.refused]
    if plan.how is None:
        rest = f"{len(plan.refused)} cannot be staged to" if plan.refused else "nothing to send"
        return [*lines, f"{plan.lmdb} is on {describe_count(len(plan.present), 'host')}, {rest}"]
    lines.append(
        f"{plan.size_bytes / 1e9:.3g} GB{' in total' if plan.is_split else ''} to {plan.lmdb} on "
        f"{describe_count(len(plan.missing), 'host')}; "
        f"{len(plan.present)} {plural(len(plan.present), 'has', 'have')} it"
    )
    for option in plan.options:
        takes = "n/a" if option.seconds is None else f"{option.seconds:,.0f} s"
        chosen = "  <- chosen" if option.how == plan.how else ""
        lines.append(f"  {option.how:6}  {takes:>8}  {option.why}{chosen}")
    return lines


def _refusal(state: NodeState, size_bytes: int, digest: str | None) -> str:
    """Return why a host cannot be staged to, or "" if it can."""
    if state.kind in ("refused", "unreachable"):
        return state.reason
    if state.kind == "absent":
        if state.free_bytes < size_bytes:
            return f"not enough space: {state.free_bytes:,} bytes free, {size_bytes:,} needed"
        return ""
    if state.size_bytes != size_bytes:
        return f"has a different LMDB ({state.size_bytes:,} bytes; the source has {size_bytes:,})"
    if digest is None or state.digest != digest:
        return "has a different LMDB (same size as the source, but different content)"
    return ""


def estimate_ways(
    missing: Sequence[NodeState], size_bytes: int, rates: CopyRates, unavailable: Mapping[How, str]
) -> tuple[Option, ...]:
    """Return every way with its estimated seconds; `unavailable` holds the others, with reasons."""
    count, link, shared = len(missing), render_rate(rates.link), render_rate(rates.shared)
    times = "once" if count == 1 else f"{count} times"
    seconds: dict[How, float] = {
        "copy": copy_s(size_bytes, count, rates),
        "chain": chain_s(size_bytes, count, rates),
        "sbcast": star_s(size_bytes, count, rates),
        "ssh": star_s(size_bytes, count, rates),
    }
    hosts = f"{describe_count(count, 'host')} {plural(count, 'passes', 'pass')}"
    why: dict[How, str] = {
        "copy": f"{describe_count(count, 'reader')} of a shared file system at {shared}",
        "chain": f"one node reads, {hosts} it on at {link}",
        "sbcast": f"Slurm sends {times} at {link}",
        "ssh": f"this machine sends {times} at {link}",
    }
    blind = [state.host for state in missing if not state.sees_source]
    reasons: dict[How, str] = {"copy": f"{blind[0]} cannot read the source"} if blind else {}
    reasons |= unavailable
    return tuple(
        Option(way, reasons[way]) if way in reasons else Option(way, why[way], seconds[way]) for way in WAYS
    )


def choose_way(options: Sequence[Option], how: How | None) -> How:
    """Return the requested way, or the fastest. Raises InputError or ClusterError if it is not available."""
    if how is not None:
        requested = next(option for option in options if option.how == how)
        if requested.seconds is None:
            raise InputError("", f"staging by {how} is not possible: {requested.why}", "stage without --how")
        return how
    available = [option for option in options if option.seconds is not None]
    if not available:
        raise ClusterError("", "no way of staging is available", "; ".join(option.why for option in options))
    return min(available, key=lambda option: option.seconds or 0.0).how
