"""A lock has one holder, and nobody else can open its file to hold it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from caffe_recipes.files.locks import lock
from tests.trust_cases import STRANGER, as_root


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
