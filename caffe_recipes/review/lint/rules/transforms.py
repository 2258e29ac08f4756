"""Rules for `transform_param`: resizing, cropping, mirroring, means."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from caffe_recipes.caffe import pb
from caffe_recipes.review.lint.net_text import layer_finding, show_number, title
from caffe_recipes.review.lint.net_view import layer_field, record_shape
from caffe_recipes.review.lint.registry import finding
from caffe_recipes.review.lint.subjects import test_transform_rule, transform_rule
from caffe_recipes.wording import describe_count

if TYPE_CHECKING:
    from caffe_recipes.review.lint.findings import Finding
    from caffe_recipes.review.lint.net_view import NetView, PhaseNet


@test_transform_rule(
    "test-random",
    "warning",
    "mirror or random resizing in TEST",
    what="{layer} has {field} in TEST, where it is as random as in TRAIN",
    effect="each test sees different images, so the accuracy varies from test to test",
)
def check_test_transforms(view: NetView, phase: PhaseNet) -> Iterator[Finding]:
    """Check that every test reads the same images."""
    if phase.phase != pb.TEST:
        return
    for i, layer in enumerate(phase.layers):
        param = layer.transform_param
        resize = param.random_resize_param
        random = {
            "mirror": param.mirror,
            "random_aspect_ratio_param": param.HasField("random_aspect_ratio_param"),
            "random_resize_param": param.HasField("random_resize_param")
            and resize.min_size != resize.max_size,
        }
        for field in (name for name, on in random.items() if on):
            yield layer_finding(
                "test-random",
                phase,
                i,
                f"transform_param.{field}",
                write={
                    "mirror": "mirror: false",
                    "random_resize_param": "min_size and max_size equal",
                }.get(field, "random_resize_param { min_size: 256 max_size: 256 }"),
                field=field,
            )


@transform_rule(
    "mean-twice",
    "error",
    "mean_file and mean_value in one layer",
    what="{layer} has mean_file and mean_value",
    effect="Caffe aborts: Cannot specify mean_file and mean_value at the same time",
    write="keep one of them",
)
@transform_rule(
    "color-and-gray",
    "error",
    "force_color and force_gray in one layer",
    what="{layer} has force_color and force_gray",
    effect="Caffe aborts: cannot set both force_color and force_gray",
    write="keep one of them",
)
@transform_rule(
    "mean-values-misfit",
    "error",
    "a number of mean_value fields that is neither 1 nor the number of channels",
    write="set 1 or {channels} mean_value fields",
)
def _check_means(view: NetView, index: int, layer: pb.LayerParameter) -> Iterator[Finding]:
    param, channels = layer.transform_param, _count_channels(layer, view.first_datum(layer))
    if param.HasField("mean_file") and param.mean_value:
        yield layer_finding("mean-twice", view, index, "transform_param.mean_file")
    if param.force_color and param.force_gray:
        yield layer_finding("color-and-gray", view, index, "transform_param.force_gray")
    if channels and len(param.mean_value) not in (0, 1, channels):
        yield finding(
            "mean-values-misfit",
            layer_field(index, "transform_param.mean_value[0]"),
            f"{title(layer)} has {len(param.mean_value)} mean_value fields for images with "
            f"{describe_count(channels, 'channel')}",
            effect=f"Caffe aborts: Specify either 1 mean_value or as many as channels: {channels}",
            write="" if channels > 1 else "keep one mean_value, or build the LMDB of colored images",
            channels=channels,
        )


@transform_rule(
    "mean-value-alone",
    "warning",
    "one mean_value for several channels, which OpenMP threads expand without a lock",
    what="{layer} has one mean_value for {channels} channels",
    effect="threads append to the same list at the same time, so Caffe sometimes aborts with `Specify "
    "either 1 mean_value or as many as channels`",
)
def _check_single_mean(view: NetView, index: int, layer: pb.LayerParameter) -> Iterator[Finding]:
    param, channels = layer.transform_param, _count_channels(layer, view.first_datum(layer)) or 0
    if view.dialect.is_intels and len(param.mean_value) == 1 and channels > 1:
        value = show_number(param.mean_value[0])
        yield layer_finding(
            "mean-value-alone",
            view,
            index,
            "transform_param.mean_value[0]",
            write=" ".join([f"mean_value: {value}"] * channels),
            channels=channels,
        )


def _count_channels(layer: pb.LayerParameter, datum: pb.Datum | None) -> int | None:
    if layer.type == "ImageData":
        return 3 if layer.image_data_param.is_color else 1
    if datum is not None and not datum.encoded:
        return datum.channels
    if layer.type != "Data":
        return None
    if layer.transform_param.force_color == layer.transform_param.force_gray:
        shape = record_shape(datum)
        return shape[0] if shape else None
    return 3 if layer.transform_param.force_color else 1


@transform_rule(
    "crop-above-image",
    "error",
    "crop_size larger than the image",
    what="{layer} crops to {crop_size} pixels, but {fault} is {smallest}",
    effect="Caffe aborts at the first such image: Check failed: height >= crop_size",
    write="crop_size: {smallest}, or larger images",
)
@transform_rule(
    "resize-range",
    "error",
    "random_resize_param with a max_size below its min_size",
    what="{layer} resizes to between {min_size} and {max_size} pixels",
    effect="Caffe aborts, or picks an arbitrary size",
    write="min_size: {max_size} max_size: {min_size}",
)
def _check_sizes(view: NetView, index: int, layer: pb.LayerParameter) -> Iterator[Finding]:
    param = layer.transform_param
    resize = param.random_resize_param
    if param.HasField("random_resize_param"):
        if resize.max_size and resize.max_size < resize.min_size:
            yield layer_finding(
                "resize-range",
                view,
                index,
                "transform_param.random_resize_param.max_size",
                min_size=resize.min_size,
                max_size=resize.max_size,
            )
        smallest, what = resize.min_size, "min_size"
    elif param.HasField("random_aspect_ratio_param"):  # random_aspect_ratio_param resizes to crop_size first
        return
    elif layer.type == "ImageData":
        image = layer.image_data_param
        smallest, what = min(image.new_height, image.new_width), "new_height or new_width"
    else:
        shape = record_shape(view.first_datum(layer))
        smallest = min(shape[1:]) if shape and not param.HasField("resize_param") else 0
        what = "the height or width of the first record"
    if smallest and param.crop_size > smallest:
        yield layer_finding(
            "crop-above-image",
            view,
            index,
            "transform_param.crop_size",
            crop_size=param.crop_size,
            fault=what,
            smallest=smallest,
        )


@transform_rule(
    "aspect-ratio-range",
    "error",
    "random_aspect_ratio_param without crop_size, or with an empty range",
    what="{layer} has random_aspect_ratio_param, {fault}",
    effect="Caffe aborts at the first image, or produces empty images",
)
def _check_aspect_ratio(view: NetView, index: int, layer: pb.LayerParameter) -> Iterator[Finding]:
    if not layer.transform_param.HasField("random_aspect_ratio_param"):
        return
    param = layer.transform_param.random_aspect_ratio_param
    low, high, change = param.min_area_ratio, param.max_area_ratio, param.aspect_ratio_change
    faults = {
        "": None if layer.transform_param.crop_size else "but no crop_size to resize to",
        ".min_area_ratio": None
        if 0 < low <= high
        else f"with an empty range of areas, {show_number(low)} to {show_number(high)}",
        ".aspect_ratio_change": None
        if 0 < change <= 1
        else f"with aspect_ratio_change {show_number(change)}, outside 0 to 1",
    }
    for field, fault in faults.items():
        if fault:
            yield layer_finding(
                "aspect-ratio-range",
                view,
                index,
                f"transform_param.random_aspect_ratio_param{field}",
                write="crop_size: 224"
                if not field
                else "min_area_ratio: 0.08 max_area_ratio: 1 aspect_ratio_change: 0.75",
                fault=fault,
            )


@transform_rule(
    "raw-datums-scrambled",
    "error",
    "random_resize_param or random_aspect_ratio_param on Datums that are not encoded",
    what="{layer} has {field}, but the records of '{source}' are not encoded",
    effect="Intel's Caffe scrambles the pixels of raw Datums when it resizes them",
    write="build the LMDB with convert_imageset --encoded, or resize the images when you build it",
)
def _check_raw_datums(view: NetView, index: int, layer: pb.LayerParameter) -> Iterator[Finding]:
    datum = view.first_datum(layer)
    if datum is None or datum.encoded:
        return
    for field in ("random_resize_param", "random_aspect_ratio_param"):
        if layer.transform_param.HasField(field):
            yield layer_finding(
                "raw-datums-scrambled",
                view,
                index,
                f"transform_param.{field}",
                field=field,
                source=layer.data_param.source,
            )
            return
