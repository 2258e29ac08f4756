"""The training LMDB is copied to each node that lacks it, whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from caffe_recipes.cluster.staging.file_sets import find_source, hash_source
from caffe_recipes.cluster.staging.relay import STAMP, file_digest
from caffe_recipes.recipe.model import Recipe, validate_frozen
from caffe_recipes.render.scripts import render_run_script

if TYPE_CHECKING:
    from tests.jobs.conftest import StandInCluster

SOURCE = "the source's $folder"
COPIED = "of the source.."  # as long as the nodes' own
LOCKS = ".caffe-recipes-lock"


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


def test_the_lmdb_is_copied_only_where_it_is_missing(bare: StandInCluster) -> None:
    done = bare.run(LMDB_SOURCE=SOURCE)
    assert done.returncode == 0, done.stderr
    assert (lmdb(bare) / "data.mdb").read_text() == COPIED
    assert (lmdb(bare, "c401-001") / "data.mdb").read_text() == "training images"
    assert sorted(path.name for path in lmdb(bare).iterdir()) == [LOCKS, STAMP, "data.mdb"]
    assert not list(lmdb(bare, "c401-001").glob(".*"))


def test_without_a_source_the_nodes_that_lack_it_are_named(bare: StandInCluster) -> None:
    (bare.root / "build/tools/caffe").unlink()
    (bare.root / bare.recipe.data.test.lmdb / "data.mdb").unlink()
    assert "/tmp/ilsvrc12_train_lmdb: missing on c401-002, and not in LMDB_SOURCE ('')" in bare.refused()


def test_a_source_without_an_lmdb_is_refused(bare: StandInCluster) -> None:
    message = "missing on c401-002, and not in LMDB_SOURCE ('/no/such/folder')"
    assert message in bare.refused(LMDB_SOURCE="/no/such/folder")


def test_nothing_is_copied_to_any_node_if_one_cannot_get_a_copy(bare: StandInCluster) -> None:
    shutil.rmtree(lmdb(bare, "c401-001"))
    bare.hook("ssh", "[[ $1 != c401-002 ]] || { echo caffe-recipes: absent 9 0 0; exit; }")
    assert "missing on c401-002, and not in LMDB_SOURCE" in bare.refused(LMDB_SOURCE=SOURCE)


@pytest.mark.parametrize("text", ["", "garbage"])
def test_something_else_in_its_place_is_neither_used_nor_replaced(bare: StandInCluster, text: str) -> None:
    lmdb(bare).mkdir()
    (lmdb(bare) / "data.mdb").write_text(text)
    message = (
        f"/tmp/ilsvrc12_train_lmdb: not a copy of LMDB_SOURCE ('{SOURCE}') on c401-002; move it away there"
    )
    assert message in bare.refused(LMDB_SOURCE=SOURCE)


def test_a_file_in_the_place_of_its_folder_is_refused(bare: StandInCluster) -> None:
    lmdb(bare).write_text("somebody's")
    message = "/tmp/ilsvrc12_train_lmdb on c401-002: is not a folder; ask its owner to remove it"
    assert message in bare.refused(LMDB_SOURCE=SOURCE)


def test_a_folder_without_records_gets_them_and_keeps_what_it_has(bare: StandInCluster) -> None:
    lmdb(bare).mkdir()
    (lmdb(bare) / "lock.mdb").write_text("keep")
    assert bare.run(LMDB_SOURCE=SOURCE).returncode == 0
    assert (lmdb(bare) / "data.mdb").read_text() == COPIED
    assert (lmdb(bare) / "lock.mdb").read_text() == "keep"


def test_a_partial_copy_of_a_killed_run_is_replaced(bare: StandInCluster) -> None:
    lmdb(bare).mkdir()
    (lmdb(bare) / ".data.mdb.part-0badf00d").write_text(COPIED[:3])
    assert bare.run(LMDB_SOURCE=SOURCE).returncode == 0
    assert sorted(path.name for path in lmdb(bare).iterdir()) == [LOCKS, STAMP, "data.mdb"]
    assert (lmdb(bare) / "data.mdb").read_text() == COPIED


def test_a_node_where_it_fails_is_named_and_nothing_trains(bare: StandInCluster) -> None:
    lmdb(bare).mkdir()
    (lmdb(bare) / LOCKS).write_text("in the way")
    done = bare.run(LMDB_SOURCE=SOURCE)
    assert done.returncode == 3
    assert "/tmp/ilsvrc12_train_lmdb: staging failed on c401-002: " in done.stderr
    assert "check ssh and the disks there" in done.stderr
    assert [path.name for path in lmdb(bare).iterdir()] == [LOCKS]
    assert bare.calls("mpiexec.hydra") == []


def test_a_node_that_cannot_be_reached_is_named(bare: StandInCluster) -> None:
    bare.hook("ssh", '[[ $1 != c401-001 ]] || { echo "no route to host" >&2; exit 255; }')
    done = bare.run(LMDB_SOURCE=SOURCE)
    assert done.returncode == 3
    assert "no answer from c401-001; check that " in done.stderr
    assert "check `ssh c401-001 true`; if its host key is not in known_hosts" in done.stderr
    assert "`ssh-keyscan c401-001 >>~/.ssh/known_hosts`" in done.stderr
    assert not (bare.root / "logs").exists()


@pytest.mark.parametrize(
    "answer",
    [
        "present hosts[$(touch hacked)0] - 0",
        "present 9 - hosts[$(touch hacked)0]",
        "absent 9 0 hosts[$(touch hacked)0]",
        "present PATH - 0",
        "present 08 - 0",
        "present 9 -",
        "absent",
        "present 99999999999999999999 - 0",
    ],
)
def test_an_answer_of_a_host_is_used_in_arithmetic_only_if_it_is_a_number(
    bare: StandInCluster, answer: str
) -> None:
    bare.hook("ssh", f"[[ $1 != c401-001 ]] || {{ echo 'caffe-recipes: {answer}'; exit; }}")
    before = bare.contents()
    done = bare.run(LMDB_SOURCE=SOURCE)
    assert done.returncode == 3
    assert "/tmp/ilsvrc12_train_lmdb: no answer from c401-001; check that " in done.stderr
    assert bare.contents() == before
    assert not (bare.play / "hacked").exists()


def test_an_answer_of_a_host_is_shown_as_printable_text(bare: StandInCluster) -> None:
    answer = r"refused \033]0;owned\007\033[2J\rby \000the host\t"
    printed = rf"printf '\ncaffe-recipes: {answer}\n'"
    bare.hook("ssh", f"[[ $1 != c401-001 ]] || {{ {printed}; exit; }}")
    assert " on c401-001: ]0;owned[2Jby the host; ask its owner" in bare.refused(LMDB_SOURCE=SOURCE)


def test_only_ascii_of_an_answer_of_a_host_is_shown(bare: StandInCluster) -> None:
    evil = r"\302\233;31m \342\200\256reversed \233 \033[2J"
    answer = rf"printf '\ncaffe-recipes: refused {evil}\n'"
    bare.hook("ssh", f"[[ $1 != c401-001 ]] || {{ {answer}; exit; }}")
    assert " on c401-001: ??;31m ???reversed ? [2J; ask its owner" in bare.refused(LMDB_SOURCE=SOURCE)


# What others can put at the path of a copy, its part or its stamp, in a shared /tmp.
PLANTED = ["data.mdb.part", ".data.mdb.part-0", "data.mdb", STAMP, f"{STAMP}.part", LOCKS]


@pytest.mark.parametrize("name", PLANTED)
def test_a_link_that_was_planted_is_not_written_through(bare: StandInCluster, name: str) -> None:
    victim = bare.root / "victim"
    victim.write_text("precious")
    victim.chmod(0o640)
    lmdb(bare).mkdir()
    (lmdb(bare) / name).symlink_to(victim)
    done = bare.run(LMDB_SOURCE=SOURCE)
    assert (victim.read_text(), victim.stat().st_mode & 0o777) == ("precious", 0o640)
    assert sorted(path.name for path in victim.parent.iterdir() if path.name.startswith("victim")) == [
        "victim"
    ]
    if done.returncode == 0:
        assert not (lmdb(bare) / "data.mdb").is_symlink()
        assert (lmdb(bare) / "data.mdb").read_text() == COPIED


def test_a_folder_that_others_can_write_to_is_refused(bare: StandInCluster) -> None:
    lmdb(bare).mkdir()
    lmdb(bare).chmod(0o777)
    message = "/tmp/ilsvrc12_train_lmdb on c401-002: can be changed by anybody; ask its owner to remove it"
    assert message in bare.refused(LMDB_SOURCE=SOURCE)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to somebody else")
@pytest.mark.parametrize("what", ["data.mdb", "."])
def test_the_copy_of_another_user_is_refused_by_its_owner(bare: StandInCluster, what: str) -> None:
    lmdb(bare).mkdir()
    (lmdb(bare) / "data.mdb").write_text(COPIED)
    os.chown(lmdb(bare) / what, 4242, 4242)
    which = "contains data.mdb, which " if what == "data.mdb" else ""
    message = f"on c401-002: {which}belongs to user 4242, who can change its contents; ask its owner"
    assert message in bare.refused(LMDB_SOURCE=SOURCE)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to somebody else")
def test_a_copy_of_the_owner_of_the_caffe_root_is_used(bare: StandInCluster) -> None:
    lmdb(bare).mkdir()
    (lmdb(bare) / "data.mdb").write_text(COPIED)
    for path in (lmdb(bare), lmdb(bare) / "data.mdb", bare.root):
        os.chown(path, 4242, 4242)
    done = bare.run(LMDB_SOURCE=SOURCE)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to somebody else")
@pytest.mark.parametrize("what", ["data.mdb", "."])
def test_a_source_of_another_user_is_refused_where_others_can_write(
    bare: StandInCluster, tmp_path: Path, what: str
) -> None:
    source = tmp_path / "shared" / "lmdb"
    source.mkdir(parents=True)
    source.parent.chmod(0o1777)
    (source / "data.mdb").write_text(COPIED)
    os.chown(source / what, 4242, 4242)
    which = "" if what == "data.mdb" else f"is under {source}, which "
    message = f"LMDB_SOURCE: {source}/data.mdb {which}belongs to user 4242, who can change its contents; set"
    assert message in bare.refused(LMDB_SOURCE=str(source))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to somebody else")
def test_a_source_that_only_a_node_sees_is_refused_there(bare: StandInCluster, tmp_path: Path) -> None:
    source = tmp_path / "shared"
    source.mkdir()
    (source / "data.mdb").write_text(COPIED)
    source.chmod(0o777)
    (bare.library / "node.sh").write_text(
        (bare.library / "node.sh").read_text().replace('    check_source "$target"\n', "")
    )
    message = (
        f"on c401-002: is used with {source}, which can be changed by anybody; ask its owner to remove it"
    )
    assert message in bare.refused(LMDB_SOURCE=str(source))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to somebody else")
def test_a_colleague_s_source_is_copied_where_only_its_owner_can_write(bare: StandInCluster) -> None:
    with tempfile.TemporaryDirectory(dir="/var") as folder:
        source = Path(folder)
        (source / "data.mdb").write_text(COPIED)
        for path in (source / "data.mdb", source):
            os.chown(path, 4242, 4242)
        source.chmod(0o755)
        done = bare.run(LMDB_SOURCE=folder)
    assert done.returncode == 0, done.stderr
    assert (lmdb(bare) / "data.mdb").read_text() == COPIED


def save_manifest(bare: StandInCluster) -> None:
    """Have the source hashed by `caffe-recipes stage`."""
    os.utime(bare.root / SOURCE / "data.mdb", (1_700_000_000, 1_700_000_000))
    hash_source(find_source(bare.root / SOURCE), bare.play / ".cache/caffe-recipes")


def test_a_copy_is_compared_once_with_the_digest_of_the_source_s_manifest(bare: StandInCluster) -> None:
    save_manifest(bare)
    assert bare.run(LMDB_SOURCE=SOURCE).returncode == 0
    digest = (lmdb(bare) / STAMP).read_text().split()[2]
    with (lmdb(bare) / "data.mdb").open("rb") as file:
        assert digest == file_digest(file.fileno(), len(COPIED))


def test_a_copy_of_other_content_is_not_kept(bare: StandInCluster) -> None:
    save_manifest(bare)
    source = bare.root / SOURCE / "data.mdb"
    status = source.stat()
    source.write_text(COPIED[::-1])  # a disk that returns other bytes for the same file
    os.utime(source, ns=(status.st_atime_ns, status.st_mtime_ns))
    done = bare.run(LMDB_SOURCE=SOURCE)
    assert done.returncode == 3
    assert "staging failed on c401-002: the digest of the copy differs from the source's" in done.stderr
    assert not lmdb(bare).exists()
    assert bare.calls("mpiexec.hydra") == []


def test_without_a_manifest_nothing_is_hashed_and_the_stamp_has_no_digest(bare: StandInCluster) -> None:
    assert bare.run(LMDB_SOURCE=SOURCE).returncode == 0
    assert (lmdb(bare) / STAMP).read_text().split()[2:4] == ["-", str(len(COPIED))]


def test_a_verified_copy_of_another_source_is_refused(bare: StandInCluster) -> None:
    save_manifest(bare)
    assert bare.run(LMDB_SOURCE=SOURCE).returncode == 0
    (bare.root / "resnet_50_64nodes_cyc1_iter_3750.caffemodel").unlink()
    (bare.root / SOURCE / "data.mdb").write_text(COPIED.upper())
    save_manifest(bare)
    assert "not a copy of LMDB_SOURCE" in bare.refused(LMDB_SOURCE=SOURCE)


def test_data_that_the_nets_name_are_neither_asked_about_nor_copied(bare: StandInCluster) -> None:
    raw = bare.recipe.model_dump() | {"images": 1_281_167, "test_images": 50_000, "data": "as-in-net"}
    raw["net"] = {"name": "mine", "classes": 1000, "prototxt": "mine.prototxt"}
    raw["nets"] = {name: {} for name in raw["nets"]}
    recipe = validate_frozen(raw)
    assert isinstance(recipe, Recipe)
    bare.script.write_text(render_run_script(recipe))
    shutil.rmtree(lmdb(bare, "c401-001"))
    shutil.rmtree(bare.root / bare.recipe.data.test.lmdb)
    done = bare.run()
    assert done.returncode == 0, done.stderr
    assert "LMDB" not in done.stderr and "loss3/top-1 = 0.762781" in done.stdout + done.stderr
