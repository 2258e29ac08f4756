from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from caffe_recipes.cluster.staging.relay import BLOCK_BYTES, STAMP, Landing, digest_open_file

PART = ".data.mdb.part-1"
CONTENT = os.urandom(1000) * (2 * BLOCK_BYTES // 1000) + b"tail"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "lmdb"
    made.mkdir(mode=0o700)
    (made / PART).write_bytes(b"")
    (made / STAMP).write_text("caffe-recipes-1 1 - - - -\n")
    return made


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as opened:
        yield opened


def digest_of(content: bytes, tmp_path: Path) -> str:
    (tmp_path / "whole").write_bytes(content)
    with (tmp_path / "whole").open("rb") as file:
        return digest_open_file(file.fileno(), len(content))


def fill(landing: Landing, content: bytes, start: int = 0, chunk: int = 1_000_003) -> None:
    for at in range(start, len(content), chunk):
        landing.write(memoryview(content)[at : at + chunk], at)


def test_a_verified_file_gets_its_final_name_and_a_stamp(
    folder: Path, pool: ThreadPoolExecutor, tmp_path: Path
) -> None:
    landing = Landing(str(folder), PART, len(CONTENT), pool)
    landing.start(0)
    fill(landing, CONTENT)
    assert sorted(path.name for path in folder.iterdir()) == [STAMP, PART]
    landing.finish(digest_of(CONTENT, tmp_path))
    landing.close()
    assert sorted(path.name for path in folder.iterdir()) == [STAMP, "data.mdb"]
    assert (folder / "data.mdb").read_bytes() == CONTENT


def test_a_previous_attempt_is_continued(folder: Path, pool: ThreadPoolExecutor, tmp_path: Path) -> None:
    (folder / PART).write_bytes(CONTENT[: BLOCK_BYTES + 1000])
    landing = Landing(str(folder), PART, len(CONTENT), pool)
    assert landing.held_blocks == 1
    landing.start(1)
    fill(landing, CONTENT, BLOCK_BYTES)
    landing.finish(digest_of(CONTENT, tmp_path))
    landing.close()
    assert (folder / "data.mdb").read_bytes() == CONTENT


@pytest.mark.parametrize("where", [0, BLOCK_BYTES, len(CONTENT) - 1])
def test_a_single_wrong_byte_is_found_and_the_file_gets_no_final_name(
    folder: Path, pool: ThreadPoolExecutor, tmp_path: Path, where: int
) -> None:
    wrong = bytearray(CONTENT)
    wrong[where] ^= 1
    (folder / PART).write_bytes(wrong[:BLOCK_BYTES])
    landing = Landing(str(folder), PART, len(CONTENT), pool)
    landing.start(1)
    fill(landing, bytes(wrong), BLOCK_BYTES)
    with pytest.raises(OSError, match="digest of the copy differs"):
        landing.finish(digest_of(CONTENT, tmp_path))
    landing.close()
    assert not (folder / "data.mdb").exists()


def test_a_file_that_appeared_at_the_target_is_not_replaced(
    folder: Path, pool: ThreadPoolExecutor, tmp_path: Path
) -> None:
    landing = Landing(str(folder), PART, len(CONTENT), pool)
    landing.start(0)
    fill(landing, CONTENT)
    (folder / "data.mdb").write_bytes(b"the user's own")
    with pytest.raises(FileExistsError):
        landing.finish(digest_of(CONTENT, tmp_path))
    landing.close()
    assert (folder / "data.mdb").read_bytes() == b"the user's own"


@pytest.mark.parametrize("attack", ["symbolic link", "hard link", "writable folder", "no file", "pipe"])
def test_a_part_that_is_not_ours_alone_is_not_opened(
    folder: Path, pool: ThreadPoolExecutor, tmp_path: Path, attack: str
) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (folder / PART).unlink()
    if attack == "symbolic link":
        (folder / PART).symlink_to(victim)
    elif attack == "hard link":
        (folder / PART).hardlink_to(victim)
    elif attack == "pipe":
        os.mkfifo(folder / PART)
    elif attack == "writable folder":
        (folder / PART).write_bytes(b"")
        folder.chmod(0o777)
    with pytest.raises(OSError):
        Landing(str(folder), PART, len(CONTENT), pool)
    assert victim.read_bytes() == b"precious"


def test_two_ranks_on_one_host_do_not_write_one_file(folder: Path, pool: ThreadPoolExecutor) -> None:
    first = Landing(str(folder), PART, len(CONTENT), pool)
    with pytest.raises(OSError, match="another process on this host is staging the same LMDB"):
        Landing(str(folder), PART, len(CONTENT), pool)
    first.close()
    Landing(str(folder), PART, len(CONTENT), pool).close()
