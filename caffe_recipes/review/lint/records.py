"""The LMDBs, lists of images and mean files of data layers, if they exist on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from caffe_recipes.caffe.weights import load_mean
from caffe_recipes.data.manifest import load_manifest
from caffe_recipes.errors import DataError
from caffe_recipes.files.bounded_reads import open_file
from caffe_recipes.limits import limit
from caffe_recipes.review.inspect.nets import read_first_datum
from caffe_recipes.review.naming import is_file

if TYPE_CHECKING:
    from caffe_recipes.caffe import pb


def find_datum(source: str, root: Path | None) -> pb.Datum | None:
    """Return the first Datum of an LMDB under the Caffe root or the current folder; None if unreadable."""
    try:
        return read_first_datum(source, root)
    except DataError:
        return None


def find_labels(source: str, root: Path | None) -> tuple[int, int] | None:
    """Return the smallest and largest label of an LMDB by its manifest; None if there is none here."""
    if not source:
        return None
    try:
        manifest = load_manifest((root or Path()) / source)
    except (DataError, ValueError):  # such as a source that contains a NUL
        return None
    return (min(manifest.labels), max(manifest.labels)) if manifest and manifest.labels else None


def count_records(source: str, root: Path | None) -> int:
    """Return the number of records of an LMDB under the Caffe root or the current folder; 0 if unknown."""
    folder = (root or Path()) / source
    if not source or not is_file(folder / "data.mdb"):
        return 0
    from caffe_recipes.caffe.datums import open_datums  # imports the LMDB library

    try:
        with open_datums(folder) as datums:
            return len(datums)
    except DataError:
        return 0


def count_images(layer: pb.LayerParameter, root: Path | None) -> int:
    """Return the number of images of a data layer's LMDB, or list of images; 0 if unknown."""
    if layer.type == "ImageData":
        return _count_lines(layer.image_data_param.source, root)
    return count_records(layer.data_param.source, root) if layer.type == "Data" else 0


def _count_lines(source: str, root: Path | None) -> int:
    """Return the number of lines of a file that are not empty; 0 if it is not here, or over the limit."""
    path = (root or Path()) / source
    if not source or not is_file(path):
        return 0
    try:
        with open_file(path) as file:
            data = file.read(limit("list-bytes") + 1)
    except OSError:
        return 0
    return sum(map(bool, map(bytes.strip, data.splitlines()))) if len(data) <= limit("list-bytes") else 0


def read_mean(path: str, root: Path | None) -> pb.BlobProto | None:
    """Load a mean file, if there is one here. Raises DataError."""
    if path and is_file((root or Path()) / path):
        return load_mean((root or Path()) / path)
    return None
