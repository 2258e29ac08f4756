from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from caffe_recipes.cluster.hosts import COMMAND_S, Completed, Host, LocalHost, SshHost
from caffe_recipes.cluster.staging.plain import SLOWEST_BYTES_PER_S, find_unstaged, on_all, stage_lmdb
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


def test_a_staged_lmdb_is_whole_and_what_lay_beside_it_is_still_there(
    host: Host, source: Path, tmp_path: Path
) -> None:
    there = tmp_path / "node" / "tmp" / "train lmdb"
    there.mkdir(parents=True)
    (there / "data.mdb.part").write_bytes(b"what a killed run left")
    (there / "notes").write_text("the user's")
    Path(f"{there}.part").mkdir()
    stage_lmdb(host, source, str(there))
    assert (there / "data.mdb").read_bytes() == (source / "data.mdb").read_bytes()
    assert sorted(path.name for path in there.iterdir()) == ["data.mdb", "notes"]
    assert sorted(path.name for path in there.parent.iterdir()) == ["train lmdb", "train lmdb.part"]


def test_only_hosts_without_a_copy_are_staged(source: Path, tmp_path: Path) -> None:
    size = (source / "data.mdb").stat().st_size
    host = LocalHost()
    there = tmp_path / "node"
    assert find_unstaged([host], size, str(there)) == [host]
    there.mkdir()
    assert find_unstaged([host], size, str(there)) == [host]
    stage_lmdb(host, source, str(there))
    assert find_unstaged([host], size, str(there)) == []


def test_another_lmdb_at_the_target_is_named_and_never_replaced(
    host: Host, source: Path, tmp_path: Path
) -> None:
    there = tmp_path / "node" / "lmdb"
    there.mkdir(parents=True)
    (there / "data.mdb").write_bytes(b"the user's own")
    said = rf"{host.name}:{there}: holds another LMDB \(14 bytes, the source has 7,000\); move it away"
    with pytest.raises(ClusterError, match=said):
        find_unstaged([host], 7000, str(there))
    with pytest.raises(ClusterError, match=said):
        stage_lmdb(host, source, str(there))
    assert [path.read_bytes() for path in there.iterdir()] == [b"the user's own"]


@pytest.mark.parametrize("made", ["lmdb", "lmdb/data.mdb/lock.mdb"])
def test_what_is_no_lmdb_at_all_at_the_target_is_named_too(made: str, tmp_path: Path) -> None:
    (tmp_path / made).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / made).write_bytes(b"the user's own")
    with pytest.raises(ClusterError, match=r"localhost:.*/lmdb: holds what is no LMDB; move it away"):
        find_unstaged([LocalHost()], 7000, str(tmp_path / "lmdb"))


def test_a_copy_may_take_as_long_as_the_slowest_link_needs_for_its_size(source: Path, tmp_path: Path) -> None:
    allowed: dict[str, float] = {}

    class NotedHost(LocalHost):
        def run(self, argv: Sequence[str], timeout_s: float = COMMAND_S) -> Completed:
            allowed[argv[0]] = timeout_s
            return super().run(argv, timeout_s)

    with (source / "data.mdb").open("ab") as file:
        file.truncate(42 * 10**6)
    stage_lmdb(NotedHost(), source, str(tmp_path / "node"))
    assert allowed["cp"] == COMMAND_S + 42 * 10**6 / SLOWEST_BYTES_PER_S
    assert allowed["mv"] == COMMAND_S


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
    assert list((tmp_path / "node" / "lmdb").iterdir()) == []


def test_the_first_of_many_hosts_errors_comes_out() -> None:
    def fail(host: Host) -> None:
        raise ClusterError(host.name, "is down", "mend it")

    with pytest.raises(ClusterError, match=r"^a: is down"):
        on_all([LocalHost("a"), LocalHost("b")], fail)
