"""Where a run's hosts come from, and which its launcher gets."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from caffe_recipes.cluster.launchers import DEFAULT_LAUNCHER
from caffe_recipes.errors import ClusterError, InputError
from caffe_recipes.recipe.model import Recipe
from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.run.context import (
    check_submitted,
    choose_hosts,
    find_hosts,
    find_root,
    search_path,
    submitted_environment,
)
from caffe_recipes.run.policy import Policy
from tests.run.conftest import RECIPE

if TYPE_CHECKING:
    from tests.run.conftest import Place


# Slurm's srun as far as it is needed here: it records its arguments, and has hydra start the ranks.
# What a launcher is given is seen by starting it.
pytestmark = pytest.mark.usefixtures("launching")

_SRUN = """#!/bin/sh
echo "$*" >>"${{0%/*}}/srun.log"
while :; do
    case $1 in
    --version) echo slurm 24.05.2; exit ;;
    --ntasks=*) ranks=${{1#*=}} ;;
    --*) ;;
    *) break ;;
    esac
    shift
done
exec "{}" -n "$ranks" "$@"
"""


def recipe(place: Place, nodes: int) -> Recipe:
    place.edit("nodes: 1,", f"nodes: {nodes},")
    place.edit("batch_per_rank: 32", "batch_per_rank: 8")
    return load_recipe(place.recipe)


def test_a_missing_caffe_root_of_a_profile_is_named_with_its_line(tmp_path: Path) -> None:
    profile = tmp_path / "mine.yaml"
    profile.write_text("name: mine\ntitle: mine\ncaffe_root: ./nowhere\n")
    with pytest.raises(InputError) as caught:
        find_root(None, str(profile))
    what = "caffe_root: './nowhere' is not a folder here"
    assert str(caught.value) == f"{profile}:3: {what}; correct it, or give the Caffe root with --caffe-root"
    assert find_root(tmp_path, str(profile)) == tmp_path


def test_the_launcher_gets_a_line_a_host_whatever_the_users_hostfile_holds(place: Place) -> None:
    (place.root / "mine").write_text("# a rack\n127.0.0.[1-2]:1\n")
    assert place.run(hostfile=place.root / "mine").outputs
    assert (place.root / "runs/small-1/hostfile").read_text() == "127.0.0.1\n"
    assert "hosts          127.0.0.1: 1 x 2 ranks" in place.output.getvalue()


def test_a_folded_hostfile_gives_its_hosts_in_its_order(place: Place) -> None:
    (place.root / "hostfile").write_text("c402-[002,001]:2\nc401-001\n")
    assert choose_hosts(recipe(place, 3), find_hosts(place.root, None)) == (
        ("c402-002", "c402-001", "c401-001"),
        (),
    )


def test_without_a_hostfile_the_slurm_job_around_us_gives_the_hosts(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_NODELIST", "c401-[003,001-002]")
    found = find_hosts(place.root, None)
    assert choose_hosts(recipe(place, 2), found) == (("c401-003", "c401-001"), ("c401-002",))


def test_a_hostfile_of_some_of_the_job_is_obeyed_in_its_order(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_NODELIST", "c401-[003,001-002]")
    (place.root / "hostfile").write_text("c401-002.example.org\nc401-003\n")
    found = find_hosts(place.root, None)
    assert (found.names, found.stale) == (("c401-002.example.org", "c401-003"), "")


def test_in_a_job_an_outdated_hostfile_is_ignored_and_its_foreign_hosts_are_named(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_NODELIST", "c401-[001-002]")
    (place.root / "hostfile").write_text("c401-002\nc401-003\nc401-004\n")
    found = find_hosts(place.root, None)
    assert found.names == ("c401-001", "c401-002")
    outside = "lists hosts outside this Slurm job: c401-[003-004]"
    assert found.stale == f"{place.root / 'hostfile'} {outside}; using the job's hosts"
    with pytest.raises(InputError, match=re.escape(f"{outside}; leave out --hostfile")):
        find_hosts(place.root, place.root / "hostfile")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("localhost\n", "hostfile lists hosts outside this Slurm job: localhost; using the job's hosts"),
        ("c401-002\n", "hostfile names 1 host, but 2 are needed; using the job's hosts"),
        ("c401-001 slots=2\n", "hostfile:1: 'c401-001 slots=2' is not a host; using the job's hosts"),
    ],
)
def test_a_stale_hostfile_in_the_caffe_root_does_not_fail_a_job(
    place: Place, monkeypatch: pytest.MonkeyPatch, text: str, why: str
) -> None:
    monkeypatch.setenv("SLURM_JOB_NODELIST", "c401-[001-002]")
    (place.root / "hostfile").write_text(text)
    found = find_hosts(place.root, None, 2)
    assert found.names == ("c401-001", "c401-002")
    assert found.stale.endswith(why)


def test_the_run_reports_a_hostfile_that_it_ignores(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_NODELIST", "localhost")
    (place.root / "hostfile").write_text("c401-003\n")
    assert place.run().outputs
    assert place.output.getvalue().count("lists hosts outside this Slurm job: c401-003") == 1


def test_a_slurm_job_that_is_too_small_or_no_node_list_is_named(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_four = recipe(place, 4)
    monkeypatch.setenv("SLURM_JOB_NODELIST", "c401-[001-003]")
    message = "the Slurm job: 3 hosts x 2 ranks = 6, but the recipe needs 8; give 4 hosts"
    with pytest.raises(InputError, match=message):
        choose_hosts(needs_four, find_hosts(place.root, None))
    monkeypatch.setenv("SLURM_JOB_NODELIST", "c401-[001-")
    with pytest.raises(InputError, match=r"\$SLURM_JOB_NODELIST: .* is not a node list"):
        choose_hosts(needs_four, find_hosts(place.root, None))


def test_one_node_without_a_hostfile_or_a_job_is_this_machine(place: Place) -> None:
    assert choose_hosts(recipe(place, 1), find_hosts(place.root, None)) == (("localhost",), ())


def test_an_option_that_the_launcher_does_not_know_is_left_out_with_a_warning(place: Place) -> None:
    place.edit("omp_num_threads: 1", "omp_num_threads: 1, fabric: psm2")
    assert place.run().outputs
    rows = [line for line in place.output.getvalue().splitlines() if "PSM2" in line]
    assert len(rows) == 1
    assert rows[0].startswith("warn    launcher       ")
    assert rows[0].endswith(", without -PSM2, which it does not accept")


def test_a_launcher_that_knows_the_option_is_given_it_at_every_start(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.edit("omp_num_threads: 1", "omp_num_threads: 1, fabric: psm2")
    hydra = DEFAULT_LAUNCHER.find(search_path(ours_first=False))
    old = place.root / "intel"
    old.mkdir()
    body = f'echo "$1" >>"{place.root}/given"; test "$1" = -PSM2 && shift; exec "{hydra}" "$@"'
    (old / "mpiexec.hydra").write_text(f"#!/bin/sh\n{body}\n")
    (old / "mpiexec.hydra").chmod(0o755)
    monkeypatch.setenv("PATH", str(old), prepend=":")
    assert place.run().outputs
    # asked whether it knows it, tried, and a phase at a time
    assert (place.root / "given").read_text().split() == ["-PSM2"] * 5
    assert "does not know" not in place.output.getvalue()


def test_a_profile_alone_decides_on_the_launchers_options(place: Place) -> None:
    place.edit("omp_num_threads: 1", "omp_num_threads: 1, fabric: psm2")
    assert place.run(profile="mpich").outputs
    assert "PSM2" not in place.output.getvalue()
    (place.root / "mine.yaml").write_text("name: mine\ntitle: mine\nlauncher: {options: [-PSM2]}\n")
    assert place.run(profile=str(place.root / "mine.yaml"), new=True).outputs
    assert ", without -PSM2, which it does not accept" in place.output.getvalue()


def test_a_profile_gives_ranks_its_environment_and_loads_its_modules(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / ".bash_profile").write_text('module() { echo "$@" >>"$HOME/loaded"; export MODULE=$2; }\n')
    monkeypatch.setenv("HOME", str(home))
    (place.root / "mine.yaml").write_text(
        "name: mine\ntitle: mine\nmodules: [intel/18]\nkmp_affinity: compact\n"
        'mlsl: {server_affinity: [1]}\nlauncher: {environment: {OF_RANKS: "a b\'$(c)"}}\n'
    )
    names = "OF_RANKS MODULE KMP_AFFINITY MLSL_SERVER_AFFINITY OMP_NUM_THREADS"
    caffe = (place.root / "caffe").read_text().replace("exec", f"printenv {names} >>ranks; exec")
    (place.root / "caffe").write_text(caffe)
    assert place.run(profile=str(place.root / "mine.yaml")).outputs
    assert set((place.root / "ranks").read_text().splitlines()) == {
        *("a b'$(c)", "intel/18", "compact", "1")  # 1: a core, and the recipe's threads
    }
    assert set((home / "loaded").read_text().splitlines()) == {"load intel/18"}


def test_srun_starts_the_ranks_if_the_profile_names_it(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    (place.root / "srun").write_text(_SRUN.format(DEFAULT_LAUNCHER.find(search_path(ours_first=False))))
    (place.root / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", str(place.root), prepend=":")
    assert place.run(profile="slurm").outputs
    last = (place.root / "srun.log").read_text().splitlines()[-1]
    assert re.match(
        r"--mpi=pmi2 --label --export=ALL --disable-status --cpu-bind=none --job-name=[0-9a-f]{16}/last-1 "
        "--ntasks=2 --nodes=1 --distribution=arbitrary --nodelist=localhost,localhost "
        r"\./caffe train --solver=",
        last,
    ), last
    assert place.trained() == ["init", "cyc1", "last"]


def test_ibrun_is_refused_hosts_that_are_not_the_jobs_first(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place.root / "mine.yaml").write_text("name: tacc\ntitle: mine\nlauncher: {program: ibrun}\n")
    profile = str(place.root / "mine.yaml")
    with pytest.raises(InputError, match="tacc: ibrun starts ranks only inside a job; run inside a job"):
        place.run(profile=profile)
    monkeypatch.setenv("SLURM_JOB_NODELIST", "c[1-4]")
    (place.root / "hostfile").write_text("c2\n")
    with pytest.raises(InputError, match=r"ibrun takes its hosts from the job \(c1, c2, c3, "):
        place.run(profile=profile)
    assert not (place.root / "runs").exists()


def test_ibrun_is_refused_spares_that_it_would_not_use(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    (place.root / "mine.yaml").write_text("name: tacc\ntitle: mine\nlauncher: {program: ibrun}\n")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "c[1-4]")
    message = "--on-failure replace: ibrun starts ranks only on the first hosts of the job, .*; use .* retry"
    with pytest.raises(InputError, match=message):
        place.run(profile=str(place.root / "mine.yaml"), policy=Policy("replace"))
    with pytest.raises(
        InputError, match="--side-by-side: ibrun starts ranks only on the first hosts of the job"
    ):
        place.run(profile=str(place.root / "mine.yaml"), side_by_side=True)
    assert not (place.root / "runs").exists()


def test_a_launcher_that_fails_whatever_it_is_given_is_named_by_preflight(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.edit("omp_num_threads: 1", "omp_num_threads: 1, fabric: psm2")
    (place.root / "mpiexec.hydra").write_text("#!/bin/sh\necho no licence >&2\nexit 9\n")
    (place.root / "mpiexec.hydra").chmod(0o755)
    monkeypatch.setenv("PATH", str(place.root), prepend=":")
    message = "mpiexec.hydra: does not start: no licence; try `mpiexec.hydra -PSM2 .* by hand"
    with pytest.raises(ClusterError, match=message):
        place.run()


def test_a_recipe_that_was_changed_after_its_submit_is_refused_in_its_job(tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    path.write_text(RECIPE)
    environment = {
        **submitted_environment(load_recipe(path), "small-3fa210"),
        "SLURM_JOB_NAME": "small-3fa210",
    }
    check_submitted(load_recipe(os.path.relpath(path)), environment)
    changed = RECIPE.replace("batch_per_rank: 32", "batch_per_rank: 8")
    assert changed != RECIPE
    path.write_text(changed)
    with pytest.raises(InputError) as caught:
        check_submitted(load_recipe(path), environment)
    assert str(caught.value) == (
        "small: the recipe has changed since it was submitted; submit it again, or undo the change"
    )
    check_submitted(load_recipe(path), {**environment, "SLURM_JOB_NAME": "another"})
    check_submitted(load_recipe(path), {})


def test_a_title_may_change_after_the_submit(tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    path.write_text(RECIPE)
    recipe = load_recipe(path)
    environment = {**submitted_environment(recipe, "small-3fa210"), "SLURM_JOB_NAME": "small-3fa210"}
    check_submitted(recipe.model_copy(update={"title": "Another"}), environment)
