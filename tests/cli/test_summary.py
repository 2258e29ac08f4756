"""`caffe-recipes summary` from the outside: what it prints where, what it writes, how it exits."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.cli.command_line import call_main

ROOT = Path(__file__).parents[2]
RESNET50 = str(ROOT / "prototxt" / "stampede2-64n-72ep" / "train_val.prototxt")
NET = """
layer { name: 'data' type: 'Input' top: 'data' input_param { shape { dim: 2 dim: 3 dim: 9 dim: 9 } } }
layer { name: 'c' type: 'Convolution' bottom: 'data' top: 'c'
  convolution_param { num_output: 4 kernel_size: 3 } }
"""


def summary(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return call_main("summary", *arguments, cwd=cwd)


@pytest.fixture
def net(tmp_path: Path) -> Path:
    (tmp_path / "net.prototxt").write_text(NET)
    return tmp_path / "net.prototxt"


def test_the_table_ends_in_the_published_totals() -> None:
    done = summary(RESNET50)
    assert done.returncode == 0
    assert "learned parameters     25,557,096 (97.5 MiB)" in done.stdout
    assert "batch-norm statistics  53,173\n" in done.stdout
    assert "multiply-adds          4,089,184,256 per image" in done.stdout


def test_json_and_graph_go_together(net: Path) -> None:
    graph = net.with_name("out.svg")
    done = summary(net, "--json", "--graph", graph)
    assert done.returncode == 0
    assert json.loads(done.stdout)["totals"]["parameters"] == 112
    assert done.stderr == f"wrote {graph}\n"
    assert ElementTree.parse(graph).getroot().tag.endswith("svg")
    assert sorted(path.name for path in net.parent.iterdir()) == ["net.prototxt", "out.svg"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["net.prototxt", "--graph", "out.gif"],
            "out.gif: is not a picture file; end it in .svg",
        ),
        (["net.prototxt", "--graph", "net.prototxt/out.svg"], "net.prototxt"),
        (["net.prototxt", "--graph", "gone/out.svg"], "the folder gone does not exist; create it"),
        (["net.prototxt", "--input", "3,9"], "'3,9' is not channels,height,width"),
        (["net.prototxt", "--input", "3,0,9"], "is not channels,height,width"),
        (["net.prototxt", "--input", "3,²,9"], "is not channels,height,width"),
        (["net.prototxt", "--input", "3,9,9"], "already has the size of all its inputs"),
        (
            ["python.prototxt", "--input", "3,9,9"],
            "layer 'p' (Python) produces blobs whose shapes are known only at run time",
        ),
        (["net.prototxt", "--batch", "0"], "--batch"),
        (["net.prototxt", "--phase", "train"], "--phase"),
        (["net.prototxt", "--max-bytes", "10"], "is over 10 bytes"),
        (["missing.prototxt"], "missing.prototxt: cannot be read"),
        (["stampede2-64n-72epp"], "did you mean 'stampede2-64n-72ep'?"),
        (["stampede2-64n-72ep:nett"], "no net 'nett'"),
        (["."], "is a folder with several nets; give one: ./net.prototxt, "),
        (["wrong.prototxt"], "wrong.prototxt:3:19: layer 'c' (Convolution) has kernel_size 11"),
        (["solver.prototxt"], "its net 'gone.prototxt' was not found; give --caffe-root"),
        (["net.prototxt", "--caffe-root", "/nonexistent"], "Directory '/nonexistent' does not exist"),
    ],
)
def test_bad_input_is_one_line_exit_2_and_nothing_written(
    net: Path, arguments: list[str], message: str
) -> None:
    folder = net.parent
    (folder / "wrong.prototxt").write_text(NET.replace("kernel_size: 3", "kernel_size: 11"))
    (folder / "solver.prototxt").write_text("base_lr: 1 net: 'gone.prototxt'")
    python = "layer { name: 'p' type: 'Python' top: 'data' python_param { module: 'm' layer: 'L' } }"
    (folder / "python.prototxt").write_text(python)
    before = sorted(folder.iterdir())
    done = summary(*arguments, cwd=folder)
    assert done.returncode == 2, done
    assert message in done.stderr
    assert len([line for line in done.stderr.splitlines() if line.startswith("Error")]) == 1
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize(("name", "mark"), [("out.png", b"\x89PNG"), ("out.pdf", b"%PDF")])
def test_the_graph_s_kind_follows_from_its_name(net: Path, name: str, mark: bytes) -> None:
    done = summary(net, "--graph", net.with_name(name))
    assert (done.returncode, done.stderr) == (0, f"wrote {net.with_name(name)}\n")
    assert net.with_name(name).read_bytes().startswith(mark)


def test_a_pipe_gets_the_columns_of_a_terminal_and_wide_gets_all(net: Path) -> None:
    assert "layer  type         kernel  output" in summary(net).stdout
    assert "bottoms -> tops" in summary(net, "--wide").stdout


_INPUT = "input: 'x' input_dim: 1 input_dim: 3 input_dim: 4 input_dim: 4"
_TWINS = """layer { name: 'c' type: 'DummyData' top: 'x' dummy_data_param { shape { dim: 2 } }
  include { phase: TEST } }
