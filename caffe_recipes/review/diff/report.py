"""Render a comparison as text or JSON, also as git's external diff driver."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from caffe_recipes.errors import InputError
from caffe_recipes.review.diff import git
from caffe_recipes.review.diff.changes import Comparison
from caffe_recipes.review.diff.compare import compare_files
from caffe_recipes.review.diff.sources import TextFile
from caffe_recipes.review.text_columns import Paint, align_columns, keep_plain
from caffe_recipes.wording import printable

if TYPE_CHECKING:
    from caffe_recipes.review.diff.changes import Change, FileDiff, Json, RateChange, ShownValue
    from caffe_recipes.review.diff.compare import DiffOptions

# A change shared by this many layers, or this many added or removed layers in a row, are one line.
_FOLD_SHARED = 3
_FOLD_ROW = 6
_MOST_NAMED = 3


def render_comparison(comparison: Comparison, paint: Paint = keep_plain) -> list[str]:
    """Return a comparison as lines, coloured by `paint(text, colour)`; empty if the sides are equal.

    Files with identical changes are reported together.
    """
    lines = [f"recipe: {_change_line(change, paint)}" for change in comparison.values]
    groups: defaultdict[Hashable, list[FileDiff]] = defaultdict(list)
    for file in comparison.files:
        key = file.path if file.status != "changed" else repr((file.changes, file.rates, file.note))
        groups[key].append(file)
    for files in groups.values():
        inner = _file_lines(files[0], paint)
        if comparison.single:
            lines += inner
        elif files[0].status == "changed":
            title = ", ".join(file.path for file in files)
            lines += [paint(f"{title}:", "bold"), *(f"  {line}" for line in inner)]
        else:
            lines += [_status_line(files[0], paint)]
    return lines


def render_comparison_json(comparison: Comparison, **more: Json) -> str:
    """Return a comparison as JSON: each change separately, values as Caffe reads them, then `more` keys."""
    return json.dumps(
        {
            "old": comparison.old,
            "new": comparison.new,
            "equal": comparison.equal,
            "recipe": [_change_json(change) for change in comparison.values],
            "files": [_file_json(file) for file in comparison.files],
            **more,
        },
        indent=2,
        allow_nan=False,
    )


def _status_line(file: FileDiff, paint: Paint) -> str:
    if file.status == "renamed":
        return f"{_paint_verb('renamed', paint)} {file.renamed_from} -> {file.path}"
    if file.status == "unreadable":
        return f"{paint('not compared', 'red')} {file.path}: {file.note}"
    return f"{_paint_verb(file.status, paint)} {file.path}"


def _paint_verb(verb: str, paint: Paint) -> str:
    return paint(verb, {"added": "green", "removed": "red"}.get(verb, "yellow"))


def _file_lines(file: FileDiff, paint: Paint) -> list[str]:
    lines = [*_change_lines(file.changes, paint), *_rate_lines(file.rates)]
    return [*lines, *([f"note: {file.note}"] if file.note else [])]


def _change_lines(changes: Sequence[Change], paint: Paint) -> Iterator[str]:
    """Yield a line for each change; a change that many layers share is one line, at the first of them."""
    layers: defaultdict[Hashable, list[str]] = defaultdict(list)
    for change in changes:
        layers[_fold_key(change)].append(change.layer)
    shown = set()
    for kind, run in groupby(changes, key=lambda change: change.kind):
        row = list(run)
        if kind in ("added", "removed") and len(row) >= _FOLD_ROW:
            yield _folded_line(row, paint)
            continue
        for change in row:
            sort = _fold_key(change)
            if not change.layer or len(layers[sort]) < _FOLD_SHARED:
                yield _change_line(change, paint)
            elif sort not in shown:
                shown.add(sort)
                yield f"{change.field} {_old_to_new(change, paint)} in {_name_layers(layers[sort])}"


def _name_layers(names: Sequence[str]) -> str:
    more = ", ..." if len(names) > _MOST_NAMED else ""
    return f"{len(names)} layers ({', '.join(names[:_MOST_NAMED])}{more})"


def _folded_line(row: Sequence[Change], paint: Paint) -> str:
    """Return one line for many added or removed layers in a row; only the JSON has their contents."""
    verb, place = (row[0].kind, row[0].new if row[0].kind == "added" else row[0].old)
    names = ", ".join(f"{change.layer} ({change.note.partition(' ')[0]})" for change in row)
    return f"{_paint_verb(verb, paint)} {len(row)} layers, {place.text}: {names}"


def _fold_key(change: Change) -> Hashable:
    if change.kind != "changed":
        return id(change)
    return change.field, change.old.text, change.new.text, change.note


def _change_line(change: Change, paint: Paint) -> str:
    note = f" ({change.note})" if change.note else ""
    if change.kind == "changed":
        layer = f"{change.layer}: " if change.layer else ""
        return f"{layer}{change.field} {_old_to_new(change, paint)}{note}"
    verb = _paint_verb(change.kind, paint)
    if change.kind == "added":
        return f"{verb} {change.layer}, {change.new.text}: {change.note}"
    if change.kind == "removed":
        return f"{verb} {change.layer}, {change.old.text}{note}"
    what = "" if change.kind == "renamed" else f"{change.layer}: "
    return f"{verb} {what}{change.old.text} -> {change.new.text}{note}"


def _old_to_new(change: Change, paint: Paint) -> str:
    return f"{paint(change.old.text, 'red')} -> {paint(change.new.text, 'green')}"


def _rate_lines(rates: Sequence[RateChange]) -> Iterator[str]:
    table = align_columns([(rate.name, _rate_text(rate)) for rate in rates])
    for part, row in groupby(zip(rates, table, strict=True), key=lambda pair: pair[0].part):
        yield f"the rate of {part}:" if part else "the rate:"
        yield from (f"  {line}" for _, line in row)


def _rate_text(rate: RateChange) -> str:
    places = rate.iterations
    if rate.name == "greatest ratio" and rate.old and rate.new:
        times = f"{rate.new / rate.old:.4g} times"
        return f"{rate.old:.6g} -> {rate.new:.6g} at iteration {places[0]} ({times})"
    shown = {"iterations": "{:,.0f}", "epochs": "{:.2f}"}.get(rate.name, "{:.6g}")
    old, new = ("none" if value is None else shown.format(value) for value in (rate.old, rate.new))
    text = f"{old}, unchanged" if rate.old == rate.new else f"{old} -> {new}"
    if places[0] != places[1] and None not in places:
        return f"{text} (iteration {places[0]} -> {places[1]})"
    place = next((place for place in places if place), None)
    return text if place is None else f"{text} (iteration {place})"


def _file_json(file: FileDiff) -> Json:
    return {
        "path": printable(file.path),
        "status": file.status,
        "kind": file.kind or None,
        "renamed_from": printable(file.renamed_from) or None,
        "note": file.note or None,
        "changes": [_change_json(change) for change in file.changes],
        "rate": _rates_json(file.rates),
    }


def _change_json(change: Change) -> Json:
    return {
        "kind": change.kind,
        "layer": change.layer or None,
        "field": change.field or None,
        "old": change.old.value,
        "new": change.new.value,
        "defaults": [side for side in ("old", "new") if _is_default(getattr(change, side))],
        "note": change.note or None,
    }


def _is_default(given: ShownValue) -> bool:
    return not given.is_set and given.value is not None


def _rates_json(rates: Sequence[RateChange]) -> Json:
    """Return the numbers by name; in a file of several phases, by the field of the phase first."""
    parts = {
        part: {rate.name.replace(" ", "_"): _rate_json(rate) for rate in row}
        for part, row in groupby(rates, key=lambda rate: rate.part)
    }
    return parts.get("", parts)


def _rate_json(rate: RateChange) -> Json:
    places: dict[str, Json] = {"iteration": list(rate.iterations)} if rate.iterations != (None, None) else {}
    return {"old": _number(rate.old), "new": _number(rate.new), **places}


def _number(value: float | None) -> Json:
    return value if value is None or math.isfinite(value) else str(value)  # JSON has no infinity


_NO_FILE = "/dev/null"  # git passes it for a side without the file


@dataclass(frozen=True)
class _GitArguments:
    """The arguments from git: a path, the file and mode of each side, and the new path of a renamed file."""

    path: str
    old_file: str
    old_mode: str
    new_file: str
    new_mode: str
    new_path: str


def render_for_git(
    words: Sequence[str], options: DiffOptions, paint: Paint = keep_plain
) -> tuple[list[str], str]:
    """Return the lines to print for the arguments that git appends to the driver's command, and a text diff.

    Only files that are not prototxts are compared line by line. Raises InputError for other arguments.
    """
    if len(words) == 1:
        return [f"{words[0]}: not merged"], ""
    if len(words) not in (7, 9):
        hint = 'set it with: git config diff.prototxt.command "caffe-recipes diff --git"'
        raise InputError("", f"git passes 7 or 9 arguments, not {len(words)}", hint)
    path, old_file, _, old_mode, new_file, _, new_mode = words[:7]
    args = _GitArguments(path, old_file, old_mode, new_file, new_mode, words[7] if len(words) == 9 else path)
    head = paint(f"diff {_title(args)}", "bold")
    lines, text = _render_difference(args, options, paint)
    return [head, *_mode_change(args), *lines], text


def _title(args: _GitArguments) -> str:
    return args.path if args.path == args.new_path else f"{args.path} -> {args.new_path}"


def _mode_change(args: _GitArguments) -> list[str]:
    if _NO_FILE in (args.old_file, args.new_file) or args.old_mode == args.new_mode:
        return []
    return [f"mode {args.old_mode} -> {args.new_mode}"]


def _render_difference(args: _GitArguments, options: DiffOptions, paint: Paint) -> tuple[list[str], str]:
    if args.old_file == _NO_FILE or args.new_file == _NO_FILE:
        what = "added" if args.old_file == _NO_FILE else "removed"
        return [what], git.diff_as_text(args.old_file, args.new_file)
    try:
        old, new = (
            TextFile(path, path, Path(file).read_bytes(), lambda _: None)
            for path, file in ((args.path, args.old_file), (args.new_path, args.new_file))
        )
        if old.data == new.data:
            return [], ""
        found = compare_files(old, new, options)
    except Exception as error:  # an uncaught error would stop `git diff` halfway
        return [f"compared as text, because {error}"], git.diff_as_text(args.old_file, args.new_file)
    if found is None:
        return ["no difference in meaning"], ""
    return render_comparison(Comparison(args.path, args.new_path, (found,), single=True), paint), ""
