"""Options shared by commands: review commands run a recipe's code once a training command has allowed it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner, Result

from caffe_recipes.cli.main import commands
from caffe_recipes.cli.options import COUNT, NUMBER, Number, Seconds, Whole
from caffe_recipes.errors import RecipeError

PROGRAM = "import sys; from caffe_recipes.cli.main import main; sys.argv[0] = 'caffe-recipes'; main()"
NETS = """\
from pathlib import Path
from caffe_recipes.caffe import layers as L

Path(__file__).with_name("ran").touch()


def own(net):
    return L.net(
        "own",
        L.inner_product("ip", "data", num_output=net.classes),
        L.softmax_with_loss("loss", "ip", "label"),
    )
"""
REVIEWING = {
    "lint": ["lint", "--fail-on", "never", "mine.yaml"],
    "diff": ["diff", "mine.yaml", "other.yaml"],
    "estimate": ["estimate", "--images-per-s", "100", "mine.yaml"],
    "summary": ["summary", "mine.yaml"],
    "rescale": ["rescale", "mine.yaml", "--nodes", "2"],
    "generate --check": ["generate", "--check", "mine.yaml"],
    "submit --dry-run": ["submit", "--dry-run", "--partition", "p", "--time", "10", "mine.yaml"],
    "preflight": ["preflight", "mine.yaml"],
    "show": ["show", "--dialect", "bvlc", "mine.yaml"],
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder: it has two recipes with a function that leaves a file where it runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    text = resources.files("caffe_recipes").joinpath("recipes", "digits-local.yaml").read_text()
    raw = yaml.safe_load(text)
    raw |= {"accept": [], "trainer": "no-caffe"}
    raw["net"] = {"name": "own", "classes": 10, "function": "my_nets:own"}
    for name in ("mine", "other"):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump({**raw, "name": name}))
    (tmp_path / "my_nets.py").write_text(NETS)
    (tmp_path / "no-caffe").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "no-caffe").chmod(0o755)
    return tmp_path


def call(*words: str) -> Result:
    return CliRunner().invoke(commands, words)


def ran(folder: Path) -> bool:
    mark = folder / "ran"
    was_run = mark.exists()
    mark.unlink(missing_ok=True)
    return was_run


@pytest.mark.parametrize("words", REVIEWING.values(), ids=REVIEWING)
def test_a_command_that_reviews_runs_no_code_that_was_not_allowed(folder: Path, words: list[str]) -> None:
    before = sorted(folder.iterdir())
    done = call(*words)
    assert isinstance(done.exception, RecipeError), done.output
    assert "the code of 'my_nets' next to the recipe, which you have not allowed" in str(done.exception)
    assert done.exception.exit_code == 2
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize("words", REVIEWING.values(), ids=REVIEWING)
def test_a_command_that_reviews_runs_code_that_is_allowed_until_it_changes(
    folder: Path, words: list[str]
) -> None:
    call(words[0], "--run-code", *words[1:])
    assert ran(folder)
    assert not (folder / "state").exists()
    assert call("generate", "mine.yaml", "other.yaml").exit_code == 0
    assert ran(folder)
    call(*words)
    assert ran(folder)
    (folder / "my_nets.py").write_text(f"{NETS}# another\n")
    assert "my_nets.py has changed since you allowed it" in str(call(*words).exception)
    assert not ran(folder)


@pytest.mark.parametrize("words", [["run", "mine.yaml"], ["submit", "mine.yaml"]])
def test_run_and_submit_count_as_consent(folder: Path, words: list[str]) -> None:
    call(*words)  # each fails afterwards: neither Caffe nor Slurm is installed
    assert ran(folder)
    assert "not allowed" not in str(call("summary", "mine.yaml").exception)


@pytest.mark.parametrize("before", [[], ["--limit", "yaml-depth=70"]])
def test_the_error_names_the_command_to_type(folder: Path, before: list[str]) -> None:
    words = [*before, "lint", "--fail-on", "never", "mine.yaml"]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, check=False, timeout=600
    )
    assert (done.returncode, done.stdout) == (2, "")
    line = " ".join(["caffe-recipes", *before, "lint --run-code --fail-on never mine.yaml"])
    assert f"; read it, then run `{line}`; running `caffe-recipes generate` allows" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not ran(folder)


# Numbers as options take them: written in ASCII digits, or refused in one line.


Kind = Whole | Number | Seconds
WHOLE = Whole(0, 2**31 - 1)
SECONDS = Seconds(min=0)


@pytest.mark.parametrize("kind", [WHOLE, COUNT, NUMBER, SECONDS], ids=["whole", "count", "number", "seconds"])
@pytest.mark.parametrize("text", ["6_0", "６０", "٦", "1_000", "", "x", "0x10", "1,0", "9" * 5000])
def test_numbers_that_only_python_reads_are_refused(kind: Kind, text: str) -> None:
    with pytest.raises(click.BadParameter) as caught:
        kind.convert(text, None, None)
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 150


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (WHOLE, "60", 60),
        (WHOLE, " 60 ", 60),
        (COUNT, "1,281,167", 1281167),
        (NUMBER, "90", 90.0),
        (NUMBER, "0.5", 0.5),
        (NUMBER, ".5", 0.5),
        (NUMBER, "1e-3", 0.001),
        (NUMBER, "-2.", -2.0),
        (SECONDS, "1.5", 1.5),
    ],
)
def test_numbers_as_people_write_them_are_read(kind: Kind, text: str, value: float) -> None:
    assert kind.convert(text, None, None) == value


@pytest.mark.parametrize("text", ["nan", "inf", "1e400", "-1"])
def test_times_that_are_negative_or_not_finite_are_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        SECONDS.convert(text, None, None)


def test_bounds_are_reported() -> None:
    with pytest.raises(click.BadParameter, match="-1 is too small; give 0 or more"):
        WHOLE.convert("-1", None, None)
    with pytest.raises(click.BadParameter, match="2147483648 is too large; give 2147483647 or less"):
        WHOLE.convert(str(2**31), None, None)


def commands_of(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield name, command
        return
    context = click.Context(command)
    for each in command.list_commands(context):
        found = command.get_command(context, each)
        assert found is not None
        yield from commands_of(f"{name} {each}", found)


@pytest.mark.parametrize(("name", "command"), list(commands_of("caffe-recipes", commands)))
def test_a_command_s_help_names_only_options_that_it_has(name: str, command: click.Command) -> None:
    texts = [str(option.help) for option in command.params if isinstance(option, click.Option)]
    named = re.findall(
        r"(?<![\w>-])--[a-z][\w-]*", re.sub(r"`[^`]*`|--sbatch-option=\S+", "", " ".join(texts))
    )
    known = {option for param in command.params for option in (*param.opts, *param.secondary_opts)}
    assert sorted(set(named) - known) == []
