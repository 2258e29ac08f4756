"""What is wrong with a script's commands themselves: what they train, or leave out, and what they test."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from caffe_recipes.caffe.documents import Document
from caffe_recipes.review.findings import Finding
from caffe_recipes.review.lint.chains.chain import Link, find_writer, fired_snapshots, split_weights
from caffe_recipes.review.lint.chains.snapshots import final_name
from caffe_recipes.review.lint.reading.script import Evaluation, Script
from caffe_recipes.review.lint.rules import finding


def check_commands(script: Script) -> Iterator[Finding]:
    """Find the commands whose solver cannot be told."""
    for command in script.untold:
        what = f"the solver of this command cannot be told: {command.solver}"
        effect = "the order and the starting weights of what it trains are not judged by it"
        write = "the solver's path as it is, or a loop over plain words"
        yield finding("solver-untold", command.where, what, effect, write)


def check_started(idle: Sequence[Document[Any]]) -> Iterator[Finding]:
    """Say of the solvers that no command trains that it is so."""
    for solver in idle:
        what = f"no command of the script trains {Path(solver.path).name}"
        effect = "this phase is never trained: what starts from it finds no weights"
        write = "the command that trains it, or leave the file out"
        yield finding("not-started", solver.path, what, effect, write, name_of(solver.path))


def check_evaluations(links: Sequence[Link], script: Script, *, is_all: bool) -> Iterator[Finding]:
    """Find tests without weights; and, if the phases are all that the script trains, of the wrong ones."""
    for one in script.evaluations:
        if one.weights == "":
            effect = "Caffe stops with `Need model weights to score.`"
            write = f"--weights={final_name(links[-1])}" if links and is_all else "--weights=MODEL.caffemodel"
            what = "caffe test is given no --weights"
            yield finding("test-without-weights", one.where, what, effect, write)
    told = [one for one in script.evaluations if one.weights]
    if not links or not is_all:
        return
    has_final = any(_name(one) == final_name(links[-1]) for one in told)
    for one in told:
        yield from _weights(links, one, has_final=has_final)


def _weights(links: Sequence[Link], one: Evaluation, *, has_final: bool) -> Iterator[Finding]:
    final, iteration = final_name(links[-1]), split_weights(_name(one))[1]
    if _name(one) == final:
        return
    index = find_writer(links, _name(one))
    write = f"--weights={final}"
    if index is None or iteration not in fired_snapshots(links[index]):
        what = f"caffe test is given {one.weights}, which no phase writes"
        effect = "Caffe stops with `File not found`, or scores what another run left there"
        yield finding("test-weights-unknown", one.where, what, effect, write)
    elif not has_final:
        what = f"caffe test is given {one.weights} of {links[index].name}, and the last phase writes {final}"
        effect = "what is trained after it is not in the score"
        yield finding("test-weights-not-final", one.where, what, effect, write)


def _name(one: Evaluation) -> str:
    return PurePosixPath(one.weights or "").name


def name_of(path: str | Path) -> str:
    """Name a phase by its solver's file.

    >>> name_of("a/solver_cyc1.prototxt"), name_of("solver.prototxt"), name_of("lenet_solver_adam.prototxt")
    ('cyc1', 'solver', 'lenet_adam')
    """
    stem = PurePosixPath(path).stem
    return re.sub(r"([_. -]*)solver[_. -]*", r"\1", stem).strip("_-. ") or stem
