"""What `node.sh` does, against what Python says of the same files."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import pytest

from caffe_recipes.cluster.hosts import COMMAND_S, Completed, LocalHost
from caffe_recipes.cluster.staging.digests import BLOCK_BYTES, file_digest
from caffe_recipes.cluster.staging.nodes import (
    NodeRefusal,
    abandon_part,
    clean_node,
    commit_part,
    hash_node,
    probe_node,
    reserve_part,
    take_part,
)
from caffe_recipes.cluster.staging.stamps import STAMP, parse_stamp, render_mtime
from caffe_recipes.errors import ClusterError

PART = ".data.mdb.part-1"
HOST = LocalHost("here")


@pytest.fixture
def lmdb(tmp_path: Path) -> Path:
    return tmp_path / "made" / "train lmdb"


def digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file.fileno(), path.stat().st_size)


def place(lmdb: Path, content: bytes) -> str:
    """Stage by hand; return the digest."""
    reserve_part(HOST, str(lmdb), PART, len(content))
    (lmdb / PART).write_bytes(content)
    digest = digest_of(lmdb / PART)
    commit_part(HOST, str(lmdb), PART, len(content), digest)
    return digest


def take(lmdb: Path, source: Path, digest: str | None, room_bytes: int = 0) -> None:
    size = source.stat().st_size
    take_part(HOST, str(lmdb), PART, str(source), size, room_bytes=room_bytes or size, digest=digest)


def test_a_node_takes_the_source_and_commits_it_when_its_digest_is_known(lmdb: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"records")
    take(lmdb, source, digest_of(source))
    assert sorted(path.name for path in lmdb.iterdir()) == [STAMP, "data.mdb"]
    assert (lmdb / "data.mdb").read_bytes() == b"records"
    assert probe_node(HOST, str(lmdb), "/none", 7).digest == digest_of(source)


def test_what_a_node_has_taken_gets_its_name_only_when_it_is_verified(lmdb: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"records")
    digest = digest_of(source)
    with pytest.raises(NodeRefusal, match="its digest differs"):
        take(lmdb, source, "0" * 64)
    assert sorted(path.name for path in lmdb.iterdir()) == [STAMP, PART]
    take(lmdb, source, None)  # what was left is taken over
    assert sorted(path.name for path in lmdb.iterdir()) == [STAMP, PART]
    commit_part(HOST, str(lmdb), PART, 7, digest)
    assert sorted(path.name for path in lmdb.iterdir()) == [STAMP, "data.mdb"]


def test_what_cannot_be_taken_is_told_in_the_nodes_words(lmdb: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"records")
    with pytest.raises(NodeRefusal, match="no room: "):
        take(lmdb, source, digest_of(source), room_bytes=1 << 60)
    assert not lmdb.exists()
    with pytest.raises(NodeRefusal, match=r"cannot be copied: cp: .*none"):
        take_part(HOST, str(lmdb), PART, "/none", 7, room_bytes=7, digest=digest_of(source))


@pytest.mark.parametrize("size", [1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES + 5])
def test_a_node_and_python_and_the_line_for_hand_use_compute_one_digest(lmdb: Path, size: int) -> None:
    lmdb.mkdir(parents=True)
    (lmdb / "data.mdb").write_bytes(os.urandom(1000) * (size // 1000) + bytes(size % 1000))
    line = "split -b 16M --filter='sha256sum | cut -c 1-64' data.mdb | sha256sum"
    by_hand = subprocess.run(["sh", "-c", line], cwd=lmdb, capture_output=True, text=True, check=True).stdout
    assert hash_node(HOST, str(lmdb), size) == digest_of(lmdb / "data.mdb") == by_hand.split()[0]


def test_a_node_and_python_write_one_stamp(lmdb: Path) -> None:
    digest = place(lmdb, b"records")
    status = (lmdb / "data.mdb").stat()
    stamp = parse_stamp((lmdb / STAMP).read_text())
    assert stamp is not None
    assert (stamp.folders_made, stamp.digest, stamp.size_bytes) == (2, digest, 7)
    assert (stamp.mtime, stamp.inode) == (render_mtime(status.st_mtime_ns), status.st_ino)
    assert probe_node(HOST, str(lmdb), "/none", 7).digest == digest


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.write_bytes(b"RECORDS"),
        lambda data: data.write_bytes(b"records, more"),
        lambda data: os.utime(data, ns=(1, 1)),
        lambda data: shutil.copy2(data, data.with_name("x")) and data.with_name("x").replace(data),
    ],
)
def test_a_stamp_is_believed_of_the_very_file_that_was_verified_only(lmdb: Path, change: object) -> None:
    place(lmdb, b"records")
    assert callable(change)
    change(lmdb / "data.mdb")
    assert probe_node(HOST, str(lmdb), "/none", 7).digest is None
    assert clean_node(HOST, str(lmdb)) == ("kept", "it has changed since caffe-recipes put it there")


def test_what_a_process_reads_is_not_taken_away(lmdb: Path) -> None:
    place(lmdb, b"records")
    with (
        (lmdb / "data.mdb").open("rb"),
        pytest.raises(NodeRefusal, match=f"in use: process {os.getpid()} reads it"),
    ):
        clean_node(HOST, str(lmdb))
    assert (lmdb / "data.mdb").read_bytes() == b"records"
    assert clean_node(HOST, str(lmdb)) == ("cleaned", "7")
    assert not lmdb.exists()


@pytest.mark.parametrize(
    "text", ["", "caffe-recipes-1\n", "caffe-recipes-2 1 - - - -\n", "caffe-recipes-1 x - - - -\n", "\0"]
)
def test_a_stamp_that_cannot_be_read_is_none_of_ours(lmdb: Path, text: str) -> None:
    lmdb.mkdir(parents=True)
    (lmdb / STAMP).write_text(text)
    (lmdb / "data.mdb").write_bytes(b"records")
    assert parse_stamp(text) is None
    assert probe_node(HOST, str(lmdb), "/none", 7).digest is None
    assert clean_node(HOST, str(lmdb))[0] == "kept"
    (lmdb / "data.mdb").unlink()
    with pytest.raises(NodeRefusal, match="holds a stamp that is not ours"):
        reserve_part(HOST, str(lmdb), PART, 7)


@pytest.mark.parametrize(
    ("content", "reason"), [(b"record", "6 of 7 bytes arrived"), (b"recordS", "its digest differs")]
)
def test_what_arrives_cut_short_or_changed_is_not_named(lmdb: Path, content: bytes, reason: str) -> None:
    reserve_part(HOST, str(lmdb), PART, 7)
    (lmdb / PART).write_bytes(b"records")
    digest = digest_of(lmdb / PART)
    (lmdb / PART).write_bytes(content)
    with pytest.raises(NodeRefusal, match=reason):
        commit_part(HOST, str(lmdb), PART, 7, digest)
    assert not (lmdb / "data.mdb").exists()
    abandon_part(HOST, str(lmdb))
    assert not lmdb.parent.exists()


def test_what_has_come_to_lie_there_meanwhile_is_not_replaced(lmdb: Path) -> None:
    reserve_part(HOST, str(lmdb), PART, 7)
    (lmdb / PART).write_bytes(b"records")
    (lmdb / "data.mdb").write_bytes(b"the user's own")
    with pytest.raises(NodeRefusal, match="File exists"):
        commit_part(HOST, str(lmdb), PART, 7, digest_of(lmdb / PART))
    abandon_part(HOST, str(lmdb))
    assert [path.name for path in lmdb.iterdir()] == ["data.mdb"]
    assert (lmdb / "data.mdb").read_bytes() == b"the user's own"


def test_a_link_in_the_place_of_a_part_is_not_written_through(lmdb: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    lmdb.mkdir(parents=True)
    (lmdb / PART.replace("part-1", "other")).symlink_to(victim)
    (lmdb / f"{STAMP}.part").symlink_to(victim)
    (lmdb / PART).symlink_to(victim)
    place(lmdb, b"records")
    assert victim.read_text() == "precious"


def test_a_folder_that_others_can_write_in_is_refused(lmdb: Path) -> None:
    lmdb.mkdir(parents=True)
    for folder, said in ((lmdb, "others can write in"), (lmdb.parent, "others can write in")):
        folder.chmod(0o777)
        state = probe_node(HOST, str(lmdb), "/none", 7)
        assert state.kind == "refused"
        assert said in state.reason
        with pytest.raises(NodeRefusal, match=said):
            reserve_part(HOST, str(lmdb), PART, 7)
        folder.chmod(0o755)
    assert list(lmdb.iterdir()) == []


@pytest.mark.parametrize("made", ["file", "data.mdb/lock.mdb"])
def test_what_is_no_lmdb_is_refused_and_stays(lmdb: Path, made: str) -> None:
    path = lmdb if made == "file" else lmdb / made
    path.parent.mkdir(parents=True)
    path.write_text("the user's own")
    assert probe_node(HOST, str(lmdb), "/none", 7).reason == "holds what is no LMDB"
    assert path.read_text() == "the user's own"


def test_too_little_room_leaves_nothing_behind(lmdb: Path) -> None:
    with pytest.raises(NodeRefusal, match=r"no room: \d+ bytes are free, 1000000000000000 are needed"):
        reserve_part(HOST, str(lmdb), PART, 10**15)
    assert not lmdb.parent.exists()


def test_a_link_of_our_own_on_the_way_is_followed(lmdb: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    lmdb.parent.symlink_to(tmp_path / "disk")
    place(lmdb, b"records")
    assert (tmp_path / "disk" / lmdb.name / "data.mdb").read_bytes() == b"records"


def test_a_host_whose_shell_gives_no_answer_is_one_line() -> None:
    class Silent(LocalHost):
        def run(self, argv: Sequence[str], timeout_s: float = COMMAND_S) -> Completed:
            return LocalHost().run(["sh", "-c", "echo a >&2; echo b >&2; exit 127"])

    with pytest.raises(ClusterError, match=r"^gone:/a: `clean` gives no answer that can be read: a b; check"):
        clean_node(Silent("gone"), "/a")


def test_the_script_is_posix_shell_without_findings() -> None:
    shellcheck = shutil.which("shellcheck")
    if shellcheck is None:
        pytest.skip("shellcheck is not installed")
    text = resources.files("caffe_recipes.cluster.staging").joinpath("node.sh").read_text()
    done = subprocess.run(
        [shellcheck, "-s", "sh", "-"], input=text, capture_output=True, text=True, check=False
    )
    assert done.stdout == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to somebody else")
def test_whose_folder_we_were_started_in_is_trusted_and_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    os.chown(checkout, 65534, 65534)
    monkeypatch.chdir(tmp_path)
    state = probe_node(HOST, f"{checkout}/lmdb", "", 1)
    assert (state.kind, state.reason) == (
        "refused",
        f"{checkout} belongs to user 65534, who can change what is there",
    )
    monkeypatch.chdir(checkout)
    assert probe_node(HOST, f"{checkout}/lmdb", "", 1).kind == "absent"
