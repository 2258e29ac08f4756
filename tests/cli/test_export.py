"""The command line of `caffe-recipes export`."""

from __future__ import annotations

from pathlib import Path

from tests.cli.command_line import call_main
from tests.cli.test_classify import make_model
from tests.engine.test_predictor import write_model
from tests.extras import needs_onnx


@needs_onnx
def test_a_model_is_written_in_both_formats(tmp_path: Path) -> None:
    make_model(tmp_path)
    done = call_main("export", ".", "-o", "n.onnx", cwd=tmp_path)
    assert done.stdout.startswith("wrote n.onnx: a batch of any size; onnxruntime agrees within ")
    assert (done.returncode, (tmp_path / "n.onnx").is_file()) == (0, True)
    done = call_main("export", ".", "-o", "n.safetensors", cwd=tmp_path)
    assert done.stdout == "wrote n.safetensors: 2 tensors, 245 values\n"


@needs_onnx
def test_loose_files_are_exported_too(tmp_path: Path) -> None:
    net, weights = write_model(tmp_path)
    words = ("--net", net, "--weights", weights, "--mean", "10,20,30", "-o", tmp_path / "n.onnx")
    assert call_main("export", *words).returncode == 0


def test_what_cannot_be_exported_is_one_line_and_writes_nothing(tmp_path: Path) -> None:
    make_model(tmp_path)
    before = sorted(tmp_path.iterdir())
    for words in (
        (".", "-o", "n.txt"),
        ("absent", "-o", "n.onnx"),
        ("-o", "n.onnx"),
        (".", "--net", "deploy.prototxt", "-o", "n.safetensors"),
    ):
        done = call_main("export", *words, cwd=tmp_path)
        assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1), done.stderr
    assert sorted(tmp_path.iterdir()) == before


def test_the_weights_are_not_written_over(tmp_path: Path) -> None:
    net, weights = write_model(tmp_path)
    given = Path(weights).rename(tmp_path / "n.onnx")
    before = given.read_bytes()
    for out in ("n.onnx", "./n.onnx"):
        words = ("--net", net, "--weights", given, "-o", out)
        done = call_main("export", *words, cwd=tmp_path)
        assert (done.returncode, given.read_bytes()) == (2, before)
        assert done.stderr == "Error: n.onnx: is an input of this command; give another file with --out\n"
