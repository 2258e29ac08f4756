"""Find the trainer of a recipe, and derive the plan of a run. Paths are relative to the Caffe root."""

from __future__ import annotations

from collections.abc import Sequence

from caffe_recipes.cluster.launchers.launcher import RankLaunch, mlsl_environment, thread_environment
from caffe_recipes.cluster.profiles import Profile
from caffe_recipes.errors import InputError
from caffe_recipes.recipe.model import AnyRecipe, TensorFlowRecipe
from caffe_recipes.run.trainer import Trainer, Training, TrainingPlan
from caffe_recipes.wording import did_you_mean


def find_trainer(recipe: AnyRecipe) -> Trainer:
    """Return the trainer of a recipe."""
    if isinstance(recipe, TensorFlowRecipe):  # imported here, since a run needs one of the two
        from caffe_recipes.run.tensorflow import TensorFlow

        return TensorFlow(recipe)
    from caffe_recipes.run.caffe import Caffe

    return Caffe(recipe)


def plan_training(recipe: AnyRecipe, folder: str, until: str | None = None) -> TrainingPlan:
    """Return the plan of a run whose folder is `folder`, up to and including the phase `until`.

    A phase starts from the fetched snapshot of an earlier one. Evaluations are planned only if all phases
    are. Raises InputError if there is no phase `until`.
    """
    trainer, steps = find_trainer(recipe), plan_steps(recipe, folder, until)
    is_whole = len(steps) == len(plan_steps(recipe))
    return TrainingPlan(trainer.files(), steps, trainer.testings(folder) if is_whole else ())


def plan_steps(recipe: AnyRecipe, folder: str = "", until: str | None = None) -> tuple[Training, ...]:
    """Return the trainings of a run up to and including the phase `until`; all of them if it is None.

    Raises InputError if there is no such phase.
    """
    steps = find_trainer(recipe).steps(folder)
    if until is None:
        return steps
    names = [step.phase for step in steps]
    if until not in names:
        hint = f"{did_you_mean(until, names)} the phases are {', '.join(names)}".lstrip()
        raise InputError("--until", f"no phase '{until[:80]}' in {recipe.name}", hint)
    return steps[: names.index(until) + 1]


def find_step(recipe: AnyRecipe, phase: str, folder: str = "") -> Training:
    """Return the training of a phase. Raises KeyError if there is no such phase."""
    return {step.phase: step for step in plan_steps(recipe, folder)}[phase]


def plan_files(recipe: AnyRecipe) -> dict[str, str]:
    """Return the files that a run writes under the Caffe root: {path: text}."""
    return find_trainer(recipe).files()


def bind_ranks(profile: Profile, recipe: AnyRecipe) -> Profile:
    """Return the profile with the launcher's option that binds each of several ranks on a node to a socket.

    Only if the trainer's ranks do not pin their threads themselves, and the profile's options bind none.
    """
    launcher, option = profile.launcher, profile.rank_launcher.bind_option
    is_bound = any("-bind" in each for each in launcher.options) or find_trainer(recipe).pins_threads
    if is_bound or not option or recipe.cluster.ranks_per_node == 1:
        return profile
    options = (*launcher.options, option)
    return profile.model_copy(update={"launcher": launcher.model_copy(update={"options": options})})


def plan_launch(
    recipe: AnyRecipe, profile: Profile, hosts: Sequence[str], hostfile: str, path: str
) -> RankLaunch:
    """Return how a recipe's ranks are started. The recipe's settings override the profile's."""
    cluster, launcher = recipe.cluster, profile.launcher
    servers = mlsl_environment(*find_servers(recipe, profile))
    return RankLaunch(
        launcher=profile.rank_launcher,
        hosts=tuple(hosts),
        ranks_per_node=cluster.ranks_per_node,
        hostfile=hostfile,
        options=launcher.options,
        variables=thread_environment(cluster.omp_num_threads, cluster.kmp_affinity or profile.kmp_affinity),
        environment={**launcher.environment, **servers},
        modules=profile.modules,
        path=path,
        container=profile.container.words if profile.container else (),
    )


def find_servers(recipe: AnyRecipe, profile: Profile) -> tuple[int | None, tuple[int, ...]]:
    """Return the number of MLSL servers per rank and their cores. The recipe overrides the profile."""
    given = [mlsl for mlsl in (recipe.cluster.mlsl, profile.mlsl) if mlsl]
    number = next((mlsl.num_servers for mlsl in given if mlsl.num_servers is not None), None)
    if number == 0:
        return 0, ()
    return number, next((mlsl.server_affinity for mlsl in given if mlsl.server_affinity), ())
