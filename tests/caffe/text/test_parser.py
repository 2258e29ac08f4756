"""What the parser accepts and refuses: the same as protobuf's C++ parser, which Caffe uses."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.message import Message

import caffe_recipes.caffe
from caffe_recipes.caffe import pb
from caffe_recipes.caffe.prototxt import format_prototxt, parse_document, parse_prototxt
from caffe_recipes.errors import PrototxtError

FOLDER = Path(caffe_recipes.caffe.__file__).parent
S, N = pb.SolverParameter, pb.NetParameter
needs_protoc = pytest.mark.skipif(
    importlib.util.find_spec("grpc_tools") is None, reason="grpcio-tools, which has the C++ parser, is absent"
)
INF = float("inf")

SOLVERS: list[tuple[str, Message]] = [
    ("net: 'a' \"b\"\n'c'", S(net="abc")),
    (r"""net: "a\"b" '\'\\\?\a\b\f\n\r\t\v' """, S(net="a\"b'\\?\a\b\f\n\r\t\v")),
    (r"net: '\101\401\x42\x43\u00e9\U0001F600\ud83d\ude00\7'", S(net="A\1BCé😀😀\7")),
    ("net: 'é' # comment", S(net="é")),
    ("net: 'a', display: 1; test_iter: 2, test_iter: 3;", S(net="a", display=1, test_iter=[2, 3])),
    ("test_iter: [1, 0x1F, 017]  test_iter: []  test_iter: -4", S(test_iter=[1, 31, 15, -4])),
    ("net:'a'display:1\r\ntest_net\t:\f'b'\v", S(net="a", display=1, test_net=["b"])),
    ("max_iter: - 4 display: -0", S(max_iter=-4, display=0)),
    ("max_iter: 2147483647 display: -0x80000000", S(max_iter=2**31 - 1, display=-(2**31))),
    ("random_seed: -9223372036854775808", S(random_seed=-(2**63))),
    ("base_lr: 1. power: .5 gamma: 1e-3", S(base_lr=1, power=0.5, gamma=1e-3)),
    ("base_lr: 1.5f power: 2F gamma: -7", S(base_lr=1.5, power=2, gamma=-7)),
    ("base_lr: inf power: -Infinity gamma: 1e99", S(base_lr=INF, power=-INF, gamma=INF)),
    ("base_lr: nan", S(base_lr=float("nan"))),
    ("solver_mode: CPU snapshot_format: 0x0", S(solver_mode="CPU", snapshot_format="HDF5")),
    ("debug_info: t snapshot_diff: f", S(debug_info=True, snapshot_diff=False)),
    ("debug_info: True snapshot_diff: False", S(debug_info=True, snapshot_diff=False)),
    ("debug_info: true snapshot_diff: 0", S(debug_info=True, snapshot_diff=False)),
    ("debug_info: 0x1 snapshot_diff: 00", S(debug_info=True, snapshot_diff=False)),
    ("", S()),
]
NETS: list[tuple[str, Message]] = [
    ("layer { name: 'a' } layer: { } layer < phase: 1 >", N(layer=[{"name": "a"}, {}, {"phase": 1}])),
    ("layer [ { name: 'a' }, < name: 'b' > ] layer: []", N(layer=[{"name": "a"}, {"name": "b"}])),
    ("state { } name # here\n : # and\n 'x' # there", N(state={}, name="x")),
    ("layer { blobs { data: [1, -inf], } };", N(layer=[{"blobs": [{"data": [1, -INF]}]}])),
]
REFUSED = [
    (S, "base_lr: 1.6\ngama: 2", "2:1: SolverParameter has no field 'gama'; did you mean 'gamma'?"),
    (
        S,
        "rampup_interval: 3",
        "1:1: SolverParameter has no field 'rampup_interval'; "
        "it belongs to nvcaffe; here the warm-up is warmup_iter, which is linear, not quadratic",
    ),
    (
        N,
        "layer { clip_param { } }",
        "1:9: LayerParameter has no field 'clip_param'; it belongs to bvlc; remove it for this Caffe",
    ),
    (
        N,
        "layer { kernel_size: 3 }",
        "1:9: LayerParameter has no field 'kernel_size'; "
        "it is a field of ConvolutionParameter and PoolingParameter; check for a missing or an extra brace",
    ),
    (S, "zzz: 1", "1:1: SolverParameter has no field 'zzz'; "
        "the fields of SolverParameter are in caffe.proto"),
    (S, "net: 'a'\nnet: 'b'", "2:1: 'net' is given twice; Caffe refuses a second one; keep one of the two"),
    (N, "state {} state {}", "1:10: 'state' is given twice; Caffe refuses a second one; keep one of the two"),
    (
        S,
        "max_iter: 2147483648",
        "1:11: 'max_iter' takes an int32, -2147483648 to 2147483647, not '2147483648'",
    ),
    (
        S,
        "max_iter:\n - 1.5",
        "2:2: 'max_iter' takes an int32, -2147483648 to 2147483647, not '- 1.5'",
    ),
    (S, "max_iter: 09", "1:11: 'max_iter' takes an int32, -2147483648 to 2147483647, not '09'"),
    (
        N,
        "bn_stats_batch_size: -0",
        "1:22: 'bn_stats_batch_size' takes a uint32, 0 to 4294967295, not '-0'",
    ),
    (S, "base_lr: 010", "1:10: 'base_lr' takes a number, not '010'; write it in decimal"),
    (S, "base_lr: 1e", "1:10: 'base_lr' takes a number, not '1e'; write it in decimal"),
    (S, "base_lr: --1", "1:10: 'base_lr' takes a number, not '--'; write it in decimal"),
    (S, "debug_info: yes", "1:13: 'debug_info' takes true or false, not 'yes'"),
    (
        S,
        "solver_mode: CPUU",
        "1:14: 'solver_mode' takes a value of SolverParameter.SolverMode, not 'CPUU'; did you mean 'CPU'?",
    ),
    (
        S,
        "solver_mode: 2",
        "1:14: 'solver_mode' takes a value of SolverParameter.SolverMode, not '2'; write CPU or GPU",
    ),
    (
        S,
        "solver_mode: 4294967297",
        "1:14: 'solver_mode' takes a value of SolverParameter.SolverMode, not '4294967297'; write CPU or GPU",
    ),
    (
        S,
        "solver_mode: -4294967295",
        "1:14: 'solver_mode' takes a value of SolverParameter.SolverMode, not '-4294967295'; "
        "write CPU or GPU",
    ),
    (
        S,
        "max_iter: 1_000",
        "1:11: 'max_iter' takes an int32, -2147483648 to 2147483647, not '1_000'; "
        "remove the '_', or put a space after the number",
    ),
    (
        S,
        "base_lr: 1_0.5",
        "1:10: 'base_lr' takes a number, not '1_0.5'; "
        "remove the '_', or put a space after the number",
    ),
    (S, "debug_info: 0_1", "1:13: 'debug_info' takes true or false, not '0_1'"),
    (
        N,
        "layer { batch_norm_param { engine: CUDNN } }",
        "1:36: 'engine' takes a value of BatchNormParameter.Engine, not 'CUDNN'; "
        "it belongs to nvcaffe; remove it for this Caffe",
    ),
    *(
        (
            N,
            f"layers {{ type: {word} }}",
            f"1:16: 'type' takes a value of V1LayerParameter.LayerType, not {word}; write `layer`: "
            "`layers` is the old format, whose types are names such as DATA, without quotes",
        )
        for word in ('"Data"', '"Convolution"', '"ReLU"')
    ),
    (
        N,
        "layers { type: RELUU }",
        "1:16: 'type' takes a value of V1LayerParameter.LayerType, not 'RELUU'; did you mean 'RELU'?",
    ),
    (
        N,
        "layer { type: SOFTMAX_LOSS }",
        "1:15: 'type' takes a string in quotes, not 'SOFTMAX_LOSS'; "
        'write a type such as "Convolution" in quotes, or `layers`, the old format',
    ),
    (S, "net: lenet", "1:6: 'net' takes a string in quotes, not 'lenet'; write \"lenet\""),
    (S, "net: 'a\nb'", "1:6: 'net' takes a string in quotes, not a string that does not end on its line"),
    (S, r"net: 'C:\data'", r"1:6: 'net' contains the invalid escape \d; a backslash is written \\"),
    (S, "net: '\\x'", "1:6: 'net' contains the invalid escape \\x; a backslash is written \\\\"),
    (S, "net: '\0'", "1:6: 'net' takes a string in quotes, not a string that does not end on its line"),
    (S, "net 'a'", "1:5: expected ':' after 'net', not 'a'"),
    (S, "display: [1]", "1:10: 'display' takes an int32, -2147483648 to 2147483647, not '['"),
    (S, "test_iter: [1 2]", "1:15: expected ',' or ']' in the list of 'test_iter', not '2'"),
    (S, "display: 1;; max_iter: 2", "1:12: expected a field of SolverParameter, not ';'; "
     "a field is written name: value, or name { ... }"),
    (N, "layer: 3", "1:8: expected '{' after 'layer', not '3'"),
    (N, "layer {\n name: 'a'\n", "1:7: this block is never closed; add a '}'"),
    (N, "layer {name: '' >", "1:17: expected a field of LayerParameter, not '>'; this block closes with '}'"),
    (N, "layer { } }", "1:11: expected a field of NetParameter, not '}'; no block is open here"),
    (S, "max_iter: ", "1:11: 'max_iter' takes an int32, -2147483648 to 2147483647, not the end of the text"),
    (S, "\x7f", "1:1: expected a field of SolverParameter, not '\\x7f'; "
     "a field is written name: value, or name { ... }"),
]  # fmt: skip


# Parses each text with protobuf's C++ parser; the texts come and the messages go as JSON.
CPP_PARSER = """
import json, os, sys
from grpc_tools import protoc
folder, texts = sys.argv[1], json.load(sys.stdin)
results, stdout = [], os.dup(1)
for name, text in texts:
    with open("text", "w+b") as source, open("message", "w+b") as target:
        source.write(text.encode())
        source.seek(0)
        os.dup2(source.fileno(), 0)
        os.dup2(target.fileno(), 1)
        failed = protoc.main(["protoc", f"-I{folder}", f"--encode=caffe.{name}", "caffe.proto"])
        target.seek(0)
        results.append(None if failed else target.read().hex())
