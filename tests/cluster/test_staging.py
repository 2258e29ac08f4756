from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from caffe_recipes.cluster.hosts import COMMAND_S, Completed, Host, LocalHost, SshHost
from caffe_recipes.cluster.staging import find_unstaged, on_all, stage_lmdb
from caffe_recipes.errors import ClusterError


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "shared" / "train lmdb"
    folder.mkdir(parents=True)
    (folder / "data.mdb").write_bytes(b"records" * 1000)
    return folder


@dataclass(frozen=True)
class BlindHost(LocalHost):
    """A host that does not see the shared file system."""

    def run(self, argv: Sequence[str], timeout_s: float = COMMAND_S) -> Completed:
        if any("/shared/" in word for word in argv):
            return Completed(1, "", "No such file or directory")
        return super().run(argv, timeout_s)


@pytest.fixture(params=["local", "blind", "ssh"])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Host]:
    if request.param == "ssh":
        request.getfixturevalue("ssh_server")
    made: dict[str, Host] = {
        "local": LocalHost(),
        "blind": BlindHost(),
        "ssh": SshHost("node1", tmp_path / "ssh"),
    }
    yield made[request.param]
    made[request.param].close()


def test_a_staged_lmdb_is_whole_and_nothing_else_is_left(host: Host, source: Path, tmp_path: Path) -> None:
    there = tmp_path / "node" / "tmp" / "train lmdb"
    Path(f"{there}.part").mkdir(parents=True)
    Path(f"{there}.part", "data.mdb").write_bytes(b"what a killed run left")
    stage_lmdb(host, source, str(there))
    assert (there / "data.mdb").read_bytes() == (source / "data.mdb").read_bytes()
    assert [path.name for path in there.parent.iterdir()] == ["train lmdb"]


def test_only_hosts_whose_copy_is_missing_or_of_another_size_are_staged(source: Path, tmp_path: Path) -> None:
    size = (source / "data.mdb").stat().st_size
    host = LocalHost()
    there = tmp_path / "node"
    assert find_unstaged([host], size, str(there)) == [host]
    there.mkdir()
    (there / "data.mdb").write_bytes(b"half")
    assert find_unstaged([host], size, str(there)) == [host]
    stage_lmdb(host, source, str(there))
    assert find_unstaged([host], size, str(there)) == []


def test_a_copy_that_fails_leaves_what_was_there_and_names_the_host(source: Path, tmp_path: Path) -> None:
    there = tmp_path / "node"
    there.write_text("a file in the way")
    with pytest.raises(ClusterError, match=r"localhost:.*/node/lmdb: cannot be staged: mkdir: cannot create"):
        stage_lmdb(LocalHost(), source, str(there / "lmdb"))
    assert there.read_text() == "a file in the way"


def test_a_copy_cut_short_is_not_renamed(source: Path, tmp_path: Path) -> None:
    class ShortHost(BlindHost):
        def put(self, path: Path, to: str) -> None:
            Path(to).write_bytes(path.read_bytes()[:10])

    with pytest.raises(ClusterError, match="10 of 7000 bytes arrived"):
        stage_lmdb(ShortHost(), source, str(tmp_path / "node" / "lmdb"))
    assert list((tmp_path / "node").iterdir()) == []


def test_the_first_of_many_hosts_errors_comes_out() -> None:
    def fail(host: Host) -> None:
        raise ClusterError(host.name, "is down", "mend it")

    with pytest.raises(ClusterError, match=r"^a: is down"):
        on_all([LocalHost("a"), LocalHost("b")], fail)
