"""A set of files: each host gets its own, verified one by one, and files of others are not touched."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from caffe_recipes.cluster.commands import COMMAND_S, Completed
from caffe_recipes.cluster.remote import NodeRefusal
from caffe_recipes.cluster.staging import Way, file_sets
from caffe_recipes.cluster.staging.file_sets import (
    FileSet,
    SetFile,
    SourceFile,
    ask_files,
    clean_host,
    staging_lock,
    stat_source,
    survey_hosts,
)
from caffe_recipes.cluster.staging.relay import digest_of
from caffe_recipes.cluster.staging.stage import Cleaned, StagedHost, StagingEnv, clean, stage
from caffe_recipes.errors import ClusterError, DataError, HostFailed, InputError
from tests.cluster.staging.conftest import FolderHost
from tests.stand_in_host import StandInHost, answer_call

FOLDER = "/node/a/my records"
NAMES = [f"train-{number:05d}-of-00004" for number in range(4)]
SENT = tuple(StagedHost(f"n{number}", "sent") for number in range(3))
THERE = tuple(StagedHost(f"n{number}", "there") for number in range(3))


@dataclass(frozen=True)
class SetHost(FolderHost):
    """A host of a certain shell; with `fails_at` the link goes when that many files are there.

    `verbs` are those that it has been asked for.
    """

    fails_at: int = 99
    shell: tuple[str, ...] = ("sh",)
    verbs: list[str] = field(default_factory=list)

    def run(self, argv: Sequence[str], timeout_s: float = COMMAND_S) -> Completed:
        self.verbs.append(argv[5])
        return super().run([*self.shell, *argv[1:]], timeout_s)

    def put(self, path: Path, to: str) -> None:
        if len(list(Path(f"{self.folder}{FOLDER}").glob("train-*"))) >= self.fails_at:
            raise HostFailed(self.name, "the link is gone", "")
        super().put(path, to)

    @property
    def records(self) -> Path:
        return Path(f"{self.folder}{FOLDER}")

    def names(self) -> list[str]:
        """Return the existing files, without our stamps."""
        found = self.records.iterdir() if self.records.exists() else ()
        return sorted(path.name for path in found if "caffe-recipes" not in path.name)


@dataclass(frozen=True)
class Place:
    """Three hosts; host k is to have file k of four and the manifest, host 0 file 3 as well."""

    hosts: tuple[SetHost, ...]
    files: FileSet
    env: StagingEnv

    def stage(
        self, how: Way | None = "copy", hosts: Sequence[SetHost] | None = None
    ) -> tuple[StagedHost, ...]:
        return stage(hosts or self.hosts, self.files, replace(self.env, how=how))

    def clean(self) -> list[Cleaned]:
        return clean(self.hosts, FOLDER, cache=self.env.cache)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    source = tmp_path / "shared"
    source.mkdir()
    files = []
    for number, name in enumerate(NAMES):
        (source / name).write_bytes(os.urandom(1000 + number))
        files.append(SetFile(name, stat_source(source / name), digest_of(source / name)))
    manifest = tmp_path / "train.manifest.json"
    manifest.write_text("{}")
    listed = SetFile(".manifest.json", stat_source(manifest), digest_of(manifest))
    hosts = tuple(SetHost(f"n{number}", root=tmp_path) for number in range(3))
    for host in hosts:
        (host.folder / "node").mkdir(parents=True)
    wanted = {"n0": [files[0], files[3], listed], "n1": [files[1], listed], "n2": [files[2], listed]}
    return Place(hosts, FileSet(FOLDER, source, wanted), StagingEnv(cache=tmp_path / "cache"))


def assert_whole(place: Place) -> None:
    for host in place.hosts:
        wanted = place.files.wanted[host.name]
        assert host.names() == sorted(file.name for file in wanted)
        for file in wanted:
            assert (host.records / file.name).read_bytes() == file.source.data.read_bytes()


@pytest.mark.parametrize("how", ["copy", "ssh"])
def test_each_host_gets_its_own_files_whole_and_a_second_time_nothing(place: Place, how: Way) -> None:
    assert place.stage(how) == SENT
    assert_whole(place)
    before = [(path, path.stat().st_ino) for host in place.hosts for path in host.records.iterdir()]
    assert place.stage(how) == THERE
    assert [(path, path.stat().st_ino) for host in place.hosts for path in host.records.iterdir()] == before
    (place.hosts[0].records / NAMES[3]).unlink()
    assert place.stage(how) == (SENT[0], *THERE[1:])
    assert_whole(place)


def test_files_and_folders_are_ours_alone(place: Place) -> None:
    place.stage()
    modes = {path.stat().st_mode & 0o777 for path in place.hosts[0].records.iterdir()}
    assert modes == {0o600}
    assert [folder.stat().st_mode & 0o777 for folder in place.hosts[0].records.parents[:1]] == [0o700]


def test_a_host_that_takes_anothers_place_gets_its_files(place: Place) -> None:
    place.stage()
    spare = SetHost("spare", root=place.hosts[0].root)
    (spare.folder / "node").mkdir(parents=True)
    wanted = {**place.files.wanted, "spare": place.files.wanted["n1"]}
    hosts = (place.hosts[0], spare, place.hosts[2])
    placed = stage(hosts, replace(place.files, wanted=wanted), place.env)
    assert placed == (THERE[0], StagedHost("spare", "sent"), THERE[2])
    assert spare.names() == place.hosts[1].names()


def test_cleaning_removes_what_was_staged_the_folders_that_were_made_and_nothing_else(place: Place) -> None:
    place.stage()
    (place.hosts[1].records / "mine").write_text("the user's")
    assert place.clean() == [
        Cleaned("n0", "removed 2,005 bytes"),
        Cleaned("n1", "removed 1,003 bytes"),
        Cleaned("n2", "removed 1,004 bytes"),
    ]
    left = [[path.name for path in (host.folder / "node").rglob("*")] for host in place.hosts]
    assert left == [[], ["a", "my records", "mine"], []]
    assert place.clean()[0] == Cleaned("n0", "nothing to remove")


def test_nothing_is_cleaned_while_one_of_the_files_is_read(place: Place) -> None:
    place.stage()
    with (place.hosts[0].records / NAMES[3]).open("rb"):
        cleaned = place.clean()[0]
    assert cleaned.failed
    assert f"in use by process {os.getpid()}" in cleaned.outcome
    assert len(place.hosts[0].names()) == 3


def test_a_file_that_has_changed_since_is_named_and_neither_replaced_nor_removed(place: Place) -> None:
    place.stage()
    file = place.hosts[0].records / NAMES[0]
    with file.open("r+b") as changed:
        changed.write(b"!!")
    spoilt = file.read_bytes()
    what = f"{NAMES[0]} is a different file (same size as the source, but different content)"
    assert place.stage() == (StagedHost("n0", "failed", what), *THERE[1:])
    assert place.clean()[0].outcome == "kept: 1 file: it has changed since caffe-recipes staged it"
    assert file.read_bytes() == spoilt
    assert place.hosts[0].names() == [NAMES[0]]


def test_a_correct_copy_made_by_somebody_else_is_verified_and_kept(place: Place) -> None:
    host = place.hosts[1]
    host.records.mkdir(parents=True)
    shutil.copy(place.files.source / NAMES[1], host.records)
    assert place.stage() == SENT
    assert_whole(place)
    place.clean()
    assert host.names() == [NAMES[1]]


def test_a_copy_that_somebody_else_made_is_hashed_once_as_long_as_it_does_not_change(place: Place) -> None:
    host = place.hosts[1]
    host.records.mkdir(parents=True)
    shutil.copy(place.files.source / NAMES[1], host.records)
    os.utime(host.records / NAMES[1], ns=(10**18, 10**18))
    for _ in range(3):
        place.stage()
    assert host.verbs.count("digest") == 1
    os.utime(host.records / NAMES[1], ns=(10**18, 10**18 + 1))
    place.stage()
    assert host.verbs.count("digest") == 2


@pytest.mark.parametrize(
    "shell", [("dash",), ("busybox", "sh"), ("bash", "--posix")], ids=lambda words: words[0]
)
def test_in_any_shell_a_set_is_staged_and_cleaned_alike(place: Place, shell: tuple[str, ...]) -> None:
    if shutil.which(shell[0]) is None:
        pytest.skip(f"{shell[0]} is not installed")
    host = replace(place.hosts[0], shell=shell)
    assert place.stage("copy", [host]) == SENT[:1]
    assert place.stage("copy", [host]) == THERE[:1]
    assert host.names() == [".manifest.json", NAMES[0], NAMES[3]]
    assert clean([host], FOLDER, cache=place.env.cache) == [Cleaned("n0", "removed 2,005 bytes")]
    assert list((host.folder / "node").iterdir()) == []


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"mine", f"{NAMES[1]} is a different file (4 bytes; the source has 1,001)"),
        (bytes(1001), f"{NAMES[1]} is a different file (same size as the source, but different content)"),
    ],
)
def test_another_file_of_that_name_is_never_replaced_and_the_rest_are_staged(
    place: Place, content: bytes, reason: str
) -> None:
    host = place.hosts[1]
    host.records.mkdir(parents=True)
    (host.records / NAMES[1]).write_bytes(content)
    assert place.stage() == (SENT[0], StagedHost("n1", "failed", reason), SENT[2])
    assert (host.records / NAMES[1]).read_bytes() == content
    assert host.names() == [NAMES[1]]


def test_a_link_in_the_place_of_a_file_is_not_written_through(place: Place, tmp_path: Path) -> None:
    host, victim = place.hosts[1], tmp_path / "victim"
    victim.write_text("precious")
    host.records.mkdir(parents=True)
    (host.records / f".{NAMES[1]}.caffe-recipes-staged").symlink_to(victim)
    assert place.stage()[1].reason == f"{NAMES[1]}: has a stamp that is not ours"
    assert victim.read_text() == "precious"


def test_a_folder_that_others_can_write_to_is_refused(place: Place) -> None:
    host = place.hosts[1]
    host.records.mkdir(parents=True)
    host.records.chmod(0o777)
    assert place.stage() == (SENT[0], StagedHost("n1", "failed", "can be changed by anybody"), SENT[2])
    assert host.names() == []


@pytest.mark.promise("what changed in transit is not used")
@pytest.mark.parametrize("how", ["copy", "ssh"])
def test_a_source_that_differs_from_its_manifest_is_never_put_in_place(place: Place, how: Way) -> None:
    (place.files.source / NAMES[2]).write_bytes(bytes(1002))
    placed = place.stage(how)
    what = f"{NAMES[2]}: the digest of the copy differs from the source's"
    assert placed == (*SENT[:2], StagedHost("n2", "failed", what))
    assert place.hosts[2].names() == []


def test_files_sent_before_the_link_broke_are_kept_and_the_rest_follows(place: Place) -> None:
    hosts = (replace(place.hosts[0], fails_at=1), *place.hosts[1:])
    assert place.stage("ssh", hosts) == (StagedHost("n0", "failed", "the link is gone"), *SENT[1:])
    first = place.hosts[0].records / NAMES[0]
    assert place.hosts[0].names() == [NAMES[0]]
    inode = first.stat().st_ino
    assert place.stage("ssh") == (SENT[0], *THERE[1:])
    assert first.stat().st_ino == inode
    assert_whole(place)


def test_the_remains_of_a_killed_staging_are_reused(place: Place) -> None:
    host = place.hosts[1]
    host.records.mkdir(parents=True)
    (host.records / f".{NAMES[1]}.part-dead").write_bytes(b"half")
    (host.records / f".{NAMES[1]}.caffe-recipes-staged").write_text("caffe-recipes-1 0 - - - -\n")
    assert place.stage() == SENT
    assert_whole(place)


def test_hosts_that_do_not_see_the_source_are_sent_to(place: Place) -> None:
    hosts = (place.hosts[0], replace(place.hosts[1], blind=True), place.hosts[2])
    with pytest.raises(InputError, match="staging by copy is not possible: n1 cannot read the source"):
        place.stage("copy", hosts)
    assert place.stage(None, hosts) == SENT
    assert_whole(place)


def test_a_host_that_is_down_is_named_and_the_rest_are_staged(place: Place) -> None:
    hosts = (place.hosts[0], replace(place.hosts[1], down=True), place.hosts[2])
    assert place.stage("copy", hosts) == (
        SENT[0],
        StagedHost("n1", "failed", "cannot be reached by ssh"),
        SENT[2],
    )


def test_too_little_room_is_found_before_anything_is_sent(place: Place) -> None:
    file = place.files.wanted["n1"][0]
    vast = replace(file, source=replace(file.source, size_bytes=10**15))
    files = replace(place.files, wanted={**place.files.wanted, "n1": [vast]})
    placed = stage(place.hosts, files, replace(place.env, how="ssh"))
    assert placed[1].reason.startswith("not enough space: ")
    assert place.hosts[1].names() == []


def test_the_plan_reports_the_total_bytes_and_the_possible_ways(place: Place) -> None:
    messages: list[str] = []
    stage(place.hosts, place.files, place.env, messages.append)
    assert messages[0] == f"4.01e-06 GB in total to {FOLDER} on 3 hosts; 0 have it"
    assert [line.split()[:2] for line in messages[1:]] == [
        ["copy", "0"],
        ["chain", "n/a"],
        ["sbcast", "n/a"],
        ["ssh", "0"],
    ]
    messages.clear()
    stage(place.hosts, place.files, place.env, messages.append)
    assert messages == [f"{FOLDER} is on 3 hosts, nothing to send"]


def test_files_that_do_not_fit_in_one_command_are_requested_in_several(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_sets, "_FILES_PER_COMMAND", 4)
    source, many = place.files.source, []
    for number in range(10):
        path = source / f"x-{number}"
        path.write_bytes(b"x")
        many.append(SetFile(path.name, stat_source(path), digest_of(path)))
    files = replace(place.files, wanted={"n0": many})
    assert stage(place.hosts[:1], files, place.env) == SENT[:1]
    assert len(place.hosts[0].names()) == 10
    assert place.clean()[0].outcome == "removed 10 bytes"


@pytest.mark.parametrize("name", ["a b", "a/b", "", "a\nb", "*"])
def test_a_name_with_shell_metacharacters_is_refused(place: Place, name: str) -> None:
    odd = replace(place.files.wanted["n1"][0], name=name)
    with pytest.raises(DataError, match="rename the files of the set"):
        replace(place.files, wanted={"n0": [odd]})


def test_two_stagings_to_one_folder_do_not_interfere(place: Place) -> None:
    assert place.env.cache is not None
    with (
        staging_lock(FOLDER, place.env.cache),
        pytest.raises(ClusterError, match="is being staged by another process"),
    ):
        place.stage()


@pytest.mark.promise("no data of others is used in a shared folder")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to somebody else")
def test_a_host_takes_no_file_of_another_user(place: Place) -> None:
    os.chown(place.files.source / NAMES[1], 65534, 65534)
    first, second, third = place.stage()
    assert (first, third) == (SENT[0], SENT[2])
    what = f"{NAMES[1]}: is used with {place.files.source}/{NAMES[1]}, which belongs to user nobody (65534)"
    assert (second.outcome, second.reason) == ("failed", f"{what}, who can change its contents")
    assert place.hosts[1].names() == []


@pytest.mark.promise("an invalid answer is never trust")
@pytest.mark.parametrize(
    ("verb", "answers"),
    [
        (
            "survey",
            ["absent", "absent x 1 7", "absent 9 1", "absent 9 yes 7", "absent -9 1 7", "absent  1 7"],
        ),
        ("survey", ["present", "present x - 7", "present 7 digest 7", "present 7 -", "there", "", "done"]),
        ("survey", [f"absent {'9' * 20} 1 7", "absent 9 1 7 9"]),
        ("digest", ["digest", "digest -", "done"]),
        ("take", ["taken", ""]),
    ],
)
def test_an_answer_about_a_file_that_is_not_valid_is_an_error_of_the_host(
    verb: str, answers: list[str]
) -> None:
    file = SetFile("data.mdb", SourceFile(Path("/s/data.mdb"), 7, 0, 0))
    files = FileSet("/tmp/a", Path("/s"), {"n1": [file]})
    left = iter(answers)
    host = StandInHost("n1", lambda argv, _: answer_call(argv, next(left), "end"))
    for _ in answers:
        message = f"^n1:/tmp/a: cannot parse the answer to `{verb}`: "
        with pytest.raises(HostFailed, match=message):
            ask_files(host, verb, files, [file])


def test_a_host_whose_answer_to_survey_is_not_valid_is_reported_as_unreachable() -> None:
    files = FileSet(
        "/tmp/a", Path("/s"), {"n1": [SetFile("train-0", SourceFile(Path("/s/train-0"), 7, 0, 0))]}
    )
    host = StandInHost("n1", lambda argv, _: answer_call(argv, "absent", "end"))
    (state,) = survey_hosts([host], files, 10)
    assert (state.kind, "cannot parse the answer to `survey`" in state.reason) == ("unreachable", True)


@pytest.mark.parametrize("answer", ["cleaned", "cleaned x", "cleaned 7 8", "kept", "gone", ""])
def test_an_answer_to_clean_that_is_not_valid_is_an_error_of_the_host(answer: str) -> None:
    host = StandInHost("n1", lambda argv, _: answer_call(argv, answer, "end"))
    with pytest.raises(HostFailed, match=r"^n1:/tmp/a: cannot parse the answer to `clean`: "):
        clean_host(host, "/tmp/a")


def test_an_lmdb_beside_the_files_is_left_alone(place: Place) -> None:
    host = place.hosts[0]
    host.records.mkdir(parents=True)
    (host.records / "data.mdb").write_bytes(b"the user's")
    (host.records / "lock.mdb").write_bytes(b"the user's")
    place.stage()
    place.clean()
    assert host.names() == ["data.mdb", "lock.mdb"]
    with pytest.raises(NodeRefusal):
        host.records.chmod(0o777)
        clean_host(host, FOLDER)
