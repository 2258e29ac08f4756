"""Files on hosts where others may write beside them; a folder of mode 1777 replaces /tmp."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from caffe_recipes.cluster.commands import Completed, Running
from caffe_recipes.cluster.hosts import LocalHost
from caffe_recipes.cluster.remote import PlacedFile, drop_files, own_file_stamp, place_files
from caffe_recipes.cluster.ssh import SshHost
from caffe_recipes.errors import ClusterError, HostFailed
from tests.cluster.conftest import SshServer
from tests.stand_in_host import StandInHost, answer_call

NOBODY = 65534
USER = 4242
DATA = os.urandom(100_000)
SHA256 = hashlib.sha256(DATA).hexdigest()
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of another user")


@dataclass(frozen=True)
class RecordingHost(LocalHost):
    """This machine, without the files in `unseen`; `asked` holds the verbs of its commands."""

    unseen: tuple[str, ...] = ()
    asked: list[str] = field(default_factory=list)

    def start(self, argv: Sequence[str], limit_s: float | None = None) -> Running:
        if argv[3] == "caffe-recipes":  # not a copy
            self.asked.append(argv[5])
        return super().start(["/nowhere" if word in self.unseen else word for word in argv], limit_s)


@dataclass(frozen=True)
class WatchedHost(RecordingHost):
    """Like RecordingHost, as USER, while NOBODY makes a pipe of each file in `tmp` named too soon in an argv.

    He is always faster than the command. `pipes` are the pipes that he reads from.
    """

    tmp: Path = Path("/nowhere")
    pipes: list[int] = field(default_factory=list)

    def start(self, argv: Sequence[str], limit_s: float | None = None) -> Running:
        for name in {word.removeprefix(f"{self.tmp}/") for word in argv}:
            if name.startswith((".caffe-recipes-", "f.")) and not (self.tmp / name).exists():
                self._plant(self.tmp / name)
        as_user = ("setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups")
        seen = ["/nowhere" if word in self.unseen else word for word in argv]
        return LocalHost.start(self, [*as_user, *seen], limit_s)

    def _plant(self, path: Path) -> None:
        os.mkfifo(path)
        path.chmod(0o666)
        os.chown(path, NOBODY, NOBODY)
        self.pipes.append(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
        fcntl.fcntl(self.pipes[-1], fcntl.F_SETPIPE_SZ, 1 << 20)  # holds all of DATA

    def received(self) -> bytes:
        """Return what he has read, and remove his pipes."""
        received = b"".join(os.read(pipe, len(DATA)) for pipe in self.pipes)
        for pipe in self.pipes:
            os.close(pipe)
        for path in self.tmp.iterdir():
            if path.is_fifo():
                path.unlink()
        return received


@dataclass
class Place:
    """A Caffe root with a file to be placed, and a /tmp that everybody may write in."""

    root: Path
    tmp: Path
    kept: Path

    def place(self, name: str = "f", host: LocalHost | None = None) -> Path:
        place_files(
            [host or LocalHost("n1")], self.root, [PlacedFile(self.kept, str(self.tmp / name), SHA256)]
        )
        return self.tmp / name


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    root, tmp = tmp_path / "caffe root", tmp_path / "tmp"
    root.mkdir()
    tmp.mkdir()
    tmp.chmod(0o1777)
    (root / "kept").write_bytes(DATA)
    yield Place(root, tmp, root / "kept")
    assert not list(tmp.rglob(".caffe-recipes-*"))


@pytest.fixture
def open_place() -> Iterator[Place]:
    """Give a Place that all users can reach."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        place = Place(Path(folder), Path(folder, "tmp"), Path(folder, "kept"))
        place.root.chmod(0o755)
        place.tmp.mkdir()
        place.tmp.chmod(0o1777)
        place.kept.write_bytes(DATA)
        yield place


