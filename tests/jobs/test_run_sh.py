"""run.sh of the 64-node recipe makes the published calls, and resumes where it was."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from caffe_recipes.recipe.source import load_recipe
from tests.jobs.conftest import STRICT, StandInCluster, small_recipe

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
INIT = "resnet_50_64nodes_init_iter_7800.caffemodel"
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


def test_the_snapshot_calls_are_the_published_ones(published_cluster: StandInCluster) -> None:
    calls = published_cluster.calls("scp")
    assert [call.argv for call in calls] == [
        ("scp", *STRICT, *argv[1:]) for argv, _ in published("scp", "c401-001")
    ]
    assert {call.folder for call in calls} == {published_cluster.root}


@pytest.mark.promise("connections are as strict as your ssh")
def test_no_ssh_asks_for_a_password_or_adds_a_host_key(published_cluster: StandInCluster) -> None:
    for tool in ("ssh", "scp"):
        assert {call.argv[1:5] for call in published_cluster.calls(tool)} == {STRICT}
    environment = published_cluster.calls("mpiexec.hydra")[0].environment
    for launcher, options in (
        ("HYDRA_LAUNCHER", "HYDRA_LAUNCHER_EXTRA_ARGS"),
        ("I_MPI_HYDRA_BOOTSTRAP", "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS"),
    ):
        assert (environment[launcher], environment[options]) == ("ssh", " ".join(STRICT))


def test_the_last_model_is_evaluated_with_the_net_that_has_a_test_layer(
    published_cluster: StandInCluster,
) -> None:
    argv = (published_cluster.play / "test.argv").read_text().split("\0")[:-1]
    net = "models/intel_optimized_models/multinode/resnet50_custom_lr/train_val.prototxt"
    assert argv == ["test", f"--model={net}", f"--weights={FINAL}", "--iterations=1000"]


def test_a_second_run_trains_nothing_and_prints_the_result(finished_cluster: StandInCluster) -> None:
    done = finished_cluster.run()
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("init: is finished\ncyc1: is finished\n")
    assert "loss3/top-1 = 0.762781" in done.stdout
    assert not finished_cluster.trained()
    assert not finished_cluster.calls("scp")


def test_a_run_that_failed_in_phase_2_continues_there(small_cluster: StandInCluster) -> None:
    small_cluster.hook("mpiexec.hydra", '[[ $* != *cyc1* ]] || { echo "no route" >&2; exit 7; }')
    log = small_cluster.root / "logs/stampede2-64n-72ep/cyc1.log"
    message = "cyc1: mpiexec.hydra returned 7; see logs/stampede2-64n-72ep/cyc1.log"
    assert small_cluster.stops(3).endswith(message)
    assert log.read_text() == "no route\n"
    assert not (small_cluster.play / "test.argv").exists()

    small_cluster.hook("mpiexec.hydra", "")
    small_cluster.forget_calls()
    assert small_cluster.run().returncode == 0
    assert [call.argv[-1] for call in small_cluster.calls("mpiexec.hydra")] == [f"--weights={INIT}"]
    assert log.with_name("cyc1.log.old").read_text() == "no route\n"


def test_the_caffe_root_may_be_elsewhere(small_cluster: StandInCluster) -> None:
    elsewhere = small_cluster.root.rename(small_cluster.root.with_name("$(touch no) 'é'"))
    small_cluster.root.mkdir()
    link = small_cluster.root.with_name("a link to run.sh")
    link.symlink_to(small_cluster.script)
    small_cluster.script = link
    assert small_cluster.run(CAFFE_ROOT=str(elsewhere)).returncode == 0
    assert list(small_cluster.root.iterdir()) == []
    assert small_cluster.calls("mpiexec.hydra")[0].folder == elsewhere
    assert (elsewhere / CYC1).exists()


def test_the_training_lmdb_is_copied_to_each_node_that_lacks_it(small_cluster: StandInCluster) -> None:
    source = small_cluster.root / "it's a source"
    source.mkdir()
    (source / "data.mdb").write_text("training images")
    there = small_cluster.node("c401-001") / small_cluster.lmdb
    there.write_text("training IMAGES")  # the size is compared, not the content
    lacking = small_cluster.node("c401-002") / small_cluster.lmdb
    lacking.unlink()
    done = small_cluster.run(LMDB_SOURCE="it's a source")
    assert done.returncode == 0, done.stderr
    assert (there.read_text(), lacking.read_text()) == ("training IMAGES", "training images")
    assert [path.name for path in lacking.parent.iterdir()] == ["data.mdb"]


def test_nets_that_recipes_share_are_placed_in_a_folder_of_their_own(tmp_path: Path) -> None:
    recipe = small_recipe()
    changes = {"phases": recipe.phases[:1], "nets_dir": "models/it's/shared", "evaluation": None}
    cluster = StandInCluster(tmp_path, recipe.model_copy(update=changes))
    done = cluster.run()
    assert done.returncode == 0, done.stderr
    ours, theirs = tmp_path / "repository/prototxt/shared", cluster.root / "models/it's/shared"
    assert {path.name: path.read_text() for path in theirs.iterdir()} == {
        path.name: path.read_text() for path in ours.iterdir()
    }
    home = cluster.root / recipe.prototxt_dir
    assert [path.name for path in home.iterdir()] == ["solver_init.prototxt"]


def test_one_node_is_localhost_and_needs_no_ssh(tmp_path: Path) -> None:
    recipe = load_recipe("stampede2-64n-72ep")
    one = recipe.cluster.model_copy(update={"nodes": 1, "copy_with": "auto"})
    init = recipe.phases[0].model_copy(update={"snapshot_prefix": "tmp/init"})
    changes = {"phases": (init,), "cluster": one}
    cluster = StandInCluster(tmp_path, recipe.model_copy(update=changes))
    (cluster.root / "hostfile").unlink()
    cluster.hook("mpiexec.hydra", "on_node() { echo tmp/init_iter_7800.caffemodel; }")
    done = cluster.run()
    assert done.returncode == 0, done.stderr
    assert (cluster.root / "hostfile").read_text() == "localhost\n"
    assert (cluster.root / "init_iter_7800.caffemodel").exists()
    assert cluster.calls("ssh") == cluster.calls("scp") == []


def test_each_branch_starts_from_its_own_phase_and_its_end_is_evaluated(tmp_path: Path) -> None:
    recipe = small_recipe()
    init, cyc1, cyc2 = load_recipe("stampede2-64n-72ep").phases[:3]
    phases = (init, cyc1, cyc2.model_copy(update={"weights": "init"}))
    cluster = StandInCluster(tmp_path, recipe.model_copy(update={"phases": phases}))
    done = cluster.run()
    assert done.returncode == 0, done.stderr
    assert [call.argv[-1] for call in cluster.calls("mpiexec.hydra")[1:]] == [f"--weights={INIT}"] * 2
    logs = cluster.root / "logs/stampede2-64n-72ep"
    assert {path.name for path in logs.glob("evaluation*")} == {"evaluation-cyc1.log", "evaluation-cyc2.log"}
