"""Each rule on data layers and their transforms: a wrong net, and its fixed twin."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.review.lint.findings import Finding
from tests.review.lint.conftest import ids_judging

CheckText = Callable[..., dict[str, Finding]]

NET = """
layer { name: "data" type: "Data" top: "data" top: "label" include { phase: TRAIN }
  transform_param { mirror: true crop_size: 6 mean_value: 1 mean_value: 2 mean_value: 3
    random_aspect_ratio_param { min_area_ratio: 0.08 max_area_ratio: 1 aspect_ratio_change: 0.75 } }
  data_param { source: "train_lmdb" batch_size: 2 backend: LMDB shuffle: true } }
layer { name: "data" type: "Data" top: "data" top: "label" include { phase: TEST }
  transform_param { mirror: false crop_size: 6 mean_value: 1 mean_value: 2 mean_value: 3
    random_resize_param { min_size: 8 max_size: 8 } }
  data_param { source: "val_lmdb" batch_size: 2 backend: LMDB } }
layer { name: "fc" type: "InnerProduct" bottom: "data" top: "fc"
  inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "fc" bottom: "label" top: "loss" }
"""
PLAIN = """
layer { name: "data" type: "Data" top: "data" top: "label" include { phase: TRAIN }
  transform_param { crop_size: 6 }
  data_param { source: "a" batch_size: 2 backend: LMDB shuffle: true } }
layer { name: "fc" type: "InnerProduct" bottom: "data" top: "fc"
  inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "fc" bottom: "label" top: "loss" }
"""
IMAGES = PLAIN.replace('type: "Data"', 'type: "ImageData"').replace("data_param", "image_data_param")
IMAGES = IMAGES.replace("backend: LMDB", "new_height: 8 new_width: 8")
LABELS = """
layer { name: "more" type: "Data" top: "more" include { phase: TRAIN }
  data_param { source: "b" batch_size: 2 backend: LMDB shuffle: true } }
