"""`new` reads missing options from the net and the LMDBs, and asks for those that it cannot find."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from caffe_recipes.authoring import new_options
from caffe_recipes.authoring.new import make_new
from caffe_recipes.authoring.new_options import NewOptions, make_request
from caffe_recipes.caffe import pb
from caffe_recipes.caffe.datums import write_datums
from caffe_recipes.cluster.profiles import load_profile
from caffe_recipes.errors import InputError
from caffe_recipes.recipe.model import Recipe
from caffe_recipes.render.prototxts import build_net

NET = """name: "Own"
layer { name: "digits" type: "Data" top: "data" top: "label" include { phase: TRAIN }
  transform_param { mean_value: 3 crop_size: %d }
  data_param { source: "elsewhere" batch_size: 2 backend: LMDB } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: %d } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""


def write_lmdb(path: Path, images: int = 400, side: int = 32, channels: int = 3, classes: int = 4) -> str:
    pixels = bytes(channels * side * side)
    datum = pb.Datum(data=pixels, channels=channels, height=side, width=side)

    def labelled() -> Iterator[tuple[str, pb.Datum]]:
        for index in range(images):
            datum.label = index % classes
            yield str(index), datum

    write_datums(path, labelled())
    return str(path)


@pytest.fixture
def lmdbs(tmp_path: Path) -> dict[str, Any]:
    return {"lmdb": write_lmdb(tmp_path / "train"), "test_lmdb": write_lmdb(tmp_path / "test", 60)}


def make(asked: NewOptions, home: Path) -> Recipe:
    return make_new(make_request(asked, home), home).recipe


def test_images_classes_and_crop_are_those_of_the_lmdb(lmdbs: dict[str, Any], tmp_path: Path) -> None:
    recipe = make(NewOptions(20, net="resnet_small", **lmdbs), tmp_path)
    assert (recipe.data.train.images, recipe.data.test.images, recipe.net.classes) == (400, 60, 4)
    assert (recipe.data.crop_size, recipe.data.test.shorter_side_px) == (28, None)
    assert (recipe.cluster.nodes, recipe.cluster.global_batch) == (1, 32)
    assert recipe.nets["train_val"].random_aspect_ratio is None


def test_grey_images_have_one_mean_and_are_not_mirrored(tmp_path: Path) -> None:
    train = write_lmdb(tmp_path / "train", channels=1)
    recipe = make(NewOptions(20, net="resnet_small", lmdb=train, test_lmdb=train), tmp_path)
    assert (recipe.data.mean_value, recipe.data.mirror) == ((128,), False)


