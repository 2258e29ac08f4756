"""Data to stage: an LMDB of any size, made without as many records."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.datums import write_datums


def make_data(size_bytes: int) -> bytes:
    """Return a data.mdb that holds one record, and behind its last page bytes that are never the same."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lmdb"
        write_datums(path, [("image", pb.Datum(channels=1, height=1, width=1, data=b"x", label=0))])
        pages = (path / "data.mdb").read_bytes()
    return pages + os.urandom(size_bytes - len(pages))
