"""A folder of somebody else's: its solvers, in the order in which they seem to be trained."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.documents import Document
from caffe_recipes.errors import CaffeRecipesError, InputError, PrototxtError
from caffe_recipes.review.findings import Finding
from caffe_recipes.review.lint.reading.commands import check_commands, check_started, name_of
from caffe_recipes.review.lint.reading.files import (
    find_training,
    is_solver,
    lint_chain,
    lint_single,
    split_started,
)
from caffe_recipes.review.lint.reading.reader import Reader
from caffe_recipes.review.lint.reading.script import Script, parse_script
from caffe_recipes.review.lint.rules import finding

_MOST_FILES = 10_000
_MOST_SCRIPT_BYTES = 1_000_000
_SCRIPTS = re.compile(r"(?i).*\.(sh|bash|slurm|sbatch|job|pbs|md|rst)|readme.*|run[^.]*")
_OF_SOLVERS = re.compile(rb"(?m)^\s*(base_lr|lr_policy|max_iter|snapshot_prefix)\s*:")
_FIRST = {
    "": 0,
    "solver": 0,
    "init": 0,
    "initial": 0,
    "start": 0,
    "warmup": 0,
    "first": 0,
    "base": 0,
    "main": 0,
}
_LAST = {"coll": 10**9, "collapse": 10**9, "finetune": 10**9, "final": 10**9 + 1, "last": 10**9 + 1}


def lint_folder(reader: Reader, folder: Path, script: Script) -> Iterator[Finding]:
    """Find what is wrong with the prototxts below a folder, the solvers of each folder in it as a chain.

    Raises InputError for a folder without prototxts, or that cannot be read, and PrototxtError for a solver
    that cannot: the chain without it would be another.
    """
    groups = _prototxts(folder)
    if not groups:
        raise InputError(folder, "holds no .prototxt file", "give a folder with solvers and nets")
    for home, paths in groups.items():
        documents = [document for path in paths if (document := _read(reader, path))]
        solvers = [document for document in documents if is_solver(document)]
        text = script if script != Script() else find_script(home, solvers)
        yield from check_commands(text)
        started, idle = split_started(solvers, script)
        # Another folder's solvers are none that the script forgets.
        if (started or len(groups) == 1) and not reader.options.is_alone:
            yield from check_started(idle)
        ordered, why = order_solvers(started or solvers, text)
        alone = [solver for solver in solvers if solver not in ordered]
        waiting = [solver for solver in alone if solver not in idle]
        if len(ordered) > 1 and not reader.options.is_alone:
            if text is not script:
                yield _say_order(home, ordered, why)
            yield from lint_chain(reader, ordered, text)
        else:
            alone = solvers
            waiting = started or solvers
        if len(waiting) > 1 and not reader.options.is_alone:
            names = ", ".join(Path(solver.path).name for solver in waiting)
            what = f"the order of {names} cannot be told: each was looked at alone"
            write = "give the solvers in their order, or --script FILE"
            yield finding(
                "order-unknown", str(home), what, "what happens between them was not looked at", write
            )
        for solver in alone:
            yield from lint_chain(reader, [solver], text, is_whole=[solver] in (solvers, started))
        for document in documents:
            yield from lint_single(reader, document)


def _read(reader: Reader, path: Path) -> Document[Any] | None:
    """Read a prototxt; what cannot be read is found if it is no solver, by its name and text."""
    try:
        return reader.read(path)
    except PrototxtError:
        if "solver" in path.name.lower() or _OF_SOLVERS.search(_beginning(path)):
            raise
        return reader.read_leniently(path)


def _beginning(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_MOST_SCRIPT_BYTES)
    except OSError:
        return b""


def order_solvers(solvers: Sequence[Document[Any]], script: Script) -> tuple[list[Document[Any]], str]:
    """Put solvers in the order of a script's commands, else of their names; and say by which.

    What the script does not start is left out. Empty if the order cannot be told.
    """
    by_command = []
    for training in script.trainings:
        started = [solver for solver in solvers if find_training(script, solver.path) is training]
        by_command += [solver for solver in started if solver not in by_command]
    if len(by_command) > 1 and not script.untold:
        return by_command, "by the commands of a script"
    ranks = [name_rank(name_of(solver.path)) for solver in solvers]
    is_plain = all(isinstance(solver.message, pb.SolverParameter) for solver in solvers)
    if (None in ranks or len(set(ranks)) < len(ranks) or not is_plain) and len(by_command) > 1:
        return by_command, "by the commands of a script"
    if None in ranks or len(set(ranks)) < len(ranks) or not is_plain:
        return [], ""
    pairs = sorted(zip(ranks, range(len(ranks)), strict=True), key=lambda pair: (pair[0] or 0, pair[1]))
    return [solvers[index] for _, index in pairs], "by their names"


def name_rank(name: str) -> int | None:
    """Tell a phase's place in its chain by its name; None if the name does not say.

    >>> names = ["collapse", "cyc10", "cyc2", "init"]
    >>> sorted(names, key=name_rank)
    ['init', 'cyc2', 'cyc10', 'collapse']
    >>> name_rank("quick"), name_rank("phase_3")
    (None, 3)
    """
    word = name.lower()
    ends = _FIRST | _LAST
    if word in ends:
        return ends[word]
    last = re.split(r"[_.-]", word)[-1]
    if last in ends:
        return ends[last]
    number = re.fullmatch(r"(?:phase|stage|step|part|cyc|cycle|run|p|s)?[_-]?(\d{1,6})(?:st|nd|rd|th)?", last)
    return int(number[1]) if number else None


def _prototxts(folder: Path) -> dict[Path, list[Path]]:
    """List the prototxts below a folder by the folder that holds them; hidden folders are left alone."""
    groups: dict[Path, list[Path]] = {}
    count = 0
    for root, folders, files in os.walk(folder, onerror=_refuse):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found = [Path(root) / name for name in sorted(files) if name.endswith(".prototxt")]
        count += len(found)
        if count > _MOST_FILES:
            raise InputError(folder, f"holds more than {_MOST_FILES:,} prototxts", "give a folder within it")
        if found:
            groups[Path(root)] = found
    return groups


def _refuse(error: OSError) -> NoReturn:
    raise InputError(error.filename, f"cannot be read: {error.strerror}", "check its permissions")


def find_script(home: Path, solvers: Sequence[Document[Any]]) -> Script:
    """Read the script or README of a folder whose commands start most of its solvers."""
    best, most = Script(), 1
    for path in sorted(home.iterdir()):
        if not _SCRIPTS.fullmatch(path.name) or not path.is_file():
            continue
        try:
            if path.stat().st_size > _MOST_SCRIPT_BYTES:
                continue
            script = parse_script(path.read_text("utf-8", errors="replace"), path)
        except (OSError, CaffeRecipesError):
            continue
        started = sum(find_training(script, solver.path) is not None for solver in solvers)
        if started > most or (started and started == len(solvers)):
            best, most = script, started
    return best


def _say_order(home: Path, ordered: Sequence[Document[Any]], why: str) -> Finding:
    names = ", ".join(Path(solver.path).name for solver in ordered)
    what = f"{len(ordered)} solvers were taken as one chain {why}: {names}"
    write = "give the solvers in their order if it is another"
    return finding("order-guessed", str(home), what, "joins are judged in this order", write)
