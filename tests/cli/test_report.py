from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command_line import call_main
from tests.run.conftest import RECIPE
from tests.run.recorded_run import LOG, launched, started, write_run


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(RECIPE)
    return path


def test_runs_are_given_by_name_or_folder(tmp_path: Path, recipe: Path) -> None:
    folder = write_run(tmp_path, recipe, started(), launched(), log=LOG)
    done = call_main("report", "small-1", folder, "-o", "a.html", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "wrote a.html\n")
    assert (tmp_path / "a.html").read_text().startswith("<!DOCTYPE html>")


def test_a_family_stands_for_the_runs_of_its_rows(tmp_path: Path, recipe: Path) -> None:
    rows = [f"  {line}" for line in RECIPE.splitlines() if not line.startswith(("name:", "title:"))]
    base = "\n".join(rows)
    family = (
        f"family: ours\ntitle: Ours\nbase:\n{base}\nrows:\n  small: {{title: A}}\n  large: {{title: B}}\n"
    )
    (tmp_path / "ours.yaml").write_text(family)
    done = call_main("report", "ours.yaml", "-o", "a.html", cwd=tmp_path)
    none = "ours.yaml: none of its rows was run; start them: caffe-recipes run ours.yaml --each"
    assert (done.returncode, done.stderr) == (2, f"Error: {none}\n")
    write_run(tmp_path, recipe, started(), launched(), log=LOG)
    for given in ("ours.yaml", "ours.yaml:small"):
        done = call_main("report", given, "-o", "a.html", cwd=tmp_path)
        assert (done.returncode, done.stdout) == (0, "wrote a.html\n")


def test_what_was_not_read_is_reported(tmp_path: Path, recipe: Path) -> None:
    folder = write_run(tmp_path, recipe, started(), launched(), log=LOG)
    (folder / "logs" / "init-1.log").unlink()
    done = call_main("report", "small-1", "-o", "a.html", cwd=tmp_path)
    line = "not read: small-1: runs/small-1/logs/init-1.log: no such file\n"
    assert (done.returncode, done.stderr) == (0, line)


def test_what_is_not_a_run_is_one_line_and_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("empty", "./empty", "nothing-1"):
        done = call_main("report", name, "-o", "a.html", cwd=tmp_path)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert done.stderr.startswith("Error: ")
    assert not (tmp_path / "a.html").exists()


def test_a_page_that_cannot_be_written_is_one_line(tmp_path: Path, recipe: Path) -> None:
    write_run(tmp_path, recipe, started(), launched(), log=LOG)
    done = call_main("report", "small-1", "-o", "missing/a.html", cwd=tmp_path)
    line = "Error: missing/a.html: the folder missing does not exist; create it\n"
    assert (done.returncode, done.stderr) == (2, line)
