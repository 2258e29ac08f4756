"""Reading files; the authors' own and the parity cases' prototxts."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path

import pytest
from google.protobuf import text_format
from google.protobuf.message import Message

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.prototxt import (
    Document,
    digest,
    encode_prototxt,
    format_prototxt,
    guess_class,
    load_document,
    load_prototxt,
    parse_document,
    parse_prototxt,
    read_prototxt,
    render_checked,
    render_prototxt,
)
from caffe_recipes.caffe.text.comments import Comment
from caffe_recipes.errors import PrototxtError

REFERENCE = Path(__file__).parents[3] / "shared/reference"
FILES = sorted(path.relative_to(REFERENCE).as_posix() for path in REFERENCE.rglob("*.prototxt"))


def kind(name: str) -> type[Message]:
    return pb.SolverParameter if Path(name).name.startswith("solver") else pb.NetParameter


def comments_in(text: str) -> Counter[str]:
    """Count the comments of a text that has no # in a string."""
    return Counter(line.partition("#")[2].strip() for line in text.splitlines() if "#" in line)


@pytest.mark.skipif(not FILES, reason="../shared/reference is not here to read")
@pytest.mark.parametrize("name", FILES)
def test_a_published_prototxt_is_read_and_formatted(name: str) -> None:
    text = (REFERENCE / name).read_text()
    message = load_prototxt(REFERENCE / name, kind(name))
    assert message == text_format.Parse(text, kind(name)())
    formatted = format_prototxt(text, kind(name), name)
    assert parse_prototxt(formatted, kind(name)) == message
    assert comments_in(formatted) == comments_in(text)
    assert format_prototxt(formatted, kind(name)) == formatted


def test_a_file_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "solver.prototxt"
    path.write_bytes('\ufeffnet: "é"\r\ndisplay: 40\r\n'.encode())
    assert load_prototxt(path, pb.SolverParameter) == pb.SolverParameter(net="é", display=40)
    assert load_prototxt(str(path), pb.SolverParameter).display == 40


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", ": is empty: it has no fields; check that it was copied completely"),
        (b"# nothing\n", ": is empty: it has no fields; check that it was copied completely"),
        (b"\x89PNG\r\n\x1a\n",
         ":1:1: byte 0x89 is not UTF-8; write UTF-8; only comments may contain other bytes"),
        (b"\n\x05LeNet\xa2\x06",
         ":2:7: byte 0xa2 is not UTF-8; write UTF-8; only comments may contain other bytes"),
        (b"\n\x05LeNet\xa2\x06\0",
         ": is a binary file, such as the weights of a model, and not the text of a prototxt; "
         "give the net or solver; weights go with -weights (caffe-torch), --weights (classify, export) or "
         "--fold-bn (deploy)"),
        ("name: 'LeNet'".encode("utf-16"),
         ":1:1: byte 0xff is not UTF-8; write UTF-8; only comments may contain other bytes"),
        (b"net: 'caf\xe9' # caf\xe9",
         ":1:10: byte 0xe9 is not UTF-8; write UTF-8; only comments may contain other bytes"),
        ("# é\nnet: 'é".encode() + b"\xed\xa0\x80'",
         ":2:8: byte 0xed is not UTF-8; write UTF-8; only comments may contain other bytes"),
        (b"\n\0\0", ":2:1: expected a field of SolverParameter, not '\\x00'; "
         "a field is written name: value, or name { ... }"),
        (b"net: 'a'\n\ngama: 2\n", ":3:1: SolverParameter has no field 'gama'; did you mean 'gamma'?"),
    ],
)  # fmt: skip
def test_a_file_is_refused_with_one_line(tmp_path: Path, content: bytes, error: str) -> None:
    path = tmp_path / "solver.prototxt"
    path.write_bytes(content)
    with pytest.raises(PrototxtError) as caught:
        load_prototxt(path, pb.SolverParameter)
    assert str(caught.value) == f"{path}{error}"


@pytest.mark.parametrize(
    "content",
    [b'# caf\xe9\n\nnet: "a" # \xff\n# \xed\xa0\x80 \xc3\xa9\n', b"display: 3 # \x80\n"],
)
def test_a_comment_keeps_bytes_that_are_not_utf8(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "solver.prototxt"
    path.write_bytes(content)
    assert load_prototxt(path, pb.SolverParameter).ListFields()
    assert encode_prototxt(format_prototxt(read_prototxt(path), pb.SolverParameter)) == content


def test_an_unreadable_file_is_refused_with_one_line(tmp_path: Path) -> None:
    with pytest.raises(PrototxtError, match=r"missing: cannot be read: No such file or directory; check"):
        load_prototxt(tmp_path / "missing", pb.NetParameter)
    with pytest.raises(PrototxtError, match=r"cannot be read: Is a directory; check the path$"):
        load_prototxt(tmp_path, pb.NetParameter)
    with pytest.raises(PrototxtError, match=r"cannot be read: embedded null byte; check the path$"):
        load_prototxt("a\0b", pb.NetParameter)


def test_a_digest_is_of_the_deterministic_binary_form() -> None:
    solver = pb.SolverParameter(net="a", base_lr=0.1)
    assert digest(solver) == hashlib.sha256(solver.SerializeToString(deterministic=True)).hexdigest()
    assert digest(parse_prototxt(render_prototxt(solver), pb.SolverParameter)) == digest(solver)
    assert digest(pb.SolverParameter(net="a", base_lr=0.2)) != digest(solver)
    assert digest(pb.PSROIPoolingParameter(output_dim=1))


def test_a_message_that_would_not_read_back_is_not_written() -> None:
    net = pb.NetParameter(name="n")
    assert render_checked(net, {"name": Comment(beside="mine")}, "n") == 'name: "n" # mine\n'
    incomplete = pb.MultinodeParameter(model_parallel=[pb.MnModelParallelParameter(num_nodes=1)])
    with pytest.raises(PrototxtError, match="needs the field 'layer_from'"):
        render_checked(incomplete, {}, "n")


# Documents: prototxts with the place of each field.


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
        ("name: 'x' net: 'y' base_lr: 1", "x", pb.SolverParameter),
        ("base_lr: 1 max_iter: 2 layer { } layer { } layer { }", "x", pb.NetParameter),
        ("name: layer # net: 1\nlayer [{ }] input: 'net'", "x", pb.NetParameter),
        ("snapshot_format: layer lr_policy: layers name: 'a'", "x", pb.SolverParameter),
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
