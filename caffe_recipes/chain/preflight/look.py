"""What all checks look at: the setting, the plan, how far the run is, and what each host says of itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from caffe_recipes.chain.journal import RunState
from caffe_recipes.chain.plan import Plan, Training
from caffe_recipes.chain.preflight.commands import Commands
from caffe_recipes.chain.preflight.findings import Finding, fold_names
from caffe_recipes.chain.preflight.nodes import NodeFacts, Question, ask_node
from caffe_recipes.chain.setting import Setting
from caffe_recipes.cluster.hosts import Host
from caffe_recipes.cluster.parallel import ask_all
from caffe_recipes.errors import CaffeRecipesError

_ASK_S = 120.0


@dataclass(frozen=True)
class Look:
    """What is looked at; `facts` are of the hosts that answered, `errors` of those that did not.

    `under_way` says what trains there now, beside which nothing is to be tried.
    """

    setting: Setting
    plan: Plan
    state: RunState
    facts: dict[str, NodeFacts]
    errors: dict[str, CaffeRecipesError]
    commands: Commands = field(default_factory=Commands)
    under_way: str = ""

    @cached_property
    def hosts(self) -> tuple[Host, ...]:
        """The hosts that answered."""
        return tuple(host for host in self.setting.hosts if host.name in self.facts)

    @property
    def first(self) -> NodeFacts | None:
        """What rank 0's host says of itself; None if it does not answer."""
        return self.facts.get(self.setting.hosts[0].name)

    @property
    def unfinished(self) -> tuple[Training, ...]:
        """The trainings that are still to be done."""
        return tuple(step for step in self.plan.trainings if step.phase not in self.state.finished)

    def answered(self, hosts: Sequence[Host]) -> tuple[Host, ...]:
        """Return those of the hosts that answered."""
        return tuple(host for host in hosts if host.name in self.facts)

    def skip(self, subject: str, hosts: Sequence[str]) -> list[Finding]:
        """Return the finding of what cannot be looked at without hosts that do not answer."""
        return [Finding(subject, f"not looked at without {fold_names(hosts)}", warns=True)]

    def leave(self, subject: str) -> list[Finding]:
        """Return the finding of what is not tried beside a training."""
        return [Finding(subject, f"not tried: {self.under_way}", warns=True)]


def look_at_nodes(setting: Setting, plan: Plan, state: RunState, under_way: str = "") -> Look:
    """Ask all hosts for their facts, at once."""
    questions = _questions(setting, plan)
    answers = ask_all(setting.hosts, lambda host: ask_node(host, questions), _ASK_S)
    facts = {answer.host.name: answer.value for answer in answers if answer.value is not None}
    errors = {answer.host.name: answer.error for answer in answers if answer.error is not None}
    return Look(setting, plan, state, facts, errors, under_way=under_way)


def snapshot_prefixes(setting: Setting) -> list[str]:
    """Return what the names of a recipe's snapshots begin with, on the first host."""
    return list(dict.fromkeys(setting.path(phase.snapshot_prefix) for phase in setting.recipe.phases))


def lmdb_path(setting: Setting) -> str:
    """Return the file that the training LMDB is on each host."""
    return setting.path(f"{setting.recipe.data.train.lmdb}/data.mdb")


def _questions(setting: Setting, plan: Plan) -> list[Question]:
    prefixes = snapshot_prefixes(setting)
    return [
        ("root", str(setting.root)),
        *([] if setting.profile.container else [("program", setting.path(setting.trainer))]),
        ("file", lmdb_path(setting)),
        ("folder", setting.path(setting.recipe.data.train.lmdb)),
        *(("text", setting.path(path)) for path in plan.prototxts),
        *dict.fromkeys(("folder", prefix.rpartition("/")[0] or "/") for prefix in prefixes),
        *(("snapshots", prefix) for prefix in prefixes),
    ]
