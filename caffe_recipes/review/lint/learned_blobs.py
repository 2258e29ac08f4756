"""Weights that are passed from one net to another by layer name: which fit, and which are missing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from caffe_recipes.caffe.layer_types.dimensions import Shape
from caffe_recipes.caffe.shapes import infer_shapes, show_shape
from caffe_recipes.errors import PrototxtError
from caffe_recipes.review.lint.net_text import shapes_fit

if TYPE_CHECKING:
    from caffe_recipes.caffe.chain import NetDocument
    from caffe_recipes.caffe.net_states import NetState


# The shapes of the blobs that each layer learns, by layer name; None if unknown.
Learned = Mapping[str, tuple[Shape, ...] | None]


def find_misfits(ours: Learned, theirs: Learned) -> dict[str, str]:
    """Return why the weights of layers of one name do not fit, by that name."""
    return {
        name: misfit
        for name, shapes in ours.items()
        if shapes and (given := theirs.get(name)) and (misfit := show_misfit(shapes, given))
    }


def names_only_in(ours: Learned, theirs: Learned) -> list[str]:
    """Return the names of the layers with weights that the other net lacks."""
    return [name for name, shapes in ours.items() if shapes and name not in theirs]


def find_learned(net: NetDocument, state: NetState) -> Learned | None:
    """Return the blobs that a net learns; None if its shapes do not fit, which another rule reports."""
    try:
        layers = infer_shapes(net.message, state.phase, level=state.level, stages=state.stages).layers
    except PrototxtError:
        return None
    return {each.layer.name: each.learned for each in layers if each.learned is None or each.learned}


def show_misfit(ours: tuple[Shape, ...], theirs: tuple[Shape, ...]) -> str:
    """Describe the first blob that does not fit; empty if all fit. Unknown sizes always fit.

    >>> show_misfit(((10, 64), (10,)), ((20, 64), (20,)))
    '10x64, not 20x64'
    >>> show_misfit(((10, None),), ((10, 64),)), show_misfit(((10, 64),), ((10, 64), (10,)))
    ('', '1 blob, not 2')
    """
    if len(ours) != len(theirs):
        return f"{len(ours)} blob{'' if len(ours) == 1 else 's'}, not {len(theirs)}"
    index = _first_misfit(ours, theirs)
    return "" if index is None else f"{show_shape(ours[index])}, not {show_shape(theirs[index])}"


def _first_misfit(ours: tuple[Shape, ...], theirs: tuple[Shape, ...]) -> int | None:
    fits = [shapes_fit(one, other) for one, other in zip(ours, theirs, strict=True)]
    return None if all(fits) else fits.index(False)


def quote_refusal(name: str, ours: Learned, theirs: Learned) -> str:
    """Quote the check of Net::CopyTrainedLayersFrom at which Caffe aborts for a layer that does not fit.

    It compares the number of blobs first, then their shapes in order (BVLC Caffe, src/caffe/net.cpp).
    """
    own, given = ours[name] or (), theirs[name] or ()
    if len(own) != len(given):
        return f"Caffe aborts with `Incompatible number of blobs for layer {name}`"
    param = _first_misfit(own, given)
    return f"Caffe aborts with `Cannot copy param {param} weights from layer '{name}'; shape mismatch`"
