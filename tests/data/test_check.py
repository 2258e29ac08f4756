from __future__ import annotations

import json
from pathlib import Path

import cv2
import lmdb
import numpy as np
import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.datums import write_datums
from caffe_recipes.data.build import build_lmdb, shuffle
from caffe_recipes.data.check import (
    LmdbReport,
    Problem,
    check_lmdb,
    order_text,
    render_report_json,
    render_text,
)
from caffe_recipes.data.images import ConversionSettings
from caffe_recipes.data.manifest import BuildManifest, write_manifest
from caffe_recipes.data.sheet import draw_sheet, name_label
from caffe_recipes.data.shuffledness import measure_shuffledness
from caffe_recipes.errors import DataError
from tests.data.conftest import encode, noise, plan_of, write_images


def image(label: int | None, suffix: str = ".png", data: bytes | None = None) -> pb.Datum:
    return pb.Datum(label=label, encoded=True, data=encode(suffix) if data is None else data)


def write(path: Path, *datums: pb.Datum) -> Path:
    write_datums(path, ((f"x{index}", datum) for index, datum in enumerate(datums)))
    return path


def problems(seen: LmdbReport) -> list[str]:
    return [str(problem) for problem in seen.problems]


def test_a_good_lmdb_is_counted_without_problems(listed: Path, tmp_path: Path) -> None:
    build_lmdb(plan_of(listed, ConversionSettings(16, 24)), tmp_path / "lmdb")
    seen = check_lmdb(tmp_path / "lmdb", 3)
    assert (seen.count, seen.encoded, seen.decoded, seen.problems) == (10, 10, 10, ())
    assert seen.labels == {0: 4, 1: 3, 2: 3}
    assert seen.shapes == {(3, 16, 24): 10}
    assert seen.missing_labels == 0


@pytest.mark.parametrize(
    ("bad", "what"),
    [
        (image(3), "has label 3, which is not one of the 3 classes 0 to 2"),
        (image(-1), "has label -1, which is below 0"),
        (image(None), "has no label"),
        (image(1, data=b""), "holds no image"),
        (image(1, data=b"<html>"), "is not an image that OpenCV can decode, or is truncated"),
        (image(1, data=encode(".jpg")[:-40]), "is not an image that OpenCV can decode, or is truncated"),
        (
            image(1, data=bytes(cv2.imencode(".png", noise(4, 4).astype(np.uint16))[1])),
            "has more than 8 bits per channel",
        ),
        (
            pb.Datum(channels=3, height=2, width=2, label=1, data=b"x"),
            "is a raw image of 3x2x2, but has 1 values",
        ),
    ],
)
def test_a_problem_is_reported_for_the_first_record_and_the_others_are_counted(
    tmp_path: Path, bad: pb.Datum, what: str
) -> None:
    path = write(tmp_path / "lmdb", image(0), bad, image(2), bad, bad)
    assert problems(check_lmdb(path, 3)) == [f"record '00000001_x1' {what}, and 2 more like it"]


def test_a_huge_label_is_counted_like_any(tmp_path: Path) -> None:
    seen = check_lmdb(write(tmp_path / "lmdb", image(2**31 - 1), image(0), image(-4)))
    assert (seen.missing_labels, seen.first_missing_label) == (2**31 - 2, 1)


def test_images_are_decoded_in_batches_without_missing_any(tmp_path: Path) -> None:
    datums = [image(0, data=b"<html>" if index % 50 == 7 else None) for index in range(150)]
    seen = check_lmdb(write(tmp_path / "lmdb", *datums), decode=None)
    assert (seen.decoded, seen.shapes) == (147, {(3, 30, 40): 147})
    what = "is not an image that OpenCV can decode, or is truncated"
    assert problems(seen) == [f"record '00000007_x7' {what}, and 2 more like it"]


