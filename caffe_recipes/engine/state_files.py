"""Write a state dict as a safetensors file, the same to the byte for the same weights.

The file is the length of its header, the header in JSON, and the values in little-endian order. Source: the
description of the format in the repository huggingface/safetensors, whose own writer orders the metadata at
random.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from torch import Tensor

from caffe_recipes.caffe.models import Model
from caffe_recipes.engine.module import CaffeModule
from caffe_recipes.engine.opened_model import open_module
from caffe_recipes.files.atomic_writes import check_output, output_error, write_whole

_ALIGNMENT = 8


def export_state(model: Model, out: Path) -> str:
    """Write a safetensors file, and return a line on what it holds. Raises InputError."""
    check_output(out, [model.net, model.weights], "--out")
    module = open_module(model)
    state = module.state_dict()
    write_export(out, render_safetensors(state, describe_export(model, module)))
    return f"{len(state)} tensors, {sum(values.numel() for values in state.values()):,} values"


def write_export(out: Path, data: bytes) -> None:
    """Write a file whole, or not at all. Raises InputError."""
    try:
        write_whole({out: data})
    except OSError as error:
        raise output_error(out, error) from None


def describe_export(model: Model, module: CaffeModule) -> Mapping[str, str]:
    """Return what a file says of its model: its classes, how inputs are made; JSON except for texts."""
    known = model.description.model_dump()
    known["name"] = known["name"] or module.net.name
    known["shape"] = module.input_shapes[0][1:]
    return {
        key: value if isinstance(value, str) else json.dumps(value) for key, value in known.items() if value
    }


def render_safetensors(state: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """Return the bytes of a file with these tensors, as float32, and this metadata."""
    header: dict[str, object] = {"__metadata__": {"format": "pt", **metadata}}
    pieces, end = [], 0
    for name, values in sorted(state.items()):
        pieces.append(values.detach().cpu().numpy().astype("<f4").tobytes())
        start, end = end, end + len(pieces[-1])
        header[name] = {"dtype": "F32", "shape": list(np.shape(values)), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return b"".join([struct.pack("<Q", len(text)), text, *pieces])
