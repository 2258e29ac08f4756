"""Choose what a recipe leaves to the machine: the threads of a rank, and a GPU if PyTorch finds one.

So a recipe stays the same on every machine. Each start of a run chooses again, and records it as an event.
"""

from __future__ import annotations

import re
from dataclasses import replace

from caffe_recipes.cluster.launchers.launcher import thread_environment
from caffe_recipes.errors import ClusterError
from caffe_recipes.recipe.model import AnyRecipe
from caffe_recipes.run.context import RunSetup
from caffe_recipes.run.events import Chosen
from caffe_recipes.run.preflight.nodes import ask_facts
from caffe_recipes.wording import printable

_QUERY_S = 60.0  # PyTorch may be on a slow disk
_GPU = re.compile(r"^GPU (\d{1,3}): (.{1,200})$", re.MULTILINE)


def choose_for_machine(setting: RunSetup) -> RunSetup:
    """Return the setting with the threads and the GPU that its recipe leaves open; its first host is asked.

    Nothing is chosen on a host that does not answer, which the preflight reports.
    """
    recipe, chosen = setting.recipe, Chosen()
    try:
        if recipe.cluster.omp_num_threads is None:
            facts = ask_facts(setting.hosts[0], ())
            cores = min(facts.usable, facts.processors.cores)
            chosen = replace(chosen, threads=max(cores // recipe.cluster.ranks_per_node, 1))
        if recipe.chooses_device:
            gpu, name = _find_gpu(setting)
            chosen = replace(chosen, chooses_device=True, gpu=gpu, gpu_name=name)
    except ClusterError:
        return setting
    environment = {**setting.environment, **thread_environment(chosen.threads)}
    return replace(setting, recipe=_with_threads(recipe, chosen), environment=environment, chosen=chosen)


def _find_gpu(setting: RunSetup) -> tuple[int | None, str]:
    """Return the number and the name of the first GPU that caffe-torch can use; None and "" without one."""
    done = setting.hosts[0].run(setting.trainer_argv(("device_query",)), _QUERY_S)
    found = _GPU.search(done.stdout)
    return (int(found[1]), printable(found[2])) if found else (None, "")


def _with_threads(recipe: AnyRecipe, chosen: Chosen) -> AnyRecipe:
    if chosen.threads is None:
        return recipe
    cluster = recipe.cluster.model_copy(update={"omp_num_threads": chosen.threads})
    return recipe.model_copy(update={"cluster": cluster})