def test_without_classes_only_negative_labels_are_wrong(tmp_path: Path) -> None:
    path = write(tmp_path / "lmdb", image(700), image(-5))
    assert problems(check_lmdb(path)) == ["record '00000001_x1' has label -5, which is below 0"]


def test_different_problems_are_reported_separately(tmp_path: Path) -> None:
    path = write(tmp_path / "lmdb", image(9, data=b"<html>"), image(None), image(1))
    assert len(check_lmdb(path, 3).problems) == 3


def test_a_record_that_is_not_a_datum_is_a_problem_among_others(tmp_path: Path) -> None:
    with (
        lmdb.open(str(tmp_path / "lmdb"), lock=False) as environment,
        environment.begin(write=True) as writing,
    ):
        writing.put(b"a", b"\xff\xff")
        writing.put(b"b", image(0).SerializeToString())
    seen = check_lmdb(tmp_path / "lmdb")
    assert problems(seen) == ["record 'a' is not a Datum"]
    assert (seen.count, seen.labels) == (2, {0: 1})


def test_a_sample_is_spread_evenly_and_the_labels_are_all_read(tmp_path: Path) -> None:
    path = write(
        tmp_path / "lmdb", *(image(0 if i % 10 else 1, data=b"" if i % 10 == 5 else None) for i in range(40))
    )
    seen = check_lmdb(path, 2, decode=4)
    assert (seen.decoded, seen.labels) == (4, {0: 36, 1: 4})
    assert check_lmdb(path, 2, decode=0).decoded == 0
    assert check_lmdb(path, 2, decode=None).decoded == 36


def test_means_are_those_of_all_pixels_in_bgr_and_grey_counts_for_each(tmp_path: Path) -> None:
    colour = np.zeros((2, 4, 3), np.uint8)
    colour[:, :] = (10, 20, 30)
    grey = np.full((4, 6), 50, np.uint8)
    files = [bytes(cv2.imencode(".png", pixels)[1]) for pixels in (colour, grey)]
    seen = check_lmdb(write(tmp_path / "lmdb", *(image(0, data=data) for data in files)))
    assert seen.channel_means == pytest.approx(((80 + 1200) / 32, (160 + 1200) / 32, (240 + 1200) / 32))
    assert check_lmdb(write(tmp_path / "grey", image(0, data=files[1]))).channel_means == (50,)
    raw = pb.Datum(channels=3, height=1, width=2, data=bytes([1, 3, 5, 7, 9, 11]), label=0)
    assert check_lmdb(write(tmp_path / "raw", raw)).channel_means == (2, 6, 10)


def test_the_estimated_size_after_compaction_is_exact(tmp_path: Path) -> None:
    path = write(tmp_path / "lmdb", *(image(0, data=bytes(9000)) for _ in range(300)))
    with lmdb.open(str(path), lock=False, map_size=1 << 26) as environment:
        for index in range(0, 300, 2):
            with environment.begin(write=True) as writing:
                writing.delete(f"{index:08d}_x{index}".encode())
        (tmp_path / "compact").mkdir()
        environment.copy(str(tmp_path / "compact"), compact=True)
    seen = check_lmdb(path, decode=0)
    compact = (tmp_path / "compact" / "data.mdb").stat().st_size
    assert seen.size_bytes == (path / "data.mdb").stat().st_size
    assert seen.size_bytes > 1.5 * compact
    assert seen.compact_bytes == compact


def test_a_built_lmdb_is_nearly_compact(tmp_path: Path) -> None:
    listed = write_images(tmp_path / "images", 20)
    listed.write_text(listed.read_text() * 150)
    build_lmdb(plan_of(listed), tmp_path / "lmdb")
    seen = check_lmdb(tmp_path / "lmdb", decode=0)
    assert seen.count == 3000
    assert seen.size_bytes <= 1.01 * seen.compact_bytes


