"""What a shell script, a README or a log of commands says of a run, slips and all.

The text is taken word by word, so that a line break without its backslash, a stray quote or prose around the
commands does not hide one.

What a shell script's loops over words, and calls of its functions, come to: the lines that are run.

Only what can be told without running anything: plain words, and arguments by their place.

What a run.sh that `caffe-recipes generate` wrote says of its phases: their solvers are arguments.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from caffe_recipes.caffe.prototxt import read_prototxt
from caffe_recipes.errors import InputError, PrototxtError

Line = tuple[str, int]

_MOST_CHARACTERS = 4_000_000
_MOST_DEPTH = 3
# Possessive, and within a line, where a script of blanks would take time by the square of its length.
_FOR = re.compile(
    r"(?:^|[;&{]|\bdo\s|\bthen\s)[ \t]*+for[ \t]++(\w++)[ \t]++in[ \t]++([^;\n]*+)[;\n]\s*+do\b", re.MULTILINE
)
_LOOP_WORD = re.compile(r"(?:^|[;&])[ \t]*(do|done)\b", re.MULTILINE)
_LIST = r"^[ \t]*+(?:readonly\s++|export\s++|declare\s++-a\s++)?{}=(?:\"([^\"$`]*)\"|'([^']*)'|\(([^)$`]*)\))"
_RANGE = re.compile(r"\{(\d{1,4})\.\.(\d{1,4})\}")
_DEFINED = re.compile(r"\s*+(?:function\s++([\w-]++)\s*+(?:\(\s*+\))?+|([\w-]++)\s*+\(\s*+\))\s*+(\{.*)?")
_BEFORE_CALL = {"if", "then", "else", "do", "time", "!", "while", "until", "{"}


@dataclass
class _Budget:
    """How many characters may still be written: loops in loops multiply."""

    left: int = _MOST_CHARACTERS
    functions: dict[str, list[Line]] = field(default_factory=dict)

    def allows(self, characters: int) -> bool:
        self.left -= max(characters, 0)
        return self.left >= 0


def expand_lines(text: str) -> list[Line]:
    r"""Give the lines of a script without comments, as often as they are run, each with its number.

    A loop's line has its own number, a function's that of its call. What cannot be told stays as it is.

    >>> text = "for p in a b; do\n  run $p\ndone\nf() { go ${1}; }\nf c"
    >>> [(line.strip(), number) for line, number in expand_lines(text) if line.strip()]
    [('run a', 2), ('run b', 2), ('go c;', 5)]
    """
    bare = "\n".join(line for line, _ in read_lines(text))
    budget = _Budget()
    lines = _expand_loops(bare, 1, bare, budget, 0)
    rest = _take_functions(lines, budget)
    return list(_expand_calls(rest, budget, 0))


def read_lines(text: str) -> list[Line]:
    """Give the lines of a text as they stand, without comments, each with its number."""
    return [(_without_comment(line), number) for number, line in enumerate(text.splitlines(), 1)]


def _without_comment(line: str) -> str:
    return line if line.lstrip().startswith("#SBATCH") else re.sub(r"(^|\s)#.*", "", line)


def _expand_loops(text: str, first: int, whole: str, budget: _Budget, depth: int) -> list[Line]:
    lines: list[Line] = []
    place, number = 0, first
    heads = list(_FOR.finditer(text)) if depth < _MOST_DEPTH else []
    marks = [(mark.start(), mark.end(), mark[1]) for mark in _LOOP_WORD.finditer(text)] if heads else []
    for head in heads:
        end = _find_end(marks, head.end()) if head.start() >= place else None
        words = _plain_words(head[2].rstrip(), whole) if end else None
        if end is None or words is None or not budget.allows(len(words) * (end[0] - head.end())):
            continue
        lines += _numbered(text[place : head.start()], number)
        body = text[head.end() : end[0]]
        number += text.count("\n", place, head.end())
        for word in words:
            lines += _expand_loops(_put_in(body, {head[1]: word}), number, whole, budget, depth + 1)
        number += text.count("\n", head.end(), end[1])
        place = end[1]
    return lines + _numbered(text[place:], number)


def _numbered(text: str, first: int) -> list[Line]:
    return [(line, number) for number, line in enumerate(text.split("\n"), first)]


def _find_end(marks: Sequence[tuple[int, int, str]], start: int) -> tuple[int, int] | None:
    """Find the `done` of the loop whose `do` ends at `start`."""
    depth = 1
    for begin, end, word in marks:
        if begin >= start:
            depth += 1 if word == "do" else -1
            if depth == 0:
                return begin, end
    return None


def _plain_words(text: str, whole: str) -> list[str] | None:
    """Give the words that a loop goes through; None if it takes a shell to tell."""
    listed = re.fullmatch(r"\"?\$\{?(\w+)(?:\[@\]\})?\}?\"?", text)
    if listed:
        found = re.findall(_LIST.format(listed[1]), whole, re.MULTILINE)
        text = "".join(found[0]) if len(found) == 1 else "$"
    numbers = _RANGE.fullmatch(text)
    if numbers:
        return [str(number) for number in range(int(numbers[1]), int(numbers[2]) + 1)]
    if re.search(r"[$`*?{}\[\]\\]", text):
        return None
    try:
        return shlex.split(text)
    except ValueError:
        return None


def _put_in(text: str, values: Mapping[str, str]) -> str:
    r"""Put values in for variables, as the shell does.

    >>> _put_in('$1 ${2:+--weights="$2"} ${3:-x} $p ${1}s', {"1": "a", "2": "b", "3": ""})
    'a --weights="b" x $p as'
    """
    for name, value in values.items():
        text = _put_one(text, re.escape(name), value)
    return text


def _put_one(text: str, name: str, value: str) -> str:
    text = re.sub(rf"\$\{{{name}:?\+([^{{}}]*)\}}", lambda match: match[1] if value else "", text)
    text = re.sub(rf"\$\{{{name}:?-([^{{}}]*)\}}", lambda match: value or match[1], text)
    return re.sub(rf"\$\{{{name}\}}|\${name}(?!\w)", lambda _: value, text)


def _take_functions(lines: Sequence[Line], budget: _Budget) -> list[Line]:
    """Take the functions that are called out of the lines, and keep their bodies."""
    called = {words[0] for text, _ in lines for words in _commands(text)}
    rest: list[Line] = []
    index = 0
    while index < len(lines):
        head = _DEFINED.fullmatch(lines[index][0])
        name = (head[1] or head[2]) if head else ""
        body = _read_body(lines, index, (head[3] or "") if head else "") if name in called else None
        if body is None:
            rest.append(lines[index])
            index += 1
        else:
            budget.functions[name], index = body
    return rest


def _read_body(lines: Sequence[Line], index: int, opened: str) -> tuple[list[Line], int] | None:
    """Read a function's body, and say where the lines go on."""
    number = lines[index][1]
    if opened.rstrip().endswith("}"):
        return [(opened.rstrip()[1:-1], number)], index + 1
    body = [(opened[1:], number)]
    if not opened:
        index += 1
        if index == len(lines) or lines[index][0].strip() != "{":
            return None
    for end in range(index + 1, len(lines)):
        if lines[end][0].lstrip().startswith("}"):
            return [*body, *lines[index + 1 : end]], end + 1
        if last := re.fullmatch(r"(.*;)\s*\}\s*", lines[end][0]):
            return [*body, *lines[index + 1 : end], (last[1], lines[end][1])], end + 1
        if _DEFINED.fullmatch(lines[end][0]):
            return None
    return None


