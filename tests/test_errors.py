"""Errors carry what is decided by: their words are made once, and never read again."""

from __future__ import annotations

import ast
import copy
import errno
import os
import pickle
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from caffe_recipes.errors import (
    ClusterError,
    CommandTimedOut,
    DiskFailed,
    HostFailed,
    InputError,
    hint_for,
    hint_for_reason,
)
from caffe_recipes.trust import UntrustedPathError

SOURCE = Path(__file__).resolve().parent.parent / "caffe_recipes"
FILES = sorted(SOURCE.rglob("*.py"))
WORDS = {"what", "where", "hint", "without_hint"}
READS = {
    *("startswith", "endswith", "partition", "rpartition", "split", "rsplit", "splitlines", "replace"),
    *("removeprefix", "removesuffix", "find", "rfind", "index", "count", "strip", "isdigit", "lower"),
}


@cache
def find_classes() -> set[str]:
    """Return the names of our errors' classes: those that inherit from CaffeRecipesError, however far."""
    bases = {
        node.name: {base.id for base in node.bases if isinstance(base, ast.Name)}
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    }
    found = {"CaffeRecipesError"}
    while more := {name for name, of in bases.items() if of & found} - found:
        found |= more
    return found


def names_in(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def find_read_words(source: str) -> Iterator[int]:
    """Yield the lines of a module in which the words of an error of ours decide something."""
    nodes = [*ast.walk(ast.parse(source))]
    handlers = [node for node in nodes if isinstance(node, ast.ExceptHandler) and node.name]
    ours = [
        handler
        for handler in handlers
        if handler.type is not None and names_in(handler.type) & find_classes()
    ]
    caught = {handler.name for handler in ours} | {"error", "failure", "refusal"}
    texts = {
        node
        for handler in ours
        for node in ast.walk(handler)
        if isinstance(node, ast.Call) and "str" in names_in(node.func)
        if any(isinstance(word, ast.Name) and word.id == handler.name for word in node.args)
    }

    def is_wording(node: ast.AST) -> bool:
        if not isinstance(node, ast.Attribute) or node.attr not in WORDS:
            return node in texts
        of = node.value
        return (of.attr if isinstance(of, ast.Attribute) else getattr(of, "id", "")) in caught

    for node in nodes:
        deciding: list[ast.expr] = []
        if isinstance(node, ast.Compare):
            deciding = [node.left, *node.comparators]
        elif isinstance(node, ast.If | ast.IfExp | ast.While | ast.Assert):
            deciding = [node.test]
        elif isinstance(node, ast.BoolOp):
            has_default = isinstance(node.op, ast.Or) and isinstance(node.values[-1], ast.Constant)
            deciding = [] if has_default else [*node.values]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            is_re = isinstance(node.func.value, ast.Name) and node.func.value.id == "re"
            deciding = [*node.args] if is_re else [node.func.value] if node.func.attr in READS else []
        yield from (each.lineno for each in deciding if is_wording(each))


def test_no_code_decides_by_the_text_of_an_error() -> None:
    found = {str(path.relative_to(SOURCE)): list(find_read_words(path.read_text())) for path in FILES}
    assert not {path: lines for path, lines in found.items() if lines}


@pytest.mark.parametrize(
    "body",
    [
        "if error.what.startswith('interrupted'): pass",
        "if 'host' in error.where: pass",
        "if error.where == host: pass",
        "x = error.hint or 'repeat it' if error.where else ''",
        "x = error.what.replace('sh', program)",
        "x = str(error).removeprefix('caffe-torch: ')",
        "x = re.match('no room', error.what)",
    ],
)
def test_code_that_reads_the_text_of_an_error_is_found(body: str) -> None:
    source = f"try: act()\nexcept InputError as error:\n    {body}\n"
    assert list(find_read_words(source))


def test_building_a_line_from_an_error_is_not_reading_it() -> None:
    source = "try: act()\nexcept InputError as error:\n    say(f'{error.what}; {error}', str(error))\n"
    assert list(find_read_words(source)) == []


def test_the_text_of_an_error_is_made_of_its_fields() -> None:
    error = HostFailed("node1", "cannot be read", "check the disk", "/tmp/lmdb")
    assert str(error) == "node1:/tmp/lmdb: cannot be read; check the disk"
    assert (error.host, error.place, error.where) == ("node1", "/tmp/lmdb", "node1:/tmp/lmdb")
    assert str(InputError("", "no recipe is given")) == "no recipe is given"


def test_an_error_that_is_reworded_keeps_its_class_and_fields() -> None:
    error = CommandTimedOut("node1", "sinfo", 20.0).reworded(what="did not end (and 2 more hosts failed)")
    assert type(error) is CommandTimedOut
    assert (error.host, error.program, error.limit_s) == ("node1", "sinfo", 20.0)
    assert str(error) == "node1: did not end (and 2 more hosts failed); check the host and its disks"


@pytest.mark.parametrize(
    "error",
    [
        InputError("a.yaml:3", "unknown key", "did you mean 'net'?"),
        HostFailed("node1", "is down", "check it", "/tmp"),
        DiskFailed("/tmp/a", OSError(28, "No space left on device")),
        HostFailed("node1", "is down").reworded(what="is down (and 2 more hosts failed)"),
    ],
)
def test_an_error_survives_pickling_and_copying(error: Exception) -> None:
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert (type(other), str(other), vars(other)) == (type(error), str(error), vars(error))


def test_a_failure_of_a_host_is_not_bad_input_and_has_its_own_exit_code() -> None:
    error = HostFailed("node1", "is down")
    assert not isinstance(error, InputError)
    assert isinstance(error, ClusterError)
    assert error.exit_code == InputError("", "").exit_code == 2


@pytest.mark.parametrize(
    ("number", "hint"),
    [
        (errno.ENOSPC, "free space on its disk"),
        (errno.EDQUOT, "delete files of yours there, or have your quota raised"),
        (errno.EROFS, "have its file system mounted read-write, or use another folder"),
        (errno.EACCES, "check its permissions, and those of its folders"),
        (errno.EIO, "have its disk checked"),
        (errno.ESTALE, "have its file system mounted again"),
        (errno.ENOENT, "check the path"),
    ],
)
def test_the_hint_follows_the_error_of_the_disk(number: int, hint: str) -> None:
    error = OSError(number, os.strerror(number))
    assert hint_for(error, "check the path") == hint
    assert hint_for_reason(f"mkdir: '/tmp/a': {os.strerror(number)}", "check the path") == hint
    if hint != "check the path":
        assert DiskFailed("/tmp/a", error).hint == hint


def test_an_untrusted_path_has_a_hint_of_its_own_in_its_text() -> None:
    assert hint_for(UntrustedPathError("is world-writable"), "check it") == ""
