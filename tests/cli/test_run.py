from __future__ import annotations

import os
import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from caffe_recipes.cli.main import commands
from caffe_recipes.cluster.remote import check_trust
from caffe_recipes.errors import InputError, RecipeError
from caffe_recipes.recipe.shipped import shipped_recipes
from caffe_recipes.recipe.source import load_any_recipe, load_recipe
from caffe_recipes.run import context
from caffe_recipes.run.context import find_root
from caffe_recipes.run.preflight import checks
from tests.cli.command_line import call_main

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can play another user")


def call(folder: Path, *words: str, command: str = "run") -> subprocess.CompletedProcess[str]:
    return call_main(command, *words, cwd=folder)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["digits-locl"], "Error: unknown recipe 'digits-locl'; did you mean 'digits-local'?"),
        (["none.yaml"], "Error: none.yaml: cannot be read: No such file or directory"),
        (["digits-local", "--caffe-root", "none"], "Error: none: no such folder; give the Caffe root"),
        (
            ["digits-local", "--caffe-root", ".", "--hostfile", "none"],
            "Error: none: no such file; write one host per line into it",
        ),
        (
            ["stampede2-64n-72ep", "--caffe-root", "."],
            "hostfile: no such file; write 64 hosts to it, or give --hostfile",
        ),
        (
            ["digits-local", "--profile", "mpihc"],
            "Error: unknown profile 'mpihc'; did you mean 'mpich'? known",
        ),
        (["digits-local", "--profile", "none.yaml"], "Error: none.yaml: cannot be read: No such file or"),
        (
            ["digits-local", "--caffe-root", ".", "--caffe", "./none"],
            "or write `trainer: caffe-torch` in the recipe to train with PyTorch",
        ),
    ],
)
def test_a_recipe_that_cannot_run_is_one_line_exit_2_and_leaves_nothing(
    tmp_path: Path, words: list[str], message: str
) -> None:
    done = call(tmp_path, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """Return a recipe's file, for a Caffe that is called `a.caffe`, beside the folder `here`."""
    text = resources.files("caffe_recipes").joinpath("recipes", "digits-local.yaml").read_text()
    (tmp_path / "here").mkdir()
    (tmp_path / "a.yaml").write_text(text.replace("trainer: caffe-torch", "trainer: bin/a.caffe"))
    return tmp_path / "a.yaml"


@pytest.mark.parametrize("command", [("run",), ("run", "--detach"), ("stage",), ("preflight",), ("submit",)])
def test_a_folder_with_nothing_of_the_recipe_is_refused_and_stays_empty(
    elsewhere: Path, command: tuple[str, ...]
) -> None:
    here = elsewhere.with_name("here")
    for recipe in ("digits-local", str(elsewhere), "../a.yaml"):
        done = call(here, *command[1:], recipe, command=command[0])
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"Error: {here}: is not a Caffe root: it has neither the recipe's file")
        assert done.stderr.endswith("; `--caffe-root .` uses this folder\n")
        assert done.stderr.count("\n") == 1
        assert list(here.iterdir()) == []


@pytest.mark.parametrize("held", ["bin/a.caffe", "prototxt/digits-local/", "runs/", "a.yaml", "mine/a.yaml"])
def test_a_folder_with_something_of_the_recipe_is_the_caffe_root(
    elsewhere: Path, held: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(elsewhere.with_name("here"))
    recipe, typed = load_recipe(elsewhere), str(elsewhere)
    with pytest.raises(InputError):
        find_root(None, None, recipe, (typed, None))
    assert find_root(Path(), None, recipe, (typed, None)) == Path(), "it was given"
    Path(held).parent.mkdir(exist_ok=True)
    if held.endswith("/"):
        Path(held).mkdir()
    else:
        Path(held).write_bytes(elsewhere.read_bytes())
    given = held if held.endswith(".yaml") else typed
    assert find_root(None, None, recipe, (given, None)) == Path()
    if held == "a.yaml":
        assert find_root(None, None, recipe, (str(Path(held).absolute()), None)) == Path()


def test_the_environment_of_tensorflow_shows_that_a_folder_is_the_caffe_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = load_any_recipe("tf-digits-local")
    with pytest.raises(InputError, match=r"file nor any of \.venv-tf, tensorflow/tf-digits-local"):
        find_root(None, None, recipe)
    Path(".venv-tf").mkdir()
    assert find_root(None, None, recipe) == Path()


def test_help_names_every_option_and_imports_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import sys; from caffe_recipes.cli.run import run; run.main(['--help'], standalone_mode=False);"
        "sys.exit(any(name in sys.modules for name in ('torch', 'cv2', 'paramiko', 'matplotlib', 'sklearn')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    for option in ("--hostfile", "--caffe", "--caffe-root", "--lmdb-source", "--new", "--profile", "--how"):
        assert option in done.stdout


@pytest.mark.promise("nothing is run or obeyed that others could change")
@pytest.mark.parametrize("mode", [0o777, 0o1777])
@pytest.mark.parametrize("command", ["preflight", "run", "stage"])
def test_nothing_is_run_in_a_root_where_another_user_can_put_programs(
    tmp_path: Path, command: str, mode: int
) -> None:
    planted = tmp_path / ".venv-tf/bin/python"
    planted.parent.mkdir(parents=True)
    planted.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    planted.chmod(0o755)
    tmp_path.chmod(mode)
    done = call(tmp_path, "tf-digits-local", "--caffe-root", ".", command=command)
    what = "can be changed by anybody; make it writable only by you, or choose another"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"Error: {tmp_path}: {what}\n")
    assert [path.name for path in tmp_path.iterdir()] == [".venv-tf"]