def test_a_prototxt_keeps_its_own_transformation_and_classes(lmdbs: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "own.prototxt"
    file.write_text(NET % (20, 4))
    recipe = make(NewOptions(20, net=str(file), **lmdbs), tmp_path)
    assert (recipe.net.prototxt, recipe.net.classes, recipe.name) == ("own.prototxt", 4, "own-32-20ep")
    assert (recipe.data.crop_size, recipe.data.mean_value, recipe.data.mirror) == (20, (3,), None)
    assert build_net(recipe, "train_val").layer[0].data_param.source == lmdbs["lmdb"]


def test_a_mean_file_of_other_images_is_a_warning(lmdbs: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "own.prototxt"
    file.write_text(NET.replace("mean_value: 3", "mean_file: 'imagenet_mean.binaryproto'") % (20, 4))
    made = make_new(make_request(NewOptions(20, net=str(file), **lmdbs), tmp_path), tmp_path)
    assert made.recipe.data.mean_file == "imagenet_mean.binaryproto"
    assert "Its mean_file is of other images" in made.text.replace("\n# ", " ")
    same = NewOptions(
        20, net=str(file), lmdb="elsewhere", images=400, test_lmdb=lmdbs["test_lmdb"], classes=4
    )
    assert "of other images" not in make_new(make_request(same, tmp_path), tmp_path).text


def test_a_function_is_named_and_not_run(lmdbs: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "my_nets.py").write_text("raise SystemExit('was run')")
    recipe = make(NewOptions(20, net="my_nets:lenet", **lmdbs), tmp_path)
    assert (recipe.net.function, recipe.net.name, recipe.net.classes) == ("my_nets:lenet", "lenet", 4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"net": "resnet5O"}, "--net: 'resnet5O' is not a net; did you mean 'resnet50'?"),
        ({"net": "my_nets:lenet"}, "my_nets.py does not exist; put the module in the recipe's folder"),
        ({"net": "resnet18", "depth": 50}, "--depth: contradicts --net resnet18; give only one of them"),
        ({"test_lmdb": None}, "--lmdb: needs an LMDB of test images too; give --test-lmdb DIR"),
        (
            {"lmdb": None, "test_lmdb": None},
            "--images: cannot count the images: no LMDB at /tmp/ilsvrc12_train_lmdb; "
            "give --lmdb DIR, or --images N",
        ),
        (
            {"lmdb": "nowhere"},
            "--lmdb: no LMDB at nowhere (no data.mdb); build it with `caffe-recipes data build`, "
            "or correct the path; give --images N if it is on another machine",
        ),
        (
            {"test_lmdb": "none"},
            "--test-lmdb: no LMDB at none (no data.mdb); build it with `caffe-recipes data build`, "
            "or correct the path; give --test-images N if it is on another machine",
        ),
    ],
)
def test_missing_options_are_asked_for(
    changes: dict[str, Any], message: str, lmdbs: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(InputError) as caught:
        make_request(NewOptions(**{"epochs": 20, **lmdbs, **changes}), tmp_path)
    assert str(caught.value).endswith(message)


def test_a_folder_without_an_lmdb_is_not_mistaken_for_one_on_another_machine(
    lmdbs: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(InputError) as caught:
        make_request(NewOptions(20, **{**lmdbs, "lmdb": str(tmp_path)}), tmp_path)
    assert caught.value.hint == "build it with `caffe-recipes data build`, or correct the path"


def test_a_recipe_for_this_machine_is_trained_by_caffe_torch(tmp_path: Path) -> None:
    def trainer(batch: int, **options: Any) -> str:  # noqa: ANN401 - any option of new
        return make(NewOptions(90, images=1_281_167, batch=batch, **options), tmp_path).trainer

    local, cluster = load_profile("local"), load_profile("stampede2-skx")
    assert trainer(256) == trainer(256, profile=local) == "caffe-torch"
    assert trainer(256, nodes=2) == trainer(4096) == trainer(256, profile=cluster) == "./build/tools/caffe"
    assert trainer(4096, trainer="caffe-torch") == "caffe-torch"
    assert trainer(256, trainer="bin/caffe") == "bin/caffe"


def test_the_size_of_the_lmdb_is_written_for_estimates(lmdbs: dict[str, Any], tmp_path: Path) -> None:
    size_bytes = (Path(lmdbs["lmdb"]) / "data.mdb").stat().st_size
    recipe = make(NewOptions(20, net="resnet_small", **lmdbs), tmp_path)
    assert recipe.data.train.size_gb == pytest.approx(size_bytes / 1e9, rel=0.01)
    assert make(NewOptions(90, images=1_281_167, batch=256), tmp_path).data.train.size_gb is None


def test_a_comment_names_the_source_of_the_mean_and_how_to_measure_it(tmp_path: Path) -> None:
    colour, grey = (write_lmdb(tmp_path / name, channels=n) for name, n in (("colour", 3), ("grey", 1)))
    text = {
        lmdb: " ".join(
            make_new(make_request(NewOptions(20, net="resnet_small", lmdb=lmdb, test_lmdb=lmdb), tmp_path))
            .text.replace("# ", "")
            .split()
        )
        for lmdb in (colour, grey)
    }
    measure = "`caffe-recipes data check {}` prints this set's own."
    assert f"mean_value is ImageNet's: {measure.format(colour)}" in text[colour]
    assert f"mean_value is the middle of the range: {measure.format(grey)}" in text[grey]
    elsewhere = make_new(make_request(NewOptions(90, images=1_281_167, batch=256), tmp_path), tmp_path)
    assert "mean_value is ImageNet's" not in elsewhere.text


@pytest.mark.parametrize(
    ("crop", "outputs", "message"),
    [
        (40, 4, "crops to 40 px, but the first image is 32 x 32; use larger images, or"),
        (20, 3, "has 3 classes, but the labels of the LMDB need 4; change num_output"),
    ],
)
def test_a_net_that_does_not_fit_the_images_is_refused(
    crop: int, outputs: int, message: str, lmdbs: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "own.prototxt"
    file.write_text(NET % (crop, outputs))
    with pytest.raises(InputError, match=message):
        make_request(NewOptions(20, net=str(file), **lmdbs), tmp_path)


def test_more_outputs_than_the_labels_have_classes_are_a_warning(
    lmdbs: dict[str, Any], tmp_path: Path
) -> None:
    def notes(asked: NewOptions) -> list[str]:
        request = make_request(asked, tmp_path)
        return [note for note in make_new(request, tmp_path).notes if "outputs" in note]

    file = tmp_path / "own.prototxt"
    file.write_text(NET % (20, 1000))
    most = "outputs, but " + lmdbs["lmdb"] + " has 4 classes; "
    rest = " fits, unless images of more classes will follow"
    assert notes(NewOptions(20, net=str(file), **lmdbs)) == [
        f"warning: {file} has 1,000 {most}num_output: 4 in its last layer{rest}"
    ]
    assert notes(NewOptions(20, net="resnet_small", classes=9, **lmdbs)) == [
        f"warning: the net has 9 {most}--classes 4{rest}"
    ]
    assert notes(NewOptions(20, net="resnet_small", **lmdbs)) == []


def test_fewer_classes_than_the_labels_need_are_refused(
    lmdbs: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(**more: Any) -> str:  # noqa: ANN401
        with pytest.raises(InputError) as caught:
            make_request(NewOptions(**{"epochs": 20, "net": "resnet_small", **lmdbs, **more}), tmp_path)
        return str(caught.value)

    train = lmdbs["lmdb"]
    message = f"--classes: 2 classes, but {train} has labels up to 3; give --classes 4, or another LMDB"
    assert refused(classes=2) == message
    other = write_lmdb(tmp_path / "other", classes=6)
    assert refused(test_lmdb=other).startswith(f"--classes: 4 classes, but {other} has labels up to 5; ")
    assert make(NewOptions(20, net="resnet_small", classes=9, **lmdbs), tmp_path).net.classes == 9
    # Of many records only some are read: they show which classes are too few, not how many there are.
    monkeypatch.setattr(new_options, "_MOST_SCANNED", 100)
    monkeypatch.setattr(new_options, "_SAMPLED", 7)
    assert refused(classes=1) == message.replace("2 classes", "1 class")
    assert make(NewOptions(20, net="resnet_small", **lmdbs), tmp_path).net.classes == 1000


def test_a_small_batch_takes_one_node_and_a_large_one_as_many_as_it_needs(tmp_path: Path) -> None:
    nodes = {
        batch: make(NewOptions(90, images=1_281_167, batch=batch), tmp_path).cluster.nodes
        for batch in (256, 4096)
    }
    assert nodes == {256: 1, 4096: 128}
