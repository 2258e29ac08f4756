"""Write layers that OpenCV lacks, or reads wrong, as others that mean exactly the same there.

OpenCV ignores fields that it does not know, such as `k` of LRN, without a word. Source: OpenCV 4,
modules/dnn/src/caffe/caffe_importer.cpp, and what its layers make of the types of `layer_types`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.deploy import Deploy, keep_comments
from caffe_recipes.caffe.dialects.unsupported_names import DEPTHWISE
from caffe_recipes.caffe.layer_types.convolution import as_depthwise
from caffe_recipes.caffe.layer_types.dimensions import LayerShapes
from caffe_recipes.caffe.prototxt import Comment
from caffe_recipes.caffe.shapes import infer_shapes
from caffe_recipes.wording import describe_names

_Rewrite = Callable[[LayerShapes], list[pb.LayerParameter] | None]  # None: as it is


def rewrite_for_opencv(deploy: Deploy) -> Deploy:
    """Return a deploy net with the layers that OpenCV takes, and a note on those that were replaced."""
    made = type(deploy.net)()
    made.CopyFrom(deploy.net)
    del made.layer[:]
    moves, changed = dict[int, int](), list[str]()
    for index, found in enumerate(infer_shapes(deploy.net, pb.TEST).layers):
        moves[index] = len(made.layer)
        layers = _REWRITES[found.layer.type](found) if found.layer.type in _REWRITES else None
        if layers is None:
            made.layer.add().CopyFrom(deploy.net.layer[index])
            continue
        changed.append(f"'{found.layer.name}' ({found.layer.type})")
        made.layer.extend(layers)
    if not changed:
        return deploy
    comments = keep_comments(_name_blocks(deploy), moves, made)
    note = f"written so that OpenCV reads them: {describe_names(changed)}"
    return replace(deploy, net=made, comments=comments, notes=(*deploy.notes, note))


def _name_blocks(deploy: Deploy) -> dict[str, Comment]:
    """Return the comments of a net, with those of a Tile's block at the block of the Concat."""
    tiles = {f"layer[{index}].tile_param" for index, one in enumerate(deploy.net.layer) if one.type == "Tile"}
    named = dict[str, Comment]()
    for path, comment in deploy.comments.items():
        block = ".".join(path.split(".")[:2])
        named[path.replace(".tile_param", ".concat_param", 1) if block in tiles else path] = comment
    return named


def _copy(layer: pb.LayerParameter) -> pb.LayerParameter:
    made = type(layer)()
    made.CopyFrom(layer)
    return made


def _spatial_dropout(found: LayerShapes) -> list[pb.LayerParameter]:
    """Dropout: neither drops anything in phase TEST."""
    made = _copy(found.layer)
    made.type = "Dropout"
    return [made]


def _depthwise(found: LayerShapes) -> list[pb.LayerParameter] | None:
    channels = found.bottoms[0][1] if found.bottoms[0] else None
    if channels is None:
        return None
    grouped = replace(found, layer=as_depthwise(found.layer, channels))
    return _convolution(grouped) or [grouped.layer]


def _convolution(found: LayerShapes) -> list[pb.LayerParameter] | None:
    """Both sides of the padding, since OpenCV ignores one without the other."""
    param = found.layer.convolution_param
    if param.HasField("pad_h") == param.HasField("pad_w"):
        return None
    made = _copy(found.layer)
    made.convolution_param.pad_h, made.convolution_param.pad_w = param.pad_h, param.pad_w
    return [made]


def _slice(found: LayerShapes) -> list[pb.LayerParameter] | None:
    """Slice points, since OpenCV counts only the tops that are read."""
    param = found.layer.slice_param
    axis = param.slice_dim if param.HasField("slice_dim") else param.axis
    sizes = [top[axis] if top else None for top in found.tops]
    if param.slice_point or None in sizes or len(sizes) < 2:
        return None
    made, end = _copy(found.layer), 0
    for size in sizes[:-1]:
        end += size or 0
        made.slice_param.slice_point.append(end)
    return [made]


def _tile(found: LayerShapes) -> list[pb.LayerParameter]:
    """Concat of the same blob, again and again."""
    made, param = _copy(found.layer), found.layer.tile_param
    made.type = "Concat"
    made.ClearField("tile_param")
    made.bottom[:] = [found.layer.bottom[0]] * param.tiles
    made.concat_param.axis = param.axis
    return [made]


def _lrn(found: LayerShapes) -> list[pb.LayerParameter] | None:
    """x / (k + s)^b = k^-b * x / (1 + s / k)^b, with s = alpha / n * sum of squares."""
    param = found.layer.lrn_param
    if param.k == 1 or param.k <= 0 or param.norm_region != param.ACROSS_CHANNELS:
        return None
    made, after = _copy(found.layer), type(found.layer)(type="Power")
    made.lrn_param.alpha = param.alpha / param.k
    made.lrn_param.ClearField("k")
    after.name, after.power_param.scale = f"{made.name}_k", param.k**-param.beta
    after.bottom.append(made.top[0])
    after.top.append(made.top[0])
    return [made, after]


_REWRITES: Mapping[str, _Rewrite] = {
    **dict.fromkeys(DEPTHWISE, _depthwise),
    "Convolution": _convolution,
    "Deconvolution": _convolution,
    "LRN": _lrn,
    "Slice": _slice,
    "SpatialDropout": _spatial_dropout,
    "Tile": _tile,
}
