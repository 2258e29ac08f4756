"""`caffe-recipes diff`: its arguments, output and exit codes, and its use as git's driver."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from caffe_recipes.errors import CaffeRecipesError
from caffe_recipes.recipe.shipped import find_rows, shipped_recipes
from caffe_recipes.review.diff.git import explain_no_repository
from tests.cli.command_line import call_main

DIGITS = shipped_recipes()["digits-local"].file.read_text("utf-8")
NET = """name: "n"
layer { name: "data" type: "Data" top: "data" data_param { source: "x" batch_size: 32 } }
layer { name: "relu" type: "ReLU" bottom: "data" top: "data" }
"""
SOLVER = 'net: "models/net.prototxt" base_lr: 1 lr_policy: "fixed" max_iter: 100\n'
AUTHORS = Path(__file__).resolve().parents[3] / "shared" / "reference" / "surfsara"
PROGRAM = "import sys; from caffe_recipes.cli.main import main; sys.argv[0] = 'caffe-recipes'; main()"

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="no git")


def call(*words: str | Path) -> tuple[int, str]:
    from caffe_recipes.cli.diff import diff

    done = CliRunner().invoke(diff, [str(word) for word in words])
    if isinstance(done.exception, CaffeRecipesError):
        return done.exception.exit_code, str(done.exception)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


def write(folder: Path, **texts: str) -> None:
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / f"{name}.prototxt").write_text(text)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    return tmp_path


@pytest.mark.promise("a pipe keeps nobody waiting")
def test_a_pipe_in_a_folder_is_not_waited_for(here: Path) -> None:
    for folder in ("old", "new"):
        write(here / folder, net=NET, solver=SOLVER)
    os.mkfifo(here / "new" / "pipe.prototxt")
    (here / "new/net.prototxt").unlink()
    os.mkfifo(here / "new" / "net.prototxt")
    writers = [os.open(here / "new" / name, os.O_RDWR) for name in ("pipe.prototxt", "net.prototxt")]
    code, output = call("old", "new")
    assert code == 2
    assert "is a pipe or a device, not a file" in output
    for writer in writers:
        os.close(writer)


def test_a_folder_that_cannot_be_read_is_not_treated_as_empty(unreadable: Path, here: Path) -> None:
    write(here / "other", net=NET)
    code, output = call(unreadable, here / "other")
    assert (code, "cannot be read: Permission denied" in output) == (2, True)


def git(*words: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    done = subprocess.run(["git", *who, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def repo(here: Path) -> Path:
    """Two commits: a batch size changed, a net renamed, a solver added, a recipe beside them."""
    git("init", "-q", "-b", "main")
    write(here / "nets", net=NET, old=NET.replace("relu", "act"))
    (here / "notes.txt").write_text("not a prototxt")
    git("add", ".")
    git("commit", "-qm", "one")
    write(here / "nets", net=NET.replace("32", "16"), solver=SOLVER)
    (here / "nets" / "old.prototxt").rename(here / "nets" / "new.prototxt")
    (here / "nets" / "new.prototxt").write_text("# moved\n" + (here / "nets" / "new.prototxt").read_text())
    git("add", ".")
    git("commit", "-qm", "two")
    return here


@pytest.mark.skipif(not AUTHORS.is_dir(), reason="the published files are not beside this checkout")
def test_the_published_nets_differ_in_one_field() -> None:
    files = [
        AUTHORS / folder / "train_val.prototxt" for folder in ("resnet50_custom_lr", "resnet50_448nodes")
    ]
    assert call(*files) == (1, "data (TRAIN): data_param.batch_size 32 -> 16\n")


@pytest.mark.skipif(not AUTHORS.is_dir(), reason="the published files are not beside this checkout")
def test_batch_norms_that_lose_their_zero_start_are_reported(here: Path) -> None:
    text = (AUTHORS / "resnet50_custom_lr" / "train_val.prototxt").read_text()
    bare, count = re.subn(r"filler\s*\{\s*value:\s*0\s*\}", "", text)
    assert count == 4
    write(here, a=text, b=bare)
    code, output = call("a.prototxt", "b.prototxt")
    assert (code, output.count("\n")) == (1, 1)
    assert "filler { value: 0 } -> not set (starts at 1) in 4 layers" in output


def test_equal_files_are_reported_as_equal_and_exit_with_0(here: Path) -> None:
    write(here, a=NET, b=f"# a comment\n{NET}")
    assert call("a.prototxt", "b.prototxt") == (0, "no difference in meaning\n")
    assert call("a.prototxt", "b.prototxt", "--quiet") == (0, "")


def test_quiet_reports_through_the_exit_code_only(here: Path) -> None:
    write(here, a=NET, b=NET.replace("32", "16"))
    assert call("-q", "a.prototxt", "b.prototxt") == (1, "")
    assert call("-q", "--json", "a.prototxt", "b.prototxt") == (1, "")


def test_json_holds_values_as_they_are(here: Path) -> None:
    write(here, a=NET, b=NET.replace("batch_size: 32", "batch_size: 16 prefetch: 2"))
    code, output = call("--json", "a.prototxt", "b.prototxt")
    report = json.loads(output)
    assert (code, report["equal"], report["files"][0]["kind"]) == (1, False, "net")
    assert [(c["layer"], c["field"], c["old"], c["new"]) for c in report["files"][0]["changes"]] == [
        ("data", "data_param.batch_size", 32, 16),
        ("data", "data_param.prefetch", 4, 2),
    ]
    assert report["files"][0]["changes"][1]["defaults"] == ["old"]
    assert json.loads(call("--json", "a.prototxt", "a.prototxt")[1])["equal"] is True


def test_many_layers_that_change_alike_are_one_line(here: Path) -> None:
    layers = "".join(
        f'layer {{ name: "bn{k}" type: "BatchNorm" batch_norm_param {{ moving_average_fraction: 0.9 }} }}\n'
        for k in range(5)
    )
    write(here, a=layers, b=layers.replace("0.9", "0.95"))
    field = "batch_norm_param.moving_average_fraction"
    assert call("a.prototxt", "b.prototxt") == (1, f"{field} 0.9 -> 0.95 in 5 layers (bn0, bn1, bn2, ...)\n")


def test_a_row_of_new_layers_is_one_line(here: Path) -> None:
    row = "".join(f'layer {{ name: "r{k}" type: "ReLU" }}\n' for k in range(6))
    write(here, a=NET, b=NET + row)
    names = ", ".join(f"r{k} (ReLU)" for k in range(6))
    assert call("a.prototxt", "b.prototxt") == (1, f"added 6 layers, after relu: {names}\n")


def test_solvers_show_their_epochs_with_the_net_beside(here: Path) -> None:
    write(here, solver_a=SOLVER, solver_b=SOLVER.replace("100", "200"), net=NET)
    code, output = call("solver_a.prototxt", "solver_b.prototxt", "--images", "6400", "--ranks", "2,4")
    assert code == 1
    assert output.splitlines() == [
        "max_iter 100 -> 200",
        "the rate:",
        "  start       1, unchanged",
        "  end         1, unchanged (iteration 99 -> 199)",
        "  iterations  100 -> 200",
        "  epochs      1.00 -> 4.00",
    ]
    (here / "net.prototxt").unlink()
    stdout = call("solver_a.prototxt", "solver_b.prototxt", "--images", "6400", "--ranks", "2")[1]
    assert "note: epochs unknown: found no net with a batch_size beside solver_a.prototxt" in stdout


def test_each_phase_of_a_solver_of_several_shows_its_rate(here: Path) -> None:
    pair = "params_pair {{ solver_params {{ {} }} batch_size: 32 }}\n"
    one, two = SOLVER.strip(), SOLVER.strip().replace("base_lr: 1", "base_lr: 2")
    write(here, a=pair.format(one) + pair.format(two), b=pair.format(one) + pair.format(one))
    assert call("a.prototxt", "b.prototxt")[1].splitlines() == [
        "params_pair[1].solver_params.base_lr 2 -> 1",
        "the rate of params_pair[1]:",
        "  start           2 -> 1",
        "  end             2 -> 1 (iteration 99)",
        "  iterations      100, unchanged",
        "  greatest ratio  2 -> 1 at iteration 0 (0.5 times)",
    ]
    rate = json.loads(call("--json", "a.prototxt", "b.prototxt")[1])["files"][0]["rate"]
    assert rate["params_pair[1]"]["start"]["new"] == 1


def test_a_net_next_to_the_solver_that_is_too_large_or_broken_is_named(here: Path) -> None:
    write(here, a=SOLVER, b=SOLVER.replace("100", "200"), net=NET + "#" * 400)
    words = ["a.prototxt", "b.prototxt", "--images", "6400", "--ranks", "2"]
    code, output = call(*words, "--max-bytes", "300")
    assert (code, "note: epochs unknown: net.prototxt: is over 300 bytes" in output) == (1, True)
    assert "epochs" in call(*words)[1] and "unknown" not in call(*words)[1]
    write(here, net="layer {")
    assert "epochs unknown: net.prototxt:1:7: this block is never closed" in call(*words)[1]


def test_folders_compare_by_path_and_see_a_renamed_file(here: Path) -> None:
    write(here / "a", net=NET, gone=SOLVER, was=NET.replace("relu", "act"))
    write(here / "b", net=NET.replace("32", "16"), come=SOLVER.replace("100", "7"))
    write(here / "b" / "sub", now="# moved\n" + NET.replace("relu", "act"))
    (here / "b" / "readme.txt").write_text("no prototxt")
    code, output = call("a", "b")
    assert code == 1
    assert output.splitlines() == [
        "added come.prototxt",
        "removed gone.prototxt",
        "net.prototxt:",
        "  data: data_param.batch_size 32 -> 16",
        "renamed was.prototxt -> sub/now.prototxt",
    ]
    assert call("a", "b", "--", "come.prototxt") == (1, "added come.prototxt\n")


@needs_git
def test_folders_and_revisions_without_prototxts_are_not_called_equal(here: Path) -> None:
    for name in ("one", "two"):
        (here / name).mkdir()
        (here / name / "train.log").write_text(name)
    wanted = "contains a prototxt or recipe (*.prototxt, *.pt, *.yaml, *.yml); check the paths"
    assert call("one", "two") == (2, f"neither 'one' nor 'two' {wanted}")
    git("init", "-q", "-b", "main")
    for name in ("one", "two"):
        git("add", name)
        git("commit", "-qm", name)
    assert call("HEAD~1", "HEAD") == (2, f"neither 'HEAD~1' nor 'HEAD' {wanted}")
    assert call("HEAD") == (2, f"neither 'HEAD' nor the working tree {wanted}")


def test_a_broken_file_of_a_folder_hides_no_other_and_exits_with_2(here: Path) -> None:
    write(here / "a", net=NET, bad=NET, kind=NET)
    write(here / "b", net=NET.replace("32", "16"), bad="layer {", kind=SOLVER)
    code, output = call("a", "b")
    assert code == 2
    assert "not compared bad.prototxt: b/bad.prototxt:1:7: this block is never closed" in output
    assert "not compared kind.prototxt: 'a/kind.prototxt' is a net, 'b/kind.prototxt' a solver" in output
    assert "batch_size 32 -> 16" in output


def test_old_layers_equal_their_upgraded_form(here: Path) -> None:
    write(
        here,
        a='layers { name: "r" type: RELU bottom: "x" top: "x" }',
        b='layer { name: "r" type: "ReLU" bottom: "x" top: "x" }',
    )
    assert call("a.prototxt", "b.prototxt")[0] == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a.prototxt", "solver.prototxt"], "'a.prototxt' is a net, 'solver.prototxt' a solver"),
        (["a.prototxt", "."], "'a.prototxt' is a file, '.' a folder; compare two of the same kind"),
        (["a.prototxt", "digits-local"], "is a file, 'digits-local' a recipe"),
        (["a.prototxt", "none.prototxt"], "none.prototxt: no such file"),
        (["a.prototxt", "empty.prototxt"], "empty.prototxt: is empty: it has no fields"),
        (["a.prototxt", "bytes.prototxt"], "bytes.prototxt:1:1: byte 0x"),
        (["a.prototxt", "a.prototxt", "--max-bytes", "9"], "is over 9 bytes"),
        (["a.prototxt"], "nothing to compare 'a.prototxt' with"),
        (["a.prototxt", "a.prototxt", "more"], "unexpected argument 'more'"),
        (["nothing", "a.prototxt"], "'nothing' is not a file, folder, recipe, run or revision"),
        (["a" * 5000, "a.prototxt"], "is not a file, folder, recipe, run or revision"),
        (["a.prototxt", "a.prototxt", "--images", "9"], "--images and --ranks must be given together"),
        (["a.prototxt", "a.prototxt", "--images", "9", "--ranks", "1,2,3"], "is not a number of ranks"),
        ([], "Missing argument 'A'"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(here: Path, words: list[str], message: str) -> None:
    write(here, a=NET, solver=SOLVER, empty="")
    (here / "bytes.prototxt").write_bytes(b"\xff\xfe")
    code, output = call(*words)
    assert code == 2
    assert message in output


def test_recipes_show_what_they_generate_and_their_own_values(here: Path) -> None:
    (here / "mine.yaml").write_text(
        DIGITS.replace("base_lr: 0.064", "base_lr: 0.128").replace("1438", "1440")
    )
    assert call("digits-local", "digits-local") == (0, "no difference in meaning\n")
    code, output = call("digits-local", "mine.yaml")
    assert code == 1
    assert output.splitlines()[:4] == [
        "recipe: data.train.images 1438 -> 1440",
        "solver_init.prototxt:",
        "  the rate:",
        "    epochs  24.92 -> 24.89",
    ]
    assert "  base_lr 0.064 -> 0.128" in output.splitlines()
    assert "    start           0.064 -> 0.128" in output.splitlines()
    assert "train_val" not in output


def test_a_recipe_name_takes_precedence_over_a_folder_of_that_name(here: Path) -> None:
    write(here / "digits-local", net=NET)
    assert call("digits-local", "digits-local") == (0, "no difference in meaning\n")
    assert call("./digits-local", "digits-local/") == (0, "no difference in meaning\n")
    assert (
        "'digits-local' is a recipe, './digits-local' a folder" in call("digits-local", "./digits-local")[1]
    )


def test_a_net_of_a_recipe_compares_with_a_file(here: Path) -> None:
    path = Path(__file__).resolve().parents[2] / "prototxt" / "digits-local" / "train_val.prototxt"
    (here / "mine.prototxt").write_text(f"# mine\n{path.read_text()}")
    assert call("digits-local:train_val", "mine.prototxt") == (0, "no difference in meaning\n")
    code, output = call("digits-local:none", "mine.prototxt")
    assert (code, "no net 'none' under `nets`" in output) == (2, True)


def test_a_recipe_s_phase_that_came_is_an_added_solver(here: Path) -> None:
    (here / "mine.yaml").write_text(DIGITS.replace("name: cyc1", "name: second"))
    lines = call("digits-local", "mine.yaml")[1].splitlines()
    assert {"added solver_second.prototxt", "removed solver_cyc1.prototxt"} <= set(lines)


def test_the_phases_that_a_recipe_evaluates_are_a_value_of_its_own(here: Path) -> None:
    (here / "mine.yaml").write_text(
        DIGITS.replace("evaluation:\n", "evaluation:\n  phases: [cyc3, collapse]\n")
    )
    output = call("digits-local", "mine.yaml")[1]
    assert output == 'recipe: evaluation.phases not set -> ["cyc3", "collapse"]\n'


@needs_git
def test_two_revisions_compare_without_a_checkout(repo: Path) -> None:
    (repo / "nets" / "net.prototxt").write_text("broken {")
    expected = [
        "nets/net.prototxt:",
        "  data: data_param.batch_size 32 -> 16",
        "renamed nets/old.prototxt -> nets/new.prototxt",
        "added nets/solver.prototxt",
    ]
    assert call("HEAD~1", "HEAD")[1].splitlines() == expected
    assert call("HEAD~1..HEAD")[1].splitlines() == expected
    assert call("HEAD~1...HEAD")[1].splitlines() == expected
    assert call("HEAD~1:nets", "HEAD:nets")[1].splitlines() == [
        line.replace("nets/", "") for line in expected
    ]


@needs_git
def test_paths_limit_revisions_relative_to_the_current_folder(
    repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only = "nets/net.prototxt:\n  data: data_param.batch_size 32 -> 16\n"
    assert call("HEAD~1", "HEAD", "--", "nets/net.prototxt") == (1, only)
    assert call("HEAD~1", "HEAD", "nets/net.prototxt") == (1, only)
    monkeypatch.chdir(repo / "nets")
    assert call("HEAD~1", "HEAD", "--", "net.prototxt") == (1, only)
    assert call("HEAD~1", "HEAD", "--", str(repo / "nets" / "net.prototxt")) == (1, only)
    code, output = call("HEAD~1", "HEAD", "--", "nat.prototxt")
    assert (code, "neither side has a prototxt or recipe at this path" in output) == (2, True)


OWN_NET = """name: "small"
layer {
  name: "score" type: "InnerProduct" bottom: "data" top: "score"
  inner_product_param { num_output: 10 }
}
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "score" bottom: "label" }
"""


def write_recipe_of_own_net(folder: Path, net: str) -> None:
    """Write the recipe of the digits with another net than a builder's."""
    own = re.sub(r"(?m)^net:\n(  .*\n)+", f"net: {{name: small, {net}, classes: 10}}\n", DIGITS)
    (folder / "mine.yaml").write_text(own.replace("name: digits-local", "name: mine"))


