"""Findings as text for people and logs, and as JSON."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from caffe_recipes.review.findings import SEVERITIES, Finding
from caffe_recipes.review.lint.rules import Rule


def render_findings(findings: Sequence[Finding]) -> str:
    """Write a block for each finding, in their order, and a line that counts them.

    >>> from caffe_recipes.review.lint.rules import finding
    >>> one = finding("solver-mode-absent", "s.prototxt", "what", "effect", "solver_mode: CPU")
    >>> print(render_findings([one]))
    s.prototxt: warning [solver-mode-absent] what
        effect
        write: solver_mode: CPU
    <BLANKLINE>
    0 errors, 1 warning, 0 notes
    """
    blocks = [_block(found) for found in findings]
    return "\n\n".join([*blocks, _counts(findings)])


def render_json(findings: Sequence[Finding]) -> str:
    """Write findings as a JSON array of objects; values that JSON has no number for are text."""
    return json.dumps([_plain(found) for found in findings], indent=2, ensure_ascii=False)


def render_rules(rules: Mapping[str, Rule]) -> str:
    """List rules, gravest first, each on a line."""
    ordered = sorted(rules, key=lambda name: (SEVERITIES.index(rules[name].severity), name))
    width = max(map(len, ordered), default=0)
    return "\n".join(f"{name:{width}}  {rules[name].severity:7}  {rules[name].looks_for}" for name in ordered)


def _block(found: Finding) -> str:
    state = f"{found.severity}, accepted" if found.accepted else found.severity
    is_named = not found.phase or re.search(rf"\b{re.escape(found.phase)}\b", found.what)
    phase = "" if is_named else f"{found.phase}: "
    lines = [f"{found.where}: {state} [{found.id}] {phase}{found.what}", f"    {found.effect}"]
    lines.append(f"    accepted: {found.accepted}" if found.accepted else f"    write: {found.write}")
    return "\n".join(_printable(line) for line in lines if line.strip())


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


def _printable(line: str) -> str:
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in line)