def test_records_are_compared_with_the_manifest(listed: Path, tmp_path: Path) -> None:
    for name, seed in (("one", 1), ("two", 2)):
        build_lmdb(plan_of(listed, seed=seed), tmp_path / name)
    (tmp_path / "one" / "data.mdb").write_bytes((tmp_path / "two" / "data.mdb").read_bytes())
    assert problems(check_lmdb(tmp_path / "one")) == []
    assert problems(check_lmdb(tmp_path / "one", decode=None)) == [
        "has different records from those in its manifest"
    ]
    assert problems(check_lmdb(tmp_path / "two", decode=None)) == []
    write_datums(tmp_path / "short", [("x", image(0))])
    (tmp_path / "one" / "data.mdb").write_bytes((tmp_path / "short" / "data.mdb").read_bytes())
    assert problems(check_lmdb(tmp_path / "one")) == ["holds 1 record, but its manifest says 10"]


def test_records_that_differ_from_those_built_are_reported_with_the_advice_to_copy(
    listed: Path, tmp_path: Path
) -> None:
    build_lmdb(plan_of(listed, ConversionSettings(encode_type="png")), tmp_path / "lmdb")
    data = (tmp_path / "lmdb" / "data.mdb").read_bytes()
    (tmp_path / "lmdb" / "data.mdb").write_bytes(data.replace(b"IDAT", b"IDAX"))
    seen = check_lmdb(tmp_path / "lmdb", decode=None)
    assert len(seen.problems) == 2
    assert seen.hint == "copy the LMDB again, or build it again"
    bad = check_lmdb(write(tmp_path / "bad", image(-1)))
    assert bad.hint == "fix the list of images and build the LMDB again"


