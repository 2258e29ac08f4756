"""The input of all checks: the setting, the plan, the state of the run, and the facts of each host.

A host's facts are collected by one call of `facts.sh`.
"""

from __future__ import annotations

import posixpath
import re
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from caffe_recipes.cluster.commands import Host
from caffe_recipes.cluster.hosts import ask_all
from caffe_recipes.cluster.remote import call_to_end, unreadable
from caffe_recipes.cluster.staging.relay import DATA
from caffe_recipes.errors import CaffeRecipesError
from caffe_recipes.run.context import RunSetup
from caffe_recipes.run.events import RunState
from caffe_recipes.run.preflight.findings import CheckResult, Commands, fold_names
from caffe_recipes.run.trainer import Training, TrainingPlan
from caffe_recipes.wording import describe_count


@dataclass(frozen=True)
class Processors:
    """The processors of a node: the numbers of its logical processors, its cores and sockets.

    `socket_of` maps a processor to its socket. If the kernel does not report sockets, `sockets` is None and
    `socket_of` is empty.
    """

    numbers: frozenset[int]
    cores: int
    sockets: int | None
    socket_of: Mapping[int, int] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return the sockets and cores, such as "2 x 24 cores"."""
        if self.sockets is None:
            return describe_count(self.cores, "core")
        return f"{self.sockets} x {self.cores // self.sockets} cores"


@dataclass(frozen=True)
class Folder:
    """The nearest existing folder at or above a path: its disk, its free space, and who may write to it."""

    disk: str
    free_bytes: int
    writable: bool
    open_to_all: bool


@dataclass(frozen=True)
class Stray:
    """Something at a path to which we will write: a link, another user's file, or not a regular file.

    The kind `more` stands for those that are not listed; its path has a `*`.
    """

    kind: str
    owner: str
    path: str


@dataclass(frozen=True)
class RankOwner:
    """The process of a rank on its host, and the user that it belongs to."""

    pid: int
    user: str


@dataclass(frozen=True)
class NodeFacts:
    """The facts of a node; keys that are paths are those of the questions.

    `skew_s` is its clock minus ours, with an uncertainty of `doubt_s`, half the round-trip time. `boot_id` is
    that of its kernel, None if unknown. `ranks` has the owner of each (launch, rank) running there.
    `tmp_bytes` is the size of /tmp.
    """

    host: str
    node_name: str
    skew_s: float
    doubt_s: float
    usable: int
    processors: Processors
    memory_bytes: int | None
    available_bytes: int | None
    root_inode: str | None = None
    program: str = "absent"
    sizes: dict[str, tuple[int | None, bool]] = field(default_factory=dict)
    digests: dict[str, str | None] = field(default_factory=dict)
    folders: dict[str, Folder] = field(default_factory=dict)
    strays: tuple[Stray, ...] = ()
    boot_id: str | None = None
    ranks: Mapping[tuple[str, int], RankOwner] = field(default_factory=dict)
    tmp_bytes: int | None = None


Question = tuple[str, str]


def ask_facts(host: Host, questions: Sequence[Question], clock: Callable[[], float] = time.time) -> NodeFacts:
    """Ask a node for its facts, and for those of paths. Raises ClusterError if it does not answer.

    A question is a keyword of `facts.sh`, and a path.
    """
    host.connect()
    words = [word for question in questions for word in question]
    before = clock()
    records = call_to_end(host, "facts", "facts", *words)
    after = clock()
    try:
        return parse_facts(host.name, records, questions, (before, after))
    except (ValueError, IndexError, KeyError, TypeError):
        raise unreadable(host.name, "facts", " ".join(records)) from None


def parse_facts(
    host: str, records: Sequence[str], questions: Sequence[Question], asked: tuple[float, float]
) -> NodeFacts:
    """Parse an answer; `asked` is our clock before and after. Raises ValueError if anything is missing."""
    by_kind: dict[str, list[str]] = {}
    for record in records:
        kind, _, rest = record.partition(" ")
        by_kind.setdefault(kind, []).append(rest)
    # The words of each answer, by question and path.
    answers: defaultdict[str, dict[str, list[str]]] = defaultdict(dict)
    for question in dict.fromkeys(question for question, _ in questions):
        paths = [path for asks, path in questions if asks == question]
        words = map(str.split, by_kind[question])
        answers[question] = dict(zip(paths, words, strict=True))
    usable, memory = _number(by_kind["usable"][0], 6), by_kind.get("memory", [])
    return NodeFacts(
        host=host,
        node_name=by_kind["name"][0],
        skew_s=float(by_kind["clock"][0]) - sum(asked) / 2,
        doubt_s=(asked[1] - asked[0]) / 2,
        usable=usable,
        processors=parse_cpuinfo(by_kind.get("cpu", []), usable),
        memory_bytes=_kilobytes(memory, "MemTotal"),
        available_bytes=_kilobytes(memory, "MemAvailable"),
        root_inode=next((_known(inode) for (inode,) in answers["root"].values()), None),
        program=next((kind for (kind,) in answers["program"].values()), "absent"),
        sizes={
            path: (None if size == "-" else _number(size), readable == "1")
            for path, (size, readable) in answers["file"].items()
        },
        digests={path: _known(digest) for path, (digest,) in answers["text"].items()},
        folders={
            path: Folder(disk, _number(free), writable == "1", open_to_all == "1")
            for path, (disk, free, writable, open_to_all) in answers["folder"].items()
        },
        boot_id=by_kind["boot"][0].replace("-", "") or None,
        tmp_bytes=_number(by_kind["tmp"][0] or "0") or None,
        ranks=_parse_ranks(by_kind.get("rank", [])),
        strays=tuple(Stray(*line.split(" ", 2)) for line in by_kind.get("found", [])),
    )


def _number(word: str, most_digits: int = 20) -> int:
    if not re.fullmatch(rf"-?[0-9]{{1,{most_digits}}}", word):  # Python limits the digits that it parses
        raise ValueError(f"{word[:20]!r} is not a number")
    return int(word)


def _known(word: str) -> str | None:
    return None if word == "-" else word


def parse_cpuinfo(lines: Sequence[str], usable: int) -> Processors:
    """Parse the lines of /proc/cpuinfo; without `physical id`, each processor counts as a core.

    >>> lines = ["processor: 0", "physical id: 0", "cpu cores: 1", "processor: 1", "physical id: 1"]
    >>> str(parse_cpuinfo(lines, usable=2))
    '2 x 1 cores'
    """
    numbers, cores, socket_of = [], 0, {}
    for line in lines:
        found = re.fullmatch(r"(processor|physical id|cpu cores)\s*:\s*(\d{1,9})", line.strip())
        if not found:
            continue
        if found[1] == "processor":
            numbers.append(int(found[2]))
        elif found[1] == "cpu cores":
            cores = max(cores, int(found[2]))
        elif numbers:
            socket_of[numbers[-1]] = int(found[2])
    there = frozenset(numbers or range(usable))
    sockets = len(set(socket_of.values()))
    if not sockets or not cores:
        return Processors(there, len(there), None)
    return Processors(there, min(len(there), sockets * cores), sockets, socket_of)


def _parse_ranks(lines: Sequence[str]) -> dict[tuple[str, int], RankOwner]:
    """Return the owner of each rank: its first process, since the others are those that it has started."""
    owners: dict[tuple[str, int], RankOwner] = {}
    for line in lines:
        rank, pid, launch, user = line.split(" ", 3)
        number = _number(rank)
        owner, known = RankOwner(_number(pid), user), owners.get((launch, number))
        owners[launch, number] = owner if known is None or owner.pid < known.pid else known
    return owners


def _kilobytes(lines: Sequence[str], name: str) -> int | None:
    for line in lines:
        found = re.fullmatch(rf"{name}: *(\d{{1,18}}) kB", line.strip())
        if found:
            return int(found[1]) * 1024
    return None


ASK_S = 120.0


@dataclass(frozen=True)
class NodeView:
    """The input of the checks; `facts` are of the hosts that answered, `errors` of those that did not.

    `under_way` describes a training that is running there, beside which nothing is tried; "" if there is
    none.
    """

    setting: RunSetup
    plan: TrainingPlan
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
        """The facts of rank 0's host; None if it does not answer."""
        return self.facts.get(self.setting.hosts[0].name)

    @property
    def unfinished(self) -> tuple[Training, ...]:
        """The trainings that are not finished."""
        return tuple(step for step in self.plan.trainings if step.phase not in self.state.finished)

    def answered(self, hosts: Sequence[Host]) -> tuple[Host, ...]:
        """Return the given hosts that answered."""
        return tuple(host for host in hosts if host.name in self.facts)

    def skip_unreachable(self, subject: str, hosts: Sequence[str] = ()) -> list[CheckResult]:
        """Return the finding of a check that needs hosts which do not answer, by default all."""
        names = fold_names(hosts or [host.name for host in self.setting.hosts])
        return [CheckResult(subject, f"not checked: no answer from {names}", warns=True)]

    def skip_under_way(self, subject: str) -> list[CheckResult]:
        """Return the finding of a check that is not done beside a training."""
        return [CheckResult(subject, f"skipped: {self.under_way}", warns=True, is_left_out=True)]


