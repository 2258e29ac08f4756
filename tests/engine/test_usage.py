"""The help of `caffe-torch`, and of each of its commands."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from caffe_recipes.engine.main import COMMANDS, Flags, main
from caffe_recipes.engine.usage import render_usage


def test_help_of_a_command_is_that_of_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["time", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "caffe-torch time -model FILE" in shown and "-trace" in shown and "-gpu N" in shown
    assert "-out" not in shown and "caffe-torch train" not in shown


def test_the_help_names_all_commands_and_flags() -> None:
    assert set(COMMANDS) == {
        line.split()[1] for line in render_usage().splitlines() if line.startswith("  caffe-torch ")
    }
    for command in COMMANDS:
        assert f"caffe-torch {command}" in render_usage(command)
    for name in (field.name for field in fields(Flags)):
        pattern = rf"-{name.replace('_', '[-_]')}\b"
        assert re.search(pattern, render_usage()), name
