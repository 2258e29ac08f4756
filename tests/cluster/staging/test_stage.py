from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import get_args

import pytest

from caffe_recipes.cluster.commands import COMMAND_S, Completed, Host
from caffe_recipes.cluster.staging import Way
from caffe_recipes.cluster.staging.file_sets import (
    NodeState,
    find_source,
    hash_source,
    lmdb_set,
    load_copies,
    load_digest,
    staging_lock,
)
from caffe_recipes.cluster.staging.method_choice import plan_staging
from caffe_recipes.cluster.staging.methods import StagingJob, send_to_each
from caffe_recipes.cluster.staging.relay import STAMP, digest_of
from caffe_recipes.cluster.staging.stage import Cleaned, StagedHost, clean, survey
from caffe_recipes.errors import ClusterError, DataError, InputError
from caffe_recipes.file_format import FORMAT
from tests.cluster.staging.conftest import CONTENT, LMDB, FolderHost, World, stage_lmdb

DATA = ("data.mdb",)
SENT = tuple(StagedHost(f"n{number}", "sent") for number in range(4))


@dataclass(frozen=True)
class Asked(FolderHost):
    """A host that records its commands; with `hashing` the digest is known once it has the source."""

    verbs: list[str] = field(default_factory=list)
    hashing: Future[str] | None = None

    def run(self, argv: Sequence[str], timeout_s: float = COMMAND_S) -> Completed:
        self.verbs.append(argv[5])
        done = super().run(argv, timeout_s)
        if argv[5] == "take" and self.hashing:
            self.hashing.set_result(digest_of(self.root / "shared/data.mdb"))
        return done


@dataclass(frozen=True)
class Noting(FolderHost):
    """A host that notes when it is asked to hash."""

    hashed: Path = Path()

    def run(self, argv: Sequence[str], timeout_s: float = COMMAND_S) -> Completed:
        if "digest" in argv:
            with self.hashed.open("a") as file:
                file.write(f"{self.name}\n")
        return super().run(argv, timeout_s)


def survey_second(hosts: Sequence[Host], world: World, cache: Path) -> tuple[str | None, str | None]:
    """Return the digest of the second host's copy, and the source's."""
    states, files = survey(hosts, lmdb_set(LMDB, world.source, [host.name for host in hosts]), cache)
    assert files.lmdb is not None
    return states[1].found["data.mdb"].digest, files.lmdb.digest


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def assert_whole(host: FolderHost) -> None:
    assert (host.lmdb / "data.mdb").read_bytes() == CONTENT
    assert names_in(host.lmdb) == [STAMP, "data.mdb"]


@pytest.mark.parametrize("how", [way for way in get_args(Way) if way != "sbcast"])
def test_each_way_puts_a_whole_lmdb_of_our_own_on_every_host(world: World, how: Way) -> None:
    assert stage_lmdb(world.hosts, LMDB, world.source, replace(world.env, how=how)) == SENT
    for host in world.hosts:
        assert_whole(host)
        assert (host.lmdb.stat().st_mode & 0o777, (host.lmdb / "data.mdb").stat().st_mode & 0o777) == (
            0o700,
            0o600,
        )


def test_a_node_that_copies_a_source_of_known_digest_is_asked_once_after_the_look(world: World) -> None:
    os.utime(world.source / "data.mdb", ns=(10**18, 10**18))
    assert world.env.cache is not None
    hash_source(find_source(world.source), world.env.cache)
    hosts = [Asked(host.name, root=host.root) for host in world.hosts]
    assert stage_lmdb(hosts, LMDB, world.source, replace(world.env, how="copy")) == SENT
    assert [host.verbs for host in hosts] == [["survey", "take"]] * 4


def test_nodes_copy_while_the_source_is_hashed_and_verify_when_its_digest_is_known(world: World) -> None:
    known = Future[str]()
    host = Asked("n0", root=world.hosts[0].root, hashing=known)
    state = NodeState("n0", "absent", free_bytes=2 * len(CONTENT), sees_source=True)
    files = lmdb_set(LMDB, world.source, ["n0"])
    plan = plan_staging([state], files, how="copy")
    hashing = {files.wanted["n0"][0]: known}
    assert send_to_each(StagingJob({"n0": host}, plan, "1", "here", print, hashing)) == {}
    assert host.verbs == ["take", "commit"]
    assert_whole(host)


