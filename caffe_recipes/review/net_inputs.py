"""What a net reads: the images' size where the net does not say it, and another batch than its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.data_layers import BATCH_BLOCKS
from caffe_recipes.caffe.shaping.sources import Image, Images
from caffe_recipes.errors import DataError, InputError
from caffe_recipes.review.records import read_first

_BLOCKS = sorted(set(BATCH_BLOCKS.values()))


def image_reader(given: Image | None, caffe_root: Path | None, failures: list[str]) -> Images:
    """Make a function that tells the size of a source's images: as given, or of its first record.

    A source that is no LMDB here, or that does not tell, has images of unknown size; what is wrong with one
    that is empty or damaged is added to `failures`.
    """

    def read(source: str) -> Image | None:
        if given is not None:
            return given
        try:
            datum = read_first(source, caffe_root)
            return _shape_of(source, datum) if datum else None
        except DataError as error:
            failures.append(f"{error.where} {error.what}")
            return None

    return read


def _shape_of(source: str, datum: pb.Datum) -> Image | None:
    from caffe_recipes.caffe.datums import datum_shape

    try:
        return datum_shape(datum)
    except ValueError as error:
        raise DataError(source, f"begins with a record that {error}") from None


def with_image(net: pb.NetParameter, image: Image, batch: int) -> pb.NetParameter:
    """Return a net whose Input layers without a shape make a batch of such images first."""
    changed = pb.NetParameter()
    changed.CopyFrom(net)
    for layer in changed.layer:
        if layer.type == "Input" and not layer.input_param.shape and len(layer.top) == 1:
            layer.input_param.shape.add(dim=[batch, *(dim or 0 for dim in image)])
    return changed


def needs_image(net: pb.NetParameter) -> bool:
    """Whether a layer of the net may lack the size of its images."""
    return any(
        layer.type in ("AnnotatedData", "Data", "HDF5Data", "ImageData", "VideoData")
        or (layer.type == "Input" and not layer.input_param.shape)
        for layer in net.layer
    )


def with_batch(net: pb.NetParameter, batch: int) -> pb.NetParameter:
    """Return a net whose data layers and inputs make batches of `batch`; InputError if it has none."""
    changed = pb.NetParameter()
    changed.CopyFrom(net)
    found = False
    for layer in changed.layer:
        for name in _BLOCKS:
            if layer.HasField(name):
                getattr(layer, name).batch_size = batch
                found = True
        for shape in _shapes(layer):
            shape.dim[0] = batch
            found = True
        for index in range(len(layer.dummy_data_param.num)):
            layer.dummy_data_param.num[index] = batch
            found = True
    if not found:
        raise InputError(net.name or "net", "has no layer whose batch could be set", "leave --batch out")
    return changed


def _shapes(layer: pb.LayerParameter) -> Iterator[pb.BlobShape]:
    for param in (layer.input_param, layer.dummy_data_param):
        yield from (shape for shape in param.shape if shape.dim)
