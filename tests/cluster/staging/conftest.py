"""Folders as hosts: each has its own /node, and all see the source."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from caffe_recipes.cluster.commands import COMMAND_S, Completed, Host
from caffe_recipes.cluster.launchers import DEFAULT_LAUNCHER
from caffe_recipes.cluster.launchers.launcher import RankLaunch
from caffe_recipes.cluster.staging.file_sets import (
    FileSet,
    SetFile,
    SourceFile,
    abandon_parts,
    ask_files,
    clean_host,
    lmdb_set,
    survey_hosts,
)
from caffe_recipes.cluster.staging.methods import ChainEnv
from caffe_recipes.cluster.staging.relay import BLOCK_BYTES
from caffe_recipes.cluster.staging.stage import StagedHost, StagingEnv, stage
from caffe_recipes.errors import HostFailed
from tests.stand_in_host import QuickHost

LMDB = "/node/train lmdb"
CONTENT = bytes(range(256)) * ((2 * BLOCK_BYTES + 100_000) // 256) + b"tail"
# Each rank is on its own host: its folder is the one that the hostfile names for its rank.
_RANK = """
import os, runpy, sys
from pathlib import Path
hosts = Path(sys.argv[2]).read_text().split()
root = Path(sys.argv[1]) / hosts[int(os.environ["PMI_RANK"])]
words = [word.replace("=/node/", f"={root}/node/") for word in sys.argv[3:]]
os.execv(words[0], words)
"""


@dataclass(frozen=True)
class FolderHost(QuickHost):
    """A host whose /node is a folder; `down` ones do not answer, `blind` ones do not see the source."""

    root: Path = Path()
    down: bool = False
    blind: bool = False

    @property
    def folder(self) -> Path:
        return self.root / self.name

    @property
    def lmdb(self) -> Path:
        return Path(f"{self.folder}{LMDB}")

    def run(self, argv: Sequence[str], timeout_s: float = COMMAND_S) -> Completed:
        if self.down:
            raise HostFailed(self.name, "cannot be reached by ssh", "")
        words = [f"{self.folder}{word}" if word.startswith("/node/") else word for word in argv]
        if self.blind:
            words = [f"/nowhere{word}" if word.endswith("/shared") else word for word in words]
        return super().run(words, timeout_s)

    def put(self, path: Path, to: str) -> None:
        super().put(path, f"{self.folder}{to}")


@dataclass(frozen=True)
class World:
    """Four hosts, a source, and the environment of a staging."""

    hosts: tuple[FolderHost, ...]
    source: Path
    env: StagingEnv

    def host(self, **changes: bool) -> tuple[FolderHost, ...]:
        """Return the hosts with the second changed."""
        first, second, *rest = self.hosts
        return (first, FolderHost(second.name, root=second.root, **changes), *rest)


@pytest.fixture
def world(tmp_path: Path) -> World:
    source = tmp_path / "shared"
    source.mkdir()
    (source / "data.mdb").write_bytes(CONTENT)
    (source / "lock.mdb").write_bytes(b"readers")
    hosts = tuple(FolderHost(f"n{number}", root=tmp_path) for number in range(4))
    for host in hosts:
        (host.folder / "node").mkdir(parents=True)
    return World(hosts, source, StagingEnv(chain=local_chain(tmp_path), cache=tmp_path / "cache"))


@dataclass(frozen=True)
class LocalLaunch(RankLaunch):
    """Ranks that are all on this machine: `start` makes the argv, of hosts, hostfile and command."""

    start: Callable[[Sequence[str], str, Sequence[str]], Sequence[str]] = lambda hosts, hostfile, words: words

    def argv(self, command: Sequence[str]) -> tuple[str, ...]:
        return tuple(self.start(self.hosts, self.hostfile, command))


def local_chain(root: Path, command: Sequence[str] = ()) -> ChainEnv:
    """Return a chain whose ranks are all on this machine, each in its host's folder."""

    def argv(hosts: Sequence[str], hostfile: str, words: Sequence[str]) -> Sequence[str]:
        mpiexec = shutil.which("mpiexec.hydra", path=Path(sys.executable).parent) or "mpiexec.hydra"
        rank = [sys.executable, "-c", _RANK, str(root), hostfile, *command, *words]
        return [mpiexec, "-n", str(len(hosts)), *rank]

    return ChainEnv(LocalLaunch(DEFAULT_LAUNCHER, start=argv), stall_s=20)


def stage_lmdb(
    hosts: Sequence[Host], lmdb: str, source: Path, env: StagingEnv, say: Callable[[str], None] = print
) -> tuple[StagedHost, ...]:
    return stage(hosts, lmdb_set(lmdb, source, [host.name for host in hosts]), env, say)


@dataclass(frozen=True)
class Probe:
    """What a host has at the path of an LMDB."""

    kind: str
    digest: str | None
    sees_source: bool
    reason: str


def lmdb_on(host: Host, lmdb: str, source: str = "/none/data.mdb", size_bytes: int = 0) -> FileSet:
    file = SetFile("data.mdb", SourceFile(Path(source), size_bytes, 0, 0))
    return FileSet(lmdb, Path(source).parent, {host.name: [file]}, Path())


def probe_node(host: Host, lmdb: str, source: str, size_bytes: int) -> Probe:
    (state,) = survey_hosts([host], lmdb_on(host, lmdb, source, size_bytes), COMMAND_S)
    found = state.found.get("data.mdb")
    return Probe(state.kind, found.digest if found else None, state.sees_source, state.reason)


def hash_node(host: Host, lmdb: str, size_bytes: int) -> str:
    files = lmdb_on(host, lmdb, size_bytes=size_bytes)
    return ask_files(host, "digest", files, files.wanted[host.name])[0][1]


def reserve_part(host: Host, lmdb: str, part: str, size_bytes: int) -> None:
    files = lmdb_on(host, lmdb)
    ask_files(host, "reserve", files, files.wanted[host.name], lambda file: [part, size_bytes])


def pull_part(
    host: Host, lmdb: str, part: str, source: str, size_bytes: int, *, room_bytes: int, digest: str | None
) -> None:
    files, words = lmdb_on(host, lmdb, source), [part, room_bytes, size_bytes, digest or "-"]
    ask_files(host, "take", files, files.wanted[host.name], lambda file: words, [str(files.source), "60"])


def commit_part(host: Host, lmdb: str, part: str, size_bytes: int, digest: str) -> None:
    files, words = lmdb_on(host, lmdb), [part, size_bytes, size_bytes, digest]
    ask_files(host, "commit", files, files.wanted[host.name], lambda file: words)


def abandon_part(host: Host, lmdb: str) -> None:
    abandon_parts(host, lmdb_on(host, lmdb))


def clean_node(host: Host, lmdb: str) -> tuple[str, str]:
    return clean_host(host, lmdb, ["data.mdb"], Path())
