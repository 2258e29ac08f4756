"""Rules on `transform_param`: resizing, cropping, mirroring, means."""

from __future__ import annotations

from collections.abc import Iterator

from caffe_recipes.caffe import pb
from caffe_recipes.review.findings import Severity
from caffe_recipes.review.lint.nets.view import Draft, NetView, PhaseNet, number, title

RULES: dict[str, tuple[Severity, str]] = {
    "raw-datums-scrambled": ("error", "random resizing or aspect ratio on Datums that are not encoded"),
    "mean-twice": ("error", "mean_file and mean_value in one layer"),
    "color-and-gray": ("error", "force_color and force_gray in one layer"),
    "mean-values-misfit": ("error", "another number of mean_value than channels"),
    "crop-above-image": ("error", "crop_size larger than the image"),
    "resize-range": ("error", "max_size of random_resize_param below its min_size"),
    "aspect-ratio-range": ("error", "random_aspect_ratio_param without crop_size, or with an empty range"),
    "test-random": ("warning", "mirror or random resizing in TEST"),
}


def check_transforms(view: NetView) -> Iterator[Draft]:
    """Check the transform of each data layer of the file."""
    for index, layer in enumerate(view.net.layer):
        if not layer.HasField("transform_param"):
            continue
        datum = view.datum_of(layer.data_param.source) if layer.data_param.source else None
        yield from _means(index, layer, datum)
        yield from _sizes(index, layer, datum)
        yield from _aspect_ratio(index, layer)
        yield from _raw(index, layer, datum)


def check_test_transforms(phase: PhaseNet) -> Iterator[Draft]:
    """Check that what a test reads is the same in each test."""
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
            yield Draft(
                "test-random",
                phase.where(i),
                f"transform_param.{field}",
                f"{title(layer)} has {field} in TEST, where it is as random as in TRAIN",
                "each test sees other images: the accuracy varies from test to test",
                {
                    "mirror": "mirror: false",
                    "random_resize_param": "min_size and max_size of one value",
                }.get(field, "random_resize_param { min_size: 256 max_size: 256 }"),
            )


def _means(index: int, layer: pb.LayerParameter, datum: pb.Datum | None) -> Iterator[Draft]:
    param, channels = layer.transform_param, _channels(layer, datum)
    if param.HasField("mean_file") and param.mean_value:
        yield Draft(
            "mean-twice",
            index,
            "transform_param.mean_file",
            f"{title(layer)} has mean_file and mean_value",
            "Caffe stops: Cannot specify mean_file and mean_value at the same time",
            "keep one of them",
        )
    if param.force_color and param.force_gray:
        yield Draft(
            "color-and-gray",
            index,
            "transform_param.force_gray",
            f"{title(layer)} has force_color and force_gray",
            "Caffe stops: cannot set both force_color and force_gray",
            "keep one of them",
        )
    if channels and len(param.mean_value) not in (0, 1, channels):
        yield Draft(
            "mean-values-misfit",
            index,
            "transform_param.mean_value[0]",
            f"{title(layer)} has {len(param.mean_value)} mean_value for images of {channels} channels",
            f"Caffe stops: Specify either 1 mean_value or as many as channels: {channels}",
            f"give 1 or {channels}",
        )


def _channels(layer: pb.LayerParameter, datum: pb.Datum | None) -> int | None:
    if layer.type == "ImageData":
        return 3 if layer.image_data_param.is_color else 1
    if datum is not None and not datum.encoded:
        return datum.channels
    if layer.type != "Data" or layer.transform_param.force_color == layer.transform_param.force_gray:
        return None
    return 3 if layer.transform_param.force_color else 1


def _sizes(index: int, layer: pb.LayerParameter, datum: pb.Datum | None) -> Iterator[Draft]:
    param = layer.transform_param
    resize = param.random_resize_param
    if param.HasField("random_resize_param"):
        if resize.max_size and resize.max_size < resize.min_size:
            yield Draft(
                "resize-range",
                index,
                "transform_param.random_resize_param.max_size",
                f"{title(layer)} resizes to between {resize.min_size} and {resize.max_size} pixels",
                "Caffe stops, or draws a size at random",
                f"min_size: {resize.max_size} max_size: {resize.min_size}",
            )
        smallest, what = resize.min_size, "min_size"
    elif layer.type == "ImageData":
        image = layer.image_data_param
        smallest, what = min(image.new_height, image.new_width), "new_height or new_width"
    else:
        raw = datum is not None and not datum.encoded and not param.HasField("random_aspect_ratio_param")
        smallest = min(datum.height, datum.width) if datum is not None and raw else 0
        what = "the height or width of the records"
    if smallest and param.crop_size > smallest:
        yield Draft(
            "crop-above-image",
            index,
            "transform_param.crop_size",
            f"{title(layer)} crops to {param.crop_size} pixels, and {what} is {smallest}",
            "Caffe stops at the first image that small: Check failed: height >= crop_size",
            f"crop_size: {smallest}, or larger images",
        )


def _aspect_ratio(index: int, layer: pb.LayerParameter) -> Iterator[Draft]:
    if not layer.transform_param.HasField("random_aspect_ratio_param"):
        return
    param = layer.transform_param.random_aspect_ratio_param
    low, high, change = param.min_area_ratio, param.max_area_ratio, param.aspect_ratio_change
    faults = {
        "": None if layer.transform_param.crop_size else "but no crop_size, to which it resizes",
        ".min_area_ratio": None
        if 0 < low <= high
        else f"with areas from {number(low)} to {number(high)}: nothing lies between",
        ".aspect_ratio_change": None
        if 0 < change <= 1
        else f"with aspect_ratio_change {number(change)}, outside 0 to 1",
    }
    for field, fault in faults.items():
        if fault:
            yield Draft(
                "aspect-ratio-range",
                index,
                f"transform_param.random_aspect_ratio_param{field}",
                f"{title(layer)} has random_aspect_ratio_param, {fault}",
                "Caffe stops at the first image, or makes images of no size",
                "crop_size: 224"
                if not field
                else "min_area_ratio: 0.08 max_area_ratio: 1 aspect_ratio_change: 0.75",
            )


def _raw(index: int, layer: pb.LayerParameter, datum: pb.Datum | None) -> Iterator[Draft]:
    if datum is None or datum.encoded:
        return
    for field in ("random_resize_param", "random_aspect_ratio_param"):
        if layer.transform_param.HasField(field):
            yield Draft(
                "raw-datums-scrambled",
                index,
                f"transform_param.{field}",
                f"{title(layer)} has {field}, and the records of '{layer.data_param.source}' are not encoded",
                "this Caffe scrambles the pixels of raw Datums when it resizes them",
                "build the LMDB with convert_imageset --encoded, or resize the images when it is built",
            )
            return
