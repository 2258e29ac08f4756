"""docs/engine.md lists the layer types that the engine runs."""

from __future__ import annotations

from pathlib import Path

from caffe_recipes.engine.supported import BEGIN, END, render_supported, replace_lists

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
