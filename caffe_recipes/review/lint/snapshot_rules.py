"""Rules for snapshots: which are written, and whether the next phase finds the one that it starts from.

Rules for the commands of a script: what they train, do not train, and test.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.chain import (
    find_writer,
    first_iter,
    plan_starts,
    planned_snapshots,
    prefix_name,
    split_weights,
)
from caffe_recipes.review.lint.links import link_finding
from caffe_recipes.review.lint.rules import Explanation, finding, path_rule, recipe_rule, start_rule
from caffe_recipes.wording import find_similar

if TYPE_CHECKING:
    from caffe_recipes.caffe.chain import Chain, Link
    from caffe_recipes.caffe.prototxt import Document
    from caffe_recipes.review.lint.rules import Finding
    from caffe_recipes.review.lint.scripts import Script, TestCommand

_MAX_COMPARED = 10_000
_MODELS = (".caffemodel", ".caffemodel.h5")
_STATES = (".solverstate", ".solverstate.h5")


def check_snapshots(chain: Chain) -> Iterator[Finding]:
    """Find snapshots that are missing or overwritten, and weights that no phase or the wrong phase writes."""
    starts = zip(chain.links, plan_starts(chain), strict=True)
    used = {start.index for link, start in starts if start is not None and (link.weights or link.resumes)}
    for index, link in enumerate(chain.links):
        is_last = index == len(chain.links) - 1
        is_alone = len(chain.links) == 1
        yield from _check_final_snapshot(link, is_needed=is_last or index not in used, is_alone=is_alone)
        yield from _check_collisions(chain.links[:index], link)
        if link.resumes:
            yield from _check_resume(chain.links[: index + 1], link)
        elif link.weights is not None and (index or link.weights):
            yield from _check_start_weights(chain.links[:index], link, link.weights)


@start_rule(
    "no-final-snapshot",
    "error",
    "snapshot_after_train: false, and no snapshot at max_iter",
    what="snapshot_after_train is false, and no snapshot is written at max_iter {max_iter}: {last}",
    write="snapshot_after_train: true, or a `snapshot` that divides {max_iter}",
)
@start_rule(
    "no-snapshot",
    "warning",
    "a single solver for another Caffe (--dialect) that never writes a snapshot",
    what="snapshot_after_train is false, and no snapshot is written up to max_iter {max_iter}: {last}",
    write="snapshot_after_train: true, unless only the log is wanted",
)
def _check_final_snapshot(link: Link, *, is_needed: bool, is_alone: bool) -> Iterator[Finding]:
    solver = link.solver.message
    fired = planned_snapshots(link)
    if solver.snapshot_after_train or not is_needed or solver.max_iter <= 0:
        return
    if getattr(link.solver.given, "test_and_snapshot_last_epochs", 0) > 0:  # NVIDIA's
        return
    if fired and fired[-1] == link.last_iter:
        return
    last = f"the last one is at iteration {fired[-1]}" if fired else "none is ever written"
    # NVIDIA ships such solvers, whose result is the log.
    is_measurement = link.solver.given is not None and is_alone and not fired
    yield link_finding(
        "no-snapshot" if is_measurement else "no-final-snapshot",
        link,
        "snapshot_after_train",
        effect="the training after it is lost" if fired else "the result of the training is lost",
        max_iter=solver.max_iter,
        last=last,
    )


@start_rule(
    "snapshots-collide",
    "warning",
    "two phases that write snapshots with the same names",
    what="{other} and {phase} both write {name}",
    effect="{phase} overwrites the snapshot of {other}",
    write="set a different snapshot_prefix in each phase; if the phase resumes by --snapshot, give --script "
    "FILE",
)
def _check_collisions(earlier: Sequence[Link], link: Link) -> Iterator[Finding]:
    prefix = link.solver.message.snapshot_prefix
    for other in earlier:
        if not prefix or other.solver.message.snapshot_prefix != prefix:
            continue
        fired = planned_snapshots(other)
        shared = next(
            (number for number in islice(planned_snapshots(link), _MAX_COMPARED) if number in fired), 0
        )
        if shared:
            name = f"{prefix}_iter_{shared}.caffemodel"
            yield link_finding("snapshots-collide", link, "snapshot_prefix", other=other.name, name=name)


@start_rule(
    "weights-missing",
    "error",
    "a later phase that starts without weights",
    what="{phase} starts without --weights",
    effect="it starts from the net's fillers, so what the earlier phases learned is lost",
    write="--weights={folder}{final}",
)
@start_rule(
    "weights-no-caffemodel",
    "error",
    "initial weights whose file name does not end in .caffemodel",
    what="{phase} starts from {weights}, whose name does not end in .caffemodel",
    effect="Caffe aborts with `Failed to parse NetParameter file`, or `File not found`",
    write="--weights={stem}.caffemodel",
)
def _check_start_weights(earlier: Sequence[Link], link: Link, weights: str) -> Iterator[Finding]:
    if not weights:
        folder = _folder_prefix(earlier[-1].solver.message.snapshot_prefix)
        yield link_finding("weights-missing", link, folder=folder, final=final_name(earlier[-1]))
        return
    if not weights.endswith(_MODELS):
        yield link_finding(
            "weights-no-caffemodel", link, weights=weights, stem=weights.rpartition(".")[0] or weights
        )
    if earlier:
        yield from _check_weights_written(earlier, link, weights)


@start_rule(
    "weights-unknown",
    "warning",
    "initial weights that no earlier phase writes",
    what="{phase} starts from {weights}, which no earlier phase writes",
    effect="Caffe aborts with `File not found`, or continues from a file that another run left there",
    write="--weights={folder}{nearest}",
)
@start_rule(
    "weights-of-other-phase",
    "warning",
    "initial weights that are not those of the previous phase",
    what="{phase} starts from {writer}, and skips {previous}",
    effect="what {previous} learned is lost",
    write="--weights={folder}{final}",
)
def _check_weights_written(earlier: Sequence[Link], link: Link, weights: str) -> Iterator[Finding]:
    iteration = split_weights(weights)[1]
    index, folder = find_writer(earlier, weights), _folder_prefix(weights)
    if index is None or iteration is None or not _matches_format(earlier[index], weights):
        names = [final_name(other) for other in earlier]
        alike = find_similar(weights.rpartition("/")[2], names)
        yield link_finding(
            "weights-unknown", link, weights=weights, folder=folder, nearest=alike or names[-1]
        )
        return
    if iteration not in planned_snapshots(earlier[index]):
        yield from _snapshot_never_fires(earlier[index], link, iteration)
    elif index < len(earlier) - 1:
        writer = earlier[index].name
        yield link_finding(
            "weights-of-other-phase",
            link,
            writer=writer,
            previous=earlier[-1].name,
            folder=folder,
            final=final_name(earlier[-1]),
        )


@start_rule(
    "weights-and-snapshot",
    "error",
    "a command with both --weights and --snapshot: Caffe aborts",
    what="{phase} is given both --weights and --snapshot",
    effect="Caffe aborts with `Give a snapshot to resume training or weights to finetune but not both.`",
    write="give only --snapshot to resume with the momentum history, or only --weights to start without it",
)
@start_rule(
    "snapshot-no-solverstate",
    "error",
    "a --snapshot whose file name does not end in .solverstate",
    what="{phase} resumes {state}, whose name does not end in .solverstate",
    effect="Caffe aborts with `Failed to parse SolverState file`, or `File not found`",
    write="--snapshot={stem}.solverstate",
)
@start_rule(
    "resumed-at-end",
    "error",
    "a solverstate at or past max_iter: nothing is trained",
    what="{phase} resumes at iteration {iteration}, but its max_iter is {last_iter}",
    effect="Caffe trains nothing and exits 0: max_iter counts from iteration 0, not from the resumed "
    "iteration",
    write="max_iter: {extended}; or give --weights and the caffemodel to count from 0",
    values=("iteration",),
)
@start_rule(
    "snapshot-unknown",
    "warning",
    "a --snapshot that neither this nor an earlier phase writes",
    what="{phase} resumes {state}, which neither it nor an earlier phase writes",
    effect="Caffe aborts with `File not found`, or continues from a file that another run left there",
    write="--snapshot={folder}{latest}",
)
def _check_resume(links: Sequence[Link], link: Link) -> Iterator[Finding]:
    state = link.resumes
    if link.weights:
        yield link_finding("weights-and-snapshot", link)
        return
    if "$" in state:
        return
    if not state.endswith(_STATES):
        yield link_finding(
            "snapshot-no-solverstate", link, state=state, stem=state.partition(".caffemodel")[0]
        )
    index, iteration = _find_resumed_phase(links, state), split_weights(state)[1]
    if iteration is not None and _resumes_at_end(link):
        yield link_finding(
            "resumed-at-end",
            link,
            "max_iter",
            iteration=iteration,
            last_iter=link.last_iter,
            extended=iteration + link.last_iter,
        )
    if index is None or iteration is None or not _matches_format(links[index], state):
        # A first phase may resume any file: only earlier phases show which files exist.
        if len(links) > 1:
            yield link_finding(
                "snapshot-unknown",
                link,
                state=state,
                folder=_folder_prefix(state),
                latest=final_name(links[-2], "solverstate"),
            )
    # A phase that is stopped may write a snapshot at any iteration.
    elif index < len(links) - 1 and iteration not in planned_snapshots(links[index]):
        yield from _snapshot_never_fires(links[index], link, iteration)


def _find_resumed_phase(links: Sequence[Link], state: str) -> int | None:
    """Return the phase that writes a solverstate: an earlier one, or the last one, for its own iterations."""
    index, (prefix, iteration) = find_writer(links[:-1], state), split_weights(state)
    if iteration is None or prefix != prefix_name(links[-1]):
        return index
    return len(links) - 1 if index is None or iteration > links[index].last_iter else index


@start_rule(
    "snapshot-never-fires",
    "error",
    "initial weights from an iteration at which no snapshot is written",
    what="{phase} starts from iteration {iteration} of {writer}, at which no snapshot is written",
    effect="Caffe aborts with `File not found` after the earlier phases have been trained",
    values=("iteration",),
)
def _snapshot_never_fires(writer: Link, link: Link, iteration: int) -> Iterator[Finding]:
    if _resumes_at_end(writer):  # another rule reports it, and after the fix there may be such a snapshot
        return
    near = planned_snapshots(writer).nearest(iteration)
    yield link_finding(
        "snapshot-never-fires",
        link,
        write=f"start from iteration {near}, or change `snapshot`" if near else "snapshot: above 0",
        iteration=iteration,
        writer=writer.name,
    )


def _resumes_at_end(link: Link) -> bool:
    """Return whether a phase resumes at or past its last iteration, and so trains nothing."""
    return "$" not in link.resumes and first_iter(link) >= link.last_iter > 0


def _matches_format(link: Link, name: str) -> bool:
    """Return whether a snapshot's name fits the phase's snapshot_format; True for names of other files."""
    is_hdf5 = link.solver.message.snapshot_format == pb.SolverParameter.HDF5
    return not name.endswith((*_MODELS, *_STATES)) or name.endswith(".h5") == is_hdf5


def _folder_prefix(path: str) -> str:
    """Return a path up to its last slash.

    >>> _folder_prefix("/scratch/a_iter_5.caffemodel"), _folder_prefix("a_iter_5.caffemodel")
    ('/scratch/', '')
    """
    return path[: path.rfind("/") + 1]


def final_name(link: Link, kind: str = "caffemodel") -> str:
    """Return the file name of the last snapshot that a phase writes."""
    fired = planned_snapshots(link)
    end = ".h5" if link.solver.message.snapshot_format == pb.SolverParameter.HDF5 else ""
    return f"{prefix_name(link)}_iter_{fired[-1] if fired else link.last_iter}.{kind}{end}"


_FIRST_WORDS = {
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
_LAST_WORDS = {"coll": 10**9, "collapse": 10**9, "finetune": 10**9, "final": 10**9 + 1, "last": 10**9 + 1}


@path_rule(
    "solver-untold",
    "note",
    "a command in a script whose solver only a shell can resolve",
    what="{within}the solver of this command is unknown: {solver}",
    effect="the order and the initial weights of what it trains were not checked",
    write="write a command for each phase, with the literal path of its solver",
    explanation=Explanation(
        "Lint does not execute scripts: it does not expand loops and functions, and does not know the output "
        "of a command. What such a command trains, and from which weights, is not checked; its number of "
        "ranks is.",
        "Write a command for each phase, with the path of its solver; or use the run.sh that `generate` "
        "writes.",
    ),
)
@path_rule(
    "hosts-split",
    "error",
    "a list of hosts with a space after a comma, where the shell ends it",
    what="{option} {first} {rest}: the list ends at the space",
    effect="the launcher takes {rest} as the program to start, or starts no rank there",
    write="{option} {first}{rest}, without a space",
)
def check_commands(script: Script) -> Iterator[Finding]:
    """Find training commands whose solver is unknown, and lists of hosts that a space ends."""
    for split in script.split_lists:
        yield finding("hosts-split", split.where, option=split.option, first=split.first, rest=split.rest)
    for command in script.unresolved:
        within = f"in the loop or function at line {command.begins}, " if command.begins else ""
        yield finding("solver-untold", command.where, within=within, solver=command.solver)


@path_rule(
    "not-started",
    "warning",
    "a solver that no command in the given script trains",
    what="no command in the script trains {file}",
    effect="this phase is never trained, so a phase that starts from it finds no weights",
    write="add a command that trains it, or do not give this file to lint",
    explanation=Explanation(
        "The other solvers are checked as the chain that the script trains, and this one by itself.",
        "Add a command that trains it, or run lint without this file.",
    ),
)
def check_untrained(untrained: Sequence[Document[Any]]) -> Iterator[Finding]:
    """Report each solver that no command trains."""
    for solver in untrained:
        yield finding(
            "not-started", solver.path, phase=phase_name_from_path(solver.path), file=Path(solver.path).name
        )


@recipe_rule(
    "order-guessed",
    "note",
    "the order in which a folder's solvers were checked as one chain",
    what="{count} solvers were checked as one chain, ordered {why}: {names}",
    effect="the transitions between phases were checked in this order",
    write="if it is wrong, list the solvers in the right order",
)
@recipe_rule(
    "order-unknown",
    "note",
    "solvers of a folder whose order is unknown",
    what="the order of {names} is unknown, so each was checked by itself",
    effect="the transitions between them were not checked",
    write="list the solvers in the right order, or give --script FILE",
)
def check_order(home: Path, solvers: Sequence[Document[Any]], why: str) -> Iterator[Finding]:
    """Report the assumed order of a folder's solvers and its reason, or that the order is unknown."""
    names = ", ".join(Path(solver.path).name for solver in solvers)
    if why:
        yield finding("order-guessed", str(home), count=len(solvers), why=why, names=names)
    else:
        yield finding("order-unknown", str(home), names=names)


