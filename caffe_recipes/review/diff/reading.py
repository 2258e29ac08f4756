"""From bytes to the message that Caffe would make of them."""

from __future__ import annotations

from google.protobuf.message import Message

from caffe_recipes.caffe.prototxt import (
    KINDS,
    MOST_BYTES,
    Document,
    decode_prototxt,
    guess_class,
    parse_document,
)
from caffe_recipes.caffe.text.parser import parse_text
from caffe_recipes.caffe.upgrade import upgrade_document
from caffe_recipes.errors import PrototxtError


def read_message(data: bytes, path: str, max_bytes: int = MOST_BYTES) -> Message:
    """Read the message of a prototxt's bytes, in the form that Caffe upgrades it to.

    Raises PrototxtError for what is no prototxt, or holds nothing.
    """
    text = decode_prototxt(data, path, max_bytes)
    message = guess_class(text, path)()
    parse_text(text, message, path)
    if not message.ListFields():
        raise PrototxtError(path, "holds no field at all", "was it copied whole?")
    try:
        return upgrade_document(Document(path, text, message, {}, {})).message
    except PrototxtError:
        # Where each field stands takes more memory than the message, so only an error asks for it.
        return upgrade_document(parse_document(text, path)).message


def kind_of(message: Message) -> str:
    """Name what a message is to people: net, solver, ..."""
    return next(name for name, cls in KINDS.items() if isinstance(message, cls))
