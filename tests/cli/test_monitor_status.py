from __future__ import annotations

import json
import shutil
import subprocess
from datetime import datetime
from pathlib import Path

import pytest

from tests.cli.command_line import call_main
from tests.run.conftest import RECIPE
from tests.run.recorded_run import WHOLE, launched, started, write_run

STARTED = datetime.fromtimestamp(1_700_000_000).astimezone().strftime("%Y-%m-%d %H:%M")


def call(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return call_main("status", *words, cwd=folder)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    recipe = tmp_path / "small.yaml"
    recipe.write_text(RECIPE)
    write_run(tmp_path, recipe, *WHOLE)
    write_run(tmp_path, recipe, started(), launched(), number=2)
    return tmp_path


def test_each_run_is_a_line(root: Path) -> None:
    done = call(root)
    assert (done.returncode, done.stderr) == (0, "")
    header, second, first = done.stdout.splitlines()
    assert header.split() == ["run", "state", "phase", "started", "elapsed", "result"]
    assert second.startswith("small-2  stopped   1/3 init  ")
    assert second.endswith("run again to resume")
    assert first.endswith("  loss3/top-1: 75.00% (reported: 76.3%)")


def test_a_single_run_is_reported_in_detail(root: Path) -> None:
    done = call(root, "small-1")
    assert done.stdout.splitlines() == [
        "small-1",
        "  state    finished",
        f"  started  {STARTED}",
        "  elapsed  0:00",
        *(f"  {name:7}  finished in 3 s, 1,234 images/s, loss 0.25" for name in ("init", "cyc1", "last")),
        "  result   loss3/top-1: 75.00% (reported: 76.3%)",
        "  log      runs/small-1/logs/last-1.log",
        "  model    runs/small-1/snapshots/last.caffemodel",
    ]


def test_without_runs_the_searched_folder_is_named(tmp_path: Path) -> None:
    start = "start one with `caffe-recipes run NAME` or `caffe-recipes submit NAME`"
    hint = f"{start}, or give the folder that contains `runs` with --caffe-root\n"
    assert call(tmp_path).stdout == f"no runs in {tmp_path}/runs; {hint}"


@pytest.mark.promise("no name or text commands a terminal")
def test_no_name_of_a_run_becomes_a_workflow_command_in_a_job_log(root: Path) -> None:
    for index, command in enumerate(("::add-mask::1", "::error::x"), 3):
        copy = root / "runs" / f"{command}-{index}"
        shutil.copytree(root / "runs/small-2", copy)
        for words in (["status"], ["status", copy.name], ["attach", "--once", copy.name]):
            done = call_main(*words, cwd=root)
            lines = f"{done.stdout}\n{done.stderr}".splitlines()
            assert not [line for line in lines if line.lstrip().startswith("::")], words
        assert r"\x3a:" in call(root).stdout


def test_programs_read_json(root: Path) -> None:
    assert [run["state"] for run in json.loads(call(root, "--json").stdout)] == ["stopped", "finished"]
    assert json.loads(call(root, "small", "--json").stdout)["run"] == "small-2"


def test_without_runs_it_is_one_line(tmp_path: Path) -> None:
    done = call(tmp_path)
    assert (done.returncode, done.stdout.count("\n")) == (0, 1)
    assert json.loads(call(tmp_path, "--json").stdout) == []


def test_a_missing_run_is_one_line_and_exit_2(root: Path) -> None:
    done = call(root, "large")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