@pytest.mark.parametrize("how", ["copy", "chain", "ssh"])
def test_a_second_run_sends_nothing_and_a_third_fills_only_what_is_missing(world: World, how: Way) -> None:
    env = replace(world.env, how=how)
    stage_lmdb(world.hosts, LMDB, world.source, env)
    before = [(host.lmdb / "data.mdb").stat() for host in world.hosts]
    messages: list[str] = []
    again = stage_lmdb(world.hosts, LMDB, world.source, env, messages.append)
    assert {placed.outcome for placed in again} == {"there"}
    assert messages == [f"{LMDB} is on 4 hosts, nothing to send"]
    subprocess.run(["rm", "-r", world.hosts[2].lmdb], check=True)
    third = stage_lmdb(world.hosts, LMDB, world.source, env)
    assert [placed.outcome for placed in third] == ["there", "there", "sent", "there"]
    assert_whole(world.hosts[2])
    after = [(host.lmdb / "data.mdb").stat() for host in world.hosts]
    assert [(a.st_ino, a.st_mtime_ns) for a in (after[0], after[1], after[3])] == [
        (b.st_ino, b.st_mtime_ns) for b in (before[0], before[1], before[3])
    ]


def test_a_copy_made_by_somebody_else_is_verified_and_kept(world: World) -> None:
    lmdb = world.hosts[1].lmdb
    lmdb.mkdir()
    (lmdb / "data.mdb").write_bytes(CONTENT)
    placed = stage_lmdb(world.hosts, LMDB, world.source, replace(world.env, how="copy"))
    assert [each.outcome for each in placed] == ["sent", "there", "sent", "sent"]
    assert names_in(lmdb) == ["data.mdb"]
    assert clean(world.hosts, LMDB, DATA, world.env.cache)[1] == Cleaned(
        "n1", "kept: it was not staged by caffe-recipes"
    )
    assert (lmdb / "data.mdb").read_bytes() == CONTENT


def test_a_copy_that_somebody_else_made_is_hashed_once_as_long_as_it_does_not_change(world: World) -> None:
    lmdb, hashed = world.hosts[1].lmdb, world.source.parent / "hashed"
    lmdb.mkdir()
    (lmdb / "data.mdb").write_bytes(CONTENT)
    hosts = [Noting(host.name, root=host.root, hashed=hashed) for host in world.hosts]
    cache = world.source.parent / "cache"
    cache.mkdir(mode=0o700)
    for _ in range(2):
        found, digest = survey_second(hosts, world, cache)
        assert found == digest is not None
    assert hashed.read_text() == "n1\n"
    with (lmdb / "data.mdb").open("r+b") as file:
        file.write(b"!")
    found, digest = survey_second(hosts, world, cache)
    assert digest is not None
    assert found not in (None, digest)
    assert hashed.read_text() == "n1\nn1\n"


