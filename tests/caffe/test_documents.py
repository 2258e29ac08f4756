"""Documents: prototxts with the place of each field."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf.message import Message

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.prototxt import Document, guess_class, load_document, parse_document
from caffe_recipes.errors import PrototxtError

NET = """name: "n"
layer {
  name: "a" type: "ReLU"
  bottom: ["x",
    "y"]
}
"""


@pytest.mark.parametrize(
    ("field", "place"),
    [
        ("name", "n.prototxt:1:1"),
        ("layer[0]", "n.prototxt:2:1"),
        ("layer[0].type", "n.prototxt:3:13"),
        ("layer[0].bottom[1]", "n.prototxt:5:5"),
        ("layer[0].convolution_param.pad[0]", "n.prototxt:2:1"),
        ("layer[7].name", "n.prototxt"),
        ("", "n.prototxt"),
    ],
)
def test_each_field_has_its_place_and_what_is_not_there_that_of_its_block(field: str, place: str) -> None:
    assert parse_document(NET, "n.prototxt").where(field) == place


def test_places_count_lines_as_the_text_has_them() -> None:
    document: Document[Message] = parse_document(
        "\ufeff\n# \u2028 one line\r\nname:\r 'n'\n\n  layer { }", "n"
    )
    assert [document.where(path) for path in ("name", "layer[0]")] == ["n:3:1", "n:5:3"]
    assert dict(document.offsets) == {"name": 15, "layer[0]": 29}
    assert len(document.offsets) == 2


@pytest.mark.parametrize(
    ("text", "name", "cls"),
    [
        ("layer { }", "x", pb.NetParameter),
        ("base_lr: 1", "x", pb.SolverParameter),
        ('type: "SGD" debug_info: true', "x", pb.SolverParameter),
        ("params_pair { solver_params { max_iter: 1 } }", "x", pb.MultiPhaseSolverParameter),
        ('item { name: "cat" }', "x", pb.LabelMap),
        ("debug_info: true", "my_solver.prototxt", pb.SolverParameter),
        ("debug_info: true", "mine.prototxt", pb.NetParameter),
        ("wrong: 1 layer { }", "solver", pb.NetParameter),
        ("", "solver.prototxt", pb.SolverParameter),
    ],
)
def test_the_message_type_is_guessed_from_the_fields(text: str, name: str, cls: type) -> None:
    assert guess_class(text, name) is cls


def test_an_empty_file_and_one_that_is_too_large_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "solver.prototxt"
    path.write_text("# nothing\n")
    with pytest.raises(PrototxtError, match="is empty: it has no fields"):
        load_document(path)
    path.write_text("max_iter: 10\n")
    with pytest.raises(PrototxtError, match="is over 12 bytes"):
        load_document(path, max_bytes=12)
    assert load_document(path, max_bytes=13).message == pb.SolverParameter(max_iter=10)