def test_a_required_order_that_is_not_found_is_a_problem(tmp_path: Path) -> None:
    path = write(tmp_path / "lmdb", *(image(index // 50) for index in range(200)))
    order = check_lmdb(path).order
    assert order_text(order) == "order: sorted by class (0.00 on a scale from 0, sorted, to 1, random)"
    assert problems(check_lmdb(path)) == []
    assert problems(check_lmdb(path, must_be_shuffled=True)) == [
        "the records are not shuffled: sorted by class"
    ]


def test_why_an_order_of_mixed_neighbours_is_not_shuffled_is_reported() -> None:
    appended = shuffle([0, 1, 2, 3] * 500, 1) + shuffle([4, 5] * 300, 1)
    order = measure_shuffledness(appended)
    text = "order: partly shuffled (0.51 on a scale from 0, sorted, to 1, random); batches have 1.68 times "
    assert order_text(order) == f"{text}as many same-class pairs as in random order"
    assert order_text(measure_shuffledness(shuffle(appended, 1))).startswith("order: shuffled (")


def test_the_printed_report_is_complete(tmp_path: Path) -> None:
    path = write(tmp_path / "lmdb", image(0), image(3), image(3, data=b"<html>"))
    seen = check_lmdb(path, 5)
    lines = list(render_text(seen))
    assert lines[:5] == [
        "3 records, 3 of them encoded images; 2 decoded",
        "labels 0 to 3, 2 distinct",
        "images by label: 0: 1, 3: 2",
        "note: 2 smaller labels have no images; the first is 1",
        "2 images of 3 x 30 x 40",
    ]
    assert lines[5].startswith("mean BGR ")
    assert lines[6] == "order: too few records to judge"
    assert lines[-1].startswith("bad: record '00000002_x2' is not an image")
    found = json.loads(render_report_json(seen))
    assert (found["records"], found["labels"], found["labels_missing"]) == (3, {"0": 1, "3": 2}, 2)
    assert found["problems"][0]["records"] == 1


def test_many_sizes_classes_and_channels_are_summarised(tmp_path: Path) -> None:
    grey = bytes(cv2.imencode(".png", noise(9, 9)[:, :, 0])[1])
    datums = [image(label, data=encode(".png", 10 + label, 20)) for label in range(30)]
    text = "\n".join(render_text(check_lmdb(write(tmp_path / "lmdb", *datums, image(0, data=grey)))))
    assert "images per label: 1 to 2, median 1\n" in text
    assert "images of 31 sizes: 9 to 39 high, 9 to 20 wide\n" in text
    assert (
        "note: images have 1 and 3 channels; a net needs transform_param.force_color to read them\n" in text
    )


def test_a_contact_sheet_shows_the_images_and_marks_the_broken(tmp_path: Path) -> None:
    datums = [image(index, suffix) for index, suffix in enumerate((".png", ".jpg") * 5)]
    datums += [image(7, data=b"<html>"), pb.Datum(channels=1, height=2, width=1, label=1, data=b"ab")]
    sheet = cv2.imdecode(
        np.frombuffer(draw_sheet(write(tmp_path / "lmdb", *datums)), np.uint8), cv2.IMREAD_COLOR
    )
    assert sheet is not None
    assert sheet.shape == (2 * 132 + 4, 8 * 116 + 4, 3)
    expected = cv2.resize(noise(30, 40), (112, 84), interpolation=cv2.INTER_NEAREST)
    assert (sheet[4 + 14 : 4 + 14 + 84, 4:116] == expected).all()
    broken = sheet[132 + 4 :, 4 + 2 * 116 : 2 * 116 + 116]
    assert ((broken[:, :, 2] > 200) & (broken[:, :, 0] < 50)).any()


def test_a_contact_sheet_names_the_class_as_the_manifest_does(tmp_path: Path) -> None:
    path = write(tmp_path / "lmdb", image(0), image(1))
    plain = draw_sheet(path)
    manifest = BuildManifest(2, 9, {0: 1, 1: 1}, ["0", "tench"], [], {}, None, "", "")
    write_manifest(path, manifest)
    before, after = (
        cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR) for data in (plain, draw_sheet(path))
    )
    assert before is not None
    assert after is not None
    assert (before[:, :116] == after[:, :116]).all()  # a name that is the label is not repeated
    assert (before[116:, 130:232] != after[116:, 130:232]).any()


def test_a_class_name_too_long_for_the_sheet_is_cut_and_others_are_drawn_in_ascii() -> None:
    name = name_label(0, ["Chesapeake Bay retriever"])
    assert name.startswith("0 Chesapeake")
    assert name.endswith("..")
    assert name_label(0, ["höher"]) == "0 h?her"


def test_a_contact_sheet_shows_the_others_where_a_record_is_not_a_datum(tmp_path: Path) -> None:
    path = write(tmp_path / "lmdb", image(1), image(2))
    with lmdb.open(str(path), lock=False) as environment, environment.begin(write=True) as transaction:
        transaction.put(b"00000001_x1", b"\xff\xff")
    sheet = cv2.imdecode(np.frombuffer(draw_sheet(path), np.uint8), cv2.IMREAD_COLOR)
    assert sheet is not None
    assert (sheet[:, :116] != 255).any()
    beneath = sheet[116:, 116:232].astype(int)
    assert (beneath[:, :, 2] - beneath[:, :, 0] > 100).any()  # red


def test_a_path_that_is_not_an_lmdb_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such LMDB"):
        check_lmdb(tmp_path / "none")
    path = write(tmp_path / "lmdb", image(0))
    (tmp_path / "lmdb.manifest.json").write_text("[]")
    with pytest.raises(DataError, match=r"lmdb.manifest.json: is not a manifest"):
        check_lmdb(path)


def test_repeated_problems_are_counted() -> None:
    assert str(Problem("x")) == "x"
    assert str(Problem("x", 1001)) == "x, and 1,000 more like it"


def test_an_lmdb_is_checked_from_within_its_folder(
    listed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_lmdb(plan_of(listed), tmp_path / "lmdb")
    monkeypatch.chdir(tmp_path / "lmdb")
    assert check_lmdb(Path(), decode=None).problems == ()
    (tmp_path / "lmdb.manifest.json").write_text("[]")
    with pytest.raises(DataError, match="is not a manifest"):
        check_lmdb(Path())
