"""Data layers, whose shapes come from the layer and the first record; and layers of a program's own code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.layer_types.dimensions import (
    Image,
    Images,
    MisfitError,
    Shape,
    describe_lack,
    require,
)
from caffe_recipes.caffe.layer_types.entry import Bound, LayerType, Refusal, Source, TopCount, no_tops


def _data(layer: pb.LayerParameter, images: Images) -> Sequence[Shape]:
    image = images(layer.data_param.source) or (None, None, None)
    return _batch_shapes(layer, layer.data_param, image)


def _annotated_data(layer: pb.LayerParameter, images: Images) -> Sequence[Shape | None]:
    """Return the shape of the images as for Data; that of the boxes depends on the records."""
    first, *_ = _data(layer, images)
    return [first, *[None] * (len(layer.top) - 1)]


def _image_data(layer: pb.LayerParameter, images: Images) -> Sequence[Shape]:
    param = layer.image_data_param
    image = (3 if param.is_color else 1, param.new_height or None, param.new_width or None)
    return _batch_shapes(layer, param, image)


def _memory_data(layer: pb.LayerParameter, images: Images) -> Sequence[Shape]:
    param = layer.memory_data_param
    return _batch_shapes(layer, param, (param.channels, param.height, param.width))


def _video_data(layer: pb.LayerParameter, images: Images) -> Sequence[Shape | None]:
    if not layer.HasField("data_param"):  # a fork's, which has its own fields
        return [None] * len(layer.top)
    image = images(layer.video_data_param.video_file) or (3, None, None)
    return _batch_shapes(layer, layer.data_param, image)


def _window_data(layer: pb.LayerParameter, images: Images) -> Sequence[Shape]:
    """Return the shapes of windows of crop_size, which may be in either of two blocks."""
    param = layer.window_data_param
    side = layer.transform_param.crop_size or param.crop_size
    if not side:
        raise MisfitError(describe_lack(param, "crop_size"))
    return _batch_shapes(layer, param, (3, side, side))


def _hdf5_data(layer: pb.LayerParameter, images: Images) -> Sequence[Shape | None]:
    """Return the shape of the first top if `images` knows it; those of other tops depend on the file."""
    param = layer.hdf5_data_param
    require(param, "batch_size")
    image = images(param.source)
    first = None if image is None else (param.batch_size, *image)
    return [first, *[None] * (len(layer.top) - 1)]


def _batch_shapes(
    layer: pb.LayerParameter,
    param: Any,  # noqa: ANN401 - a block with batch_size
    image: Image,
) -> Sequence[Shape]:
    """Return the shapes of data and label; an unknown image has as many channels as mean_values."""
    require(param, "batch_size")
    batch_size: int = param.batch_size
    transform = layer.transform_param
    channels, height, width = image
    if transform.force_color or transform.force_gray:
        channels = 3 if transform.force_color else 1
    elif channels is None and len(transform.mean_value) > 1:
        channels = len(transform.mean_value)
    height = transform.crop_size or transform.crop_h or transform.resize_param.height or height
    width = transform.crop_size or transform.crop_w or transform.resize_param.width or width
    around = 2 * getattr(transform, "pad", 0)  # Intel's, for a border around the crop
    height, width = (side and side + around for side in (height, width))
    return [(batch_size, channels, height, width), (batch_size,)]


def _input(layer: pb.LayerParameter, images: Images) -> Sequence[Shape | None]:
    shapes = [tuple(shape.dim) for shape in layer.input_param.shape]
    return _top_shapes(layer, shapes) if shapes else [None] * len(layer.top)


def _dummy_data(layer: pb.LayerParameter, images: Images) -> Sequence[Shape | None]:
    param = layer.dummy_data_param
    shapes: list[Shape] = [tuple(shape.dim) for shape in param.shape]
    if not shapes:  # num, channels, height and width, each given once or once for each top
        tops = len(layer.top)
        fields = [list(values) for values in (param.num, param.channels, param.height, param.width)]
        if any(len(values) not in (1, tops) for values in fields):
            return [None] * tops  # reported by `refusals`
        shapes = list(zip(*(values * tops if len(values) == 1 else values for values in fields), strict=True))
    if any(0 in shape for shape in shapes):
        raise MisfitError("has a dim of 0, so its top would be empty")
    return _top_shapes(layer, shapes)


def _top_shapes(layer: pb.LayerParameter, shapes: Sequence[Shape]) -> Sequence[Shape]:
    """Return the shape of each top; a single shape is used for all tops."""
    if len(shapes) not in (1, len(layer.top)):
        raise MisfitError(f"has {len(shapes)} shapes for {len(layer.top)} tops")
    if any(dim is not None and dim < 0 for shape in shapes for dim in shape):
        raise MisfitError("has a negative dim")
    return list(shapes) * len(layer.top) if len(shapes) == 1 else shapes


def _check_dummy_data(layer: pb.LayerParameter) -> Iterator[Refusal]:
    param = layer.dummy_data_param
    legacy = [name for name in ("num", "channels", "height", "width") if getattr(param, name)]
    if param.shape and legacy:
        yield Refusal(
            "size-given-twice",
            f"dummy_data_param.{legacy[0]}[0]",
            f"has shape and {', '.join(legacy)}",
            "Caffe aborts: Both shape and legacy fields were specified",
            f"remove {', '.join(legacy)}",
        )

    counts = {name: len(getattr(param, name)) for name in ("num", "channels", "height", "width")}
    counts = counts if legacy else {"shape": len(param.shape)}
    counts |= {"data_filler": len(param.data_filler)} if param.data_filler else {}
    wrong = next((name for name, count in counts.items() if count not in (1, len(layer.top))), None)
    if wrong and not (param.shape and legacy):
        yield Refusal(
            "dummy-shapes",
            f"dummy_data_param.{wrong}[0]",
            f"gives {wrong} {counts[wrong]} times for {len(layer.top)} tops",
            f"Caffe aborts: {wrong} must be given once, or once for each top",
            f"give {wrong} once, or {len(layer.top)} times",
        )


def _check_resize(layer: pb.LayerParameter) -> Iterator[Refusal]:
    param = layer.image_data_param
    given, lacking = ("new_height", "new_width") if param.new_height else ("new_width", "new_height")
    if getattr(param, given) and not getattr(param, lacking):
        yield Refusal(
            "size-half-given",
            f"image_data_param.{given}",
            f"has {given} but no {lacking}",
            "Caffe aborts: new_height and new_width must be set at the same time",
            f"add {lacking}, or remove {given}",
        )


def _lacks_size(name: str, layer: pb.LayerParameter) -> bool:
    return not getattr(layer.memory_data_param, name)


_data_layer = partial(LayerType, bottoms=(0, 0), blocks=("transform_param",))

TYPES = (
    _data_layer(
        "AnnotatedData",
        is_run=False,
        blocks=("data_param", "transform_param"),
        source=Source(_annotated_data),
        is_never_loss=True,
    ),
    LayerType("BoxData", is_run=False, blocks=("data_param", "transform_param")),
    _data_layer(
        "Data",
        source=Source(_data),
        refuses=(
            Bound(
                "data_param.prefetch",
                lambda layer: layer.data_param.prefetch == 0,
                "Caffe has no buffer to read a batch into, and waits forever",
                "leave it out",
            ),
        ),
        is_never_loss=True,
        details=lambda layer: f"batch {layer.data_param.batch_size}",
    ),
    _data_layer(
        "DummyData",
        blocks=(),
        source=Source(_dummy_data, reads_files=False, is_sized_by_files=False),
        refuses=(_check_dummy_data,),
    ),
    _data_layer(
        "HDF5Data",
        blocks=(),
        source=Source(_hdf5_data),
        refuses=(
            Bound(
                "transform_param",
                lambda layer: layer.HasField("transform_param"),
                "Caffe aborts: HDF5Data does not transform data",
                "remove it, and transform the data in the files",
            ),
        ),
        is_never_loss=True,
    ),
    LayerType(
        "HDF5Output",
        shapes=no_tops,
        bottoms=(2, 2),
        refuses=(
            Bound(
                "hdf5_output_param.file_name",
                lambda layer: not layer.hdf5_output_param.file_name,
                "Caffe aborts: Failed to open HDF5 file",
                'write file_name: "scores.h5"',
            ),
        ),
        is_result=True,
    ),
    _data_layer(
        "ImageData", source=Source(_image_data), refuses=(TopCount(2), _check_resize), is_never_loss=True
    ),
    _data_layer("Input", blocks=(), source=Source(_input, reads_files=False, is_sized_by_files=False)),
    _data_layer(
        "MemoryData",
        is_run=False,
        source=Source(_memory_data, reads_files=False, names_source=False, is_sized_by_files=False),
        refuses=(
            TopCount(2),
            *(
                Bound(
                    f"memory_data_param.{name}",
                    partial(_lacks_size, name),
                    "Caffe aborts: batch_size, channels, height, and width must be specified and positive",
                    f"give the {name} of the data",
                )
                for name in ("channels", "height", "width")
            ),
        ),
    ),
    LayerType("Python", is_run=False, in_place=True, is_result=True),
    LayerType("TRT", is_run=False, is_result=True),
    _data_layer(
        "VideoData",
        is_run=False,
        blocks=("data_param", "transform_param"),
        source=Source(_video_data, names_source=False),
    ),
    _data_layer(
        "WindowData",
        is_run=False,
        source=Source(_window_data, is_sized_by_files=False),
        refuses=(
            TopCount(2),
            Bound(
                "transform_param.crop_size",
                lambda layer: not layer.transform_param.crop_size,
                "Caffe aborts: Check failed: crop_size > 0",
                "write transform_param { crop_size: 227 }",
            ),
            Bound(
                "window_data_param.fg_fraction",
                lambda layer: not 0 <= layer.window_data_param.fg_fraction <= 1,
                "Caffe draws more images than fit in the batch, and writes past its end",
                "write fg_fraction: 0.25",
            ),
            Bound(
                "window_data_param.context_pad",
                lambda layer: 0 < layer.transform_param.crop_size <= 2 * layer.window_data_param.context_pad,
                "the padding leaves nothing of the window: Caffe divides by 0, or resizes to nothing",
                "give less than half of crop_size",
            ),
        ),
    ),
)
