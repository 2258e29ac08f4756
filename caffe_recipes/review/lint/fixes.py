"""Fix findings: the edits that `lint --fix` makes in a prototxt. All other bytes stay as they are."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path

from caffe_recipes.caffe.prototxt import MOST_BYTES, parse_document, read_prototxt
from caffe_recipes.caffe.text.comments import comment_text
from caffe_recipes.caffe.text.tokens import TOKEN, line_column
from caffe_recipes.errors import InputError
from caffe_recipes.render.headers import is_generated
from caffe_recipes.review.lint.rules import Finding, Fix, split_place
from caffe_recipes.review.rewrites import Rewrite

_Edit = tuple[int, int, str]  # start, end, new text


def plan_fixes(
    findings: Sequence[Finding], max_bytes: int = MOST_BYTES
) -> tuple[list[Rewrite], list[Finding], list[str]]:
    """Return the fixed files, the fixed findings, and generated files, whose findings only a recipe can fix.

    Skips accepted findings.

    Raises InputError for a file that is not a regular file of this user, and PrototxtError if a fixed file
    could no longer be parsed.
    """
    by_path: dict[str, list[Finding]] = {}
    for found in findings:
        if found.fixes and not found.accepted:
            by_path.setdefault(split_place(found.fixes[0].where)[0], []).append(found)
    rewrites, fixed, generated = [], [], []
    for path, wanted in by_path.items():
        text = read_prototxt(path, max_bytes)
        if is_generated(text):
            generated.append(path)
            continue
        edits: set[_Edit] = set()
        for found in wanted:
            own = {edit for fix in found.fixes if (edit := _plan_edit(text, fix))}
            fixed += [found] if own else []
            edits |= own
        if edits:
            _check_own(path)
            rewrites.append(Rewrite(path, text, _apply(text, edits)))
            parse_document(rewrites[-1].after, path)
    return rewrites, fixed, generated


def _check_own(path: str) -> None:
    status = Path(path).lstat()
    if not stat.S_ISREG(status.st_mode):
        raise InputError(path, "is not a regular file", "give --fix the file itself")
    if status.st_uid != os.geteuid():
        raise InputError(path, "belongs to another user", "copy it and fix the copy")


def _apply(text: str, edits: Iterable[_Edit]) -> str:
    for start, end, new in sorted(edits, reverse=True):
        text = f"{text[:start]}{new}{text[end:]}"
    return text


def _plan_edit(text: str, fix: Fix) -> _Edit | None:
    """Return the edit that a fix makes in this text; None if its field or comment is not found."""
    _, line, column = split_place(fix.where)
    starts = [0, *(index + 1 for index, char in enumerate(text) if char == "\n")]
    if not 0 < line <= len(starts) or not column:
        return None
    offset = starts[line - 1] + column - 1 + (line == 1 and text.startswith("\ufeff"))
    if fix.comment:
        return _comment_edit(text, line, fix)
    name = TOKEN.match(text, offset)
    if name is None or name["name"] != fix.field:
        return None
    start, end = _value_span(text, name.end())
    return (start, end, fix.new) if fix.new else _removal(text, offset, end)


def _comment_edit(text: str, line: int, fix: Fix) -> _Edit | None:
    """Return the edit that replaces a comment; if it occurs several times, the one nearest to its field."""
    spans = [
        match.span("comment")
        for match in TOKEN.finditer(text)
        if match["comment"] and comment_text(match["comment"]) == fix.comment
    ]
    if not spans:
        return None
    start, end = min(spans, key=lambda span: abs(line_column(text, span[0])[0] - line))
    return start, end, text[start:end].replace(fix.comment, fix.new)


def _value_span(text: str, after_name: int) -> tuple[int, int]:
    """Return the span of a field's value, without the colon or sign: a literal, a list or a block."""
    start = end = depth = 0
    for match in TOKEN.finditer(text, after_name):
        kind, mark = match.lastgroup or "", match["mark"] or " "
        if kind == "comment" or (not end and mark in ":-"):
            continue
        if end and not depth and not (kind == "string" and text[start] in "\"'"):
            break
        start, end = start if end else match.start(kind), match.end()
        depth += (mark in "{<[") - (mark in "}>]")
    return start, end


def _removal(text: str, start: int, end: int) -> _Edit:
    """Return the edit that removes a field: its whole lines if nothing else is on them."""
    while text[end : end + 1] in (",", ";"):
        end += 1
    line_start = text.rfind("\n", 0, start) + 1
    line_end = text.find("\n", end)
    line_end = len(text) if line_end < 0 else line_end
    before, after = text[line_start:start], text[end:line_end]
    if not before.strip() and not after.strip():
        return line_start, min(line_end + 1, len(text)), ""
    if not before.strip():
        return start, end + len(after) - len(after.lstrip(" \t")), ""
    return line_start + len(before.rstrip(" \t")), end, ""
