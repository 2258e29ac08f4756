"""Our own run.sh, which is read as any script is."""

from __future__ import annotations

from pathlib import Path

import pytest

from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.recipe.translate import translate
from caffe_recipes.render.recipe_files import generate
from caffe_recipes.review.lint.folders import lint_targets
from caffe_recipes.review.lint.inputs import LintOptions
from caffe_recipes.review.lint.scripts import parse_script

NAMES = ("digits-local", "stampede2-64n-72ep", "stampede2-448n-90ep")


def script_of(name: str) -> str:
    return next(text for path, text in generate(load_recipe(name)).items() if path.endswith("run.sh"))


@pytest.mark.parametrize("name", NAMES)
def test_its_phases_are_the_recipe_s(name: str) -> None:
    recipe = load_recipe(name)
    script = parse_script(script_of(name), "run.sh")
    assert [Path(one.solver).stem for one in script.trainings] == [
        f"solver_{phase.name}" for phase in recipe.phases
    ]
    assert [one.ranks for one in script.trainings] == [recipe.cluster.ranks] * len(recipe.phases)
    assert script.ranks == recipe.cluster.ranks
    assert script.trainings[0].weights == ""
    assert all(one.weights for one in script.trainings[1:])
    assert len(script.tested) == 1


def test_a_folder_that_it_is_of_is_understood_whole(tmp_path: Path) -> None:
    for path, text in generate(load_recipe("stampede2-448n-90ep")).items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    folder = tmp_path / "prototxt" / "stampede2-448n-90ep"
    script = tmp_path / "jobs" / "stampede2-448n-90ep" / "run.sh"
    found = lint_targets([str(folder)], LintOptions(script=script))
    assert [one.id for one in found if one.severity != "note"] == ["warmup-end-jump", "join-jump"]
    assert "order-guessed" not in [one.id for one in found]
    (join,) = [one for one in found if one.id == "join-jump"]
    assert join.what.endswith("0.24 (at iteration 7638) to 0.254")


def test_each_model_of_several_is_evaluated() -> None:
    script = parse_script(script_of("digits-cyclic"), "run.sh")
    assert [one.weights for one in script.evaluations] == [
        f"digits_cyclic_collapse{number}_iter_90.caffemodel" for number in range(1, 6)
    ]
    assert script.tested == ("prototxt/digits-cyclic/train_val.prototxt",)


def test_a_phase_that_is_stopped_ends_there() -> None:
    recipe = translate(load_recipe("stampede2-64n-72ep"), "intel")
    text = next(text for path, text in generate(recipe).items() if path.endswith("run.sh"))
    script = parse_script(text)
    assert [step.stop_iter for step in script.trainings] == [phase.stop_iter for phase in recipe.phases]
    assert any(phase.stop_iter for phase in recipe.phases)
    assert {step.ranks for step in script.trainings} == {recipe.cluster.ranks}
