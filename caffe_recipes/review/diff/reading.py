"""From bytes to the message that Caffe would make of them."""

from __future__ import annotations

from google.protobuf.message import Message

from caffe_recipes.caffe.documents import KINDS, Document, parse_document
from caffe_recipes.caffe.prototxt import MOST_BYTES, decode_prototxt
from caffe_recipes.caffe.upgrade import upgrade_document
from caffe_recipes.errors import PrototxtError


def read_message(data: bytes, path: str, max_bytes: int = MOST_BYTES) -> Message:
    """Read the message of a prototxt's bytes, in the form that Caffe upgrades it to.

    Raises PrototxtError for what is no prototxt, or holds nothing.
    """
    document: Document[Message] = parse_document(decode_prototxt(data, path, max_bytes), path)
    if not document.message.ListFields():
        raise PrototxtError(path, "holds no field at all", "was it copied whole?")
    return upgrade_document(document).message


def kind_of(message: Message) -> str:
    """Name what a message is to people: net, solver, ..."""
    return next(name for name, cls in KINDS.items() if isinstance(message, cls))
