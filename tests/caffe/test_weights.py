import os
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from google.protobuf.message import EncodeError, Message

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.prototxt import load_prototxt, parse_prototxt
from caffe_recipes.caffe.weights import (
    blob_shape,
    blob_values,
    check_solverstate,
    check_weights,
    load_solverstate,
    load_weights,
    save_message,
    serialize,
    weights_bytes,
)
from caffe_recipes.errors import WeightsError

REFERENCE = Path(__file__).parents[3] / "shared" / "reference"
needs_reference = pytest.mark.skipif(not REFERENCE.is_dir(), reason="../shared/reference is not here")

NET = parse_prototxt(
    """name: "tiny"
    layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }
    layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y" inner_product_param { num_output: 4 } }
    layer { name: "act" type: "PReLU" bottom: "y" top: "y" prelu_param { channel_shared: true } }""",
    pb.NetParameter,
    "tiny.prototxt",
)


def blob(*shape: int, value: float = 0.5) -> pb.BlobProto:
    count = 1
    for dim in shape:
        count *= dim
    return pb.BlobProto(shape=pb.BlobShape(dim=shape), data=[value] * count)


def tiny_weights() -> pb.NetParameter:
    """Give weights that fit NET."""
    weights = pb.NetParameter(name="tiny")
    weights.layer.add(name="in", type="Input")
    weights.layer.add(name="ip", type="InnerProduct", blobs=[blob(4, 3), blob(4)])
    weights.layer.add(name="act", type="PReLU", blobs=[pb.BlobProto(data=[0.25])])
    return weights


def tiny_state() -> pb.SolverState:
    return pb.SolverState(iter=5, learned_net="tiny_iter_5.caffemodel", history=[blob(4, 3), blob(4)])


def test_weights_come_back_as_they_were_saved(tmp_path: Path) -> None:
    save_message(tiny_weights(), tmp_path / "w.caffemodel")
    assert load_weights(tmp_path / "w.caffemodel") == tiny_weights()
    save_message(tiny_state(), tmp_path / "s.solverstate")
    assert load_solverstate(tmp_path / "s.solverstate") == tiny_state()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s.solverstate", "w.caffemodel"]


def test_a_solverstate_of_a_negative_iteration_is_refused(tmp_path: Path) -> None:
    state = tiny_state()
    state.iter = -1
    save_message(state, tmp_path / "s.solverstate")
    with pytest.raises(WeightsError, match=r"its iteration is negative \(-1\)"):
        load_solverstate(tmp_path / "s.solverstate")


@needs_reference
@pytest.mark.parametrize(
    "name", ["p1_lenet/init", "p1_lenet/lenet_iter_60", "p2_miniresnet/a_iter_40", "p2_miniresnet/b_iter_30"]
)
def test_caffes_own_snapshots_fit_their_nets(name: str) -> None:
    path = REFERENCE / "parity" / f"{name}.caffemodel"
    net = load_prototxt(path.parent / "net.prototxt", pb.NetParameter)
    assert check_weights(load_weights(path), net) == []


@needs_reference
def test_caffes_own_solverstate_is_read() -> None:
    state = load_solverstate(REFERENCE / "parity" / "p2_miniresnet" / "a_iter_20.solverstate")
    assert (state.iter, state.learned_net, len(state.history)) == (20, "a_iter_20.caffemodel", 39)


@needs_reference
def test_caffes_own_solverstate_fits_its_net() -> None:
    case = REFERENCE / "parity" / "p2_miniresnet"
    net = load_prototxt(case / "net.prototxt", pb.NetParameter)
    state = load_solverstate(case / "a_iter_20.solverstate")
    assert check_solverstate(state, net, at_most_iter=40) == []
    assert check_solverstate(state, NET, at_most_iter=40) == [
        "it has 39 blobs of history, but the net has 3 parameters"
    ]


