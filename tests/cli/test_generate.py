"""`caffe-recipes generate`: what it writes and prints, and that `--check` writes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from caffe_recipes.cli.generate import generate
from caffe_recipes.errors import CaffeRecipesError, CheckFailed, InputError, RecipeError
from caffe_recipes.recipe.shipped import shipped_recipes
from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.render.recipe_files import generate_all
from caffe_recipes.run.folders import create_run
from caffe_recipes.run.lock import RecipeLock
from caffe_recipes.run.training_plan import plan_files

DIGITS = shipped_recipes()["digits-local"].file.read_text("utf-8")
FILES = generate_all([load_recipe("digits-local")])
SOLVER = "prototxt/digits-local/solver_cyc1.prototxt"


def call(*words: str | Path) -> Result:
    return CliRunner().invoke(generate, [str(word) for word in words])


def state_of(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_the_files_of_a_recipe_are_written_below_out(tmp_path: Path) -> None:
    done = call("digits-local", "--out", tmp_path)
    assert done.exit_code == 0
    assert state_of(tmp_path) == FILES
    assert done.output.splitlines()[-1] == f"{len(FILES)} written, 0 unchanged"
    assert f"wrote {tmp_path / SOLVER}" in done.output.splitlines()


def test_the_default_is_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert call("digits-local").exit_code == 0
    assert state_of(tmp_path) == FILES


def test_a_second_call_changes_one_file_that_was_edited(tmp_path: Path) -> None:
    call("digits-local", "--out", tmp_path)
    (tmp_path / SOLVER).write_text(FILES[SOLVER] + "base_lr: 1")
    done = call("digits-local", "--out", tmp_path)
    assert done.output.splitlines() == [
        f"wrote {tmp_path / SOLVER}",
        f"1 written, {len(FILES) - 1} unchanged",
    ]
    assert state_of(tmp_path) == FILES


@pytest.mark.parametrize("text", ["base_lr: 1", ""])
def test_a_file_written_by_hand_is_kept_unless_it_may_be_overwritten(tmp_path: Path, text: str) -> None:
    file = tmp_path / SOLVER
    file.parent.mkdir(parents=True)
    file.write_text(text)
    done = call("digits-local", "--out", tmp_path)
    assert isinstance(done.exception, InputError)
    command = f"caffe-recipes generate digits-local --out {tmp_path} --overwrite"
    message = f"was not written by `generate`; move it away, or overwrite it: {command}"
    assert str(done.exception) == f"{file}: {message}"
    assert state_of(tmp_path) == {SOLVER: text}
    assert call("digits-local", "--out", tmp_path, "--overwrite").exit_code == 0
    assert state_of(tmp_path) == FILES


def test_several_files_written_by_hand_are_counted(tmp_path: Path) -> None:
    for path in FILES:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("mine")
    done = call("digits-local", "--out", tmp_path)
    assert f"was not written by `generate`, and neither were {len(FILES) - 1} more;" in str(done.exception)
    assert set(state_of(tmp_path).values()) == {"mine"}


def test_check_prints_only_a_count_if_nothing_differs(tmp_path: Path) -> None:
    call("digits-local", "--out", tmp_path)
    done = call("--check", "digits-local", "--out", tmp_path)
    assert (done.exit_code, done.output) == (0, f"{len(FILES)} files are up to date\n")


def test_check_prints_a_diff_fails_and_writes_nothing(tmp_path: Path) -> None:
    call("digits-local", "--out", tmp_path)
    text = (tmp_path / SOLVER).read_text()
    (tmp_path / SOLVER).write_text(text.replace("max_iter: 270", "max_iter: 999"))
    (tmp_path / "jobs/digits-local/run.sh").unlink()
    before = state_of(tmp_path)
    done = call("--check", "digits-local", "--out", tmp_path)
    assert isinstance(done.exception, CheckFailed)
    assert done.exception.exit_code == 1
    assert f"{SOLVER} (changed), jobs/digits-local/run.sh (missing)" in str(done.exception)
    assert "\n-max_iter: 999" in done.output
    assert "\n+max_iter: 270" in done.output
    assert "+++ b/jobs/digits-local/run.sh" in done.output
    assert state_of(tmp_path) == before


def test_renaming_a_phase_leaves_a_stale_file_that_both_commands_report(tmp_path: Path) -> None:
    recipe = tmp_path / "renamed.yaml"
    recipe.write_text(DIGITS.replace("name: cyc1", "name: second"))
    call("digits-local", "--out", tmp_path)
    done = call(recipe, "--out", tmp_path)
    assert done.exit_code == 0
    assert f"stale: {tmp_path / SOLVER} is no longer generated; remove it" in done.stderr
    assert (tmp_path / SOLVER).read_text() == FILES[SOLVER]
    checked = call("--check", recipe, "--out", tmp_path)
    assert f"{SOLVER} (stale)" in str(checked.exception)
    (tmp_path / SOLVER).unlink()
    assert call("--check", recipe, "--out", tmp_path).exit_code == 0


@pytest.mark.parametrize(
    ("words", "kind", "expected"),
    [
        (["digits-local", "digits-local"], RecipeError, "two recipes are called 'digits-local'"),
        (["digits-local", "digits-lokal"], RecipeError, "did you mean 'digits-local'"),
    ],
)
def test_one_bad_recipe_of_several_leaves_nothing_behind(
    tmp_path: Path, words: list[str], kind: type[CaffeRecipesError], expected: str
) -> None:
    done = call(*words, "--out", tmp_path / "out")
    assert isinstance(done.exception, kind)
    assert expected in str(done.exception)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("check", [[], ["--check"]])
def test_an_out_that_is_a_file_is_refused(tmp_path: Path, check: list[str]) -> None:
    (tmp_path / "out").write_text("a file")
    done = call("digits-local", "--out", tmp_path / "out", *check)
    assert isinstance(done.exception, InputError)
    assert "Not a directory" in str(done.exception)


def test_another_dialect_is_written_beside_the_default(tmp_path: Path) -> None:
    call("digits-local", "--out", tmp_path)
    done = call("digits-local", "stampede2-64n-72ep", "--dialect", "intel", "--out", tmp_path)
    assert done.exit_code == 0
    assert {path.name for path in (tmp_path / "prototxt").iterdir()} == {
        "digits-local",
        "digits-local-intel",
        "stampede2-64n-72ep-intel",
    }
    assert (tmp_path / "jobs/stampede2-64n-72ep-intel/run.sh").stat().st_mode & 0o100
    assert {path: text for path, text in state_of(tmp_path).items() if "intel" not in path} == FILES
    checked = call("--check", "digits-local", "--dialect", "intel", "--out", tmp_path)
    assert (checked.exit_code, checked.output) == (0, f"{len(FILES)} files are up to date\n")


def test_check_sees_a_change_in_another_dialect_s_files(tmp_path: Path) -> None:
    call("digits-local", "--dialect", "intel", "--out", tmp_path)
    solver = tmp_path / "prototxt/digits-local-intel/solver_init.prototxt"
    solver.write_text(solver.read_text().replace("max_iter: 1344", "max_iter: 560"))
    done = call("digits-local", "--dialect", "intel", "--check", "--out", tmp_path)
    assert isinstance(done.exception, CheckFailed)
    assert "solver_init.prototxt (changed)" in str(done.exception)
    assert isinstance(call("digits-local", "--check", "--out", tmp_path).exception, CheckFailed)


@pytest.mark.parametrize("check", [[], ["--check"]])
@pytest.mark.parametrize(("dialect", "parts"), [("bvlc", 11), ("nvcaffe", 12)])
def test_settings_without_an_equivalent_are_listed_and_nothing_is_written(
    tmp_path: Path, dialect: str, parts: int, check: list[str]
) -> None:
    done = call("digits-local", "--dialect", dialect, "--out", tmp_path / "out", *check)
    assert isinstance(done.exception, RecipeError)
    assert str(done.exception) == (
        f"{parts} parts have no exact equivalent in the dialect {dialect}; nothing was written"
    )
    lines = done.stderr.splitlines()
    assert len(lines) == parts
    assert lines[0].startswith("digits-local: phase 'init': warmup_iter: ")
    assert not (tmp_path / "out").exists()


def test_one_recipe_without_an_equivalent_keeps_the_others_from_being_written(tmp_path: Path) -> None:
    text = DIGITS.replace("name: digits-local\n", "name: past\n").replace("lr_iter: 1344", "lr_iter: 500")
    (tmp_path / "past.yaml").write_text(text.replace("power: 1\n", "power: 2\n"))  # else the rate is negative
    done = call("digits-local", tmp_path / "past.yaml", "--dialect", "intel", "--out", tmp_path / "out")
    assert str(done.exception).startswith("1 part has no exact equivalent")
    assert done.stderr.startswith("past: phase 'init': lr_iter: poly has no rate past its max_iter")
    assert not (tmp_path / "out").exists()


def test_an_unknown_dialect_is_refused_with_all(tmp_path: Path) -> None:
    done = call("digits-local", "--dialect", "itel", "--out", tmp_path)
    assert done.exit_code == 2
    assert "'surfsara', 'intel', 'bvlc', 'nvcaffe'" in done.output


def test_a_copy_with_the_same_name_as_the_recipe_next_to_it_writes_nothing(tmp_path: Path) -> None:
    pics, copy = tmp_path / "pics.yaml", tmp_path / "e3.yaml"
    copy.write_text(DIGITS.replace("digits-local", "pics"))
    alone = call(copy, "--out", tmp_path)
    assert (alone.exit_code, alone.stderr.count("its jobs look for pics.yaml")) == (0, 1)
    pics.write_text(copy.read_text())
    copy.write_text(copy.read_text().replace("max_iter: 270", "max_iter: 300"))
    before = state_of(tmp_path)
    done = call(copy, "--out", tmp_path)
    assert isinstance(done.exception, InputError)
    hint = "write `name: e3` (and its prototxt_dir)"
    assert str(done.exception) == f"{copy}: is called 'pics', like pics.yaml beside it; {hint}"
    assert state_of(tmp_path) == before
    assert call(pics, "--out", tmp_path).exit_code == 0


def test_the_help_names_each_folder_that_is_written(tmp_path: Path) -> None:
    assert {path.rsplit("/", 1)[0] for path in FILES} == {"prototxt/digits-local", "jobs/digits-local"}
    printed = call("--help").output
    assert all(folder in printed for folder in ("prototxt/<recipe>/", "jobs/<recipe>/"))


@pytest.mark.parametrize("arguments", [(), ("--overwrite",)])
def test_files_that_an_active_run_reads_are_not_changed(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    call("digits-local", "--out", tmp_path)
    (tmp_path / SOLVER).write_text(FILES[SOLVER] + "# edited\n")
    lock = RecipeLock(tmp_path, "digits-local")
    lock.acquire()
    before = state_of(tmp_path)
    refused = call("digits-local", "--out", tmp_path, *arguments)
    assert isinstance(refused.exception, InputError)
    assert f"{tmp_path / SOLVER}: a run of digits-local reads it" in str(refused.exception)
    assert state_of(tmp_path) == before
    lock.close()
    assert call("digits-local", "--out", tmp_path).exit_code == 0


def test_a_net_that_another_recipe_s_run_shares_is_not_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("first", "second"):
        own = DIGITS.replace("digits-local", name)
        Path(f"{name}.yaml").write_text(own.replace("\nnet:", "\nnets_dir: prototxt/shared\nnet:", 1))
    call("first.yaml")
    first = load_recipe("first.yaml")
    create_run(tmp_path / "runs/first-1", first, plan_files(first)).close()
    shared = Path("prototxt/shared/train_val.prototxt")
    shared.write_text(shared.read_text() + "# edited\n")
    lock = RecipeLock(tmp_path, "first")
    lock.acquire()
    refused = call("second.yaml")
    assert f"{shared}: a run of first reads it" in str(refused.exception)
    lock.close()
    assert call("second.yaml").exit_code == 0


def test_files_that_an_active_run_does_not_read_are_written(tmp_path: Path) -> None:
    call("digits-local", "--out", tmp_path)
    script = tmp_path / "jobs/digits-local/run.sh"
    script.write_text(script.read_text() + "# edited\n")
    lock = RecipeLock(tmp_path, "digits-local")
    lock.acquire()
    assert f"wrote {script}" in call("digits-local", "--out", tmp_path).output
    lock.close()
