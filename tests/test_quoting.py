"""No command prints the text of a file outside of what was named, the current folder and the Caffe root."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import yaml

from caffe_recipes.errors import InputError, PrototxtError
from caffe_recipes.quoting import hiding_foreign_text, is_quotable, refuse_foreign_link
from caffe_recipes.run.context import find_hosts
from tests.cli.command_line import call_main

TOKEN = "hunter2secret: 1\n"
ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a file with a secret; the current folder is another one, beside the folder `given`."""
    for name in ("home", "given", "here", "root"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "home/.token").write_text(TOKEN)
    return tmp_path / "home/.token"


@pytest.mark.parametrize("where", ["given/a", "here/a", "root/a"])
def test_files_in_the_named_the_current_and_the_root_folder_are_quoted(token: Path, where: str) -> None:
    base = token.parent.parent
    (base / where).touch()
    assert is_quotable(base / where, base / "given", base / "root")
    assert is_quotable(base / where, base / where)  # the file itself was named
    (base / where).unlink()
    (base / where).symlink_to(token)
    assert not is_quotable(base / where, base / "given", base / "root", None)


def test_a_repository_around_a_folder_is_not_what_was_named(token: Path) -> None:
    base = token.parent.parent
    (base / ".git").mkdir()  # a home folder may be one
    assert not is_quotable(token, base / "given")


def test_why_a_foreign_file_cannot_be_read_is_hidden(token: Path) -> None:
    for home, shown in (
        (token.parent, "the reason"),
        (None, "is not a prototxt that can be read; give the file"),
    ):
        with pytest.raises(PrototxtError, match=shown), hiding_foreign_text(token, home):
            raise PrototxtError(token, "the reason")
    with pytest.raises(PrototxtError, match="is a link to a file outside its folder"):
        refuse_foreign_link(token, "given")


def plant(token: Path, how: str, name: str) -> str:
    """Return a path for a file in the folder `given` to name: that of the secret, or of a link to it."""
    if how == "link":
        (token.parent.parent / "given" / name).symlink_to(token)
    return {"absolute": str(token), "above": "../home/.token"}.get(how, name)


@pytest.mark.promise("no other file of yours is quoted")
@pytest.mark.parametrize("how", ["absolute", "above", "link"])
@pytest.mark.parametrize("words", ["summary", "lint", "generate --check", "diff digits-local"])
def test_a_recipe_cannot_have_a_file_quoted_as_its_net(token: Path, how: str, words: str) -> None:
    folder = token.parent.parent / "given"
    raw = yaml.safe_load((ROOT / "caffe_recipes/recipes/digits-local.yaml").read_text())
    raw["net"] = {"name": "mine", "classes": 10, "prototxt": plant(token, how, "net.prototxt")}
    (folder / "mine.yaml").write_text(yaml.safe_dump(raw | {"name": "mine"}))
    done = call_main(*words.split(), folder / "mine.yaml")
    assert "hunter2" not in done.stdout + done.stderr
    assert "is not a prototxt that can be read; give the file itself, to see why" in done.stderr


@pytest.mark.promise("no other file of yours is quoted")
@pytest.mark.parametrize("path", ["prototxt/digits-local/solver_init.prototxt", "jobs/digits-local/run.sh"])
@pytest.mark.parametrize("is_stale", [False, True])
def test_generate_shows_no_text_of_a_file_that_a_link_leads_to(
    token: Path, path: str, is_stale: bool
) -> None:
    out = token.parent.parent / "given"
    assert call_main("generate", "digits-local", "--out", out).returncode == 0
    if is_stale:
        path = f"{path.rpartition('/')[0]}/old"
        token.write_text((out / "prototxt/digits-local/train_val.prototxt").read_text() + TOKEN)
    (out / path).unlink(missing_ok=True)
    (out / path).symlink_to(token)
    done = call_main("generate", "digits-local", "--check", "--out", out)
    assert done.returncode == 1
    assert "hunter2" not in done.stdout + done.stderr
    what = "stale" if is_stale else "changed"
    assert f"{path} ({what}: it is a link to a file outside {out})" in done.stderr


SOLVER = 'net: "net.prototxt"\nbase_lr: 1\nlr_policy: "fixed"\nmax_iter: 9\nsnapshot_prefix: "a"\n'


@pytest.mark.promise("no other file of yours is quoted")
@pytest.mark.parametrize("words", ["lint", "lint --json", "adopt"])
@pytest.mark.parametrize("where", ["outside", "within"])
def test_a_script_that_a_link_leads_to_is_not_quoted(token: Path, words: str, where: str) -> None:
    folder = token.parent.parent / "given"
    for phase in "ab":
        (folder / f"solver_{phase}.prototxt").write_text(SOLVER)
    script = folder / "kept/run.txt" if where == "within" else token
    script.parent.mkdir(exist_ok=True)
    script.write_text(
        "caffe train --solver solver_a.prototxt\ncaffe train --solver solver_b.prototxt\n"
        "caffe train --solver $hunter2\n"
    )
    (folder / "run.sh").symlink_to(script)
    done = call_main(*words.split(), folder)
    assert ("hunter2" in done.stdout + done.stderr) == (where == "within" and words != "adopt")


@pytest.mark.promise("no other file of yours is quoted")
@pytest.mark.parametrize("words", ["lint", "summary", "fmt --check", "upgrade --check", "lr", "diff"])
def test_a_link_that_the_user_names_is_quoted_as_the_file_itself_is(token: Path, words: str) -> None:
    link = token.parent.parent / "given/mine.prototxt"
    link.symlink_to(token)
    done = call_main(*words.split(), *[link] * (2 if words == "diff" else 1))
    assert "mine.prototxt:1:1: NetParameter has no field 'hunter2secret'" in done.stdout + done.stderr


