"""Paths on the command line: no command takes an empty one, which would be this folder."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from caffe_recipes.cli.main import COMMANDS, commands
from caffe_recipes.errors import InputError

MESSAGE = r"'{}' is not a (path|name|run); is a variable unset\?"

# Arguments that are text and not paths, and those that have checks of their own.
NO_PATHS = {
    "--account",
    "--constraint",
    "--explain",
    "--input",
    "--loss",
    "--mail",
    "--members",
    "--name",
    "--on",
    "--partition",
    "--phase",
    "--prefix",
    "--qos",
    "--ranks",
    "--sbatch-option",
    "--sort",
    "--stage",
    "--start",
    "--sweep",
    "--time",
    "--trust-owner",
    "--until",
}


def all_commands() -> Iterator[tuple[str, click.Command]]:
    for name in COMMANDS:
        command = commands.get_command(click.Context(commands), name)
        assert command is not None
        inner = command.commands if isinstance(command, click.Group) else {}
        yield from ((f"{name} {word}", one) for word, one in inner.items())
        yield name, command


def all_paths() -> list[tuple[str, click.Command, click.Parameter]]:
    """Return every text parameter that is not in NO_PATHS, so that a new one must be classified."""
    return [
        (name, command, param)
        for name, command in all_commands()
        for param in command.params
        if isinstance(param.type, click.types.StringParamType | click.Path)
        and not (isinstance(param, click.Option) and (param.is_flag or NO_PATHS.intersection(param.opts)))
    ]


def refuses(command: click.Command, param: click.Parameter, empty: str) -> bool:
    """Tell whether a parameter refuses an empty path, in an error that names the parameter."""
    several = param.multiple or param.nargs == -1
    try:
        param.process_value(click.Context(command), (empty,) if several else empty)
    except InputError as error:
        is_named = error.where in (*param.opts, param.human_readable_name)
        return is_named and re.search(MESSAGE.format(empty), str(error)) is not None
    return False


@pytest.mark.parametrize("empty", ["", " "])
def test_no_command_takes_an_empty_path(empty: str) -> None:
    taken = [
        f"{name} {param.human_readable_name}"
        for name, command, param in all_paths()
        if not refuses(command, param, empty)
    ]
    assert taken == []


def test_the_paths_of_commands_are_found() -> None:
    found = {f"{name} {param.name}" for name, _, param in all_paths()}
    assert {"generate out", "run caffe_root", "run recipe", "data build images", "tf log log"} <= found


def test_an_unset_variable_writes_nothing_and_the_option_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(commands, ["generate", "digits-local", "--out", ""])
    assert str(done.exception) == "--out: '' is not a path; is a variable unset?"
    assert not list(tmp_path.iterdir())


def test_diff_takes_no_empty_path_behind_its_dashes() -> None:
    done = CliRunner().invoke(commands, ["diff", "HEAD", "--", ""])
    assert str(done.exception) == "PATH: '' is not a path; is a variable unset?"
