"""The rule of trust, by its table of cases; test_node_trust.py asks node.sh about the same."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from caffe_recipes.trust import VARIABLE, UntrustedPathError, check_read, check_write, named_owners, trusting
from tests.trust_cases import CASES, USERS, Case

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can play another user")
# Answers as `ask` does, in a process of its own.
PROGRAM = """
import sys
from pathlib import Path
from caffe_recipes.trust import UntrustedPathError, check_read, check_write
for check in (check_read, check_write):
    try:
        check(Path(sys.argv[1]))
        print("True")
    except UntrustedPathError:
        print("False")
"""


@pytest.fixture
def top() -> Iterator[Path]:
    """Make a folder that nobody else can write to; /tmp is shared itself."""
    with tempfile.TemporaryDirectory(dir="/var") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def ask(case: Case, path: Path) -> list[bool]:
    """Return whether Python reads and writes."""
    answers = []
    with trusting([USERS[name] for name in case.named]):
        for check in (check_read, check_write):
            try:
                check(path)
                answers.append(True)
            except UntrustedPathError:
                answers.append(False)
    return answers


@as_root
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_python_decides_as_the_table_says(case: Case, top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = case.make(top)
    if not case.maps:
        monkeypatch.setattr(os, "geteuid", lambda: USERS[case.me])
        assert ask(case, path) == [case.read, case.write]
        return
    words = ["unshare", "--user", *case.maps, sys.executable, "-c", PROGRAM, str(path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no user namespace: {done.stderr.strip()[-100:]}")
    assert done.stdout.split() == [str(case.read), str(case.write)]


def test_a_refusal_names_the_step_and_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "open/file").touch()
    with pytest.raises(UntrustedPathError) as caught:
        check_read(tmp_path / "open/file")
    assert caught.value.why == f"its folder {tmp_path}/open can be changed by anybody"
    assert caught.value.strerror == f"{caught.value.why}; use a copy in a folder of your own"
    assert caught.value.filename == str(tmp_path / "open/file")


def test_named_owners_are_those_of_all_contexts_and_of_the_environment() -> None:
    with trusting((2, 1)), trusting((3,)):
        assert named_owners() == [1, 2, 3]
    assert named_owners() == []
    program = "from caffe_recipes.trust import named_owners; print(named_owners())"
    environment = os.environ | {VARIABLE: "7 5"}
    words = [sys.executable, "-c", program]
    assert subprocess.run(words, env=environment, capture_output=True, check=True).stdout == b"[5, 7]\n"
