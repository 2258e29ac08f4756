"""What staging would do: which hosts lack the LMDB, and which way it gets there. States in, a value out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from caffe_recipes.cluster.staging.costs import (
    WAYS,
    How,
    Option,
    Rates,
    chain_s,
    chunk_bytes,
    copy_s,
    render_rate,
    star_s,
)
from caffe_recipes.cluster.staging.nodes import NodeState
from caffe_recipes.cluster.staging.stamps import DATA
from caffe_recipes.errors import ClusterError


@dataclass(frozen=True)
class StagingPlan:
    """Where an LMDB is, where it is to go, and how; `how` is None where there is nothing to do.

    `refused` are hosts where nothing can be done, each with why.
    """

    lmdb: str
    source: str
    size_bytes: int
    present: tuple[str, ...]
    missing: tuple[NodeState, ...]
    refused: tuple[tuple[str, str], ...]
    options: tuple[Option, ...]
    how: How | None


@dataclass(frozen=True)
class ChainOrder:
    """The hosts of a chain, rank 0 first; it reads `source`, and if `read_only` needs no copy of its own."""

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
    rates: Rates = Rates(),  # noqa: B008 - frozen
    how: How | None = None,
    lacking: Mapping[How, str] | None = None,
) -> StagingPlan:
    """Decide what is staged where, and how: the quickest way there is, or the one that is asked for.

    `lacking` says of ways that cannot be had here, why. Raises ClusterError where the asked way is
    one of them.
    """
    judged = [(state, _refusal(state, size_bytes, digest)) for state in states]
    missing = tuple(state for state, reason in judged if state.kind == "absent" and not reason)
    options = _weigh(missing, size_bytes, rates, lacking or {}) if missing else ()
    return StagingPlan(
        lmdb=lmdb,
        source=source,
        size_bytes=size_bytes,
        present=tuple(state.host for state, reason in judged if state.kind == "present" and not reason),
        missing=missing,
        refused=tuple((state.host, reason) for state, reason in judged if reason),
        options=options,
        how=_choose(options, how) if missing else None,
    )


def plan_without(plan: StagingPlan, hosts: Collection[str], why: str) -> StagingPlan | None:
    """Plan for those hosts, by the next best way, what the plan's own could not do; None if there is none."""
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
        how=_choose(options, None),
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
    """Decide who reads: the first host that sees the source, else one that has a copy, else this machine."""
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
    """Write what would be done, one line a way."""
    lines = [f"{host}: {reason}" for host, reason in plan.refused]
    if plan.how is None:
        rest = f"{len(plan.refused)} cannot take it" if plan.refused else "nothing to send"
        return [*lines, f"{plan.lmdb} is on {_hosts(len(plan.present))}, {rest}"]
    lines.append(
        f"{plan.size_bytes / 1e9:.3g} GB to {plan.lmdb} on {_hosts(len(plan.missing))}; "
        f"{len(plan.present)} {'has' if len(plan.present) == 1 else 'have'} it"
    )
    for option in plan.options:
        takes = "not here" if option.seconds is None else f"{option.seconds:,.0f} s"
        chosen = "  <- chosen" if option.how == plan.how else ""
        lines.append(f"  {option.how:6}  {takes:>8}  {option.why}{chosen}")
    return lines


def _refusal(state: NodeState, size_bytes: int, digest: str | None) -> str:
    """Return why nothing can be done on a host; nothing if all is well there."""
    if state.kind in ("refused", "unreachable"):
        return state.reason
    if state.kind == "absent":
        if state.free_bytes < size_bytes:
            return f"no room: {state.free_bytes:,} bytes are free, {size_bytes:,} are needed"
        return ""
    if state.size_bytes != size_bytes:
        return f"holds another LMDB ({state.size_bytes:,} bytes, the source has {size_bytes:,})"
    if digest is None or state.digest != digest:
        return "holds another LMDB (as large as the source, but of other content)"
    return ""


def _hosts(count: int) -> str:
    return f"{count} host{'' if count == 1 else 's'}"


def _weigh(
    missing: Sequence[NodeState], size_bytes: int, rates: Rates, lacking: Mapping[How, str]
) -> tuple[Option, ...]:
    count, link, shared = len(missing), render_rate(rates.link), render_rate(rates.shared)
    times = "once" if count == 1 else f"{count} times"
    seconds: dict[How, float] = {
        "copy": copy_s(size_bytes, count, rates),
        "chain": chain_s(size_bytes, count, rates),
        "sbcast": star_s(size_bytes, count, rates),
        "sftp": star_s(size_bytes, count, rates),
    }
    why: dict[How, str] = {
        "copy": f"{count} reader{'' if count == 1 else 's'} of a shared file system of {shared}",
        "chain": f"one reader, {_hosts(count)} pass{'es' if count == 1 else ''} it on at {link}",
        "sbcast": f"Slurm sends {times} at {link}",
        "sftp": f"this machine sends {times} at {link}",
    }
    blind = [state.host for state in missing if not state.sees_source]
    barred: dict[How, str] = {**({"copy": f"{blind[0]} does not see the source"} if blind else {}), **lacking}
    return tuple(
        Option(way, barred[way]) if way in barred else Option(way, why[way], seconds[way]) for way in WAYS
    )


def _choose(options: Sequence[Option], how: How | None) -> How:
    if how is not None:
        asked = next(option for option in options if option.how == how)
        if asked.seconds is None:
            raise ClusterError("", f"staging by {how} cannot be had: {asked.why}", "stage without --how")
        return how
    able = [option for option in options if option.seconds is not None]
    if not able:
        raise ClusterError("", "no way of staging can be had", "; ".join(option.why for option in options))
    return min(able, key=lambda option: option.seconds or 0.0).how
