"""Choose what a recipe leaves to the machine: the threads of a rank, and the GPUs that PyTorch finds.

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
    """Return the setting with the threads and the GPUs that its recipe leaves open; its first host is asked.

    Nothing is chosen on a host that does not answer, which the preflight reports.
    """
    recipe, chosen = setting.recipe, Chosen()
    try:
        if recipe.cluster.omp_num_threads is None:
            facts = ask_facts(setting.hosts[0], ())
            cores = min(facts.usable, facts.processors.cores)
            chosen = replace(chosen, threads=max(cores // recipe.cluster.ranks_per_node, 1))
        if recipe.chooses_device:
            found = _find_gpus(setting)
            chosen = replace(chosen, chooses_device=True)
            if found:  # each rank of a host takes one, so more GPUs than ranks would stop caffe-torch
                gpus = min(len(found), recipe.cluster.ranks_per_node)
                chosen = replace(chosen, gpu=found[0][0], gpu_name=found[0][1], gpus=gpus)
    except ClusterError:
        return setting
    environment = {**setting.environment, **thread_environment(chosen.threads)}
    return replace(setting, recipe=_with_threads(recipe, chosen), environment=environment, chosen=chosen)


def _find_gpus(setting: RunSetup) -> list[tuple[int, str]]:
    """Return the numbers, from 0 on, and the names of the GPUs that caffe-torch can use."""
    done = setting.hosts[0].run(setting.trainer_argv(("device_query",)), _QUERY_S)
    return [(int(number), printable(name)) for number, name in _GPU.findall(done.stdout)]


def _with_threads(recipe: AnyRecipe, chosen: Chosen) -> AnyRecipe:
    if chosen.threads is None:
        return recipe
    cluster = recipe.cluster.model_copy(update={"omp_num_threads": chosen.threads})
    return recipe.model_copy(update={"cluster": cluster})
