"""Reading what lint is given: a byte-order mark, other dialects, label maps, an LMDB's first record."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.datums import write_datums
from caffe_recipes.errors import PrototxtError
from caffe_recipes.review.lint.folders import lint_targets
from caffe_recipes.review.lint.inputs import LintOptions
from caffe_recipes.review.lint.records import find_datum
from tests.review.conftest import LintSolvers, net_text, solver_text


def test_a_byte_order_mark_is_an_error(lint_solvers: LintSolvers, tmp_path: Path) -> None:
    path = tmp_path / "own" / "solver.prototxt"
    path.write_text("\ufeff" + solver_text({}))
    (found,) = lint_targets([str(path)], LintOptions())
    assert (found.id, found.severity, found.where) == ("byte-order-mark", "error", f"{path}:1:1")


def test_fields_of_another_dialect_are_unknown_unless_it_is_given(
    lint_solvers: LintSolvers,
) -> None:
    other = {"rampup_interval": 5, "rampup_lr": 0.1}
    unknown = [one for one in lint_solvers({"a": other}) if one.id == "unknown-field"]
    assert [one.values["name"] for one in unknown] == [f"SolverParameter.{name}" for name in other]
    assert unknown[0].write.startswith("it belongs to nvcaffe; here the warm-up is warmup_iter")
    found = lint_solvers({"a": {**other, "solver_mode": None}}, dialect="nvcaffe")
    assert [one.id for one in found if "rampup" in one.what] == ["rates-not-judged"]
    assert "dialect-field" in {one.id for one in lint_solvers({"a": other}, dialect="bvlc")}


def test_labels_are_given_once(tmp_path: Path) -> None:
    path = tmp_path / "labelmap.prototxt"
    path.write_text('item { name: "a" label: 0 }\nitem { name: "a" label: 1 }\nitem { name: "b" label: 0 }\n')
    found = lint_targets([str(path)], LintOptions())
    assert [one.id for one in found] == ["label-twice"] * 2
    assert [one.where for one in found] == [f"{path}:2:8", f"{path}:3:18"]
    path.write_text('item { name: "a" label: 0 }\nitem { name: "b" label: 1 }\n')
    assert lint_targets([str(path)], LintOptions()) == []


def test_the_first_record_of_an_existing_lmdb_is_checked(tmp_path: Path) -> None:
    assert find_datum("lmdb", tmp_path) is None
    assert find_datum("a\0b", tmp_path) is None
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "data.mdb").write_bytes(b"no LMDB")
    assert find_datum("damaged", tmp_path) is None
    datum = pb.Datum(channels=1, height=2, width=2, data=b"abcd", label=3)
    write_datums(tmp_path / "lmdb", [("0", datum)])
    assert find_datum("lmdb", tmp_path) == datum


@pytest.mark.parametrize("content", [b"", b"no LMDB"])
def test_an_lmdb_that_cannot_be_read_is_a_warning(
    lint_solvers: LintSolvers, tmp_path: Path, content: bytes
) -> None:
    assert lint_solvers({"a": {}}, caffe_root=tmp_path) == []
    (tmp_path / "TRAIN_lmdb").mkdir()
    (tmp_path / "TRAIN_lmdb" / "data.mdb").write_bytes(content)
    (found,) = lint_solvers({"a": {}}, caffe_root=tmp_path)
    assert (found.id, found.severity) == ("lmdb-unreadable", "warning")
    assert found.what.startswith(f"{tmp_path}/TRAIN_lmdb is ")
    assert ":" in found.where.removeprefix(str(tmp_path))


@pytest.mark.parametrize("content", [b"", b"<html>"])
def test_a_mean_file_that_is_not_one_is_a_warning(
    lint_solvers: LintSolvers, tmp_path: Path, content: bytes
) -> None:
    net = net_text("TRAIN", "TEST", more='mean_file: "mean.binaryproto"')
    (tmp_path / "own" / "train_val.prototxt").write_text(net)

    def found() -> list[tuple[str, str, str]]:
        lints = lint_solvers({"a": {}}, caffe_root=tmp_path)
        return [(one.id, one.severity, one.what) for one in lints if one.id == "mean-unreadable"]

    assert found() == []  # it may exist on the cluster
    mean = tmp_path / "mean.binaryproto"
    mean.write_bytes(content)
    assert found() == [("mean-unreadable", "warning", f"{mean} is not a mean file")]
    nan = pb.BlobProto(num=1, channels=1, height=1, width=2, data=[1, math.nan])
    mean.write_bytes(nan.SerializeToString())
    assert found() == [("mean-unreadable", "warning", f"{mean} has values that are not finite")]
    mean.write_bytes(pb.BlobProto(num=1, channels=1, height=1, width=2, data=[1, 2]).SerializeToString())
    assert found() == []


@pytest.mark.parametrize(
    ("header", "more", "expected"),
    [
        (b"P6 40 40 255 ", "", True),
        (b"P6 40 32 255 ", "", False),
        (b"P5 40 32 255 ", "", True),
        (b"P5 40 32 255 ", "force_color: true ", False),
        (b"P6 50 40 255 ", "random_resize_param { min_size: 32 max_size: 32 } ", False),
        (b"unknown", "", False),
    ],
)
def test_a_mean_file_of_another_size_than_the_first_record_is_an_error(
    lint_solvers: LintSolvers, tmp_path: Path, header: bytes, more: str, expected: bool
) -> None:
    net = net_text("TRAIN", "TEST", more=f'{more}mean_file: "mean.binaryproto"')
    (tmp_path / "own" / "train_val.prototxt").write_text(net)
    mean = pb.BlobProto(num=1, channels=3, height=32, width=40, data=[0.0] * 3840)
    (tmp_path / "mean.binaryproto").write_bytes(mean.SerializeToString())
    write_datums(tmp_path / "TRAIN_lmdb", [("0", pb.Datum(data=header, encoded=True, label=0))])
    found = [one for one in lint_solvers({"a": {}}, caffe_root=tmp_path) if one.id == "mean-file-misfit"]
    assert [one.severity for one in found] == (["error"] if expected else [])


def test_raw_datums_that_the_augmentation_scrambles_are_found(
    lint_solvers: LintSolvers, tmp_path: Path
) -> None:
    ratio = "random_aspect_ratio_param { min_area_ratio: 0.5 max_area_ratio: 1 aspect_ratio_change: 0.75 }"
    (tmp_path / "own" / "train_val.prototxt").write_text(net_text("TRAIN", "TEST", more=ratio))
    assert lint_solvers({"a": {}}, caffe_root=tmp_path) == []
    datum = pb.Datum(channels=3, height=40, width=40, data=bytes(4800), label=0)
    write_datums(tmp_path / "TRAIN_lmdb", [("0", datum)])
    found = {one.id: one for one in lint_solvers({"a": {}}, caffe_root=tmp_path)}
    assert found["raw-datums-scrambled"].severity == "error"


def test_a_file_over_max_bytes_is_refused(lint_solvers: LintSolvers) -> None:
    with pytest.raises(PrototxtError, match="is over 20 bytes"):
        lint_solvers({"a": {}}, max_bytes=20)


def test_a_link_that_leads_to_itself_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "train_val.prototxt"
    path.symlink_to(path.name)
    with pytest.raises(PrototxtError, match=r"cannot be read: Too many levels of symbolic links"):
        lint_targets([str(path)], LintOptions())
    (tmp_path / "net.prototxt").write_text(net_text("TRAIN", "TEST"))
    (found,) = lint_targets([str(tmp_path)], LintOptions())
    assert (found.id, found.where) == ("unreadable", str(path))
