"""Rewrite prototxt files: compute all new texts first, then write them or show a diff.

Nothing is written until every new text is known, and a formatted one parses to the same message. Each file is
replaced atomically and keeps its mode; a symbolic link is followed.

Formatting changes the whole text. Fixing makes the edits of `lint --fix`, and leaves all other bytes as they
are.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.message import Message

from caffe_recipes.caffe.dialects.schema import parse_lenient
from caffe_recipes.caffe.prototxt import (
    MOST_BYTES,
    Document,
    empty_file_error,
    encode_prototxt,
    read_prototxt,
    render_checked,
)
from caffe_recipes.caffe.text.comments import comment_text
from caffe_recipes.caffe.text.tokens import TOKEN, line_column
from caffe_recipes.errors import InputError, hint_for
from caffe_recipes.files.atomic_writes import write_whole
from caffe_recipes.files.unified_diff import render_unified
from caffe_recipes.quoting import Home, is_quotable, refuse_foreign_link
from caffe_recipes.review.lint.findings import Finding, Fix, split_place
from caffe_recipes.review.naming import walk_prototxts


@dataclass(frozen=True)
class Rewrite:
    """The old and the new text of a file; `document` is what was read, if it was parsed."""

    path: str
    before: str
    after: str
    document: Document[Message] | None = None

    @property
    def is_change(self) -> bool:
        """Whether the texts differ."""
        return self.before != self.after


def find_prototxts(paths: Iterable[str]) -> list[str]:
    """Replace each folder with the `*.prototxt` and `*.pt` files below it, sorted; list each file once.

    Skips folders whose names start with a dot, and does not follow links to folders. Raises InputError for a
    folder without prototxts.
    """
    by_real_path: dict[str, str] = {}
    for path in paths:
        files = [path]
        if os.path.isdir(path):  # noqa: PTH112 - a NUL is no error here
            files = [file for _, found in walk_prototxts(path) for file in found if os.path.isfile(file)]  # noqa: PTH113
        if not files:
            raise InputError(path, "contains no prototxt files", "name the files")
        for file in files:
            by_real_path.setdefault(os.path.realpath(file) if "\0" not in file else file, file)
    return list(by_real_path.values())


def plan_format(path: str, *, max_bytes: int = MOST_BYTES, is_found: bool = False) -> Rewrite:
    """Read a file and format it canonically. Raises PrototxtError if it is not a prototxt.

    Also raises it if the file, which `is_found` in a folder, is a link to a file that is not the user's.
    """
    if is_found:
        refuse_foreign_link(path, Path(path).parent)
    text = read_prototxt(path, max_bytes)
    return format_text(text, path)


def format_text(text: str, path: str) -> Rewrite:
    """Format a prototxt of any kind and Caffe. Raises PrototxtError if it is not one, or has no fields."""
    document = parse_lenient(text, path)
    if not document.message.ListFields():
        raise empty_file_error(path)
    return Rewrite(path, text, render_checked(document.message, document.comments, path), document)


def render_diff(rewrite: Rewrite) -> str:
    """Render a change as a unified diff; empty if nothing changes."""
    return render_unified(rewrite.path, rewrite.before, rewrite.after)


def check_writable(path: str, hint: str) -> None:
    """Raise InputError for a path that exists but is not a regular file, such as a pipe or a folder."""
    if Path(path).exists() and not Path(path).is_file():
        raise InputError(path, "is not a regular file that can be written", hint)


def save_rewrites(rewrites: Iterable[Rewrite]) -> list[Rewrite]:
    """Write the changed files and return them. Raises InputError, with nothing written, if one cannot be.

    All new texts are in temporary files beside the originals before the first one is renamed.
    """
    changed = [rewrite for rewrite in rewrites if rewrite.is_change]
    try:
        write_whole({Path(rewrite.path): encode_prototxt(rewrite.after) for rewrite in changed})
    except OSError as error:
        what = f"cannot be written ({error.strerror})"
        raise InputError(error.filename, what, hint_for(error, "check its folder and the disk")) from error
    return changed


_Edit = tuple[int, int, str]  # start, end, new text


def plan_fixes(
    findings: Sequence[Finding], homes: Sequence[Home], max_bytes: int = MOST_BYTES
) -> tuple[list[Rewrite], list[Finding], list[str]]:
    """Return the fixed files, the fixed findings, and generated files, whose findings only a recipe can fix.

    Skips accepted findings, and files that are in none of `homes`, as `is_quotable` says.

    Raises InputError for a file that is not a regular file of this user, and PrototxtError if a fixed file
    could no longer be parsed.
    """
    from caffe_recipes.render.headers import is_generated  # pydantic: not for `fmt` and `upgrade`

    by_path: dict[str, list[Finding]] = {}
    for found in findings:
        if found.fixes and not found.accepted:
            by_path.setdefault(split_place(found.fixes[0].where)[0], []).append(found)
    rewrites, fixed, generated = [], [], []
    for path, wanted in by_path.items():
        if not is_quotable(path, *homes):
            continue
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
            parse_lenient(rewrites[-1].after, path)
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
    return (start, end, _indent(text, offset, fix.new)) if fix.new else _removal(text, offset, end)


def _indent(text: str, offset: int, new: str) -> str:
    """Return the lines of a value indented as the field at an offset, or joined if it shares its line."""
    before = text[text.rfind("\n", 0, offset) + 1 : offset]
    return new.replace("\n", " " if before.strip() else f"\n{before}")


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
