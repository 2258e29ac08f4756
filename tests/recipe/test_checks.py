"""Parts of a recipe that contradict each other: the snapshot that a phase starts from."""

from __future__ import annotations

from pathlib import Path

import pytest

from caffe_recipes.errors import RecipeError
from caffe_recipes.recipe.model import Phase
from caffe_recipes.recipe.shipped import shipped_recipes
from caffe_recipes.recipe.source import parse_recipe

BRANCHED = shipped_recipes()["stampede2-448n-90ep"].file.read_text("utf-8")


def refuse(text: str) -> RecipeError:
    with pytest.raises(RecipeError) as caught:
        parse_recipe(text, "mine.yaml", Path())
    return caught.value


def changed(old: str, new: str) -> str:
    assert BRANCHED.count(old) == 1
    return BRANCHED.replace(old, new)


def test_a_phase_may_start_from_any_snapshot_of_an_earlier_one_and_from_its_last() -> None:
    for iteration in (402, 7638, 8040):
        recipe = parse_recipe(changed("weights_iter: 7638", f"weights_iter: {iteration}"), "a.yaml", Path())
        assert recipe.phases[1].weights_iter == iteration
    odd_end = changed("weights_iter: 7638", "weights_iter: 8100").replace("max_iter: 8040", "max_iter: 8100")
    assert parse_recipe(odd_end, "a.yaml", Path()).phases[0].last_iter == 8100


@pytest.mark.parametrize(
    ("iteration", "what", "hint"),
    [
        (7650, "phase 'main' snapshots every 402 iterations, not at 7650", "take 7638"),
        (7900, "phase 'main' snapshots every 402 iterations, not at 7900", "take 8040"),
        (1, "phase 'main' snapshots every 402 iterations, not at 1", "take 402"),
        (8442, "phase 'main' ends at iteration 8040, before 8442", "take 8040"),
    ],
)
def test_an_iteration_without_a_snapshot_is_refused_with_the_nearest_that_has_one(
    iteration: int, what: str, hint: str
) -> None:
    error = refuse(changed("weights_iter: 7638", f"weights_iter: {iteration}"))
    line = BRANCHED[: BRANCHED.index("weights_iter:")].count("\n") + 1
    assert str(error) == f"mine.yaml:{line}: phases[1].weights_iter: {what}; {hint}"


def test_a_phase_that_is_stopped_has_no_snapshots_past_its_stop() -> None:
    text = changed("max_iter: 8040", "max_iter: 8040\n    stop_iter: 4020")
    assert "phase 'main' ends at iteration 4020, before 7638; take 4020" in str(refuse(text))


@pytest.mark.parametrize("weights", ["none", "given.caffemodel"])
def test_an_iteration_of_what_is_no_phase_is_refused(weights: str) -> None:
    error = refuse(changed("weights_iter: 7638", f"weights: {weights}\n    weights_iter: 7638"))
    assert f"phase 'collapse' starts from '{weights}', no earlier phase; remove it" in str(error)


def test_the_first_phase_has_no_iteration_to_start_from() -> None:
    error = refuse(changed("  - name: main\n", "  - name: main\n    weights_iter: 402\n"))
    assert "phases[0].weights_iter: phase 'main' starts from its fillers, no earlier phase" in str(error)


@pytest.mark.parametrize("stop", [8040, 9000, 403])
def test_a_stop_is_before_the_end_and_has_a_snapshot(stop: int) -> None:
    error = refuse(changed("max_iter: 8040", f"max_iter: 8040\n    stop_iter: {stop}"))
    assert "stop_iter is an iteration before max_iter at which a snapshot fires" in str(error)


def test_two_snapshots_that_the_chain_keeps_never_share_a_name() -> None:
    one = changed("/tmp/resnet_50_448nodes_coll", "/scratch/resnet_50_448nodes").replace(
        "max_iter: 402", "max_iter: 7638"
    )
    what = "phases[1].snapshot_prefix: a snapshot of another phase is called resnet_50_448nodes_iter_7638"
    assert what in str(refuse(one))


def test_what_a_phase_needs_of_the_solver_block_is_inherited() -> None:
    recipe = parse_recipe(BRANCHED, "mine.yaml", Path())
    assert [phase.snapshot_every_iter for phase in recipe.phases] == [402, 402]
    assert all(isinstance(phase, Phase) for phase in recipe.phases)


def test_the_steps_of_tensorflow_are_the_iterations_of_the_phases() -> None:
    text = shipped_recipes()["tf-256n-90ep"].file.read_text("utf-8").replace("steps: 4680", "steps: 4681")
    what = "schedule.steps: 4,681 steps, and the phases make 4,680 iterations; make them equal"
    with pytest.raises(RecipeError, match=what):
        parse_recipe(text, "tf.yaml", Path())


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        (
            "  mean_value:",
            "  mean_file: mean.binaryproto\n  mean_value:",
            "data.mean_file: train has a mean_file and a mean_value, and Caffe subtracts only one mean; "
            "remove one, or give each under `train` or `test`",
        ),
        (
            "  test:\n",
            "  test:\n    mean_file: mean.binaryproto\n",
            "data.test.mean_file: test has a mean_file and a mean_value",
        ),
        (
            "  mean_value:",
            "  force_color: true\n  force_gray: true\n  mean_value:",
            "data.force_color: train has force_color and force_gray; remove one",
        ),
        (
            "  test:\n",
            "  test:\n    mean_value: [1, 2]\n",
            "data.test.mean_value: one value, or one for each of blue, green and red; write three numbers",
        ),
        (
            "  test:\n",
            "  test:\n    crop_size: 20\n",
            "data.test.crop_size: train has 224 and test 20, and a builder's net has one size; "
            "give one crop_size under `data`",
        ),
    ],
)
def test_transformations_that_caffe_would_stop_at_are_refused(old: str, new: str, what: str) -> None:
    assert what in str(refuse(changed(old, new)))
