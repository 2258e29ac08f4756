"""What `node.sh` does, compared with Python's view of the same files."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest

from caffe_recipes.cluster.commands import COMMAND_S, Completed
from caffe_recipes.cluster.hosts import LocalHost
from caffe_recipes.cluster.remote import NodeRefusal, full_program_text
from caffe_recipes.cluster.staging.file_sets import survey_hosts
from caffe_recipes.cluster.staging.relay import (
    BLOCK_BYTES,
    STAMP,
    digest_open_file,
    parse_folders_made,
    render_stamp,
)
from caffe_recipes.errors import ClusterError
from tests.cluster.staging.conftest import (
    abandon_part,
    clean_node,
    commit_part,
    hash_node,
    lmdb_on,
    probe_node,
    pull_part,
    reserve_part,
)

PART = ".data.mdb.part-1"
HOST = LocalHost("here")


@pytest.fixture
def lmdb(tmp_path: Path) -> Path:
    return tmp_path / "made" / "train lmdb"


def digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return digest_open_file(file.fileno(), path.stat().st_size)


def place(lmdb: Path, content: bytes) -> str:
    """Stage by hand; return the digest."""
    reserve_part(HOST, str(lmdb), PART, len(content))
    (lmdb / PART).write_bytes(content)
    digest = digest_of(lmdb / PART)
    commit_part(HOST, str(lmdb), PART, len(content), digest)
    return digest


def take(lmdb: Path, source: Path, digest: str | None, room_bytes: int = 0) -> None:
    size = source.stat().st_size
    pull_part(HOST, str(lmdb), PART, str(source), size, room_bytes=room_bytes or size, digest=digest)


def test_a_node_takes_the_source_and_commits_it_when_its_digest_is_known(lmdb: Path, tmp_path: Path) -> None:
    source = tmp_path / "data.mdb"
    source.write_bytes(b"records")
    take(lmdb, source, digest_of(source))
    assert sorted(path.name for path in lmdb.iterdir()) == [STAMP, "data.mdb"]
    assert (lmdb / "data.mdb").read_bytes() == b"records"
    assert probe_node(HOST, str(lmdb), "/none", 7).digest == digest_of(source)


def test_a_copy_on_a_node_gets_its_final_name_only_once_verified(lmdb: Path, tmp_path: Path) -> None:
    source = tmp_path / "data.mdb"
    source.write_bytes(b"records")
    digest = digest_of(source)
    with pytest.raises(NodeRefusal, match="digest of the copy differs"):
        take(lmdb, source, "0" * 64)
    assert sorted(path.name for path in lmdb.iterdir()) == [STAMP, PART]
    take(lmdb, source, None)  # what was left is taken over
    assert sorted(path.name for path in lmdb.iterdir()) == [STAMP, PART]
    commit_part(HOST, str(lmdb), PART, 7, digest)
    assert sorted(path.name for path in lmdb.iterdir()) == [STAMP, "data.mdb"]


def test_a_failed_copy_is_reported_with_the_error_of_the_node(lmdb: Path, tmp_path: Path) -> None:
    source = tmp_path / "data.mdb"
    source.write_bytes(b"records")
    with pytest.raises(NodeRefusal, match="not enough space: "):
        take(lmdb, source, digest_of(source), room_bytes=1 << 60)
    assert not lmdb.exists()
    with pytest.raises(NodeRefusal, match=r"cannot be copied: cp: .*none"):
        pull_part(HOST, str(lmdb), PART, "/none/data.mdb", 7, room_bytes=7, digest=digest_of(source))


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
    assert (lmdb / STAMP).read_text() == render_stamp(2, digest, status)
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
def test_a_stamp_is_trusted_only_for_the_file_that_was_verified(lmdb: Path, change: object) -> None:
    place(lmdb, b"records")
    assert callable(change)
    change(lmdb / "data.mdb")
    assert probe_node(HOST, str(lmdb), "/none", 7).digest is None
    assert clean_node(HOST, str(lmdb)) == ("kept", "it has changed since caffe-recipes staged it")


def test_files_that_a_process_reads_are_not_removed(lmdb: Path) -> None:
    place(lmdb, b"records")
    with (
        (lmdb / "data.mdb").open("rb"),
        pytest.raises(NodeRefusal, match=f"in use by process {os.getpid()}"),
    ):
        clean_node(HOST, str(lmdb))
    assert (lmdb / "data.mdb").read_bytes() == b"records"
    assert clean_node(HOST, str(lmdb)) == ("cleaned", "7")
    assert not lmdb.exists()


@pytest.mark.parametrize(
    "text", ["", "caffe-recipes-1\n", "caffe-recipes-2 1 - - - -\n", "caffe-recipes-1 x - - - -\n", "\0"]
)
def test_a_stamp_of_another_format_counts_as_absent(lmdb: Path, text: str) -> None:
    lmdb.mkdir(parents=True)
    (lmdb / STAMP).write_text(text)
    (lmdb / "data.mdb").write_bytes(b"records")
    assert parse_folders_made(text) is None
    assert probe_node(HOST, str(lmdb), "/none", 7).digest is None
    assert clean_node(HOST, str(lmdb))[0] == "kept"
    (lmdb / "data.mdb").unlink()
    place(lmdb, b"records")
    assert probe_node(HOST, str(lmdb), "/none", 7).digest is not None


@pytest.mark.promise("what changed in transit is not used")
@pytest.mark.parametrize(
    ("content", "reason"), [(b"record", "6 of 7 bytes arrived"), (b"recordS", "digest of the copy differs")]
)
def test_a_truncated_or_changed_copy_does_not_get_its_final_name(
    lmdb: Path, content: bytes, reason: str
) -> None:
    reserve_part(HOST, str(lmdb), PART, 7)
    (lmdb / PART).write_bytes(b"records")
    digest = digest_of(lmdb / PART)
    (lmdb / PART).write_bytes(content)
    with pytest.raises(NodeRefusal, match=reason):
        commit_part(HOST, str(lmdb), PART, 7, digest)
    assert not (lmdb / "data.mdb").exists()
    abandon_part(HOST, str(lmdb))
    assert not lmdb.parent.exists()


def test_a_file_that_appears_during_staging_is_not_replaced(lmdb: Path) -> None:
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


def test_a_folder_that_others_can_write_to_is_refused(lmdb: Path) -> None:
    lmdb.mkdir(parents=True)
    for folder, message in (
        (lmdb, ": can be changed"),
        (lmdb.parent, ": is under .*made, which can be changed"),
    ):
        folder.chmod(0o777)
        state = probe_node(HOST, str(lmdb), "/none", 7)
        assert state.kind == "refused"
        assert re.search(f"{message} by anybody", f": {state.reason}")
        with pytest.raises(NodeRefusal, match=message):
            reserve_part(HOST, str(lmdb), PART, 7)
        folder.chmod(0o755)
    assert list(lmdb.iterdir()) == []


@pytest.mark.parametrize("made", ["file", "data.mdb/lock.mdb"])
def test_a_path_that_is_not_an_lmdb_is_refused_and_kept(lmdb: Path, made: str) -> None:
    path = lmdb if made == "file" else lmdb / made
    path.parent.mkdir(parents=True)
    path.write_text("the user's own")
    what = "is not a folder" if made == "file" else "contains something other than an LMDB"
    assert probe_node(HOST, str(lmdb), "/none", 7).reason == what
    assert path.read_text() == "the user's own"


def test_too_little_room_leaves_nothing_behind(lmdb: Path) -> None:
    with pytest.raises(NodeRefusal, match=r"not enough space: \d+ bytes free, 1000000000000000 needed"):
        reserve_part(HOST, str(lmdb), PART, 10**15)
    assert not lmdb.parent.exists()


def test_why_a_folder_cannot_be_created_is_reported_in_a_few_words(lmdb: Path) -> None:
    with pytest.raises(NodeRefusal, match=r"cannot be created: File name too long;"):
        reserve_part(HOST, str(lmdb.with_name("x" * 300)), PART, 7)


def test_only_folders_that_staging_made_are_counted_and_removed(lmdb: Path) -> None:
    lmdb.parent.mkdir()
    reserve_part(HOST, str(lmdb / "deep"), PART, 7)
    assert parse_folders_made((lmdb / "deep" / STAMP).read_text()) == 2
    abandon_part(HOST, str(lmdb / "deep"))
    assert list(lmdb.parent.iterdir()) == []


def test_a_link_of_our_own_on_the_way_is_followed(lmdb: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    lmdb.parent.symlink_to(tmp_path / "disk")
    place(lmdb, b"records")
    assert (tmp_path / "disk" / lmdb.name / "data.mdb").read_bytes() == b"records"


def test_a_host_whose_shell_gives_no_answer_is_one_line() -> None:
    class Silent(LocalHost):
        def run(self, argv: Sequence[str], timeout_s: float = COMMAND_S) -> Completed:
            return LocalHost().run(["sh", "-c", "echo a >&2; echo b >&2; exit 127"])

    with pytest.raises(ClusterError, match=r"^gone:/a: cannot parse the answer to `clean`: 'a b'; check"):
        clean_node(Silent("gone"), "/a")


SHELLS = {"dash": ["dash"], "busybox": ["busybox", "sh"], "bash": ["bash", "--posix"]}


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest) -> list[str]:
    argv = SHELLS[request.param]
    if shutil.which(argv[0]) is None:
        pytest.skip(f"{argv[0]} is not installed")
    return argv


def call(shell: list[str], text: str, *words: str, cwd: Path) -> list[str]:
    """Call functions of `node.sh` by themselves; return the lines that they print."""
    script = resources.files("caffe_recipes.cluster").joinpath("sh/node.sh")
    # A sourced script sees our arguments: without any it only defines its functions.
    read = 'path=$1; shift; . "$0"; target=$path folder=$path; set -- "$path"; trust_owner_of .'
    argv = [*shell, "-c", f"{read}; {text}", str(script), *words]
    done = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split("\n")


def test_in_any_shell_the_whole_of_a_staging_is_the_same(
    lmdb: Path, tmp_path: Path, shell: list[str]
) -> None:
    class Host(LocalHost):
        def run(self, argv: Sequence[str], timeout_s: float = COMMAND_S) -> Completed:
            return LocalHost().run([*shell, *argv[1:]], timeout_s)

    host, source = Host("here"), tmp_path / "source" / "data.mdb"
    source.parent.mkdir()
    source.write_bytes(bytes(range(256)) * 100)
    digest = digest_of(source)
    assert probe_node(host, str(lmdb), str(source), 25_600).sees_source
    pull_part(host, str(lmdb), PART, str(source), 25_600, room_bytes=25_600, digest=digest)
    assert probe_node(host, str(lmdb), str(source), 25_600).digest == digest
    assert clean_node(host, str(lmdb)) == ("cleaned", "25600")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]


def test_in_any_shell_a_path_is_trusted_alike(tmp_path: Path, shell: list[str]) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "shared/ours").mkdir(parents=True)
    (tmp_path / "shared").chmod(0o1777)
    (tmp_path / "link").symlink_to("shared/../open")
    checked = 'check_path "$1"; echo trusted'
    for path, message in {
        "shared/ours/new": "trusted",
        "open": "caffe-recipes: refused can be changed by anybody",
        "open/x": f"caffe-recipes: refused is under {tmp_path}/open, which can be changed by anybody",
        "link/x": f"caffe-recipes: refused leads to {tmp_path}/open, which can be changed by anybody",
    }.items():
        assert message in call(shell, checked, f"{tmp_path}/{path}", cwd=tmp_path), path


@pytest.mark.promise("no file is put where others could exchange it")
@pytest.mark.promise("a colleague's folder is used")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can play other users")
def test_every_shell_trusts_a_colleague_below_a_root_owned_folder_in_a_shared_folder(
    tmp_path: Path, shell: list[str]
) -> None:
    """As in `files`: tests/files/ has the same folders."""
    tmp_path.chmod(0o1777)
    owners = {"users": 0, "users/bob": 54321, "users/team": 0, "eve": 54321, "mine": 1234, "mine/bob": 54321}
    for name, owner in owners.items():
        (tmp_path / name).mkdir()
        os.chown(tmp_path / name, owner, 54321)
    (tmp_path / "users/team").chmod(0o775)

    def judge(path: str, user: int) -> str:
        checked = f'me={user} reads=yes; check_path "$1"; echo trusted'
        return call(shell, checked, f"{tmp_path}/{path}", cwd=tmp_path)[-2]

    for path in ("users", "users/bob", "users/team", "users/../users/bob", "mine/../users/bob"):
        assert judge(path, 1234) == "trusted", path
    for path in ("eve", "users/../eve", "users/bob/../../eve"):
        assert "belongs to user 54321, who can change its contents" in judge(path, 1234), path
    # Others may have put files into a folder of the user's while it was open; root cannot tell these apart.
    assert "belongs to user 54321" in judge("mine/bob", 1234)
    assert "belongs to user 54321" in judge("users/bob", 0)
    (tmp_path / "users").chmod(0o775)  # its group is not the user's own
    assert "users, which can be changed by the group" in judge("users/bob", 1234)


@pytest.mark.promise("a check cannot be evaded")
def test_what_is_read_must_exist_where_anybody_could_create_it(tmp_path: Path, shell: list[str]) -> None:
    """Another user can hide his folder by renaming it while we check, and show it again before we read."""
    for name in ("shared/ours", "private"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "shared").chmod(0o1777)
    (tmp_path / "private/link").symlink_to("../shared/gone")
    (tmp_path / "private/dangling").symlink_to("gone")

    def judge(path: str, *, reads: str = "yes") -> str:
        checked = f'reads={reads}; check_path "$1"; echo trusted'
        return call(shell, checked, f"{tmp_path}/{path}", cwd=tmp_path)[-2]

    for path in ("shared/gone", "shared/gone/data.mdb", "shared/gone/../ours", "private/link/data.mdb"):
        found = judge(path)
        assert found.startswith("caffe-recipes: refused "), path
        assert found.endswith("does not exist, and anybody could create it"), path
        assert judge(path, reads="no") == "trusted", path  # as the place to which staging copies
    for path in ("shared/ours", "shared/ours/gone", "private/gone/data.mdb", "private/dangling", "gone"):
        assert judge(path) == "trusted", path


@pytest.mark.promise("a check cannot be evaded")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can play other users")
def test_a_source_that_its_owner_makes_unreadable_during_the_check_is_refused() -> None:
    with tempfile.TemporaryDirectory() as name:
        shared = Path(name)
        shared.chmod(0o1777)
        source = shared / "data.mdb"
        source.write_bytes(b"records")
        os.chown(source, 65534, 65534)
        source.chmod(0)
        words = ["survey", f"{name}/lmdb", ".", name, "data.mdb 7"]
        user = ["setpriv", "--reuid=4242", "--regid=4242", "--clear-groups"]
        argv = [*user, "sh", "-c", full_program_text("node"), "node.sh", "token", *words]
        answer = subprocess.run(argv, cwd=name, capture_output=True, text=True, check=True).stdout
    assert "refused" in answer
    assert "belongs to user nobody (65534), who can change its contents" in answer


def test_a_group_may_write_in_a_folder_of_its_own_and_not_where_everybody_has_files(
    tmp_path: Path, shell: list[str]
) -> None:
    other = next((group for group in os.getgroups() if group != os.getgid()), None)
    if other is None and os.geteuid() != 0:
        pytest.skip("this user is in one group only")
    lmdb = tmp_path / "lmdb"
    lmdb.mkdir()
    os.chown(lmdb, -1, other or 4242)
    lmdb.chmod(0o775)

    def judge(shared: str) -> str:
        return call(shell, f'shared={shared}; check_step "$1"; echo trusted', str(lmdb), cwd=tmp_path)[-2]

    assert judge("no") == "trusted"
    assert judge("yes").startswith("caffe-recipes: refused can be changed by the group ")
    os.chown(lmdb, -1, os.getgid())
    alone = 'is_private_group "$(id -g)" "$1" && echo yes; echo no'
    private = "yes" in call(shell, alone, str(lmdb), cwd=tmp_path)
    assert (judge("yes") == "trusted") == private
    for members, is_shared in (("", False), ("$(id -un)", False), ("$(id -un),colleague", True)):
        answers = f'getent() {{ echo "me:x:$2:{members}"; }}; {alone}'
        found = "yes" in call(shell, answers, str(lmdb), cwd=tmp_path)
        assert found == (private and not is_shared), members


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to somebody else")
def test_only_the_owner_of_the_starting_folder_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    os.chown(checkout, 65534, 65534)
    monkeypatch.chdir(tmp_path)
    state = probe_node(HOST, f"{checkout}/lmdb", "", 1)
    assert (state.kind, state.reason) == (
        "refused",
        f"is under {checkout}, which belongs to user nobody (65534), who can change its contents",
    )
    monkeypatch.chdir(checkout)
    assert probe_node(HOST, f"{checkout}/lmdb", "", 1).kind == "absent"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to somebody else")
def test_the_owner_of_the_caffe_root_is_trusted_wherever_we_were_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("root", "elsewhere"):
        (tmp_path / name).mkdir()
        os.chown(tmp_path / name, 65534 if name == "root" else 65533, 65534)
    monkeypatch.chdir(tmp_path / "elsewhere")
    kinds = {}
    for name in ("root", "elsewhere"):
        files = replace(lmdb_on(HOST, f"{tmp_path}/{name}/lmdb"), root=tmp_path / "root")
        (state,) = survey_hosts([HOST], files, COMMAND_S)
        kinds[name] = state.kind
    assert kinds == {"root": "absent", "elsewhere": "refused"}


@pytest.mark.promise("no data of others is used in a shared folder")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to somebody else")
@pytest.mark.parametrize("what", ["data.mdb", "source", "link"])
def test_a_node_takes_nothing_from_a_source_that_another_user_could_have_put_there(
    lmdb: Path, tmp_path: Path, what: str
) -> None:
    source = tmp_path / "shared" / "source" / "data.mdb"
    source.parent.mkdir(parents=True)
    (tmp_path / "shared").chmod(0o1777)
    source.write_bytes(b"records")
    digest = digest_of(source)
    assert probe_node(HOST, str(lmdb), str(source), 7).sees_source
    if what == "link":
        source.parent.rename(tmp_path / "shared" / "ours")
        source.parent.symlink_to("ours")
    planted = source if what == "data.mdb" else source.parent
    os.chown(planted, 65534, 65534, follow_symlinks=False)
    message = f"is used with {planted}, which belongs to user nobody (65534), who can change its contents"
    assert probe_node(HOST, str(lmdb), str(source), 7).reason == message
    with pytest.raises(NodeRefusal, match=re.escape(message)):
        take(lmdb, source, digest)
    assert not lmdb.exists()
