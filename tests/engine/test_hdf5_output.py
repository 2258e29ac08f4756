"""The files of HDF5Output layers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.hdf5_weights import render_weights
from caffe_recipes.caffe.weights import save_message
from caffe_recipes.engine.communication import Ranks
from caffe_recipes.engine.hdf5_output import HDF5Output, check_outputs
from caffe_recipes.engine.net import RunnableNet
from caffe_recipes.engine.operators.data import DataContext
from caffe_recipes.engine.signal_requests import SignalRequests
from caffe_recipes.engine.solver import Solver
from caffe_recipes.engine.subcommands import test as run_test
from caffe_recipes.engine.updates import flatten_params
from caffe_recipes.errors import InputError
from tests.engine.conftest import Run
from tests.engine.operators.test_data import QUIET, make_net

h5py = pytest.importorskip("h5py")


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """Return the rows of an HDF5Data layer."""
    monkeypatch.chdir(tmp_path)
    values = np.random.default_rng(0).standard_normal((6, 2, 3)).astype(np.float32)
    with h5py.File("a.h5", "w") as file:
        file["x"], file["label"] = values, np.arange(6, dtype=np.float32)
    Path("list").write_text("a.h5\n")
    return values


def make(
    bottoms: str = 'bottom: "x" bottom: "label"', phase: pb.Phase = pb.TEST, out: str = "out.h5"
) -> RunnableNet:
    return make_net(
        'layer { name: "d" type: "HDF5Data" top: "x" top: "label" '
        'hdf5_data_param { source: "list" batch_size: 2 } }'
        f'layer {{ name: "o" type: "HDF5Output" {bottoms} hdf5_output_param {{ file_name: "{out}" }} }}',
        phase=phase,
    )


def test_a_test_writes_all_of_its_batches_in_caffes_four_axes(rows: np.ndarray) -> None:
    net = make()
    for iterations in (2, 3):  # the second test replaces the file of the first
        run_test(net, iterations, QUIET)
        with h5py.File("out.h5") as file:
            assert file["data"].shape == (2 * iterations, 2, 3, 1) and set(file) == {"data", "label"}
            labels = file["label"][:].reshape(-1).astype(int)
            assert (file["data"][..., 0] == rows[labels]).all()
    assert labels.tolist() == [4, 5, 0, 1, 2, 3]


def test_only_the_batches_of_a_test_are_kept(rows: np.ndarray) -> None:
    net = make()
    net.forward()  # as `predict` and `time` do
    run_test(net, 1, QUIET)
    net.forward()
    with h5py.File("out.h5") as file:
        assert file["label"][:].reshape(-1).tolist() == [2, 3]
    run_test(net, 1, QUIET)
    with h5py.File("out.h5") as file:
        assert file["label"][:].reshape(-1).tolist() == [0, 1]


def test_a_blob_in_bfloat16_is_written_as_float32(rows: np.ndarray) -> None:
    net = make_net(
        'layer { name: "d" type: "HDF5Data" top: "x" top: "label" '
        'hdf5_data_param { source: "list" batch_size: 2 } }'
        'layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip" '
        "inner_product_param { num_output: 4 } }"
        'layer { name: "o" type: "HDF5Output" bottom: "ip" bottom: "label" '
        'hdf5_output_param { file_name: "out.h5" } }',
        DataContext(0, 1, 0, 0, QUIET, uses_bf16=True),
        pb.TEST,
    )
    run_test(net, 1, QUIET)
    with h5py.File("out.h5") as file:
        assert file["data"].dtype == np.float32 and file["data"].shape == (2, 4, 1, 1)


@pytest.mark.parametrize(
    ("bottoms", "phase", "out", "what"),
    [
        ('bottom: "x" bottom: "label"', pb.TRAIN, "out.h5", "is in phase TRAIN, where Caffe stops"),
        ('bottom: "x" bottom: "label"', pb.TEST, "none/out.h5", "none/out.h5"),
        ('bottom: "x" bottom: "label"', pb.TEST, ".", "cannot be written"),
        ('bottom: "x"', pb.TEST, "out.h5", "takes 2 bottoms"),
    ],
)
def test_what_cannot_be_written_is_refused_before_anything_is_read(
    rows: np.ndarray, bottoms: str, phase: pb.Phase, out: str, what: str
) -> None:
    with pytest.raises(InputError, match=what):
        make(bottoms, phase, out)
    assert not Path("out.h5").exists()


def layer_of(net: RunnableNet) -> tuple[str, HDF5Output]:
    return "net", next(node.output for node in net.nodes if node.output is not None)


def write_text(path: Path) -> None:
    path.write_text("text")


def write_weights(path: Path) -> None:
    path.write_bytes(render_weights([("ip", [pb.BlobProto(shape=pb.BlobShape(dim=[1]), data=[1.0])])]))


def write_rows(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["data"], file["label"] = np.ones((2, 3, 4, 5), np.float32), np.ones(2, np.float32)


@pytest.mark.parametrize("write", [write_text, write_weights, write_rows])
def test_a_file_that_no_such_layer_wrote_stays(rows: np.ndarray, write: Callable[[Path], None]) -> None:
    write(Path("out.h5"))
    before = Path("out.h5").read_bytes()
    with pytest.raises(InputError, match=r"layer 'o' .*would write over out\.h5, which no HDF5Output wrote"):
        make()
    assert Path("out.h5").read_bytes() == before


def test_what_a_run_reads_or_another_layer_or_a_snapshot_writes_is_no_output(rows: np.ndarray) -> None:
    run_test(make(), 1, QUIET)
    Path("link.h5").symlink_to("out.h5")
    output, other = layer_of(make(out="link.h5")), layer_of(make())
    for outputs, read, prefix, what in (
        ([output], ["a.h5", "./out.h5"], "", r"link\.h5, which this run reads"),
        ([output, other], [], "", r"writes to out\.h5, as layer 'o' \(HDF5Output\) does"),
    ):
        with pytest.raises(InputError, match=what):
            check_outputs(outputs, read, prefix)
    named = layer_of(make(out="s_iter_2.caffemodel.h5"))
    with pytest.raises(InputError, match="has the name of a snapshot of this run"):
        check_outputs([named], [], "./s")
    check_outputs([output, named], ["a.h5"], "out")


def test_a_test_refuses_to_write_over_its_own_rows(rows: np.ndarray, run: Run) -> None:
    run_test(make(), 3, QUIET)
    Path("list").write_text("out.h5\n")
    Path("net.prototxt").write_text(
        'layer { name: "d" type: "HDF5Data" top: "data" top: "label" '
        'hdf5_data_param { source: "list" batch_size: 2 } }'
        'layer { name: "o" type: "HDF5Output" bottom: "data" bottom: "label" '
        'hdf5_output_param { file_name: "out.h5" } }'
    )
    before = Path("out.h5").read_bytes()
    learned = pb.LayerParameter(name="l", blobs=[pb.BlobProto(shape=pb.BlobShape(dim=[1]), data=[0])])
    save_message(pb.NetParameter(layer=[learned]), "w.caffemodel")
    code, text = run("test", "-model", "net.prototxt", "-weights", "w.caffemodel")
    assert (code, Path("out.h5").read_bytes()) == (2, before)
    assert "net.prototxt: layer 'o' (HDF5Output): would write over out.h5, which this run reads" in text


def test_each_test_of_a_training_replaces_the_file(rows: np.ndarray) -> None:
    param = pb.SolverParameter(
        base_lr=0.1,
        lr_policy="fixed",
        type="SGD",
        max_iter=0,
        test_iter=[2],
        test_interval=1,
        snapshot_after_train=False,
    )
    train = make_net('layer { name: "p" type: "Parameter" top: "p" parameter_param { shape { dim: 1 } } }')
    groups = flatten_params(train, param)
    Solver(param, train, groups, [make()], Ranks(), SignalRequests(), QUIET).solve()
    with h5py.File("out.h5") as file:
        assert (file["data"][..., 0] == rows[:4]).all()
