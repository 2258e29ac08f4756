"""The one table of lint's rules, which every check enters its own into, and the findings of rules.

Findings as text for people and logs, and as JSON.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeVar

from caffe_recipes.wording import printable

Severity = Literal["error", "warning", "note"]

# Gravest first: an error trains nothing or the wrong thing, a warning likely does, a note is to be known.
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong: where (`file:line:column`), what, what will happen, and what to write.

    Until its document locates it, `where` is the path of a field (`layer[3].top[0]`) instead.
    `values` are the numbers it speaks of by name, unrounded. `phase` is the phase of a chain that it belongs
    to, if any. `accepted` is the reason for which a recipe accepts it, empty if it does not.
    """

    id: str
    severity: Severity
    where: str
    what: str
    effect: str
    write: str
    values: Mapping[str, float | str] = field(default_factory=lambda: MappingProxyType({}))
    phase: str = ""
    accepted: str = ""


class Explanation(NamedTuple):
    """What happens in general, and what to do, where a finding alone leaves a newcomer wondering."""

    happens: str
    write: str


# Most findings say it themselves.
UNEXPLAINED = Explanation("each finding says it, with its own values", "each finding says it")

Check = TypeVar("Check", bound=Callable[..., object])


@dataclass(frozen=True, slots=True)
class LintRule:
    """What a finding's id stands for: how grave it is, what it looks for, and in what (`subject`).

    `effect` and `write` are those of its findings, empty where they differ from one to the next. As a
    decorator it stands above each check that finds it.
    """

    severity: Severity
    looks_for: str
    subject: str
    effect: str
    write: str
    explanation: Explanation

    def __call__(self, check: Check) -> Check:
        """Return the check as it is: it carries the rule."""
        return check


# Every rule of the modules that are imported, by id: `inputs` imports them all.
RULES: dict[str, LintRule] = {}


def rule(
    subject: str,
    name: str,
    severity: Severity,
    looks_for: str,
    *,
    effect: str = "",
    write: str = "",
    explanation: Explanation = UNEXPLAINED,
) -> LintRule:
    """Enter a rule in the table, and return it for the checks that find it; each id is entered once."""
    assert name not in RULES, name
    RULES[name] = LintRule(severity, looks_for, subject, effect, write, explanation)
    return RULES[name]


# What is judged.
file_rule = partial(rule, "a file by itself")
rate_rule = partial(rule, "the rate of one solver")
value_rule = partial(rule, "the values of one solver")
chain_rule = partial(rule, "a chain of solvers, or a recipe")
start_rule = partial(rule, "a chain of solvers, and what each starts from")
handover_rule = partial(rule, "a chain of solvers with their nets")
path_rule = partial(rule, "a solver, its net, and their paths")
recipe_rule = partial(rule, "a folder, or a recipe")
dialect_rule = partial(rule, "any prototxt, for the Caffe of --dialect")


def finding(
    name: str,
    where: str,
    what: str,
    phase: str = "",
    /,
    *,
    effect: str = "",
    write: str = "",
    **values: float | str,
) -> Finding:
    """Return a finding of a rule, with the rule's own `effect` and `write` where none are given.

    `values` are numbers and names of `what` for programs to read. KeyError if there is no such rule.
    """
    rule = RULES[name]
    return Finding(
        name, rule.severity, where, what, effect or rule.effect, write or rule.write, values, phase
    )


def render_findings(findings: Sequence[Finding]) -> str:
    """Write a block for each finding, in their order, and a line that counts them.

    >>> one = Finding("join-jump", "warning", "s.prototxt", "what", "effect", "solver_mode: CPU")
    >>> print(render_findings([one]))
    s.prototxt: warning [join-jump] what
        effect
        write: solver_mode: CPU
    <BLANKLINE>
    0 errors, 1 warning, 0 notes
    """
    blocks = [_block(found) for found in findings]
    return "\n\n".join([*blocks, _counts(findings)])


def render_json(findings: Sequence[Finding]) -> str:
    """Write findings as a JSON array of objects; values that JSON has no number for are text."""
    return json.dumps([_plain(found) for found in findings], indent=2)


def render_rules() -> str:
    """List the rules, gravest first, each on a line."""
    ordered = sorted(RULES, key=lambda name: (SEVERITIES.index(RULES[name].severity), name))
    width = max(map(len, ordered), default=0)
    return "\n".join(f"{name:{width}}  {RULES[name].severity:7}  {RULES[name].looks_for}" for name in ordered)


def _block(found: Finding) -> str:
    state = f"{found.severity}, accepted" if found.accepted else found.severity
    is_named = not found.phase or re.search(rf"\b{re.escape(found.phase)}\b", found.what)
    phase = "" if is_named else f"{found.phase}: "
    lines = [f"{found.where}: {state} [{found.id}] {phase}{found.what}", f"    {found.effect}"]
    lines.append(f"    accepted: {found.accepted}" if found.accepted else f"    write: {found.write}")
    return "\n".join(printable(line) for line in lines if line.strip())


def _counts(findings: Sequence[Finding]) -> str:
    counts = dict.fromkeys(SEVERITIES, 0)
    for found in findings:
        counts[found.severity] += not found.accepted
    accepted = sum(bool(found.accepted) for found in findings)
    parts = [f"{count} {severity}{'s' if count != 1 else ''}" for severity, count in counts.items()]
    return ", ".join(parts) + (f"; {accepted} accepted" if accepted else "")


def _plain(found: Finding) -> dict[str, Any]:
    values = {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in found.values.items()
    }
    return {name: getattr(found, name) for name in Finding.__slots__} | {"values": values}
