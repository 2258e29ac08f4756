from __future__ import annotations

import pickle
from datetime import datetime, timedelta

from caffe_recipes.caffe.logs import Entry, Loss, parse_line
from caffe_recipes.run.failures.diagnosis import Diagnosis
from caffe_recipes.run.failures.rank_comparison import MOST_RANKS, RankComparison

BEGUN = datetime(2018, 5, 2, 16)


def shown(rank: int, iteration: int, loss: float, *, second: float = 0.0, clock_h: float = 0.0) -> str:
    """Write the line of a loss, of a rank whose clock is wrong by `clock_h` hours."""
    time = BEGUN + timedelta(seconds=second, hours=clock_h)
    return f"[{rank}] I{time:%m%d %H:%M:%S}.000000 7 solver.cpp:312] Iteration {iteration}, loss = {loss:g}"


def compare(lines: list[str]) -> RankComparison:
    comparison = RankComparison()
    for line in lines:
        entry = parse_line(line)
        assert entry is not None, line
        comparison.feed(entry)
    return comparison


def explain(lines: list[str], *, has_failed: bool = False) -> dict[str, Diagnosis]:
    return {one.name: one for one in compare(lines).explain(has_failed=has_failed)}


def in_step(ranks: int = 4, displays: int = 12, **odd: float) -> list[str]:
    return [
        shown(rank, 20 * at, 6 - at / 9 + rank / 40, second=5 * at)
        for at in range(displays)
        for rank in range(ranks)
    ]


def test_ranks_in_step_get_no_word() -> None:
    assert explain(in_step()) == {}
    assert explain(in_step(), has_failed=True) == {}


def test_the_ranks_of_intel_caffe_205_are_out_of_step_and_their_clocks_apart() -> None:
    lines = []
    for at in range(12):
        lines.append(shown(5, 2110 + 5 * at, 3.8, second=7 * at))
        lines.append(shown(9, 1440 + 5 * at, 4.3, second=7 * at + 1, clock_h=-8))
    found = explain(lines)
    assert set(found) == {"ranks-out-of-step", "clocks-apart"}
    assert "rank 9 was at iteration 1,4" in found["ranks-out-of-step"].cause
    assert found["clocks-apart"].cause == "the clock of rank 9 is about 8 h 00 min behind that of rank 5"


def test_ranks_whose_logs_follow_each_other_are_not_out_of_step() -> None:
    lines = [
        shown(rank, 20 * at, 6 - at / 9 + rank / 40, second=5 * at) for rank in range(4) for at in range(50)
    ]
    assert explain(lines) == {}


def test_ranks_that_are_started_again_are_not_out_of_step() -> None:
    assert explain(in_step() + in_step()) == {}


def done(rank: int) -> str:
    return f"[{rank}] I0502 17:00:00.000000 7 solver.cpp:443] Optimization Done."


def started(rank: int) -> str:
    return f"[{rank}] I0502 17:00:00.000000 7 solver.cpp:397] Solving TinyNet"


def test_the_end_of_a_phase_does_not_hide_how_the_next_one_failed() -> None:
    phase = [*in_step(), *(done(rank) for rank in range(4))]
    cut = [line for line in in_step(displays=6) if not (line[:3] == "[3]" and "Iteration 100," in line)]
    starts = [started(rank) for rank in range(4)]
    for next_phase in (cut, [*starts, *cut]):
        (found,) = explain([*phase, *next_phase], has_failed=True).values()
        assert found.cause == "rank 3 stopped first: its last iteration is 80, and others reached 100"


def test_the_last_phase_says_what_was_reached() -> None:
    begun = [started(rank) for rank in range(4)] + in_step(displays=1)
    for before in (begun, [*in_step(), *(done(rank) for rank in range(4)), *begun]):
        comparison = compare(before)
        assert (comparison.last_iteration, comparison.is_done) == (0, False)
        assert comparison.ranks == {0, 1, 2, 3}


def test_the_start_of_a_slow_rank_is_not_that_of_another_phase() -> None:
    lines = [started(0), *in_step(ranks=1), started(1)]
    assert compare(lines).last_iteration == 220


