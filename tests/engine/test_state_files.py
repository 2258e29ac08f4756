"""A safetensors file holds the state dict under its names, is the same to the byte each time, and loads."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from google.protobuf import json_format

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.model_folder import ModelDescription
from caffe_recipes.caffe.models import Model
from caffe_recipes.engine.module import load_module
from caffe_recipes.engine.state_files import export_state
from caffe_recipes.errors import InputError
from tests.engine.test_module import NAMES, NET, write_net
from tests.extras import needs


def model_in(folder: Path, text: str = NET, seed: int = 0) -> Model:
    transform = pb.TransformationParameter(scale=0.5, mean_value=[1, 2, 3])
    described = ModelDescription(
        name="", classes=("ant", "bee"), shape=(), transform={"scale": 0.5, "mean_value": [1.0, 2.0, 3.0]}
    )
    return Model(*write_net(folder, text, seed), described, transform)


@needs("dev", "safetensors")
def test_the_file_loads_into_a_module(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    model = model_in(tmp_path)
    line = export_state(model, tmp_path / "a.safetensors")
    assert line == "8 tensors, 453 values"
    state = load_file(tmp_path / "a.safetensors")
    assert {name: tuple(values.shape) for name, values in state.items()} == NAMES
    module = load_module(model.net, model.weights)
    other = load_module(*write_net(tmp_path, NET, seed=1))
    other.load_state_dict(state)
    x = torch.randn(2, 3, 6, 6)
    assert torch.equal(other(x), module(x))


@needs("dev", "safetensors")
def test_the_file_says_how_inputs_are_made_and_is_the_same_each_time(tmp_path: Path) -> None:
    from safetensors import safe_open

    model = model_in(tmp_path, f'name: "small"\n{NET}')
    for name in ("a", "b"):
        export_state(model, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    with safe_open(tmp_path / "a", "pt") as file:
        found = dict(file.metadata())
    assert (found.pop("format"), found.pop("name"), found.pop("channel_order")) == ("pt", "small", "BGR")
    assert {key: json.loads(text) for key, text in found.items()} == {
        "classes": ["ant", "bee"],
        "shape": [3, 6, 6],
        "transform": {"scale": 0.5, "mean_value": [1.0, 2.0, 3.0]},
    }


def test_a_file_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="absent does not exist; create it"):
        export_state(model_in(tmp_path), tmp_path / "absent/a.safetensors")
    model = model_in(tmp_path)
    model.weights.unlink()  # it is found before the weights are read
    with pytest.raises(InputError, match="absent does not exist; create it"):
        export_state(model, tmp_path / "absent/a.safetensors")


@pytest.mark.parametrize(
    ("classes", "transform", "text"),
    [
        ("abcdef", {}, "has 5 classes, but 6 names are given; give one name for each class"),
        ("ab", {"crop_size": 4}, "takes images of 6 x 6, but the transform crops them to 4 x 4; give "),
        (
            "ab",
            {"mean_value": [1, 2]},
            "transform.mean_value: has 2 values, and the net has 3 channels; give ",
        ),
    ],
)
def test_a_file_does_not_say_what_its_net_contradicts(
    tmp_path: Path, classes: str, transform: dict[str, object], text: str
) -> None:
    description = ModelDescription(name="", classes=tuple(classes), shape=(), transform={})
    param = json_format.ParseDict(transform, pb.TransformationParameter())
    model = Model(*write_net(tmp_path, NET), description, param)
    with pytest.raises(InputError, match=re.escape(text)):
        export_state(model, tmp_path / "a.safetensors")
    assert not (tmp_path / "a.safetensors").exists()