@needs_git
def test_the_two_nets_of_a_recipe_are_read_from_the_revision(repo: Path) -> None:
    (repo / "nets").mkdir(exist_ok=True)
    write_recipe_of_own_net(repo / "nets", "prototxt: ../own.prototxt, test_prototxt: ../test.prototxt")
    write(repo, own=OWN_NET, test=OWN_NET)
    git("add", ".")
    git("commit", "-qm", "own")
    assert call("HEAD:nets/mine.yaml", "nets/mine.yaml") == (0, "no difference in meaning\n")
    write(repo, test=OWN_NET.replace('bottom: "label"', 'bottom: "label" loss_weight: 2'))
    code, output = call("HEAD:nets/mine.yaml")
    assert (code, "loss" in output) == (1, True)


@needs_git
def test_a_recipe_s_own_net_is_read_from_the_revision(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_recipe_of_own_net(repo / "nets", "prototxt: ../own.prototxt")
    write(repo, own=OWN_NET)
    git("add", ".")
    git("commit", "-qm", "own")
    equal = (0, "no difference in meaning\n")
    assert call("HEAD:nets/mine.yaml", "nets/mine.yaml") == equal
    write(repo, own=OWN_NET.replace('"score" bottom: "label"', '"score" bottom: "label" loss_weight: 2'))
    code, output = call("HEAD:nets/mine.yaml")
    assert (code, "loss: loss_weight" in output) == (1, True)
    monkeypatch.chdir(repo / "nets")
    assert call("HEAD:./mine.yaml", "mine.yaml") == (code, output)
    git("rm", "-q", "--cached", "../own.prototxt")
    git("commit", "-qm", "without it")
    code, output = call("HEAD:nets/mine.yaml", "mine.yaml")
    assert (code, "its net HEAD:own.prototxt is not in this revision" in output) == (2, True)


@needs_git
@pytest.mark.parametrize(
    ("net", "expected"),
    [
        ("../../own.prototxt", "its net ../../own.prototxt is outside the repository"),
        ("/own.prototxt", "its net /own.prototxt is outside the repository"),
        ("link.prototxt", "its net HEAD:nets/link.prototxt is a symbolic link, which is not followed"),
    ],
)
def test_a_net_outside_the_revision_is_not_read(
    repo: Path, monkeypatch: pytest.MonkeyPatch, net: str, expected: str
) -> None:
    write_recipe_of_own_net(repo / "nets", f"prototxt: {net}")
    write(repo, own=OWN_NET)
    (repo / "nets/link.prototxt").symlink_to("../own.prototxt")
    git("add", ".")
    git("commit", "-qm", "own")
    for folder, spec in ((repo, "HEAD:nets/mine.yaml"), (repo / "nets", "HEAD:./mine.yaml")):
        monkeypatch.chdir(folder)
        code, output = call(spec)
        assert (code, expected in output) == (2, True), output


@needs_git
def test_code_of_a_revision_is_not_run_and_the_solvers_are_compared(repo: Path) -> None:
    write_recipe_of_own_net(repo, "function: 'my_nets:net'")
    (repo / "my_nets.py").write_text("raise SystemExit('it ran')\n")
    git("add", ".")
    git("commit", "-qm", "own")
    recipe = repo / "mine.yaml"
    recipe.write_text(re.sub(r"base_lr: [0-9.]+", "base_lr: 0.0123", recipe.read_text(), count=1))
    code, output = call("HEAD:mine.yaml", "mine.yaml")
    assert (code, "it ran" in output, "base_lr" in output) == (2, False, True)
    assert "not compared" in output
    assert "my_nets:net of HEAD is code, which is not run" in output


@needs_git
def test_a_path_that_the_revision_lacks_is_one_line(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hint = "`git ls-tree -r --name-only HEAD` lists its files"
    absent = f"revision 'HEAD' has no file or folder 'nosuch.yaml'; {hint}"
    assert call("HEAD:nosuch.yaml") == (2, absent)
    assert call("HEAD:nosuch.yaml", "nets/net.prototxt") == (2, absent)
    write(repo / "nets", untracked=NET)
    message = (
        "nets/untracked.prototxt: revision 'HEAD' has no such file, and git does not track yours; add it "
        "with `git add` to see it as an added file"
    )
    assert call("HEAD", "nets/untracked.prototxt") == (2, message)
    assert call("none:nosuch.yaml")[0] == 2
    monkeypatch.chdir(repo / "nets")
    message = "revision 'HEAD' has no file or folder 'net.prototxt'; did you mean 'HEAD:./net.prototxt'?"
    assert call("HEAD:net.prototxt") == (2, message)
    git("add", "untracked.prototxt")
    assert call("HEAD", "untracked.prototxt") == (1, "added nets/untracked.prototxt\n")


@needs_git
def test_one_revision_compares_with_the_tracked_files_of_the_working_tree(repo: Path) -> None:
    write(repo / "nets", net=NET.replace("32", "8"), untracked=NET)
    (repo / "nets" / "solver.prototxt").unlink()
    code, output = call("HEAD")
    assert code == 1
    assert output.splitlines() == [
        "not compared: nets/untracked.prototxt is new in the working tree; run `git add` on what you want "
        "to compare",
        "nets/net.prototxt:",
        "  data: data_param.batch_size 16 -> 8",
        "removed nets/solver.prototxt",
    ]
    assert call("HEAD", "nets/new.prototxt") == (0, "no difference in meaning\n")


@needs_git
def test_a_new_symbolic_link_is_not_offered_to_git_add(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (repo / "link.prototxt").symlink_to("nets/net.prototxt")
    (repo / "broken.prototxt").symlink_to("nowhere")
    assert call("HEAD") == (0, "no difference in meaning\n")
    monkeypatch.chdir(repo / "nets")
    what = "is a symbolic link, which is not compared; give what it leads to"
    assert call("HEAD", "--", "../link.prototxt") == (2, f"../link.prototxt: {what}")


@needs_git
def test_a_folder_with_only_new_files_is_not_called_a_file(
    repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repo / "nets/more").mkdir()
    write(repo / "nets/more", a=NET)
    monkeypatch.chdir(repo / "nets")
    what = "revision 'HEAD' has no prototxt or recipe in it, and git does not track yours"
    hint = "add it with `git add` to see it as added files"
    assert call("HEAD", "--", "more") == (2, f"more: {what}; {hint}")


@needs_git
def test_a_repository_without_commits_is_named_as_the_reason(here: Path) -> None:
    git("init", "-q", "-b", "main")
    what = "'HEAD' is not a file, folder, recipe, run or revision"
    assert call("HEAD") == (2, f"{what}; revisions: the current branch has no commits yet")


@needs_git
def test_a_new_recipe_that_git_does_not_track_is_named_and_other_new_files_are_not(
    repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repo / "mine.yaml").write_text(DIGITS)
    (repo / "notes.yaml").write_text("to: do\n")
    (repo / "ignored.prototxt").write_text(NET)
    (repo / ".gitignore").write_text("ignored.*\n")
    monkeypatch.chdir(repo / "nets")
    hint = "run `git add` on what you want to compare"
    note = f"not compared: ../mine.yaml is new in the working tree; {hint}\n"  # a path for `git add` here
    assert call("HEAD") == (0, f"{note}no difference in meaning\n")
    assert call("HEAD", "..") == (0, f"{note}no difference in meaning\n")
    assert call("HEAD", "--quiet") == (0, "")
    write(repo / "nets", a=NET, b=NET)
    note = f"not compared: ../mine.yaml, a.prototxt, b.prototxt are new in the working tree; {hint}\n"
    assert call("HEAD") == (0, f"{note}no difference in meaning\n")
    monkeypatch.setenv("CAFFE_RECIPES_LIMITS", "git-entries=6")
    write(repo / "nets", c=NET, d=NET, e=NET)
    assert call("HEAD") == (0, "no difference in meaning\n")


@needs_git
def test_a_file_of_a_revision_compares_with_a_file(repo: Path) -> None:
    line = "data: data_param.batch_size 32 -> 16\n"
    assert call("HEAD~1:nets/net.prototxt", "nets/net.prototxt") == (1, line)
    assert call("HEAD~1:nets/net.prototxt", "HEAD:nets/net.prototxt") == (1, line)
    assert call("HEAD~1:nets/net.prototxt") == (1, line)


@needs_git
def test_a_file_takes_precedence_over_a_revision_of_its_name(repo: Path) -> None:
    (repo / "main").write_text(NET)
    assert call("main", "nets/net.prototxt")[1] == "data: data_param.batch_size 32 -> 16\n"


@needs_git
def test_mixed_kinds_and_missing_revisions_are_refused(repo: Path) -> None:
    assert call("nets", "HEAD") == (2, "'nets' is a folder, 'HEAD' a revision; compare two of the same kind")
    assert call("HEAD", "v9")[0] == 2
    assert call("HEAD:nets/none.prototxt", "HEAD")[0] == 2


@needs_git
def test_outside_a_repository_a_revision_is_an_error(here: Path) -> None:
    code, output = call("HEAD", "HEAD~1")
    assert (code, "not a git repository" in output) == (2, True)


@pytest.fixture
def driven(repo: Path) -> Path:
    driver = f'{sys.executable} -c "{PROGRAM}" diff --git'
    git("config", "diff.prototxt.command", driver)
    (repo / ".gitattributes").write_text("*.prototxt diff=prototxt\n")
    return repo


@needs_git
def test_git_diff_shows_the_meaning(driven: Path) -> None:
    assert git("diff", "HEAD~1", "HEAD", "--", "nets/net.prototxt").splitlines() == [
        "diff nets/net.prototxt",
        "data: data_param.batch_size 32 -> 16",
    ]
    write(driven / "nets", net="# only a comment\n" + NET.replace("32", "16"))
    assert git("diff").splitlines() == ["diff nets/net.prototxt", "no difference in meaning"]


@needs_git
def test_git_log_shows_added_and_renamed_files_too(driven: Path) -> None:
    shown = git("log", "-p", "--ext-diff", "-M", "--format=%s")
    assert "diff nets/old.prototxt -> nets/new.prototxt\nno difference in meaning\n" in shown
    assert re.search(r'diff nets/solver\.prototxt\nadded\n@@ .*\n\+net: "models', shown)
    assert shown.startswith("two\n") and "\none\n" in shown


@needs_git
def test_git_diff_of_a_broken_file_is_line_by_line(driven: Path) -> None:
    (driven / "nets" / "net.prototxt").write_text("layer {\n")
    (driven / "nets" / "solver.prototxt").write_bytes(b"\x00\xff")
    (driven / "nets" / "new.prototxt").chmod(0o755)
    shown = git("diff")
    assert "compared as text, because nets/net.prototxt:1:7: this block is never closed" in shown
    assert "\n+layer {\n" in shown
    assert (
        "diff nets/solver.prototxt\ncompared as text, because nets/solver.prototxt: is a binary file" in shown
    )
    assert "diff nets/new.prototxt\nmode 100644 -> 100755\n" in shown


@needs_git
def test_git_diff_continues_at_a_path_that_is_not_merged(driven: Path) -> None:
    git("checkout", "-qb", "other", "HEAD~1")
    write(driven / "nets", net=NET.replace("32", "64"))
    git("commit", "-qam", "three")
    subprocess.run(
        ["git", "-c", "user.name=a", "-c", "user.email=a@b", "merge", "-q", "main"], capture_output=True
    )
    assert git("diff").startswith("diff --cc nets/net.prototxt")
    assert "nets/net.prototxt: not merged\n" in git("diff", "--cached")


@needs_git
def test_the_arguments_of_the_driver_may_look_like_options(driven: Path) -> None:
    (driven / "--json.prototxt").write_text(NET)
    git("add", ".")
    assert git("diff", "--cached", "--", "--json.prototxt").startswith("diff --json.prototxt\nadded\n")


def test_arguments_that_git_never_passes_are_refused() -> None:
    code, output = call("--git", "a", "b")
    assert (code, "git passes 7 or 9 arguments, not 2" in output) == (2, True)


def test_comparing_files_loads_no_recipe_code(here: Path) -> None:
    write(here, a=NET, b=NET)
    code = f"{PROGRAM.replace('main()', '')}\ntry: main()\nfinally: print('pydantic' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code, "diff", "a.prototxt", "b.prototxt"], capture_output=True, text=True
    )
    assert done.stdout == "no difference in meaning\nFalse\n", done.stderr


def test_folders_compare_their_pt_files_but_not_pytorch_s_weights(here: Path) -> None:
    for name, rate in (("old", 1), ("new", 2)):
        (here / name).mkdir()
        (here / name / "solver.pt").write_text(f"base_lr: {rate}")
        (here / name / "weights.pt").write_bytes(b"PK\x03\x04" + bytes([rate]))
    code, output = call("old", "new")
    assert code == 1
    assert "solver.pt" in output
    assert "weights.pt" not in output


def commit_recipe(**changes: str) -> None:
    """Commit mine.yaml, a copy of a shipped recipe, and replace words of it in the working tree."""
    text = DIGITS
    Path("mine.yaml").write_text(text)
    git("add", "mine.yaml")
    git("commit", "-q", "-m", "recipe")
    for old, new in changes.items():
        text = text.replace(old, new)
    Path("mine.yaml").write_text(text)


@needs_git
def test_a_revision_s_recipes_are_compared_by_their_values(repo: Path) -> None:
    commit_recipe(**{"ranks_per_node: 2": "ranks_per_node: 4", "momentum: 0.9": "momentum: 0.8"})
    lines = [
        "  cluster.ranks_per_node 2 -> 4",
        "  solver.momentum 0.9 -> 0.8",
        "  images per iteration 64 -> 128",
    ]
    assert call("HEAD") == (1, "\n".join(["mine.yaml:", *lines, ""]))
    assert call("HEAD", "mine.yaml") == call("HEAD")
    assert call("HEAD", "--", "nets") == (0, "no difference in meaning\n")
    files = json.loads(call("HEAD", "--json")[1])["files"]
    assert [(file["path"], file["kind"], len(file["changes"])) for file in files] == [
        ("mine.yaml", "recipe", 3)
    ]


@needs_git
def test_a_revision_s_families_are_compared_by_row(repo: Path) -> None:
    text = shipped_recipes()["paper-t1-7680-240n-linear"].file.read_text("utf-8")
    file = Path("family.yaml")
    file.write_text(text)
    git("add", "family.yaml")
    git("commit", "-q", "-m", "family")
    assert call("HEAD") == (0, "no difference in meaning\n")
    file.write_text(text.replace("momentum: 0.9", "momentum: 0.8", 1))
    code, output = call("HEAD")
    assert (code, output.count("momentum")) == (1, 1)
    head, _, body = text.partition("\nrows:")
    wide = f"{head}\nrows:{re.sub('(?m)^(?= )', '  ', body)}"
    file.write_text(wide)
    assert call("HEAD") == (0, "no difference in meaning\n")
    file.write_text(wide.replace("momentum: 0.9", "momentum: 0.8", 1))
    assert call("HEAD") == (code, output)
    file.write_text("family: nothing\n")
    code, output = call("HEAD")
    assert (code, "not compared family.yaml" in output) == (2, True)
    rows = find_rows(text)
    start = text.index(f"\n  {rows[-1]}:")
    file.write_text(text[:start] + "\n")
    code, output = call("HEAD")
    assert (code, f"  rows.{rows[-1]} " in output, output.count("-> not set")) == (1, True, 1)


@needs_git
def test_other_yaml_is_compared_only_if_it_is_named(repo: Path) -> None:
    Path("ci.yaml").write_text("jobs: 1\n")
    git("add", "ci.yaml")
    assert call("HEAD") == (0, "no difference in meaning\n")
    Path("ci.yaml").write_text("jobs: 1\n")
    git("commit", "-q", "-m", "ci")
    Path("ci.yaml").write_text("jobs: 2\n")
    assert call("HEAD") == (0, "no difference in meaning\n")
    code, output = call("HEAD", "--", "ci.yaml")
    assert (code, "not compared ci.yaml: HEAD:ci.yaml:1: jobs: unknown key" in output) == (2, True)


@pytest.mark.promise("git runs nothing for a repository")
@needs_git
def test_a_repository_cannot_make_us_start_a_program(repo: Path, tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    trap.write_text(f"#!/bin/sh\ntouch {tmp_path}/sprung\nexit 1\n")
    trap.chmod(0o755)
    git("config", "core.fsmonitor", str(trap))
    blob = git("rev-parse", "HEAD:nets/net.prototxt").strip()
    assert call("HEAD")[0] == 0
    for name, value in {
        "core.repositoryFormatVersion": "1",
        "extensions.partialClone": "origin",
        "remote.origin.promisor": "true",
        "remote.origin.url": str(tmp_path),
        "remote.origin.uploadpack": str(trap),
    }.items():
        git("config", name, value)
    lost = repo / ".git" / "objects" / blob[:2] / blob[2:]
    lost.chmod(0o644)
    lost.unlink()
    code, output = call("HEAD~1", "HEAD")
    assert (code, output) == (2, f"{blob}: is missing from the repository; fetch it with git first")
    assert not (tmp_path / "sprung").exists()


@pytest.mark.promise("git runs nothing for a repository")
@needs_git
def test_a_tracked_folder_is_not_treated_as_a_bare_repository(
    repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git("clone", "-q", "--bare", ".", "planted")
    git("-C", "planted", "config", "core.fsmonitor", f"touch {repo}/sprung; false")
    git("-C", "planted", "config", "core.bare", "false")
    git("-C", "planted", "config", "core.worktree", str(repo / "planted"))
    monkeypatch.chdir(repo / "planted")
    code, _ = call("HEAD~1", "HEAD")
    assert code in (1, 2)
    assert not (repo / "sprung").exists()


@needs_git
def test_a_file_of_a_revision_over_the_bound_is_not_read(repo: Path) -> None:
    for sides in (["HEAD~1:nets/net.prototxt"], ["HEAD~1", "HEAD"]):
        code, output = call(*sides, "--max-bytes", "9")
        assert (code, "is over 9 bytes" in output) == (2, True)
    code, output = call("HEAD~1", "HEAD", "--max-bytes", "170")
    assert (code, "together" in output) == (1, False)


def make_tree(*entries: str) -> str:
    return subprocess.run(
        ["git", "mktree", "--missing"], input="\n".join(entries), capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.mark.promise("hostile files cost no more than their limit")
@needs_git
@pytest.mark.parametrize("leaf", ["100644 blob {blob}\ta.txt", ""], ids=["of files", "of empty folders"])
def test_a_tree_that_holds_the_same_tree_again_and_again_is_refused(repo: Path, leaf: str) -> None:
    tree = make_tree(leaf.format(blob=git("rev-parse", "HEAD:nets/net.prototxt").strip()))
    for _ in range(12):
        tree = make_tree(*(f"040000 tree {tree}\t{number}" for number in range(10)))
    git("tag", "bomb", git("commit-tree", "-m", "x", tree).strip())
    message = "git ls-tree: lists over 500,000 entries; if you trust it, raise the limit with"
    for sides in (["HEAD", "bomb"], ["bomb"], ["HEAD:nets", "bomb:1"]):
        code, output = call(*sides)
        assert (code, output.startswith(message), output.count("\n")) == (2, True, 0)


@pytest.mark.promise("hostile files cost no more than their limit")
@needs_git
@pytest.mark.parametrize("size", ["small", "large"])
def test_files_of_a_revision_that_are_one_object_count_each(repo: Path, size: str) -> None:
    text = {"small": "base_lr: 1\n", "large": f"# {'x' * 1_000_000}\n"}[size]
    (repo / "solver.prototxt").write_text(text)
    blob = git("hash-object", "-w", "solver.prototxt").strip()
    number, message = {
        "small": (10_001, "over 10,000 files to compare; compare fewer paths at a time"),
        "large": (300, "the files to compare exceed 256,000,000 bytes in total"),
    }[size]
    tree = make_tree(*(f"100644 blob {blob}\t{index:05}.prototxt" for index in range(number)))
    git("tag", "many", git("commit-tree", "-m", "x", tree).strip())
    code, output = call("HEAD", "many")
    assert (code, message in output) == (2, True)


@pytest.mark.promise("git runs nothing for a repository")
@needs_git
@pytest.mark.parametrize("name", ["priv", "."])
def test_a_repository_cannot_name_another_folder_as_its_working_tree(repo: Path, name: str) -> None:
    (repo / "inner").mkdir()
    shutil.move(repo / ".git", repo / "inner")
    (repo / "priv").mkdir()
    os.chdir(repo / "inner")
    git("config", "core.worktree", str(repo / name))
    code, output = call("HEAD")
    what = f"{repo / name}: is configured as the working tree, but does not contain this repository"
    assert (code, output.startswith(what), output.count("\n")) == (2, True, 0)


@pytest.mark.promise("git runs nothing for a repository")
def test_git_runs_with_a_limit_on_the_size_of_an_object(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = 'case $3 in *) echo "fatal: at most $GIT_ALLOC_LIMIT" >&2; exit 128;; esac'
    (here / "git").write_text(f"#!/bin/sh\n{script}\n")
    (here / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{here}:{os.environ['PATH']}")
    assert explain_no_repository() == "at most 512m"


@pytest.mark.promise("git runs nothing for a repository")
@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("cat /dev/zero", "git rev-parse: prints over 1,000,000 bytes"),
        ("cat /dev/zero >&2", "git rev-parse: prints over 1,000,000 bytes"),
        ("exec sleep 3600", "git rev-parse: did not end within 1 s"),
    ],
)
def test_a_git_that_does_not_finish_is_killed(
    here: Path, monkeypatch: pytest.MonkeyPatch, script: str, expected: str
) -> None:
    (here / "git").write_text(f"#!/bin/sh\n{script}\n")
    (here / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{here}:{os.environ['PATH']}")
    monkeypatch.setattr("caffe_recipes.review.diff.git.MOST_GIT_S", 1.0)
    code, output = call("HEAD", "HEAD~1")
    assert (code, expected in output) == (2, True)


def test_the_images_of_data_that_the_nets_name_are_one_difference(tmp_path: Path) -> None:
    (tmp_path / "net.prototxt").write_text(
        'layer { name: "d" type: "ImageData" top: "data" image_data_param { batch_size: 32 } }'
    )
    raw = yaml.safe_load(DIGITS)
    raw |= {"data": "as-in-net", "test_images": 359, "nets": {name: {} for name in raw["nets"]}}
    raw["net"] = {"name": "mine", "classes": 10, "prototxt": "net.prototxt"}
    for name, images in (("old", 1438), ("new", 1500)):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump({**raw, "images": images}))
    done = call_main("diff", "old.yaml", "new.yaml", cwd=tmp_path)
    assert done.stdout.count("1438") == 1 and "images" in done.stdout, done.stdout
