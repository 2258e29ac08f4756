"""node.sh decides by the table of cases as caffe_recipes/trust.py does."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from caffe_recipes.cluster.remote import program_text
from caffe_recipes.trust import VARIABLE
from tests import user_namespace
from tests.cluster.sh.test_node import SHELLS
from tests.trust_cases import CASES, USERS, Case
from tests.user_namespace import NO_NAMESPACE

# Asks both questions, each in a process that ends at a refusal.
ASK = """path=$1; set -- caffe-recipes:; . "$0/prelude.sh"; . "$0/node.sh"; target=$path; trust_owner_of /none
for reads in yes no; do (check_path "$path"; echo yes) | tail -n 1 | cut -c 1-22; done
if is_ours "$(stat -c %u -- "$path")" "${path%/*}/"; then echo own; else echo other; fi"""


@pytest.mark.promise("no data of others is used in a shared folder")
@pytest.mark.promise("a colleague's folder is used")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can play another user")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_host_decides_as_the_table_says(case: Case) -> None:
    """What is written on a host is believed later, so that both questions are asked of it."""
    with tempfile.TemporaryDirectory(dir="/var") as name:
        Path(name).chmod(0o755)
        path = case.make(Path(name))
        for part in ("prelude", "node"):
            script = Path(name, f"{part}.sh")
            script.write_text(program_text(part))
            script.chmod(0o644)
        user = [f"--reuid={USERS[case.me]}", f"--regid={USERS[case.me]}", "--clear-groups"]
        container = [sys.executable, user_namespace.__file__, str(USERS[case.me]), *case.maps, "--"]
        enter = container if case.maps else ["setpriv", *user]
        environment = os.environ | {VARIABLE: " ".join(str(USERS[name]) for name in case.named)}
        words = [*enter, *SHELLS["dash"], "-c", ASK, name, str(path)]
        done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False, cwd="/")
    if done.returncode == NO_NAMESPACE and case.maps:
        pytest.skip(f"no user namespace: {done.stderr.strip()[-100:]}")
    answers = {"yes": True, "caffe-recipes: refused": False, "own": True, "other": False}
    assert done.stderr == ""
    *trusted, own = (answers[line] for line in done.stdout.splitlines())
    assert trusted == [case.read, case.read and case.write]
    assert case.own in (None, own)