@needs_reference
def test_expected_size_is_a_little_below_the_size_caffe_wrote() -> None:
    case = REFERENCE / "parity" / "p2_miniresnet"
    expected = weights_bytes(load_prototxt(case / "net.prototxt", pb.NetParameter))
    assert expected is not None
    assert 0.8 < expected / (case / "a_iter_40.caffemodel").stat().st_size < 1
    resnet = REFERENCE / "surfsara" / "resnet50_custom_lr" / "train_val.prototxt"
    assert weights_bytes(load_prototxt(resnet, pb.NetParameter)) == 4 * (25_557_096 + 53_173)


def test_expected_size_is_unknown_where_a_shape_is() -> None:
    assert weights_bytes(NET) == 4 * (12 + 4 + 1)
    unseen = parse_prototxt(
        """layer { name: "d" type: "Data" top: "data" data_param { batch_size: 1 } }
        layer { name: "ip" type: "InnerProduct" bottom: "data" top: "y"
                inner_product_param { num_output: 4 } }""",
        pb.NetParameter,
        "unseen.prototxt",
    )
    assert weights_bytes(unseen) is None
    assert check_weights(pb.NetParameter(layer=[tiny_weights().layer[1]]), unseen) == []


def whole_state() -> pb.SolverState:
    """Give a solverstate that fits NET."""
    history = [blob(4, 3), blob(4), pb.BlobProto(data=[0.25])]
    return pb.SolverState(iter=5, learned_net="tiny_iter_5.caffemodel", history=history)


@pytest.mark.parametrize("times", [1, 2])
def test_a_history_has_a_blob_or_two_for_each_parameter(times: int) -> None:
    state = whole_state()
    state.history.extend(list(state.history) * (times - 1))
    assert check_solverstate(state, NET, at_most_iter=5) == []
    del state.history[-1]
    assert check_solverstate(state, NET, at_most_iter=5) == [
        f"it has {len(state.history)} blobs of history, but the net has 3 parameters"
    ]


def test_parts_of_a_solverstate_that_do_not_fit_are_named() -> None:
    state = whole_state()
    state.history[0].CopyFrom(blob(3, 4))
    state.history[1].data[2] = float("nan")
    state.iter = 6
    assert check_solverstate(state, NET, at_most_iter=5) == [
        "its iteration is 6; expected 1 to 5",
        "history 0 is 3x4, not 4x3",
        "history 1 has 1 of 4 values that are not finite, such as nan",
    ]
    assert check_solverstate(state, NET, at_most_iter=6)[0] == "history 0 is 3x4, not 4x3"
    state.iter = 0
    assert check_solverstate(state, NET, at_most_iter=6)[0] == "its iteration is 0; expected 1 to 6"


def test_a_parameter_that_layers_share_has_one_history() -> None:
    shared = pb.NetParameter()
    shared.CopyFrom(NET)
    shared.layer[1].param.add(name="w")
    shared.layer[2].param.add(name="s")
    twin = shared.layer.add()
    twin.CopyFrom(shared.layer[2])
    twin.name = "act2"
    assert check_solverstate(whole_state(), shared, at_most_iter=5) == []


def test_for_a_net_of_unknown_shapes_the_values_are_checked() -> None:
    odd = pb.NetParameter(layer=[pb.LayerParameter(name="x", type="Unheard")], name="odd")
    state = whole_state()
    assert check_solverstate(state, odd, at_most_iter=5) == []
    state.history[0].data[0] = float("inf")
    assert check_solverstate(state, odd, at_most_iter=5) == [
        "history 0 has 1 of 12 values that are not finite, such as inf"
    ]


def without_blobs() -> bytes:
    return pb.NetParameter(name="n", layer=[pb.LayerParameter(name="relu")]).SerializeToString()


def misfilled() -> bytes:
    weights = tiny_weights()
    weights.layer[1].blobs[0].data.pop()
    return weights.SerializeToString()


def with_axes(axes: int, dim: int = 1) -> bytes:
    layer = pb.LayerParameter(blobs=[pb.BlobProto(shape=pb.BlobShape(dim=[dim] * axes), data=[1])])
    return pb.NetParameter(layer=[layer]).SerializeToString()