@path_rule(
    "test-without-weights",
    "error",
    "a `caffe test` without --weights: Caffe aborts",
    what="`caffe test` has no --weights",
    effect="Caffe aborts with `Need model weights to score.`",
    write="--weights={model}",
)
def check_evaluations(links: Sequence[Link], script: Script, *, is_all: bool) -> Iterator[Finding]:
    """Find tests without weights; if `links` are all phases of the script, also tests of wrong weights."""
    for one in script.evaluations:
        if one.weights == "":
            model = final_name(links[-1]) if links and is_all else "MODEL.caffemodel"
            yield finding("test-without-weights", one.where, model=model)
    with_weights = [one for one in script.evaluations if one.weights]
    if not links or not is_all:
        return
    has_final = any(_weights_name(one) == final_name(links[-1]) for one in with_weights)
    for one in with_weights:
        yield from _check_tested_weights(links, one, has_final=has_final)


@path_rule(
    "test-weights-unknown",
    "warning",
    "a `caffe test` of weights that no phase writes",
    what="`caffe test` uses {weights}, which no phase writes",
    effect="Caffe aborts with `File not found`, or tests a file that another run left there",
    write="--weights={final}",
)
@path_rule(
    "test-weights-not-final",
    "warning",
    "a script that tests, but never the weights of the last phase",
    what="`caffe test` uses {weights} of {writer}, but the last phase writes {final}",
    effect="the training after these weights is not tested",
    write="--weights={final}",
)
def _check_tested_weights(links: Sequence[Link], one: TestCommand, *, has_final: bool) -> Iterator[Finding]:
    final, iteration = final_name(links[-1]), split_weights(_weights_name(one))[1]
    if _weights_name(one) == final:
        return
    index = find_writer(links, _weights_name(one))
    if index is None or iteration not in planned_snapshots(links[index]):
        yield finding("test-weights-unknown", one.where, weights=one.weights, final=final)
    elif not has_final:
        yield finding(
            "test-weights-not-final",
            one.where,
            weights=one.weights,
            writer=links[index].name,
            final=final,
        )