def _expand_calls(lines: Sequence[Line], budget: _Budget, depth: int) -> Iterator[Line]:
    joined = ""
    for text, number in lines:
        calls = _commands(joined + text) if budget.functions else []
        if not any(words[0] in budget.functions for words in calls) or depth == _MOST_DEPTH:
            yield text, number
        elif text.endswith("\\"):
            joined += text[:-1]
            continue
        else:
            for words in calls:
                body = budget.functions.get(words[0])
                if body is None:
                    yield " ".join(words), number
                elif budget.allows(sum(len(line) for line, _ in body)):
                    yield from _expand_calls(_called(body, words[1:], number), budget, depth + 1)
        joined = ""


def _called(body: Sequence[Line], arguments: Sequence[str], number: int) -> list[Line]:
    known = next((index for index, word in enumerate(arguments) if "@" in word or "*" in word), None)
    values = dict(enumerate(arguments[:known], 1))
    if known is None:
        values |= dict.fromkeys(range(len(arguments) + 1, 10), "")
    return [
        (_put_in(line, {str(place): value for place, value in values.items()}), number) for line, _ in body
    ]


def _commands(text: str) -> list[list[str]]:
    """Split a line into its commands, each into its words."""
    found = []
    for part in re.split(r"[;|]|&&", text):
        try:
            words = shlex.split(part)
        except ValueError:
            words = part.split()
        while words and words[0] in _BEFORE_CALL:
            del words[0]
        if words:
            found.append(words)
    return found


