"""Files change in one step: all of them or none, where links lead, with the mode that they have."""

from __future__ import annotations

import grp
import os
import pwd
import select
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from caffe_recipes.files import (
    check_replaceable,
    lock,
    make_own_folder,
    make_parents,
    name_beside,
    private_cache,
    read_trusted,
    release,
    render_unified,
    reserve,
    wait_until_read,
    write_whole,
)
from caffe_recipes.trust import UntrustedPathError, check_write, is_changed_by_group, trusting

STRANGER = 54321
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can play another user")


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """Make a folder as /tmp is, and the user's own file beside it, which an attacker is after."""
    (tmp_path / "profile").write_text("mine")
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp").chmod(0o1777)
    return tmp_path / "tmp"


def plant(link: Path, to: Path, owner: int = STRANGER) -> Path:
    link.symlink_to(to)
    os.chown(link, owner, owner, follow_symlinks=False)
    return link


def give_access(folder: Path, user: int) -> None:
    """Let a user write in a folder by an access control list; skip the test where these are unsupported."""
    entries = ((1, 7, -1), (2, 7, user), (4, 0, -1), (0x10, 7, -1), (0x20, 0, -1))
    rights = b"".join(struct.pack("<HHI", *entry[:2], entry[2] & 0xFFFFFFFF) for entry in entries)
    try:
        os.setxattr(folder, "system.posix_acl_access", struct.pack("<I", 2) + rights)
    except OSError:
        pytest.skip("this file system has no access control lists")


def test_files_are_written_or_replaced(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    write_whole({tmp_path / "old": b"new", tmp_path / "other": b"1"}, is_synced=True)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"old": b"new", "other": b"1"}


def test_if_one_file_cannot_be_written_none_is_and_it_is_named(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    with pytest.raises(FileNotFoundError) as caught:
        write_whole({tmp_path / "old": b"new", tmp_path / "none" / "x": b"1"})
    assert caught.value.filename == str(tmp_path / "none" / "x")
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    assert (tmp_path / "old").read_text() == "old"


def test_a_folder_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError) as caught:
        write_whole({tmp_path / "folder": b"new"})
    assert caught.value.filename == str(tmp_path / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_pipe_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for name in ("pipe", "link"):
        for write in (lambda path: write_whole({path: b"new"}), check_replaceable):
            with pytest.raises(OSError, match="Is a device, pipe or socket, not a file") as caught:
                write(tmp_path / name)
            assert caught.value.filename == str(tmp_path / name)
    assert (tmp_path / "pipe").is_fifo()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "pipe"]


