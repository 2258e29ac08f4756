"""The shapes that data layers make: from the layer itself, and from the first record of its LMDB."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.shaping.dims import Dim, MisfitError, Shape

Image = tuple[Dim, Dim, Dim]
Images = Callable[[str], Image | None]


def _data(layer: pb.LayerParameter, images: Images) -> Sequence[Shape]:
    image = images(layer.data_param.source) or (None, None, None)
    return _batch(layer, layer.data_param.batch_size, image)


def _annotated_data(layer: pb.LayerParameter, images: Images) -> Sequence[Shape | None]:
    """Give images as Data does; how many boxes are annotated, only the records tell."""
    first, *_ = _data(layer, images)
    return [first, *[None] * (len(layer.top) - 1)]


def _image_data(layer: pb.LayerParameter, images: Images) -> Sequence[Shape]:
    param = layer.image_data_param
    image = (3 if param.is_color else 1, param.new_height or None, param.new_width or None)
    return _batch(layer, param.batch_size, image)


def _memory_data(layer: pb.LayerParameter, images: Images) -> Sequence[Shape]:
    param = layer.memory_data_param
    return _batch(layer, param.batch_size, (param.channels, param.height, param.width))


def _video_data(layer: pb.LayerParameter, images: Images) -> Sequence[Shape]:
    image = images(layer.video_data_param.video_file) or (3, None, None)
    return _batch(layer, layer.data_param.batch_size, image)


def _window_data(layer: pb.LayerParameter, images: Images) -> Sequence[Shape]:
    """Give windows of crop_size, which is stated in either of two places."""
    param = layer.window_data_param
    side = layer.transform_param.crop_size or param.crop_size
    if not side:
        raise MisfitError("has no crop_size")
    return _batch(layer, param.batch_size, (3, side, side))


def _hdf5_data(layer: pb.LayerParameter, images: Images) -> Sequence[Shape | None]:
    """Give the batch of the first top, if `images` knows the rest; the file alone tells of other tops."""
    param = layer.hdf5_data_param
    if not param.batch_size:
        raise MisfitError("has no batch_size")
    image = images(param.source)
    first = None if image is None else (param.batch_size, *image)
    return [first, *[None] * (len(layer.top) - 1)]


def _batch(layer: pb.LayerParameter, batch_size: int, image: Image) -> Sequence[Shape]:
    """Give the shapes of data and label; mean_values tell the channels of an unknown image."""
    if not batch_size:
        raise MisfitError("has no batch_size")
    transform = layer.transform_param
    channels, height, width = image
    if transform.force_color or transform.force_gray:
        channels = 3 if transform.force_color else 1
    elif channels is None and len(transform.mean_value) > 1:
        channels = len(transform.mean_value)
    height = transform.crop_size or transform.crop_h or transform.resize_param.height or height
    width = transform.crop_size or transform.crop_w or transform.resize_param.width or width
    return [(batch_size, channels, height, width), (batch_size,)]


def _input(layer: pb.LayerParameter, images: Images) -> Sequence[Shape | None]:
    shapes = [tuple(shape.dim) for shape in layer.input_param.shape]
    return _repeated(layer, shapes) if shapes else [None] * len(layer.top)


def _dummy_data(layer: pb.LayerParameter, images: Images) -> Sequence[Shape]:
    param = layer.dummy_data_param
    shapes: list[Shape] = [tuple(shape.dim) for shape in param.shape]
    if not shapes:
        shapes = list(zip(param.num, param.channels, param.height, param.width, strict=False))
    return _repeated(layer, shapes)


def _repeated(layer: pb.LayerParameter, shapes: Sequence[Shape]) -> Sequence[Shape]:
    """Give each top its shape, or all tops the only one."""
    if len(shapes) not in (1, len(layer.top)):
        raise MisfitError(f"gives {len(shapes)} shapes for {len(layer.top)} tops")
    if any(dim is not None and dim < 0 for shape in shapes for dim in shape):
        raise MisfitError("has a negative dim")
    return list(shapes) * len(layer.top) if len(shapes) == 1 else shapes


SOURCES: dict[str, Callable[[pb.LayerParameter, Images], Sequence[Shape | None]]] = {
    "AnnotatedData": _annotated_data,
    "Data": _data,
    "DummyData": _dummy_data,
    "HDF5Data": _hdf5_data,
    "ImageData": _image_data,
    "Input": _input,
    "MemoryData": _memory_data,
    "VideoData": _video_data,
    "WindowData": _window_data,
}