@pytest.mark.parametrize(
    "name", ["plain", "deep/er/file", "two words", "it's", "$(touch owned)", "-n", "*", "a\nb", "größe"]
)
def test_a_file_is_placed_whole_and_private_under_any_name(place: Place, name: str) -> None:
    placed = place.place(name)
    assert placed.read_bytes() == DATA
    assert placed.stat().st_mode & 0o7777 == 0o600
    assert not place.kept.samefile(placed)
    assert placed.stat().st_nlink == 1


def test_an_existing_correct_file_is_not_sent_again(place: Place) -> None:
    host = RecordingHost("n1")
    placed = place.place(host=host)
    before = placed.stat()
    host.asked.clear()
    place.place(host=host)
    assert host.asked == ["file-probe"]
    now = placed.stat()  # its hash was read
    assert (now.st_ino, now.st_mtime_ns, now.st_mode) == (before.st_ino, before.st_mtime_ns, before.st_mode)


def test_a_different_file_of_ours_is_replaced_atomically(place: Place) -> None:
    (place.tmp / "f").write_bytes(DATA[:-1] + b"?")
    held = (place.tmp / "f").open("rb")
    assert place.place().read_bytes() == DATA
    assert held.read() != DATA  # the one that was there was not written to
    held.close()


@pytest.mark.parametrize("seen", [False, True])
def test_a_host_that_does_not_see_the_kept_file_gets_it_put(place: Place, seen: bool) -> None:
    host = RecordingHost("n1", unseen=() if seen else (str(place.kept),))
    assert place.place(host=host).read_bytes() == DATA
    assert host.asked == (
        ["file-probe", "file-fill"] if seen else ["file-probe", "file-ready", "file-commit"]
    )


@pytest.mark.promise("an argv gives nothing away")
@needs_root
@pytest.mark.skipif(not shutil.which("setpriv"), reason="needs setpriv")
@pytest.mark.parametrize("way", ["copied there", "sent there", "put"])
def test_a_user_who_sees_our_argv_cannot_receive_a_file_through_a_pipe(open_place: Place, way: str) -> None:
    place = open_place
    unseen = () if way == "copied there" else (str(place.kept),)
    host = WatchedHost("n1", unseen=unseen, tmp=place.tmp)
    error = None
    try:
        if way == "put":
            host.put(place.kept, str(place.tmp / "f"))
        else:
            place.place(host=host)
    except ClusterError as failed:
        error = failed
    assert host.received() == b"", "another user has received the file"
    assert error is None
    assert [path.name for path in place.tmp.iterdir()] == ["f"]
    assert (place.tmp / "f").read_bytes() == DATA
    placed = (place.tmp / "f").stat()
    assert (placed.st_uid, placed.st_mode & 0o7777) == (USER, 0o600)


@pytest.mark.parametrize(
    "shell", [("dash",), ("busybox", "sh"), ("bash", "--posix")], ids=lambda words: words[0]
)
@pytest.mark.parametrize("seen", [False, True])
def test_in_any_shell_a_file_is_placed_alike(place: Place, shell: tuple[str, ...], seen: bool) -> None:
    if shutil.which(shell[0]) is None:
        pytest.skip(f"{shell[0]} is not installed")

    class ShellHost(RecordingHost):
        def start(self, argv: Sequence[str], limit_s: float | None = None) -> Running:
            return super().start([*shell, *argv[1:]], limit_s)

    host = ShellHost("n1", unseen=() if seen else (str(place.kept),))
    assert place.place(host=host).read_bytes() == DATA
    assert [path.name for path in place.tmp.iterdir()] == ["f"]


