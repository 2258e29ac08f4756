"""What docs/reviewing.md and .pre-commit-hooks.yaml offer exists: commands, options, hooks, sample output."""

from __future__ import annotations

import re
import shlex
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner

from caffe_recipes.cli.main import COMMANDS

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = (ROOT / "docs" / "reviewing.md").read_text()
HOOKS: list[dict[str, Any]] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
CALLS = sorted(set(re.findall(rf"caffe-recipes ((?:{'|'.join(COMMANDS)})\b[^\n`\"#|>]*)", DOCUMENT)))


def command_of(name: str) -> click.Command:
    lazy = COMMANDS[name]
    command = getattr(import_module(lazy.module), lazy.attribute)
    assert isinstance(command, click.Command)
    return command


def unknown_options(words: list[str]) -> list[str]:
    known = {option for param in command_of(words[0]).params for option in param.opts}
    return [word for word in words[1:] if word.startswith("-") and word not in known]


def blocks(language: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", DOCUMENT, re.DOTALL | re.MULTILINE)
    return [text for kind, text in found if kind == language]


@pytest.mark.parametrize("call", CALLS)
def test_a_documented_call_has_a_command_and_its_options(call: str) -> None:
    assert unknown_options(shlex.split(call)) == []


def test_the_document_calls_what_this_test_looks_for() -> None:
    assert {call.split()[0] for call in CALLS} >= {"diff", "lint", "show", "plot", "lr", "generate", "schema"}
    assert unknown_options(["lr", "--evry"]) == ["--evry"]


def test_the_sample_of_lr_is_what_lr_prints() -> None:
    (sample,) = [block for block in blocks("") if block.startswith("$ caffe-recipes lr")]
    line, _, printed = sample.partition("\n")
    path, *options = shlex.split(line)[3:]
    assert CliRunner().invoke(command_of("lr"), [str(ROOT / path), *options]).output == printed


def test_the_picture_and_the_yaml_are_sound() -> None:
    for path in re.findall(r"!\[.*\]\((.*)\)", DOCUMENT):
        assert (ROOT / "docs" / path).is_file()
    assert len([yaml.safe_load(block) for block in blocks("yaml")]) == 5


def test_the_readme_s_own_recipe_has_nothing_to_warn_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readme = (ROOT / "README.md").read_text()
    for name, language, start in [
        ("mine.yaml", "yaml", "name: mine"),
        ("my_nets.py", "python", "from caffe"),
    ]:
        found = re.findall(rf"```{language}\n(.*?)```", readme, re.DOTALL)
        (text,) = [block for block in found if block.startswith(start)]
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(command_of("generate"), ["mine.yaml"]).exit_code == 0
    done = CliRunner().invoke(command_of("lint"), ["mine.yaml"])
    assert (done.exit_code, done.output) == (0, "0 errors, 0 warnings, 0 notes\n")


def test_the_table_of_lint_names_each_of_its_options() -> None:
    section = DOCUMENT[DOCUMENT.index("\n## lint\n") : DOCUMENT.index("\n## Schedules\n")]
    told = set(re.findall(r"--[a-z][a-z-]+", section)) - {"--dialect"}
    options = {option for param in command_of("lint").params for option in param.opts if option[:2] == "--"}
    assert told == options - {"--dialect", "--max-bytes"}


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook["id"])
def test_a_hook_calls_a_command_with_its_options(hook: dict[str, Any]) -> None:
    program, *words = hook["entry"].split()
    assert program == "caffe-recipes"
    assert words[0] in COMMANDS
    assert unknown_options(words) == []
    assert (hook["language"], set(hook) >= {"name", "description", "files"}) == ("python", True)


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook["id"])
def test_a_hook_that_takes_files_runs_once_at_a_time(hook: dict[str, Any]) -> None:
    """Several at once write between each other's lines."""
    assert hook.get("require_serial") is True or hook["pass_filenames"] is False


def test_the_document_pins_no_version_that_is_not_released() -> None:
    released = set(re.findall(r"^## \[(\d[\d.]*)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE))
    pinned = re.findall(r"(?:rev: |caffe-recipes@)(\S+?)\"?$", DOCUMENT, re.MULTILINE)
    assert len(pinned) == 3
    assert {version.removeprefix("v") for version in pinned} <= {*released, "COMMIT"}


def test_the_document_names_every_hook_and_gives_args_to_those_that_take_no_files() -> None:
    (config,) = [yaml.safe_load(block) for block in blocks("yaml") if block.startswith("repos:")]
    documented = {hook["id"]: "args" in hook for hook in config["repos"][0]["hooks"]}
    assert documented == {hook["id"]: hook.get("pass_filenames") is False for hook in HOOKS}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("nets/solver.prototxt", {"fmt", "lint", "lint-recipes", "generate"}),
        ("prototxt/mine/solver_init.prototxt", {"fmt", "lint-recipes", "generate"}),
        ("jobs/mine/run.sh", {"generate"}),
        ("recipes/mine.yml", {"lint-recipes", "generate"}),
        ("my_nets.py", {"lint-recipes", "generate"}),
        ("README.md", set()),
        ("a.prototxt.orig", set()),
    ],
)
def test_a_hook_runs_for_the_files_that_it_is_about(path: str, expected: set[str]) -> None:
    runs = {
        hook["id"].removeprefix("caffe-recipes-")
        for hook in HOOKS
        if re.search(hook["files"], path) and not re.search(hook.get("exclude", "^$"), path)
    }
    assert runs == expected
