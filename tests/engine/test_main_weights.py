"""The command line: weights and snapshots to start from, and those that are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.prototxt import load_prototxt
from caffe_recipes.caffe.weights import check_weights, load_weights
from tests.engine.conftest import only_line

Run = Callable[..., tuple[int, str]]
Change = Callable[..., None]


@pytest.mark.parametrize(
    "content", [b"", b"<html>not found</html>", b"\x00\xff" * 50, b"net: 'x'\nbase_lr: 1\n"]
)
@pytest.mark.parametrize("flag", ["-weights", "-snapshot"])
def test_files_that_caffe_would_accept_as_weights_are_refused(
    case: Path, run: Run, content: bytes, flag: str
) -> None:
    (case / "w").write_bytes(content)
    code, log = run("train", "-solver", "solver.prototxt", flag, "w")
    assert code == 2
    assert only_line(log).startswith("caffe-torch: w: ")


def test_a_truncated_snapshot_is_refused(case: Path, run: Run) -> None:
    assert run("train", "-solver", "solver.prototxt")[0] == 0
    whole = (case / "run_iter_6.caffemodel").read_bytes()
    (case / "cut.caffemodel").write_bytes(whole[: len(whole) // 2])
    code, log = run("train", "-solver", "solver.prototxt", "-weights", "cut.caffemodel")
    assert code == 2
    assert "cut.caffemodel" in only_line(log)


def test_weights_of_another_net_are_refused(case: Path, run: Run, change: Change) -> None:
    assert run("train", "-solver", "solver.prototxt")[0] == 0
    change(case / "net.prototxt", ('name: "ip"', 'name: "other"'))
    code, log = run("train", "-solver", "solver.prototxt", "-weights", "run_iter_6.caffemodel")
    assert code == 2
    assert "has no layer in common with net.prototxt" in only_line(log)


def test_weights_of_another_shape_are_refused_with_both_shapes(case: Path, run: Run, change: Change) -> None:
    assert run("train", "-solver", "solver.prototxt")[0] == 0
    change(case / "net.prototxt", ("num_output: 3", "num_output: 5"))
    code, log = run("train", "-solver", "solver.prototxt", "-weights", "run_iter_6.caffemodel")
    assert code == 2
    assert "3x16" in only_line(log)
    assert "5x16" in only_line(log)
    assert only_line(log).endswith("give -new_layers ip to train from fillers")
    for words in (("test",), ("predict", "-out", "o.npz"), ("time",)):  # which have no such flag
        code, log = run(*words, "-model", "net.prototxt", "-weights", "run_iter_6.caffemodel")
        assert (code, "-new_layers" in log) == (2, False)
        assert only_line(log).endswith("in net.prototxt; give the weights of this net")
    code, log = run("train", "-solver", "solver.prototxt", "-snapshot", "run_iter_6.solverstate")
    assert (code, "-new_layers" in log) == (2, False)
    assert only_line(log).endswith("in net.prototxt; resume with the net that wrote the snapshot")


def test_a_renamed_layer_is_refused_unless_it_is_declared_new(case: Path, run: Run, change: Change) -> None:
    two = (
        'layer { name: "hid" type: "InnerProduct" bottom: "data" top: "hid" '
        'inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }\n'
    )
    head = 'layer { name: "ip" type: "InnerProduct" bottom: "data"'
    change(case / "net.prototxt", (head, two + head.replace('"data"', '"hid"')))
    assert run("train", "-solver", "solver.prototxt")[0] == 0
    change(case / "net.prototxt", ('name: "ip"', 'name: "ip_new"'))
    code, log = run("train", "-solver", "solver.prototxt", "-weights", "run_iter_6.caffemodel")
    assert code == 2
    why = "net.prototxt: layer 'ip_new' is not in run_iter_6.caffemodel, which has 'ip'; rename it, or give "
    assert why + "-new_layers ip_new" in only_line(log)
    tested = ("test", "-model", "net.prototxt", "-weights", "run_iter_6.caffemodel")
    code, log = run(*tested)
    assert code == 2
    assert "layer 'ip_new' is not in run_iter_6.caffemodel, which has 'ip'" in only_line(log)
    wanted = ("-weights", "run_iter_6.caffemodel", "-new_layers", "ip_new")
    code, log = run("train", "-solver", "solver.prototxt", *wanted)
    assert code == 0
    assert "Ignoring source layer ip\n" in log


def test_a_new_layer_starts_from_its_fillers_whatever_the_weights_hold(
    case: Path, run: Run, change: Change
) -> None:
    hidden = (
        'layer { name: "hid" type: "InnerProduct" bottom: "data" top: "hid" '
        'inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }\n'
    )
    head = 'layer { name: "ip" type: "InnerProduct" bottom: "data"'
    change(case / "net.prototxt", (head, hidden + head.replace('"data"', '"hid"')))
    assert run("train", "-solver", "solver.prototxt")[0] == 0
    change(case / "net.prototxt", ("num_output: 3", "num_output: 5"))
    change(case / "solver.prototxt", ("max_iter: 6", "max_iter: 0"))
    words = ("-weights", "run_iter_6.caffemodel", "-new_layers", "ip")
    assert run("train", "-solver", "solver.prototxt", *words)[0] == 0
    old, new = (
        {layer.name: layer for layer in pb.NetParameter.FromString((case / name).read_bytes()).layer}
        for name in ("run_iter_6.caffemodel", "run_iter_0.caffemodel")
    )
    assert new["hid"].blobs == old["hid"].blobs
    assert len(new["ip"].blobs[0].data) == 5 * 4


def test_layers_may_come_from_several_files(case: Path, run: Run, change: Change) -> None:
    assert run("train", "-solver", "solver.prototxt")[0] == 0
    whole = pb.NetParameter.FromString((case / "run_iter_6.caffemodel").read_bytes())
    more = (
        'layer { name: "more" type: "InnerProduct" bottom: "ip" top: "more" '
        "inner_product_param { num_output: 3 bias_term: false } }\n"
    )
    tail = 'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip"'
    change(case / "net.prototxt", (tail, more + tail.replace('"ip"', '"more"')))
    for layer in whole.layer:
        layer.name = layer.name.replace("ip", "more")
        del layer.blobs[1:]
        if layer.blobs:
            layer.blobs[0].shape.dim[:] = [3, 3]
            layer.blobs[0].data[:] = [1.0] * 9
    (case / "more.caffemodel").write_bytes(whole.SerializeToString())
    words = ("train", "-solver", "solver.prototxt", "-weights", "run_iter_6.caffemodel,more.caffemodel")
    code, log = run(*words)
    assert code == 0, log[-1000:]


def test_blobs_without_axes_are_read_as_caffe_writes_them(case: Path, run: Run, change: Change) -> None:
    act = """layer { name: "act" type: "PReLU" bottom: "ip" top: "act" prelu_param { channel_shared: true } }
    layer { name: "by" type: "Scale" bottom: "act" top: "by"
      scale_param { axis: 0 num_axes: 0 bias_term: true } }
    """
    change(case / "net.prototxt", ('layer { name: "loss"', act + 'layer { name: "loss"'))
    change(case / "net.prototxt", ('bottom: "ip" bottom: "label"', 'bottom: "by" bottom: "label"'))
    assert run("train", "-solver", "solver.prototxt")[0] == 0
    path = case / "run_iter_6.caffemodel"
    net = pb.NetParameter.FromString(path.read_bytes())
    for layer in net.layer[2:4]:
        for blob in layer.blobs:
            assert list(blob.shape.dim) == []
            blob.ClearField("shape")  # Caffe writes none for a blob without axes
    path.write_bytes(net.SerializeToString())
    code, log = run("train", "-solver", "solver.prototxt", "-weights", str(path))
    assert code == 0, log[-500:]
    assert check_weights(load_weights(path), load_prototxt(case / "net.prototxt", pb.NetParameter)) == []


@pytest.mark.parametrize(
    "words",
    [
        ("train", "-solver", "solver.prototxt", "-weights", "absent"),
        ("train", "-solver", "solver.prototxt", "-snapshot", "absent"),
        ("test", "-model", "net.prototxt", "-weights", "absent"),
        ("predict", "-model", "net.prototxt", "-weights", "absent", "-out", "o.npz"),
        ("time", "-model", "net.prototxt", "-weights", "absent"),
    ],
)
def test_weights_that_are_not_there_are_found_before_the_net_is_set_up(
    case: Path, run: Run, words: tuple[str, ...]
) -> None:
    code, log = run(*words)
    assert (code, "Opened lmdb" in log) == (2, False)
    assert only_line(log).startswith("caffe-torch: absent: no such file; give the path to a ")


@pytest.mark.parametrize(
    "words",
    [
        ("train", "-solver", "solver.prototxt"),
        ("test", "-model", "net.prototxt"),
        ("predict", "-model", "net.prototxt", "-out", "o.npz"),
        ("time", "-model", "net.prototxt"),
    ],
)
@pytest.mark.parametrize("content", [b"text", b"\x00\xff" * 50])
def test_a_file_that_is_not_weights_is_refused_before_the_net_is_set_up(
    case: Path, run: Run, words: tuple[str, ...], content: bytes
) -> None:
    (case / "w").write_bytes(content)
    code, log = run(*words, "-weights", "w")
    assert (code, len(log.splitlines()) < 4) == (2, True), log
    assert only_line(log).startswith("caffe-torch: w: is ")


def test_a_part_of_a_name_with_a_comma_is_refused_with_the_reason(case: Path, run: Run) -> None:
    (case / "a,b").write_bytes(b"weights")
    code, log = run("test", "-model", "net.prototxt", "-weights", "a,b")
    assert code == 2
    why = "-weights is split at commas, as in Caffe; rename a file whose name has one"
    assert only_line(log) == f"caffe-torch: a: no such file; {why}"
    (case / "a,b").unlink()
    code, log = run("test", "-model", "net.prototxt", "-weights", "a,b")
    assert (code, only_line(log)) == (2, "caffe-torch: a: no such file; give the path to a caffemodel")
