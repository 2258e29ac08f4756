"""Rules for the commands of a script: what they train, do not train, and test."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from caffe_recipes.caffe.chain import (
    final_name,
    find_writer,
    planned_snapshots,
    split_weights,
)
from caffe_recipes.review.lint.registry import Explanation, finding
from caffe_recipes.review.lint.subjects import evaluation_rule, script_rule

if TYPE_CHECKING:
    from caffe_recipes.caffe.chain import Link
    from caffe_recipes.review.lint.findings import Finding
    from caffe_recipes.review.lint.scripts import Script, TestCommand


@script_rule(
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
@script_rule(
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


@evaluation_rule(
    "test-without-weights",
    "error",
    "a `caffe test` without --weights: Caffe aborts",
    what="`caffe test` has no --weights",
    effect="Caffe aborts with `Need model weights to score.`",
    write="--weights={model}",
)
def check_evaluations(links: Sequence[Link], script: Script, is_all: bool) -> Iterator[Finding]:
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


@evaluation_rule.also(
    "test-weights-unknown",
    "warning",
    "a `caffe test` of weights that no phase writes",
    what="`caffe test` uses {weights}, which no phase writes",
    effect="Caffe aborts with `File not found`, or tests a file that another run left there",
    write="--weights={final}",
)
@evaluation_rule.also(
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
