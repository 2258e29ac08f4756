"""A net that is written for another Caffe is read with that Caffe's fields: by a run, and by a preview."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.weights import save_message
from caffe_recipes.errors import WeightsError
from caffe_recipes.recipe.source import parse_recipe
from caffe_recipes.render.dialect import translate_whole
from caffe_recipes.run.caffe import Caffe
from tests.cli.command_line import call_main
from tests.run.conftest import RECIPE

NET = """default_forward_type: FLOAT
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 10 } }
layer { name: "bn" type: "BatchNorm" bottom: "ip" top: "bn" batch_norm_param { scale_bias: true } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "bn" bottom: "label" top: "loss" }
"""
WEIGHTS = 10 * 3 * 28 * 28 + 10
NORMS = 4 * 10 + 1  # means, variances, scale and shift, and one factor


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A recipe in a Caffe root that any Caffe takes, with a net of nvcaffe, and a stand-in for the Caffe."""
    raw = yaml.safe_load(RECIPE)
    raw["net"] = {"name": "n", "classes": 10, "prototxt": "net.prototxt", "dialect": "nvcaffe"}
    raw["cluster"]["ranks_per_node"] = 1
    (tmp_path / "net.prototxt").write_text(NET)
    (tmp_path / "caffe").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "caffe").chmod(0o755)
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(raw))
    return tmp_path / "small.yaml"


def load(file: Path) -> Caffe:
    recipe = parse_recipe(file.read_text(), str(file), file.parent)
    return Caffe(translate_whole(recipe, "nvcaffe"))


def model(blobs: int) -> pb.NetParameter:
    """Return a caffemodel whose BatchNorm has the first of means, variances, factor, scale and shift."""
    net = pb.NetParameter(layer=[{"name": "ip"}, {"name": "bn"}])
    for layer, shape in (
        *((net.layer[0], shape) for shape in ((10, 3 * 28 * 28), (10,))),
        *((net.layer[1], shape) for shape in ((10,), (10,), (1,), (10,), (10,))[:blobs]),
    ):
        blob = layer.blobs.add()
        blob.shape.dim.extend(shape)
        blob.data.extend([1.0] * (shape[0] * (shape[1] if len(shape) > 1 else 1)))
    return net


def test_a_batch_norm_of_nvcaffe_has_five_blobs_in_its_models(written: Path, tmp_path: Path) -> None:
    trainer = load(written)
    files = trainer.files()
    assert trainer.models.model_bytes(files, "train_val", tmp_path, None) == 4 * (WEIGHTS + NORMS)
    save_message(model(5), tmp_path / "m.caffemodel")
    trainer.models.check_model(files, "train_val", tmp_path / "m.caffemodel")
    save_message(model(3), tmp_path / "m.caffemodel")
    with pytest.raises(WeightsError, match="layer 'bn' has 3 blobs, but the net needs 5"):
        trainer.models.check_model(files, "train_val", tmp_path / "m.caffemodel")


def test_a_digest_holds_the_fields_of_another_caffe_but_no_comments(written: Path) -> None:
    trainer = load(written)
    files = trainer.files()
    digests = trainer.digest_files(files)
    assert trainer.digest_files({path: f"# a\n{text}" for path, text in files.items()}) == digests
    path = trainer.recipe.net_path("train_val")
    changed = {**files, path: files[path].replace("default_forward_type: FLOAT", "")}
    assert trainer.digest_files(changed)[path] != digests[path]


def test_a_preview_reads_a_net_of_another_caffe(written: Path) -> None:
    done = call_main("preflight", written.name, "--dialect", "nvcaffe", cwd=written.parent)
    assert "has no field" not in done.stdout + done.stderr
    assert "disk" in done.stdout


def test_caffe_torch_is_given_a_net_with_fields_of_another_caffe_that_it_runs(
    written: Path, tmp_path: Path
) -> None:
    written.write_text(written.read_text().replace("trainer: ./caffe", "trainer: caffe-torch"))
    errors = [str(error) for error in load(written).mistakes({"init"}, tmp_path, None)]
    assert not [error for error in errors if "has no" in error]


@pytest.mark.parametrize(
    ("trainer", "kind", "is_read"),
    [("./caffe", "Window", True), ("caffe-torch", "Window", False), ("caffe-torch", "HDF5", True)],
)
def test_caffe_torch_is_refused_data_layers_that_it_does_not_read(
    trainer: str, kind: str, is_read: bool, written: Path, tmp_path: Path
) -> None:
    raw = yaml.safe_load(written.read_text())
    raw |= {"trainer": trainer, "data": "as-in-net", "images": 96, "test_images": 64}
    del raw["net"]["dialect"]
    raw["nets"] = {name: {} for name in raw["nets"]}
    size = raw["cluster"]["batch_per_rank"]
    batch = f"{kind.lower()}_data_param {{ source: 'list' batch_size: {size} }}"
    crop = "transform_param { crop_size: 28 }" if kind == "Window" else ""
    data = f"layer {{ name: 'h' type: '{kind}Data' top: 'data' top: 'label' {batch} {crop} }}\n"
    (tmp_path / "net.prototxt").write_text(data + NET.partition("\n")[2].replace("scale_bias: true", ""))
    recipe = parse_recipe(yaml.safe_dump(raw), str(written), tmp_path)
    errors = [str(error) for error in Caffe(recipe).mistakes({"init"}, tmp_path, None)]
    assert any(f"caffe-torch has no layer type '{kind}Data'" in error for error in errors) != is_read


def test_a_source_with_the_path_of_the_net_itself_is_left_alone(written: Path, tmp_path: Path) -> None:
    trainer, files = load(written), {"net.prototxt": 'layer {\n  source: "net.prototxt"\n}\n'}
    read = trainer.avoid_locks(("test", "--model=net.prototxt"), files, tmp_path, "runs/x/data")
    assert (read.arguments, read.files) == (("test", "--model=net.prototxt"), {})
