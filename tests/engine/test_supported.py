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


@pytest.mark.parametrize(
    ("types", "what", "hint"),
    [
        (["Relu"], "type 'Relu' is not supported", "did you mean 'ReLU'?"),
        (
            ["Convolutoin", "Python", "Relu"],
            "types 'Convolutoin', 'Python', 'Relu' are not supported",
            "did you mean 'Convolution' and 'ReLU'? docs/engine.md lists those that are",
        ),
        (["Python"], "type 'Python' is not supported", "docs/engine.md lists those that are"),
        (["CenterLos"], "type 'CenterLos' is not supported", "did you mean 'CenterLoss'?"),
        (["MultiBoxLos"], "type 'MultiBoxLos' is not supported", "docs/engine.md lists those that are"),
    ],
)
def test_a_type_that_is_a_slip_for_one_that_is_run_gets_a_suggestion(
    types: list[str], what: str, hint: str
) -> None:
    net = pb.NetParameter(
        layer=[pb.LayerParameter(name=f"l{i}", type=type_) for i, type_ in enumerate(types)]
    )
    with pytest.raises(InputError) as by_layers:
        check_layers(net)
    with pytest.raises(InputError) as by_nets:
        check_supported([(net, "net.prototxt")])
    assert {(error.value.what, error.value.hint) for error in (by_layers, by_nets)} == {(what, hint)}


def test_a_layer_that_needs_the_blobs_of_all_ranks_runs_in_one_process_only() -> None:
    layer = pb.LayerParameter(name="g", type="Gather", bottom=["x"], top=["y"])
    check_layers(pb.NetParameter(layer=[layer]))
    with pytest.raises(InputError) as caught:
        check_layers(pb.NetParameter(layer=[layer]), ranks=2)
    assert caught.value.where == "layer 'g' (Gather)"
