"""The LMDBs that a net's data layers name, where they are here: whether they can be read at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.documents import Document
from caffe_recipes.errors import DataError
from caffe_recipes.review.findings import Finding
from caffe_recipes.review.lint.rules import finding
from caffe_recipes.review.records import read_first


def find_datum(source: str, root: Path | None) -> pb.Datum | None:
    """Read the first Datum of an LMDB, from the Caffe root or from here; None if there is none to read."""
    try:
        return read_first(source, root)
    except DataError:
        return None


def check_records(net: Document[pb.NetParameter], root: Path | None) -> Iterator[Finding]:
    """Find LMDBs that are here, and empty or damaged; each once, at the first layer that names it."""
    seen: set[str] = set()
    for index, layer in enumerate(net.message.layer):
        source = layer.data_param.source
        if source in seen:
            continue
        seen.add(source)
        try:
            read_first(source, root)
        except DataError as error:
            where = net.where(f"layer[{index}].data_param.source")
            effect = "Caffe stops with it, or reads no record; what its images are is not known here"
            write = error.hint or "build the LMDB again"
            yield finding("lmdb-unreadable", where, f"{error.where} {error.what}", effect, write)