@pytest.mark.promise("no data of others is used in a shared folder")
def test_cache_entries_that_others_could_have_planted_are_not_trusted(world: World) -> None:
    lmdb, cache = world.hosts[1].lmdb, world.source.parent / "cache"
    lmdb.mkdir()
    (lmdb / "data.mdb").write_bytes(CONTENT[:-1] + b"!")
    cache.mkdir(mode=0o700)
    _, digest = survey_second(world.hosts, world, cache)
    assert digest is not None
    (planted,) = (cache / "copies").iterdir()
    stamp = load_copies(LMDB, cache)["n1"].stamp
    planted.write_text(json.dumps({"format": FORMAT, "copies": {"n1": [stamp, digest]}}))
    assert survey_second(world.hosts, world, cache)[0] == digest
    cache.chmod(0o777)
    assert survey_second(world.hosts, world, cache)[0] != digest
    cache.chmod(0o700)
    invalid: tuple[dict[str, object], ...] = (
        {},
        {"copies": []},
        {"copies": {"n1": 5}},
        {"copies": {"n1": ["x"]}},
    )
    foreign = json.dumps({"format": FORMAT + 1, "copies": {"n1": [stamp, digest]}})
    for broken in ("", "[]", "\0", foreign, *(json.dumps({"format": FORMAT, **each}) for each in invalid)):
        planted.write_text(broken)
        assert load_copies(LMDB, cache) == {}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"the user's own", f"has a different LMDB (14 bytes; the source has {len(CONTENT):,})"),
        (CONTENT[:-1] + b"!", "has a different LMDB (same size as the source, but different content)"),
    ],
)
def test_another_lmdb_is_named_and_never_replaced_and_the_rest_are_staged(
    world: World, content: bytes, reason: str
) -> None:
    lmdb = world.hosts[1].lmdb
    lmdb.mkdir()
    (lmdb / "data.mdb").write_bytes(content)
    placed = stage_lmdb(world.hosts, LMDB, world.source, replace(world.env, how="chain"))
    assert placed == (SENT[0], StagedHost("n1", "failed", reason), SENT[2], SENT[3])
    assert (lmdb / "data.mdb").read_bytes() == content
    assert names_in(lmdb) == ["data.mdb"]


def test_a_staged_file_that_has_changed_since_is_found_in_spite_of_its_stamp(world: World) -> None:
    env = replace(world.env, how="copy")
    stage_lmdb(world.hosts, LMDB, world.source, env)
    data = world.hosts[0].lmdb / "data.mdb"
    with data.open("r+b") as file:
        file.write(b"!")
    placed = stage_lmdb(world.hosts, LMDB, world.source, env)
    assert placed[0].reason == "has a different LMDB (same size as the source, but different content)"
    assert clean(world.hosts, LMDB, DATA, world.env.cache)[0].outcome == (
        "kept: it has changed since caffe-recipes staged it"
    )
    assert data.exists()


def test_a_host_that_is_down_is_named_and_the_rest_are_staged(world: World) -> None:
    hosts = world.host(down=True)
    placed = stage_lmdb(hosts, LMDB, world.source, replace(world.env, how="chain"))
    assert placed == (SENT[0], StagedHost("n1", "failed", "cannot be reached by ssh"), SENT[2], SENT[3])


def test_hosts_that_do_not_see_the_source_get_it_from_one_that_does(world: World) -> None:
    blind = [FolderHost(host.name, root=host.root, blind=host.name != "n2") for host in world.hosts]
    with pytest.raises(InputError, match="staging by copy is not possible: n0 cannot read the source"):
        stage_lmdb(blind, LMDB, world.source, replace(world.env, how="copy"))
    assert stage_lmdb(blind, LMDB, world.source, replace(world.env, how="chain")) == SENT
    assert_whole(world.hosts[0])


def test_other_files_in_the_folder_survive_staging_and_cleaning(world: World) -> None:
    host = world.hosts[0]
    host.lmdb.mkdir()
    (host.lmdb / "notes").write_text("the user's")
    assert stage_lmdb([host], LMDB, world.source, replace(world.env, how="copy")) == SENT[:1]
    assert names_in(host.lmdb) == [STAMP, "data.mdb", "notes"]
    assert clean([host], LMDB, DATA, world.env.cache) == [Cleaned("n0", f"removed {len(CONTENT):,} bytes")]
    assert names_in(host.lmdb) == ["notes"]


def test_cleaning_removes_only_the_folders_that_staging_created(world: World) -> None:
    host, lmdb = world.hosts[0], "/node/a/b/lmdb"
    stage_lmdb([host], lmdb, world.source, replace(world.env, how="copy"))
    (Path(f"{host.folder}{lmdb}") / "lock.mdb").write_bytes(b"made by a reader")
    (host.folder / "node" / "a" / "mine").write_text("")
    assert clean([host], lmdb, DATA, world.env.cache) == [Cleaned("n0", f"removed {len(CONTENT):,} bytes")]
    assert names_in(host.folder / "node") == ["a"]
    assert names_in(host.folder / "node" / "a") == ["mine"]
    assert clean([host], lmdb, DATA, world.env.cache) == [Cleaned("n0", "nothing to remove")]


