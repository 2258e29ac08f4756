"""Each promise of SECURITY.md has tests, and what is installed is pinned by digest."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "SECURITY.md").read_text("utf-8")
PROMISES = re.findall(r"^- \*\*(.+?)\*\*: ", TEXT, re.MULTILINE)


def read_marks(text: str) -> list[str]:
    """Return the promises that tests in a text are marked with."""
    marks = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            calls = [each for each in node.decorator_list if isinstance(each, ast.Call)]
            named = [each for each in calls if ast.unparse(each.func) == "pytest.mark.promise"]
            marks += [each.args[0].value for each in named if isinstance(each.args[0], ast.Constant)]
    return [str(mark) for mark in marks]


def test_each_promise_has_tests_and_each_mark_names_a_promise() -> None:
    texts = (path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    marked = {mark for text in texts if "mark.promise(" in text for mark in read_marks(text)}
    assert marked == set(PROMISES)
    assert len(PROMISES) == len(set(PROMISES)) >= 20


def test_only_the_mark_of_a_test_counts() -> None:
    marked = '@pytest.mark.promise("kept")\ndef {}() -> None: ...\n'
    assert read_marks(marked.format("test_it")) == ["kept"]
    assert read_marks(marked.format("helper")) == read_marks("# " + marked.format("test_it")[:20]) == []


@pytest.mark.promise("what is installed is pinned")
def test_the_lock_pins_what_the_constraints_pin_by_digest() -> None:
    pinned = set((ROOT / "constraints.txt").read_text().split())
    entries = (ROOT / "requirements.lock").read_text().replace("\\\n", " ").splitlines()
    locked = {entry.split()[0]: entry.split()[1:] for entry in entries if not entry.startswith("#")}
    (torch,) = pinned - locked.keys()
    assert torch.startswith("torch==")
    assert locked.keys() <= pinned
    for name, digests in locked.items():
        assert digests, name
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", digest) for digest in digests), name


def test_the_build_backend_is_the_one_that_is_locked() -> None:
    (backend,) = re.findall(r'requires = \["(setuptools==[\d.]+)"\]', (ROOT / "pyproject.toml").read_text())
    assert backend in (ROOT / "constraints.txt").read_text().split()
