"""The first record of an LMDB that a data layer names: what images it holds, without reading the others."""

from __future__ import annotations

from pathlib import Path

from caffe_recipes.caffe import pb
from caffe_recipes.review.net_paths import is_file


def read_first(source: str, caffe_root: Path | None) -> pb.Datum | None:
    """Read the first Datum of an LMDB, from the Caffe root or from here; None if there is no LMDB.

    Raises DataError for one that is empty or damaged.
    """
    folder = (caffe_root or Path()) / source
    if not source or not is_file(folder / "data.mdb"):
        return None
    # LMDB's library is loaded only where there is one to read.
    from caffe_recipes.caffe.datums import open_datums

    with open_datums(folder) as datums:
        return next(iter(datums))[1]
