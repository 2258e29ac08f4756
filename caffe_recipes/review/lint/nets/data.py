"""Rules on data layers: where records come from, how many, and in which order."""

from __future__ import annotations

from collections.abc import Iterator

from caffe_recipes.caffe import pb
from caffe_recipes.review.findings import Severity
from caffe_recipes.review.lint.nets.shapes import lacks_batch_size
from caffe_recipes.review.lint.nets.view import SOURCE_BLOCKS, Draft, NetView, PhaseNet, title

RULES: dict[str, tuple[Severity, str]] = {
    "no-batch-size": ("error", "a data layer without batch_size"),
    "no-source": ("error", "a data layer without source"),
    "backend-not-lmdb": ("warning", "backend LEVELDB, written or by default, for what is named an LMDB"),
    "shuffle-not-lmdb": ("warning", "shuffle on a LEVELDB"),
    "train-unshuffled": ("note", "TRAIN reads its records in the order of the LMDB or list"),
    "train-shuffles-differ": ("warning", "data layers of TRAIN of which one is shuffled and another is not"),
    "train-batches-differ": ("warning", "data layers of TRAIN that differ in batch_size"),
    "half-image-size": ("error", "new_height without new_width, or the other way round"),
}

_DATABASES = frozenset(("AnnotatedData", "Data"))
_SOURCELESS = frozenset(("MemoryData", "VideoData"))


def check_data(view: NetView) -> Iterator[Draft]:
    """Check each data layer of the file, whatever its phase."""
    for index, layer in enumerate(view.net.layer):
        block = SOURCE_BLOCKS.get(layer.type)
        if block is None:
            continue
        yield from _needed(index, layer, block)
        if layer.type in _DATABASES:
            yield from _backend(index, layer)
        if layer.type == "ImageData":
            yield from _image_size(index, layer)


def check_train_data(view: NetView, phase: PhaseNet) -> Iterator[Draft]:
    """Check the data layers of a phase that is trained, in the words of the view's dialect."""
    if phase.phase != pb.TRAIN:
        return
    yield from _shuffles(phase)
    sizes: dict[int, pb.LayerParameter] = {}
    for i, layer in enumerate(phase.layers):
        block = SOURCE_BLOCKS.get(layer.type)
        if block is None:
            continue
        size = getattr(getattr(layer, block), "batch_size", 0)
        other = next(iter(sizes.values()), None)
        if size and other is not None and size not in sizes:
            yield Draft(
                "train-batches-differ",
                phase.where(i),
                f"{block}.batch_size",
                f"{title(layer)} has batch_size {size}, {title(other)} has {next(iter(sizes))}",
                "with MLSL Caffe stops, for it knows one global batch; else images and labels drift apart",
                f"batch_size: {next(iter(sizes))}",
            )
        if size:
            sizes.setdefault(size, layer)
        yield from _order(view, phase, i, block)


def _needed(index: int, layer: pb.LayerParameter, block: str) -> Iterator[Draft]:
    if lacks_batch_size(layer):
        yield Draft(
            "no-batch-size",
            index,
            f"{block}.batch_size",
            f"{title(layer)} has no batch_size",
            "Caffe stops: a positive batch size is required",
            f"{block} {{ batch_size: 32 }}, images per rank and iteration",
        )
    if layer.type not in _SOURCELESS and not getattr(getattr(layer, block), "source", "-"):
        yield Draft(
            "no-source",
            index,
            f"{block}.source",
            f"{title(layer)} has no source",
            "Caffe stops: there is nothing to open",
            f'{block} {{ source: "path" }}',
        )


def _backend(index: int, layer: pb.LayerParameter) -> Iterator[Draft]:
    param = layer.data_param
    if param.backend == pb.DataParameter.LMDB:
        return
    written = "says backend: LEVELDB" if param.HasField("backend") else "has no backend, which means LEVELDB,"
    if "lmdb" in param.source.lower() and "leveldb" not in param.source.lower():
        yield Draft(
            "backend-not-lmdb",
            index,
            "data_param.backend",
            f"{title(layer)} {written} and its source is '{param.source}'",
            "Caffe stops if it is an LMDB: Failed to open leveldb",
            "backend: LMDB",
        )
    if param.shuffle:
        yield Draft(
            "shuffle-not-lmdb",
            index,
            "data_param.shuffle",
            f"{title(layer)} {written} and shuffle: true",
            "only LMDBs are shuffled",
            "backend: LMDB",
        )


def _image_size(index: int, layer: pb.LayerParameter) -> Iterator[Draft]:
    param = layer.image_data_param
    if (param.new_height > 0) != (param.new_width > 0):
        given = "new_height" if param.new_height else "new_width"
        yield Draft(
            "half-image-size",
            index,
            f"image_data_param.{given}",
            f"{title(layer)} has {given} alone",
            "Caffe stops: new_height and new_width must be set at the same time",
            "give both",
        )


def _shuffles(phase: PhaseNet) -> Iterator[Draft]:
    """Find the first data layer that is shuffled where the first one is not, or the other way round."""
    readers = _readers(phase)
    for i in readers[1:]:
        one, other = phase.layers[readers[0]], phase.layers[i]
        if _is_shuffled(one) == _is_shuffled(other):
            continue
        shuffled, kept = (one, other) if _is_shuffled(one) else (other, one)
        yield Draft(
            "train-shuffles-differ",
            phase.where(i),
            SOURCE_BLOCKS[other.type],
            f"{title(shuffled)} is shuffled in TRAIN, and {title(kept)} is not",
            "if one holds the labels of the other's images, they are no longer together",
            f"shuffle: false in {title(shuffled)}, and records that were shuffled together when built",
        )
        return


def _readers(phase: PhaseNet) -> list[int]:
    """Index the layers of a phase that read records in an order."""
    types = SOURCE_BLOCKS.keys() - _SOURCELESS
    return [i for i, layer in enumerate(phase.layers) if layer.type in types]


def _is_shuffled(layer: pb.LayerParameter) -> bool:
    return bool(getattr(getattr(layer, SOURCE_BLOCKS[layer.type]), "shuffle", False))


def _order(view: NetView, phase: PhaseNet, i: int, block: str) -> Iterator[Draft]:
    layer = phase.layers[i]
    lmdb = layer.type == "Data" and layer.data_param.backend == pb.DataParameter.LMDB
    if not lmdb and layer.type != "ImageData":
        return
    # What is in TRAIN by stage, or for want of a rule, may not be there to be trained on.
    trained = any(rule.HasField("phase") and rule.phase == pb.TRAIN for rule in layer.include)
    if getattr(layer, block).shuffle or not trained:
        return
    readers = _readers(phase)
    if any(_is_shuffled(phase.layers[other]) for other in readers):
        return  # the rule on shuffles that differ says more
    can_shuffle = layer.type == "ImageData" or view.dialect.knows("DataParameter", "shuffle")
    write = "shuffle: true" if can_shuffle else "convert_imageset --shuffle, when the LMDB is built"
    if len(readers) > 1:
        write = "one random order for all data layers, when their records are built: shuffle separates them"
    yield Draft(
        "train-unshuffled",
        phase.where(i),
        block,
        f"{title(layer)} reads '{getattr(layer, block).source}' in its own order, in every epoch",
        "batches are the same in each epoch; of one class only, if the records were not shuffled when built",
        write,
    )