def test_a_copy_that_is_stopped_leaves_nothing(place: Place) -> None:
    started: list[Running] = []

    class Stopped(LocalHost):
        def start(self, argv: Sequence[str], limit_s: float | None = None) -> Running:
            started.append(super().start(argv, limit_s))
            return started[0]

    def stop() -> None:
        with (place.root / "slow").open("wb", buffering=0) as source:
            source.write(bytes(1 << 18))
            while (
                not any(path.stat().st_size for path in place.tmp.iterdir()) and time.monotonic() < deadline
            ):
                time.sleep(0.02)
            started[0].stop()

    deadline = time.monotonic() + 20
    os.mkfifo(place.root / "slow")
    with ThreadPoolExecutor(1) as pool:
        stopping = pool.submit(stop)
        with pytest.raises(ClusterError):
            Stopped("n1").put(place.root / "slow", str(place.tmp / "f"))
        stopping.result()
    while list(place.tmp.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert list(place.tmp.iterdir()) == []


def test_a_file_is_placed_the_same_way_over_ssh(place: Place, ssh_server: SshServer, tmp_path: Path) -> None:
    class BlindHost(SshHost):
        def start(self, argv: Sequence[str], limit_s: float | None = None) -> Running:
            return super().start(["/nowhere" if word == str(place.kept) else word for word in argv], limit_s)

    ssh_server.greeting = b"Welcome\n"
    for name, host in (
        ("seen", SshHost("node1", tmp_path / "ssh")),
        ("put", BlindHost("node1", tmp_path / "ssh")),
    ):
        to = str(place.tmp / name)
        place_files([host], place.root, [PlacedFile(place.kept, to, SHA256)])
        assert Path(to).read_bytes() == DATA
        assert own_file_stamp(host, to, place.root) == own_file_stamp(LocalHost(), to, place.root)
        host.close()


def test_the_remains_of_a_killed_copy_are_removed_and_those_of_others_kept(place: Place) -> None:
    stem = f".caffe-recipes-n1-{hashlib.sha256(str(place.tmp / 'f').encode()).hexdigest()[:12]}-"
    (place.tmp / f"{stem}0badf00d").write_bytes(b"half")
    other = place.tmp / stem.replace("n1", "n2")
    other.write_bytes(b"of another host that sees this folder")
    place.place()
    assert sorted(path.name for path in place.tmp.iterdir()) == sorted([other.name, "f"])
    other.unlink()


@pytest.mark.promise("what changed in transit is not used")
def test_a_file_that_changed_in_transit_is_not_placed(place: Place) -> None:
    place.kept.write_bytes(b"changed since")
    for unseen in ((), (str(place.kept),)):
        with pytest.raises(
            ClusterError, match=r"n1:.*/f: the digest of the copy differs from that of .*kept"
        ):
            place.place(host=RecordingHost("n1", unseen=unseen))
    assert list(place.tmp.iterdir()) == []


def test_a_lack_of_space_is_reported_before_anything_is_written(place: Place) -> None:
    host = StandInHost("n2", answer=lambda argv, _: answer_call(argv, "absent 99999 0"))
    with pytest.raises(ClusterError, match="n2:/tmp/a: not enough space: 99,999 bytes free, 102,400 needed"):
        place_files([host], place.root, [PlacedFile(place.kept, "/tmp/a/f", SHA256)])
    assert [argv[5] for argv, _ in host.asked] == ["file-probe"]


def test_a_disk_that_fills_up_during_the_copy_is_named_and_left_clean(place: Place) -> None:
    @dataclass
    class FullHost(StandInHost):
        def put(self, path: Path, to: str) -> None:
            assert to == "/tmp/a/.caffe-recipes-n2-0123"
            raise HostFailed(self.name, "cannot be copied: No space left on device", "check it", to)

    def answer(argv: tuple[str, ...], _: bytes) -> Completed:
        is_ready = argv[5] == "file-ready"
        return answer_call(argv, "ready .caffe-recipes-n2-0123" if is_ready else "absent 999999 0")

    host = FullHost("n2", answer)
    with pytest.raises(ClusterError, match=r"^n2:/tmp/a/f: cannot be copied: No space left on device; check"):
        place_files([host], place.root, [PlacedFile(place.kept, "/tmp/a/f", SHA256)])
    assert [argv[5] for argv, _ in host.asked] == ["file-probe", "file-ready", "file-abandon"]


@pytest.mark.promise("an invalid answer is never trust")
@pytest.mark.parametrize(
    "answers",
    [
        {"probe": "absent x 1"},
        {"probe": "absent 9"},
        {"probe": "absent 9 yes"},
        {"probe": ""},
        {"probe": "weird"},
        {"fill": "done"},
        {"fill": "differs", "ready": "ready"},
        {"fill": "differs", "ready": "ready ../../root/.bashrc"},
        {"fill": "differs", "ready": "ready .caffe-recipes-1", "commit": "ok"},
    ],
)
def test_an_answer_about_a_file_that_is_not_valid_is_an_error_of_the_host(
    place: Place, answers: dict[str, str]
) -> None:
    def answer(argv: tuple[str, ...], _: bytes) -> Completed:
        return answer_call(
            argv, {"probe": "absent 999999 1", **answers}.get(argv[5].removeprefix("file-"), "?")
        )

    host, asked = StandInHost("n2", answer), list(answers)[-1]
    with pytest.raises(HostFailed, match=f"^n2:/tmp/a/f: cannot parse the answer to `file-{asked}`: "):
        place_files([host], place.root, [PlacedFile(place.kept, "/tmp/a/f", SHA256)])


@pytest.mark.parametrize("record", ["", "present", "present x", "there", "absent 7"])
def test_a_stamp_that_is_not_valid_is_an_error_of_the_host(place: Place, record: str) -> None:
    host = StandInHost("n2", lambda argv, _: answer_call(argv, record))
    with pytest.raises(HostFailed, match=r"^n2:/tmp/a/f: cannot parse the answer to `file-look`: "):
        own_file_stamp(host, "/tmp/a/f", place.root)


def test_all_hosts_are_served_but_the_one_that_fails_is_named(place: Place) -> None:
    lost = StandInHost("n2", fault=HostFailed("n2", "is gone", "wait"))
    with pytest.raises(ClusterError, match="n2: is gone; wait"):
        place_files(
            [LocalHost("n1"), lost], place.root, [PlacedFile(place.kept, str(place.tmp / "f"), SHA256)]
        )
    assert (place.tmp / "f").read_bytes() == DATA


def test_in_a_folder_that_all_hosts_share_one_writes_and_the_others_find(place: Place) -> None:
    hosts = [RecordingHost(f"n{number}") for number in range(4)]
    file = PlacedFile(place.kept, str(place.root / "snapshots/f"), SHA256)
    place_files([*hosts, hosts[0]], place.root, [file])
    assert [host.asked for host in hosts] == [
        ["file-probe", "file-fill"],
        ["file-probe"],
        ["file-probe"],
        ["file-probe"],
    ]


def another_users_file(path: Path) -> None:
    path.write_bytes(DATA)
    os.chown(path, NOBODY, NOBODY)


def link_to_another_users_file(path: Path) -> None:
    another_users_file(path.with_name("theirs"))
    path.symlink_to(path.with_name("theirs"))


def another_users_link_to_ours(path: Path) -> None:
    path.with_name("ours").write_bytes(DATA)
    path.symlink_to(path.with_name("ours"))
    os.chown(path, NOBODY, NOBODY, follow_symlinks=False)


def hard_link_to_another_users_file(path: Path) -> None:
    another_users_file(path.with_name("theirs"))
    path.hardlink_to(path.with_name("theirs"))


ATTACKS: dict[str, tuple[Callable[[Path], None], str]] = {
    "a file": (another_users_file, r"belongs to user nobody \(65534\)"),
    "a link to a file": (link_to_another_users_file, r"is a symbolic link owned by user root \(0\)"),
    "a link to ours": (another_users_link_to_ours, r"is a symbolic link owned by user nobody \(65534\)"),
    "a dangling link": (
        lambda path: path.symlink_to("/nowhere"),
        r"is a symbolic link owned by user root \(0\)",
    ),
    "a hard link": (hard_link_to_another_users_file, r"belongs to user nobody \(65534\)"),
    "a folder": (lambda path: path.mkdir(), "is not a file"),
    "a pipe": (os.mkfifo, "is not a file"),
}


@needs_root
@pytest.mark.parametrize("attack", ATTACKS)
def test_files_made_by_somebody_else_are_named_and_kept(place: Place, attack: str) -> None:
    make, what = ATTACKS[attack]
    target = place.tmp / "f"
    make(target)
    before = target.lstat()
    acts: list[Callable[[], object]] = [
        lambda: own_file_stamp(LocalHost("n1"), str(target), place.root),
        lambda: place.place(),
        lambda: place.place(host=RecordingHost("n1", unseen=(str(place.kept),))),
    ]
    for act in acts:
        with pytest.raises(ClusterError, match=rf"n1:{target}: {what}; remove it, or snapshot to"):
            act()
    drop_files([LocalHost("n1")], place.root, [(str(target), SHA256)])
    now = target.lstat()
    assert (now.st_ino, now.st_ctime_ns) == (before.st_ino, before.st_ctime_ns)


@pytest.mark.promise("snapshots and staged copies are ours alone")
@needs_root
@pytest.mark.parametrize("kind", ["folder", "link"])
def test_no_file_is_placed_in_a_folder_that_another_user_can_replace(place: Place, kind: str) -> None:
    theirs = place.tmp / "theirs"
    if kind == "folder":
        theirs.mkdir()
    else:
        theirs.symlink_to(place.root)
    os.chown(theirs, NOBODY, NOBODY, follow_symlinks=False)
    with pytest.raises(
        ClusterError,
        match=rf"is under {theirs}, which belongs to user nobody \(65534\), who can change its contents",
    ):
        place.place("theirs/f")
    assert list(place.root.iterdir()) == [place.kept]


def test_nothing_is_put_where_anybody_can_replace_it(place: Place) -> None:
    place.tmp.chmod(0o777)
    with pytest.raises(ClusterError, match=f"n1:.*: is under {place.tmp}, which can be changed by anybody"):
        place.place()


@pytest.mark.promise("snapshots and staged copies are ours alone")
def test_a_file_of_ours_that_anybody_can_change_is_not_used(place: Place) -> None:
    target = place.root.parent / "theirs.caffemodel"
    target.write_bytes(DATA)
    target.chmod(0o664)
    assert own_file_stamp(LocalHost("n1"), str(target), place.root)
    target.chmod(0o666)
    with pytest.raises(ClusterError, match=rf"n1:{target}: can be changed by anybody; remove it"):
        own_file_stamp(LocalHost("n1"), str(target), place.root)


@needs_root
def test_folders_of_a_project_may_be_another_users_where_only_he_could_put_them(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    os.chown(project, NOBODY, NOBODY)
    (project / "root").mkdir()
    (project / "root/kept").write_bytes(DATA)
    os.chown(project / "root", NOBODY, NOBODY)
    place_files(
        [LocalHost()],
        project / "root",
        [PlacedFile(project / "root/kept", str(project / "root/tmp/f"), SHA256)],
    )
    assert (project / "root/tmp/f").read_bytes() == DATA


def test_only_unchanged_placed_files_are_removed(place: Place) -> None:
    same, changed = place.place("same"), place.place("changed")
    changed.write_bytes(b"since")
    gone = (str(place.tmp / "gone"), SHA256)
    drop_files([LocalHost()], place.root, [gone, (str(changed), SHA256), (str(same), SHA256)])
    assert list(place.tmp.iterdir()) == [changed]
    drop_files([StandInHost(fault=HostFailed("n1", "is gone"))], place.root, [gone])