layer { name: 'd' type: 'DummyData' top: 'x' dummy_data_param { shape { dim: 2 dim: 3 dim: 4 dim: 4 } }
  include { phase: TRAIN } }
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (f"{_TWINS}layer {{ name: 'c' bottom: 'x' top: 'y' }}", "5:1"),
        (f"{_TWINS}layer {{ name: 'c' type: 'ReLU' bottom: 'z' top: 'y' }}", "5:19"),
        (
            f"{_INPUT}\nlayers {{ name: 'c' type: POOLING\n bottom: 'x' top: 'y' }}",
            "2:20",
        ),
        (
            f"{_INPUT}\nlayer {{ name: 'c' type: 'Pooling'\n bottom: 'x' top: 'y' }}",
            "2:19",
        ),
    ],
)
def test_an_error_of_a_layer_names_its_line(tmp_path: Path, text: str, line: str) -> None:
    (tmp_path / "net.prototxt").write_text(text)
    done = summary("net.prototxt", "--phase", "TRAIN", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"Error: net.prototxt:{line}: layer 'c'")


def test_unknown_shapes_are_explained_by_the_missing_lmdb(tmp_path: Path) -> None:
    data = "name: 'd' type: 'Data' top: 'x' data_param { source: 'lmdbs/train' batch_size: 4 }"
    (tmp_path / "net.prototxt").write_text(f"layer {{ {data} }}")
    printed = " ".join(
        summary("net.prototxt", cwd=tmp_path).stdout.split()
    )  # in lines as wide as the terminal
    what = "does not set the size of its images, and its LMDB lmdbs/train was not found"
    assert printed.endswith(f"layer 'd' (Data) {what}: give --input C,H,W")


@pytest.mark.parametrize("form", ["--csv", "--json"])
def test_csv_and_json_have_all_columns_with_and_without_wide(net: Path, form: str) -> None:
    assert summary(net, form, "--wide").stdout == summary(net, form).stdout
    assert summary(net, "--wide", form).stdout == summary(net, form).stdout


def test_csv_and_json_contradict_each_other(net: Path) -> None:
    done = summary(net, "--csv", "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "Error: --csv: cannot be combined with --json; give one of them\n"


def test_columns_limits_the_lines_of_a_pipe_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert max(map(len, summary(RESNET50).stdout.splitlines())) > 80
    monkeypatch.setenv("COLUMNS", "80")
    assert max(map(len, summary(RESNET50).stdout.splitlines())) <= 80


def test_a_graph_that_cannot_be_drawn_keeps_the_old_one(net: Path) -> None:
    graph = net.with_name("out.svg")
    graph.write_text("old")
    net.write_text(NET.replace("kernel_size: 3", "kernel_size: 11"))
    assert summary(net, "--graph", graph).returncode == 2
    assert graph.read_text() == "old"


def test_summary_loads_neither_torch_nor_numpy() -> None:
    code = (
        "import sys; from caffe_recipes.cli.summary import summary; "
        f"summary.main([{RESNET50!r}], standalone_mode=False); "
        "print(sorted({'torch', 'numpy', 'pydantic', 'lmdb', 'cv2', 'paramiko'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600
    )
    assert done.stdout.splitlines()[-1] == "[]"
