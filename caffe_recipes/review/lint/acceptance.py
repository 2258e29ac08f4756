"""Findings that a recipe accepts, with its reasons."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from caffe_recipes.review.lint.registry import finding, load_rules

if TYPE_CHECKING:
    from caffe_recipes.recipe.model import Acceptance, Recipe
    from caffe_recipes.review.lint.findings import Finding


def accept_findings(
    findings: Iterable[Finding], recipe: Recipe, locate: Callable[[int], str]
) -> list[Finding]:
    """Mark accepted findings with their reason, and report `accept:` entries that match no finding."""
    accept = recipe.accept
    marked, used = [], set()
    for found in findings:
        fitting = [index for index, one in enumerate(accept) if accepts(one, found)]
        used.update(fitting)
        marked.append(replace(found, accepted=accept[fitting[0]].reason) if fitting else found)
    for index, one in enumerate(accept):
        unknown = _describe_unknown(one, recipe)
        if unknown:
            what, write = unknown
            marked.append(finding("accept-unknown", locate(index), what, write=write))
        elif index not in used:
            of_phase = f" of phase '{one.phase}'" if one.phase else ""
            marked.append(
                finding(
                    "unused-accept",
                    locate(index),
                    phase=one.phase or "",
                    accepted=one.finding,
                    of_phase=of_phase,
                )
            )
    return marked


def _describe_unknown(one: Acceptance, recipe: Recipe) -> tuple[str, str] | None:
    """Return what is wrong with an `accept:` entry's rule or phase, and what to write; None if both exist."""
    phases = [phase.name for phase in recipe.phases]
    rules = load_rules()
    if one.finding not in rules:
        near = difflib.get_close_matches(one.finding, rules, n=1)
        write = f"finding: {near[0]}" if near else "an id from `caffe-recipes lint --rules`"
        return f"'{one.finding}' is accepted, but lint has no rule with this id", write
    if one.phase is not None and one.phase not in phases:
        near = difflib.get_close_matches(one.phase, phases, n=1)
        what = f"'{one.finding}' is accepted in phase '{one.phase}', which does not exist"
        return what, f"phase: {near[0] if near else ', or '.join(phases)}"
    return None


def accepts(one: Acceptance, found: Finding) -> bool:
    """Return whether an `accept:` entry matches a finding: by id, and by phase if the entry has one."""
    return one.finding == found.id and one.phase in (None, found.phase)