def test_the_remains_of_a_killed_staging_are_reused_or_cleaned(world: World) -> None:
    env = replace(world.env, how="copy")
    for host in world.hosts[:2]:
        host.lmdb.mkdir(mode=0o700)
        (host.lmdb / ".data.mdb.part-dead").write_bytes(b"half")
        (host.lmdb / f"{STAMP}.part").write_text("")
        (host.lmdb / STAMP).write_text("caffe-recipes-1 1 - - - -\n")
    assert stage_lmdb(world.hosts[:1], LMDB, world.source, env) == SENT[:1]
    assert_whole(world.hosts[0])
    clean(world.hosts[:2], LMDB, DATA, env.cache)
    assert [names_in(host.folder / "node") for host in world.hosts[:2]] == [[], []]


@pytest.mark.parametrize("lmdb", ["relative/lmdb", "/tmp/../etc", "/", "", "/a\0b"])
def test_a_path_that_means_another_folder_on_each_host_is_refused(world: World, lmdb: str) -> None:
    with pytest.raises(InputError):
        stage_lmdb(world.hosts, lmdb, world.source, world.env)


@pytest.mark.parametrize(
    "lmdb", ["/node/a 'b' \"c\"", "/node/$(touch x)`id`", "/node/-rf", "/node/a\nb", "/node/é*?"]
)
@pytest.mark.parametrize("how", ["copy", "chain"])
def test_any_character_in_a_path_is_taken_literally(world: World, lmdb: str, how: Way) -> None:
    host = world.hosts[0]
    assert stage_lmdb([host], lmdb, world.source, replace(world.env, how=how)) == SENT[:1]
    assert (Path(f"{host.folder}{lmdb}") / "data.mdb").read_bytes() == CONTENT
    assert clean([host], lmdb, DATA, world.env.cache)[0].outcome.startswith("removed ")
    assert names_in(host.folder / "node") == []


@pytest.mark.parametrize("how", ["copy", "chain"])
def test_the_source_is_hashed_once_and_again_when_it_changes(world: World, how: Way) -> None:
    os.utime(world.source / "data.mdb", ns=(10**18, 10**18))
    cache = world.env.cache
    assert cache is not None
    stage_lmdb(world.hosts[:2], LMDB, world.source, replace(world.env, how=how))
    known = load_digest(find_source(world.source), cache)
    assert known is not None
    assert known == digest_of(world.source / "data.mdb")
    os.utime(world.source / "data.mdb", ns=(10**18, 10**18 + 1))
    assert load_digest(find_source(world.source), cache) is None


def test_a_source_without_data_is_refused_before_any_host_is_touched(world: World, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data\.mdb: cannot be read: No such file"):
        stage_lmdb(world.hosts, LMDB, tmp_path / "none", world.env)
    assert [names_in(host.folder / "node") for host in world.hosts] == [[]] * 4


def test_two_stagings_to_one_path_do_not_interfere(world: World) -> None:
    assert world.env.cache is not None
    with (
        staging_lock(LMDB, world.env.cache),
        pytest.raises(ClusterError, match="is being staged by another process"),
    ):
        stage_lmdb(world.hosts, LMDB, world.source, world.env)


def test_sbcast_outside_an_allocation_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with pytest.raises(InputError, match="sbcast is not possible: not inside a Slurm allocation"):
        stage_lmdb(world.hosts, LMDB, world.source, replace(world.env, how="sbcast"))


def test_the_plan_is_reported_with_every_way_and_the_one_chosen(world: World) -> None:
    messages: list[str] = []
    stage_lmdb(world.hosts, LMDB, world.source, world.env, messages.append)
    assert [line.split()[0] for line in messages[1:5]] == ["copy", "chain", "sbcast", "ssh"]
    assert sum("<- chosen" in line for line in messages) == 1
