"""The training LMDB is copied to each node that lacks it, whole or not at all."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.jobs.conftest import StandInCluster

SOURCE = "the source's $folder"
COPIED = "of the source.."  # as long as the nodes' own


@pytest.fixture
def bare(small_cluster: StandInCluster) -> StandInCluster:
    """A cluster whose second node has no LMDB, with one to copy in the Caffe root."""
    shutil.rmtree(lmdb(small_cluster))
    source = small_cluster.root / SOURCE
    source.mkdir()
    (source / "data.mdb").write_text(COPIED)
    return small_cluster


def lmdb(cluster: StandInCluster, host: str = "c401-002") -> Path:
    return (cluster.node(host) / cluster.lmdb).parent


def test_it_is_copied_only_where_it_is_missing(bare: StandInCluster) -> None:
    done = bare.run(LMDB_SOURCE=SOURCE)
    assert done.returncode == 0, done.stderr
    assert (lmdb(bare) / "data.mdb").read_text() == COPIED
    assert (lmdb(bare, "c401-001") / "data.mdb").read_text() == "training images"
    assert [path.name for path in lmdb(bare).iterdir()] == ["data.mdb"]


def test_without_a_source_the_nodes_that_lack_it_are_named(bare: StandInCluster) -> None:
    (bare.root / "build/tools/caffe").unlink()
    (bare.root / bare.recipe.data.test.lmdb / "data.mdb").unlink()
    assert "/tmp/ilsvrc12_train_lmdb: missing on c401-002, and LMDB_SOURCE ('') holds none" in bare.refused()


def test_a_source_without_an_lmdb_is_refused(bare: StandInCluster) -> None:
    says = "missing on c401-002, and LMDB_SOURCE ('/no/such/folder') holds none"
    assert says in bare.refused(LMDB_SOURCE="/no/such/folder")


def test_nothing_is_copied_to_one_node_if_another_can_have_none(bare: StandInCluster) -> None:
    shutil.rmtree(lmdb(bare, "c401-001"))
    bare.hook("ssh", "[[ $1 != c401-002 ]] || exit 66")
    assert "missing on c401-002, and LMDB_SOURCE" in bare.refused(LMDB_SOURCE=SOURCE)


@pytest.mark.parametrize("text", ["", "garbage"])
def test_something_else_in_its_place_is_neither_used_nor_replaced(bare: StandInCluster, text: str) -> None:
    lmdb(bare).mkdir()
    (lmdb(bare) / "data.mdb").write_text(text)
    says = f"/tmp/ilsvrc12_train_lmdb: is no copy of LMDB_SOURCE ('{SOURCE}') on c401-002; move it away there"
    assert says in bare.refused(LMDB_SOURCE=SOURCE)


def test_a_file_in_the_place_of_its_folder_is_refused(bare: StandInCluster) -> None:
    lmdb(bare).write_text("somebody's")
    assert "is no copy of LMDB_SOURCE" in bare.refused(LMDB_SOURCE=SOURCE)


def test_a_folder_without_records_gets_them_and_keeps_what_it_has(bare: StandInCluster) -> None:
    lmdb(bare).mkdir()
    (lmdb(bare) / "lock.mdb").write_text("keep")
    assert bare.run(LMDB_SOURCE=SOURCE).returncode == 0
    assert (lmdb(bare) / "data.mdb").read_text() == COPIED
    assert (lmdb(bare) / "lock.mdb").read_text() == "keep"


def test_a_half_copy_of_a_killed_run_is_replaced(bare: StandInCluster) -> None:
    lmdb(bare).mkdir()
    (lmdb(bare) / "data.mdb.part").write_text(COPIED[:3])
    assert bare.run(LMDB_SOURCE=SOURCE).returncode == 0
    assert [path.name for path in lmdb(bare).iterdir()] == ["data.mdb"]
    assert (lmdb(bare) / "data.mdb").read_text() == COPIED


def test_a_node_where_it_fails_is_named_and_nothing_trains(bare: StandInCluster) -> None:
    (lmdb(bare) / "data.mdb.part").mkdir(parents=True)
    done = bare.run(LMDB_SOURCE=SOURCE)
    assert done.returncode == 3
    assert (
        "/tmp/ilsvrc12_train_lmdb: staging failed on c401-002; check ssh and the disks there" in done.stderr
    )
    assert not (lmdb(bare) / "data.mdb").exists()
    assert bare.calls("mpiexec.hydra") == []


def test_a_node_that_cannot_be_reached_is_named(bare: StandInCluster) -> None:
    bare.hook("ssh", '[[ $1 != c401-001 ]] || { echo "no route to host" >&2; exit 255; }')
    done = bare.run(LMDB_SOURCE=SOURCE)
    assert done.returncode == 3
    assert "cannot be looked for on c401-001; check ssh" in done.stderr
    assert not (bare.root / "logs").exists()
