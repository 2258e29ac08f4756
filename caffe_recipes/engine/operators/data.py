"""The data layers of a net: LMDBs, prefetched and divided among the ranks, and inputs made by fillers."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Protocol

import torch
from torch import Generator, Tensor

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.datums import Datums, open_datums
from caffe_recipes.caffe.layer_types.dimensions import Image
from caffe_recipes.caffe.layer_types.entry import own_block
from caffe_recipes.engine.fillers import check_filler, fill
from caffe_recipes.engine.glog import Log
from caffe_recipes.engine.hdf5_output import HDF5Output
from caffe_recipes.engine.hdf5_rows import HDF5Rows
from caffe_recipes.engine.image_lists import decode_listed, load_image_list
from caffe_recipes.engine.operators.operator import (
    BatchStatistics,
    Forward,
    TensorShape,
    TensorShapes,
    layer_error,
)
from caffe_recipes.engine.transform import Pixels, Transform, decode_datum, format_size, match_caffe_opencv
from caffe_recipes.errors import DataError


def record_order(count: int, rank: int, ranks: int, shuffle: int | None) -> Iterator[int]:
    """Yield the indices of the records that a rank reads: rank, rank + ranks, ... of a repeated list.

    All ranks use the same list, so together they read the same records as a single rank would. With a
    `shuffle` seed, the same on all ranks, the list is shuffled at the start and again after each pass.

    >>> from itertools import islice
    >>> list(islice(record_order(5, 0, 2, None), 6)), list(islice(record_order(5, 1, 2, None), 6))
    ([0, 2, 4, 1, 3, 0], [1, 3, 0, 2, 4, 1])
    """
    records = list(range(count))
    random = None if shuffle is None else Random(shuffle)
    if random:
        random.shuffle(records)
    position = rank
    while True:
        while position >= count:
            position -= count
            if random:
                random.shuffle(records)
        yield records[position]
        position += ranks


# Decoded images are cached up to this total size, so that small data sets are decoded only once.
_CACHE_BYTES = 256 * 2**20

_TRANSFORM_HINT = "correct transform_param in the prototxt, or use images that fit it"


@dataclass(frozen=True)
class DataContext:
    """The rank, number of ranks, seeds, log and device of a net.

    `shuffle_seed` is the same on all ranks; `augment_seed` is different on each. Batches are made by the CPU,
    and then moved to the device. `uses_bf16` multiplies matrices in bfloat16, and `recomputes` keeps only
    some blobs of a pass for its gradient.
    """

    rank: int
    ranks: int
    shuffle_seed: int
    augment_seed: int
    log: Log
    device: str = "cpu"
    statistics: BatchStatistics = field(default_factory=BatchStatistics)
    uses_bf16: bool = False
    recomputes: bool = False


@dataclass
class InputLayer:
    """A layer without bottoms. `keys` are those of the records in its last batch.

    `where` is what it reads, and `files` gives the paths that this names, if it is a list.
    """

    forward: Forward
    where: str = ""
    files: Callable[[], Iterable[str]] = tuple
    keys: list[str] = field(default_factory=list)
    close: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class LoadedBatch:
    """The images and labels of a batch, and the keys of their records."""

    images: Tensor
    labels: Tensor
    keys: list[str]


class LabelledImages(Protocol):
    """Images and labels by index: an LMDB, or a list of files."""

    @property
    def path(self) -> Path: ...  # noqa: D102

    @property
    def keys(self) -> Sequence[bytes]: ...  # noqa: D102

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> pb.Datum: ...

    def close(self) -> None: ...  # noqa: D102


class RecordReader:
    """Prefetches batches of records for one rank in a thread, whose errors are raised by `next`.

    `param` has the batch_size of the layer and whether it shuffles; `decode` makes the pixels of a record.
    """

    def __init__(
        self,
        datums: LabelledImages,
        decode: Callable[[pb.Datum], Pixels],
        param: pb.DataParameter | pb.ImageDataParameter,
        transform: Transform,
        context: DataContext,
    ) -> None:
        self._datums, self._transform, self._decode = datums, transform, decode
        self._size = param.batch_size
        seed = context.shuffle_seed if param.shuffle else None
        skipped = Random(context.shuffle_seed).randrange(param.rand_skip) if param.rand_skip else 0
        self._order = record_order(len(datums), context.rank + skipped, context.ranks, seed)
        self._random = Random(context.augment_seed)
        self._cache: dict[int, tuple[Pixels, int]] = {}
        self._cached_bytes = 0
        ahead = getattr(param, "prefetch", 4)
        self._ready: queue.Queue[LoadedBatch | Exception] = queue.Queue(max(1, min(ahead, 4)))
        self._is_pinned = context.device != "cpu"  # a GPU copies pinned memory while it computes
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._read_ahead, daemon=True)

    def next(self) -> LoadedBatch:
        """Return the next batch. Raises DataError, with the record, if it cannot be read."""
        if self._thread.ident is None:
            self._thread.start()
        item = self._ready.get()
        if isinstance(item, Exception):
            raise item
        return item

    def close(self) -> None:
        """Stop prefetching, and close the LMDB."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._datums.close()

    def _read_ahead(self) -> None:
        match_caffe_opencv()
        while not self._stopped.is_set():
            item: LoadedBatch | Exception
            try:
                item = self._batch()
            except Exception as error:  # next() raises it
                item = error
            while not self._stopped.is_set():
                try:
                    self._ready.put(item, timeout=0.1)
                    break
                except queue.Full:
                    continue
            if isinstance(item, Exception):
                return

    def _batch(self) -> LoadedBatch:
        records = [next(self._order) for _ in range(self._size)]
        images, labels = [], []
        for record in records:
            pixels, label = self._image(record)
            try:
                images.append(self._transform.apply(pixels, self._random))
            except ValueError as error:
                raise self._record_error(record, str(error), _TRANSFORM_HINT) from None
            labels.append(label)
            if images[-1].shape != images[0].shape:
                what = f"is {format_size(images[-1])}, but the first of its batch is {format_size(images[0])}"
                raise self._record_error(
                    record, what, "give crop_size, or build the LMDB with images of one size"
                )
        try:
            values = self._transform.normalise(images)
        except ValueError as error:
            raise self._record_error(records[0], str(error), _TRANSFORM_HINT) from None
        keys = [self._datums.keys[record].decode(errors="replace") for record in records]
        batch = torch.from_numpy(values)
        if self._is_pinned:
            batch = batch.pin_memory()
        batch = batch.permute(0, 3, 1, 2)  # the memory layout stays channels-last
        return LoadedBatch(batch, torch.tensor(labels, dtype=torch.float32), keys)

    def _image(self, record: int) -> tuple[Pixels, int]:
        kept = self._cache.get(record)
        if kept is not None:
            return kept
        datum = self._datums[record]
        if self._transform.resizes and not datum.encoded:
            hint = "build the LMDB with encoded images, since Caffe scrambles raw ones here"
            raise self._record_error(record, "is not encoded, but transform_param resizes it", hint)
        try:
            image = self._decode(datum), datum.label
        except ValueError as error:
            raise self._record_error(record, str(error)) from None
        self._cached_bytes += image[0].nbytes
        if self._cached_bytes <= _CACHE_BYTES:
            self._cache[record] = image
        return image

    def _record_error(self, record: int, what: str, hint: str = "") -> DataError:
        key = self._datums.keys[record].decode(errors="replace")
        again = "build the LMDB again" if isinstance(self._datums, Datums) else "replace the file"
        return DataError(self._datums.path, f"record '{key}' {what}", hint or again)

    def check_first_record(self, shape: TensorShape) -> None:
        """Raise DataError unless the transformed first record has the shape (channels, height, width)."""
        pixels, _ = self._image(0)
        try:
            made = format_size(self._transform.apply(pixels, Random(0)))
        except ValueError as error:
            raise self._record_error(0, str(error), _TRANSFORM_HINT) from None
        wanted = " x ".join(map(str, shape))
        if made != wanted:
            what = f"is {made} after the transform, but the net expects {wanted}"
            raise self._record_error(0, what, "give crop_size")


