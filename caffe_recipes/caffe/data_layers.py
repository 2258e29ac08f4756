"""The layers that read data in batches, and where each says how many images one batch has."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from caffe_recipes.caffe import pb

# Which block holds the batch_size. VideoData takes it from Data's, and its file from its own.
BATCH_BLOCKS: Mapping[str, str] = MappingProxyType(
    {
        "AnnotatedData": "data_param",
        "Data": "data_param",
        "HDF5Data": "hdf5_data_param",
        "ImageData": "image_data_param",
        "MemoryData": "memory_data_param",
        "VideoData": "data_param",
        "WindowData": "window_data_param",
    }
)


def batch_size(layer: pb.LayerParameter) -> int:
    """Give the images of one batch that a layer reads; 0 if it reads none, or does not say it.

    >>> batch_size(pb.LayerParameter(type="Data", data_param=pb.DataParameter(batch_size=32)))
    32
    """
    block = BATCH_BLOCKS.get(layer.type)
    return int(getattr(layer, block).batch_size) if block else 0
