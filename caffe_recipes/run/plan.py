"""The plan of a run: what a recipe's chain comes down to, as values. Paths are from the Caffe root."""

from __future__ import annotations

import difflib
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.prototxt import digest, parse_prototxt
from caffe_recipes.cluster.launcher import RankLaunch, mlsl_environment, thread_environment
from caffe_recipes.cluster.profiles import Profile
from caffe_recipes.errors import InputError
from caffe_recipes.recipe.graph import find_evaluated, images_per_iter
from caffe_recipes.recipe.model import Phase, Recipe
from caffe_recipes.render.tree import generate, placed_paths

SOLVER = "--solver="


@dataclass(frozen=True)
class Training:
    """One phase: the trainer's arguments, and what it leaves on the first host.

    `needed` are snapshots on its way from which later phases start: where each lies, and where it is kept.
    `snapshots_at` are the iterations of those, and of the last one if Caffe is stopped there.
    """

    phase: str
    net: str
    arguments: tuple[str, ...]
    weights: str | None
    snapshot: str
    fetched: str
    last_iter: int
    is_stopped: bool
    images_per_iter: int
    snapshots: int
    needed: tuple[tuple[str, str], ...] = ()
    snapshots_at: tuple[int, ...] = ()

    @property
    def left(self) -> tuple[str, ...]:
        """What it leaves on the first host."""
        return (self.snapshot, *(path for path, _ in self.needed))

    @property
    def solver(self) -> str:
        """The path of its solver."""
        return next(word for word in self.arguments if word.startswith(SOLVER)).removeprefix(SOLVER)

    @property
    def kept(self) -> tuple[str, ...]:
        """Where its verified snapshots are kept."""
        return (self.fetched, *(kept for _, kept in self.needed))


@dataclass(frozen=True)
class Testing:
    """The evaluation of a phase's model, by one process on this machine."""

    phase: str
    net: str
    arguments: tuple[str, ...]
    weights: str
    iterations: int


@dataclass(frozen=True)
class RunPlan:
    """All that a run does once its data are in place."""

    prototxts: Mapping[str, str]
    trainings: tuple[Training, ...]
    testings: tuple[Testing, ...] = ()


def plan_chain(recipe: Recipe, folder: str, until: str | None = None) -> RunPlan:
    """Plan a run whose folder is `folder`: each phase starts from a fetched snapshot of an earlier one.

    `until` is the phase to stop after; the evaluations come when all are finished. Raises InputError.
    """
    phases = phases_until(recipe, until)
    trainings = tuple(_plan_phase(recipe, phase, folder) for phase in phases)
    testings = _plan_tests(recipe, folder) if phases == recipe.phases else ()
    return RunPlan(plan_prototxts(recipe), trainings, testings)


def phases_until(recipe: Recipe, until: str | None) -> tuple[Phase, ...]:
    """Return the phases up to and with one, all without; raises InputError for a name that no phase has."""
    names = [phase.name for phase in recipe.phases]
    if until is None:
        return recipe.phases
    if until not in names:
        near = difflib.get_close_matches(until, names, n=1)
        meant = f"did you mean '{near[0]}'? " if near else ""
        raise InputError(
            "--until", f"no phase '{until[:80]}' in {recipe.name}", f"{meant}there are {', '.join(names)}"
        )
    return recipe.phases[: names.index(until) + 1]


def plan_prototxts(recipe: Recipe) -> dict[str, str]:
    """Return the text of each prototxt by the path that the solvers and the trainer name."""
    files, placed = generate(recipe), placed_paths(recipe)
    return {placed[path]: text for path, text in files.items() if path in placed}


def digest_prototxts(recipe: Recipe, prototxts: Mapping[str, str]) -> dict[str, str]:
    """Return the digest of each prototxt's message, which no comment changes, by the prototxt's path."""
    solvers = {recipe.solver_path(phase.name) for phase in recipe.phases}
    digests = {}
    for path, text in prototxts.items():
        kind = pb.SolverParameter if path in solvers else pb.NetParameter
        digests[path] = digest(parse_prototxt(text, kind, path))
    return digests


def plan_launch(
    recipe: Recipe, profile: Profile, hosts: Sequence[str], hostfile: str, path: str = ""
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


def find_servers(recipe: Recipe, profile: Profile) -> tuple[int | None, tuple[int, ...]]:
    """Return a rank's number of MLSL servers and their cores: what the recipe leaves open, by the profile."""
    given = [mlsl for mlsl in (recipe.cluster.mlsl, profile.mlsl) if mlsl]
    number = next((mlsl.num_servers for mlsl in given if mlsl.num_servers), None)
    return number, next((mlsl.server_affinity for mlsl in given if mlsl.server_affinity), ())


def _plan_phase(recipe: Recipe, phase: Phase, folder: str) -> Training:
    start = recipe.starts_from(phase)
    weights = fetched_snapshot(start, folder, phase.weights_iter) if isinstance(start, Phase) else start
    return Training(
        phase=phase.name,
        net=phase.net,
        arguments=(
            "train",
            f"{SOLVER}{recipe.solver_path(phase.name)}",
            *([f"--weights={weights}"] if weights else []),
        ),
        weights=weights,
        snapshot=phase.final_snapshot,
        fetched=fetched_snapshot(phase, folder),
        last_iter=phase.last_iter,
        is_stopped=phase.stop_iter is not None,
        images_per_iter=images_per_iter(recipe, phase),
        # The one that ends a training between two others, and the one that Caffe writes when it is stopped.
        snapshots=ceil(phase.last_iter / phase.snapshot_every_iter) + (phase.stop_iter is not None),
        needed=tuple(
            (phase.snapshot_at(iteration), fetched_snapshot(phase, folder, iteration))
            for iteration in recipe.needed_iters(phase)
        ),
        snapshots_at=(*recipe.needed_iters(phase), *([phase.stop_iter] if phase.stop_iter else [])),
    )


def fetched_snapshot(phase: Phase, folder: str, iteration: int | None = None) -> str:
    """Return where a phase's verified snapshot is kept: its last, or that of an iteration."""
    return f"{folder}/snapshots/{posixpath.basename(phase.snapshot_at(iteration or phase.last_iter))}"


def find_trained(recipe: Recipe, phase: str, kept: str) -> str:
    """Return where a phase's snapshot that is kept lay when it was trained, on the host of rank 0."""
    return posixpath.join(posixpath.dirname(recipe.phase(phase).final_snapshot), posixpath.basename(kept))


def _plan_tests(recipe: Recipe, folder: str) -> tuple[Testing, ...]:
    if recipe.evaluation is None:
        return ()
    net, iterations = recipe.evaluation.net, recipe.evaluation.iterations
    testings = []
    for phase in find_evaluated(recipe):
        weights = fetched_snapshot(phase, folder)
        arguments = (
            "test",
            f"--model={recipe.net_path(net)}",
            f"--weights={weights}",
            f"--iterations={iterations}",
        )
        testings.append(Testing(phase.name, net, arguments, weights, iterations))
    return tuple(testings)
