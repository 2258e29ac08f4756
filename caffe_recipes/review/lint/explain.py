"""Explain a rule: what it checks, what will happen, and what to do about it."""

from __future__ import annotations

import difflib
from string import Formatter

from caffe_recipes.errors import InputError
from caffe_recipes.review.lint.registry import load_rules
from caffe_recipes.review.text_columns import align_columns

_WIDTH = 100


def explain_rule(name: str, width: int | None = None) -> list[str]:
    """Explain a rule: the problem, what is checked, the effect, what to write, and how to accept a finding.

    Raises InputError, with the nearest id, for an unknown one.

    >>> print(*explain_rule("weights-missing"), sep="\\n")
    weights-missing: an error
    problem  a later phase that starts without weights
    checks   a chain of solvers, and the weights that each starts from
    effect   it starts from the net's fillers, so what the earlier phases learned is lost
    help     --weights=<folder><final>
    fix      by hand
    exit     1, unless accepted or with --fail-on never
    accept   in a recipe: {finding: weights-missing, reason: WHY IT IS INTENDED}
    """
    rules = load_rules()
    if name not in rules:
        near = difflib.get_close_matches(name, rules, n=1)
        raise InputError(
            "", f"no rule '{name}'", f"did you mean '{near[0]}'?" if near else "--rules lists them"
        )
    rule = rules[name]
    effect, write = rule.explanation or map(_generalize, (rule.effect, rule.write))
    exits = {
        "error": "1, unless accepted or with --fail-on never",
        "warning": "1, unless accepted or with --fail-on error",
        "note": "0, or 1 with --fail-on note",
    }
    rows = {
        "problem": rule.summary,
        "checks": rule.subject,
        "effect": effect,
        "help": write,
        "fix": rule.fix or "by hand",
        "exit": exits[rule.severity],
        "accept": f"in a recipe: {{finding: {name}, reason: WHY IT IS INTENDED}}",
    }
    article = "an" if rule.severity == "error" else "a"
    table = align_columns([*rows.items()], width=min(width or _WIDTH, _WIDTH))
    return [f"{name}: {article} {rule.severity}", *table]


def _generalize(template: str) -> str:
    """Return a text of a rule with the names of its values in their places.

    >>> _generalize("power: {power:.4g}, or {{}}")
    'power: <power>, or {}'
    """
    parts = Formatter().parse(template)
    return "".join(f"{text}<{name}>" if name else text for text, name, _, _ in parts) or "see each finding"
