"""Try the launcher, which must start each rank on its host of the hostfile, and the trainer on every host."""

from __future__ import annotations

import base64
import math
import os
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from caffe_recipes.caffe.logs import split_rank
from caffe_recipes.cluster.commands import Completed, Host
from caffe_recipes.cluster.hostfile import render_hostfile
from caffe_recipes.cluster.hosts import LocalHost, ask_all
from caffe_recipes.cluster.launchers.launcher import render_exports
from caffe_recipes.cluster.remote import call, check_trust, unreadable
from caffe_recipes.cluster.slurm.this_job import this_job
from caffe_recipes.cluster.slurm.waiting import wait_for_slurm
from caffe_recipes.errors import ClusterError, CommandTimedOut
from caffe_recipes.run.context import RunSetup
from caffe_recipes.run.preflight.findings import (
    CheckResult,
    Commands,
    HostProblem,
    as_findings,
    as_problem,
    fold_names,
)
from caffe_recipes.run.preflight.nodes import ASK_S, NodeView
from caffe_recipes.run.trainer import Attempt, Trial
from caffe_recipes.wording import describe_count

_START_S = 120.0
# All ranks import their libraries at once, from a file system that may be busy.
_IMPORT_S = 180.0
_START = 'eval "$(cat)" && exec "$0" "$@"'
# Hydra dies of SIGPIPE if its ranks end before it has closed their standard input.
_RANK = (
    "sh",
    "-c",
    'echo "caffe-recipes: rank ${PMI_RANK:-${PMIX_RANK:-${SLURM_PROCID:-?}}} on $(uname -n)"; sleep 0.3',
)
_PLACE = re.compile(r"caffe-recipes: rank (\d{1,9}) on (\S+)")


@dataclass(frozen=True)
class RankPlaces:
    """The nodes where ranks started: `by_rank` is the node name of each rank, `expected` of each host."""

    by_rank: Mapping[int, str]
    expected: Mapping[str, str]
    ranks_per_node: int


def check_launcher(view: NodeView) -> list[CheckResult]:
    """Start a small command on every rank, and compare the rank's host with the hostfile."""
    setting = view.setting
    if view.under_way:
        return view.skip_under_way("launcher")
    if view.errors:
        return view.skip_unreachable("launcher", list(view.errors))
    launcher = setting.find_launcher()
    waited: list[str] = []
    stdout = start_patiently(
        lambda: start_ranks(setting, view.commands), _waiting_for_slurm(setting, view.commands, waited.append)
    )
    places = RankPlaces(
        parse_places(stdout),
        {name: facts.node_name for name, facts in view.facts.items()},
        setting.recipe.cluster.ranks_per_node,
    )
    misplaced = misplaced_ranks(places, setting)
    if misplaced:
        return misplaced
    ranks = describe_count(setting.recipe.cluster.ranks_per_node, "rank")
    message = f"{launcher} starts {ranks} on each host" + "".join(f"; {each}" for each in waited)
    if not setting.refused_options:
        return [CheckResult("launcher", message)]
    options = ", ".join(setting.refused_options)
    return [CheckResult("launcher", f"{message}, without {options}, which it does not accept", warns=True)]


def start_patiently(start: Callable[[], str], wait: Callable[[], bool]) -> str:
    """Return the result of `start`; retry once if it fails and `wait` returns True: Slurm starts the ranks.

    If Slurm's controller was unreachable meanwhile, srun fails or hangs even though the hosts are fine.
    """
    by_slurm = wait()
    try:
        return start()
    except ClusterError:
        if not by_slurm:
            raise
    wait()
    return start()


def _waiting_for_slurm(
    setting: RunSetup, commands: Commands, say: Callable[[str], None]
) -> Callable[[], bool]:
    job = this_job(os.environ).job
    by_slurm = bool(job) and setting.profile.rank_launcher.asks_slurm(setting.environment)

    def wait() -> bool:
        if by_slurm:
            wait_for_slurm(job, say=say, pause=commands.pause)
        return by_slurm

    return wait