_GENERATED = "# Generated by `caffe-recipes generate "
_SET = r"^readonly {}=(\S+|'[^'\n]*')"
_CHAIN = re.compile(r"^chain\(\) \{", re.MULTILINE)


class Step(NamedTuple):
    """One phase of a script of ours: its solver, the weights that it starts from, and where it is stopped."""

    solver: str
    weights: str
    stop_iter: int | None
    line: int


class Evaluated(NamedTuple):
    """A model that a script of ours evaluates; its net is empty in a script of an earlier version."""

    net: str
    model: str
    line: int


def parse_steps(text: str) -> tuple[tuple[Step, ...], tuple[Evaluated, ...]]:
    r"""Read the phases of a script of ours in order, and its evaluations; nothing if it is another's.

    >>> parse_steps('''#!/bin/bash
    ... # Generated by `caffe-recipes generate x`: change the recipe, not this file.
    ... readonly PROTOTXT_DIR=models/x
    ... chain() {
    ...   phase main train_val '' 8 /tmp/a --of 10 # 2.00 epochs
    ... }''')
    ((Step(solver='models/x/solver_main.prototxt', weights='', stop_iter=8, line=5),), ())
    """
    chain = _CHAIN.search(text)
    end = text.find("\n}", chain.end()) if chain else -1
    home, nets = _set_in(text, "PROTOTXT_DIR"), _set_in(text, "NETS_DIR")
    if _GENERATED not in text[:1000] or not home or not chain or end < 0:
        return (), ()
    first = text.count("\n", 0, chain.start()) + 1
    steps: list[Step] = []
    evaluated: list[Evaluated] = []
    for words, line in _chain_lines(text[chain.start() : end], first):
        if words[0] == "phase" and len(words) > 5:
            steps.append(_step(home[0], words[1], words[3], words[4] if "--of" in words[6:] else "", line))
        elif words[0] == "$1" and len(words) > 4:  # of an earlier version: the stop behind the snapshot
            steps.append(_step(home[0], words[1], words[3], words[5] if len(words) > 5 else "", line))
        elif words[0] == "evaluate" and nets:
            evaluated += [Evaluated(f"{nets[0]}/{words[1]}.prototxt", model, line) for model in words[3:]]
    model = _set_in(text, "MODEL")
    if model:
        evaluated.append(Evaluated("", *model))
    return tuple(steps), tuple(evaluated)


def _set_in(text: str, name: str) -> tuple[str, int] | None:
    """Return the value of a name that a script of ours sets, and the line that does."""
    found = re.search(_SET.format(name), text, re.MULTILINE)
    return ("".join(_split(found[1])), text.count("\n", 0, found.start()) + 1) if found else None


