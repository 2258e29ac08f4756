"""Lists of image files for ImageData layers: a text file with a path and a label, an integer, in each line.

Source: Intel Caffe, src/caffe/layers/image_data_layer.cpp.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

from caffe_recipes.caffe import pb
from caffe_recipes.engine.transform import Pixels, decode_datum, resize_to
from caffe_recipes.errors import DataError
from caffe_recipes.files.bounded_reads import load_within, read_within
from caffe_recipes.wording import describe_count

# The files of a list of this length or less are looked for before the training starts, others when read.
_MOST_CHECKED = 10_000


class ImageList:
    """The images of a list by index. `keys` are the paths as written, to which `root` is prepended."""

    def __init__(self, path: Path, root: str, keys: list[bytes], labels: list[int]) -> None:
        self.path, self.keys, self._root, self._labels = path, keys, root, labels

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.keys)

    def __getitem__(self, index: int) -> pb.Datum:
        """Return an image as an encoded Datum. Raises DataError if its file cannot be read."""
        try:
            data = read_within(self.file(index), "record-bytes")
        except OSError as error:
            key = self.keys[index].decode(errors="replace")
            what = f"record '{key}' cannot be read: {error.strerror or error}"
            raise DataError(self.path, what, "correct the path, or root_folder") from None
        return pb.Datum(encoded=True, data=data, label=self._labels[index])

    def file(self, index: int) -> str:
        """Return the path of an image. As in Caffe, nothing stands between root_folder and the given path."""
        return self._root + os.fsdecode(self.keys[index])

    def paths(self) -> Iterator[str]:
        """Yield the paths of all images."""
        return map(self.file, range(len(self)))

    def close(self) -> None:
        """Do nothing: each file is closed after it is read."""


def load_image_list(layer: pb.LayerParameter) -> ImageList:
    """Return the list that an ImageData layer names. Raises DataError for a bad line or missing files."""
    param = layer.image_data_param
    path = Path(param.source)
    data = load_within(path, "list-bytes", DataError, "correct image_data_param.source")
    keys, labels = [], []
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        key, _, label = line.rstrip().rpartition(b" ")
        try:
            labels.append(int(label))
        except ValueError:
            key = b""
        if not key or not -(2**31) <= labels[-1] < 2**31:
            what = f"line {number} is not a path, a space and a label"
            raise DataError(path, what, 'write a line as "cat.jpg 0"')
        keys.append(key)
    if not keys:
        raise DataError(path, "is empty", "list images and labels")
    files = ImageList(path, param.root_folder, keys, labels)
    missing = _list_missing(files) if len(keys) <= _MOST_CHECKED else []
    if missing:
        what = f"{describe_count(len(missing), 'image')} of {len(keys):,} not found, such as"
        raise DataError(path, f"{what} {missing[0]}", "correct the list, or root_folder")
    return files


def _list_missing(files: ImageList) -> list[str]:
    return [path for path in files.paths() if not os.path.exists(path)]  # noqa: PTH110 - false for any text


def decode_listed(layer: pb.LayerParameter, datum: pb.Datum) -> Pixels:
    """Return the pixels of a listed image, in colour or not, resized to new_height x new_width if given."""
    param = layer.image_data_param
    color = pb.TransformationParameter(force_color=param.is_color, force_gray=not param.is_color)
    image = decode_datum(datum, color)
    if param.new_height and param.new_width:
        return resize_to(image, param.new_height, param.new_width, pb.ResizeParameter(), Random(0))
    return image