def start_ranks(
    setting: RunSetup, commands: Commands, words: Sequence[str] = _RANK, limit_s: float = _START_S
) -> str:
    """Start `words` on every rank, by default to print its node; return the launcher's output.

    Raises ClusterError with the last line of a rank's traceback, or else the first of the launcher's errors,
    if it fails.
    """
    program = setting.profile.launcher.program
    given = f"cd -- {shlex.quote(str(setting.root))}\n{render_exports(setting.environment)}\n"
    with os.fdopen(os.memfd_create("hostfile"), "w") as hostfile:  # nothing must be written to a disk yet
        hostfile.write(render_hostfile([host.name for host in setting.hosts]))
        hostfile.flush()
        argv = setting.launch(f"/proc/{os.getpid()}/fd/{hostfile.fileno()}").argv(words)
        try:
            # Variables go by standard input, since they may be secret and anybody can read an argv.
            done = commands.run(LocalHost(), ["sh", "-c", _START, *argv], limit_s, os.fsencode(given))
        except ClusterError as error:
            named = CommandTimedOut("", program, limit_s) if isinstance(error, CommandTimedOut) else error
            raise ClusterError(program, named.what, _by_hand(setting, words)) from None
    if done.returncode != 0:
        raised = _raised(done.stderr)
        reason = raised or next(filter(None, map(str.strip, done.stderr.splitlines())), "")
        what = f"{'fails on a rank' if raised else 'does not start'}: {reason[:300]}"
        what = what if reason else f"does not start: returned {done.returncode}"
        raise ClusterError(program, what, _by_hand(setting, words))
    return done.stdout


def _raised(stderr: str) -> str:
    """Return the last line of a rank's traceback; "" without one.

    >>> _raised("[0] Traceback (most recent call last):\\n[1] no\\n[0]   File 'a'\\n[0] ImportError: b\\n")
    'ImportError: b'
    """
    lines = [split_rank(line) for line in stderr.splitlines()]
    ranks = [rank for rank, text in lines if text.startswith("Traceback (most recent call last)")]
    printed = [text for rank, text in lines if ranks and rank == ranks[0]]
    return next((text for text in printed if re.match(r"[A-Za-z_][\w.]*(:|$)", text)), "")


def parse_places(stdout: str) -> dict[int, str]:
    """Return the node name of each rank.

    >>> parse_places("[1] caffe-recipes: rank 1 on n2\\n[0] caffe-recipes: rank 0 on n1\\n")
    {1: 'n2', 0: 'n1'}
    """
    return {int(rank): node for rank, node in _PLACE.findall(stdout)}


def misplaced_ranks(places: RankPlaces, setting: RunSetup) -> list[CheckResult]:
    """Return findings on ranks that are on the wrong host, and on hosts with too few or too many ranks."""
    first, hint = next(iter(places.expected)), _by_hand(setting)
    found: list[CheckResult] = []
    if places.by_rank.get(0, places.expected[first]) != places.expected[first]:
        what = f"rank 0 is on {places.by_rank[0]}, not on {first}, the first host"
        error = ClusterError(setting.find_launcher(), what, f"snapshots are fetched from {first}; {hint}")
        found.append(CheckResult("launcher", str(error), error))
    found += as_findings("launcher", list(_wrong_counts(places, hint)))
    unknown = Counter(node for node in places.by_rank.values() if node not in places.expected.values())
    for node, count in unknown.items():
        ranks = f"{describe_count(count, 'rank')} {'is' if count == 1 else 'are'}"
        what = f"{ranks} on {node}, which is not one of the run's hosts"
        error = ClusterError(setting.find_launcher(), what, hint)
        found.append(CheckResult("launcher", str(error), error))
    if not found:
        found += as_findings("launcher", list(_wrong_order(places)))
    return found


def _wrong_counts(places: RankPlaces, hint: str) -> Iterator[HostProblem]:
    shared = Counter(
        places.expected.values()
    )  # several hosts may be one machine, such as localhost and its name
    counts = Counter(places.by_rank.values())
    for host, node in places.expected.items():
        wanted = places.ranks_per_node * shared[node]
        if counts[node] != wanted:
            has = f"gets {counts[node] or 'no'} rank{'s' if counts[node] != 1 else ''}"
            yield HostProblem(host, f"{has} from the launcher instead of {wanted}", hint)


