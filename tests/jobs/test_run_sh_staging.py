"""The training LMDB is copied to each node that lacks it, whole or not at all."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.jobs.conftest import StandInCluster

SOURCE = "the source's $folder"


@pytest.fixture
def bare(small_cluster: StandInCluster) -> StandInCluster:
    """A cluster whose second node has no LMDB, with one to copy in the Caffe root."""
    shutil.rmtree(lmdb(small_cluster))
    source = small_cluster.root / SOURCE
    source.mkdir()
    (source / "data.mdb").write_text("from the source")
    return small_cluster


def lmdb(cluster: StandInCluster, host: str = "c401-002") -> Path:
    return (cluster.node(host) / cluster.lmdb).parent


def test_it_is_copied_only_where_it_is_missing(bare: StandInCluster) -> None:
    done = bare.run(LMDB_SOURCE=SOURCE)
    assert done.returncode == 0, done.stderr
    assert (lmdb(bare) / "data.mdb").read_text() == "from the source"
    assert (lmdb(bare, "c401-001") / "data.mdb").read_text() == "training images"
    assert not lmdb(bare).with_name("ilsvrc12_train_lmdb.part").exists()


def test_without_a_source_the_nodes_that_lack_it_are_named_in_one_line(bare: StandInCluster) -> None:
    done = bare.run()
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "/tmp/ilsvrc12_train_lmdb: missing on c401-002, and LMDB_SOURCE ('') holds none" in done.stderr
    assert bare.calls("mpiexec.hydra") == []
    assert not (bare.root / "models").exists()


def test_a_source_without_an_lmdb_is_refused(bare: StandInCluster) -> None:
    done = bare.run(LMDB_SOURCE="/no/such/folder")
    assert done.returncode == 2
    assert "missing on c401-002, and LMDB_SOURCE ('/no/such/folder') holds none" in done.stderr


def test_a_half_copy_of_a_killed_run_is_replaced(bare: StandInCluster) -> None:
    part = lmdb(bare).with_name("ilsvrc12_train_lmdb.part")
    part.mkdir()
    (part / "data.mdb").write_text("from the so")
    assert bare.run(LMDB_SOURCE=SOURCE).returncode == 0
    assert (lmdb(bare) / "data.mdb").read_text() == "from the source"


def test_a_node_where_it_fails_is_named_and_nothing_trains(bare: StandInCluster) -> None:
    lmdb(bare).mkdir()
    (lmdb(bare) / "somebody's file").write_text("keep")
    done = bare.run(LMDB_SOURCE=SOURCE)
    assert done.returncode == 3
    assert (
        "/tmp/ilsvrc12_train_lmdb: staging failed on c401-002; check ssh and the disks there" in done.stderr
    )
    assert [path.name for path in lmdb(bare).iterdir()] == ["somebody's file"]
    assert not lmdb(bare).with_name("ilsvrc12_train_lmdb.part").exists()
    assert bare.calls("mpiexec.hydra") == []


def test_a_node_that_cannot_be_reached_is_named(bare: StandInCluster) -> None:
    bare.hook("ssh", '[[ $1 != c401-001 ]] || { echo "no route to host" >&2; exit 255; }')
    done = bare.run(LMDB_SOURCE=SOURCE)
    assert done.returncode == 3
    assert "staging failed on c401-001;" in done.stderr
