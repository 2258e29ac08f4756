"""The plan of a run: what a recipe's chain comes down to, as values. Paths are from the Caffe root."""

from __future__ import annotations

from collections.abc import Sequence

from caffe_recipes.cluster.launcher import RankLaunch, mlsl_environment, thread_environment
from caffe_recipes.cluster.profiles import Profile
from caffe_recipes.errors import InputError
from caffe_recipes.recipe.model import AnyRecipe
from caffe_recipes.run.steps import RunPlan, Training
from caffe_recipes.run.trainer import find_trainer
from caffe_recipes.wording import did_you_mean


def plan_chain(recipe: AnyRecipe, folder: str, until: str | None = None) -> RunPlan:
    """Plan a run whose folder is `folder`: each phase starts from a fetched snapshot of an earlier one.

    `until` is the phase to stop after; the evaluations come when all are finished. Raises InputError.
    """
    trainer, steps = find_trainer(recipe), plan_steps(recipe, folder, until)
    is_whole = len(steps) == len(plan_steps(recipe))
    return RunPlan(trainer.files(), steps, trainer.testings(folder) if is_whole else ())


def plan_steps(recipe: AnyRecipe, folder: str = "", until: str | None = None) -> tuple[Training, ...]:
    """Return the steps of a run up to and with one, all without.

    Raises InputError for a name that no step has.
    """
    steps = find_trainer(recipe).steps(folder)
    if until is None:
        return steps
    names = [step.phase for step in steps]
    if until not in names:
        hint = f"{did_you_mean(until, names)} there are {', '.join(names)}".lstrip()
        raise InputError("--until", f"no phase '{until[:80]}' in {recipe.name}", hint)
    return steps[: names.index(until) + 1]


def find_step(recipe: AnyRecipe, phase: str, folder: str = "") -> Training:
    """Return the step of that name; KeyError if there is none."""
    return {step.phase: step for step in plan_steps(recipe, folder)}[phase]


def plan_files(recipe: AnyRecipe) -> dict[str, str]:
    """Return the texts that are placed under the Caffe root, by path."""
    return find_trainer(recipe).files()


def plan_launch(
    recipe: AnyRecipe, profile: Profile, hosts: Sequence[str], hostfile: str, path: str = ""
) -> RankLaunch:
    """Return how a recipe's ranks are started; what the recipe says comes before what the profile says."""
    cluster, launcher = recipe.cluster, profile.launcher
    servers = mlsl_environment(*find_servers(recipe, profile))
    return RankLaunch(
        program=launcher.program,
        hosts=tuple(hosts),
        ranks_per_node=cluster.ranks_per_node,
        hostfile=hostfile,
        options=launcher.options,
        variables=thread_environment(cluster.omp_num_threads, cluster.kmp_affinity or profile.kmp_affinity),
        environment={**launcher.environment, **servers},
        modules=profile.modules,
        path=path,
        container=profile.container,
    )


def find_servers(recipe: AnyRecipe, profile: Profile) -> tuple[int | None, tuple[int, ...]]:
    """Return a rank's number of MLSL servers and their cores: what the recipe leaves open, by the profile."""
    given = [mlsl for mlsl in (recipe.cluster.mlsl, profile.mlsl) if mlsl]
    number = next((mlsl.num_servers for mlsl in given if mlsl.num_servers), None)
    return number, next((mlsl.server_affinity for mlsl in given if mlsl.server_affinity), ())
