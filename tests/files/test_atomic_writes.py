"""Files change in one step: all of them or none, where links lead, with the mode that they have."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from caffe_recipes.errors import InputError
from caffe_recipes.files.atomic_writes import (
    check_not_input,
    check_output,
    check_replaceable,
    make_own_folder,
    make_parents,
    name_beside,
    write_whole,
)
from caffe_recipes.files.user_cache import private_cache
from caffe_recipes.trust import is_changed_by_group
from tests.trust_cases import STRANGER, as_root, give_access, plant


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
            with pytest.raises(OSError, match="it is a device, pipe or socket, not a file") as caught:
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
    for write in (lambda path: write_whole({path: b"new"}), check_replaceable):
        with pytest.raises(OSError, match="File name too long"):  # that of the file which replaces it
            write(tmp_path / ("a" * 250))
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


@pytest.mark.promise("nothing is written through planted links")
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


@pytest.mark.promise("nothing is written through planted links")
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


@pytest.mark.promise("no file is put where others could exchange it")
def test_within_a_shared_folder_one_where_anybody_can_exchange_files_is_refused(shared: Path) -> None:
    (shared / "open").mkdir()
    (shared / "open").chmod(0o777)
    with pytest.raises(PermissionError, match="anybody can replace files in its folder"):
        write_whole({shared / "open" / "file": b""})
    assert list((shared / "open").iterdir()) == []


@pytest.mark.promise("no file is put where others could exchange it")
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


@pytest.mark.promise("no file is put where others could exchange it")
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


@pytest.mark.promise("a colleague's folder is used")
@as_root
def test_in_a_container_that_does_not_map_root_its_shared_folder_is_used(shared: Path) -> None:
    """There /tmp seems to belong to nobody, as does what any other user made in it."""
    (shared / "theirs").mkdir()
    for folder in (shared, shared / "theirs"):
        os.chown(folder, STRANGER, STRANGER)
        folder.chmod(0o1777)
    program = (
        "import os, sys\nfrom pathlib import Path\n"
        "from caffe_recipes.files.atomic_writes import write_whole\n"
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


@pytest.mark.promise("no file is put where others could exchange it")
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


@pytest.mark.promise("no file is put where others could exchange it")
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


@pytest.mark.promise("our files are open to nobody else")
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


@pytest.mark.promise("no file is put where others could exchange it")
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


def test_an_input_is_found_by_another_path(tmp_path: Path) -> None:
    (tmp_path / "one").touch()
    (tmp_path / "link").symlink_to("one")
    (tmp_path / "hard").hardlink_to(tmp_path / "one")
    for out in ("one", "link", "hard"):
        with pytest.raises(
            InputError, match=f"{out}: is an input of this command; give another file with -o"
        ):
            check_not_input(tmp_path / out, ["absent", str(tmp_path / "one")], "-o")


def test_an_output_is_checked_before_anything_is_computed(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_bytes(b"of another kind")
    (tmp_path / "in").touch()
    os.mkfifo(tmp_path / "pipe")
    check_output(tmp_path / "photo.jpg", [tmp_path / "in"], "-o")
    check_output(tmp_path / "new", [], "-o")
    for name, what in (
        ("", "is a folder; name a file in it with -o"),
        ("none/new", "the folder .*none does not exist; create it"),
        ("pipe", "cannot be written: it is a device, pipe or socket, not a file; give another file with -o"),
        ("in", "is an input of this command; give another file with -o"),
    ):
        with pytest.raises(InputError, match=f": {what}$"):
            check_output(tmp_path / name, [tmp_path / "in"], "-o")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "photo.jpg", "pipe"]


def test_what_is_not_there_or_has_no_possible_name_is_not_an_input(tmp_path: Path) -> None:
    (tmp_path / "one").touch()
    long, odd = "a" * 5000, "a\0b"
    for out in (tmp_path / "one", tmp_path / "absent", Path(long), Path(odd)):
        check_not_input(out, ["absent", long, odd, ""], "-o")


def test_a_folder_in_which_not_even_root_can_create_files_is_found_before_writing() -> None:
    with pytest.raises(OSError, match="/sys/x"):
        check_replaceable(Path("/sys/x"))


def test_a_full_disk_is_found_before_writing(tmp_path: Path) -> None:
    before, after = resource.getrlimit(resource.RLIMIT_FSIZE), 100
    resource.setrlimit(resource.RLIMIT_FSIZE, (after, before[1]))  # as on a full disk, a write fails
    try:
        with pytest.raises(OSError, match="File too large"):
            check_replaceable(tmp_path / "x")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.iterdir())
