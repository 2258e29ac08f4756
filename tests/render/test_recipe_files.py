"""generate(recipe): one dictionary of texts, the same anywhere, without side effects."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import caffe_recipes as cr
from caffe_recipes.errors import RecipeError
from caffe_recipes.recipe.model import Recipe
from caffe_recipes.recipe.shipped import shipped_recipes
from caffe_recipes.recipe.source import load_any_recipe
from caffe_recipes.render.headers import is_generated, is_shared
from caffe_recipes.render.horovod import render_horovod
from caffe_recipes.render.recipe_files import generate_all, net_file
from tests.shipped import COMMITTED, OF_CAFFE

MakeRecipe = Callable[..., Recipe]
ROOT = Path(__file__).resolve().parent.parent.parent


def test_the_package_s_generate_is_the_function_before_and_after_its_import() -> None:
    recipe = cr.load_recipe("digits-local")
    assert cr.generate(recipe) == cr.generate(recipe) == generate_all([recipe])


@pytest.mark.parametrize("name", OF_CAFFE)
def test_a_recipe_makes_a_file_for_each_phase_and_net_a_script_and_its_jobs(name: str) -> None:
    recipe = cr.load_recipe(name)
    solvers = {f"prototxt/{name}/solver_{phase.name}.prototxt" for phase in recipe.phases}
    nets = {net_file(recipe, net) for net in recipe.nets}
    scripts = {f"jobs/{name}/{file}" for file in ("run.sh", "chain.sbatch", "phase.sbatch", "submit.sh")}
    if recipe.tensorflow:
        scripts |= {f"jobs/{name}/tf_train.sbatch"} | set(render_horovod(recipe))
    assert set(cr.generate(recipe)) == solvers | nets | scripts


@pytest.mark.parametrize("name", shipped_recipes())
def test_every_file_names_its_generator_and_the_command_that_regenerates_it(name: str) -> None:
    for text in cr.generate(load_any_recipe(name)).values():
        assert is_generated(text)
        assert f"`caffe-recipes generate {'NAME' if is_shared(text) else name}`" in text
        assert text.endswith("\n")


def test_a_user_s_recipe_is_regenerated_from_its_file(make_recipe: MakeRecipe) -> None:
    files = cr.generate(make_recipe(lambda raw: raw.update(name="mine")))
    assert files
    assert all("`caffe-recipes generate mine.yaml`" in text for text in files.values())


@pytest.mark.parametrize("name", COMMITTED)
def test_the_committed_files_are_what_the_recipe_generates(name: str) -> None:
    for path, text in cr.generate(cr.load_recipe(name)).items():
        assert (ROOT / path).read_text() == text


def test_another_folder_locale_and_hash_seed_give_the_same_bytes(tmp_path: Path) -> None:
    code = (
        "import sys, caffe_recipes as cr; files = cr.generate(cr.load_recipe('digits-local')); "
        "sys.stdout.buffer.write(repr(sorted(files.items())).encode('utf-8'))"
    )
    environment = {"PYTHONHASHSEED": "7", "LC_ALL": "C", "TZ": "Asia/Tokyo", "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, check=True
    )
    assert done.stdout.decode() == repr(sorted(cr.generate(cr.load_recipe("digits-local")).items()))
    assert not list(tmp_path.iterdir())


def test_no_path_of_this_machine_is_in_any_file() -> None:
    for name in shipped_recipes():
        for text in cr.generate(load_any_recipe(name)).values():
            assert str(ROOT) not in text
            assert str(Path.home()) not in text


def test_a_net_and_a_solver_of_one_file_name_are_refused(make_recipe: MakeRecipe) -> None:
    recipe = make_recipe(lambda raw: raw["nets"].update(solver_init=raw["nets"]["train_val"]))
    with pytest.raises(
        RecipeError, match="net 'solver_init' and a phase's solver are both prototxt/digits-local"
    ):
        cr.generate(recipe)


def test_two_recipes_of_one_name_are_refused() -> None:
    recipe = cr.load_recipe("digits-local")
    with pytest.raises(RecipeError, match="two recipes are called 'digits-local'; rename one"):
        generate_all([recipe, recipe])


def test_two_recipes_that_share_a_folder_of_nets_have_to_agree_on_them(make_recipe: MakeRecipe) -> None:
    def make(name: str, classes: int) -> Recipe:
        return make_recipe(
            lambda raw: (raw.update(name=name, nets_dir="models/shared"), raw["net"].update(classes=classes))
        )

    files = generate_all([make("a", 10), make("b", 10)])
    assert [path for path in files if "/train_val" in path] == [
        "prototxt/shared/train_val.prototxt",
        "prototxt/shared/train_val_noaug.prototxt",
    ]
    with pytest.raises(
        RecipeError, match=r"b: generates a different prototxt/shared/train_val.* different `nets_dir`"
    ):
        generate_all([make("a", 10), make("b", 11)])
