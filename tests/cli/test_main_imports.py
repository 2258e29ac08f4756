"""What starts fast stays so: the package and `--help` import none of the heavy libraries."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "cv2", "matplotlib", "paramiko", "numpy", "sklearn", "mpi4py")
CALL = "import sys; from caffe_recipes.cli.main import main; sys.argv = ['caffe-recipes', *{words}]; main()"


def heavy_imports_of(code: str) -> str:
    report = f"import sys; print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr)"
    whole = f"try:\n  {code}\nfinally:\n  {report}"
    done = subprocess.run([sys.executable, "-c", whole], capture_output=True, text=True, check=True)
    return done.stderr.strip()


@pytest.mark.parametrize(
    "code",
    [
        "import caffe_recipes",
        "import caffe_recipes as cr; cr.generate(cr.load_recipe('digits-local'))",
        CALL.format(words=["--help"]),
        CALL.format(words=["generate", "--help"]),
        CALL.format(words=["show", "digits-local"]),
    ],
)
def test_no_heavy_library_is_imported(code: str) -> None:
    assert heavy_imports_of(code) == "[]"


def test_a_heavy_import_is_seen() -> None:
    assert heavy_imports_of("import numpy") == "['numpy']"


SLOW = ("google.protobuf", "jinja2", "pydantic", "rich", "yaml", "subprocess", "caffe_recipes.files")
LIGHT = ("generate", "lint", "preflight", "run", "status", "attach", "logs", "cancel")


def test_the_help_of_a_command_imports_no_command_body() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _HELPS.format(commands=LIGHT, slow=SLOW)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""


def test_the_list_of_rules_has_every_rule_and_imports_no_model_of_recipes() -> None:
    done = subprocess.run([sys.executable, "-c", _RULES], capture_output=True, text=True, check=True)
    assert done.stderr == ""


_RULES = """
import pkgutil, sys
from importlib import import_module
from caffe_recipes.cli.main import commands
commands(["lint", "--rules"], standalone_mode=False)
if "pydantic" in sys.modules:
    print("imports pydantic", file=sys.stderr)
from caffe_recipes.review import lint
from caffe_recipes.review.lint.registry import load_rules
listed = set(load_rules())
for module in pkgutil.walk_packages(lint.__path__, "caffe_recipes.review.lint."):
    import_module(module.name)
if lacking := set(load_rules()) - listed:
    print("lacks", *lacking, file=sys.stderr)
"""
_HELPS = """
import sys
from caffe_recipes.cli.main import commands
for command in {commands}:
    commands([command, "--help"], standalone_mode=False)
    if found := [name for name in {slow} if name in sys.modules]:
        print(command, "imports", *found, file=sys.stderr)
"""