def test_generate_compares_with_a_folder_that_the_user_names_by_a_link(token: Path) -> None:
    base = token.parent.parent
    assert call_main("generate", "digits-local", "--out", base / "given").returncode == 0
    (base / "given/prototxt/digits-local/solver_init.prototxt").write_text(TOKEN)
    (base / "here/out").symlink_to(base / "given")
    done = call_main("generate", "digits-local", "--check", "--out", base / "here/out")
    assert "hunter2" in done.stdout + done.stderr


@pytest.mark.promise("no other file of yours is quoted")
def test_why_a_hostfile_that_is_a_link_is_not_one_is_hidden_unless_it_was_named(token: Path) -> None:
    root = token.parent.parent / "root"
    (root / "hostfile").symlink_to(token)
    with pytest.raises(InputError, match="is a link to a file that is not a hostfile") as caught:
        find_hosts(root, None)
    assert "hunter2" not in str(caught.value)
    with pytest.raises(InputError, match="'hunter2secret: 1' is not a host"):
        find_hosts(root, root / "hostfile")


def test_a_net_that_a_solver_names_elsewhere_is_not_fixed_or_shown(token: Path) -> None:
    folder = token.parent.parent / "given"
    layer = 'layer { name: "hunter2" type: "Convolution" bottom: "a" top: "b" convolution_param { %s } }\n'
    text = 'input: "a"\n' + layer % "num_output: 4 kernel_size: 1 group: 1"
    token.write_text(text)
    (folder / "solver.prototxt").write_text(SOLVER.replace("net.prototxt", str(token)))
    for words in ("lint --fix --diff", "lint --fix"):
        done = call_main(*words.split(), folder / "solver.prototxt")
        assert "+++" not in done.stdout
    assert token.read_text() == text


def test_a_net_beside_others_that_is_a_link_is_not_summarized(token: Path) -> None:
    (token.parent.parent / "given/net.prototxt").symlink_to(token)
    token.write_text('name: "hunter2"\nlayer { name: "hunter2" type: "Input" top: "a" }\n')
    done = call_main("summary", token.parent.parent / "given")
    assert "is a link to a file outside its folder" in done.stderr
    assert "hunter2" not in done.stdout + done.stderr


# Functions that open files, by the name that a call has.
OPENERS = {"open", "open_file", "read_bytes", "read_text", "read_within", "load_within", "read_trusted"}
OPENERS |= {"read_code", "read_prototxt", "load_prototxt", "load_document", "load_lenient"}
OPENERS |= {"load_yaml_text", "fdopen"}
GUARDS = {"hiding_foreign_text", "refuse_foreign_link", "is_quotable", "check_below"}
# The commands that print what they read: all but those that run or build.
REVIEWING = ("review", "render", "recipe", "authoring", "cli", "run/monitor")
# Functions that open files without a guard, and why that quotes nothing of others.
FREE = {
    "the file that the user named": {
        "authoring/new_options.py:_load_prototxt",
        "cli/prototxts.py:*",
        "recipe/source.py:_read",
        "recipe/source.py:list_family_rows",
        "review/diff/report.py:_render_difference",
        "review/diff/sources.py:_read_disk",
        "review/inspect/schedules.py:find_batch_size",
        "review/inspect/schedules.py:load_chain",
        "review/lint/scripts.py:load_script",
    },
    "a file of this package, or of the system": {
        "cli/main.py:*",
        "render/own_code.py:*",
        "review/inspect/plot_style.py:require_matplotlib",
        "run/monitor/run_files.py:_lives",
        "recipe/shipped.py:*",
        "render/scripts.py:*",
    },
    "only compared, or the kind of the file": {
        "authoring/adopt_files.py:read_folder",
        "render/tree.py:_head",
        "render/tree.py:_read",
        "review/deploy.py:_holds",
        "review/inspect/nets.py:_is_net",
        "review/lint/folders.py:_read_beginning",
        "review/lint/recipe_lint.py:*",
        "review/naming.py:_is_family_file",
        "review/naming.py:is_prototxt_file",
    },
    "its callers guard it": {
        "run/monitor/run_files.py:_read",
        "review/lint/inputs.py:_read",
    },
    "only numbers of it are shown": {
        "review/inspect/sweep.py:*",
        "review/lint/records.py:_count_lines",
    },
}


def openers_in(path: Path) -> dict[str, set[str]]:
    """Return {function: names that it calls} for each function, if any, that opens files itself."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            calls = {
                getattr(each.func, "attr", getattr(each.func, "id", ""))
                for each in ast.walk(node)
                if isinstance(each, ast.Call)
            }
            if calls & OPENERS:
                found[node.name] = calls
    return found


@pytest.mark.promise("no other file of yours is quoted")
def test_no_command_opens_files_of_others_by_another_way() -> None:
    free = {each for group in FREE.values() for each in group}
    found = set()
    source = ROOT / "caffe_recipes"
    for path in sorted(each for folder in REVIEWING for each in (source / folder).rglob("*.py")):
        shown = path.relative_to(source).as_posix()
        for function, calls in openers_in(path).items():
            if not calls & GUARDS and f"{shown}:*" not in free:
                found.add(f"{shown}:{function}")
    assert found - free == set(), "guard each with caffe_recipes.quoting, or say here why it quotes nothing"
    assert {each for each in free if not each.endswith("*")} - found == set()
