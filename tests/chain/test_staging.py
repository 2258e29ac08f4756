"""What a run's staging works with: rates, launcher and names, of the profile where it says something."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from caffe_recipes.chain.setting import StageOptions, find_profile
from caffe_recipes.chain.staging import find_means, stage_recipe
from caffe_recipes.cluster.profiles import Profile, parse_profile
from caffe_recipes.cluster.staging.chain import ChainMeans
from caffe_recipes.cluster.staging.costs import Rates
from caffe_recipes.errors import ClusterError
from caffe_recipes.recipe.source import load_recipe

pytest.importorskip("mpi4py", reason="the extra `local` is not installed")

HOSTS = ("node2", "node1")


def profile(text: str = "") -> Profile:
    return parse_profile(f"name: mine\ntitle: mine\n{text}", "mine.yaml")


def chain(of: Profile) -> ChainMeans:
    means = find_means(of, None).chain
    assert means is not None
    return means


def argv(means: ChainMeans) -> Sequence[str]:
    return means.launcher(HOSTS, "hosts", ["python"])


def test_rates_and_the_heads_name_are_the_profiles_and_modest_where_it_says_nothing() -> None:
    means = find_means(profile("rates: {shared_gb_per_s: 40}\nhead: login1\n"), "copy")
    assert means.rates == Rates(shared=40e9)
    assert (means.here, means.how) == ("login1", "copy")
    means = find_means(find_profile(load_recipe("stampede2-64n-72ep"), None), None)
    assert (means.rates, means.here, means.how) == (Rates(), "", None)


def test_a_chain_starts_one_rank_a_host_and_each_gets_the_profiles_environment() -> None:
    means = chain(profile('launcher: {environment: {FI_PROVIDER: "a b"}}\n'))
    options = ["-l", "-n", "2", "-ppn", "1", "-f", "hosts", "-genv", "FI_PROVIDER", "a b"]
    assert argv(means) == ("mpiexec.hydra", *options, "python")
    assert means.environment["FI_PROVIDER"] == "a b"


def test_a_chain_leaves_out_what_its_launcher_does_not_know() -> None:
    assert "-PSM2" not in argv(chain(profile("launcher: {options: [-PSM2]}\n")))


def test_a_chain_is_started_by_the_launcher_that_the_profile_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "srun").write_text("#!/bin/sh\n")
    (tmp_path / "srun").chmod(0o755)
    assert find_means(profile("launcher: {program: srun}\n"), None).chain is None
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    started = argv(chain(profile("launcher: {program: srun}\n")))
    assert started[:4] == ("srun", "--mpi=pmi2", "--label", "--export=ALL")
    assert "--nodelist=node2,node1" in started


def test_inside_a_job_of_ibrun_hydra_starts_the_chain_since_it_can_start_one_rank_a_host() -> None:
    means = chain(profile("launcher: {program: ibrun, options: [--x], environment: {A: b}}\n"))
    assert " ".join(argv(means)) == "mpiexec.hydra -l -n 2 -ppn 1 -f hosts -genv A b python"


def test_staging_finds_its_hosts_as_a_run_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    recipe, asked = load_recipe("digits-local"), list[tuple[str, str]]()

    def refuse(name: str, copy_with: str) -> None:
        asked.append((name, copy_with))
        raise ClusterError(name, "is none", "")

    def stage(**options: object) -> str:
        asked.clear()
        given = StageOptions(root=tmp_path, lmdb_source=tmp_path, **options)  # type: ignore[arg-type]
        with pytest.raises(ClusterError) as caught:
            stage_recipe(recipe, given, refuse, print)  # type: ignore[arg-type]
        return str(caught.value)

    assert stage().startswith(f"{tmp_path}/hostfile: no such file; write one host a line there")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "c[3-4]")
    stage()
    assert asked == [("c3", "auto")]
    (tmp_path / "hostfile").write_text("c9\n")
    stage(profile="mpich")
    assert asked == [("c9", "ssh")]