def test_a_log_without_ranks_begins_again_with_its_next_phase() -> None:
    lines = [line[4:] for line in [started(0), *in_step(ranks=1), done(0), started(0)]]
    assert (compare(lines).last_iteration, compare(lines).is_done) == (-1, False)


def test_tests_before_the_first_loss_of_a_phase_count_for_that_phase() -> None:
    at = "I0502 16:00:00.000000 7 solver.cpp"
    tests = [
        f"[{rank}] {at}:{text}"
        for text in ("474] Iteration 0, Testing net (#0)", "562]     Test net output #0: top-1 = 0.5")
        for rank in range(4)
    ]
    assert set(explain([*in_step(), *tests, *in_step()])) == {"ranks-alone"}


def test_ranks_that_all_print_results_of_tests_are_alone() -> None:
    at = "I0502 16:00:00.000000 7 solver.cpp"
    tests = [
        [
            f"[{rank}] {at}:474] Iteration 0, Testing net (#0)",
            f"[{rank}] {at}:562]     Test net output #0: top-1 = 0.5",
        ]
        for rank in range(4)
    ]
    (found,) = explain([*(line for pair in tests for line in pair), *in_step()]).values()
    assert found.name == "ranks-alone" and found.is_guess
    assert found.cause.startswith("all 4 ranks print the results of tests")
    assert explain([*tests[0], *in_step()]) == {}


def test_ranks_with_the_same_losses_are_alone() -> None:
    lines = [shown(rank, 20 * at, 6 - at / 9) for at in range(8) for rank in range(3)]
    assert set(explain(lines)) == {"ranks-equal"}


def test_ranks_whose_losses_say_nothing_are_not_taken_for_equal() -> None:
    stuck = {  # diverged, without a loss layer, and lost
        odd: [shown(rank, 20 * at, odd) for at in range(80) for rank in range(4)]
        for odd in (87.3365, 0.0, 6.90776, float("nan"), float("inf"))
    }
    assert {odd: set(explain(lines)) for odd, lines in stuck.items()} == {odd: set() for odd in stuck}
    varied = [shown(rank, 20 * at, 87.34 + at) for at in range(80) for rank in range(4)]
    assert explain(varied) == {}


def test_a_rank_whose_loss_is_apart_is_named() -> None:
    for odd in (41.0, float("nan")):
        lines = [
            shown(rank, 20 * at, odd if rank == 2 else 3 - at / 9 + rank / 40)
            for at in range(9)
            for rank in range(4)
        ]
        (found,) = explain(lines).values()
        assert found.name == "rank-apart"
        assert found.cause.startswith("the loss of rank 2 is apart from the others: ")


def test_one_log_whose_lines_have_the_labels_of_several_ranks_gets_no_word() -> None:
    lines = [shown(at * 7 % 5, 20 * at, 6 - at / 9, second=5 * at) for at in range(40)]
    assert explain(lines) == explain(lines, has_failed=True) == {}


def test_a_rank_that_stopped_first_is_named_as_a_guess() -> None:
    lines = [
        line for line in in_step(displays=6) if not (line.startswith("[3]") and "Iteration 100," in line)
    ]
    assert explain(lines) == {}  # it may still be about to print
    (found,) = explain(lines, has_failed=True).values()
    assert found.is_guess
    assert found.cause == "rank 3 stopped first: its last iteration is 80, and others reached 100"
    assert found.remedy == "read the lines of rank 3, and what its host reports (dmesg)"


def test_memory_is_bounded_however_many_ranks_the_labels_name() -> None:
    comparison = RankComparison()
    for iteration in range(20):
        for rank in range(MOST_RANKS + 100):
            comparison.feed(Entry(Loss(iteration, 3 + rank / 1e6), rank * 10**12, BEGUN))
    assert len(comparison.ranks) == MOST_RANKS
    assert len(pickle.dumps(comparison)) < 750_000
    assert set(comparison.explain(has_failed=True)) == set()


def test_all_ranks_of_the_largest_runs_are_compared() -> None:
    cut = [line for line in in_step(1536, 3) if not (line[:6] == "[1500]" and "Iteration 40," in line)]
    (found,) = explain(cut, has_failed=True).values()
    assert found.cause == "rank 1500 stopped first: its last iteration is 20, and others reached 40"
