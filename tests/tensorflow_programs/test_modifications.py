"""Each modification of the source stands in one place, which its comment and docs/tensorflow.md name."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tensorflow_programs.launch import PROGRAMS, ROOT

TO_VIII = ("i", "ii", "iii", "iv", "v", "vi", "vii", "viii")
TO_XVI = ("ix", "x", "xi", "xii", "xiii", "xiv", "xv", "xvi")
NUMBERS = ["2 a i", "2 b i", *(f"2 c {number}" for number in TO_VIII + TO_XVI)]


def find_comments(path: Path) -> Iterator[tuple[str, tuple[str, str | None]]]:
    """Yield the number of each modification that a comment names, with its file and function."""
    text = path.read_text()
    functions = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            line = token.start[0]
            around = (one.name for one in functions if one.lineno <= line <= (one.end_lineno or 0))
            place = path.name, next(around, None)
            yield from ((number, place) for number in re.findall(r"\b2 [abc] [ivx]+\b", token.string))


COMMENTS = [found for path in sorted(PROGRAMS.glob("*.py")) for found in find_comments(path)]


def test_each_modification_is_named_by_one_comment() -> None:
    assert sorted(number for number, _ in COMMENTS) == sorted(NUMBERS)


def test_the_table_in_docs_names_the_place_of_each_comment() -> None:
    text = (ROOT / "docs" / "tensorflow.md").read_text()
    rows = re.findall(r"^\| (2 [abc] [ivx]+) \| .* \| (.*) \|$", text, re.MULTILINE)
    assert [number for number, _ in rows] == NUMBERS
    named = {}
    for number, place in rows:
        words = re.findall(r"`([\w.]+)`", place)
        function = None if words[0].endswith(".py") else words.pop(0)
        named[number] = (words[0], function)
    assert named == dict(COMMENTS)


def imports_of(path: Path) -> set[str]:
    """Return the packages that a file imports anywhere."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    return found


@pytest.mark.parametrize("name", ["resnet_main", "resnet_eval", "resnet_check"])
def test_the_tensorflow_programs_import_nothing_from_caffe_recipes(name: str) -> None:
    seen, ahead = set[str](), {name}
    while ahead:
        seen |= ahead
        ours = {one for one in seen if (PROGRAMS / f"{one}.py").exists()}
        ahead = {found for one in ours for found in imports_of(PROGRAMS / f"{one}.py")} - seen
    assert {"resnet_model", "record_files", "tensorflow", "horovod"} <= seen
    assert "caffe_recipes" not in seen
    assert "caffe_recipes" in imports_of(PROGRAMS / "imagenet_to_gcs.py")