NOT_WEIGHTS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty"),
    "html": (b"\n<!DOCTYPE html><html><body>404</body></html>", "is an HTML page"),
    "html_in_capitals": (b"<HTML><HEAD>", "is an HTML page"),
    "text": ("Grüße".encode(), "is a text file"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:1", "is a Git LFS pointer"),
    "net_prototxt": (b'name: "x"\nlayer {\n  name: "y"\n}\n', "is a prototxt of a net"),
    "solver_prototxt": (b'net: "net.prototxt"\nbase_lr: 0.1\n', "is a prototxt of a solver"),
    "hdf5": (b"\x89HDF\r\n\x1a\n\x00\x00\x00", "is an HDF5 file that cannot be read: "),
    "gzip": (b"\x1f\x8b\x08\x00\x00", "is a compressed archive"),
    "binary": (bytes(range(256)) * 20, "is not a caffemodel, or a truncated one"),
    "truncated": (tiny_weights().SerializeToString()[:-3], "is not a caffemodel, or a truncated one"),
    "solverstate": (tiny_state().SerializeToString(), "is a solverstate.*tiny_iter_5.caffemodel"),
    "without_blobs": (without_blobs(), "no learned blobs"),
    "misfilled": (misfilled(), "layer 'ip', blob 0 has shape 4x3 and 11 values"),
    "axes": (with_axes(33), "layer '', blob 0 has 33 axes, more than Caffe's 32"),
    "dims": (with_axes(32, 2**63 - 1), r"blob 0 has shape 9[^ ]{0,76}\.\.\. and 1 values"),
}


@pytest.mark.parametrize("case", NOT_WEIGHTS)
def test_a_file_that_is_not_a_caffemodel_is_named_for_what_it_is(tmp_path: Path, case: str) -> None:
    data, what = NOT_WEIGHTS[case]
    path = tmp_path / "w.caffemodel"
    path.write_bytes(data)
    with pytest.raises(WeightsError, match=what) as caught:
        load_weights(path)
    assert caught.value.where == str(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "is empty"),
        (b"<html>", "is an HTML page"),
        (tiny_state().SerializeToString()[:-3], "is not a solverstate, or a truncated one"),
        (tiny_weights().SerializeToString(), "is a caffemodel, not a solverstate"),
        (pb.SolverState(iter=5, history=[blob(1)]).SerializeToString(), "does not name a learned_net"),
        (
            pb.SolverState(
                iter=5, learned_net="x", history=[blob(1), pb.BlobProto(data=[1, 2])]
            ).SerializeToString(),
            "history 1 has",
        ),
    ],
)
def test_a_file_that_is_not_a_solverstate_is_named_for_what_it_is(
    tmp_path: Path, data: bytes, what: str
) -> None:
    path = tmp_path / "s.solverstate"
    path.write_bytes(data)
    with pytest.raises(WeightsError, match=what):
        load_solverstate(path)


@pytest.mark.parametrize("load", [load_weights, load_solverstate])
def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path, load: Callable[[Path], object]) -> None:
    with pytest.raises(WeightsError, match="no such file"):
        load(tmp_path / "nothing")
    with pytest.raises(WeightsError, match="is a folder"):
        load(tmp_path)
    with pytest.raises(WeightsError, match="cannot be read"):
        load(tmp_path / ("x" * 300))
    with pytest.raises(WeightsError, match="cannot be read"):
        load(tmp_path / "a\0b")


@pytest.mark.parametrize("load", [load_weights, load_solverstate])
def test_endless_or_oversized_files_are_not_read(tmp_path: Path, load: Callable[[Path], object]) -> None:
    os.mkfifo(tmp_path / "fifo")
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(1 << 40)
    for path in (tmp_path / "fifo", tmp_path / "huge", Path("/dev/zero")):
        with pytest.raises(WeightsError, match="expected a file of at most 2 GiB"):
            load(path)


def test_every_truncation_of_a_snapshot_is_refused_or_detected(tmp_path: Path) -> None:
    whole = tiny_weights().SerializeToString()
    path = tmp_path / "w.caffemodel"
    cuts_that_parse = 0
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        try:
            weights = load_weights(path)
        except WeightsError:
            continue
        cuts_that_parse += 1
        assert check_weights(weights, NET)
    assert cuts_that_parse == 1  # between the two learned layers
    path.write_bytes(whole)
    assert check_weights(load_weights(path), NET) == []


