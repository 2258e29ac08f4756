"""The layers that a net's data come from: LMDBs read ahead, and inputs that are filled."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import torch
from torch import Generator, Tensor

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.datums import Datums, open_datums
from caffe_recipes.engine.fillers import fill
from caffe_recipes.engine.glog import Log
from caffe_recipes.engine.layer import Layer, Shape, fault
from caffe_recipes.engine.records import record_order
from caffe_recipes.engine.transform import Pixels, Transform, decode
from caffe_recipes.errors import CaffeRecipesError, DataError

# Decoded images up to this size are kept, so that small sets are decoded once and not every epoch.
_KEPT_BYTES = 256 * 2**20


@dataclass(frozen=True)
class Feed:
    """What data layers need to know of the run: which rank of how many this is, and the seeds.

    `shuffle_seed` is the same on all ranks, `augment_seed` differs between them.
    """

    rank: int
    ranks: int
    shuffle_seed: int
    augment_seed: int
    log: Log


@dataclass
class Source:
    """A layer without bottoms; `keys` are the records of the batch it gave last."""

    layer: Layer
    where: str = ""
    keys: list[str] = field(default_factory=list)
    close: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Batch:
    """Images, labels, and the keys of their records."""

    images: Tensor
    labels: Tensor
    keys: list[str]


class Reader:
    """Batches of one LMDB for one rank, made ahead by a thread; errors surface in `next`."""

    def __init__(self, layer: pb.LayerParameter, datums: Datums, transform: Transform, feed: Feed) -> None:
        param = layer.data_param
        self._datums, self._transform, self._param = datums, transform, layer.transform_param
        self._size = param.batch_size
        seed = feed.shuffle_seed if param.shuffle else None
        self._order = record_order(len(datums), feed.rank, feed.ranks, seed)
        self._random = Random(feed.augment_seed)
        self._decoded: dict[int, tuple[Pixels, int]] = {}
        self._bytes = 0
        self._ready: queue.Queue[Batch | CaffeRecipesError] = queue.Queue(max(1, min(param.prefetch, 4)))
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._read_ahead, daemon=True)

    def next(self) -> Batch:
        """Give the next batch; raises DataError, naming the record, for one that cannot be read."""
        if self._thread.ident is None:
            self._thread.start()
        item = self._ready.get()
        if isinstance(item, CaffeRecipesError):
            raise item
        return item

    def close(self) -> None:
        """Stop reading ahead."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._datums.close()

    def _read_ahead(self) -> None:
        while not self._stopped.is_set():
            item: Batch | CaffeRecipesError
            try:
                item = self._batch()
            except CaffeRecipesError as error:
                item = error
            while not self._stopped.is_set():
                try:
                    self._ready.put(item, timeout=0.1)
                    break
                except queue.Full:
                    continue
            if isinstance(item, CaffeRecipesError):
                return

    def _batch(self) -> Batch:
        records = [next(self._order) for _ in range(self._size)]
        images, labels = [], []
        for record in records:
            pixels, label = self._image(record)
            try:
                images.append(self._transform.apply(pixels, self._random))
            except ValueError as error:
                raise self._bad(record, str(error)) from None
            labels.append(label)
            if images[-1].shape != images[0].shape:
                what = f"is {images[-1].shape[::-1]}, the first of its batch {images[0].shape[::-1]}"
                raise self._bad(record, what, "give crop_size, or build the LMDB with images of one size")
        try:
            batch = self._transform.normalise(images)
        except ValueError as error:
            raise self._bad(records[0], str(error)) from None
        keys = [self._datums.keys[record].decode(errors="replace") for record in records]
        return Batch(torch.from_numpy(batch), torch.tensor(labels, dtype=torch.float32), keys)

    def _image(self, record: int) -> tuple[Pixels, int]:
        kept = self._decoded.get(record)
        if kept is not None:
            return kept
        datum = self._datums[record]
        if self._transform.resizes and not datum.encoded:
            hint = "build the LMDB with encoded images: Caffe scrambles raw ones here"
            raise self._bad(record, "is not encoded, and transform_param resizes it", hint)
        try:
            image = decode(datum, self._param), datum.label
        except ValueError as error:
            raise self._bad(record, str(error)) from None
        self._bytes += image[0].nbytes
        if self._bytes <= _KEPT_BYTES:
            self._decoded[record] = image
        return image

    def _bad(self, record: int, what: str, hint: str = "build the LMDB again") -> DataError:
        key = self._datums.keys[record].decode(errors="replace")
        return DataError(self._datums.path, f"record '{key}' {what}", hint)

    def first_shape(self) -> Shape:
        """Give (channels, height, width) of a transformed image, from the first record."""
        pixels, _ = self._image(0)
        try:
            height, width, channels = self._transform.apply(pixels, Random(0)).shape
        except ValueError as error:
            raise self._bad(0, str(error)) from None
        return channels, height, width


