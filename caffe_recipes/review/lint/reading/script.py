"""What a shell script, a README or a log of commands says of a run, slips and all.

The text is taken word by word, so that a line break without its backslash, a stray quote or prose around the
commands does not hide one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from caffe_recipes.caffe.prototxt import read_prototxt
from caffe_recipes.errors import InputError, PrototxtError
from caffe_recipes.review.lint.reading.own_script import parse_model, parse_steps
from caffe_recipes.review.lint.reading.shell import Line, expand_lines, read_lines

_LAUNCHERS = {"mpirun", "mpiexec", "mpiexec.hydra", "srun", "ibrun", "aprun"}
_TRAINERS = {"caffe", "caffe-torch", "caffe.bin"}
_STRAY = "\"'`;\\,()"
_RANKS = {"-n", "-np", "--n", "--np", "-ntasks", "--ntasks"}
_PER_NODE = {
    "-ppn", "--ppn", "-perhost", "--ntasks-per-node", "-ntasks-per-node", "-npernode", "--npernode"
}  # fmt: skip
_ATTACHED = re.compile(r"(-n|-np|-N)(\d+)")
# Where -N counts nodes; to aprun, and to Open MPI's mpirun, it is the ranks of each.
_COUNT_NODES = {"srun", "#SBATCH"}
_FLAGS = {"solver": "solver", "solvers": "solver"} | {name: name for name in ("weights", "snapshot", "model")}
_VARIABLES = {"OMP_NUM_THREADS", "MLSL_NUM_SERVERS", "MLSL_SERVER_AFFINITY"}
_VARIABLE = re.compile(r"\$\{?(\w+)\}?")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)


@dataclass(frozen=True)
class Training:
    """One `caffe train`: its solver, and its weights; empty if it gives none, None if it cannot be told.

    `snapshot` is the solverstate that it resumes, `stop_iter` where it is stopped before max_iter.
    """

    solver: str
    weights: str | None
    where: str
    snapshot: str = ""
    ranks: int | None = None
    stop_iter: int | None = None


@dataclass(frozen=True)
class Untold:
    """One `caffe train` whose solver takes a shell to tell: what it gives as such."""

    solver: str
    where: str
    ranks: int | None = None


@dataclass(frozen=True)
class Evaluation:
    """One `caffe test`: its net, and its weights; empty if it gives none, None if they cannot be told."""

    model: str
    weights: str | None
    where: str


@dataclass(frozen=True)
class Script:
    """What the commands of a text give; None and empty where they do not.

    `ranks` is None where its trainings have several numbers of them. One of ours puts its prototxts in place.
    """

    trainings: tuple[Training, ...] = ()
    tested: tuple[str, ...] = ()
    ranks: int | None = None
    ranks_per_node: int | None = None
    omp_num_threads: int | None = None
    mlsl_cores: tuple[int, ...] = ()
    mlsl_where: str = ""
    is_ours: bool = False
    untold: tuple[Untold, ...] = ()
    evaluations: tuple[Evaluation, ...] = ()


# What a command, or the whole text, sets: a name's value, and the `file:line` of it.
_Settings = dict[str, tuple[str, str]]


def load_script(path: Path, max_bytes: int) -> Script:
    """Read a script's file, of at most `max_bytes`; InputError if it holds nothing that lint could use."""
    try:
        script = parse_script(read_prototxt(path, max_bytes), path)
    except PrototxtError as error:
        raise InputError(error.where, error.what, "give the text of a script that starts Caffe") from error
    if script == Script():
        raise InputError(path, "holds no command that trains", "give the script that starts Caffe")
    return script


def parse_script(text: str, path: str | Path = "<script>") -> Script:
    r"""Find the commands of a text, in order.

    >>> script = parse_script('''export MLSL_NUM_SERVERS=2
    ... mpiexec.hydra -n 128 -ppn 2 -genv OMP_NUM_THREADS 22 \\
    ...   ./build/tools/caffe train --solver=a/solver.prototxt --weights="b_iter_5.caffemodel"; ''')
    >>> script.ranks, script.omp_num_threads, script.trainings[0].weights
    (128, 22, 'b_iter_5.caffemodel')
    """
    settings: _Settings = {}
    commands: list[_Settings] = [{}]
    steps = parse_steps(text)
    words = list(_words(read_lines(text) if steps else expand_lines(text), path))
    launcher = ""
    for (word, where), (following, _) in zip(words, [*words[1:], ("", "")], strict=False):
        if _starts_command(word, commands[-1]):
            commands.append({})
        program = word.rpartition("/")[2]
        if program in _LAUNCHERS | {"#SBATCH"}:
            launcher = program
        elif program in _TRAINERS:
            launcher = ""
            if following == "test":
                commands[-1].setdefault("test", (following, where))
        for name, value in _set_by(word, following, launcher):
            settings[name] = value, where
            commands[-1].setdefault(name, (value, where))
    trainings = [training for command in commands for training in _training(command, commands[0])]
    untold = [one for command in commands for one in _untold(command, commands[0])]
    evaluations = [one for command in commands for one in _evaluation(command)]
    if steps:
        launch: _Settings = next((command for command in commands if "solver" in command), {})
        count = _count_ranks(launch, {})
        trainings = [
            Training(step.solver, step.weights, f"{path}:{step.line}", "", count, step.stop_iter)
            for step in steps
        ]
        untold = []
        model = parse_model(text)
        evaluations = [Evaluation(one.model, model[0], f"{path}:{model[1]}") for one in evaluations if model]
    tested = [model for command in commands for model in _tested(command)]
    script = _script(settings, trainings, untold, tested)
    return replace(script, is_ours=bool(steps), evaluations=tuple(evaluations))


