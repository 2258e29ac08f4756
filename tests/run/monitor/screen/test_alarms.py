from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from caffe_recipes.caffe.logs import LogSummary
from caffe_recipes.recipe.model import Reported
from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.run.monitor.screen.alarms import WatchedTraining, find_alarms
from caffe_recipes.run.training_plan import plan_steps

# 128 ranks on 64 hosts, 4,096 images an iteration: an epoch has about 313 iterations.
RECIPE = load_recipe(Path("stampede2-64n-72ep"))
STEPS = plan_steps(RECIPE)
HOSTS = [f"c401-{number:03}" for number in range(64)]


def summarize(losses: Iterable[tuple[int, float]], *, seconds: float = 10.0, slow: int = 0) -> LogSummary:
    """Return a log's summary: each loss takes so many seconds, and the last `slow` ones thrice as many."""
    summary, shown = LogSummary(), list(losses)
    at = 0.0
    for number, (iteration, loss) in enumerate(shown):
        at += seconds * (3 if number >= len(shown) - slow else 1)
        minute, second = divmod(int(at), 60)
        hour, minute = divmod(minute, 60)
        summary.feed(
            f"I1120 {hour:02}:{minute:02}:{second:02}.000000  6374 solver.cpp:312] "
            f"Iteration {iteration}, loss = {loss}"
        )
    return summary


def watch(summary: LogSummary, quiet_s: float = 0.0, phase: int = 0, **more: object) -> tuple[str, ...]:
    step = STEPS[phase]
    return find_alarms(WatchedTraining(RECIPE, step, summary, quiet_s, **more))  # type: ignore[arg-type]


FALLING = [(20 * number, 7.0 / (1 + number)) for number in range(20)]


def test_a_training_that_goes_well_rings_no_alarm() -> None:
    shown = dict.fromkeys(range(128), 380)
    assert watch(summarize(FALLING), 30.0, shown=shown, hosts=HOSTS) == ()


@pytest.mark.parametrize(
    ("losses", "text"),
    [
        ([(0, 7.0), (20, float("nan"))], "the loss is nan at iteration 20"),
        ([(0, 7.0), (20, 87.3365), (40, 87.3365)], "the loss is stuck at 87.3365 at iteration 40"),
        (
            [(20 * number, 6.908) for number in range(20)],
            "the loss has stayed at ln(1000) = 6.908 for an epoch: the net is only guessing;"
            " check labels, base_lr and mean",
        ),
    ],
)
def test_a_loss_that_shows_no_learning_rings(losses: list[tuple[int, float]], text: str) -> None:
    assert watch(summarize(losses)) == (text,)


def test_a_log_without_news_rings_after_five_times_its_usual_pause() -> None:
    assert watch(summarize(FALLING, seconds=20), 99.0) == ()
    assert watch(summarize(FALLING, seconds=20), 100.0) == (
        "stalled: no loss in the log for 1 min 40 s; usually there is one every 20 s",
    )


def test_a_log_that_has_paused_as_long_before_is_not_stalled() -> None:
    assert watch(summarize(FALLING, slow=1, seconds=100), 599.0) == ()
    assert watch(summarize(FALLING, slow=1, seconds=100), 600.0) != ()


def test_a_phase_that_is_trained_to_its_end_is_not_stalled_while_its_snapshot_is_fetched() -> None:
    assert watch(summarize([(0, 7.0), (STEPS[0].last_iter, 2.0)]), 3600.0) == ()


def test_before_the_first_loss_a_stall_takes_ten_minutes() -> None:
    assert watch(LogSummary(), 599.0) == ()
    assert watch(LogSummary(), 600.0) == ("stalled: no loss in the log for 10 min 00 s",)


def test_a_late_rank_is_named_with_its_host() -> None:
    late = 380 - 3 * STEPS[0].display_iter
    shown = {**dict.fromkeys(range(128), 380), 7: late}
    assert watch(summarize(FALLING), shown=shown, hosts=HOSTS) == (
        f"rank 7 on c401-003 is late: at iteration {late} when others are at 380",
    )


def test_a_rank_that_prints_a_moment_later_is_not_late() -> None:
    assert watch(summarize(FALLING), shown={0: 380, 1: 380 - STEPS[0].display_iter}, hosts=HOSTS) == ()


def test_ranks_of_which_only_the_first_prints_are_not_late() -> None:
    assert watch(summarize(FALLING), shown={**dict.fromkeys(range(1, 128), 0), 0: 380}, hosts=HOSTS) == ()


def test_a_speed_that_has_fallen_rings_and_one_slow_display_does_not() -> None:
    assert watch(summarize(FALLING, slow=1)) == ()
    step = STEPS[0].images_per_iter
    assert watch(summarize(FALLING, slow=3)) == (
        f"throughput fell: {20 * step / 30:,.0f} images/s, and usually {20 * step / 10:,.0f} in this phase",
    )


def test_hosts_that_launches_ended_for_are_named() -> None:
    assert watch(summarize(FALLING), blamed=["c401-009"]) == ("launches ended because of c401-009",)


@pytest.mark.parametrize(("accuracy", "rings"), [(0.70, True), (0.758, False), (0.763, False)])
def test_an_accuracy_below_the_source_s_rings_at_the_end_of_the_recipe(accuracy: float, rings: bool) -> None:
    recipe = RECIPE.model_copy(update={"reported": Reported(top1_percent=76.0)})
    last = STEPS[-1]
    summary = summarize([(last.last_iter - 20, 1.0), (last.last_iter, 0.9)])
    for text in (
        f"Iteration {last.last_iter}, Testing net (#0)",
        f"    Test net output #0: loss3/top-1 = {accuracy}",
    ):
        summary.feed(f"I1120 11:49:33.000000  6374 solver.cpp:312] {text}")
    found = find_alarms(WatchedTraining(recipe, last, summary))
    assert any(text.startswith("top-1 is 70.00% after ") for text in found) is rings
    assert find_alarms(WatchedTraining(recipe, STEPS[0], summary)) == ()  # long before the end
