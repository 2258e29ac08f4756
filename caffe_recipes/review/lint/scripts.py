"""Read the commands in a shell script, README or log: solvers, weights, ranks and tests.

The text is read word by word, so that a missing backslash, a stray quote or prose around the commands does
not hide a command.

Loops and functions are not expanded: a command in one is reported, with the line where the loop or function
begins.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from caffe_recipes.caffe.prototxt import read_prototxt
from caffe_recipes.errors import InputError, PrototxtError
from caffe_recipes.render.headers import is_generated

NumberedLine = tuple[str, int]


@dataclass(frozen=True)
class TrainCommand:
    """A `caffe train` command: its solver and weights; empty if not given, None if unknown.

    `snapshot` is the solverstate that it resumes, `stop_iter` the iteration at which it is stopped early.
    """

    solver: str
    weights: str | None
    where: str
    snapshot: str = ""
    ranks: int | None = None
    stop_iter: int | None = None


@dataclass(frozen=True)
class UnresolvedTrain:
    """A `caffe train` command whose solver only a shell can resolve; `solver` is the text of the argument.

    `begins` is the line where its loop or function begins, 0 if it is in none.
    """

    solver: str
    where: str
    ranks: int | None = None
    begins: int = 0


@dataclass(frozen=True)
class TestCommand:
    """A `caffe test` command: its net and weights; empty if not given, None if unknown."""

    model: str
    weights: str | None
    where: str


@dataclass(frozen=True)
class SplitList:
    """A launcher's list of hosts that a space ends: its option, and the parts before and after the space."""

    option: str
    first: str
    rest: str
    where: str


@dataclass(frozen=True)
class Script:
    """The commands of a script and the values that they set; None or empty if not set.

    `ranks` is None if the trainings differ in it. `is_generated` is true for a script that `generate` wrote,
    which copies its prototxts into place.
    """

    trainings: tuple[TrainCommand, ...] = ()
    tested: tuple[str, ...] = ()
    ranks: int | None = None
    ranks_per_node: int | None = None
    omp_num_threads: int | None = None
    mlsl_cores: tuple[int, ...] = ()
    mlsl_where: str = ""
    is_generated: bool = False
    unresolved: tuple[UnresolvedTrain, ...] = ()
    evaluations: tuple[TestCommand, ...] = ()
    split_lists: tuple[SplitList, ...] = ()


_LOOP = re.compile(r"[ \t]*+(?:for\s++\w++(?:\s++in\b)?|while\b|until\b)")
_FUNCTION = re.compile(r"[ \t]*+(?:function\s++[\w-]++|[\w-]++\s*+\(\s*+\))")
_DO, _OPEN = re.compile(r"(?:^|;)\s*+do\b"), re.compile(r"(?:^\s*+|[\s)])\{")
_TAIL = re.compile(r"(?:^|[;&\s])(?:done|\})[ \t]*+(?:[;&|>].*+)?$")


def find_blocks(lines: Iterable[NumberedLine]) -> dict[int, int]:
    """Map the number of each line inside loops or functions to the line where the innermost begins.

    >>> find_blocks([("for p in a b; do", 1), ("  run $p", 2), ("done", 3), ("f() { run $1; }", 4), ("f", 5)])
    {1: 1, 2: 1, 3: 1, 4: 4}
    """
    found: dict[int, int] = {}
    heads: list[int] = []
    rows = list(lines)
    for (line, number), (following, _) in zip(rows, [*rows[1:], ("", 0)], strict=False):
        # Prose may also begin with such words, but a loop or function has its `do` or brace on this line or
        # the next.
        if any(
            head.match(line) and (opens.search(line) or opens.match(following.lstrip()))
            for head, opens in ((_LOOP, _DO), (_FUNCTION, _OPEN))
        ):
            heads.append(number)
        if heads:
            found[number] = heads[-1]
            if _TAIL.search(line):
                heads.pop()
    return found


def read_lines(text: str) -> list[NumberedLine]:
    """Return the lines of a text without comments, each with its line number."""
    return [(_without_comment(line), number) for number, line in enumerate(text.splitlines(), 1)]


def _without_comment(line: str) -> str:
    return line if line.lstrip().startswith("#SBATCH") else re.sub(r"(^|\s)#.*", "", line)


_LAUNCHERS = {"mpirun", "mpiexec", "mpiexec.hydra", "srun", "ibrun", "aprun"}
_TRAINERS = {"caffe", "caffe-torch", "caffe.bin"}
_STRAY_CHARS = "\"'`;\\,()"
_RANKS = {"-n", "-np", "--n", "--np", "-ntasks", "--ntasks"}
_PER_NODE = {
    "-ppn", "--ppn", "-perhost", "--ntasks-per-node", "-ntasks-per-node", "-npernode", "--npernode"
}  # fmt: skip
_NO_WORD = ("", "", "")
_HOSTS = re.compile(r",?\w[\w.,\[\]-]*|,")
_HOST_LISTS = {"-H", "-host", "--host", "-hosts", "--hosts", "-w", "--nodelist"}
_ATTACHED = re.compile(r"(-n|-np|-N)(\d+)")
# Launchers for which -N is the number of nodes; for aprun and Open MPI's mpirun it is the ranks per node.
_COUNT_NODES = {"srun", "#SBATCH"}
_FLAGS = {"solver": "solver", "solvers": "solver"} | {name: name for name in ("weights", "snapshot", "model")}
# Our run.sh sets it for the launcher of a phase that ends before its schedule.
_STOP = "stop_iter"
_VARIABLES = {"OMP_NUM_THREADS", "MLSL_NUM_SERVERS", "MLSL_SERVER_AFFINITY", _STOP}
_VARIABLE = re.compile(r"\$\{?(\w+)\}?")
# The most characters of a word that is expanded, and of all such words: A=$A$A doubles A each time.
_MOST_WORD, _MOST_EXPANDED = 4096, 16_000_000
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)


