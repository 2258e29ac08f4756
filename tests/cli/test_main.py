"""The command line as a whole: lazy commands, one line for each error, the exit codes."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml

from caffe_recipes.cli.main import COMMANDS, commands
from caffe_recipes.recipe.shipped import shipped_recipes
from tests.cli.command_line import call_main

PROGRAM = "import sys; from caffe_recipes.cli.main import main; sys.argv[0] = 'caffe-recipes'; main()"


def test_every_command_of_the_table_exists() -> None:
    found = {name: commands.get_command(click.Context(commands), name) for name in COMMANDS}
    assert [name for name, command in found.items() if command is None or command.name != name] == []


def test_help_lists_every_command() -> None:
    done = call_main("--help")
    assert done.returncode == 0
    for name, lazy in COMMANDS.items():
        assert f"  {name} " in done.stdout
        assert lazy.help in done.stdout


def every_command(
    group: click.Group = commands, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command
        if isinstance(command, click.Group):
            yield from every_command(command, (*path, name))
        else:
            yield (*path, name), command


def takes(path: tuple[str, ...], command: click.Command, line: str) -> bool:
    """Tell whether a line calls a command with options that it has."""
    words = shlex.split(re.split(" [>|] ", line)[0])
    try:
        command.make_parser(click.Context(command)).parse_args(words[len(path) + 1 :])
    except click.UsageError:
        return False
    return words[: len(path) + 1] == ["caffe-recipes", *path]


def test_each_command_has_examples_that_it_takes() -> None:
    wrong = []
    for path, command in every_command():
        head, *lines = (command.epilog or "").removeprefix("\b\n").splitlines() or [""]
        wrong += [path] if head != "Examples:" else []
        wrong += [(*path, line) for line in lines if len(line) >= 80 or not takes(path, command, line)]
    assert wrong == []


def test_each_option_is_explained_and_no_range_is_shown() -> None:
    wrong = []
    for path, command in every_command():
        text = command.get_help(click.Context(command, info_name=path[-1], terminal_width=80))
        if re.search("<=x|x>=|.{81}", text) or "..." in (command.help or "").splitlines()[0]:
            wrong.append(path)
        options = [option for option in command.params if isinstance(option, click.Option)]
        wrong += [(*path, *one.opts) for one in options if not (one.help or "").partition("[")[0].strip()]
    assert wrong == []


def test_version_is_the_package_s() -> None:
    done = call_main("--version")
    assert done.returncode == 0
    assert done.stdout.startswith("caffe-recipes, version ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["generat"], "Error: No such command 'generat'; did you mean 'generate'?\n"),
        (["gen"], "Error: No such command 'gen'; did you mean 'generate'?\n"),
        (["bogus"], "Error: No such command 'bogus'; see caffe-recipes --help\n"),
        (["data", "bild"], "Error: No such command 'bild'; did you mean 'build'?\n"),
        (["generate", "."], "Error: .: is a folder; give a recipe's name, or the path of its YAML\n"),
        (["generate"], "Error: Missing argument 'NAME|FILE.yaml...'; see caffe-recipes generate --help"),
        (["generate", "--cheque", "x"], "Error: No such option '--cheque'"),
        (
            ["new", "--images", "1000000000000"],
            "Error: Invalid value for '--images': 1000000000000 is too large",
        ),
        (["run", "--retries"], "Error: Option '--retries' requires an argument"),
        (["show", "nowhere"], "Error: unknown recipe 'nowhere'; the recipes are digits-"),
        (["show", "nowhere.yaml"], "Error: nowhere.yaml: cannot be read: No such file or directory"),
        (
            ["show", "digits-local", "--images-per-s", "nan"],
            "Error: --images-per-s: nan is not a plausible speed;",
        ),
        (["data", "check", "nowhere"], "Error: nowhere: no such LMDB"),
        (["data", "check", "nowhere", "--classes", "0"], "0 is too small; give 1 or more"),
        (["data", "build", "imagenet"], "'imagenet' is not"),
    ],
)
def test_bad_input_gets_a_line_and_exit_2(words: list[str], message: str, tmp_path: Path) -> None:
    done = call_main(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert (done.stderr.count("\n"), done.stdout) == (1, "")
    assert not list(tmp_path.iterdir())


def test_an_error_is_one_line_whatever_is_in_the_name(tmp_path: Path) -> None:
    done = call_main("show", "a\nb\x1b[31m.yaml", cwd=tmp_path)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(r"Error: a\nb\x1b[31m.yaml: cannot be read: No such file or directory")


def test_a_closed_pipe_is_not_an_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "schema"],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writer)
    assert done.returncode == 141
    assert done.stderr == ""


def test_an_interrupt_ends_with_130_and_without_a_traceback(tmp_path: Path) -> None:
    recipe = yaml.safe_load(shipped_recipes()["digits-local"].file.read_text("utf-8"))
    recipe["net"] = {"name": "mine", "classes": 10, "function": "pressed:ctrl_c"}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(recipe))
    (tmp_path / "pressed.py").write_text("def ctrl_c(net):\n    raise KeyboardInterrupt\n")
    done = call_main("generate", "mine.yaml", cwd=tmp_path)
    assert done.returncode == 130
    assert done.stderr.strip() == ""
    assert {path.name for path in tmp_path.iterdir()} == {"mine.yaml", "pressed.py"}


def test_a_lost_connection_does_not_end_a_command_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """Paramiko raises EOFError, which click takes for a Ctrl-D."""

    def lose(context: click.Context) -> None:
        raise EOFError

    monkeypatch.setattr(commands, "invoke", lose)
    done = call_main("recipes")
    assert done.returncode == 3
    assert done.stderr.strip().startswith("Error: EOFError:")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize(
    "words", [["recipes"], ["summary", "digits-local:train_val"], ["schema"], ["status"]]
)
def test_output_to_a_full_disk_is_bad_input_and_not_a_failed_run(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "runs/small-1").mkdir(parents=True)
    (tmp_path / "runs/small-1/journal.jsonl").touch()
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            cwd=tmp_path,
        )
    assert done.returncode == 2
    assert done.stderr == (
        "Error: cannot write to standard output: No space left on device; free space on its disk, or "
        "write to another file\n"
    )


def test_recipes_lists_what_ships() -> None:
    alone, *families = call_main("recipes").stdout.split("\n\n")
    rows = [line.split()[0] for family in families for line in family.splitlines()[1:] if line[2] != " "]
    named = [line.split()[0] for line in alone.splitlines() if line[0] != " "]
    assert [*named, *rows] == list(shipped_recipes())
    assert all(family.startswith("The paper's runs on ") for family in families)


def test_schema_is_a_json_schema_that_knows_the_keys() -> None:
    schema = json.loads(call_main("schema").stdout)
    assert schema["$defs"]["Recipe"]["required"][0] == "name"
    assert "warmup_start_lr" in schema["$defs"]["Phase"]["properties"]


def test_show_has_shape_phases_and_reported_results() -> None:
    done = call_main("show", "stampede2-64n-72ep")
    assert done.returncode == 0
    for fact in (
        "64 nodes x 2 ranks x 32 images = 4,096 images per iteration",
        "1,281,167 images, 42 GB, in /tmp/ilsvrc12_train_lmdb",
        "7,800   24.94  31,948,800    0.1       1.59904   1.46667     0.933419   5e-05",
        "22,610   72.29  92,610,560",
        "top-1 76.3%, top-5 93.2%",
        "244.9 minutes of training at 6,303 images/s",
    ):
        assert fact in done.stdout


def test_show_omits_what_a_recipe_does_not_define() -> None:
    done = call_main("show", "digits-local")
    assert done.returncode == 0
    assert "reported" not in done.stdout
    assert "estimated" not in done.stdout
    assert "1 node x 2 ranks" in done.stdout


def test_closed_standard_files_do_no_harm() -> None:
    command = f"exec {sys.executable} -c {shlex.quote(PROGRAM)} show digits-local"
    assert subprocess.run(["sh", "-c", f"{command} >&-"], capture_output=True, check=False).returncode == 0
    done = subprocess.run(["sh", "-c", f"{command} <&- >&- 2>&-"], check=False)
    assert done.returncode == 0


def test_a_thread_that_cannot_be_started_is_one_line_and_exit_3(tmp_path: Path) -> None:
    code = """
import resource, threading
from caffe_recipes.cli import main as entry

threading.stack_size(1 << 30)
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
entry.commands.main = lambda **words: threading.Thread(target=print).start()
entry.main()
"""
    argv = [sys.executable, "-c", code]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("Error: cannot start more threads; raise `ulimit -u`")
    assert done.stderr.count("\n") == 1
