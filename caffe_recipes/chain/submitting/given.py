"""What a user gives a submit that no job could use: told before anything is submitted."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from caffe_recipes.errors import InputError


def check_mail(address: str | None) -> None:
    """Raise InputError for what can be nobody's address: sbatch takes anything, and no mail arrives."""
    if address is not None and not (address.isprintable() and re.fullmatch(r"[^\s-]\S*", address)):
        raise InputError("--mail", f"{address[:80]!r} is no address", "write one as you@example.org")


def check_spares(arguments: Sequence[str], spares: int) -> None:
    """Raise InputError where dead nodes are to be replaced, and there is nothing to replace them by."""
    if not spares and ("--on-failure", "replace") in pairwise(arguments):
        raise InputError("--on-failure", "replace needs spares, and there are none", "give --spares N")


def check_source(environment: Mapping[str, str]) -> None:
    """Raise InputError for an LMDB to stage that is not there; this machine sees what the nodes share."""
    source = environment.get("LMDB_SOURCE")
    if source is not None and not Path(source, "data.mdb").is_file():
        what = "no data.mdb is there" if Path(source).is_dir() else "no such folder"
        raise InputError(source, what, "give the LMDB's folder with --lmdb-source")
