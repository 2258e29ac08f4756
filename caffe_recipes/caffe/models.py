"""A model to predict with: the one that a run hands on, or a deploy net and weights from anywhere.

For files from anywhere, images are resized to the size of the net's input, and the mean of each channel is
subtracted, as Caffe's classification example does (BVLC Caffe, examples/cpp_classification).
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.model_folder import (
    DEPLOY,
    DESCRIPTION,
    WEIGHTS,
    ModelDescription,
    describe_transform,
    find_model,
    load_model,
)
from caffe_recipes.caffe.weights import CONTROL_CHARACTER, blob_values, load_mean, mean_shape
from caffe_recipes.errors import DataError, InputError
from caffe_recipes.files.bounded_reads import load_within


@dataclass(frozen=True)
class LooseFiles:
    """The files of a model that no run has described; `mean` is a file (of Caffe, or .npy), or numbers.

    `transform_of` names a run, or a folder, whose transform and names of classes are those of the net, too.
    """

    net: Path | None = None
    weights: Path | None = None
    mean: str | None = None
    scale: float = 1.0
    names: Path | None = None
    transform_of: str | None = None


@dataclass(frozen=True)
class Model:
    """A deploy net, its weights, and how images become its input; `is_resized` if to its size first.

    `described_in` is the file that has the names of the classes, for errors.
    """

    net: Path
    weights: Path
    description: ModelDescription
    transform: pb.TransformationParameter
    is_resized: bool = False
    described_in: Path = Path(DESCRIPTION)


def open_model(given: str | None, loose: LooseFiles, root: Path) -> Model:
    """Return the model of a run, by its name or folder, of a folder, or of loose files.

    Raises InputError if it is not clear which one, and DataError for files that cannot be read.
    """
    if loose.net is None or loose.weights is None:
        if loose.net or loose.weights:
            raise InputError("--net", "goes together with --weights", "give both, or a run alone")
        if loose != LooseFiles():
            what, hint = "are for --net and --weights", "leave them out: a run has its own"
            raise InputError("--mean, --scale, --names and --transform-of", what, hint)
        if given is None:
            raise InputError("", "no model is given", "name a run, or give --net and --weights")
        folder = find_model(given, root)
        found = load_model(folder)
        transform, described_in = found.transform_of(folder), folder / DESCRIPTION
        return Model(folder / DEPLOY, folder / WEIGHTS, found, transform, described_in=described_in)
    if given is not None:
        raise InputError(given, "is a second model beside --net", "give a run, or --net and --weights")
    if loose.transform_of is not None:
        if loose != LooseFiles(loose.net, loose.weights, transform_of=loose.transform_of):
            what, hint = "do not go with --transform-of", "leave them out: the run has its own"
            raise InputError("--mean, --scale and --names", what, hint)
        folder = find_model(loose.transform_of, root)
        found = load_model(folder)
        described = ModelDescription(name="", classes=found.classes, shape=(), transform=found.transform)
        transform, described_in = found.transform_of(folder), folder / DESCRIPTION
        return Model(loose.net, loose.weights, described, transform, described_in=described_in)
    if not 1e-30 < abs(loose.scale) < 1e30:  # Caffe computes in float32
        raise InputError("--scale", f"{loose.scale:g} is not a scale of pixels", "give e.g. 0.0078125")
    means = _mean_values(loose.mean)
    for mean in means:
        if not abs(mean) < 1e30:
            raise InputError("--mean", f"{mean:g} is not a mean of pixels", "give e.g. 104,117,123")
    transform = pb.TransformationParameter(scale=loose.scale, mean_value=means)
    names = None if loose.names is None else _load_names(loose.names)
    described = ModelDescription(name="", classes=names, shape=(), transform=describe_transform(transform))
    return Model(loose.net, loose.weights, described, transform, True, loose.names or loose.net)


def _mean_values(mean: str | None) -> Sequence[float]:
    """Return the mean of each channel: as given, or of a mean file."""
    if mean is None:
        return ()
    if not os.path.exists(mean):  # noqa: PTH110 - false for any text, while Path raises
        try:
            return [float(number) for number in mean.split(",")]
        except ValueError:
            what = f"'{mean}' is neither a file that exists nor a list of numbers"
            raise InputError("--mean", what, "write e.g. 104,117,123") from None
    if mean.endswith(".npy"):
        (channels, *sides), values = _load_npy(Path(mean))
    else:
        blob = load_mean(mean)
        (channels, *sides), values = mean_shape(blob), blob_values(blob)
    size = math.prod(sides)
    return [math.fsum(values[index * size : (index + 1) * size]) / size for index in range(channels)]


def _load_npy(path: Path) -> tuple[tuple[int, ...], Sequence[float]]:
    """Return the shape and values of a mean saved by numpy for pycaffe: (channels, ...), unlike an image.

    Raises DataError. Nothing is unpickled, and the header is believed only as far as the file is long.
    """
    import numpy as np
    from numpy.lib import format as npy

    data = load_within(path, "record-bytes", DataError, "give the path to a mean file")
    file = io.BytesIO(data)
    try:
        is_first = npy.read_magic(file) == (1, 0)
        read_header = npy.read_array_header_1_0 if is_first else npy.read_array_header_2_0
        shape, is_column_major, dtype = read_header(file)
    except (ValueError, SyntaxError, TokenError, RecursionError, MemoryError):
        hint = "give a mean file, or numbers such as 104,117,123"
        raise DataError(path, "is not an array of numpy", hint) from None
    stored_bytes, needed_bytes = len(data) - file.tell(), math.prod(shape) * dtype.itemsize
    if dtype.kind in "fiu" and min(shape, default=0) > 0 and stored_bytes != needed_bytes:
        what = f"holds {stored_bytes:,} bytes of values, and its shape {shape} needs {needed_bytes:,}"
        raise DataError(path, what, "copy it again")
    image = shape[1:] if len(shape) == 4 and shape[0] == 1 else shape  # from a batch of one
    if dtype.kind not in "fiu" or image[:1] not in ((1,), (3,)) or min(image) < 1:
        what = f"holds {dtype} values of shape {shape}, not those of 1 or 3 channels, which come first"
        raise DataError(path, what, "save it as an array of shape (3, height, width) or (3,)")
    stored = np.frombuffer(data, dtype, offset=file.tell()).astype(float)
    if not np.isfinite(stored).all():
        raise DataError(path, "has values that are not finite", "make it again")
    return image, stored.reshape(image, order="F" if is_column_major else "C").ravel().tolist()


def _load_names(path: Path) -> tuple[str, ...]:
    advice = "give a text file with the name of a class per line"
    data = load_within(path, "list-bytes", DataError, advice)
    if CONTROL_CHARACTER.search(data):
        raise DataError(path, "is not a text file", advice)
    try:
        text = data.decode("utf-8-sig")  # Windows puts a mark before UTF-8
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path}:{line}", "is not UTF-8", "convert the file: iconv -f LATIN1 -t UTF-8"
        ) from None
    names = tuple(line.strip() for line in text.rstrip().splitlines())
    if not names:
        raise DataError(path, "has no names", advice)
    return names
