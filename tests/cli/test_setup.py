"""`doctor`, `profiles` and `completion` on the command line."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from caffe_recipes.cli.main import commands
from caffe_recipes.cluster.profiles import load_profile, shipped_profiles
from caffe_recipes.errors import InputError


def test_doctor_prints_a_row_for_each_need() -> None:
    done = CliRunner().invoke(commands, ["doctor"])
    assert done.exit_code == 0
    for name in ("launcher", "Caffe", "torch", "threads", "/tmp", "ssh", "Slurm"):
        assert f" {name} " in done.output


def test_doctor_for_a_command_fails_if_the_command_cannot_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    done = CliRunner().invoke(commands, ["doctor", "submit"])
    assert done.exit_code == 1
    assert "missing Slurm  sbatch not found on PATH\n" in done.output
    assert "needed by: submit, cancel, status\n" in done.output
    assert "install:   module load slurm  # on a login node" in done.output


def test_doctor_names_the_commands_that_it_knows() -> None:
    done = CliRunner().invoke(commands, ["doctor", "fmt"])
    assert done.exit_code == 2
    assert "'fmt' is not one of" in done.output


def test_doctor_prints_json() -> None:
    found = json.loads(CliRunner().invoke(commands, ["doctor", "diff", "--json"]).output)
    assert [each["name"] for each in found] == ["git"]


def test_profiles_are_listed_by_name_and_title() -> None:
    lines = CliRunner().invoke(commands, ["profiles"]).output.splitlines()
    assert [line.split()[0] for line in lines if line[0] != " "] == list(shipped_profiles())


def test_a_printed_profile_is_one_to_edit(tmp_path: Path) -> None:
    mine = tmp_path / "cluster.yaml"
    mine.write_text(CliRunner().invoke(commands, ["profiles", "slurm"]).output)
    assert load_profile(mine) == load_profile("slurm")


def test_a_file_s_profile_is_printed_if_it_is_valid(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("name: mine\ntitle: My machine\n")
    assert CliRunner().invoke(commands, ["profiles", str(mine)]).output == mine.read_text()
    mine.write_text("name: mine\n")
    assert "title: missing" in str(CliRunner().invoke(commands, ["profiles", str(mine)]).exception)


def test_an_unknown_profile_names_the_nearest() -> None:
    done = CliRunner().invoke(commands, ["profiles", "slum"])
    assert isinstance(done.exception, InputError)
    assert "did you mean 'slurm'?" in str(done.exception)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_s_script_is_printed(shell: str) -> None:
    done = CliRunner().invoke(commands, ["completion", shell])
    assert done.exit_code == 0
    assert f"_CAFFE_RECIPES_COMPLETE={shell}_complete" in done.output
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=done.output, text=True, check=True)