def _data(layer: pb.LayerParameter, feed: Feed) -> Source:
    """Read an LMDB: tops are the images and, if there is a second, the labels."""
    param = layer.data_param
    if param.backend != param.LMDB:
        raise fault(layer, "reads a LevelDB", "convert it, and write backend: LMDB")
    if param.batch_size < 1:
        raise fault(layer, "batch_size is missing", "give it")
    if not 1 <= len(layer.top) <= 2:
        raise fault(layer, f"has {len(layer.top)} tops", "give it one for the images, one for the labels")
    datums = open_datums(param.source)
    feed.log.info("db_lmdb.cpp:61", f"Opened lmdb {param.source}")
    reader = Reader(layer, datums, Transform(layer.transform_param, layer.phase), feed)
    shape = (param.batch_size, *reader.first_shape())
    feed.log.info("data_layer.cpp:80", "output data size: " + ",".join(map(str, shape)))
    source = Source(Layer([], lambda x, w: []), param.source, close=reader.close)

    def forward(*_: object) -> list[Tensor]:
        batch = reader.next()
        source.keys = batch.keys
        return [batch.images, batch.labels][: len(layer.top)]

    source.layer = Layer([shape, (param.batch_size,)][: len(layer.top)], forward)
    return source


def _input(layer: pb.LayerParameter, feed: Feed) -> Source:
    """Give zeros: the engine has nobody to set an input."""
    shapes = _shapes(layer, [tuple(shape.dim) for shape in layer.input_param.shape])
    return Source(Layer(shapes, lambda x, w: [torch.zeros(shape) for shape in shapes]))


def _dummy_data(layer: pb.LayerParameter, feed: Feed) -> Source:
    """Give filled blobs: constants filled once, others anew for each pass."""
    param = layer.dummy_data_param
    old = zip(param.num, param.channels, param.height, param.width, strict=False)
    shapes = _shapes(layer, [tuple(shape.dim) for shape in param.shape] or list(old))
    fillers = list(param.data_filler) or [pb.FillerParameter()]
    fillers = fillers * len(shapes) if len(fillers) == 1 else fillers
    if len(fillers) != len(shapes):
        raise fault(layer, f"has {len(fillers)} data_fillers for {len(shapes)} tops", "give one, or one each")
    generator = Generator().manual_seed(feed.augment_seed)

    def forward(*_: object) -> list[Tensor]:
        tops = [torch.empty(shape) for shape in shapes]
        for top, filler in zip(tops, fillers, strict=True):
            fill(top, filler, generator)
        return tops

    return Source(Layer(shapes, forward))


def _shapes(layer: pb.LayerParameter, shapes: list[Shape]) -> list[Shape]:
    shapes = shapes * len(layer.top) if len(shapes) == 1 else shapes
    if len(shapes) != len(layer.top) or not shapes:
        raise fault(layer, f"has {len(shapes)} shapes for {len(layer.top)} tops", "give one, or one each")
    return shapes


SOURCES: dict[str, Callable[[pb.LayerParameter, Feed], Source]] = {
    "Data": _data,
    "Input": _input,
    "DummyData": _dummy_data,
}