def _wrong_order(places: RankPlaces) -> Iterator[HostProblem]:
    nodes = list(places.expected.items())
    for index, (host, node) in enumerate(nodes):
        ranks = range(index * places.ranks_per_node, (index + 1) * places.ranks_per_node)
        if any(places.by_rank[rank] != node for rank in ranks):
            hint = "speeds by rank will be shown for the wrong hosts"
            yield HostProblem(
                host, "does not have the ranks that its line in the hostfile gives it", hint, fails=False
            )


def _by_hand(setting: RunSetup, words: Sequence[str] = _RANK) -> str:
    named = fold_names([host.name for host in setting.hosts])
    return f"try `{shlex.join(setting.launch('HOSTFILE').argv(words))}` by hand, with {named} in HOSTFILE"


_IN_WORLD = re.compile(r"caffe-recipes: rank (\d{1,9}) of (\d{1,9})(?!\d)")


def check_ranks(view: NodeView) -> list[CheckResult]:
    """Check that the trainer sees all ranks, since its MPI may not be the launcher's."""
    setting, wanted = view.setting, view.setting.recipe.cluster.ranks
    if view.under_way:
        return view.skip_under_way("ranks")
    if view.errors:
        return view.skip_unreachable("ranks", list(view.errors))
    words = setting.launch().in_container((setting.program, *setting.trainer.trial().world))
    stdout = start_patiently(
        lambda: start_ranks(setting, view.commands, words, _IMPORT_S),
        _waiting_for_slurm(setting, view.commands, lambda line: None),
    )
    seen = [(int(rank), int(size)) for rank, size in _IN_WORLD.findall(stdout)]
    if {size for _, size in seen} == {wanted} and len({rank for rank, _ in seen}) == wanted:
        return [CheckResult("ranks", f"{describe_count(wanted, 'rank')} see each other")]
    found = f"world size {', '.join(map(str, sorted({size for _, size in seen})))}" if seen else "nothing"
    what = f"{len(seen)} of {wanted} ranks answered, and saw {found}"
    error = ClusterError(setting.program, what, f"build it with the MPI of {setting.find_launcher()}")
    return [CheckResult("ranks", str(error), error)]


_EVERYWHERE = "the Caffe root and the trainer must be on a file system that all hosts share"
_ABSENT = {"absent": "no such program there", "other": "is not an executable program there"}
# The limit of one attempt: a cold start from a busy file system, and two iterations.
TRIAL_S = 120.0
# Not set for the trial: variables that make a process a rank of a launch, or that belong to one host.
_NO_VARIABLE = re.compile(
    r"(PMI|PMIX|SLURM|OMPI|HYDRA|HYDI|MLSL|SSH|MPI_LOCAL|XDG)_\w*|PALS_\w*"
    r"|I_MPI_PMI_LIBRARY|CAFFE_RECIPES_LAUNCH|PWD|OLDPWD|SHLVL|TERM|DISPLAY|HOSTNAME|TMPDIR|_"
)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def check_trainer(view: NodeView) -> list[CheckResult]:
    """Try the trainer on every host that has it, and here if a model is evaluated."""
    setting = view.setting
    if view.under_way:
        return view.skip_under_way("trainer")
    if not view.hosts:
        return view.skip_unreachable("trainer")
    problems = judge_programs(view) + find_untrusted(view)
    lacking = {problem.host for problem in problems}
    hosts = [host for host in view.hosts if host.name not in lacking]
    if view.plan.testings and not any(host.is_local for host in setting.hosts):
        hosts.append(LocalHost("this machine"))
    problems += try_trainer(setting, hosts, view.commands)
    return as_findings("trainer", problems, f"{setting.program} {setting.trainer.trial().all_well}")


def judge_programs(view: NodeView) -> list[HostProblem]:
    """Return the hosts that lack the trainer; in a container, only the trial shows that."""
    if view.setting.profile.container:
        return []
    return [
        HostProblem(facts.host, _ABSENT[facts.program], _EVERYWHERE, view.setting.program)
        for facts in view.facts.values()
        if facts.program != "program"
    ]


