"""The settings of a run's staging: rates, launcher and names, from the profile if it sets them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.datums import write_datums
from caffe_recipes.cluster.profiles import Profile, parse_profile
from caffe_recipes.cluster.staging.method_choice import CopyRates
from caffe_recipes.cluster.staging.methods import ChainEnv
from caffe_recipes.errors import DataError, HostFailed, InputError
from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.run.context import StageOptions, find_profile
from caffe_recipes.run.staging import find_staging_env, stage_recipe

pytest.importorskip("mpi4py", reason="the extra `local` is not installed")

HOSTS = ("node2", "node1")


def profile(text: str = "") -> Profile:
    return parse_profile(f"name: mine\ntitle: mine\n{text}", "mine.yaml")


def chain(of: Profile) -> ChainEnv:
    means = find_staging_env(of, None).chain
    assert means is not None
    return means


def argv(means: ChainEnv) -> Sequence[str]:
    return replace(means.launch, hosts=HOSTS, hostfile="hosts").argv(["python"])


def test_copy_rates_and_the_name_of_the_head_come_from_the_profile_or_modest_defaults() -> None:
    means = find_staging_env(profile("rates: {shared_gb_per_s: 40}\nhead: login1\n"), "copy")
    assert means.rates == CopyRates(shared=40e9)
    assert (means.here, means.how) == ("login1", "copy")
    means = find_staging_env(find_profile(load_recipe("stampede2-64n-72ep"), None), None)
    assert (means.rates, means.here, means.how) == (CopyRates(), "", None)


def test_a_chain_starts_one_rank_a_host_and_each_gets_the_profiles_environment() -> None:
    means = chain(profile('launcher: {environment: {FI_PROVIDER: "a b"}}\n'))
    options = ["-l", "-n", "2", "-ppn", "1", "-f", "hosts"]
    assert argv(means) == ("mpiexec.hydra", *options, "python")
    assert means.launch.process_environment()["FI_PROVIDER"] == "a b"


def test_a_chain_leaves_out_what_its_launcher_does_not_know() -> None:
    assert "-PSM2" not in argv(chain(profile("launcher: {options: [-PSM2]}\n")))


def test_a_chain_is_started_by_the_launcher_that_the_profile_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "srun").write_text("#!/bin/sh\n")
    (tmp_path / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "none"))  # a machine of a Slurm cluster has srun
    assert find_staging_env(profile("launcher: {program: srun}\n"), None).chain is None
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    started = argv(chain(profile("launcher: {program: srun}\n")))
    assert started[:4] == ("srun", "--mpi=pmi2", "--label", "--export=ALL")
    assert "--nodelist=node2,node1" in started


def test_inside_a_job_of_ibrun_hydra_starts_the_chain_since_it_can_start_one_rank_a_host() -> None:
    means = chain(profile("launcher: {program: ibrun, options: [--x], environment: {A: b}}\n"))
    assert " ".join(argv(means)) == "mpiexec.hydra -l -n 2 -ppn 1 -f hosts python"
    assert means.launch.process_environment()["A"] == "b"


class Unreached:
    """Unreachable hosts, which record the connection attempts."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def __call__(self, name: str, copy_with: str) -> NoReturn:
        self.asked.append((name, copy_with))
        raise HostFailed(name, "is none", "")


def write_lmdb(path: Path) -> Path:
    write_datums(path, [("image", pb.Datum(channels=1, height=1, width=1, data=b"x", label=0))])
    return path


def test_staging_finds_its_hosts_as_a_run_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    recipe, source = load_recipe("digits-local"), write_lmdb(tmp_path / "lmdb")

    def stage(profile: str | None = None) -> tuple[str, list[tuple[str, str]]]:
        hosts = Unreached()
        options = StageOptions(root=tmp_path, lmdb_source=source, profile=profile)
        with pytest.raises((HostFailed, InputError)) as caught:
            stage_recipe(recipe, options, hosts, print)
        return str(caught.value), hosts.asked

    assert stage()[0] == "localhost: is none"
    monkeypatch.setenv("SLURM_JOB_NODELIST", "c[3-4]")
    assert stage()[1] == [("c3", "auto")]
    (tmp_path / "hostfile").write_text("c4\n")
    assert stage("mpich")[1] == [("c4", "ssh")]


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (None, "holds no data.mdb; give the folder that holds data.mdb"),
        (b"", "is empty: data.mdb has 0 bytes"),
        (b"x", "is not an LMDB"),
        (b"<html><title>404</title>" + 8192 * b"." + b"</html>", "is not an LMDB"),
    ],
)
def test_a_damaged_source_is_named_before_any_host_is_reached(
    tmp_path: Path, data: bytes | None, what: str
) -> None:
    source, hosts = tmp_path / "spoilt", Unreached()
    source.mkdir()
    if data is not None:
        (source / "data.mdb").write_bytes(data)
    (tmp_path / "hostfile").write_text("c[1-64]\n")
    with pytest.raises(DataError) as caught:
        stage_recipe(load_recipe("digits-local"), StageOptions(tmp_path, lmdb_source=source), hosts, print)
    assert str(caught.value).startswith(f"{source}: {what}")
    assert hosts.asked == []


def test_a_source_that_is_truncated_is_named_before_any_host_is_reached(tmp_path: Path) -> None:
    source, hosts = write_lmdb(tmp_path / "lmdb"), Unreached()
    whole = (source / "data.mdb").stat().st_size
    os.truncate(source / "data.mdb", whole - 1)
    (tmp_path / "hostfile").write_text("c1\n")
    with pytest.raises(DataError, match=f"lmdb: is truncated: data.mdb has {whole - 1:,} of {whole:,} bytes"):
        stage_recipe(load_recipe("digits-local"), StageOptions(tmp_path, lmdb_source=source), hosts, print)
    assert hosts.asked == []


def test_without_the_digits_the_error_gives_the_command_that_builds_them(tmp_path: Path) -> None:
    (tmp_path / "hostfile").write_text("c1\n")
    with pytest.raises(DataError) as caught:
        stage_recipe(load_recipe("digits-local"), StageOptions(tmp_path), Unreached(), print)
    folder = f"{tmp_path}/examples/digits"
    assert str(caught.value) == (
        f"{folder}/digits_train_lmdb: no such LMDB; build it: caffe-recipes data build digits --out {folder}"
    )


def test_fewer_hosts_than_the_recipes_are_staged_and_that_is_reported(tmp_path: Path) -> None:
    (tmp_path / "hostfile").write_text("c[1-2]\n")
    options, messages = StageOptions(tmp_path, lmdb_source=write_lmdb(tmp_path / "lmdb")), list[str]()
    with pytest.raises(HostFailed, match="c1: is none"):
        stage_recipe(load_recipe("stampede2-64n-72ep"), options, Unreached(), messages.append)
    message = f"{tmp_path}/hostfile: lists 2 of the 64 hosts that a run needs"
    assert messages == [f"{message}; add the others before you start a run"]
