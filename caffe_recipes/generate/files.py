"""Recipe -> {path: text}: everything that is committed and reviewed."""

from __future__ import annotations

import posixpath
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

    The same recipe gives the same bytes anywhere, and so do recipes of a family for a net that they share.
    Raises RecipeError or PrototxtError for a recipe whose net or schedule Caffe would refuse, or that makes
    two files of one name.
    """
    files: dict[str, str] = {}
    for phase in recipe.phases:
        files[solver_file(recipe, phase.name)] = render_solver(recipe, phase)
    for net in recipe.nets:
        path = net_file(recipe, net)
        if path in files:
            raise RecipeError(
                recipe.name, f"net '{net}' and a phase's solver are both {path}", "rename the net"
            )
        files[path] = render_net(recipe, net)
    files[f"jobs/{recipe.name}/run.sh"] = render_run_script(recipe)
    return files | render_jobs(recipe) | render_horovod(recipe)


def solver_file(recipe: Recipe, phase: str) -> str:
    """Return the path at which a phase's solver is generated."""
    return f"prototxt/{recipe.name}/solver_{phase}.prototxt"


def net_file(recipe: Recipe, net: str) -> str:
    """Return the path at which a net is generated: in a folder of shared nets, which is called as theirs."""
    folder = posixpath.basename(recipe.nets_dir) if recipe.nets_dir else recipe.name
    return f"prototxt/{folder}/{net}.prototxt"


def placed_paths(recipe: Recipe) -> dict[str, str]:
    """Return where each generated prototxt is to lie under the Caffe root, by the path of its file."""
    solvers = {solver_file(recipe, one.name): recipe.solver_path(one.name) for one in recipe.phases}
    return solvers | {net_file(recipe, net): recipe.net_path(net) for net in recipe.nets}


def generate_all(recipes: Iterable[Recipe]) -> dict[str, str]:
    """Return the files of several recipes, those that they share once.

    Raises RecipeError where two have one name, and so one folder, or share a file that they do not agree on.
    """
    files: dict[str, str] = {}
    names: set[str] = set()
    for recipe in recipes:
        if recipe.name in names:
            raise RecipeError("", f"two recipes are called '{recipe.name}'", "rename one, or give it once")
        names.add(recipe.name)
        own = generate(recipe)
        for path in own.keys() & files.keys():
            if own[path] != files[path]:
                what = f"makes another {path} than a recipe before it"
                raise RecipeError(recipe.name, what, "give it a `nets_dir` of its own")
        files |= own
    return files
