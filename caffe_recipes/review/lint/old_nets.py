"""Complete a net before it is checked, with places in the text that the user wrote.

A net in the old format (`layers`) is upgraded as Caffe does; one without data gets a stand-in for them.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.prototxt import LAYER, NO_COMMENTS, Document
from caffe_recipes.caffe.upgrade import as_current_net
from caffe_recipes.errors import PrototxtError
from caffe_recipes.review.lint.registry import finding

if TYPE_CHECKING:
    from caffe_recipes.caffe.chain import NetDocument
    from caffe_recipes.review.lint.findings import Finding


def upgrade_old(document: Document[pb.NetParameter]) -> tuple[Document[pb.NetParameter], list[Finding]]:
    """Return a net in the old format as Caffe upgrades it, with places in the old text, and the findings.

    A net that Caffe cannot upgrade is returned without layers.
    """
    old = document.message.layers
    note = finding("old-format", "layers[0]", count=len(old))
    try:
        return as_current_net(document), [note]
    except PrototxtError as error:
        refused = finding("upgrade-refused", error.where, error.what, write=error.hint)
        return dataclasses.replace(document, message=pb.NetParameter(input=["data"]), given=None), [refused]


@dataclass(frozen=True)
class DocumentWithData(Document[pb.NetParameter]):
    """A net with a data layer above its own, whose places are those in the text without that layer."""

    added: ClassVar[str] = "layer[0]."

    def where(self, field: str = "") -> str:
        """Return `file:line:column` of a field."""
        match = LAYER.match(field)
        return super().where(f"layer[{int(match[1]) - 1}]{field[match.end() :]}" if match else field)


def add_data(document: Document[pb.NetParameter]) -> tuple[DocumentWithData, list[Finding]]:
    """Return a net without data with a layer that produces `data` and `label`, as recipes add it."""

    def complete(net: Any) -> Any:  # noqa: ANN401 - of our schema, or of that of all Caffes
        completed = type(net)(layer=[{"name": "of a recipe", "type": "HDF5Data", "top": ["data", "label"]}])
        completed.MergeFrom(net)
        return completed

    given = None if document.given is None else complete(document.given)
    net = complete(document.message)
    added = DocumentWithData(document.path, document.text, net, NO_COMMENTS, document.offsets, given=given)
    if document.message.layer:
        return added, [finding("no-data", "")]
    what, write = "the net has no layers", "check that the file was copied completely"
    return added, [finding("no-data", "", what, effect="it learns nothing", write=write)]


def upgrade_if_old(net: NetDocument) -> NetDocument:
    """Return a net in the old format (`layers`) as Caffe upgrades it; return any other net unchanged."""
    return upgrade_old(net)[0] if net.message.layers else net
