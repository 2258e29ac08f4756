"""The table of lint's rules, and the findings that they report.

Each check registers its rule here. Findings are printed as text, JSON or GitHub annotations.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeVar

from caffe_recipes.review.columns import Paint, align_columns, join_blocks, keep_plain, wrap_line
from caffe_recipes.wording import describe_count, printable, shorten

Severity = Literal["error", "warning", "note"]

# Most severe first. With an error, Caffe trains nothing or the wrong thing; with a warning, it probably does;
# a note may matter.
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


@dataclass(frozen=True, slots=True)
class Fix:
    """An edit of a field that fixes a finding: set the field to `new`, or remove it if `new` is empty.

    With a `comment`, that comment beside or above the field is replaced with `new` instead. `where` is a
    place as in `Finding`; `field` is the name of the field at that place.
    """

    where: str
    field: str
    new: str = ""
    comment: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """A mistake: where it is (`file:line:column`), what is wrong, what will happen, and what to write.

    `where` is the path of a field (`layer[3].top[0]`) until `located` replaces it with a place. `values`
    holds the numbers in the text by name, unrounded. `phase` is the phase of the chain that the finding is
    about, if any. `accepted` is the recipe's reason for accepting it, or empty. `fixes` holds the edits that
    `--fix` makes.
    """

    id: str
    severity: Severity
    where: str
    what: str
    effect: str
    write: str
    values: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    phase: str = ""
    accepted: str = ""
    fixes: tuple[Fix, ...] = ()

    def located(self, where: Callable[[str], str], phase: str = "") -> Finding:
        """Return this finding with its field paths replaced by places, and with its phase set."""
        fixes = tuple(replace(fix, where=where(fix.where)) for fix in self.fixes)
        return replace(self, where=where(self.where), phase=phase or self.phase, fixes=fixes)


class Explanation(NamedTuple):
    """A rule's effect and advice in general terms, where its findings alone do not explain it."""

    effect: str
    write: str


Check = TypeVar("Check", bound=Callable[..., object])

# Every rule of the imported modules, by id. Importing `inputs` registers all of them.
RULES: dict[str, LintRule] = {}


@dataclass(frozen=True, slots=True)
class LintRule:
    """A rule, registered by its id (`name`), which can be given only once.

    `subject` is what it checks, and `summary` one line on what it reports. `what`, `effect` and `write` are
    the texts of its findings: templates (`str.format`) of their values, or empty if each finding has its
    own. `values` names those values that the JSON holds, too. `explanation` replaces `effect` and `write` in
    `--explain`. `fix` says what `--fix` does, or is empty. Use the rule as a decorator on each check that
    reports it.
    """

    subject: str
    name: str
    severity: Severity
    summary: str
    _: KW_ONLY
    what: str = ""
    effect: str = ""
    write: str = ""
    values: Sequence[str] = ()
    explanation: Explanation | None = None
    fix: str = ""

    def __post_init__(self) -> None:
        assert self.name not in RULES, self.name
        RULES[self.name] = self

    def __call__(self, check: Check) -> Check:
        """Return the check unchanged."""
        return check


rule = LintRule  # lower case for decorators

# What each kind of rule checks.
file_rule = partial(rule, "a file by itself")
rate_rule = partial(rule, "the rate of one solver")
value_rule = partial(rule, "the values of one solver")
chain_rule = partial(rule, "a chain of solvers, or a recipe")
start_rule = partial(rule, "a chain of solvers, and the weights that each starts from")
handover_rule = partial(rule, "a chain of solvers with their nets")
path_rule = partial(rule, "a solver, its net, and their paths")
recipe_rule = partial(rule, "a folder, or a recipe")
dialect_rule = partial(rule, "any prototxt, for the Caffe given by --dialect")