# The values that a command, or the whole text, sets by name, each with its `file:line`.
_Settings = dict[str, tuple[str, str]]


def load_script(path: Path, max_bytes: int) -> Script:
    """Read a script file of at most `max_bytes`. Raises InputError if lint finds no command in it."""
    try:
        script = parse_script(read_prototxt(path, max_bytes), path)
    except PrototxtError as error:
        raise InputError(error.where, error.what, "give the text of a script that starts Caffe") from error
    if script == Script():
        raise InputError(path, "contains no training command", "give the script that starts Caffe")
    return script


def parse_script(text: str, path: str | Path = "<script>") -> Script:
    r"""Find the commands in a text, in order.

    >>> script = parse_script('''export MLSL_NUM_SERVERS=2
    ... mpiexec.hydra -n 128 -ppn 2 -genv OMP_NUM_THREADS 22 \\
    ...   ./build/tools/caffe train --solver=a/solver.prototxt --weights="b_iter_5.caffemodel"; ''')
    >>> script.ranks, script.omp_num_threads, script.trainings[0].weights
    (128, 22, 'b_iter_5.caffemodel')
    """
    settings: _Settings = {}
    commands: list[_Settings] = [{}]
    lines = read_lines(text)
    words = list(_words(lines, path))
    launcher = ""
    for (word, where, _), (following, _, _) in zip(words, [*words[1:], _NO_WORD], strict=False):
        if _starts_command(word, commands[-1]):
            commands.append({})
        program = word.rpartition("/")[2]
        if program in _LAUNCHERS | {"#SBATCH"}:
            launcher = program
        elif program in _TRAINERS:
            launcher = ""
            if following == "test":
                commands[-1].setdefault("test", (following, where))
        for name, value in _settings_of_word(word, following, launcher):
            settings[name] = value, where
            commands[-1].setdefault(name, (value, where))
    blocks = find_blocks(lines)
    trainings = [training for command in commands for training in _trainings(command, commands[0], blocks)]
    unresolved = [one for command in commands for one in _unresolved(command, commands[0], blocks)]
    evaluations = [one for command in commands for one in _test_commands(command)]
    tested = dict.fromkeys(model for command in commands for model in _tested_nets(command))
    script = _build_script(settings, trainings, unresolved, tuple(tested))
    return replace(
        script,
        is_generated=is_generated(text),
        evaluations=tuple(evaluations),
        split_lists=tuple(_split_lists(words)),
    )


def _split_lists(words: Sequence[tuple[str, str, str]]) -> Iterator[SplitList]:
    """Yield the lists of hosts that a space ends, among the options of a launcher."""
    is_launched = False
    parts = [part for _, _, part in words]
    for (word, where, part), given, rest in zip(words, [*parts[1:], ""], [*parts[2:], "", ""], strict=False):
        program = word.rpartition("/")[2]
        is_launched = program in _LAUNCHERS | {"#SBATCH"} or (is_launched and program not in _TRAINERS)
        if is_launched and (split := _find_split_list(part, given, rest, where)):
            yield split


def _find_split_list(part: str, given: str, rest: str, where: str) -> SplitList | None:
    """Return the list of hosts that begins with an option, or after it, if a space ends it; or None.

    >>> _find_split_list("-hosts", "a,", "b", "")
    SplitList(option='-hosts', first='a,', rest='b', where='')
    """
    option, equals, value = part.partition("=")
    first, following = (value, given) if equals else (given, rest)
    if option not in _HOST_LISTS or not first or first[0] in "\"'":
        return None
    if not _HOSTS.fullmatch(following) or following in _TRAINERS:
        return None
    is_split = first.endswith(",") or following.startswith(",")
    return SplitList(option, first, following, where) if is_split else None


def _words(lines: Iterable[NumberedLine], path: str | Path) -> Iterator[tuple[str, str, str]]:
    """Yield each word, without quotes and with variables expanded, with its `file:line` and its own text."""
    known: dict[str, str] = {}
    room = _MOST_EXPANDED
    for line, number in lines:
        for part in line.split():
            word = part.strip(_STRAY_CHARS).replace('"', "").replace("'", "")
            if "$" in word and len(word) <= _MOST_WORD < room:
                expanded = _VARIABLE.sub(lambda match: known.get(match[1], match[0]), word)
                room -= len(expanded)
                word = expanded
            assigned = _ASSIGNMENT.fullmatch(word)
            if assigned and len(word) <= _MOST_WORD:
                known[assigned[1]] = assigned[2]
            if word:
                yield word, f"{path}:{number}", part


