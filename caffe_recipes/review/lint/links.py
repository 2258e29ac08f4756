"""Findings about a phase of a chain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from caffe_recipes.review.lint.rules import finding

if TYPE_CHECKING:
    from caffe_recipes.caffe.chain import Link
    from caffe_recipes.review.lint.rules import Finding


def link_finding(
    name: str,
    link: Link,
    field: str = "",
    /,
    what: str = "",
    **others: Any,  # noqa: ANN401 - those of `finding`
) -> Finding:
    """Return a finding about a phase, at a field of its solver, or else at the command that trains it."""
    where = link.solver.where(field) if field else link.weights_where or link.solver.path
    return finding(name, where, what, link.name, **others)
