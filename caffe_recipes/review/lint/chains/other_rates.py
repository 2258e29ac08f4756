"""Solvers whose rate another Caffe makes in a way of its own: rules on rates would judge what it never is."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

from google.protobuf.message import Message

from caffe_recipes.caffe.dialects import OURS, find_dialect
from caffe_recipes.caffe.documents import Document
from caffe_recipes.review.findings import Finding
from caffe_recipes.review.lint.rules import finding

# What makes the rate in nvcaffe and in Intel's Caffe, and is nothing to ours.
_FIELDS = ("rampup_interval", "min_lr", "stagelr")
_POLICIES = ("multifixed",)

_OF_ONE = frozenset(
    ("rate-not-finite", "rate-zero", "rate-constant", "warmup-end-jump", "final-rate-high", "final-rate-kept")
)
_OF_JOINS = frozenset(("join-jump", "resume-jump"))
_OF_POLICIES = frozenset(("lr-policy-unknown",))


def check_other_rates(document: Document[Message], dialect: str) -> Iterator[Finding]:
    """Find solvers, read as any Caffe's, whose rates are the dialect's own and are not judged."""
    if dialect == OURS:
        return
    known = find_dialect(dialect)
    for path, solver in _solvers(document.message):
        given = [field for field in _FIELDS if _is_given(solver, field)]
        fields = [field for field in given if known.knows("SolverParameter", field)]
        if solver.lr_policy in _POLICIES and solver.lr_policy in known.lr_policies:
            fields.append("lr_policy")
        if fields:
            what = f"{' and '.join(fields)}: a rate that only {dialect} makes so"
            effect = "rules on rates, their joins and their end are skipped"
            write = "nothing; compare the rates in its log"
            yield finding("rates-not-judged", document.where(f"{path}{fields[0]}"), what, effect, write)


def drop_rates(findings: Iterable[Finding], paths: Collection[str]) -> Iterator[Finding]:
    """Leave out what rules on rates found of the solvers in these files, and where others meet them."""
    for one in findings:
        is_theirs = one.where.startswith(tuple(f"{path}:" for path in paths)) or one.where in paths
        if paths and (one.id in _OF_JOINS or (is_theirs and one.id in _OF_ONE | _OF_POLICIES)):
            continue
        yield one


def _solvers(message: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - of the schema of all Caffes
    if message.DESCRIPTOR.name == "SolverParameter":
        yield "", message
    elif message.DESCRIPTOR.name == "MultiPhaseSolverParameter":
        for index, pair in enumerate(message.params_pair):
            yield f"params_pair[{index}].solver_params.", pair.solver_params


def _is_given(solver: Any, field: str) -> bool:  # noqa: ANN401 - of the schema of all Caffes
    return bool(getattr(solver, field))
