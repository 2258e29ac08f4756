"""Fixtures for the tests of several commands."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest


@pytest.fixture
def unreadable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one named `closed`, which even root cannot list: permissions would not stop root."""
    closed = tmp_path / "open/closed"
    closed.mkdir(parents=True)
    scandir = os.scandir

    def refuse(path: str) -> AbstractContextManager[Iterator[os.DirEntry[str]]]:
        if Path(path) == closed:
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    return closed.parent
