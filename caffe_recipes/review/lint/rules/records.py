"""Rules for the LMDBs and mean files of data layers, if they exist on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from caffe_recipes.caffe.weights import mean_shape, show_image
from caffe_recipes.errors import DataError
from caffe_recipes.review.lint.net_view import record_shape
from caffe_recipes.review.lint.registry import finding
from caffe_recipes.review.lint.subjects import record_rule

if TYPE_CHECKING:
    from caffe_recipes.caffe import pb
    from caffe_recipes.caffe.prototxt import Document
    from caffe_recipes.review.lint.findings import Finding
    from caffe_recipes.review.lint.net_view import DatumOf


@record_rule(
    "lmdb-unreadable",
    "warning",
    "an LMDB that exists here but is empty or damaged",
    what="{place} {fault}",
    effect="Caffe aborts or reads no record; lint cannot check its images",
)
@record_rule(
    "mean-unreadable",
    "warning",
    "a mean file that exists here but is not a mean image",
    what="{place} {fault}",
    effect="Caffe aborts when it reads it",
)
def check_records(net: Document[pb.NetParameter], root: Path | None, datum_of: DatumOf) -> Iterator[Finding]:
    """Find LMDBs and mean files that exist here but are empty or damaged; each once, at its first layer.

    Those that do not exist here may exist on the cluster, where `preflight` looks for them.
    """
    # Imported late, since `lint --rules` reads no data.
    from caffe_recipes.review.inspect.nets import read_first_datum
    from caffe_recipes.review.lint.records import read_mean

    seen: set[tuple[str, str]] = set()
    for index, layer in enumerate(net.message.layer):
        source, mean = layer.data_param.source, layer.transform_param.mean_file
        for rule, key, path, read in (
            ("lmdb-unreadable", "data_param.source", source, read_first_datum),
            ("mean-unreadable", "transform_param.mean_file", mean, read_mean),
        ):
            if (rule, path) in seen:
                continue
            seen.add((rule, path))
            try:
                read(path, root)
            except DataError as error:
                where = net.where(f"layer[{index}].{key}")
                write = error.hint or "build it again"
                yield finding(rule, where, write=write, place=error.where, fault=error.what)


@record_rule(
    "mean-file-misfit",
    "error",
    "a mean file of another size than the images",
    what="{mean} is a mean of {theirs}, but the first record of {source} is of {ours}",
    effect="Caffe aborts at the first image: Check failed: datum_height == data_mean_.height()",
    write="make it of these images with compute_image_mean, or write mean_value",
)
def check_mean_sizes(
    net: Document[pb.NetParameter], root: Path | None, datum_of: DatumOf
) -> Iterator[Finding]:
    """Find mean files that exist here and do not fit the first image that they are subtracted from.

    Source: BVLC Caffe, src/caffe/data_transformer.cpp: channels, height and width must agree.
    """
    from caffe_recipes.review.lint.records import read_mean  # see check_records

    for index, layer in enumerate(net.message.layer):
        param, source = layer.transform_param, layer.data_param.source
        datum = datum_of(source) if source and param.mean_file else None
        shape = record_shape(datum)
        resizes = any(map(param.HasField, _RESIZES))
        if datum is None or shape is None or resizes:
            continue
        try:
            mean = read_mean(param.mean_file, root)
        except DataError:  # which check_records reports
            continue
        if datum.encoded and (param.force_color or param.force_gray):
            shape = (3 if param.force_color else 1, *shape[1:])
        if mean is not None and mean_shape(mean) != shape:
            yield finding(
                "mean-file-misfit",
                net.where(f"layer[{index}].transform_param.mean_file"),
                mean=param.mean_file,
                source=source,
                theirs=show_image(mean_shape(mean)),
                ours=show_image(shape),
            )


_RESIZES = ("random_resize_param", "random_aspect_ratio_param", "resize_param")
