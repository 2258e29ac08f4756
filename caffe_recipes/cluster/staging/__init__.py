"""Staging: copy an LMDB or a set of files to the local disk of every node that lacks it."""

from __future__ import annotations

from typing import Literal

Way = Literal["copy", "chain", "sbcast", "ssh"]
WAYS: tuple[Way, ...] = ("copy", "chain", "sbcast", "ssh")
