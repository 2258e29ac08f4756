"""Rules for rates that another Caffe computes differently, which are not checked."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from caffe_recipes.caffe.dialects import OURS
from caffe_recipes.caffe.dialects.engine import find_judge
from caffe_recipes.review.lint.registry import finding
from caffe_recipes.review.lint.subjects import ReadFile, file_rate_rule

if TYPE_CHECKING:
    from caffe_recipes.review.lint.findings import Finding


# Fields of nvcaffe and Intel's Caffe that change the rate, but that `lr_at` does not support.
_DIALECT_RATE_FIELDS = ("rampup_interval", "min_lr", "stagelr")
_DIALECT_POLICIES = ("multifixed",)
_RATE_RULES = frozenset(
    (
        "final-rate-high",
        "final-rate-kept",
        "lr-policy-unknown",
        "rate-constant",
        "rate-not-finite",
        "rate-zero",
        "warmup-end-jump",
        "warmup-missing",
    )
)
_JOIN_RULES = frozenset(("join-jump", "resume-jump"))
UNCHECKED_RATES = "rates-not-judged"  # the rule that reports these rates


@file_rate_rule(
    UNCHECKED_RATES,
    "note",
    "a rate that depends on fields of the dialect, and so was not checked",
    what="{names} set a rate that only {dialect} computes",
    effect="the rules for the rate, its jumps and its end were skipped",
    write="no change needed; check the rates in the log",
)
def check_dialect_rates(file: ReadFile) -> Iterator[Finding]:
    """Find solvers whose rates depend on fields of the dialect, and so are not checked."""
    document, dialect = file.given, file.dialect
    if dialect == OURS:
        return
    known = find_judge(dialect)
    for path, solver in solvers_in(document.message):
        given = [field for field in _DIALECT_RATE_FIELDS if _is_given(solver, field)]
        fields = [field for field in given if known.knows("SolverParameter", field)]
        if solver.lr_policy in _DIALECT_POLICIES and solver.lr_policy in known.lr_policies:
            fields.append("lr_policy")
        if fields:
            yield finding(
                UNCHECKED_RATES,
                document.where(f"{path}{fields[0]}"),
                names=" and ".join(fields),
                dialect=dialect,
            )


def drop_rate_findings(findings: Iterable[Finding], paths: Collection[str]) -> Iterator[Finding]:
    """Yield the findings without those on the rates of the solvers in these files, and on jumps."""
    for one in findings:
        is_theirs = one.where.startswith(tuple(f"{path}:" for path in paths)) or one.where in paths
        if paths and (one.id in _JOIN_RULES or (is_theirs and one.id in _RATE_RULES)):
            continue
        yield one


def solvers_in(message: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - a message of the schema of all Caffes
    """Yield the solvers in a file, each with the prefix of its field paths."""
    if message.DESCRIPTOR.name == "SolverParameter":
        yield "", message
    elif message.DESCRIPTOR.name == "MultiPhaseSolverParameter":
        for index, pair in enumerate(message.params_pair):
            yield f"params_pair[{index}].solver_params.", pair.solver_params


def _is_given(solver: Any, field: str) -> bool:  # noqa: ANN401 - a message of the schema of all Caffes
    return bool(getattr(solver, field, None))