def _starts_command(word: str, command: _Settings) -> bool:
    name = word.rpartition("/")[2]
    if command.keys() == {_STOP}:
        return False
    # A training command after the first may have no launcher.
    is_next = name in _TRAINERS and bool(command.keys() & {"solver", "model", "weights"})
    return name in _LAUNCHERS or word.startswith(f"{_STOP}=") or is_next


def _settings_of_word(word: str, following: str, launcher: str) -> Iterator[tuple[str, str]]:
    """Yield the name and value that a word sets, as a flag of Caffe or of the launcher, or as a variable."""
    flag, equals, value = word.partition("=")
    attached = _ATTACHED.fullmatch(word)
    if attached:  # srun -N16
        flag, equals, value = attached[1], "=", attached[2]
    name = flag.lstrip("-")
    given = value if equals else following
    counted = _count_flag(flag, launcher)
    if counted:
        # A value that is one of Slurm's own variables counts as not given.
        if given[:1].isdigit() or ("$" in given and "SLURM_" not in given):
            yield counted, given
    elif flag.startswith("-") and name in _FLAGS:
        yield _FLAGS[name], given.strip(_STRAY_CHARS)
    elif name in _VARIABLES and given[:1].isdigit():  # NAME=VALUE, or -genv NAME VALUE
        yield name, given


def _count_flag(flag: str, launcher: str) -> str:
    """Return what a launcher's flag counts; empty for other commands, as in `head -n 1 hostfile`."""
    if not launcher:
        return ""
    if flag in ("-N", "-nodes", "--nodes"):
        return "nodes" if flag != "-N" or launcher in _COUNT_NODES else "ranks_per_node"
    return "ranks" if flag in _RANKS else "ranks_per_node" if flag in _PER_NODE else ""


def _count_ranks(command: _Settings, job: _Settings) -> int | None:
    """Return a command's number of ranks: its own, or else the job's; None if unknown."""

    def product(given: _Settings) -> int | None:
        nodes, each = (_parse_count(given.get(name, ("", ""))[0]) for name in ("nodes", "ranks_per_node"))
        return nodes * each if nodes and each else None

    for given in (command, job):
        if "ranks" in given:
            return _parse_count(given["ranks"][0])
        if count := product(given):
            return count
    return product({**job, **command})


def _trainings(command: _Settings, job: _Settings, blocks: Mapping[int, int]) -> Iterator[TrainCommand]:
    solver, where = command.get("solver", ("", ""))
    if solver.endswith((".prototxt", ".pt", ".txt")) and "$" not in solver and not _block_of(where, blocks):
        weights, snapshot = (command.get(name, ("", ""))[0] for name in ("weights", "snapshot"))
        is_known = "$" not in weights and (weights or not snapshot)
        given = _count_ranks(command, job)
        stop = _parse_count(command.get(_STOP, ("", ""))[0])
        yield TrainCommand(solver, weights if is_known else None, where, snapshot, given, stop)


def _block_of(where: str, blocks: Mapping[int, int]) -> int:
    """Return the line where the loop or function around a place begins; 0 if it is in none."""
    line = where.rpartition(":")[2]
    return blocks.get(int(line), 0) if line else 0


def _unresolved(command: _Settings, job: _Settings, blocks: Mapping[int, int]) -> Iterator[UnresolvedTrain]:
    solver, where = command.get("solver", ("", ""))
    begins = _block_of(where, blocks)
    if "$" in solver or (solver and begins):
        yield UnresolvedTrain(solver, where, _count_ranks(command, job), begins)


def _tested_nets(command: _Settings) -> Iterator[str]:
    model = command.get("model", ("", ""))[0]
    if "solver" not in command and model and "$" not in model:
        yield model


def _test_commands(command: _Settings) -> Iterator[TestCommand]:
    if "test" in command and "model" in command and "solver" not in command:
        weights, where = command.get("weights", ("", command["model"][1]))
        yield TestCommand(command["model"][0], None if re.search(r"[$,]", weights) else weights, where)


def _build_script(
    settings: _Settings,
    trainings: Sequence[TrainCommand],
    unresolved: Sequence[UnresolvedTrain],
    tested: Sequence[str],
) -> Script:
    def given(name: str) -> int | None:
        return _parse_count(settings.get(name, ("", ""))[0])

    listed, where = settings.get("MLSL_SERVER_AFFINITY", ("", ""))
    cores = tuple(int(core) for core in re.findall(r"\d{1,6}", listed))
    counts = {one.ranks for one in trainings if one.ranks} | {one.ranks for one in unresolved if one.ranks}
    return Script(
        tuple(trainings),
        tuple(tested),
        min(counts) if len(counts) == 1 else None if counts else given("ranks"),
        given("ranks_per_node"),
        given("OMP_NUM_THREADS"),
        cores,
        where if cores else "",
        unresolved=tuple(unresolved),
    )


def _parse_count(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[1-9]\d{0,8}", text) else None
