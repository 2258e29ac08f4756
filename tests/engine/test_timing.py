"""`caffe-torch time`: the times of each layer, and a trace."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
import torch

from caffe_recipes.engine.glog import Log
from caffe_recipes.engine.main import main
from caffe_recipes.engine.timing import LayerTimes, load_timed_net, time_net

NET = """\
layer { name: "data" type: "DummyData" top: "data" top: "label"
  dummy_data_param { shape { dim: 4 dim: 3 dim: 8 dim: 8 } shape { dim: 4 }
    data_filler { type: "gaussian" } data_filler { type: "constant" value: 1 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "msra" } } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "fc" type: "InnerProduct" bottom: "conv" top: "fc"
  inner_product_param { num_output: 3 weight_filler { type: "msra" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "fc" bottom: "label" top: "loss"
  include { phase: TRAIN } }
"""
_TIME = re.compile(r"\] +(\S+)\t(forward|backward): (\S+) ms\.")


def timed(path: Path, phase: str = "") -> tuple[dict[tuple[str, str], float], str]:
    stream = io.StringIO()
    log = Log(stream=stream)
    net = load_timed_net(str(path), (), phase, 0, [""], log, "cpu")
    time_net(net, 2, "cpu", log)
    text = stream.getvalue()
    return {(layer, way): float(ms) for layer, way, ms in _TIME.findall(text)}, text


@pytest.fixture
def net(tmp_path: Path) -> Path:
    path = tmp_path / "net.prototxt"
    path.write_text(NET)
    return path


def test_the_times_of_the_layers_add_up_to_those_of_the_passes(net: Path) -> None:
    found, text = timed(net)
    assert [layer for layer, way in found if way == "forward"] == ["data", "conv", "relu", "fc", "loss"]
    assert found["data", "backward"] == 0
    for way, name in (("forward", "Forward"), ("backward", "Backward")):
        of_layers = sum(ms for (_, of), ms in found.items() if of == way)
        of_pass = re.search(rf"Average {name} pass: (\S+) ms", text)
        assert of_pass is not None and 0 < of_layers <= float(of_pass[1])
    for layer in ("conv", "relu", "fc", "loss"):
        assert found[layer, "backward"] > 0
    rate = re.search(r"\] (\S+) images/s", text)
    total = re.search(r"Total Time: (\S+) ms", text)
    assert rate is not None and total is not None
    assert float(rate[1]) == pytest.approx(1000 * 2 * 4 / float(total[1]), rel=1e-4)


def test_the_gpu_that_is_timed_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    LayerTimes("cuda:1").now_s()
    assert waited == ["cuda:1"]


def test_a_net_without_a_loss_has_no_backward_pass(net: Path) -> None:
    found, _ = timed(net, "TEST")
    assert {ms for (_, way), ms in found.items() if way == "backward"} == {0}
    assert ("loss", "forward") not in found


def test_a_trace_names_the_layers(net: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = net.parent / "trace.json"
    assert main(["time", "-model", str(net), "-iterations", "1", "-trace", str(out)]) == 0
    names = {event.get("name") for event in json.loads(out.read_text())["traceEvents"]}
    assert {"conv", "relu", "fc", "loss"} <= names
    assert not [line for line in capfd.readouterr().err.splitlines() if "profiler_st" in line]
    assert sorted(path.name for path in net.parent.iterdir()) == ["net.prototxt", "trace.json"]


LONG = "a" * 250 + ".json"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ((), "time: no model; give -model FILE"),
        (("-phase", "X"), "-phase 'X' is unknown; give TRAIN or TEST"),
        (("-trace", "missing/t.json"), "missing/t.json: the folder missing does not exist; create it"),
        (("-trace", LONG), f"{LONG}: cannot be written: File name too long; give another file with -trace"),
    ],
)
def test_bad_flags_are_one_line(
    net: Path, words: tuple[str, ...], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("-model", str(net), *words) if words else ()
    assert main(["time", *given]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"caffe-torch: {line}"
