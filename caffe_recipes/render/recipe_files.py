"""The files that a recipe generates, as texts, and the paths of its prototxts."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable

from caffe_recipes.errors import RecipeError
from caffe_recipes.recipe.model import AnyRecipe, Recipe
from caffe_recipes.render.prototxts import render_net, render_solver


def generate(recipe: AnyRecipe) -> dict[str, str]:
    """Return the files of a recipe as {path: text}; paths are relative and use `/`.

    The same recipe gives the same bytes anywhere, and so do recipes of a family for a net that they share.
    Raises RecipeError or PrototxtError for a recipe whose net or schedule Caffe would refuse, or that
    generates two files with the same path.
    """
    from caffe_recipes.render.scripts import render_jobs, render_run_script  # a run needs no scripts

    if not isinstance(recipe, Recipe):
        return _render_horovod(recipe) | render_jobs(recipe)
    files = generate_prototxts(recipe)
    files[f"jobs/{recipe.name}/run.sh"] = render_run_script(recipe)
    return files | render_jobs(recipe) | _render_horovod(recipe)


def generate_prototxts(recipe: Recipe) -> dict[str, str]:
    """Return the solvers and nets of a recipe as {path: text}. Raises what `generate` raises."""
    files = {solver_file(recipe, phase.name): render_solver(recipe, phase) for phase in recipe.phases}
    for net in recipe.nets:
        path = net_file(recipe, net)
        if path in files:
            raise RecipeError(
                recipe.name, f"net '{net}' and a phase's solver are both {path}", "rename the net"
            )
        files[path] = render_net(recipe, net)
    return files


def _render_horovod(recipe: AnyRecipe) -> dict[str, str]:
    if recipe.tensorflow is None:
        return {}
    from caffe_recipes.render.horovod import render_horovod  # most recipes have no such run

    return render_horovod(recipe)


def solver_file(recipe: Recipe, phase: str) -> str:
    """Return the path at which a phase's solver is generated."""
    return f"prototxt/{recipe.name}/solver_{phase}.prototxt"


def net_file(recipe: Recipe, net: str) -> str:
    """Return the path at which a net is generated: in the folder of its recipe, or of the shared nets."""
    folder = posixpath.basename(recipe.nets_dir) if recipe.nets_dir else recipe.name
    return f"prototxt/{folder}/{net}.prototxt"


def placed_paths(recipe: Recipe) -> dict[str, str]:
    """Return {generated path: path under the Caffe root} for each prototxt of a recipe."""
    solvers = {solver_file(recipe, one.name): recipe.solver_path(one.name) for one in recipe.phases}
    return solvers | {net_file(recipe, net): recipe.net_path(net) for net in recipe.nets}


def generate_all(recipes: Iterable[AnyRecipe]) -> dict[str, str]:
    """Return the files of several recipes as {path: text}; shared files appear once.

    Raises RecipeError if two recipes have the same name, and so the same folder, or generate a shared file
    differently.
    """
    files: dict[str, str] = {}
    names: set[str] = set()
    for recipe in recipes:
        if recipe.name in names:
            raise RecipeError("", f"two recipes are called '{recipe.name}'", "rename one, or list it once")
        names.add(recipe.name)
        own = generate(recipe)
        for path in own.keys() & files.keys():
            if own[path] != files[path]:
                what = f"generates a different {path} from an earlier recipe"
                raise RecipeError(recipe.name, what, "give it a different `nets_dir`")
        files |= own
    return files