def test_unwritable_files_are_found_before_writing(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    for name in ("old", "new"):
        check_replaceable(tmp_path / name)
    with pytest.raises(IsADirectoryError):
        check_replaceable(tmp_path)
    with pytest.raises(FileNotFoundError):
        check_replaceable(tmp_path / "none" / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anything")
def test_an_unwritable_folder_is_found_before_writing(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(PermissionError):
        check_replaceable(tmp_path / "new")
    tmp_path.chmod(0o700)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anything")
def test_a_file_that_may_not_be_written_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("old")
    (tmp_path / "kept").chmod(0o444)
    with pytest.raises(PermissionError):
        write_whole({tmp_path / "kept": b"new"})
    assert (tmp_path / "kept").read_text() == "old"


def test_a_link_stays_one_and_what_it_leads_to_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "file").write_text("old")
    (tmp_path / "far" / "file").chmod(0o640)
    (tmp_path / "link").symlink_to("far/file")
    write_whole({tmp_path / "link": b"new"})
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "far" / "file").read_text() == "new"
    assert (tmp_path / "far" / "file").stat().st_mode & 0o777 == 0o640


def test_a_script_may_be_run_by_whoever_may_read_it(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("old")
    script.chmod(0o640)
    write_whole({script: b"new"}, executable={script})
    assert script.stat().st_mode & 0o777 == 0o750


def test_the_temporary_file_is_hidden_in_the_same_folder_and_unpredictable() -> None:
    beside = name_beside(Path("a/b"))
    assert beside.parent == Path("a")
    assert beside.name.startswith(".b.")
    assert len({name_beside(Path("a/b")) for _ in range(100)}) == 100
    assert not any(name_beside(Path("b")).name.endswith(str(os.getpid())) for _ in range(10))


@as_root
@pytest.mark.parametrize("write", [lambda path: write_whole({path: b"theirs"}), check_replaceable])
def test_a_link_that_another_user_planted_is_not_written_through(
    shared: Path, write: Callable[[Path], None]
) -> None:
    planted = plant(shared / "run_iter_6.caffemodel", shared.parent / "profile")
    with pytest.raises(PermissionError) as caught:
        write(planted)
    what = f"{planted} is a symbolic link of user {STRANGER}, and other users can replace it"
    assert caught.value.filename == str(planted)
    assert caught.value.strerror == f"{what}; ask its owner to remove it, or choose another folder"
    assert (shared.parent / "profile").read_text() == "mine"
    assert list(shared.iterdir()) == [planted]


@as_root
def test_a_planted_link_to_nothing_makes_no_file(shared: Path) -> None:
    planted = plant(shared / "a", shared.parent / "new")
    with pytest.raises(PermissionError):
        write_whole({planted: b"theirs"})
    assert not (shared.parent / "new").exists()


@as_root
def test_a_folder_is_not_reached_through_a_planted_link(shared: Path) -> None:
    (shared.parent / "home").mkdir()
    planted = plant(shared / "out", shared.parent / "home")
    with pytest.raises(PermissionError, match="is a symbolic link of user"):
        write_whole({planted / "profile": b"theirs"})
    for make, name in ((make_own_folder, "a"), (make_own_folder, "new/a"), (make_parents, "new/a")):
        with pytest.raises(PermissionError, match="is a symbolic link of user"):
            make(planted / name)
    assert list((shared.parent / "home").iterdir()) == []


@as_root
def test_the_owner_of_a_folder_may_lead_on_by_a_link_but_no_file_of_his_is_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "theirs").mkdir()
    os.chown(tmp_path / "theirs", STRANGER, STRANGER)
    plant(tmp_path / "theirs" / "runs", tmp_path / "disk")
    write_whole({tmp_path / "theirs" / "runs" / "file": b"new"})
    assert (tmp_path / "disk" / "file").read_bytes() == b"new"
    with pytest.raises(PermissionError):
        write_whole({plant(tmp_path / "theirs" / "file", tmp_path / "disk" / "file"): b"other"})
    assert (tmp_path / "disk" / "file").read_bytes() == b"new"


def test_an_own_link_is_followed_where_only_its_owner_can_exchange_it(shared: Path) -> None:
    (shared / "link").symlink_to("../profile")
    write_whole({shared / "link": b"new"})
    assert (shared.parent / "profile").read_bytes() == b"new"
    shared.chmod(0o777)
    with pytest.raises(PermissionError, match="other users can replace it"):
        write_whole({shared / "link": b"theirs"})
    assert (shared.parent / "profile").read_bytes() == b"new"


def test_within_a_shared_folder_one_where_anybody_can_exchange_files_is_refused(shared: Path) -> None:
    (shared / "open").mkdir()
    (shared / "open").chmod(0o777)
    with pytest.raises(PermissionError, match="anybody can replace files in its folder"):
        write_whole({shared / "open" / "file": b""})
    assert list((shared / "open").iterdir()) == []


@as_root
@pytest.mark.parametrize("mode", [0o1777, 0o755])
def test_no_file_is_put_where_the_owner_of_a_shared_folder_can_exchange_it(shared: Path, mode: int) -> None:
    theirs = shared / "ilsvrc12"
    (theirs / "mine").mkdir(parents=True)
    theirs.chmod(mode)
    os.chown(theirs, STRANGER, STRANGER)
    writes = (lambda path: write_whole({path: b"new"}), check_replaceable, make_own_folder)
    why = f"ilsvrc12 belongs to user {STRANGER}, who can replace files in it"
    for write in writes:
        for path in (theirs / "new", theirs / "mine" / "new"):
            with pytest.raises(PermissionError, match=why) as caught:
                write(path)
            assert caught.value.filename == str(path)
    assert [path.name for path in theirs.rglob("*")] == ["mine"]


@as_root
def test_the_owner_of_a_folder_that_anybody_can_write_to_is_not_trusted(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    os.chown(tmp_path, STRANGER, STRANGER)
    with pytest.raises(PermissionError, match=f"belongs to user {STRANGER}"):
        write_whole({tmp_path / "file": b"new"})


@pytest.mark.parametrize("mode", [0o755, 0o775])
@as_root
def test_a_folder_of_a_colleague_outside_of_shared_folders_is_used(tmp_path: Path, mode: int) -> None:
    (tmp_path / "project" / "mine").mkdir(parents=True)
    (tmp_path / "project").chmod(mode)
    os.chown(tmp_path / "project", STRANGER, STRANGER)
    write_whole({tmp_path / "project" / "mine" / "file": b"new"})
    make_own_folder(tmp_path / "project" / "mine" / "lmdb")


@as_root
@pytest.mark.parametrize("user", [0, 1234])
def test_a_colleague_is_trusted_below_a_root_owned_folder_in_a_shared_folder(
    shared: Path, monkeypatch: pytest.MonkeyPatch, user: int
) -> None:
    """As in `node.sh`: tests/cluster/sh/test_node.py has the same folders."""
    for name, owner in {"users": 0, "users/bob": STRANGER, "users/team": 0, "eve": STRANGER}.items():
        (shared / name).mkdir()
        os.chown(shared / name, owner, STRANGER)
    (shared / "users/team").chmod(0o775)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    for path in ("users", "users/bob", "users/team", "users/../users/bob"):
        check_write(shared / path / "file")
    for path in ("eve", "users/../eve", "users/bob/../../eve"):
        with pytest.raises(UntrustedPathError, match=f"belongs to user {STRANGER}"):
            check_write(shared / path / "file")
    (shared / "users").chmod(0o775)  # its group is not the user's own
    with pytest.raises(UntrustedPathError, match="a group can replace files in its folder"):
        check_write(shared / "users/bob/file")


@as_root
def test_in_a_container_that_does_not_map_root_its_shared_folder_is_used(shared: Path) -> None:
    """There /tmp seems to belong to nobody, as does what any other user made in it."""
    (shared / "theirs").mkdir()
    for folder in (shared, shared / "theirs"):
        os.chown(folder, STRANGER, STRANGER)
        folder.chmod(0o1777)
    program = (
        "import os, sys\nfrom pathlib import Path\nfrom caffe_recipes.files import write_whole\n"
        "for name in ('file', 'theirs/file'):\n"
        "    try: write_whole({Path(sys.argv[1], name): b'new'})\n"
        "    except PermissionError as error: print(error.strerror)\n"
    )
    words = ["unshare", "--user", "--map-user=1000", sys.executable, "-c", program, str(shared)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no user namespace: {done.stderr.strip()[-100:]}")
    assert f"{shared}/theirs belongs to user" in done.stdout
    assert [path.name for path in sorted(shared.rglob("*"))] == ["file", "theirs"]


@as_root
@pytest.mark.parametrize("owner", [0, STRANGER])
def test_a_group_may_write_where_only_it_has_files_and_not_among_everybodys(
    tmp_path: Path, shared: Path, owner: int
) -> None:
    for folder in (tmp_path / "project", shared / "project"):
        folder.mkdir()
        os.chown(folder, 0, owner)
        folder.chmod(0o775)
        assert is_changed_by_group(folder) == (owner != 0)
    write_whole({tmp_path / "project" / "file": b"new"})
    for mode in (0o775, 0o1775):  # even if it cannot replace a file of ours, it could own the folder of one
        (shared / "project").chmod(mode)
        if owner == 0:  # root's own group
            write_whole({shared / "project" / "file": b"new"})
        else:
            with pytest.raises(PermissionError, match="a group can replace files in its folder"):
                write_whole({shared / "project" / "file": b"new"})


def test_a_group_of_the_user_s_name_with_other_members_is_not_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own").chmod(0o775)
    own = pwd.getpwuid(os.geteuid())
    os.chown(tmp_path / "own", -1, own.pw_gid)
    for members, is_shared in (([], False), ([own.pw_name], False), ([own.pw_name, "colleague"], True)):
        group = grp.struct_group((own.pw_name, "x", own.pw_gid, members))
        monkeypatch.setattr(grp, "getgrgid", lambda number, group=group: group)
        assert is_changed_by_group(tmp_path / "own") == is_shared


def test_users_in_an_access_control_list_count_like_a_group(tmp_path: Path, shared: Path) -> None:
    for folder in (tmp_path / "own", shared / "own"):
        folder.mkdir(mode=0o700)
        assert not is_changed_by_group(folder)
        give_access(folder, STRANGER)
        assert is_changed_by_group(folder)
    with pytest.raises(PermissionError, match="a group can replace files in its folder"):
        write_whole({shared / "own" / "file": b""})
    with pytest.raises(PermissionError, match="other users can write to it"):
        make_own_folder(shared / "own")
    with pytest.raises(PermissionError):
        private_cache(tmp_path / "own")


def test_a_loop_of_links_ends(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="Too many levels of symbolic links") as caught:
        write_whole({tmp_path / "a": b""})
    assert caught.value.filename == str(tmp_path / "a")


def test_two_dots_and_relative_links_lead_where_the_kernel_leads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "far" / "near").mkdir(parents=True)
    (tmp_path / "link").symlink_to("far/near/")
    monkeypatch.chdir(tmp_path)
    for path in ("link/../one", "./link/two", "link/../../three", "far/./near//four"):
        write_whole({Path(path): b"1"})
        assert Path(path).read_bytes() == b"1"
    assert sorted(path.name for path in (tmp_path / "far").iterdir()) == ["near", "one"]


@as_root
def test_a_planted_file_does_not_open_ours_by_its_mode(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("theirs")
    (tmp_path / "file").chmod(0o666)
    os.chown(tmp_path / "file", STRANGER, STRANGER)
    umask = os.umask(0o077)
    try:
        write_whole({tmp_path / "file": b"new"})
    finally:
        os.umask(umask)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600


@as_root
def test_no_lmdb_is_built_in_a_folder_that_another_user_made(shared: Path) -> None:
    made = shared / ".lmdb.partial"
    make_own_folder(made)
    make_own_folder(made)  # to resume there
    made.chmod(0o777)
    with pytest.raises(PermissionError, match="other users can write to it"):
        make_own_folder(made)
    made.chmod(0o755)
    os.chown(made, STRANGER, STRANGER)
    with pytest.raises(PermissionError, match=f"it belongs to user {STRANGER}"):
        make_own_folder(made)
    made.rmdir()
    with pytest.raises(NotADirectoryError):
        make_own_folder(plant(made, shared.parent))


def test_a_diff_marks_missing_files_and_missing_line_feeds() -> None:
    assert render_unified("n", None, "a").startswith(
        "--- /dev/null\n+++ b/n\n@@ -0,0 +1 @@\n+a\n\\ No newline"
    )
    assert render_unified("n", "a\x0cb\n", "a\x0cb\n") == ""


def test_a_lock_has_one_holder_and_is_free_afterwards(tmp_path: Path) -> None:
    busy = RuntimeError("busy")
    with lock(tmp_path / "lock", busy):
        with pytest.raises(RuntimeError, match="busy"), lock(tmp_path / "lock", busy):
            pass
        assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o600
    with lock(tmp_path / "lock", busy):
        pass


def test_a_lock_is_not_opened_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "other")

    with pytest.raises(OSError, match="symbolic links"), lock(tmp_path / "lock", RuntimeError()):
        pass

    assert not (tmp_path / "other").exists()


@as_root
def test_a_lock_of_another_user_is_refused_where_its_owner_could_hold_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lock").touch()
    os.chown(tmp_path / "lock", STRANGER, STRANGER)
    monkeypatch.setattr(os, "geteuid", lambda: 1)

    with pytest.raises(PermissionError, match="another user"), lock(tmp_path / "lock", RuntimeError()):
        pass


@pytest.mark.parametrize("make", [os.pipe, lambda: tuple(end.detach() for end in socket.socketpair())])
def test_writing_to_a_pipe_waits_until_it_is_read(
    make: Callable[[], tuple[int, int]],
) -> None:
    out, into = make()
    os.write(into, b"why" * 1000)
    left: list[int] = []

    def wait() -> None:
        wait_until_read(into)
        left.append(len(os.read(out, 3000)) if select.select([out], [], [], 0)[0] else 0)

    waiting = threading.Thread(target=wait)
    waiting.start()
    waiting.join(0.05)  # one that does not wait has read it all by now
    read = os.read(out, 3000) if waiting.is_alive() else b""
    waiting.join()
    assert (read, left) == (b"why" * 1000, [0])
    os.close(out)
    os.close(into)


def test_a_file_and_a_pipe_without_a_reader_are_not_waited_for(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w+") as file:
        file.write("why")
        file.seek(0)
        wait_until_read(file.fileno())
    out, into = os.pipe()
    os.write(into, b"why")
    os.close(out)
    before = time.monotonic()
    wait_until_read(into, 3600)
    assert time.monotonic() - before < 3600
    os.close(into)


def test_space_is_reserved_after_a_file_and_released(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"line\n")
    assert not reserve(log, 1 << 20)
    if log.stat().st_blocks * 512 >= 1 << 20:  # not every file system reserves
        release(log)
        assert log.stat().st_blocks * 512 < 1 << 20
    assert log.read_bytes() == b"line\n"
    assert not reserve(tmp_path / "none", 1 << 20)


def test_missing_parents_are_created_and_a_file_among_them_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    make_parents(Path("a/b/c"))
    make_parents(Path("link/b/c"))
    assert [str(path) for path in sorted(Path().rglob("*"))] == ["a", "a/b", "link", "real", "real/b"]
    Path("file").touch()
    with pytest.raises(NotADirectoryError):
        make_parents(Path("file/b/c"))


@as_root
def test_what_is_run_is_read_where_only_trusted_users_could_have_put_it(
    tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `check_read` in `node.sh` decides."""
    for folder, owner in {"tmp/users": 0, "tmp/users/bob": STRANGER, "project": STRANGER}.items():
        (tmp_path / folder).mkdir()
        os.chown(tmp_path / folder, owner, owner)
        (tmp_path / folder / "theirs").write_bytes(b"recipe")
        os.chown(tmp_path / folder / "theirs", STRANGER, STRANGER)
    (shared / "mine").write_bytes(b"recipe")
    (shared / "link").symlink_to("users/bob/../bob/theirs")
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    for path in ("project/theirs", "tmp/users/theirs", "tmp/users/bob/theirs", "tmp/mine", "tmp/link"):
        assert read_trusted(tmp_path / path, 100) == b"recipe"


@as_root
def test_what_is_run_is_not_read_where_another_user_could_have_put_it(tmp_path: Path, shared: Path) -> None:
    for folder, owner in {"own": 0, "eve": STRANGER}.items():
        (shared / folder).mkdir()
        (shared / folder / "file").write_bytes(b"recipe")
        for path in (shared / folder, shared / folder / "file"):
            os.chown(path, owner if path.name == folder else STRANGER, owner)
    plant(shared / "link", tmp_path / "profile")
    os.mkfifo(shared / "pipe")
    os.chown(shared / "pipe", STRANGER, STRANGER)
    (shared / "open").touch()
    (shared / "open").chmod(0o666)
    (tmp_path / "free").mkdir()
    (tmp_path / "free/file").touch()
    (tmp_path / "free").chmod(0o777)
    for name, why in {
        "tmp/own/file": f"it belongs to user {STRANGER}",
        "tmp/eve/file": f"its folder {shared}/eve belongs to user {STRANGER}",
        "tmp/link": f"is a symbolic link of user {STRANGER}",
        "tmp/pipe": f"it belongs to user {STRANGER}",
        "tmp/open": "it can be changed by anybody",
        "free/file": f"its folder {tmp_path}/free can be changed by anybody",
    }.items():
        with pytest.raises(UntrustedPathError, match=why):
            read_trusted(tmp_path / name, 100)
    with trusting((STRANGER,)):
        assert read_trusted(shared / "eve/file", 100) == b"recipe"


def test_what_is_run_is_read_from_an_own_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").write_bytes(b"named"))
    writer.start()
    assert read_trusted(tmp_path / "pipe", 100) == b"named"
    writer.join()
    reader, end = os.pipe()
    (tmp_path / "link").symlink_to(f"/dev/fd/{reader}")
    for path in (Path(f"/dev/fd/{reader}"), tmp_path / "link"):
        os.write(end, b"unnamed")
        assert read_trusted(path, 7) == b"unnamed"
    os.close(reader)
    os.close(end)


def test_what_is_run_is_read_from_a_here_document() -> None:
    with tempfile.TemporaryFile() as removed:
        removed.write(b"here")
        removed.seek(0)
        assert read_trusted(Path(f"/proc/self/fd/{removed.fileno()}"), 100) == b"here"


@as_root
def test_a_file_that_is_exchanged_while_it_is_opened_is_not_read(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shared / "theirs").write_bytes(b"theirs")
    os.chown(shared / "theirs", STRANGER, STRANGER)
    (shared / "own").write_bytes(b"own")
    original = os.open

    def exchange(path: str, *words: int, **options: Any) -> int:  # noqa: ANN401
        if path == "theirs" and (shared / "own").exists():
            (shared / "own").rename(shared / "theirs")
        return original(path, *words, **options)

    monkeypatch.setattr(os, "open", exchange)
    with pytest.raises(UntrustedPathError, match="it was exchanged while it was opened"):
        read_trusted(shared / "theirs", 100)
