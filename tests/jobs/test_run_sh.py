"""run.sh of the 64-node recipe makes the published calls, and resumes where it was."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from caffe_recipes.cluster.launcher import ssh_environment
from caffe_recipes.recipe.source import load_recipe
from tests.jobs.conftest import STRICT, StandInCluster, definitions

# The README's own commands, each on one line, without the stray `; '` behind the last one.
PUBLISHED = r"""
OMP_NUM_THREADS=22 KMP_AFFINITY="granularity=fine,compact,1,0"  mpiexec.hydra -PSM2 -l -n 128 -ppn 2 -f hostfile -genv OMP_NUM_THREADS 22  -genv KMP_AFFINITY "granularity=fine,compact,1,0" ./build/tools/caffe train --solver=models/intel_optimized_models/multinode/resnet50_custom_lr/solver_init.prototxt
scp $result:/tmp/resnet_50_64nodes_init_iter_7800.caffemodel .
OMP_NUM_THREADS=22 KMP_AFFINITY="granularity=fine,compact,1,0"  mpiexec.hydra -PSM2 -l -n 128 -ppn 2 -f hostfile -genv OMP_NUM_THREADS 22  -genv KMP_AFFINITY "granularity=fine,compact,1,0" ./build/tools/caffe train --solver=models/intel_optimized_models/multinode/resnet50_custom_lr/solver_cyc1.prototxt --weights=resnet_50_64nodes_init_iter_7800.caffemodel
scp $result:/tmp/resnet_50_64nodes_cyc1_iter_3750.caffemodel .
OMP_NUM_THREADS=22 KMP_AFFINITY="granularity=fine,compact,1,0"  mpiexec.hydra -PSM2 -l -n 128 -ppn 2 -f hostfile -genv OMP_NUM_THREADS 22  -genv KMP_AFFINITY "granularity=fine,compact,1,0" ./build/tools/caffe train --solver=models/intel_optimized_models/multinode/resnet50_custom_lr/solver_cyc2.prototxt --weights=resnet_50_64nodes_cyc1_iter_3750.caffemodel
scp $result:/tmp/resnet_50_64nodes_cyc2_iter_4750.caffemodel .
OMP_NUM_THREADS=22 KMP_AFFINITY="granularity=fine,compact,1,0"  mpiexec.hydra -PSM2 -l -n 128 -ppn 2 -f hostfile -genv OMP_NUM_THREADS 22  -genv KMP_AFFINITY "granularity=fine,compact,1,0"  ./build/tools/caffe train --solver=models/intel_optimized_models/multinode/resnet50_custom_lr/solver_cyc3.prototxt --weights=resnet_50_64nodes_cyc2_iter_4750.caffemodel
scp $result:/tmp/resnet_50_64nodes_cyc3_iter_4750.caffemodel .
OMP_NUM_THREADS=22 KMP_AFFINITY="granularity=fine,compact,1,0"  mpiexec.hydra -PSM2 -l -n 128 -ppn 2 -f hostfile -genv OMP_NUM_THREADS 22  -genv KMP_AFFINITY "granularity=fine,compact,1,0"  ./build/tools/caffe train --solver=models/intel_optimized_models/multinode/resnet50_custom_lr/solver_collapse.prototxt --weights=resnet_50_64nodes_cyc3_iter_4750.caffemodel
scp $result:/tmp/resnet_50_64nodes_cyc_collapse_iter_1560.caffemodel .
"""  # noqa: E501
EXPORTED = {"MLSL_NUM_SERVERS": "2", "MLSL_SERVER_AFFINITY": "39,38,43,42"}
CYC1 = "resnet_50_64nodes_cyc1_iter_3750.caffemodel"
FINAL = "resnet_50_64nodes_cyc_collapse_iter_1560.caffemodel"


def published(tool: str, first_host: str) -> list[tuple[tuple[str, ...], dict[str, str]]]:
    """Return the published calls of a tool: argv, and the variables set before it."""
    calls = []
    for line in PUBLISHED.strip().splitlines():
        words = shlex.split(line.replace("$result", first_host))
        variables = [word for word in words if re.match(r"[A-Z_]+=", word)]
        argv = tuple(words[len(variables) :])
        if argv[0] == tool:
            calls.append((argv, dict(word.split("=", 1) for word in variables)))
    assert len(calls) == 5
    return calls


def test_the_training_calls_are_the_published_ones(published_cluster: StandInCluster) -> None:
    calls = published_cluster.calls("mpiexec.hydra")
    expected = published("mpiexec.hydra", published_cluster.hosts[0])
    assert [call.argv for call in calls] == [argv for argv, _ in expected]
    for call, (_, variables) in zip(calls, expected, strict=True):
        assert {**EXPORTED, **variables}.items() <= call.environment.items()
        assert call.folder == published_cluster.root


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"HYDRA_LAUNCHER_EXTRA_ARGS": "-p 2222", "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": "-v"},
        {"HYDRA_LAUNCHER": "ssh", "SLURM_JOB_NODELIST": "a"},
        {"HYDRA_BOOTSTRAP": "rsh"},
        {"I_MPI_HYDRA_BOOTSTRAP": "slurm", "HYDRA_LAUNCHER": ""},
        {"I_MPI_HYDRA_BOOTSTRAP": "ssh", "SLURM_NODELIST": "a"},
        *(
            {name: "ssh"}
            for name in ("SLURM_JOB_NODELIST", "PE_HOSTFILE", "LSB_MCPU_HOSTS", "LOADL_HOSTFILE")
        ),
    ],
)
def test_hydra_gets_the_same_settings_as_from_run(given: dict[str, str]) -> None:
    script = definitions(load_recipe("stampede2-64n-72ep"))
    environment = {"PATH": os.environ["PATH"], **given}
    done = subprocess.run(
        ["bash", "-s"],
        input=f"{script}\nconfigure_hydra\nenv -0",
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    variables = dict(line.split("=", 1) for line in done.stdout.split("\0")[:-1])
    expected = {**given, **ssh_environment(environment)}
    names = [name for name in variables if "HYDRA" in name or name == "SSH_ASKPASS_REQUIRE"]
    assert {name: variables[name] for name in names} == {
        name: value for name, value in expected.items() if name in names or "HYDRA" in name
    }


def test_ssh_asks_nobody_and_adds_no_key(published_cluster: StandInCluster) -> None:
    assert published_cluster.calls("ssh")
    assert all(call.argv[1:5] == STRICT for call in published_cluster.calls("ssh"))


def test_the_snapshot_calls_are_the_published_ones_inside_a_subfolder(
    published_cluster: StandInCluster,
) -> None:
    calls = published_cluster.calls("scp")
    assert [call.argv for call in calls] == [
        ("scp", *STRICT, *argv[1:]) for argv, _ in published("scp", "c401-001")
    ]
    assert all(published_cluster.root in call.folder.parents for call in calls)


def test_the_last_model_is_evaluated_with_the_net_that_has_a_test_layer(
    published_cluster: StandInCluster,
) -> None:
    argv = (published_cluster.play / "test.argv").read_text().split("\0")[:-1]
    net = "models/intel_optimized_models/multinode/resnet50_custom_lr/train_val.prototxt"
    assert argv == ["test", f"--model={net}", f"--weights={FINAL}", "--iterations=1000"]


def test_a_second_run_repeats_nothing_and_prints_the_result(small_cluster: StandInCluster) -> None:
    first = small_cluster.run()
    assert first.returncode == 0, first.stderr
    result = f"{CYC1}: loss = 0.942313, loss3/top-1 = 0.762781, loss3/top-5 = 0.931862 ({CYC1}.evaluation)"
    assert first.stderr.splitlines()[-1].endswith(f"done: {result}")
    small_cluster.forget_calls()
    (small_cluster.play / "test.argv").unlink()
    before = small_cluster.contents()
    second = small_cluster.run()
    assert second.returncode == 0, second.stderr
    assert second.stderr.splitlines()[-1].endswith(f"done: {result}")
    assert small_cluster.calls("mpiexec.hydra") == small_cluster.calls("scp") == []
    assert not (small_cluster.play / "test.argv").exists()
    assert small_cluster.contents() == before


def test_a_finished_chain_needs_no_training_lmdb(finished_cluster: StandInCluster) -> None:
    for host in finished_cluster.hosts:
        (finished_cluster.node(host) / finished_cluster.lmdb).unlink()
    done = finished_cluster.run()
    assert done.returncode == 0, done.stderr


def test_with_other_test_images_the_model_is_evaluated_again(finished_cluster: StandInCluster) -> None:
    argv_file = finished_cluster.play / "test.argv"
    argv_file.unlink()
    (finished_cluster.root / finished_cluster.recipe.data.test.lmdb / "data.mdb").write_text("another")
    done = finished_cluster.run()
    assert done.returncode == 0, done.stderr
    assert argv_file.exists()


def test_a_run_that_failed_in_phase_2_continues_there(small_cluster: StandInCluster) -> None:
    small_cluster.hook("mpiexec.hydra", '[[ $* != *cyc1* ]] || { echo "no route" >&2; exit 7; }')
    failed = small_cluster.run()
    assert failed.returncode == 3
    assert "cyc1: training returned 7; see logs/stampede2-64n-72ep/cyc1.log" in failed.stderr
    log = small_cluster.root / "logs/stampede2-64n-72ep/cyc1.log"
    assert log.read_text() == "no route\n"
    assert not (small_cluster.play / "test.argv").exists()

    small_cluster.hook("mpiexec.hydra", "")
    small_cluster.forget_calls()
    assert small_cluster.run().returncode == 0
    assert [call.argv[-1] for call in small_cluster.calls("mpiexec.hydra")] == [
        "--weights=resnet_50_64nodes_init_iter_7800.caffemodel"
    ]
    assert log.with_name("cyc1.log.old").read_text() == "no route\n"


def test_the_caffe_root_may_be_elsewhere(small_cluster: StandInCluster) -> None:
    elsewhere = small_cluster.root.rename(small_cluster.root.with_name("$(touch no) 'é'"))
    small_cluster.root.mkdir()
    assert small_cluster.run(CAFFE_ROOT=str(elsewhere)).returncode == 0
    assert list(small_cluster.root.iterdir()) == []
    assert small_cluster.calls("mpiexec.hydra")[0].folder == elsewhere
    assert (elsewhere / "resnet_50_64nodes_cyc1_iter_3750.caffemodel").exists()


def test_prototxts_are_placed_where_the_solvers_name_them(finished_cluster: StandInCluster) -> None:
    target = finished_cluster.root / finished_cluster.recipe.prototxt_dir
    placed = {path.name: path.read_text() for path in target.iterdir()}
    assert placed == {path.name: path.read_text() for path in finished_cluster.prototxts.iterdir()}


def test_nets_that_recipes_share_are_placed_in_a_folder_of_their_own(tmp_path: Path) -> None:
    recipe = load_recipe("stampede2-64n-72ep")
    one = {"phases": recipe.phases[:1], "cluster": recipe.cluster.model_copy(update={"nodes": 1})}
    cluster = StandInCluster(tmp_path, recipe.model_copy(update=one | {"nets_dir": "models/it's/shared"}))
    ours, theirs = tmp_path / "repository/prototxt/shared", cluster.root / "models/it's/shared"
    assert {path.name for path in ours.iterdir()} == {"train_val.prototxt", "train_val_noaug.prototxt"}
    done = cluster.run()
    assert done.returncode == 0, done.stderr
    assert {path.name: path.read_text() for path in theirs.iterdir()} == {
        path.name: path.read_text() for path in ours.iterdir()
    }
    home = cluster.root / recipe.prototxt_dir
    assert [path.name for path in home.iterdir()] == ["solver_init.prototxt"]
    tested = (cluster.play / "test.argv").read_text().split("\0")
    assert "--model=models/it's/shared/train_val.prototxt" in tested
    (theirs / "train_val.prototxt").write_text("another's")
    assert "models/it's/shared/train_val.prototxt: differs from the recipe's" in cluster.refused()
    (ours / "train_val.prototxt").write_text("changed")
    assert "made from a different train_val.prototxt" in cluster.refused(FORCE="1")


def test_help_prints_the_header(small_cluster: StandInCluster) -> None:
    done = small_cluster.run("--help")
    assert done.returncode == 0
    assert "Usage: [CAFFE_ROOT=DIR]" in done.stdout
    assert "LMDB_SOURCE   copied to each node that lacks the training LMDB (default: none)" in done.stdout
    assert "set -euo" not in done.stdout
    assert small_cluster.calls("mpiexec.hydra") == []


def test_a_missing_test_lmdb_is_reported_before_training_and_does_not_stop_it(
    small_cluster: StandInCluster,
) -> None:
    (small_cluster.root / "examples/imagenet/ilsvrc12_val_lmdb/data.mdb").write_text("")
    done = small_cluster.run()
    assert done.returncode == 0, done.stderr
    first, *_ = done.stderr.splitlines()
    assert "examples/imagenet/ilsvrc12_val_lmdb: no LMDB for the evaluation yet" in first
    assert len(small_cluster.calls("mpiexec.hydra")) == 2


def test_a_script_called_by_a_link_finds_its_prototxts(small_cluster: StandInCluster) -> None:
    link = small_cluster.root / "start here"
    link.symlink_to(small_cluster.script)
    small_cluster.script = link
    assert small_cluster.run().returncode == 0


def test_one_node_needs_no_hostfile(tmp_path: Path) -> None:
    recipe = load_recipe("stampede2-64n-72ep")
    cluster = StandInCluster(
        tmp_path,
        recipe.model_copy(
            update={
                "phases": recipe.phases[:1],
                "cluster": recipe.cluster.model_copy(update={"nodes": 1}),
            }
        ),
    )
    cluster.node("c401-001").rename(cluster.node("localhost"))
    (cluster.root / "hostfile").unlink()
    done = cluster.run()
    assert done.returncode == 0, done.stderr
    assert "hostfile: not found; created it with localhost" in done.stderr
    assert (cluster.root / "hostfile").read_text() == "localhost\n"
    assert "hostfile" not in cluster.run().stderr


def test_each_branch_starts_from_its_own_phase_and_its_end_is_evaluated(tmp_path: Path) -> None:
    recipe = load_recipe("stampede2-64n-72ep")
    one_node = recipe.cluster.model_copy(update={"nodes": 1})
    init, cyc1, cyc2 = recipe.phases[:3]
    phases = (init, cyc1, cyc2.model_copy(update={"weights": "init"}))
    cluster = StandInCluster(tmp_path, recipe.model_copy(update={"phases": phases, "cluster": one_node}))
    done = cluster.run()
    assert done.returncode == 0, done.stderr
    from_init = "--weights=resnet_50_64nodes_init_iter_7800.caffemodel"
    assert [call.argv[-1] for call in cluster.calls("mpiexec.hydra")[1:]] == [from_init, from_init]
    last = "resnet_50_64nodes_cyc2_iter_4750.caffemodel"
    results = [line.partition("done: ")[2] for line in done.stderr.splitlines() if "done: " in line]
    assert [result.partition(":")[0] for result in results] == [CYC1, last]
    logs = cluster.root / "logs/stampede2-64n-72ep"
    assert all((logs / f"evaluation-{Path(model).stem}.log").exists() for model in (CYC1, last))
    (cluster.root / f"{CYC1}.evaluation").unlink()
    again = cluster.run()
    assert again.returncode == 0, again.stderr
    assert [line for line in again.stderr.splitlines() if "evaluating" in line] == [
        f"stampede2-64n-72ep: evaluating {CYC1}"
    ]