def _step(home: str, phase: str, weights: str, stop: str, line: int) -> Step:
    stop_iter = int(stop) if re.fullmatch(r"[1-9]\d{0,8}", stop) else None
    return Step(f"{home}/solver_{phase}.prototxt", weights, stop_iter, line)


def _chain_lines(chain: str, first: int) -> Iterator[tuple[list[str], int]]:
    """Give the words of each line of chain(), with its number; one that ends with a backslash goes on."""
    joined, start = "", 0
    for number, line in enumerate(chain.splitlines(), first):
        start = start if joined else number
        joined += line.removesuffix("\\")
        if not line.endswith("\\"):
            words = _split(joined)
            if words:
                yield words, start
            joined = ""


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError:  # a quote that does not end: somebody changed the file
        return []


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
class TrainCommand:
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
class TestCommand:
    """One `caffe test`: its net, and its weights; empty if it gives none, None if they cannot be told."""

    model: str
    weights: str | None
    where: str


@dataclass(frozen=True)
class Script:
    """What the commands of a text give; None and empty where they do not.

    `ranks` is None where its trainings have several numbers of them. One of ours puts its prototxts in place.
    """

    trainings: tuple[TrainCommand, ...] = ()
    tested: tuple[str, ...] = ()
    ranks: int | None = None
    ranks_per_node: int | None = None
    omp_num_threads: int | None = None
    mlsl_cores: tuple[int, ...] = ()
    mlsl_where: str = ""
    is_ours: bool = False
    untold: tuple[Untold, ...] = ()
    evaluations: tuple[TestCommand, ...] = ()


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
    steps, evaluated = parse_steps(text)
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
    tested = [model for command in commands for model in _tested(command)]
    if steps:
        count = _count_ranks(next((command for command in commands if "ranks" in command), {}), {})
        trainings = [
            TrainCommand(step.solver, step.weights, f"{path}:{step.line}", "", count, step.stop_iter)
            for step in steps
        ]
        untold, evaluations = [], _evaluations_of_ours(evaluated, evaluations, path)
        tested = list(dict.fromkeys(one.model for one in evaluations)) or tested
    script = _script(settings, trainings, untold, tested)
    return replace(script, is_ours=bool(steps), evaluations=tuple(evaluations))


def _evaluations_of_ours(
    evaluated: Sequence[Evaluated], commands: Sequence[TestCommand], path: str | Path
) -> list[TestCommand]:
    """Return the evaluations of a script of ours; one of an earlier version names its net in a command."""
    nets = [one.model for one in commands]
    return [
        TestCommand(net, one.model, f"{path}:{one.line}")
        for one in evaluated
        for net in ([one.net] if one.net else nets)
    ]


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


def _training(command: _Settings, job: _Settings) -> Iterator[TrainCommand]:
    solver, where = command.get("solver", ("", ""))
    if solver.endswith((".prototxt", ".pt", ".txt")) and "$" not in solver:
        weights, snapshot = (command.get(name, ("", ""))[0] for name in ("weights", "snapshot"))
        is_known = "$" not in weights and (weights or not snapshot)
        given = _count_ranks(command, job)
        yield TrainCommand(solver, weights if is_known else None, where, snapshot, given)


def _untold(command: _Settings, job: _Settings) -> Iterator[Untold]:
    solver, where = command.get("solver", ("", ""))
    if "$" in solver:
        yield Untold(solver, where, _count_ranks(command, job))


def _tested(command: _Settings) -> Iterator[str]:
    model = command.get("model", ("", ""))[0]
    if "solver" not in command and model and "$" not in model:
        yield model


def _evaluation(command: _Settings) -> Iterator[TestCommand]:
    if "test" in command and "model" in command and "solver" not in command:
        weights, where = command.get("weights", ("", command["model"][1]))
        yield TestCommand(command["model"][0], None if re.search(r"[$,]", weights) else weights, where)


def _script(
    settings: _Settings,
    trainings: Sequence[TrainCommand],
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
