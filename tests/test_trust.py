"""The rule of trust, by its table of cases; test_node_trust.py asks node.sh about the same."""

from __future__ import annotations

import grp
import os
import pwd
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from caffe_recipes.trust import (
    VARIABLE,
    UntrustedPathError,
    check_read,
    check_write,
    is_changed_by_group,
    is_own_file,
    named_owners,
    trusting,
)
from tests.trust_cases import CASES, STRANGER, USERS, Case, as_root
from tests.user_namespace import NO_NAMESPACE

# Answers as `ask` does, in a user namespace.
PROGRAM = f"""
import sys
from pathlib import Path
sys.path.append({str(Path(__file__).parent.parent)!r})
from caffe_recipes.trust import UntrustedPathError, check_read, check_write, is_own_file
from tests.user_namespace import enter_namespaces
path, user, *maps = sys.argv[1:]
try:
    enter_namespaces(maps, int(user))
except OSError as error:
    print(error, file=sys.stderr)
    sys.exit({NO_NAMESPACE})
for check in (check_read, check_write):
    try:
        check(Path(path))
        print("True")
    except UntrustedPathError:
        print("False")
print(is_own_file(path))
"""


@pytest.fixture
def top() -> Iterator[Path]:
    """Make a folder that nobody else can write to; /tmp is shared itself."""
    with tempfile.TemporaryDirectory(dir="/var") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def ask(case: Case, path: Path) -> list[bool]:
    """Return whether Python reads and writes, and takes the file as the user's own."""
    answers = []
    with trusting([USERS[name] for name in case.named]):
        for check in (check_read, check_write):
            try:
                check(path)
                answers.append(True)
            except UntrustedPathError:
                answers.append(False)
    return [*answers, is_own_file(path)]


@pytest.mark.promise("no file is put where others could exchange it")
@pytest.mark.promise("a colleague's folder is used")
@as_root
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_python_decides_as_the_table_says(case: Case, top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = case.make(top)
    if not case.maps:
        monkeypatch.setattr(os, "geteuid", lambda: USERS[case.me])
        answers = ask(case, path)
    else:
        words = [sys.executable, "-c", PROGRAM, str(path), str(USERS[case.me]), *case.maps]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode == NO_NAMESPACE:
            pytest.skip(f"no user namespace: {done.stderr.strip()[-100:]}")
        assert done.stderr == ""
        answers = [word == "True" for word in done.stdout.split()]
    assert answers[:2] == [case.read, case.write]
    assert case.own in (None, answers[2])


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


@pytest.mark.promise("no file is put where others could exchange it")
@pytest.mark.promise("a colleague's folder is used")
@as_root
@pytest.mark.parametrize("user", [0, 1234])
def test_a_colleague_is_trusted_below_a_root_owned_folder_in_a_shared_folder(
    shared: Path, monkeypatch: pytest.MonkeyPatch, user: int
) -> None:
    """As in `node.sh`: tests/cluster/sh/test_node.py has the same folders."""
    for name, owner in {"users": 0, "users/bob": STRANGER, "users/team": 0, "eve": STRANGER}.items():
        (shared / name).mkdir()
        os.chown(shared / name, owner, STRANGER)
    (shared / "users/team").chmod(0o775)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    for path in ("users", "users/bob", "users/team", "users/../users/bob"):
        check_write(shared / path / "file")
    for path in ("eve", "users/../eve", "users/bob/../../eve"):
        with pytest.raises(UntrustedPathError, match=f"belongs to user {STRANGER}"):
            check_write(shared / path / "file")
    (shared / "users").chmod(0o775)  # its group is not the user's own
    with pytest.raises(UntrustedPathError, match="a group can replace files in its folder"):
        check_write(shared / "users/bob/file")


@pytest.mark.promise("no file is put where others could exchange it")
def test_a_group_of_the_user_s_name_with_other_members_is_not_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own").chmod(0o775)
    own = pwd.getpwuid(os.geteuid())
    os.chown(tmp_path / "own", -1, own.pw_gid)
    for members, is_shared in (([], False), ([own.pw_name], False), ([own.pw_name, "colleague"], True)):
        group = grp.struct_group((own.pw_name, "x", own.pw_gid, members))
        monkeypatch.setattr(grp, "getgrgid", lambda number, group=group: group)
        assert is_changed_by_group(tmp_path / "own") == is_shared