def finding(
    name: str,
    where: str,
    /,
    what: str = "",
    phase: str = "",
    *,
    effect: str = "",
    write: str = "",
    fixes: tuple[Fix, ...] = (),
    **values: Any,  # noqa: ANN401 - numbers and text
) -> Finding:
    """Return a finding of a rule, whose texts are those of the rule, with these values, unless given here.

    In the texts of the rule, `{phase}` is the phase. Raises KeyError for an unknown rule or a missing value.
    """
    rule = RULES[name]

    def fill(template: str) -> str:
        return template.format(phase=phase, **values)

    what, effect, write = what or fill(rule.what), effect or fill(rule.effect), write or fill(rule.write)
    reported = {key: values[key] for key in rule.values if key in values}
    return Finding(name, rule.severity, where, what, effect, write, reported, phase, fixes=fixes)


# The colour of each severity.
_COLOURS: Mapping[str, str] = {"error": "red", "warning": "yellow", "note": "cyan"}
_MAX_PLACES = 5


def render_findings(
    findings: Sequence[Finding],
    paint: Paint = keep_plain,
    width: int | None = None,
    *,
    is_verbose: bool = False,
) -> list[str]:
    """Return the lines of a report: a block for each, in order, and a line with the counts.

    A finding that occurs at several places is one block that lists the places, and is counted once. The
    accepted findings follow, a line each, unless it `is_verbose`: then each is a block like the others. Lines
    are wrapped, or those of accepted findings shortened, at `width`, if given.

    >>> one = Finding("join-jump", "warning", "s.prototxt", "what", "effect", "solver_mode: CPU")
    >>> print(*render_findings([one]), sep="\\n")
    s.prototxt: warning [join-jump] what
        effect
        help: solver_mode: CPU
    <BLANKLINE>
    0 errors, 1 warning, 0 notes
    """
    groups: dict[tuple[str, ...], list[Finding]] = {}
    for found in findings:
        same = (found.id, found.what, found.effect, found.write, found.accepted)
        groups.setdefault(same, []).append(found)
    in_full = [group for group in groups.values() if is_verbose or not group[0].accepted]
    blocks = [_render_block(group, paint, width) for group in in_full]
    accepted = [_render_accepted(group, width) for group in groups.values() if group not in in_full]
    return join_blocks([*blocks, *([accepted] if accepted else []), [_render_counts(list(groups.values()))]])


def render_github(findings: Sequence[Finding]) -> list[str]:
    """Render each finding that is not accepted as a GitHub workflow command that annotates its line.

    >>> one = Finding("join-jump", "note", "a,b.prototxt:4:1", "50%", "effect", "write")
    >>> print(*render_github([one]), sep="\\n")
    ::notice file=a%2Cb.prototxt,line=4,col=1,title=join-jump::50%25%0Aeffect%0Ahelp: write
    """
    return [_render_annotation(found) for found in findings if not found.accepted]


def _render_annotation(found: Finding) -> str:
    path, line, column = split_place(found.where)
    places: dict[str, str | int] = {"file": path, "line": line, "col": column, "title": found.id}
    properties = ",".join(f"{name}={_escape_property(value)}" for name, value in places.items() if value)
    phase = "" if _names_its_phase(found) else f"{found.phase}: "
    texts = [f"{phase}{found.what}", found.effect, f"help: {found.write}" if found.write else ""]
    text = _escape_data("\n".join(filter(None, texts)))
    command = "notice" if found.severity == "note" else found.severity
    return f"::{command} {properties}::{text}"


def _escape_data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escape_property(value: str | int) -> str:
    return _escape_data(str(value)).replace(":", "%3A").replace(",", "%2C")


_PLACE = re.compile(r"(.*?)(?::(\d+))?(?::(\d+))?", re.DOTALL)


def split_place(where: str) -> tuple[str, int, int]:
    """Split `file:line:column` into its parts; a missing line or column is 0.

    >>> split_place("a:b.prototxt:12:3"), split_place("net.prototxt")
    (('a:b.prototxt', 12, 3), ('net.prototxt', 0, 0))
    """
    match = _PLACE.fullmatch(where)
    assert match
    return match[1], int(match[2] or 0), int(match[3] or 0)