def first_image_shape(source: str) -> Image:
    """Return the (channels, height, width) of the first image in an LMDB. Raises DataError."""
    with open_datums(source) as datums:
        datum = datums[0]
        if not datum.encoded:
            return datum.channels, datum.height, datum.width
        try:
            height, width, channels = decode_datum(datum, pb.TransformationParameter()).shape
        except ValueError as error:
            key = datums.keys[0].decode(errors="replace")
            raise DataError(source, f"record '{key}' {error}", "build the LMDB again") from None
        return channels, height, width


def declare_shapes(layer: pb.LayerParameter, shapes: Sequence[TensorShape] | None) -> None:
    """Turn a layer into an Input of these shapes, if any are given, to infer those of other layers."""
    if shapes is None:
        return
    layer.type = "Input"
    layer.ClearField("bottom")
    layer.ClearField("propagate_down")
    layer.ClearField("input_param")
    for shape in shapes:
        layer.input_param.shape.add(dim=shape)


_SOURCES = {
    "Data": "the folder of an LMDB",
    "ImageData": "a list of images and labels",
    "HDF5Data": "a list of HDF5 files",
}


def check_data_layer(layer: pb.LayerParameter) -> None:
    """Raise InputError for a data layer that Caffe or the engine cannot read."""
    if layer.type not in _SOURCES:
        return
    block = own_block(layer.type)
    param = getattr(layer, block)
    if layer.type == "Data" and param.backend != param.LMDB:
        what = "reads a LevelDB" if param.HasField("backend") else "has no backend, so reads a LevelDB"
        raise layer_error(layer, what, "write backend: LMDB, and convert the data if they are a LevelDB")
    if not param.source:
        raise layer_error(layer, "source is missing", f"give {_SOURCES[layer.type]}")
    for name in ("scale", "mean_file", "crop_size", "mirror"):
        if name in param.DESCRIPTOR.fields_by_name and param.HasField(name):
            raise layer_error(layer, f"{block}.{name} is in the old format", f"write transform_param.{name}")
    for name in ("min_height", "min_width") if layer.type == "ImageData" else ():
        if getattr(param, name):
            raise layer_error(layer, f"{block}.{name} is not supported", "write new_height and new_width")


