"""Layers, shapes and fields of a net, as the findings of lint name them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from caffe_recipes.caffe import pb
from caffe_recipes.review.lint.registry import finding
from caffe_recipes.wording import plural

if TYPE_CHECKING:
    from caffe_recipes.caffe.chain import NetDocument
    from caffe_recipes.caffe.layer_types.dimensions import Shape
    from caffe_recipes.review.lint.findings import Finding
    from caffe_recipes.review.lint.net_view import NetView, PhaseNet


def title(layer: pb.LayerParameter) -> str:
    """Return the name and type of a layer as messages show them.

    >>> title(pb.LayerParameter(name="fc", type="InnerProduct"))
    "layer 'fc' (InnerProduct)"
    """
    return f"layer '{layer.name}' ({layer.type})"


def layer_finding(
    name: str,
    net: NetView | PhaseNet,
    index: int,
    field: str,
    /,
    **others: Any,  # noqa: ANN401 - those of `finding`
) -> Finding:
    """Return a finding at a field of a layer.

    In the texts of its rule, `{layer}` is the layer's title, and `{layer_name}` its name alone.
    """
    layer = net.layers[index]
    return finding(name, net.where(index, field), layer=title(layer), layer_name=layer.name, **others)


def show_names(names: Sequence[str], limit: int = 4) -> str:
    """List names, at most `limit` of them.

    >>> show_names(["a", "b", "c"], limit=2), show_names(["a", "b", "c"], limit=3)
    ('a, b and 1 more', 'a, b, c')
    """
    shown = ", ".join(names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


def show_layers(names: Sequence[str], kind: str = "") -> str:
    """Return the number of layers, with their type if `kind` is given, and the first few names.

    >>> show_layers(["a"]), show_layers(["a", "b"], "ReLU")
    ('1 layer (a)', '2 ReLU layers (a, b)')
    """
    layers = plural(len(names), "layer")
    return f"{len(names)} {f'{kind} ' if kind else ''}{layers} ({show_names(names)})"


def show_transform(param: pb.TransformationParameter, field: str) -> str:
    """Format a field of `transform_param` as in a prototxt written by hand.

    >>> show_transform(pb.TransformationParameter(mirror=True, mean_value=[1, 2]), "mean_value")
    '1, 2'
    """
    value = getattr(param, field)
    if field == "mean_value":
        return ", ".join(map(show_number, value)) or "none"
    if isinstance(value, str):
        return f"'{value}'" if value else "none"
    return str(value).lower() if isinstance(value, bool) else show_number(value)


def shapes_fit(one: Shape, other: Shape) -> bool:
    """Return whether two shapes may be equal; an unknown size may equal any size.

    >>> shapes_fit((10, None), (10, 64)), shapes_fit((10, 64), (10,))
    (True, False)
    """
    return len(one) == len(other) and all(
        a == b for a, b in zip(one, other, strict=True) if a is not None and b is not None
    )


def show_number(value: float) -> str:
    """Format a float32 field as in a prototxt written by hand.

    >>> show_number(0.949999988079071), show_number(0.0)
    ('0.95', '0')
    """
    return f"{value:.6g}"


def layers_finding(
    name: str,
    phase: PhaseNet,
    layers: Sequence[int],
    field: str,
    kind: str = "",
    /,
    **others: Any,  # noqa: ANN401 - those of `finding`
) -> Finding:
    """Return one finding for several layers, at a field of the first.

    `{names}` in the texts of its rule are their names, with their type if it is `kind`, and `{layers}` is
    their number.
    """
    names = show_layers([phase.layers[i].name for i in layers], kind)
    return finding(name, phase.where(layers[0], field), names=names, layers=len(layers), **others)


def name_layers(names: Sequence[str]) -> str:
    """Name a layer, or several by their number and the first few names.

    >>> name_layers(["a"]), name_layers(["a", "b"])
    ("layer 'a'", '2 layers (a, b)')
    """
    return f"layer '{names[0]}'" if len(names) == 1 else show_layers(names)


def layer_place(net: NetDocument, name: str, field: str = "name") -> str:
    """Return the place of a field of the first layer of a name."""
    index = next(index for index, layer in enumerate(net.message.layer) if layer.name == name)
    return net.where(f"layer[{index}].{field}")
