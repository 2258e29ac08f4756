"""The text of a recipe's Slurm jobs."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from caffe_recipes.recipe.model import Recipe
from caffe_recipes.recipe.source import load_any_recipe, load_recipe
from caffe_recipes.render.scripts import render_jobs
from tests.render.test_scripts import HOSTILE, SHIPPED, check_bash, hostile_recipe, stopped_recipe

MakeRecipe = Callable[..., Recipe]
RECIPES = {
    **{name: load_recipe(name) for name in SHIPPED},
    "hostile": hostile_recipe(),
    "stopped": stopped_recipe(),
}


def directives(text: str) -> dict[str, str]:
    """Return what sbatch reads: the lines up to the first that is not a comment."""
    head = text.partition("\n\n")[0]
    lines = re.findall(r"^#SBATCH (.*)$", head, re.MULTILINE)
    assert text.count("\n#SBATCH") == len(lines)
    words = [word.removeprefix("--").partition("=") for line in lines for word in line.split()]
    return {name: value for name, _, value in words}


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_the_jobs_are_clean_bash(recipe: Recipe) -> None:
    for text in render_jobs(recipe).values():
        check_bash(text)


def test_a_hostile_title_is_a_comment_and_no_directive() -> None:
    title = "SBATCH --nodes=1 #SBATCH --nodes=2"
    for path, text in render_jobs(RECIPES["hostile"].model_copy(update={"title": title})).items():
        assert f"\n# {title}\n" in text
        assert path.endswith(".sh") or directives(text)["nodes"] == "64"
    assert any(f"\n# {HOSTILE}\n" in text for text in render_jobs(RECIPES["hostile"]).values())


def test_the_chain_asks_for_the_recipe_s_machine_and_its_time() -> None:
    text = render_jobs(RECIPES["stampede2-64n-72ep"])["jobs/stampede2-64n-72ep/chain.sbatch"]
    assert directives(text) == {
        "job-name": "stampede2-64n-72ep",
        "nodes": "64",
        "ntasks-per-node": "2",
        "cpus-per-task": "22",
        "exclusive": "",
        "time": "05:30:00",
        "signal": "B:USR1@600",
        "requeue": "",
        "open-mode": "append",
        "output": "%x-%j.out",
    }
    assert "STOP_GRACE_S" not in text


def test_a_tensorflow_run_beside_phases_has_its_own_job_and_time() -> None:
    recipe = load_recipe("tf-256n-90ep")
    text = render_jobs(recipe)["jobs/tf-256n-90ep/tf_train.sbatch"]
    found = directives(text)
    assert found["job-name"] == "tf-256n-90ep-tensorflow"
    # 4,680 steps of 24,576 images and 50,000 tested by one of 512 ranks in a third of the time, at 16,400
    # images/s; a fifth more.
    assert found["time"] == "02:40:00"
    assert 2.5 * 3600 < 1.2 * ((4680 * 24_576 + 50_000 * 512 / 3) / 16_400 + 420) < 2 * 3600 + 2400
    assert 'run "$recipe" --trainer tensorflow' in text
    assert "LMDB" not in text
    assert "Caffe " not in text


def test_no_job_of_a_recipe_that_tensorflow_trains_speaks_of_caffe() -> None:
    (text,) = render_jobs(load_any_recipe("tf-digits-local")).values()
    assert not re.search(r"\bCaffe\b", text)
    assert "for the trainer to exit" in text


def test_without_a_known_speed_the_partition_s_time_holds() -> None:
    for path, text in render_jobs(RECIPES["digits-local"]).items():
        if path.endswith(".sbatch"):
            found = directives(text)
            assert (found["nodes"], found["signal"]) == ("1", "B:USR1@120")
            assert not {"time", "exclusive"} & found.keys()
            assert "export STOP_GRACE_S=${STOP_GRACE_S:-60} #" in text


def test_phase_sbatch_requests_the_longest_time_and_submit_sh_that_of_each_phase() -> None:
    recipe = RECIPES["stampede2-64n-72ep"]
    files = {path.rpartition("/")[2]: text for path, text in render_jobs(recipe).items()}
    assert files.keys() == {"chain.sbatch", "phase.sbatch", "submit.sh"}
    steps = re.findall(r"^submit (\w+) (\d+) (\S+)$", files["submit.sh"], re.MULTILINE)
    assert [name for name, _, _ in steps] == [phase.name for phase in recipe.phases]
    assert all("00:10:00" < time < "03:00:00" for _, _, time in steps)
    assert directives(files["phase.sbatch"])["time"] == max(time for _, _, time in steps)
    assert ' --until "$phase" ' in files["phase.sbatch"]
    assert "--until" not in files["chain.sbatch"]


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_no_job_is_longer_than_a_page(recipe: Recipe) -> None:
    for path, text in render_jobs(recipe).items():
        most = 40 if path.endswith(".sbatch") else 60
        assert text.count("\n") <= most, path


def test_a_user_s_own_recipe_is_read_from_its_file(make_recipe: MakeRecipe) -> None:
    files = render_jobs(make_recipe(lambda raw: raw.update(name="mine")))
    assert "\nrecipe=mine.yaml " in files["jobs/mine/chain.sbatch"]
    assert "(default: mine.yaml)" in files["jobs/mine/chain.sbatch"]
    found, _, there = files["jobs/mine/chain.sbatch"].partition("\ncd -- ")
    assert 'recipe=$(realpath -m -- "${RECIPE_FILE:-$recipe}")' in found  # where the job is submitted
    assert '"$program" run "$recipe"' in there


def test_the_jobs_hold_nothing_of_the_generating_machine() -> None:
    for recipe in RECIPES.values():
        for text in render_jobs(recipe).values():
            assert str(Path(__file__).resolve().parents[2]) not in text
            assert str(Path.home()) not in text
