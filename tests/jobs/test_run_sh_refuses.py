"""Bad input gets one line and exit 2, and nothing in the Caffe root changes."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from caffe_recipes.recipe.source import load_recipe
from tests.jobs.conftest import StandInCluster

INIT = "resnet_50_64nodes_init_iter_7800.caffemodel"
CYC1 = "resnet_50_64nodes_cyc1_iter_3750.caffemodel"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "hostfile: lists 0 of the 2 hosts that 4 ranks need; list them all"),
        ("# only\n\n  # comments\n", "hostfile: lists 0 of the 2 hosts"),
        ("c401-001\n", "hostfile: lists 1 of the 2 hosts that 4 ranks need; list them all"),
        ("c401-001\n#\nc401-001:2\n", "hostfile:3: c401-001 appears twice"),
        ("c401-001\nc401-002 # the second\n", "hostfile:2: 'c401-002 # the second' is not a host"),
        ("-oProxyCommand=reboot\nc401-002\n", "hostfile:1: '-oProxyCommand=reboot' is not a host"),
        ("c401-001:x\nc401-002\n", "hostfile:1: 'c401-001:x' is not a host"),
        ("c401-001\n$(touch hacked)\n", "hostfile:2: '$(touch hacked)' is not a host"),
    ],
)
def test_an_unusable_hostfile_is_refused(small_cluster: StandInCluster, text: str, message: str) -> None:
    (small_cluster.root / "hostfile").write_text(text)
    assert message in small_cluster.refused()


def test_a_missing_hostfile(small_cluster: StandInCluster) -> None:
    (small_cluster.root / "hostfile").unlink()
    assert "hostfile: cannot be read; write one host per line" in small_cluster.refused()


def test_hostfiles_may_hold_comments_slots_crlf_and_spare_hosts(small_cluster: StandInCluster) -> None:
    (small_cluster.root / "hostfile").write_text("c401-001:2\r\n\n# spare ones follow\n  c401-002\nc401-003")
    small_cluster.hook("mpiexec.hydra", "exit 1")
    assert small_cluster.run().returncode == 3
    assert {call.argv[5] for call in small_cluster.calls("ssh")} == {"c401-001", "c401-002"}


@pytest.mark.parametrize(
    "name", ["build/tools", "build/tools/caffe", "hostfile", "models/intel_optimized_models", "logs"]
)
def test_world_writable_files_below_the_caffe_root_are_neither_read_nor_run(
    small_cluster: StandInCluster, name: str
) -> None:
    path = small_cluster.root / name
    if not path.exists():
        path.mkdir(parents=True)
    path.chmod(0o777)
    output = small_cluster.refused()
    assert (
        f"caffe root: contains {name}, which can be changed by anybody; make it writable only by you"
        in output
    )


@pytest.mark.parametrize(
    "name",
    [
        "repository/prototxt/stampede2-64n-72ep/solver_init.prototxt",
        "repository/prototxt/stampede2-64n-72ep/train_val.prototxt",
        "models/intel_optimized_models/multinode/resnet50_custom_lr/solver_cyc1.prototxt",
        INIT,
        f"{CYC1}.made-from",
        f"{CYC1}.evaluation",
        "logs/stampede2-64n-72ep/init.log",
    ],
)
def test_a_file_of_the_recipe_that_anybody_can_write_is_neither_read_nor_replaced(
    finished_cluster: StandInCluster, name: str
) -> None:
    work = finished_cluster.root.parent
    path = work / name if name.startswith("repository") else finished_cluster.root / name
    assert path.is_file()
    path.chmod(0o666)
    which = f"is used with {path}" if name.startswith("repository") else f"contains {name}"
    assert f"{which}, which can be changed by anybody; make it" in finished_cluster.refused()
    path.chmod(0o644)
    assert finished_cluster.run().returncode == 0


@pytest.fixture
def cluster_with_weights(tmp_path: Path) -> Iterator[tuple[StandInCluster, Path]]:
    """Give a cluster of one phase that starts from weights which a colleague has put outside /tmp."""
    with tempfile.TemporaryDirectory(dir="/var") as folder:
        weights = Path(folder) / "initial.caffemodel"
        weights.write_text("weights of a colleague")
        recipe = load_recipe("stampede2-64n-72ep")
        phase = recipe.phases[0].model_copy(update={"weights": str(weights)})
        nodes = recipe.cluster.model_copy(update={"nodes": 1})
        changes = {"phases": (phase,), "cluster": nodes, "evaluation": None}
        for path in (weights, weights.parent):
            os.chown(path, 4242, 4242)
        weights.parent.chmod(0o755)
        yield StandInCluster(tmp_path, recipe.model_copy(update=changes)), weights


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can play another user")
def test_initial_weights_of_another_user_are_refused_where_everybody_can_put_files(
    cluster_with_weights: tuple[StandInCluster, Path],
) -> None:
    cluster, weights = cluster_with_weights
    weights.parent.chmod(0o1777)
    message = f"is used with {weights}, which belongs to user 4242, who can change its contents; make it"
    assert message in cluster.refused()
    os.chown(weights, 0, 0)
    assert cluster.run().returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can play another user")
def test_initial_weights_of_a_colleague_are_used_where_only_their_owner_can_write(
    cluster_with_weights: tuple[StandInCluster, Path],
) -> None:
    cluster, _ = cluster_with_weights
    done = cluster.run()
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can play another user")
@pytest.mark.parametrize("part", ["train", "test"])
def test_a_mean_file_of_another_user_is_refused_where_everybody_can_put_files(
    cluster_with_weights: tuple[StandInCluster, Path], tmp_path: Path, part: str
) -> None:
    _, mean = cluster_with_weights
    recipe = load_recipe("stampede2-64n-72ep")
    ours = getattr(recipe.data, part).model_copy(update={"mean_file": str(mean), "mean_value": ()})
    data = recipe.data.model_copy(update={part: ours, "mean_value": ()})
    changes = {"data": data, "phases": recipe.phases[:1], "evaluation": None}
    nodes = recipe.cluster.model_copy(update={"nodes": 1})
    cluster = StandInCluster(tmp_path / "own", recipe.model_copy(update={**changes, "cluster": nodes}))
    assert cluster.run().returncode == 0  # a colleague's, where only they can write
    mean.parent.chmod(0o1777)
    message = f"is used with {mean}, which belongs to user 4242, who can change its contents; make it"
    assert message in cluster.refused()


def test_under_an_open_umask_nothing_is_created_that_others_can_write(small_cluster: StandInCluster) -> None:
    before = os.umask(0)
    try:
        done = small_cluster.run()
    finally:
        os.umask(before)
    assert done.returncode == 0, done.stderr
    for path in small_cluster.root.rglob("*"):
        assert path.is_symlink() or not path.stat().st_mode & 0o002, path


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can play another user")
def test_a_test_lmdb_of_another_user_is_refused_before_training(small_cluster: StandInCluster) -> None:
    lmdb = small_cluster.root / small_cluster.recipe.data.test.lmdb
    os.chown(lmdb, 65534, 65534)
    output = small_cluster.refused()
    part = lmdb.relative_to(small_cluster.root)
    assert f"contains {part}, which belongs to user nobody (65534), who can change its contents" in output
    assert "; make it writable only by you, or use a copy in a folder of your own\n" in output


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can play another user")
def test_a_test_lmdb_that_another_user_puts_there_during_the_run_is_not_tested_with(
    small_cluster: StandInCluster,
) -> None:
    lmdb = small_cluster.root / small_cluster.recipe.data.test.lmdb
    small_cluster.hook("mpiexec.hydra", f"chown 65534 '{lmdb}'")
    done = small_cluster.run()
    assert done.returncode == 2
    assert "belongs to user nobody (65534), who can change its contents" in done.stderr
    assert not (small_cluster.play / "test.argv").exists()


def test_a_test_lmdb_may_be_built_in_a_shared_folder_while_a_chain_trains(tmp_path: Path) -> None:
    recipe = load_recipe("stampede2-64n-72ep")
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o1777)
    test = recipe.data.test.model_copy(update={"lmdb": str(tmp_path / "shared/val_lmdb")})
    changes = {
        "data": recipe.data.model_copy(update={"test": test}),
        "phases": recipe.phases[:1],
        "cluster": recipe.cluster.model_copy(update={"nodes": 1}),
    }
    cluster = StandInCluster(tmp_path / "own", recipe.model_copy(update=changes))
    shutil.rmtree(test.lmdb)
    done = cluster.run()
    assert "val_lmdb: no LMDB for the evaluation yet" in done.stderr
    assert "init: training" in done.stderr


def test_a_trainer_that_appears_during_the_run_is_checked_before_it_tests(
    small_cluster: StandInCluster,
) -> None:
    trainer = small_cluster.root / "build/tools/caffe"
    away = trainer.rename(small_cluster.play / "caffe")
    small_cluster.hook("mpiexec.hydra", f"cp '{away}' '{trainer}'; chmod 777 '{trainer}'")
    done = small_cluster.run()
    assert done.returncode == 2
    assert "contains build/tools/caffe, which can be changed by anybody; make it writable only" in done.stderr
    assert not (small_cluster.play / "test.argv").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can play another user")
def test_initial_weights_that_another_user_could_have_put_on_a_host_are_refused(
    cluster_with_weights: tuple[StandInCluster, Path],
) -> None:
    cluster, weights = cluster_with_weights
    cluster.hook("ssh", f"chmod 1777 '{weights.parent}'")  # so it is there, and not here
    message = f"on c401-001: is used with {weights}, which belongs to user 4242, who can change its contents"
    assert message in cluster.refused()


def test_a_mean_file_that_anybody_could_create_later_is_refused(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    recipe = load_recipe("stampede2-64n-72ep")
    train = recipe.data.train.model_copy(update={"mean_file": str(shared / "mean.binaryproto")})
    data = recipe.data.model_copy(update={"train": train, "mean_value": ()})
    cluster = StandInCluster(tmp_path, recipe.model_copy(update={"data": data}))
    output = cluster.refused()
    assert "mean.binaryproto, which does not exist, and anybody could create it; create it first" in output


def test_an_unknown_argument(small_cluster: StandInCluster) -> None:
    assert "unknown argument '--force'; see run.sh --help" in small_cluster.refused("--force")


def test_a_missing_caffe_root(small_cluster: StandInCluster) -> None:
    assert "CAFFE_ROOT: no such folder" in small_cluster.refused(CAFFE_ROOT="/no/such/folder")


def test_a_missing_launcher(small_cluster: StandInCluster) -> None:
    (small_cluster.play / "bin/mpiexec.hydra").unlink()
    tools = small_cluster.play / "tools"  # this machine's own, but for a launcher that it may have
    tools.mkdir()
    for tool in Path("/usr/bin").iterdir():
        if not tool.name.startswith("mpi"):
            (tools / tool.name).symlink_to(tool)
    path = f"{small_cluster.play / 'bin'}:{tools}"
    assert "mpiexec.hydra: not found from" in small_cluster.refused(PATH=path)


@pytest.mark.parametrize("file", ["chain.sh", "node.sh"])
def test_a_script_away_from_what_it_reads(small_cluster: StandInCluster, file: str) -> None:
    (small_cluster.library / file).unlink()
    assert f"lib/{file}: cannot be read; start run.sh by its path" in small_cluster.refused()


def test_a_library_of_another_version_is_refused(small_cluster: StandInCluster) -> None:
    chain = small_cluster.library / "chain.sh"
    chain.write_text(chain.read_text().replace("CHAIN_INTERFACE=1", "CHAIN_INTERFACE=2"))
    assert "jobs/lib: version 2 does not match run.sh, version 1; generate the recipe again" in (
        small_cluster.refused()
    )


def test_a_caffe_root_that_others_can_write_in(small_cluster: StandInCluster) -> None:
    small_cluster.root.chmod(0o1777)
    assert (
        f"{small_cluster.root}: can be changed by anybody; make it writable only by you"
        in small_cluster.refused()
    )


def test_a_prototxt_that_differs_is_overwritten_only_by_force(small_cluster: StandInCluster) -> None:
    theirs = small_cluster.root / small_cluster.recipe.prototxt_dir / "solver_init.prototxt"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("base_lr: 0.1\n")
    assert (
        "solver_init.prototxt: differs from the recipe's; move it away, or set FORCE=1"
        in small_cluster.refused()
    )
    assert small_cluster.run(FORCE="1").returncode == 0
    assert theirs.read_text() == (small_cluster.prototxts / theirs.name).read_text()


def test_a_script_away_from_its_prototxts(small_cluster: StandInCluster) -> None:
    (small_cluster.prototxts / "train_val.prototxt").unlink()
    assert "train_val.prototxt: not found; start run.sh by its path" in small_cluster.refused()


@pytest.mark.parametrize("file", ["solver_init.prototxt", "train_val.prototxt"])
def test_a_snapshot_of_other_settings(finished_cluster: StandInCluster, file: str) -> None:
    with (finished_cluster.prototxts / file).open("a") as text:
        text.write("# changed\n")
    message = f"{INIT}: made from a different {file}; move it away to train init again"
    assert message in finished_cluster.refused(FORCE="1")


def test_a_snapshot_of_other_starting_weights(finished_cluster: StandInCluster) -> None:
    for name in (INIT, f"{INIT}.made-from"):
        (finished_cluster.root / name).rename(finished_cluster.root / f"old.{name}")
    finished_cluster.hook("mpiexec.hydra", "echo other weights")
    (finished_cluster.root / CYC1).rename(finished_cluster.root / "later")
    (finished_cluster.root / f"{CYC1}.made-from").rename(finished_cluster.root / "later.made-from")
    assert finished_cluster.run().returncode == 0
    (finished_cluster.root / f"{CYC1}.made-from").write_text(
        (finished_cluster.root / "later.made-from").read_text().replace("a", "b")
    )
    assert f"{CYC1}: made from a different" in finished_cluster.refused()


@pytest.mark.parametrize("damaged", [INIT, CYC1])
@pytest.mark.parametrize("kind", ["one bit", "truncated"])
def test_a_snapshot_that_differs_from_the_fetched_one_is_refused(
    finished_cluster: StandInCluster, damaged: str, kind: str
) -> None:
    path = finished_cluster.root / damaged
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] if kind == "truncated" else bytes([whole[0] ^ 1]) + whole[1:])
    assert f"{damaged}: has changed since it was fetched; move it away" in finished_cluster.refused()
    path.write_bytes(whole)
    assert finished_cluster.run().returncode == 0


def test_a_later_snapshot_with_missing_starting_weights_stops_before_training(
    finished_cluster: StandInCluster,
) -> None:
    (finished_cluster.root / INIT).unlink()
    message = f"{INIT}: missing, but {CYC1} was made from it; restore it, or move {CYC1} away"
    assert message in finished_cluster.refused()


def test_a_snapshot_of_unknown_settings(small_cluster: StandInCluster) -> None:
    (small_cluster.root / INIT).write_text("somebody's weights")
    assert (
        f"{INIT}: {INIT}.made-from, which records what it was made from, is missing; move"
        in small_cluster.refused()
    )


def test_an_empty_snapshot(finished_cluster: StandInCluster) -> None:
    (finished_cluster.root / INIT).write_text("")
    assert f"{INIT}: empty; move it away to train init again" in finished_cluster.refused()
