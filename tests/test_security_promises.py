"""SECURITY.md promises nothing that no test holds, and what is installed is pinned by digest."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "SECURITY.md").read_text("utf-8")
ROWS = [line.strip("|").split("|") for line in TEXT.splitlines() if line.startswith("| ")]
PROMISES = [(promise.strip(), held.strip()) for promise, held in ROWS if promise.strip() != "promise"]


def exists(test: str) -> bool:
    named = re.fullmatch(r"`(tests/[\w/]+\.py)::(test_\w+)`", test)
    if not named or not (ROOT / named[1]).is_file():
        return False
    return f"\ndef {named[2]}(" in (ROOT / named[1]).read_text("utf-8")


def test_each_promise_is_held_by_a_test_that_exists() -> None:
    broken = [(promise, test) for promise, held in PROMISES for test in held.split(", ") if not exists(test)]
    assert broken == []
    assert not exists("`tests/test_security_promises.py::test_that_does_not_exist`")


def test_the_document_promises_something_of_each_entry_point() -> None:
    assert len(PROMISES) >= 20
    for entry in ("`caffe-recipes run`", "`run.sh`", "`caffe-torch`"):
        assert re.search(rf"^###.*{re.escape(entry)}", TEXT, re.MULTILINE)


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
