"""The table, the JSON and the CSV of a summary hold the same numbers."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from caffe_recipes.caffe import layers as L  # noqa: N812 - as net definitions write it
from caffe_recipes.caffe import pb
from caffe_recipes.caffe.prototxt import render_prototxt
from caffe_recipes.review.inspect.summary import (
    Summary,
    SummaryOptions,
    read_net,
    render_csv,
    render_summary_json,
    render_table,
    render_wide_table,
    summarize,
)


@pytest.fixture
def found(tmp_path: Path) -> Summary:
    net = L.net(
        "tiny",
        L.data(source="lmdb", batch_size=2, phase="TRAIN", transform_param={"crop_size": 5}),
        L.conv('a, "b"', "data", "c", num_output=4, kernel_size=3, param=[{"name": "w"}]),
        L.relu("relu", "c"),
        L.conv("again", "data", num_output=4, kernel_size=3, bias_term=False, param=[{"name": "w"}]),
        L.layer("quiet", "Silence", ["c", "again"], top=[]),
    )
    path = tmp_path / "net.prototxt"
    path.write_text(render_prototxt(net))
    return summarize(read_net(str(path), SummaryOptions(image=(3, 9, 9))))


def test_the_wide_table_lists_every_layer_and_ends_in_totals(found: Summary) -> None:
    lines = render_wide_table(found)
    assert "net 'tiny', phase TRAIN, batches of 2" in lines[0]
    rows = {line.split("  ")[0]: line for line in lines[4:9]}
    assert set(rows) == {"data", 'a, "b"', "relu", "again", "quiet"}
    assert rows['a, "b"'].split()[-4:] == ["2x4x3x3", "112", "972", "288"]
    assert "2x4x3x3 in place" in rows["relu"]
    assert 'as a, "b"' in rows["again"]
    assert "2x4x3x3, 2x4x3x3 ->" in rows["quiet"]
    assert "TRAIN only" in rows["data"]
    assert lines[10].split() == ["learned", "parameters", "112", "(448", "bytes)"]
    assert "1,944 per image, 3,888 per batch: in Convolution" in lines[12]


def test_a_wide_table_without_a_layer_of_one_phase_has_no_column_of_phases(tmp_path: Path) -> None:
    path = tmp_path / "net.prototxt"
    path.write_text(render_prototxt(L.net("n", L.layer("in", "Input", shape={"dim": [1, 2]}))))
    assert "phase  " not in "\n".join(render_wide_table(summarize(read_net(str(path), SummaryOptions()))))


def test_json_and_csv_hold_the_counts_of_the_summary(found: Summary) -> None:
    data = json.loads(render_summary_json(found))
    rows = list(csv.DictReader(io.StringIO("\n".join(render_csv(found)))))
    for layer, row, one in zip(data["layers"], rows, found.layers, strict=True):
        assert (layer["name"], row["layer"]) == (one.name, one.name)
        assert layer["multiply_adds"] == int(row["multiply_adds"]) == one.multiply_adds
        assert layer["parameters"] == int(row["parameters"]) == one.parameters
        assert layer["activation_bytes"] == int(row["activation_bytes"]) == one.activation_bytes
    assert data["totals"]["multiply_adds_per_image"] == 1944
    assert rows[1]["bottoms"] == "data 2x3x5x5"
    assert rows[4]["bottoms"] == "c 2x4x3x3;again 2x4x3x3"
    assert data["layers"][0]["tops"] == [
        {"name": "data", "shape": [2, 3, 5, 5]},
        {"name": "label", "shape": [2]},
    ]


def test_unknown_values_are_a_question_mark_null_or_empty(tmp_path: Path) -> None:
    path = tmp_path / "net.prototxt"
    data = L.data(source="nowhere", batch_size=2, phase="TRAIN")
    path.write_text(render_prototxt(L.net("n", data, L.conv("c", "data", num_output=4, kernel_size=3))))
    found = summarize(read_net(str(path), SummaryOptions()))
    table = "\n".join(render_wide_table(found))
    assert "2x?x?x? -> 2x4x?x?" in table
    assert "at least 0" not in table
    assert table.splitlines()[-1].startswith("unknown shapes in 2 layers: layer 'data' (Data)")
    assert json.loads(render_summary_json(found))["layers"][1]["parameters"] is None
    assert list(csv.DictReader(io.StringIO("\n".join(render_csv(found)))))[1]["parameters"] == ""


CONV = L.conv("c", "data", num_output=4, kernel_size=3, pad=1, stride=2, dilation=2, group=2)


def summary_of(folder: Path, *layers: pb.LayerParameter) -> Summary:
    path = folder / "net.prototxt"
    path.write_text(render_prototxt(L.net("n", *layers)))
    return summarize(read_net(str(path), SummaryOptions()))


def input_of(*dims: int) -> pb.LayerParameter:
    return L.layer("data", "Input", shape={"dim": list(dims)})


def test_the_table_gives_each_layer_its_kernel_output_parameters_and_multiply_adds(tmp_path: Path) -> None:
    table = "\n".join(render_table(summary_of(tmp_path, input_of(2, 4, 9, 9), CONV)))
    (row,) = [line.split() for line in table.splitlines() if "Convolution  " in line]
    assert row == ["c", "Convolution", "3+1/2", "d2", "g2", "4x4x4", "76", "1.15", "k"]
    assert "kernel 3+1/2 is size 3, pad 1, stride 2, d2 is dilation 2, g2 is 2 groups" in table


def test_the_kernel_that_is_explained_is_one_of_the_net(tmp_path: Path) -> None:
    convs = [
        L.conv("a", "data", num_output=4, kernel_size=3, pad=1),
        L.conv("b", "data", num_output=4, kernel_size=5, stride=2),
    ]
    table = "\n".join(render_table(summary_of(tmp_path, input_of(2, 4, 9, 9), *convs)))
    assert table.splitlines()[1] == "kernel 3+1 is size 3, pad 1"


def test_a_total_is_unknown_a_lower_bound_or_exact(tmp_path: Path) -> None:
    data = L.layer("data", "Input", top="data")
    known = input_of(2, 4, 9, 9)
    known.name = known.top[0] = "known"
    rest = [L.conv("c", "data", num_output=4, kernel_size=3), L.layer("norm", "BatchNorm", "data")]

    def totals(*layers: pb.LayerParameter) -> dict[str, str]:
        lines = render_table(summary_of(tmp_path, *layers))
        return {line[:22].strip(): line[23:] for line in lines[lines.index("", 2) :] if line}

    found = totals(data, *rest)
    assert (found["learned parameters"], found["multiply-adds"]) == ("unknown", "unknown")
    found = totals(known, L.conv("k", "known", num_output=4, kernel_size=3), data, *rest)
    assert found["learned parameters"] == "at least 148 (592 bytes)"
    assert found["multiply-adds"].startswith("at least ")
    found = totals(L.data(source="nowhere", batch_size=2, phase="TRAIN"), L.layer("relu", "ReLU", "data"))
    assert (found["learned parameters"], found["batch-norm statistics"]) == ("0 (0 bytes)", "0")
    assert found["multiply-adds"] == "none: no layer has any"
    assert found["activations"] == "unknown"
    assert found["unknown shapes in 2 la"]


def test_a_net_without_kernels_has_no_line_that_explains_them(tmp_path: Path) -> None:
    plain = L.conv("c", "data", num_output=4, kernel_size=3)
    table = "\n".join(render_table(summary_of(tmp_path, input_of(2, 4, 9, 9), plain)))
    assert ("  3  " in table, "is size 7" in table) == (True, False)
    assert "is size 7" not in "\n".join(render_table(summary_of(tmp_path, input_of(2, 4))))


def test_an_output_that_is_not_of_each_image_is_given_in_all(tmp_path: Path) -> None:
    reshape = L.layer("r", "Reshape", "data", reshape_param={"shape": {"dim": [8, 1]}})
    assert "8x1 in all" in "\n".join(render_table(summary_of(tmp_path, input_of(2, 4), reshape)))


def test_pooling_shows_its_window_or_that_it_is_global(tmp_path: Path) -> None:
    pools = [
        L.layer("p", "Pooling", "data", pooling_param={"kernel_h": 3, "kernel_w": 1, "stride": 2}),
        L.layer("g", "Pooling", "data", pooling_param={"global_pooling": True}),
    ]
    found = summary_of(tmp_path, input_of(2, 4, 9, 9), *pools)
    assert [layer.kernel for layer in found.layers] == ["", "3x1/2", "global"]


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_of_resnet_50_fits_a_terminal_with_every_name_whole(width: int) -> None:
    found = summarize(read_net("stampede2-64n-72ep:train_val", SummaryOptions()))
    table = "\n".join(render_table(found, width))
    assert max(map(len, table.splitlines())) <= width
    assert "scale2a_branch2b" in table
    assert "..." not in table


def test_names_too_long_for_the_terminal_lose_their_middle(tmp_path: Path) -> None:
    layers = [input_of(1, 4), L.layer("a_name_" * 9 + "end", "ReLU", "data", top=["data"])]
    table = "\n".join(render_table(summary_of(tmp_path, *layers), 60))
    row = next(line for line in table.splitlines() if "ReLU" in line)
    assert len(row) <= 60
    assert row.startswith("a_nam..._end  ReLU")
    assert "a_name_" * 9 in "\n".join(render_table(summary_of(tmp_path, *layers)))


def test_the_kernel_is_not_a_key_of_the_json(found: Summary) -> None:
    assert "kernel" not in json.loads(render_summary_json(found))["layers"][1]
