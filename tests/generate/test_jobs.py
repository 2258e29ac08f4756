"""The text of a recipe's Slurm jobs."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from caffe_recipes.recipe.model import Recipe
from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.render.scripts import render_jobs
from tests.generate.test_scripts import HOSTILE, SHIPPED, check_bash, hostile_recipe, stopped_recipe

MakeRecipe = Callable[..., Recipe]
RECIPES = {
    **{name: load_recipe(name) for name in SHIPPED},
    "hostile": hostile_recipe(),
    "stopped": stopped_recipe(),
}


def directives(text: str) -> dict[str, str]:
    """Return what sbatch reads: its lines up to the first that is no comment."""
    head = text.partition("\n\n")[0]
    found = re.findall(r"^#SBATCH --([a-z-]+)(?:=(.*))?$", head, re.MULTILINE)
    assert text.count("\n#SBATCH") == len(found)
    return dict(found)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_the_jobs_are_clean_bash(recipe: Recipe) -> None:
    for text in render_jobs(recipe).values():
        check_bash(text)
        if shutil.which("shellcheck") is None:
            continue
        done = subprocess.run(
            ["shellcheck", "-"],
            input=text,
            capture_output=True,
            text=True,
            check=False,
            env={"LC_ALL": "C.UTF-8", "PATH": "/usr/local/bin:/usr/bin:/bin"},
        )
        assert done.stdout == ""


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
        "time": "05:40:00",
        "signal": "B:USR1@600",
        "requeue": "",
        "open-mode": "append",
        "output": "%x-%j.out",
    }
    assert "STOP_GRACE_S" not in text


def test_without_a_known_speed_the_partition_s_time_holds() -> None:
    for path, text in render_jobs(RECIPES["digits-local"]).items():
        if path.endswith(".sbatch"):
            found = directives(text)
            assert (found["nodes"], found["signal"]) == ("1", "B:USR1@120")
            assert not {"time", "exclusive"} & found.keys()
            assert "export STOP_GRACE_S=${STOP_GRACE_S:-60}\n" in text


def test_there_is_a_job_a_phase_with_a_time_of_its_own_that_runs_up_to_it() -> None:
    recipe = RECIPES["stampede2-64n-72ep"]
    files = render_jobs(recipe)
    for number, phase in enumerate(recipe.phases, 1):
        text = files[f"jobs/{recipe.name}/phase-{number}-{phase.name}.sbatch"]
        found = directives(text)
        assert found["job-name"] == f"{recipe.name}-{phase.name}"
        assert "00:10:00" < found["time"] < "03:00:00"
        assert f' run "$recipe" --until {phase.name} "$@"' in text
    assert len(files) == len(recipe.phases) + 2


def test_phases_beyond_nine_keep_their_order_in_a_listing(make_recipe: MakeRecipe) -> None:
    def multiply(raw: dict[str, Any]) -> None:
        first = raw["phases"][0]
        raw["phases"] = [{**first, "name": f"p{at}", "snapshot_prefix": f"tmp/p{at}"} for at in range(10)]

    names = [path for path in render_jobs(make_recipe(multiply)) if "phase-" in path]
    assert len(names) == 10
    assert names == sorted(names)


def test_the_chain_and_a_phase_differ_in_directives_and_arguments_only() -> None:
    files = render_jobs(RECIPES["digits-local"])
    bodies = {
        text.partition("\n\nset -euo")[2].replace(f" --until {path.rpartition('-')[2][:-7]}", "")
        for path, text in files.items()
        if path.endswith(".sbatch")
    }
    assert len(bodies) == 1


def test_a_user_s_own_recipe_is_read_from_its_file(make_recipe: MakeRecipe) -> None:
    files = render_jobs(make_recipe(lambda raw: raw.update(name="mine")))
    assert " recipe=mine.yaml " in files["jobs/mine/chain.sbatch"]
    assert "(default: mine.yaml)" in files["jobs/mine/chain.sbatch"]


def test_nothing_of_the_machine_that_makes_them_is_in_them() -> None:
    for recipe in RECIPES.values():
        for text in render_jobs(recipe).values():
            assert str(Path(__file__).resolve().parents[2]) not in text
            assert str(Path.home()) not in text