@pytest.mark.promise("nothing is run or obeyed that others could change")
@as_root
@pytest.mark.parametrize("planted", ["recipe", "hostfile", "profile"])
def test_no_recipe_hostfile_or_profile_that_another_user_can_change_is_used(
    tmp_path: Path, planted: str
) -> None:
    shared, root = tmp_path / "shared", tmp_path / "root"
    shared.mkdir()
    root.mkdir()
    texts = {
        "recipe": shipped_recipes()["digits-local"].file.read_text(),
        "hostfile": "localhost\n",
        "profile": (resources.files("caffe_recipes") / "profiles/local.yaml").read_text(),
    }
    paths = {name: (shared if name == planted else tmp_path) / f"{name}.yaml" for name in texts}
    for name, text in texts.items():
        paths[name].write_text(text)
    shared.chmod(0o1777)
    os.chown(paths[planted], 54321, 54321)
    words = ["--caffe-root", str(root), *("--hostfile", str(paths["hostfile"]))]
    words += ["--profile", str(paths["profile"])]
    done = call(tmp_path, str(paths["recipe"]), *words, command="preflight")
    assert (done.returncode, done.stdout) == (2, "")
    what = (
        f"is used with {paths[planted]}, which"
        if planted == "hostfile"
        else f"{paths[planted]}: is not used: it"
    )
    assert (
        f"{what} belongs to user 54321, who can change its contents; use a copy in a folder of your"
        in done.stderr
    )


def plant_recipe(tmp_path: Path) -> Path:
    """Let another user have a recipe in a folder of theirs below a shared one."""
    theirs = tmp_path / "shared/theirs"
    theirs.mkdir(parents=True)
    (tmp_path / "shared").chmod(0o1777)
    (theirs / "mine.yaml").write_text(shipped_recipes()["digits-local"].file.read_text())
    for path in (theirs, theirs / "mine.yaml"):
        os.chown(path, 54321, 54321)
    return theirs / "mine.yaml"


@pytest.mark.promise("nothing is run or obeyed that others could change")
@as_root
@pytest.mark.parametrize("command", ["preflight", "run", "stage", "submit"])
def test_no_command_that_runs_a_recipe_reads_one_of_another_user(tmp_path: Path, command: str) -> None:
    recipe = plant_recipe(tmp_path)
    done = call(tmp_path, str(recipe), "--caffe-root", str(tmp_path), command=command)
    what = f"is not used: its folder {recipe.parent} belongs to user 54321, who can change its contents"
    assert done.stderr == f"Error: {recipe}: {what}; use a copy in a folder of your own\n"
    assert (done.returncode, done.stdout) == (2, "")


@as_root
@pytest.mark.parametrize("command", [("lint",), ("show",), ("submit", "--dry-run")])
def test_a_recipe_of_another_user_can_be_reviewed(tmp_path: Path, command: tuple[str, ...]) -> None:
    recipe = plant_recipe(tmp_path)
    done = call(tmp_path, str(recipe), *command[1:], command=command[0])
    assert "is not used" not in done.stderr


@pytest.mark.promise("nothing is run or obeyed that others could change")
@pytest.mark.promise("a check cannot be evaded")
@as_root
def test_a_recipe_that_is_hidden_while_paths_are_checked_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, hidden = plant_recipe(tmp_path), tmp_path / "shared/hidden"

    def check_while_hidden(*words: Any, **options: Any) -> None:  # noqa: ANN401
        recipe.parent.rename(hidden)
        try:
            check_trust(*words, **options)
        finally:
            hidden.rename(recipe.parent)

    monkeypatch.setattr(context, "check_trust", check_while_hidden)
    monkeypatch.setattr(checks, "preflight_recipe", lambda *_: [])
    words = ["preflight", str(recipe), "--caffe-root", str(tmp_path)]
    done = CliRunner().invoke(commands, words)
    assert isinstance(done.exception, RecipeError), done.output
    assert "belongs to user 54321" in str(done.exception)


@pytest.mark.promise("nothing is run or obeyed that others could change")
@pytest.mark.promise("a check cannot be evaded")
@as_root
def test_no_recipe_or_profile_is_read_from_the_named_pipe_of_another_user(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    pipe = tmp_path / "shared/mine.yaml"
    os.mkfifo(pipe)
    (tmp_path / "shared").chmod(0o1777)
    os.chown(pipe, 54321, 54321)
    what = f"Error: {pipe}: is not used: it belongs to user 54321, who can change its contents"
    for words in ([str(pipe)], ["digits-local", "--profile", str(pipe)]):
        done = call(tmp_path, *words, "--caffe-root", str(tmp_path), command="preflight")
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(what)


def test_shipped_recipes_and_profiles_are_not_looked_up_in_the_current_folder(
    tmp_path: Path,
) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    words = ("digits-local", "--caffe-root", str(tmp_path / "root"), "--profile", "local")
    done = call(tmp_path / "open", *words, "--clean", command="stage")
    assert "can be changed by anybody" not in done.stderr