def look_at_nodes(setting: RunSetup, plan: TrainingPlan, state: RunState, under_way: str = "") -> NodeView:
    """Ask all hosts for their facts, concurrently."""
    questions = _questions(setting, plan)
    answers = ask_all(setting.hosts, lambda host: ask_facts(host, questions), ASK_S)
    facts = {answer.host.name: answer.value for answer in answers if answer.value is not None}
    errors = {answer.host.name: answer.error for answer in answers if answer.error is not None}
    return NodeView(setting, plan, state, facts, errors, under_way=under_way)


def snapshot_prefixes(setting: RunSetup, plan: TrainingPlan) -> list[str]:
    """Return the path prefixes of a run's snapshots on the first host."""
    steps = plan.trainings
    return list(dict.fromkeys(setting.path(setting.trainer.models.prefix(step)) for step in steps))


def snapshot_folders(setting: RunSetup, plan: TrainingPlan) -> list[str]:
    """Return the folders on the first host to which a run writes its snapshots."""
    return list(dict.fromkeys(map(posixpath.dirname, snapshot_prefixes(setting, plan))))


def lmdb_path(setting: RunSetup) -> str:
    """Return the path of the training LMDB's data file on each host."""
    return f"{setting.data_path}/{DATA}"


def _questions(setting: RunSetup, plan: TrainingPlan) -> list[Question]:
    return [
        ("root", str(setting.root)),
        *([] if setting.profile.container else [("program", setting.path(setting.program))]),
        *([("file", lmdb_path(setting)), ("folder", setting.data_path)] if setting.data_path else []),
        *(("file", setting.path(path)) for path in setting.trainer.data.mean_files),
        *(("text", setting.path(path)) for path in plan.files),
        *(("folder", folder) for folder in snapshot_folders(setting, plan)),
        *(("snapshots", prefix) for prefix in snapshot_prefixes(setting, plan)),
    ]