def file_shapes(layer: pb.LayerParameter) -> list[TensorShape] | None:
    """Return the shapes of the tops of a layer whose files say what they are; None for other layers."""
    if layer.type == "HDF5Data":
        return HDF5Rows(layer, 0, 1, 0).shapes()
    param = layer.image_data_param
    if layer.type != "ImageData" or layer.transform_param.crop_size or param.new_height:
        return None
    with closing(load_image_list(layer)) as files:
        try:
            height, width, channels = decode_listed(layer, files[0]).shape
        except ValueError as error:
            key = files.keys[0].decode(errors="replace")
            raise DataError(files.path, f"record '{key}' {error}", "replace the file") from None
    return [(param.batch_size, channels, height, width), (param.batch_size,)]


def _data(layer: pb.LayerParameter, shapes: TensorShapes, context: DataContext) -> InputLayer:
    """Set up a layer that reads an LMDB into its tops: the images and, with a second top, the labels."""
    source_path = layer.data_param.source
    datums = open_datums(source_path)
    context.log.info("db_lmdb.cpp:61", f"Opened lmdb {source_path}")
    transform = Transform(layer.transform_param, layer.phase)
    reader = RecordReader(
        datums, partial(decode_datum, param=layer.transform_param), layer.data_param, transform, context
    )
    return _images(layer, reader, source_path, shapes, context)


def _image_data(layer: pb.LayerParameter, shapes: TensorShapes, context: DataContext) -> InputLayer:
    """Set up a layer that reads the images that a text file lists, with their labels."""
    files = load_image_list(layer)
    context.log.info("image_data_layer.cpp:74", f"A total of {len(files)} images.")
    transform = Transform(layer.transform_param, layer.phase)
    reader = RecordReader(files, partial(decode_listed, layer), layer.image_data_param, transform, context)
    source = _images(layer, reader, str(files.path), shapes, context)
    source.files = files.paths
    return source


def _images(
    layer: pb.LayerParameter, reader: RecordReader, path: str, shapes: TensorShapes, context: DataContext
) -> InputLayer:
    reader.check_first_record(shapes.tops[0][1:])
    context.log.info("data_layer.cpp:80", "output data size: " + ",".join(map(str, shapes.tops[0])))

    def forward(*_: object) -> list[Tensor]:
        batch = reader.next()
        source.keys = batch.keys
        return [batch.images, batch.labels][: len(layer.top)]

    source = InputLayer(forward, path, close=reader.close)
    return source


def _hdf5_data(layer: pb.LayerParameter, shapes: TensorShapes, context: DataContext) -> InputLayer:
    """Set up a layer that reads rows of the datasets named like its tops."""
    rows = HDF5Rows(layer, context.rank, context.ranks, context.shuffle_seed)

    def forward(*_: object) -> list[Tensor]:
        batch, source.keys = rows.next()
        return [torch.from_numpy(values) for values in batch]

    source = InputLayer(forward, layer.hdf5_data_param.source, lambda: rows.files)
    return source


def _input(layer: pb.LayerParameter, shapes: TensorShapes, context: DataContext) -> InputLayer:
    """Set up inputs of zeros, since nothing sets them here: no Caffe's Input names a file."""
    advice = "to read arrays from files, replace it with HDF5Data"
    context.log.info("caffe-torch", f"layer '{layer.name}' (Input) is all zeros; {advice}")
    return InputLayer(lambda x, w: [torch.zeros(shape) for shape in shapes.tops])


def _dummy_data(layer: pb.LayerParameter, shapes: TensorShapes, context: DataContext) -> InputLayer:
    """Set up blobs that are filled again in each pass."""
    fillers = list(layer.dummy_data_param.data_filler) or [pb.FillerParameter()]
    fillers = fillers * len(shapes.tops) if len(fillers) == 1 else fillers
    for filler in fillers:
        check_filler(filler)
    generator = Generator().manual_seed(context.augment_seed)

    def forward(*_: object) -> list[Tensor]:
        tops = [torch.empty(shape) for shape in shapes.tops]
        for top, filler in zip(tops, fillers, strict=True):
            fill(top, filler, generator)
        return tops

    return InputLayer(forward)


# The layers that write files, which a net keeps when it is set up again for another size of its batches.
OUTPUTS: dict[str, Callable[[pb.LayerParameter, TensorShapes], HDF5Output]] = {"HDF5Output": HDF5Output}

SOURCES: dict[str, Callable[[pb.LayerParameter, TensorShapes, DataContext], InputLayer]] = {
    "Data": _data,
    "ImageData": _image_data,
    "HDF5Data": _hdf5_data,
    "Input": _input,
    "DummyData": _dummy_data,
}
