"""What git asks of an external diff driver: two files' difference as text, whatever they hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from caffe_recipes.errors import InputError
from caffe_recipes.review.diff import git
from caffe_recipes.review.diff.changes import Comparison
from caffe_recipes.review.diff.compare import Options, compare_files
from caffe_recipes.review.diff.report import Paint, render_comparison
from caffe_recipes.review.diff.sources import TextFile

_NOTHING = "/dev/null"


@dataclass(frozen=True)
class _Call:
    """Git's words: a path with each side's file and mode, and for a renamed file its new path."""

    path: str
    old_file: str
    old_mode: str
    new_file: str
    new_mode: str
    new_path: str


def render_for_git(words: Sequence[str], options: Options, paint: Paint = lambda text, colour: text) -> str:
    """Write the difference that git asks for with the words that it adds to the driver's command.

    Files that are no prototxt are compared line by line. Raises InputError for words that are not git's.
    """
    if len(words) == 1:
        return f"{words[0]}: not merged\n"
    if len(words) not in (7, 9):
        hint = 'it is for git config diff.prototxt.command "caffe-recipes diff --git"'
        raise InputError("", f"git gives 7 or 9 words, not {len(words)}", hint)
    path, old_file, _, old_mode, new_file, _, new_mode = words[:7]
    call = _Call(path, old_file, old_mode, new_file, new_mode, words[7] if len(words) == 9 else path)
    head = paint(f"diff {_shown(call)}", "bold")
    return f"{head}\n{_modes(call)}{_difference(call, options, paint)}"


def _shown(call: _Call) -> str:
    return call.path if call.path == call.new_path else f"{call.path} -> {call.new_path}"


def _modes(call: _Call) -> str:
    if _NOTHING in (call.old_file, call.new_file) or call.old_mode == call.new_mode:
        return ""
    return f"mode {call.old_mode} -> {call.new_mode}\n"


def _difference(call: _Call, options: Options, paint: Paint) -> str:
    if call.old_file == _NOTHING or call.new_file == _NOTHING:
        what = "added" if call.old_file == _NOTHING else "removed"
        return f"{what}\n{git.diff_as_text(call.old_file, call.new_file)}"
    try:
        old, new = (
            TextFile(path, path, Path(file).read_bytes(), lambda _: None)
            for path, file in ((call.path, call.old_file), (call.new_path, call.new_file))
        )
        if old.data == new.data:
            return ""
        found = compare_files(old, new, options)
    except Exception as error:  # whatever it is, `git diff` would die of it half-way
        return f"as text, since {error}\n{git.diff_as_text(call.old_file, call.new_file)}"
    if found is None:
        return "no difference in meaning\n"
    return render_comparison(Comparison(call.path, call.new_path, (found,), single=True), paint)
