"""docs/engine.md lists the layer types that the engine runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.engine.supported import (
    BEGIN,
    END,
    check_layers,
    check_supported,
    render_supported,
    replace_lists,
)
from caffe_recipes.errors import InputError

DOCUMENT = Path(__file__).resolve().parent.parent.parent / "docs" / "engine.md"


def test_the_document_lists_what_the_tables_have() -> None:
    text = DOCUMENT.read_text()
    assert BEGIN in text and END in text
    assert replace_lists(text) == text, "run make generate"


def test_a_type_without_an_operator_is_among_those_that_it_does_not_run() -> None:
    rows = [line.split("|")[2:4] for line in render_supported().splitlines() if line.startswith("|")]
    runs, lacks = (", ".join(cells).split(", ") for cells in zip(*rows, strict=True))
    assert {"HDF5Data", "LSTM", "ReLU6"} <= {name.strip() for name in runs}
    assert {"Python", "PriorBox", "MemoryData"} <= {name.strip() for name in lacks}


def test_unsupported_layers_of_all_nets_are_named_once_each() -> None:
    nets = []
    for phase, names in ((pb.TRAIN, ("a", "b")), (pb.TEST, ("b", "c"))):
        net = pb.NetParameter(layer=[pb.LayerParameter(name=name, type="Python") for name in names])
        net.state.phase = phase
        nets.append((net, "net.prototxt"))
    with pytest.raises(InputError) as caught:
        check_supported(nets)
    assert caught.value.where == "net.prototxt: layer 'a' (Python), layer 'b' (Python), layer 'c' (Python)"


def test_a_layer_that_needs_the_blobs_of_all_ranks_runs_in_one_process_only() -> None:
    layer = pb.LayerParameter(name="g", type="Gather", bottom=["x"], top=["y"])
    check_layers(pb.NetParameter(layer=[layer]))
    with pytest.raises(InputError) as caught:
        check_layers(pb.NetParameter(layer=[layer]), ranks=2)
    assert caught.value.where == "layer 'g' (Gather)"