os.write(stdout, json.dumps(results).encode())
"""


def parse_with_cpp(cases: list[tuple[type[Message], str]], folder: Path) -> list[bytes | None]:
    texts = json.dumps([(cls.DESCRIPTOR.name, text) for cls, text in cases])
    program = [sys.executable, "-c", CPP_PARSER, str(FOLDER)]
    done = subprocess.run(program, input=texts, capture_output=True, text=True, cwd=folder, check=True)
    return [None if result is None else bytes.fromhex(result) for result in json.loads(done.stdout)]


@pytest.mark.parametrize(("text", "expected"), SOLVERS + NETS)
def test_text_is_read_as(text: str, expected: Message) -> None:
    parsed = parse_prototxt(text, type(expected))
    assert parsed.SerializeToString(deterministic=True) == expected.SerializeToString(deterministic=True)


@needs_protoc
def test_the_cpp_parser_reads_the_same_texts_equally(tmp_path: Path) -> None:
    texts = [(type(expected), text) for text, expected in SOLVERS + NETS]
    ours = [parse_prototxt(text, cls).SerializeToString(deterministic=True) for cls, text in texts]
    assert parse_with_cpp(texts, tmp_path) == ours


@pytest.mark.parametrize(("cls", "text", "error"), REFUSED)
def test_text_is_refused_with(cls: type[Message], text: str, error: str) -> None:
    with pytest.raises(PrototxtError) as caught:
        parse_prototxt(text, cls, "net.prototxt")
    assert str(caught.value) == f"net.prototxt:{error}"
    assert caught.value.exit_code == 2


@needs_protoc
def test_the_cpp_parser_refuses_the_same_texts(tmp_path: Path) -> None:
    texts = [(cls, text) for cls, text, _ in REFUSED]
    taken = [
        text
        for (_, text), result in zip(texts, parse_with_cpp(texts, tmp_path), strict=True)
        if result is not None
    ]
    assert taken == []


def test_a_missing_required_field_is_refused_as_caffe_does() -> None:
    with pytest.raises(
        PrototxtError, match=r"^<text>:1:28: MnModelParallelParameter needs .* 'layer_from'; Caffe"
    ):
        parse_prototxt("multinode { model_parallel { } }", N)


def test_a_byte_order_mark_is_skipped() -> None:
    assert parse_prototxt("\ufeffnet: 'a'", S) == S(net="a")


@pytest.mark.parametrize("text", [r"net: '\xff'", r"net: '\ud83d'", "net: '\udcff'", r"net: '\U00110000'"])
def test_a_string_that_is_not_utf8_is_refused_on_one_line(text: str) -> None:
    with pytest.raises(PrototxtError, match=r"^<text>:1:6: 'net' .*$"):
        parse_prototxt(text, S)


def test_an_escape_with_a_capital_x_is_refused_naming_the_small_one() -> None:
    """Only the newest protobuf accepts it."""
    with pytest.raises(PrototxtError, match=r"1:6: 'net' contains the invalid escape \\X4a; write \\x4a$"):
        parse_prototxt(r"net: '\X4a'", S)


def test_a_bytes_field_takes_any_byte() -> None:
    assert parse_prototxt(r"data: '\377\000a'", pb.Datum).data == b"\xff\0a"


@pytest.mark.parametrize("literal", ["9" * 5000, "0x" + "f" * 5000, "x" * 5000, '"' + "y" * 5000 + '"'])
def test_a_long_value_is_shown_short(literal: str) -> None:
    with pytest.raises(PrototxtError, match=r"not .*\.\.\.") as caught:
        parse_prototxt(f"max_iter: {literal}", S)
    assert len(str(caught.value)) < 200


def test_a_long_name_is_shown_short() -> None:
    with pytest.raises(PrototxtError) as caught:
        parse_prototxt("x" * 5000, S)
    assert len(str(caught.value)) < 200


NEWER = [
    (S, "test_iter: 1\ntest_iter: []", "2:12", "test_iter", "an empty list", "2.5 to 3.0", "nothing"),
    (N, "layer: [{ }]", "1:8", "layer", "a list of blocks", "2.5", "layer { ... } for each"),
    (N, "layer { include [{ }] }", "1:17", "layer[0].include", "a list of blocks", "2.5",
     "include { ... } for each"),
    (S, "debug_info: True", "1:13", "debug_info", "True", "2.5", "true"),
    (S, "debug_info: False", "1:13", "debug_info", "False", "2.5", "false"),
    (S, "base_lr: - 18446744073709551616", "1:10", "base_lr", "an integer beyond 64 bits", "2.5 to 3.6",
     "-1.8446744e+19"),
    (S, "base_lr: 3.4028235e+38", "1:10", "base_lr", "a number above the largest float", "3.0 to 3.6",
     "3.40282346e+38"),
]  # fmt: skip


@pytest.mark.parametrize(("cls", "text", "place", "field", "what", "versions", "write"), NEWER)
def test_syntax_that_old_protobufs_cannot_read_is_reported_with_its_position(
    cls: type[Message], text: str, place: str, field: str, what: str, versions: str, write: str
) -> None:
    document = parse_document(text, "net.prototxt", cls)
    [form] = document.newer_forms
    assert document.place(form.offset) == f"net.prototxt:{place}"
    assert (form.field, form.what, form.versions, form.write) == (field, what, f"protobuf {versions}", write)
    assert form.effect == ("read it as inf" if versions == "3.0 to 3.6" else "refuse the file")


@pytest.mark.parametrize(("cls", "text"), [case[:2] for case in NEWER])
def test_canonical_text_has_no_syntax_that_old_protobufs_cannot_read(cls: type[Message], text: str) -> None:
    formatted = format_prototxt(text, cls)
    assert parse_document(formatted, "net.prototxt", cls).newer_forms == ()


def test_syntax_that_every_protobuf_reads_is_not_reported() -> None:
    text = "test_iter: [1, 2] debug_info: t snapshot_diff: 0 base_lr: 18446744073709551615 power: 1e30"
    assert parse_document(text, "net.prototxt", S).newer_forms == ()


def test_at_most_a_hundred_uses_of_newer_syntax_are_kept() -> None:
    assert len(parse_document("test_iter: [] " * 1000, "", S).newer_forms) == 100