def _weights_name(one: TestCommand) -> str:
    return PurePosixPath(one.weights or "").name


def phase_name_from_path(path: str | Path) -> str:
    """Return the name of a phase, from the file name of its solver.

    >>> paths = ["a/solver_cyc1.prototxt", "solver.prototxt", "lenet_solver_adam.prototxt"]
    >>> [phase_name_from_path(path) for path in paths]
    ['cyc1', 'solver', 'lenet_adam']
    """
    stem = PurePosixPath(path).stem
    return re.sub(r"solver[_. -]*", "", stem).strip("_-. ") or stem


def phase_order(name: str) -> int | None:
    """Return a sort key for a phase's place in its chain, from its name; None if the name gives no hint.

    >>> names = ["collapse", "cyc10", "cyc2", "init"]
    >>> sorted(names, key=phase_order)
    ['init', 'cyc2', 'cyc10', 'collapse']
    >>> phase_order("quick"), phase_order("phase_3")
    (None, 3)
    """
    word = name.lower()
    ends = _FIRST_WORDS | _LAST_WORDS
    if word in ends:
        return ends[word]
    last = re.split(r"[_.-]", word)[-1]
    if last in ends:
        return ends[last]
    number = re.fullmatch(r"(?:phase|stage|step|part|cyc|cycle|run|p|s)?[_-]?(\d{1,6})(?:st|nd|rd|th)?", last)
    return int(number[1]) if number else None