def _words(lines: Iterable[Line], path: str | Path) -> Iterator[tuple[str, str]]:
    """Yield each word, without quotes and with the variables that the text sets, and its `file:line`."""
    known: dict[str, str] = {}
    for line, number in lines:
        for part in line.split():
            word = part.strip(_STRAY).replace('"', "").replace("'", "")
            word = _VARIABLE.sub(lambda match: known.get(match[1], match[0]), word)
            assigned = _ASSIGNMENT.fullmatch(word)
            if assigned:
                known[assigned[1]] = assigned[2]
            if word:
                yield word, f"{path}:{number}"


def _starts_command(word: str, command: _Settings) -> bool:
    name = word.rpartition("/")[2]
    # A second trainer may have no launcher before it.
    return name in _LAUNCHERS or (name in _TRAINERS and bool(command.keys() & {"solver", "model", "weights"}))


def _set_by(word: str, following: str, launcher: str) -> Iterator[tuple[str, str]]:
    """Yield what a word sets: a flag of Caffe's or the launcher's, or a variable."""
    flag, equals, value = word.partition("=")
    attached = _ATTACHED.fullmatch(word)
    if attached:  # srun -N16
        flag, equals, value = attached[1], "=", attached[2]
    name = flag.lstrip("-")
    given = value if equals else following
    counted = _counted_by(flag, launcher)
    if counted:
        # What Slurm itself was asked for is as good as not given.
        if given[:1].isdigit() or ("$" in given and "SLURM_" not in given):
            yield counted, given
    elif flag.startswith("-") and name in _FLAGS:
        yield _FLAGS[name], given.strip(_STRAY)
    elif name in _VARIABLES and given[:1].isdigit():  # NAME=VALUE, or -genv NAME VALUE
        yield name, given


def _counted_by(flag: str, launcher: str) -> str:
    """Say what a launcher's flag counts; nothing for another's: `head -n 1 hostfile` has no ranks."""
    if not launcher:
        return ""
    if flag in ("-N", "-nodes", "--nodes"):
        return "nodes" if flag != "-N" or launcher in _COUNT_NODES else "ranks_per_node"
    return "ranks" if flag in _RANKS else "ranks_per_node" if flag in _PER_NODE else ""


def _count_ranks(command: _Settings, job: _Settings) -> int | None:
    """Count a command's ranks by what it gives itself, then by the job's own; None if not known."""

    def product(given: _Settings) -> int | None:
        nodes, each = (_number(given.get(name, ("", ""))[0]) for name in ("nodes", "ranks_per_node"))
        return nodes * each if nodes and each else None

    for given in (command, job):
        if "ranks" in given:
            return _number(given["ranks"][0])
        if count := product(given):
            return count
    return product({**job, **command})


def _training(command: _Settings, job: _Settings) -> Iterator[Training]:
    solver, where = command.get("solver", ("", ""))
    if solver.endswith((".prototxt", ".pt", ".txt")) and "$" not in solver:
        weights, snapshot = (command.get(name, ("", ""))[0] for name in ("weights", "snapshot"))
        is_known = "$" not in weights and (weights or not snapshot)
        given = _count_ranks(command, job)
        yield Training(solver, weights if is_known else None, where, snapshot, given)


def _untold(command: _Settings, job: _Settings) -> Iterator[Untold]:
    solver, where = command.get("solver", ("", ""))
    if "$" in solver:
        yield Untold(solver, where, _count_ranks(command, job))


def _tested(command: _Settings) -> Iterator[str]:
    model = command.get("model", ("", ""))[0]
    if "solver" not in command and model and "$" not in model:
        yield model


def _evaluation(command: _Settings) -> Iterator[Evaluation]:
    if "test" in command and "model" in command and "solver" not in command:
        weights, where = command.get("weights", ("", command["model"][1]))
        yield Evaluation(command["model"][0], None if re.search(r"[$,]", weights) else weights, where)


def _script(
    settings: _Settings,
    trainings: Sequence[Training],
    untold: Sequence[Untold],
    tested: Sequence[str],
) -> Script:
    def given(name: str) -> int | None:
        return _number(settings.get(name, ("", ""))[0])

    listed, where = settings.get("MLSL_SERVER_AFFINITY", ("", ""))
    cores = tuple(int(core) for core in re.findall(r"\d{1,6}", listed))
    counts = {one.ranks for one in trainings if one.ranks} | {one.ranks for one in untold if one.ranks}
    return Script(
        tuple(trainings),
        tuple(tested),
        min(counts) if len(counts) == 1 else None if counts else given("ranks"),
        given("ranks_per_node"),
        given("OMP_NUM_THREADS"),
        cores,
        where if cores else "",
        untold=tuple(untold),
    )


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[1-9]\d{0,8}", text) else None
