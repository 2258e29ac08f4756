"""Reports of findings: as text, JSON or GitHub annotations; and the list of the rules."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from caffe_recipes.review.lint.findings import SEVERITIES, Finding, split_place
from caffe_recipes.review.lint.registry import load_rules
from caffe_recipes.review.text_columns import align_columns, join_blocks, keep_plain, wrap_line
from caffe_recipes.wording import describe_count, printable, shorten

if TYPE_CHECKING:
    from caffe_recipes.review.text_columns import Paint


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


def render_findings_json(findings: Sequence[Finding]) -> str:
    """Render findings as a JSON array of objects; infinite and NaN values are written as strings."""
    return json.dumps([_to_json(found) for found in findings], indent=2)


def render_rules(width: int | None = None) -> list[str]:
    """List the rules, one per line, most severe first; `(--fix)` marks those that `--fix` can fix."""
    ordered = sorted(load_rules().values(), key=lambda one: (SEVERITIES.index(one.severity), one.name))
    rows = [(one.name, one.severity, f"{one.summary}{' (--fix)' if one.fix else ''}") for one in ordered]
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
    >>> from dataclasses import replace
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
