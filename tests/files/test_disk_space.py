"""Space after the end of a file is reserved and released."""

from __future__ import annotations

from pathlib import Path

from caffe_recipes.files.disk_space import release, reserve


def test_space_is_reserved_after_a_file_and_released(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"line\n")
    assert not reserve(log, 1 << 20)
    if log.stat().st_blocks * 512 >= 1 << 20:  # not every file system reserves
        release(log)
        assert log.stat().st_blocks * 512 < 1 << 20
    assert log.read_bytes() == b"line\n"
    assert not reserve(tmp_path / "none", 1 << 20)
