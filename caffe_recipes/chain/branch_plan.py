"""Which branches of a recipe train beside its main line, and on which hosts."""

from __future__ import annotations

from dataclasses import dataclass, replace

from caffe_recipes.chain.journal import Launch, RunState, branch_launches
from caffe_recipes.chain.plan import Plan, Training
from caffe_recipes.chain.setting import Setting
from caffe_recipes.chain.trainer import Trainer
from caffe_recipes.errors import InputError
from caffe_recipes.recipe.graph import main_line
from caffe_recipes.recipe.phases import Phase

_OPTION = "--side-by-side"


@dataclass(frozen=True)
class Group:
    """Hosts that train branches; `left` is the phase that a killed run's trainer still trains there.

    They go on with others if these are the run's to give, and it does not merely happen to be there.
    """

    hosts: tuple[str, ...]
    left: str | None = None
    goes_on: bool = True


@dataclass(frozen=True)
class BranchPlan:
    """What a run trains one after another, and what beside that by which groups of hosts.

    `is_held` tells that a killed run had its main line's hosts train branches, and that they still do.
    """

    main: tuple[Training, ...]
    beside: tuple[Training, ...] = ()
    groups: tuple[Group, ...] = ()
    is_held: bool = False


def plan_branches(setting: Setting, plan: Plan, state: RunState) -> tuple[Setting, BranchPlan]:
    """Plan what is trained beside what; return the setting with the spares that are left, and the plan.

    Side by side all branches are, but for those that the main line's hosts have begun; else only those that
    have begun so. Groups are the last of the spares: the first still replace. Raises InputError without a
    branch, with too few hosts, and where a trainer of a killed run is in the way.
    """
    nodes = setting.recipe.cluster.nodes
    on_line = {phase.name for phase in main_line(setting.recipe)}
    if setting.side_by_side and all(step.phase in on_line for step in plan.trainings):
        raise InputError(_OPTION, f"nothing branches off in {setting.recipe.name}", "leave it out")
    beside = _find_beside(setting, plan, state, on_line)
    waiting = {step.phase for step in beside}
    main = [step for step in plan.trainings if step.phase not in waiting]
    left = _find_left(setting, plan, state, is_done=all(step.phase in state.finished for step in main))
    own = {host.name for host in setting.hosts}
    held = [launch for launch in left if own & {*launch.hosts}]
    busy = {name for launch in left for name in launch.hosts}
    free = [name for name in setting.spares if name not in busy]
    count = min(len(free) // nodes, len(beside) - len(left)) if setting.side_by_side else 0
    if setting.side_by_side and beside and not left and not count:
        what = f"needs at least {2 * nodes} hosts, {nodes} for the main line and as many for a branch"
        there = f"{len(setting.hosts) + len(free)} can be used"
        raise InputError(_OPTION, f"{what}; {there}", "give more in the hostfile, or leave it out")
    kept = len(free) - count * nodes
    new = (Group(tuple(free[at : at + nodes])) for at in range(len(free) - nodes, kept - 1, -nodes))
    adopted = (
        Group(
            launch.hosts,
            launch.phase,
            launch in held or (setting.side_by_side and {*launch.hosts} <= {*setting.spares}),
        )
        for launch in left
    )
    # A launch that is left is gone on with before another is journaled over it.
    early = {*state.finished, state.launch.phase if state.launch else ""}
    main.sort(key=lambda step: step.phase not in early)
    return replace(setting, spares=tuple(free[:kept])), BranchPlan(
        tuple(main), beside, (*adopted, *new), bool(held)
    )


def _find_left(setting: Setting, plan: Plan, state: RunState, *, is_done: bool) -> list[Launch]:
    """Return the trainers of a killed run that still train branches; raises InputError for one in the way.

    On the main line's hosts that is one only before the main line `is_done`: then they train branches, too.
    """
    own = (state.launch,) if state.launch else ()
    beside = branch_launches(setting.root, state)
    lives = [each for each in (*own, *beside) if Trainer(setting.root / each.log).is_running()]
    planned, hosts = {step.phase for step in plan.trainings}, {host.name for host in setting.hosts}
    for launch in lives:
        what = f"phase {launch.phase} of a killed run still trains"
        if launch.phase not in planned:
            raise InputError("--until", what, "go on without it, or wait for its end")
        if launch in beside and hosts & {*launch.hosts} and not is_done:
            where = ", ".join(sorted(hosts & {*launch.hosts}))
            raise InputError(where, what, "go on with the hostfile of before, or wait for its end")
    return [launch for launch in lives if launch in beside]


def _find_beside(setting: Setting, plan: Plan, state: RunState, on_line: set[str]) -> tuple[Training, ...]:
    beside: dict[str, Training] = {}
    for step in plan.trainings:
        if step.phase in on_line or step.phase in state.finished or step.phase in state.attempts:
            continue
        start = setting.recipe.starts_from(setting.recipe.phase(step.phase))
        waits = isinstance(start, Phase) and start.name in beside
        if setting.side_by_side or step.phase in state.branches or waits:
            beside[step.phase] = step
    return tuple(beside.values())
