"""The description of a model says what its images are like, and is read back as it was written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.model_folder import ModelDescription, describe_transform, find_model, load_model
from caffe_recipes.errors import DataError, InputError

TRANSFORM = pb.TransformationParameter(
    crop_size=4, mean_value=[1, 2, 3], scale=0.5, random_resize_param={"min_size": 8, "max_size": 8}
)


def test_a_description_is_read_back_with_its_transform(tmp_path: Path) -> None:
    model = ModelDescription(
        name="n",
        classes=("cat", "dog"),
        shape=(3, 4, 4),
        transform=describe_transform(TRANSFORM),
        accuracy={"top-1": 0.5},
    )
    (tmp_path / "model.json").write_text(model.render())
    found = load_model(tmp_path)
    assert found == model
    assert found.transform_of(tmp_path) == TRANSFORM


def test_a_mean_image_lies_beside_the_description(tmp_path: Path) -> None:
    values = describe_transform(pb.TransformationParameter(mean_file="/far/away/mean.binaryproto"))
    model = ModelDescription(name="n", classes=None, shape=(3, 4, 4), transform=values)
    assert model.transform_of(tmp_path).mean_file == str(tmp_path / "mean.binaryproto")
    with pytest.raises(DataError, match="has a path that is not UTF-8, as a mean file needs; rename it"):
        model.transform_of(tmp_path / "\udcff")


@pytest.mark.parametrize(
    "text", ["[]", "{}", '{"format": 1}', '{"format": 1, "shape": 3, "classes": 1}', "x"]
)
def test_other_files_are_not_descriptions(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.json").write_text(text)
    with pytest.raises(DataError, match=r"model\.json: "):
        load_model(tmp_path)


VALID = ModelDescription(name="n", classes=None, shape=(3, 4, 4), transform={"scale": 0.5}).model_dump()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"shape": "x"}, "shape: must be a list of values, not 'x'"),
        ({"shape": [3, 0, 4]}, r"shape\[1\]: must be 1 or more, not 0"),
        ({"classes": "abc"}, "classes: must be a list of values, not 'abc'"),
        ({"classes": [1, 2]}, r"classes\[0\]: must be text, not 1"),
        ({"classes": []}, "classes: must have 1 or more items"),
        ({"channel_order": "RGB"}, "channel_order: must be 'BGR', not 'RGB'"),
        ({"accuracy": {"top-1": "x"}}, "accuracy.top-1: must be a number"),
        ({"clases": None}, "clases: unknown key; did you mean 'classes'?"),
        ({"transform": []}, "transform: must be a mapping"),
        ({"transform": {"crop_size": -5}}, "transform.crop_size: is not a value of this field"),
        (
            {"transform": {"crop_sise": 5}},
            "transform.crop_sise: is not a field of .*; did you mean 'crop_size'?",
        ),
    ],
)
def test_a_description_with_a_wrong_value_names_its_key(
    tmp_path: Path, changes: dict[str, object], text: str
) -> None:
    (tmp_path / "model.json").write_text(json.dumps({"format": 1, **VALID, **changes}))
    with pytest.raises(DataError, match=rf"model\.json: {text}"):
        load_model(tmp_path)


def test_a_model_is_found_by_its_folder_or_its_run(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "digits-1" / "model"
    folder.mkdir(parents=True)
    (folder / "model.json").write_text("{}")
    for given in (folder, folder.parent, "digits-1"):
        assert find_model(str(given), tmp_path) == folder
    for given in ("digits-2", "n" * 300):
        with pytest.raises(InputError, match="is not a model, nor a run that has one"):
            find_model(given, tmp_path)
    with pytest.raises(InputError, match="none: no such folder; give the one that contains `runs`"):
        find_model("digits-2", tmp_path / "none")


def test_the_name_of_a_recipe_stands_for_its_latest_run(tmp_path: Path) -> None:
    for run in ("digits-2", "digits-10", "digits-x-11"):
        folder = tmp_path / "runs" / run / "model"
        folder.mkdir(parents=True)
        (folder / "model.json").write_text("{}")
    (tmp_path / "runs" / "digits-12").touch()  # not a run
    assert find_model("digits", tmp_path).parent.name == "digits-10"
    (tmp_path / "runs" / "digits-11").mkdir()
    with pytest.raises(InputError, match="is not a model, nor a run that has one"):
        find_model("digits", tmp_path)
