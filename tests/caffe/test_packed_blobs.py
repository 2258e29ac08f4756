"""The bytes of a blob's values come back as they were put in."""

from __future__ import annotations

import numpy as np

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.packed_blobs import fill_blob, packed_data


def test_a_blob_is_filled_with_the_bytes_of_its_values() -> None:
    values = np.arange(300, dtype="<f4")
    blob = pb.BlobProto()
    fill_blob(blob, (3, 100), values.tobytes())
    assert blob == pb.BlobProto(shape=pb.BlobShape(dim=[3, 100]), data=values.tolist())
    assert packed_data(blob) == values.tobytes()