def test_old_layers_are_read_with_their_old_shapes(tmp_path: Path) -> None:
    old = pb.NetParameter(name="tiny")
    weights = pb.BlobProto(num=1, channels=1, height=4, width=3, data=[0.5] * 12)
    bias = pb.BlobProto(num=1, channels=1, height=1, width=4, data=[0.5] * 4)
    old.layers.add(
        name="ip", type=pb.V1LayerParameter.INNER_PRODUCT, bottom=["x"], top=["y"], blobs=[weights, bias]
    )
    save_message(old, tmp_path / "old.caffemodel")
    read = load_weights(tmp_path / "old.caffemodel")
    assert [(layer.name, layer.type, list(layer.bottom)) for layer in read.layer] == [
        ("ip", "InnerProduct", ["x"])
    ]
    assert blob_shape(read.layer[0].blobs[0]) == (1, 1, 4, 3)
    assert check_weights(read, NET) == ["layer 'act' is missing"]


def test_double_values_are_read_as_caffe_reads_them() -> None:
    assert list(blob_values(pb.BlobProto(double_data=[1.5], data=[2.5]))) == [1.5]
    assert list(blob_values(pb.BlobProto(data=[2.5]))) == [2.5]


def test_weights_of_the_net_fit() -> None:
    assert check_weights(tiny_weights(), NET) == []


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_value_that_is_not_finite_is_found_with_its_layer(value: float) -> None:
    weights = tiny_weights()
    weights.layer[1].blobs[0].data[7] = value
    assert check_weights(weights, NET) == [
        f"layer 'ip', blob 0 has 1 of 12 values that are not finite, such as {value}"
    ]


def test_the_largest_finite_values_are_finite() -> None:
    weights = tiny_weights()
    weights.layer[1].blobs[0].CopyFrom(blob(4, 3, value=3.4e38))
    weights.layer[1].blobs[1].ClearField("data")
    weights.layer[1].blobs[1].double_data.extend([1e308] * 4)
    assert check_weights(weights, NET) == []


def test_misfits_are_named() -> None:
    weights = tiny_weights()
    weights.layer[1].name = "ip_renamed"
    assert check_weights(weights, NET) == ["layer 'ip' is missing", "layer 'ip_renamed' is not in the net"]

    weights = tiny_weights()
    weights.layer[1].blobs[0].CopyFrom(blob(3, 4))
    assert check_weights(weights, NET) == ["layer 'ip', blob 0 is 3x4, not 4x3"]

    del weights.layer[1].blobs[1]
    assert check_weights(weights, NET) == ["layer 'ip' has 1 blob, but the net needs 2"]


def test_a_failed_save_keeps_the_previous_file(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="cannot be written"):
        save_message(tiny_weights(), tmp_path / "no" / "folder.caffemodel")
    (tmp_path / "taken").mkdir()
    with pytest.raises(WeightsError, match="cannot be written"):
        save_message(tiny_weights(), tmp_path / "taken")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_a_message_for_which_there_is_no_memory_is_a_full_memory() -> None:
    class Large:
        def SerializeToString(self, deterministic: bool) -> bytes:  # noqa: N802 - protobuf's name
            raise EncodeError("Failed to serialize proto")

    with pytest.raises(MemoryError):
        serialize(cast(Message, Large()))


def test_names_that_are_not_utf_8_are_one_line(tmp_path: Path) -> None:
    path = tmp_path / "w.caffemodel"
    save_message(tiny_weights(), path)
    path.write_bytes(path.read_bytes().replace(b"\n\x02ip", b"\n\x02i\xff"))
    assert "i\N{REPLACEMENT CHARACTER}" in [layer.name for layer in load_weights(path).layer]
    state = pb.SolverState(iter=1, learned_net="a.caffemodel", history=[blob(1)])
    path.write_bytes(state.SerializeToString().replace(b"a.caffe", b"\xff.caffe"))
    with pytest.raises(WeightsError, match="the name of its learned_net is not UTF-8; resume from another"):
        load_solverstate(path)