def find_untrusted(view: NodeView) -> list[HostProblem]:
    """Return the hosts on which others could have put or changed what the trainer runs or reads.

    What is in the Caffe root, which all hosts share, was checked on this machine.
    """
    setting, root = view.setting, view.setting.root
    container = setting.profile.container
    program = container.image if container else setting.program
    shared, paths = root.resolve(), map(setting.path, (program, *setting.trainer.inputs))
    # A link in the root may lead to a local disk.
    elsewhere = (path for path in paths if not Path(os.path.realpath(path)).is_relative_to(shared))
    words = (str(root), str(root), *elsewhere)
    if len(words) == 2:
        return []
    hint = "use a path in a folder that only you can write to"
    answers = ask_all(view.hosts, lambda host: check_trust(host, "trust", *words, hint=hint), ASK_S)
    return [as_problem(answer.host.name, answer.error) for answer in answers if answer.error]


def try_trainer(
    setting: RunSetup, hosts: Sequence[Host], commands: Commands, limit_s: float = TRIAL_S
) -> list[HostProblem]:
    """Try the trainer on all hosts concurrently, one process per host; return the problems."""
    trial = setting.trainer.trial()
    whole_s = limit_s * len(trial.attempts) + 30
    answers = ask_all(hosts, lambda host: _try_on(host, setting, trial, commands, limit_s), whole_s + 30)
    problems: list[HostProblem] = []
    for answer in answers:
        if answer.error is not None:
            problems.append(as_problem(answer.host.name, answer.error))
        else:
            problems += answer.value or []
    return problems


def render_environment(environment: Mapping[str, str]) -> str:
    """Return shell commands that set variables, unset those of a launch, and keep glog from writing files."""
    lines = [
        f"unset {name}" if _NO_VARIABLE.fullmatch(name) else f"export {name}={shlex.quote(value)}"
        for name, value in environment.items()
        if _VARIABLE.fullmatch(name)
    ]
    return "\n".join([*lines, "export GLOG_logtostderr=1", ""])


def _try_on(
    host: Host, setting: RunSetup, trial: Trial, commands: Commands, limit_s: float
) -> list[HostProblem]:
    # A name without a slash is searched on PATH in a container's image.
    absolute = replace(setting, program=setting.path(setting.program)) if "/" in setting.program else setting
    files = [word for name, text in trial.files.items() for word in (name, text)]
    words = [f"{math.ceil(limit_s)}", str(len(trial.files)), *files]
    words += [str(len(trial.attempts)), *map(shlex.join, trial.attempts.values())]
    words += absolute.trainer_argv(())
    given = os.fsencode(render_environment({**os.environ, **setting.environment}))
    within_s = limit_s * len(trial.attempts) + 30

    def run(host: Host, argv: Sequence[str], limit_s: float) -> Completed:
        return commands.run(host, argv, limit_s, given)

    records = call(host, "trial", "try", *words, timeout_s=within_s, run=run, hint="check its /tmp")
    attempts = [attempt for record in records if (attempt := parse_attempt(record))]
    if len(attempts) != len(trial.attempts):
        raise unreadable(host.name, "try", " ".join(records))
    by_hand = shlex.join(setting.launch().in_container([setting.program]))
    hint = f"try `{by_hand}` there by hand, or {setting.trainer.words.if_broken}"
    judged = (trial.judge(attempt, limit_s) for attempt in attempts)
    faults = dict(zip(trial.attempts, judged, strict=True))
    return [HostProblem(host.name, what, hint, setting.program) for what in _by_attempt(faults)]


def parse_attempt(record: str) -> Attempt | None:
    """Parse a line of `trial.sh` on an attempt: exit code, and log in base64; None for any other line."""
    found = re.fullmatch(r"tried (\d{1,9}) (\S*)", record)
    try:
        log = base64.b64decode(found[2], validate=True) if found else b""
    except ValueError:
        return None
    return Attempt(int(found[1]), log.decode(errors="replace")) if found else None


def _by_attempt(faults: Mapping[str, str | None]) -> list[str]:
    """Return the faults; with the names of the attempts unless all fail alike.

    >>> _by_attempt({"poly": None, "poly_cyc": "fails"}), _by_attempt({"poly": "fails", "poly_cyc": "fails"})
    (['with poly_cyc it fails'], ['fails'])
    """
    if len(set(faults.values())) == 1:
        return [what for what in set(faults.values()) if what]
    return [f"with {name} it {what}" for name, what in faults.items() if what]
