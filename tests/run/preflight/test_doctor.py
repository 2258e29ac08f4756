"""`doctor`: what this machine has, for which commands, and what installs the rest."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from caffe_recipes.cluster.hosts import LocalHost
from caffe_recipes.run.preflight.doctor import COMMANDS_WITH_NEEDS, Machine, Symptom, examine


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A machine with one program, sbatch, and an empty home."""
    programs = tmp_path / "bin"
    programs.mkdir()
    sbatch = programs / "sbatch"
    sbatch.write_text("#!/bin/sh\necho slurm-wlm 23.11.4\n")
    sbatch.chmod(0o755)
    return Machine(LocalHost(), {"PATH": str(programs)}, tmp_path / "home", tmp_path)


def find(machine: Machine, name: str) -> Symptom:
    (found,) = (symptom for symptom in examine(machine) if symptom.name == name)
    return found


def test_a_program_is_found_with_its_version(machine: Machine) -> None:
    slurm = find(machine, "Slurm")
    assert slurm.is_found
    assert slurm.what.endswith("bin/sbatch 23.11.4")
    assert slurm.install == ""


@pytest.mark.parametrize("name", ["Caffe", "ssh", "git"])
def test_a_missing_program_is_shown_with_its_commands_and_how_to_install_it(
    machine: Machine, name: str
) -> None:
    symptom = find(machine, name)
    assert not symptom.is_found
    assert symptom.commands
    assert symptom.install
    assert symptom.only_for
    assert not symptom.is_fatal


def test_a_missing_package_keeps_its_commands_from_working(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib.metadata

    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    plots = find(machine, "plots")
    assert plots.is_fatal
    assert plots.install == "pip install 'caffe-recipes[plot]'"


def test_caffe_is_looked_up_in_its_root(machine: Machine, tmp_path: Path) -> None:
    built = tmp_path / "build" / "tools" / "caffe"
    built.parent.mkdir(parents=True)
    built.touch(0o755)
    machine = Machine(machine.host, {**machine.environment, "CAFFE_ROOT": str(tmp_path)}, tmp_path, tmp_path)
    assert find(machine, "Caffe").what == str(built)


def test_more_threads_than_cores_are_reported(machine: Machine) -> None:
    assert find(machine, "threads").is_found
    crowded = Machine(machine.host, {**machine.environment, "OMP_NUM_THREADS": "99999"}, machine.home)
    assert find(crowded, "threads").is_fatal


def test_ssh_and_a_key_or_an_agent_are_reported_apart(machine: Machine, tmp_path: Path) -> None:
    assert find(machine, "ssh").what == "ssh not found on PATH"
    ssh = tmp_path / "bin" / "ssh"
    ssh.write_text("#!/bin/sh\necho OpenSSH_9.2p1\n")
    ssh.chmod(0o755)
    assert find(machine, "ssh").what == f"{ssh} 9.2p1"
    key = find(machine, "ssh key")
    assert (key.is_found, key.what) == (False, "no key ~/.ssh/id_*.pub, and no agent in $SSH_AUTH_SOCK")
    (machine.home / ".ssh").mkdir(parents=True)
    (machine.home / ".ssh" / "id_ed25519.pub").touch()
    assert find(machine, "ssh key").what == "~/.ssh/id_ed25519"
    with_agent = {**machine.environment, "SSH_AUTH_SOCK": "/run/agent"}
    assert find(Machine(machine.host, with_agent, tmp_path, tmp_path), "ssh key").what == "an agent"


def test_each_missing_thing_comes_with_a_line_that_a_shell_takes(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Machine, "find", lambda *_: None)
    lines = [symptom.install for symptom in examine(machine) if not symptom.is_found]
    assert len(lines) >= 5
    for line in lines:
        subprocess.run(["bash", "-n", "-c", line], check=True)
        program = line.split()[0]
        assert program in ("export", "unset", "module", "pip", "apt-get") or shutil.which(program), line


@pytest.mark.parametrize("command", COMMANDS_WITH_NEEDS)
def test_only_what_a_command_needs_is_checked(machine: Machine, command: str) -> None:
    found = list(examine(machine, [command]))
    assert found
    assert all(command in symptom.commands for symptom in found)


def test_nothing_is_changed(machine: Machine, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    list(examine(machine))
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", ["sbatch", "sinfo"])
def test_slurm_that_is_not_set_up_is_missing(machine: Machine, name: str) -> None:
    program = Path(machine.environment["PATH"], name)
    program.write_text("#!/bin/sh\necho no DNS >&2\necho no configuration source >&2\nexit 1\n")
    program.chmod(0o755)
    slurm = find(machine, "Slurm")
    assert (slurm.is_found, slurm.what) == (False, f"{program}: no configuration source")
    assert slurm.install.startswith("module load slurm")
