"""The one table of lint's rules, which every check enters its own into, and the findings of rules.

Findings as text for people and logs, as JSON, and as annotations of GitHub.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeVar

from caffe_recipes.review.columns import Paint, keep_plain
from caffe_recipes.wording import printable

Severity = Literal["error", "warning", "note"]

# Gravest first: an error trains nothing or the wrong thing, a warning likely does, a note is to be known.
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


@dataclass(frozen=True, slots=True)
class Fix:
    """One edit that a finding asks for, at a field: its value becomes `new`, or it goes where that is empty.

    With a `comment` it is the comment beside or above the field that says so, which becomes `new`. `where` is
    a place as in `Finding`; `field` is the field's name there.
    """

    where: str
    field: str
    new: str = ""
    comment: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong: where (`file:line:column`), what, what will happen, and what to write.

    Until its document locates it, `where` is the path of a field (`layer[3].top[0]`) instead.
    `values` are the numbers it speaks of by name, unrounded. `phase` is the phase of a chain that it belongs
    to, if any. `accepted` is the reason for which a recipe accepts it, empty if it does not. `fixes` are the
    edits of `--fix`, if its rule has any.
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
    fixes: tuple[Fix, ...] = ()

    def located(self, where: Callable[[str], str], phase: str = "") -> Finding:
        """Return it with its fields' paths as places, and of a phase."""
        fixes = tuple(replace(fix, where=where(fix.where)) for fix in self.fixes)
        return replace(self, where=where(self.where), phase=phase or self.phase, fixes=fixes)


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

    `effect` and `write` are those of its findings, empty where they differ from one to the next. `fix` says
    what `--fix` does about them, empty if nothing. As a decorator it stands above each check that finds it.
    """

    severity: Severity
    looks_for: str
    subject: str
    effect: str
    write: str
    explanation: Explanation
    fix: str

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
    fix: str = "",
) -> LintRule:
    """Enter a rule in the table, and return it for the checks that find it; each id is entered once."""
    assert name not in RULES, name
    RULES[name] = LintRule(severity, looks_for, subject, effect, write, explanation, fix)
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
    fixes: tuple[Fix, ...] = (),
    **values: float | str,
) -> Finding:
    """Return a finding of a rule, with the rule's own `effect` and `write` where none are given.

    `values` are numbers and names of `what` for programs to read. KeyError if there is no such rule.
    """
    rule = RULES[name]
    effect, write = effect or rule.effect, write or rule.write
    return Finding(name, rule.severity, where, what, effect, write, values, phase, fixes=fixes)


# By severity, as `paint` knows them.
_COLOURS: Mapping[str, str] = {"error": "red", "warning": "yellow", "note": "cyan"}
_MOST_PLACES = 5


def render_findings(findings: Sequence[Finding], paint: Paint = keep_plain) -> str:
    """Write a block for each finding, in their order, and a line that counts them.

    What is found at several places is written once, with all of them, and counted at each.

    >>> one = Finding("join-jump", "warning", "s.prototxt", "what", "effect", "solver_mode: CPU")
    >>> print(render_findings([one]))
    s.prototxt: warning [join-jump] what
        effect
        write: solver_mode: CPU
    <BLANKLINE>
    0 errors, 1 warning, 0 notes
    """
    groups: dict[tuple[str, ...], list[Finding]] = {}
    for found in findings:
        same = (found.id, found.what, found.effect, found.write, found.accepted)
        groups.setdefault(same, []).append(found)
    blocks = [_block(group, paint) for group in groups.values()]
    return "\n\n".join([*blocks, _counts(findings)])


def render_github(findings: Sequence[Finding]) -> str:
    """Write a GitHub workflow command for each finding that is not accepted: an annotation of its line.

    >>> one = Finding("join-jump", "note", "a,b.prototxt:4:1", "50 %", "effect", "write")
    >>> print(render_github([one]))
    ::notice file=a%2Cb.prototxt,line=4,col=1,title=join-jump::50 %25%0Aeffect%0Awrite: write
    """
    return "\n".join(_annotation(found) for found in findings if not found.accepted)


def _annotation(found: Finding) -> str:
    path, line, column = split_place(found.where)
    places: dict[str, str | int] = {"file": path, "line": line, "col": column, "title": found.id}
    properties = ",".join(f"{name}={_property(value)}" for name, value in places.items() if value)
    phase = "" if _is_named(found) else f"{found.phase}: "
    texts = [f"{phase}{found.what}", found.effect, f"write: {found.write}" if found.write else ""]
    text = _data("\n".join(filter(None, texts)))
    command = "notice" if found.severity == "note" else found.severity
    return f"::{command} {properties}::{text}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(value: str | int) -> str:
    return _data(str(value)).replace(":", "%3A").replace(",", "%2C")


_PLACE = re.compile(r"(.*?)(?::(\d+))?(?::(\d+))?", re.DOTALL)


def split_place(where: str) -> tuple[str, int, int]:
    """Split `file:line:column`; what is not there is 0.

    >>> split_place("a:b.prototxt:12:3"), split_place("net.prototxt")
    (('a:b.prototxt', 12, 3), ('net.prototxt', 0, 0))
    """
    match = _PLACE.fullmatch(where)
    assert match
    return match[1], int(match[2] or 0), int(match[3] or 0)


def render_json(findings: Sequence[Finding]) -> str:
    """Write findings as a JSON array of objects; values that JSON has no number for are text."""
    return json.dumps([_plain(found) for found in findings], indent=2)


def render_rules() -> str:
    """List the rules, gravest first, each on a line; `(--fix)` ends those that can be fixed."""
    ordered = sorted(RULES, key=lambda name: (SEVERITIES.index(RULES[name].severity), name))
    width = max(map(len, ordered), default=0)
    marks = {name: " (--fix)" if RULES[name].fix else "" for name in ordered}
    return "\n".join(
        f"{name:{width}}  {RULES[name].severity:7}  {RULES[name].looks_for}{marks[name]}" for name in ordered
    )


def _block(group: Sequence[Finding], paint: Paint) -> str:
    found = group[0]
    state = paint(f"{found.severity}, accepted" if found.accepted else found.severity, _colour(found))
    phase = "" if _is_named(found) else f"{found.phase}: "
    head = f"{paint(printable(found.where), 'bold')}: {state} [{found.id}] {printable(phase + found.what)}"
    lines = [found.effect, f"accepted: {found.accepted}" if found.accepted else f"write: {found.write}"]
    places = [one.where if _is_named(one) else f"{one.where} ({one.phase})" for one in group[1:]]
    if places:
        more = f", ... ({len(group)} in all)" if len(places) > _MOST_PLACES else ""
        lines.append(f"also at {', '.join(places[:_MOST_PLACES])}{more}")
    return "\n".join([head, *(f"    {printable(line)}" for line in lines if line.strip())])


def _colour(found: Finding) -> str:
    return "green" if found.accepted else _COLOURS[found.severity]


def _is_named(found: Finding) -> bool:
    """Whether its text names its phase, if it has one."""
    return not found.phase or bool(re.search(rf"\b{re.escape(found.phase)}\b", found.what))


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
    names = [name for name in Finding.__slots__ if name != "fixes"]
    return {name: getattr(found, name) for name in names} | {"values": values}
