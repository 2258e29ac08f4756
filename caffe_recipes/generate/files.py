"""Recipe -> {path: text}: everything that is committed and reviewed."""

from __future__ import annotations

from collections.abc import Iterable

from caffe_recipes.errors import RecipeError
from caffe_recipes.generate.horovod import render_horovod
from caffe_recipes.generate.jobs import render_jobs
from caffe_recipes.generate.nets import render_net
from caffe_recipes.generate.scripts import render_run_script
from caffe_recipes.generate.solvers import render_solver
from caffe_recipes.recipe.model import Recipe


def generate(recipe: Recipe) -> dict[str, str]:
    """Return the text of each file of a recipe by its path, with `/`, from the folder that holds them all.

    The same recipe gives the same bytes anywhere. Raises RecipeError or PrototxtError for a recipe whose net
    or schedule Caffe would refuse, or that makes two files of one name.
    """
    folder = f"prototxt/{recipe.name}"
    files: dict[str, str] = {}
    for phase in recipe.phases:
        files[f"{folder}/solver_{phase.name}.prototxt"] = render_solver(recipe, phase)
    for net in recipe.nets:
        path = f"{folder}/{net}.prototxt"
        if path in files:
            raise RecipeError(
                recipe.name, f"net '{net}' and a phase's solver are both {path}", "rename the net"
            )
        files[path] = render_net(recipe, net)
    files[f"jobs/{recipe.name}/run.sh"] = render_run_script(recipe)
    return files | render_jobs(recipe) | render_horovod(recipe)


def generate_all(recipes: Iterable[Recipe]) -> dict[str, str]:
    """Return the files of several recipes; RecipeError where two have one name, and so one folder."""
    files: dict[str, str] = {}
    names: set[str] = set()
    for recipe in recipes:
        if recipe.name in names:
            raise RecipeError("", f"two recipes are called '{recipe.name}'", "rename one, or give it once")
        names.add(recipe.name)
        files |= generate(recipe)
    return files