def render_json(findings: Sequence[Finding]) -> str:
    """Render findings as a JSON array of objects; infinite and NaN values are written as strings."""
    return json.dumps([_to_json(found) for found in findings], indent=2)


def render_rules(width: int | None = None) -> list[str]:
    """List the rules, one per line, most severe first; `(--fix)` marks those that `--fix` can fix."""
    ordered = sorted(RULES, key=lambda name: (SEVERITIES.index(RULES[name].severity), name))
    marks = {name: " (--fix)" if RULES[name].fix else "" for name in ordered}
    rows = [(name, RULES[name].severity, f"{RULES[name].summary}{marks[name]}") for name in ordered]
    return align_columns(rows, width=width)


def _render_block(group: Sequence[Finding], paint: Paint, width: int | None) -> list[str]:
    found = group[0]
    where, state = printable(found.where), f"{found.severity}, accepted" if found.accepted else found.severity
    phase = "" if _names_its_phase(found) else f"{found.phase}: "
    begin = f"{where}: {state} [{found.id}]"
    # No-break spaces keep the beginning, which is coloured, on one line.
    unbroken = begin.replace(" ", "\N{NO-BREAK SPACE}")
    first, *rest = wrap_line(f"{unbroken} {printable(phase + found.what)}", width, 2)
    head = f"{paint(where, 'bold')}: {paint(state, _colour_of(found))} [{found.id}]{first[len(begin) :]}"
    lines = [found.effect, f"accepted: {found.accepted}" if found.accepted else f"help: {found.write}"]
    places = [one.where if _names_its_phase(one) else f"{one.where} ({one.phase})" for one in group[1:]]
    if places:
        more = f", ... ({len(group)} in total)" if len(places) > _MAX_PLACES else ""
        lines.append(f"also at {', '.join(places[:_MAX_PLACES])}{more}")
    below = (wrap_line(f"    {printable(line)}", width, 6) for line in lines if line.strip())
    return [head, *rest, *(part for parts in below for part in parts)]


def _render_accepted(group: Sequence[Finding], width: int | None) -> str:
    """Return an accepted finding as one line: where it is, its rule, the reason, and how many places more."""
    found = group[0]
    more = f" (and {describe_count(len(group) - 1, 'place')} more)" if len(group) > 1 else ""
    phase = f"{found.phase}: " if found.phase else ""
    line = printable(f"{found.where}: accepted [{found.id}] {phase}{found.accepted}")
    return f"{shorten(line, width - len(more)) if width else line}{more}"


def _colour_of(found: Finding) -> str:
    return "green" if found.accepted else _COLOURS[found.severity]


def _names_its_phase(found: Finding) -> bool:
    """Return whether the text of a finding already names its phase, or the finding has none."""
    return not found.phase or bool(re.search(rf"\b{re.escape(found.phase)}\b", found.what))


def _render_counts(groups: Sequence[Sequence[Finding]]) -> str:
    """Return how many blocks of each severity there are, and in how many places if these are more.

    >>> one = Finding("join-jump", "note", "s.prototxt", "what", "effect", "write")
    >>> _render_counts([[one], [one, one], [replace(one, accepted="as published")]])
    '0 errors, 0 warnings, 2 notes in 3 places; 1 accepted'
    """
    kinds = {
        severity: [group for group in groups if not group[0].accepted and group[0].severity == severity]
        for severity in SEVERITIES
    }
    parts = [_count(kind, severity if len(kind) == 1 else f"{severity}s") for severity, kind in kinds.items()]
    accepted = [group for group in groups if group[0].accepted]
    return ", ".join(parts) + (f"; {_count(accepted, 'accepted')}" if accepted else "")


def _count(groups: Sequence[Sequence[Finding]], noun: str) -> str:
    places = sum(map(len, groups))
    return f"{len(groups)} {noun}" + (f" in {places} places" if places > len(groups) else "")


def _to_json(found: Finding) -> dict[str, Any]:
    values = {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in found.values.items()
    }
    names = [name for name in Finding.__slots__ if name != "fixes"]
    return {name: getattr(found, name) for name in names} | {"values": values}