layer { name: "quiet" type: "Silence" bottom: "more" include { phase: TRAIN } }
"""
RAW = {"datum_of": lambda source: pb.Datum(channels=3, height=8, width=8, data=bytes(192))}
ENCODED = {"datum_of": lambda source: pb.Datum(channels=3, height=8, width=8, data=b"jpeg", encoded=True)}

CASES: dict[str, tuple[str, str]] = {
    "no-batch-size": (NET.replace("batch_size: 2", "", 1), NET),
    "no-source": (NET.replace('source: "train_lmdb"', ""), NET),
    "backend-not-lmdb": (NET.replace("backend: LMDB shuffle: true", ""), NET),
    "shuffle-not-lmdb": (PLAIN.replace("backend: LMDB", "backend: LEVELDB"), PLAIN),
    "train-unshuffled": (NET.replace("shuffle: true", ""), NET),
    "train-shuffles-differ": (PLAIN + LABELS.replace(" shuffle: true", ""), PLAIN + LABELS),
    "train-batches-differ": (PLAIN + LABELS.replace("size: 2", "size: 3"), PLAIN + LABELS),
    "half-image-size": (IMAGES.replace("new_width: 8", ""), IMAGES),
    "mean-twice": (NET.replace("mirror: true", 'mirror: true mean_file: "m"'), NET),
    "color-and-gray": (
        PLAIN.replace("crop_size: 6", "crop_size: 6 force_color: true force_gray: true"),
        PLAIN.replace("crop_size: 6", "crop_size: 6 force_color: true"),
    ),
    "mean-value-alone": (
        PLAIN.replace("crop_size: 6", "force_color: true mean_value: 1"),
        PLAIN.replace("crop_size: 6", "force_gray: true mean_value: 1"),
    ),
    "mean-values-misfit": (
        PLAIN.replace("crop_size: 6", "force_color: true mean_value: 1 mean_value: 2"),
        PLAIN.replace("crop_size: 6", "force_color: true mean_value: 1 mean_value: 2 mean_value: 3"),
    ),
    "crop-above-image": (NET.replace("min_size: 8 max_size: 8", "min_size: 5 max_size: 5"), NET),
    "resize-range": (
        NET.replace("min_size: 8 max_size: 8", "min_size: 8 max_size: 7"),
        NET,
    ),
    "aspect-ratio-range": (NET.replace("aspect_ratio_change: 0.75", "aspect_ratio_change: 1.33"), NET),
    "test-random": (NET.replace("mirror: false", "mirror: true"), NET),
}


def test_every_rule_has_a_case() -> None:
    own = {"raw-datums-scrambled"}
    assert CASES.keys() | own == ids_judging("the data layers of a net", "the `transform_param` of a net")


@pytest.mark.parametrize("rule", CASES)
def test_a_wrong_net_is_found_and_its_fixed_twin_is_not(rule: str, check_text: CheckText) -> None:
    wrong, fixed = CASES[rule]
    assert rule in check_text(wrong)
    assert check_text(fixed) == {}


@pytest.mark.parametrize(
    "field", ["random_aspect_ratio_param { aspect_ratio_change: 0.8 }", "random_resize_param { min_size: 8 }"]
)
def test_raw_datums_are_scrambled_by_both_ways_to_resize_and_encoded_ones_are_not(
    field: str, check_text: CheckText
) -> None:
    net = PLAIN.replace("crop_size: 6", f"crop_size: 6 {field}")
    found = check_text(net, **RAW)["raw-datums-scrambled"]
    assert found.severity == "error"
    assert f"has {field.split()[0]}, but the records of 'a' are not encoded" in found.what
    assert check_text(net, **ENCODED) == {}
    assert check_text(net) == {}
    assert check_text(PLAIN, **RAW) == {}


def test_the_first_record_gives_channels_and_sizes(check_text: CheckText) -> None:
    assert list(check_text(PLAIN.replace("crop_size: 6", "crop_size: 9"), **RAW)) == ["crop-above-image"]
    two = PLAIN.replace("crop_size: 6", "crop_size: 6 mean_value: 1 mean_value: 2")
    assert list(check_text(two, **RAW)) == ["mean-values-misfit"]
    assert check_text(two, **ENCODED) == {}


def test_images_smaller_than_the_crop_are_reported(check_text: CheckText) -> None:
    small = IMAGES.replace("new_width: 8", "new_width: 5")
    assert list(check_text(small)) == ["crop-above-image"]
    scaled = small.replace("transform_param {", "transform_param { random_aspect_ratio_param { }")
    assert "crop-above-image" not in check_text(scaled)
    assert list(check_text(IMAGES.replace("image_data_param {", "image_data_param { is_color: false"))) == []


def test_each_missing_batch_size_is_one_finding_without_a_misfit(check_text: CheckText) -> None:
    assert list(check_text(PLAIN.replace("batch_size: 2", ""))) == ["no-batch-size"]
    hdf5 = PLAIN.replace('"Data"', '"HDF5Data"').replace("transform_param { crop_size: 6 }", "")
    hdf5 = hdf5.replace("data_param", "hdf5_data_param").replace("backend: LMDB", "")
    assert check_text(hdf5) == {}
    assert list(check_text(hdf5.replace("batch_size: 2", ""))) == ["no-batch-size"]


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ("mirror: true", "mirror"),
        ("random_aspect_ratio_param { }", "random_aspect_ratio_param"),
        ("random_resize_param { min_size: 8 max_size: 9 }", "random_resize_param"),
    ],
)
def test_random_transformations_in_a_test_are_reported(wrong: str, field: str, check_text: CheckText) -> None:
    net = PLAIN.replace("phase: TRAIN", "phase: TEST").replace("crop_size: 6", f"crop_size: 6 {wrong}")
    found = check_text(net)["test-random"]
    assert f"has {field} in TEST" in found.what
    assert "test-random" not in check_text(net.replace("phase: TEST", "phase: TRAIN"))


@pytest.mark.parametrize("wrong", ["min_area_ratio: 0", "min_area_ratio: 1 max_area_ratio: 0.5"])
def test_areas_that_cannot_be_drawn_are_reported(wrong: str, check_text: CheckText) -> None:
    net = NET.replace("min_area_ratio: 0.08 max_area_ratio: 1", wrong)
    assert list(check_text(net)) == ["aspect-ratio-range"]


def test_random_aspect_ratio_needs_a_crop(check_text: CheckText) -> None:
    assert "aspect-ratio-range" in check_text(NET.replace("crop_size: 6", "", 1))


def test_a_leveldb_is_right_where_it_is_named_so(check_text: CheckText) -> None:
    net = PLAIN.replace('source: "a"', 'source: "not_lmdb_but_leveldb"')
    assert check_text(net.replace("backend: LMDB shuffle: true", "backend: LEVELDB")) == {}


def test_for_a_caffe_that_cannot_shuffle_the_advice_is_to_shuffle_the_lmdb(check_text: CheckText) -> None:
    net = NET.replace("shuffle: true", "")
    assert check_text(net)["train-unshuffled"].write.startswith("shuffle: true; if your Caffe lacks it")
    advice = check_text(net, dialect="bvlc")["train-unshuffled"].write
    assert advice == "build the LMDB with convert_imageset --shuffle"


def test_one_of_several_data_layers_is_not_advised_to_shuffle(check_text: CheckText) -> None:
    net = (PLAIN + LABELS).replace(" shuffle: true", "")
    found = check_text(net)
    assert list(found) == ["train-unshuffled"]
    assert "shuffle: true" not in found["train-unshuffled"].write
    assert found["train-unshuffled"].write.startswith(
        "build the LMDBs of all data layers in the same random order"
    )


@pytest.mark.parametrize(
    "net",
    [PLAIN + LABELS.replace(" shuffle: true", ""), PLAIN.replace(" shuffle: true", "") + LABELS],
)
def test_data_layers_of_which_one_is_shuffled_are_one_warning(check_text: CheckText, net: str) -> None:
    found = check_text(net)
    assert list(found) == ["train-shuffles-differ"]
    shuffled, kept = ("data", "more") if net.startswith(PLAIN) else ("more", "data")
    what = found["train-shuffles-differ"].what
    assert what.index(f"'{shuffled}'") < what.index("is shuffled in TRAIN") < what.index(f"'{kept}'")


def test_a_shuffled_test_layer_is_not_a_matter_of_train(check_text: CheckText) -> None:
    assert check_text(NET) == {}
    hdf5 = 'hdf5_data_param { source: "b" batch_size: 2 } }\nlayer { name: "quiet"'
    start, _, rest = LABELS.partition("data_param")
    mixed = start.replace('"Data"', '"HDF5Data"') + hdf5 + rest.partition('layer { name: "quiet"')[2]
    assert list(check_text(PLAIN + mixed)) == ["train-shuffles-differ"]


def test_a_video_has_its_batch_in_datas_block_and_its_file_in_its_own(check_text: CheckText) -> None:
    video = PLAIN.replace('type: "Data"', 'type: "VideoData" video_data_param { video_file: "v.avi" }')
    right = video.replace('source: "a" batch_size: 2 backend: LMDB shuffle: true', "batch_size: 2")
    assert not {"block-unread", "no-source", "no-batch-size"} & set(check_text(right))
    assert "no-batch-size" in check_text(right.replace("data_param { batch_size: 2 }", ""))


def test_the_header_of_an_encoded_record_gives_its_size_and_channels(check_text: CheckText) -> None:
    def of(header: bytes) -> dict[str, object]:
        return {"datum_of": lambda source: pb.Datum(data=header, encoded=True)}

    cropped = PLAIN.replace("crop_size: 6", "crop_size: 9")
    assert list(check_text(cropped, **of(b"P6 32 8 255 "))) == ["crop-above-image"]
    assert "crop-above-image" not in check_text(cropped, **of(b"P6 32 9 255 "))
    assert "crop-above-image" not in check_text(cropped, **of(b"of a format that is not known"))
    means = PLAIN.replace("crop_size: 6", "crop_size: 6 mean_value: 1 mean_value: 2 mean_value: 3")
    found = check_text(means, **of(b"P5 8 8 255 "))["mean-values-misfit"]
    assert "3 mean_value fields for images with 1 channel" in found.what
    assert "mean-values-misfit" not in check_text(means, **of(b"P6 8 8 255 "))
    colored = means.replace("mean_value: 1", "mean_value: 1 force_color: true", 1)
    assert "mean-values-misfit" not in check_text(colored, **of(b"P5 8 8 255 "))


def test_a_batch_size_of_0_is_not_called_absent(check_text: CheckText) -> None:
    found = check_text(PLAIN.replace("batch_size: 2", "batch_size: 0"))
    assert list(found) == ["no-batch-size"]
    assert found["no-batch-size"].what.endswith("(Data) has batch_size 0")
