"""Nets of `layers`: what Caffe makes of them, with each field in its place in the old text."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.documents import Document
from caffe_recipes.caffe.upgrade import upgrade_net
from caffe_recipes.errors import PrototxtError
from caffe_recipes.review.findings import Severity
from caffe_recipes.review.lint.nets.view import Draft

_GIVEN = re.compile(r"layers\[(\d+)\]")

RULES: dict[str, tuple[Severity, str]] = {
    "old-format": ("note", "a net of `layers`, the old format"),
    "upgrade-refused": ("error", "a net of the old format that Caffe cannot upgrade"),
}


def upgrade_old(document: Document[pb.NetParameter]) -> tuple[Document[pb.NetParameter], list[Draft]]:
    """Give a net of `layers` as Caffe upgrades it, its layers placed in the old text, and findings.

    Of a net that Caffe refuses nothing is left to look at.
    """
    old = document.message.layers
    note = Draft(
        "old-format",
        None,
        "layers[0]",
        f"the net has {len(old)} `layers` of the old format",
        "Caffe upgrades it each time that it reads it, and so do these findings",
        "caffe-recipes upgrade FILE writes it in today's",
    )
    try:
        net = upgrade_net(document.message).message
    except PrototxtError as error:
        refused = Draft(
            "upgrade-refused", None, error.where, error.what, "Caffe stops when it reads the net", error.hint
        )
        return dataclasses.replace(document, message=pb.NetParameter(input=["data"])), [refused]
    now = {index: new for new, index in enumerate(_find(net.layer, old)) if index is not None}
    offsets = dict(document.offsets)
    for path, offset in document.offsets.items():
        given = _GIVEN.match(path)
        if given and int(given[1]) in now:
            offsets[f"layer[{now[int(given[1])]}]{path[given.end() :]}"] = offset
    return dataclasses.replace(document, message=net, offsets=offsets), [note]


def _find(layers: Sequence[pb.LayerParameter], old: Sequence[pb.V1LayerParameter]) -> list[int | None]:
    """Give the index of the old layer that each layer was; they keep their order, and names."""
    found: list[int | None] = []
    names = [each.name or each.layer.name for each in old]
    start = 0
    for layer in layers:
        index = next((i for i in range(start, len(names)) if names[i] == layer.name), None)
        found.append(index)
        start = start if index is None else index + 1
    return found
