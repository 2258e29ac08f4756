from __future__ import annotations

from collections.abc import Sequence

import pytest

from caffe_recipes.cluster.ranks import Pulse, RankPulse, Straggler, find_straggler

HOSTS = ("a", "b", "c", "d")


def beats(
    host: str,
    cpu: Sequence[float] = (1.0,),
    states: Sequence[str] = ("R",) * 6,
    first_rank: int = 0,
    start_s: float = 0.0,
) -> tuple[Pulse, ...]:
    """Return pulses five seconds apart; each rank uses so many CPUs, and with state `-` it is not there."""
    return tuple(
        Pulse(
            host,
            start_s + 5.0 * number,
            tuple(
                RankPulse(first_rank + index, 100 + index, state, rate * 5.0 * number, 1 << 30)
                for index, rate in enumerate(cpu)
                if state != "-"
            ),
            frozenset(range(first_rank, first_rank + len(cpu)))
            if state in "-Z" and "R" in states[:number]
            else frozenset(),
        )
        for number, state in enumerate(states)
    )


def all_hosts(**special: tuple[Pulse, ...]) -> dict[str, tuple[Pulse, ...]]:
    """Return four hosts with one busy rank each, but for those given."""
    return {host: special.get(host) or beats(host, first_rank=index) for index, host in enumerate(HOSTS)}


@pytest.mark.parametrize(
    ("states", "reason"),
    [
        ("RRRTTT", "rank 2 is stopped (SIGSTOP)"),
        ("RRRttt", "rank 2 is stopped by a debugger"),
        ("RRRDDD", "rank 2 is waiting for a disk"),
        ("RRR---", "rank 2 has ended while others continue"),
        ("RRRZZZ", "rank 2 has ended while others continue"),
    ],
)
def test_a_rank_that_is_stuck_or_gone_over_several_beats_is_named(states: str, reason: str) -> None:
    histories = all_hosts(c=beats("c", states=states, first_rank=2))
    assert find_straggler(histories) == Straggler("c", 2, reason, is_certain="stopped" in reason)


def test_a_job_that_is_suspended_as_a_whole_has_no_certain_straggler() -> None:
    histories = {host: beats(host, states="RRRTTT", first_rank=index) for index, host in enumerate(HOSTS)}
    found = find_straggler(histories)
    assert found is not None
    assert not found.is_certain


@pytest.mark.parametrize("states", ["RRRRTT", "RDRDRD", "TTTRRR", "RRRR--", "---RRR", "RRRRRZ"])
def test_a_rank_that_advances_or_has_just_started_is_not_a_straggler(states: str) -> None:
    assert find_straggler(all_hosts(c=beats("c", states=states, first_rank=2))) is None


def test_the_last_rank_that_continues_is_named() -> None:
    histories = {
        host: beats(host, states="RRRRRR" if host == "d" else "RRR---", first_rank=index)
        for index, host in enumerate(HOSTS)
    }
    assert find_straggler(histories) == Straggler("d", 3, "only rank 3 continues; the others have ended")


def test_at_the_end_of_training_ranks_may_end_or_compute_alone_but_not_be_stopped() -> None:
    gone, stopped = (beats("c", states=states, first_rank=2) for states in ("RRR---", "RRRTTT"))
    alone = {host: beats(host, (1.0 if host == "a" else 0.0,), first_rank=i) for i, host in enumerate(HOSTS)}
    for histories in (all_hosts(c=gone), alone):
        assert find_straggler(histories) is not None
        assert find_straggler(histories, is_ending=True) is None
    found = find_straggler(all_hosts(c=stopped), is_ending=True)
    assert found is not None
    assert found.rank == 2


def test_ranks_that_all_wait_for_disks_or_all_end_are_not_stragglers() -> None:
    for states in ("RRRDDD", "RRR---"):
        waiting = {host: beats(host, states=states, first_rank=i) for i, host in enumerate(HOSTS)}
        assert find_straggler(waiting) is None


@pytest.mark.parametrize(
    ("rates", "found"),
    [
        (
            (0.0, 0.01, 1.9, 0.0),
            "rank 2 is the only one computing (1.90 CPUs); the others wait (at most 0.01)",
        ),
        (
            (1.0, 0.9, 0.01, 22.0),
            "rank 2 is the only idle one (0.01 CPUs); the others compute (0.90 or more)",
        ),
        ((1.0, 1.0, 0.2, 1.0), None),
        ((1.0, 0.0, 0.0, 1.0), None),
        ((1.0, 0.3, 0.0, 1.0), None),
        ((0.0, 0.0, 0.0, 0.0), None),
        ((1.0, 1.0, 1.0, 1.0), None),
    ],
)
def test_the_odd_one_out_is_named_where_it_is_clear(rates: tuple[float, ...], found: str | None) -> None:
    histories = {
        host: beats(host, (rate,), first_rank=index)
        for index, (host, rate) in enumerate(zip(HOSTS, rates, strict=True))
    }
    assert find_straggler(histories) == (Straggler("c", 2, found) if found else None)


def test_all_of_a_hosts_ranks_are_named_by_the_host() -> None:
    histories = {
        host: beats(host, (0.0, 0.0) if host == "b" else (1.0, 1.0), first_rank=2 * index)
        for index, host in enumerate(HOSTS)
    }
    reason = "is the only idle one (0.00 CPUs); the others compute (2.00 or more)"
    assert find_straggler(histories) == Straggler("b", None, reason)


def test_one_of_two_is_never_the_odd_one() -> None:
    assert find_straggler({"a": beats("a"), "b": beats("b", (0.0,), first_rank=1)}) is None


def test_a_host_without_recent_pulses_is_not_compared() -> None:
    silent = beats("c", (0.0,), first_rank=2, start_s=-60.0)
    assert find_straggler(all_hosts(c=silent)) is None
    assert find_straggler({}) is None
    assert find_straggler({"a": beats("a")[:1]}) is None
