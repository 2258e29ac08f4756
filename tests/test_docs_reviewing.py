"""What docs/reviewing.md and .pre-commit-hooks.yaml offer exists: commands, options, hooks, sample output."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import click
import yaml

from caffe_recipes.cli.main import COMMANDS, commands

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = (ROOT / "docs" / "reviewing.md").read_text()
HOOKS: list[dict[str, Any]] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
CALLS = sorted(set(re.findall(rf"caffe-recipes ((?:{'|'.join(COMMANDS)})\b[^\n`\"#|>]*)", DOCUMENT)))


def command_of(name: str) -> click.Command:
    command = commands.get_command(click.Context(commands), name)
    assert command is not None
    return command


def unknown_options(words: list[str]) -> list[str]:
    known = {option for param in command_of(words[0]).params for option in param.opts}
    return [word for word in words[1:] if word.startswith("-") and word not in known]


def blocks(language: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", DOCUMENT, re.DOTALL | re.MULTILINE)
    return [text for kind, text in found if kind == language]


def test_a_documented_call_has_a_command_and_its_options() -> None:
    assert [call for call in CALLS if unknown_options(shlex.split(call))] == []


def test_the_document_calls_what_this_test_looks_for() -> None:
    assert {call.split()[0] for call in CALLS} >= {"diff", "lint", "show", "plot", "lr", "generate", "schema"}
    assert unknown_options(["lr", "--evry"]) == ["--evry"]


def test_the_picture_and_the_yaml_are_sound() -> None:
    for path in re.findall(r"!\[.*\]\((.*)\)", DOCUMENT):
        assert (ROOT / "docs" / path).is_file()
    assert len([yaml.safe_load(block) for block in blocks("yaml")]) == 5
