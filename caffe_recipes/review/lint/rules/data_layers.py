"""Rules for data layers: the source, number and order of records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.layer_types import type_of
from caffe_recipes.caffe.layer_types.dimensions import describe_lack
from caffe_recipes.review.lint.inference import lacks_batch_size
from caffe_recipes.review.lint.net_text import layer_finding, title
from caffe_recipes.review.lint.registry import Explanation, finding
from caffe_recipes.review.lint.subjects import data_rule, record_order_rule

if TYPE_CHECKING:
    from caffe_recipes.review.lint.findings import Finding
    from caffe_recipes.review.lint.net_view import NetView, PhaseNet


def _names_source(layer: pb.LayerParameter) -> bool:
    """Return whether the layer reads a sequence of records from its `source`."""
    entry = type_of(layer)
    return bool(entry.batch_block and entry.source and entry.source.names_source)


@data_rule(
    "no-batch-size",
    "error",
    "a data layer without batch_size, or with 0",
    what="{layer} {lack}",
    effect="Caffe aborts: a positive batch size is required",
    write="{block} {{ batch_size: 32 }}: images per rank per iteration",
)
@data_rule(
    "no-source",
    "error",
    "a data layer without source",
    what="{layer} has no source",
    effect="Caffe aborts, because it has no source to open",
    write='{block} {{ source: "path" }}',
)
def _check_required_fields(view: NetView, index: int, layer: pb.LayerParameter) -> Iterator[Finding]:
    block = type_of(layer).batch_block
    if not block:
        return
    if lacks_batch_size(layer):
        lack = describe_lack(getattr(layer, block), "batch_size")
        yield layer_finding("no-batch-size", view, index, f"{block}.batch_size", block=block, lack=lack)
    if _names_source(layer) and not getattr(getattr(layer, block), "source", "-"):
        yield layer_finding("no-source", view, index, f"{block}.source", block=block)


@data_rule(
    "backend-not-lmdb",
    "warning",
    "backend LEVELDB, set or by default, for a source named like an LMDB",
    what="{layer} {written}, but its source is '{source}'",
    effect="if it is an LMDB, Caffe aborts: Failed to open leveldb",
    write="backend: LMDB",
)
@data_rule(
    "shuffle-not-lmdb",
    "warning",
    "shuffle on a LEVELDB",
    what="{layer} {written} and shuffle: true",
    effect="it has no effect: only LMDBs are shuffled",
    write="backend: LMDB",
)
def _check_backend(view: NetView, index: int, layer: pb.LayerParameter) -> Iterator[Finding]:
    param = layer.data_param
    is_database = _names_source(layer) and type_of(layer).batch_block == "data_param"
    if not is_database or param.backend == pb.DataParameter.LMDB:
        return
    written = "has backend: LEVELDB" if param.HasField("backend") else "has no backend (default LEVELDB)"
    if "lmdb" in param.source.lower() and "leveldb" not in param.source.lower():
        yield layer_finding(
            "backend-not-lmdb", view, index, "data_param.backend", written=written, source=param.source
        )
    if param.shuffle:
        yield layer_finding("shuffle-not-lmdb", view, index, "data_param.shuffle", written=written)


@data_rule(
    "half-image-size",
    "error",
    "new_height without new_width, or new_width without new_height",
    what="{layer} has only {given}",
    effect="Caffe aborts: new_height and new_width must be set at the same time",
    write="set both",
)
def _check_image_size(view: NetView, index: int, layer: pb.LayerParameter) -> Iterator[Finding]:
    param = layer.image_data_param
    if layer.type == "ImageData" and (param.new_height > 0) != (param.new_width > 0):
        given = "new_height" if param.new_height else "new_width"
        yield layer_finding("half-image-size", view, index, f"image_data_param.{given}", given=given)


@record_order_rule(
    "train-shuffles-differ",
    "warning",
    "data layers of TRAIN of which only some are shuffled",
    what="{shuffled} is shuffled in TRAIN, but {kept} is not",
    effect="if one layer reads the labels of the other's images, the labels no longer match the images",
    write="set shuffle: false in {shuffled}, and shuffle both together when you build the LMDBs",
)
def _check_shuffle_agrees(view: NetView, phase: PhaseNet) -> Iterator[Finding]:
    """Find the first data layer that is shuffled while the first one is not, or the reverse."""
    readers = _record_layers(phase) if phase.phase == pb.TRAIN else []
    for i in readers[1:]:
        one, other = phase.layers[readers[0]], phase.layers[i]
        if _is_shuffled(one) == _is_shuffled(other):
            continue
        shuffled, kept = (one, other) if _is_shuffled(one) else (other, one)
        yield finding(
            "train-shuffles-differ",
            phase.where(i, type_of(other).batch_block),
            shuffled=title(shuffled),
            kept=title(kept),
        )
        return


@record_order_rule(
    "train-batches-differ",
    "warning",
    "data layers of TRAIN that differ in batch_size",
    what="{layer} has batch_size {size}, but {other} has {batch_size}",
    effect="with MLSL Caffe aborts, because it allows only one global batch size; without MLSL, "
    "images and labels no longer match",
    write="batch_size: {batch_size}",
)
def check_train_data(view: NetView, phase: PhaseNet) -> Iterator[Finding]:
    """Check the sizes of the batches that the data layers of a training phase read."""
    if phase.phase != pb.TRAIN:
        return
    sizes: dict[int, pb.LayerParameter] = {}
    for i, layer in enumerate(phase.layers):
        block = type_of(layer).batch_block
        if not block:
            continue
        size = getattr(getattr(layer, block), "batch_size", 0)
        other = next(iter(sizes.values()), None)
        if size and other is not None and size not in sizes:
            yield layer_finding(
                "train-batches-differ",
                phase,
                i,
                f"{block}.batch_size",
                size=size,
                other=title(other),
                batch_size=next(iter(sizes)),
            )
        if size:
            sizes.setdefault(size, layer)


def _record_layers(phase: PhaseNet) -> list[int]:
    """Return the indexes of the layers of a phase that read a sequence of records."""
    return [i for i, layer in enumerate(phase.layers) if _names_source(layer)]


def _is_shuffled(layer: pb.LayerParameter) -> bool:
    return bool(getattr(getattr(layer, type_of(layer).batch_block), "shuffle", False))


@record_order_rule(
    "train-unshuffled",
    "note",
    "a training data layer that reads records in the order of the LMDB or list, without shuffling",
    what="{layer} reads '{source}' in the stored order in every epoch",
    effect="every epoch has the same batches; if the records are sorted by class, each batch has only one "
    "class",
    explanation=Explanation(
        "Records are read in the order of the LMDB, which is the same in every epoch: batches never "
        "change, and have one class each if the LMDB is sorted by class.",
        "Set shuffle: true if your Caffe supports it and TRAIN has one data layer; otherwise, "
        "build the LMDB in random order.",
    ),
)
def check_order(view: NetView, phase: PhaseNet) -> Iterator[Finding]:
    """Check that the data layers of a training phase shuffle their records."""
    for i, layer in enumerate(phase.layers if phase.phase == pb.TRAIN else ()):
        if type_of(layer).batch_block:
            yield from _check_unshuffled(view, phase, i)


def _check_unshuffled(view: NetView, phase: PhaseNet, i: int) -> Iterator[Finding]:
    layer, block = phase.layers[i], type_of(phase.layers[i]).batch_block
    lmdb = layer.type == "Data" and layer.data_param.backend == pb.DataParameter.LMDB
    if not lmdb and layer.type != "ImageData":
        return
    # A layer that is in TRAIN because of a stage, or has no rule, may not be used for training.
    trained = any(rule.HasField("phase") and rule.phase == pb.TRAIN for rule in layer.include)
    if getattr(layer, block).shuffle or not trained:
        return
    readers = _record_layers(phase)
    if any(_is_shuffled(phase.layers[other]) for other in readers):
        return  # train-shuffles-differ is more specific
    can_shuffle = layer.type == "ImageData" or view.dialect.knows("DataParameter", "shuffle")
    write = "build the LMDB with convert_imageset --shuffle"
    if can_shuffle:
        write = f"shuffle: true; if your Caffe lacks it, as BVLC's does, {write}" if lmdb else "shuffle: true"
    if len(readers) > 1:
        write = "build the LMDBs of all data layers in the same random order; shuffle would separate them"
    yield layer_finding("train-unshuffled", phase, i, block, write=write, source=getattr(layer, block).source)
