"""The command line of `caffe-recipes classify`."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from caffe_recipes.caffe.model_folder import ModelDescription, describe_transform
from tests.cli.command_line import call_main
from tests.engine.test_predictor import TRANSFORM, write_model


def make_model(folder: Path) -> None:
    _, weights = write_model(folder)
    weights.rename(folder / "weights.caffemodel")
    model = ModelDescription(
        name="n",
        classes=("ant", "bee", "cat", "dog"),
        shape=(3, 4, 4),
        transform=describe_transform(TRANSFORM),
        weights_sha256=hashlib.sha256((folder / "weights.caffemodel").read_bytes()).hexdigest(),
    )
    (folder / "model.json").write_text(model.render())


def test_the_best_classes_are_printed_with_their_names_also_as_json(tmp_path: Path) -> None:
    make_model(tmp_path)
    cv2.imwrite(str(tmp_path / "i.png"), np.random.default_rng(2).integers(0, 256, (4, 4, 3), np.uint8))
    done = call_main("classify", ".", "i.png", "--json", cwd=tmp_path)
    (shown,) = json.loads(done.stdout)
    rows = shown["classes"]
    assert (shown["image"], len(rows), done.returncode) == ("i.png", 5, 0)
    assert [row["probability"] for row in rows] == sorted((row["probability"] for row in rows), reverse=True)
    assert {row["name"] for row in rows} == {"ant", "bee", "cat", "dog", "class 4"}
    lines = call_main("classify", ".", "i.png", "--top", "1", cwd=tmp_path).stdout.splitlines()
    assert lines == ["i.png:", f"  {rows[0]['probability']:.4f}  {rows[0]['name']}"]


def test_a_file_that_is_not_an_image_and_a_folder_without_a_model_are_one_line(tmp_path: Path) -> None:
    make_model(tmp_path)
    (tmp_path / "x.png").write_text("no")
    for words in (("classify", ".", "x.png"), ("classify", "nope", "x.png")):
        done = call_main(*words, cwd=tmp_path)
        assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)


@pytest.mark.parametrize("as_json", [False, True])
def test_images_that_can_be_read_are_classified_though_others_cannot(tmp_path: Path, as_json: bool) -> None:
    make_model(tmp_path)
    (tmp_path / "x.png").write_text("no")
    for name in ("a.png", "b.png"):
        cv2.imwrite(str(tmp_path / name), np.zeros((4, 4, 3), np.uint8))
    words = ("classify", ".", "a.png", "x.png", "none.png", "b.png", *["--json"] * as_json)
    done = call_main(*words, cwd=tmp_path)
    lines = done.stdout.splitlines()
    shown = [one["image"] for one in json.loads(done.stdout)] if as_json else [lines[0], lines[6]]
    assert shown == (["a.png", "b.png"] if as_json else ["a.png:", "b.png:"])
    wrong, missing = done.stderr.splitlines()
    assert wrong.startswith("Error: x.png: is not an image") and missing.startswith("Error: none.png: cannot")
    assert done.returncode == 2


def test_of_a_truncated_image_only_our_line_is_printed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    make_model(tmp_path)
    for suffix in (".png", ".bmp", ".tiff"):
        data = cv2.imencode(suffix, np.zeros((4, 4, 3), np.uint8))[1].tobytes()
        (tmp_path / f"x{suffix}").write_bytes(data[: len(data) * 3 // 4])
        done = call_main("classify", ".", f"x{suffix}", cwd=tmp_path)
        assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("command", [("classify", ".", "i.png"), ("export", ".", "-o", "n.safetensors")])
def test_a_model_whose_files_were_exchanged_is_refused(tmp_path: Path, command: tuple[str, ...]) -> None:
    make_model(tmp_path)
    cv2.imwrite(str(tmp_path / "i.png"), np.zeros((4, 4, 3), np.uint8))
    described, weights = tmp_path / "model.json", tmp_path / "weights.caffemodel"
    text, data = described.read_text(), weights.read_bytes()
    weights.write_bytes(data[:-4] + bytes(4))  # the last weight
    done = call_main(*command, cwd=tmp_path)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert done.stderr.startswith(
        "Error: weights.caffemodel: does not have the weights_sha256 of the model.json beside it"
    )
    weights.write_bytes(data)
    described.write_text(text.replace("  3,", "  1,"))
    done = call_main(*command, cwd=tmp_path)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert done.stderr.startswith(
        "Error: model.json: shape: is 1 x 4 x 4, and the net beside it takes 3 x 4 x 4"
    )


def test_loose_files_are_resized_and_named(tmp_path: Path) -> None:
    write_model(tmp_path)
    (tmp_path / "names.txt").write_text("ant\nbee\ncat\ndog\nelk\n")
    cv2.imwrite(str(tmp_path / "i.png"), np.random.default_rng(2).integers(0, 256, (9, 7, 3), np.uint8))
    words = ("--net", "deploy.prototxt", "--weights", "w.caffemodel", "--mean", "10,20,30", "--scale", "0.02")
    done = call_main("classify", *words, "--names", "names.txt", "--top", "1", "i.png", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout.splitlines()[1].split()[1] in {"ant", "bee", "cat", "dog", "elk"}
    assert call_main("classify", *words, cwd=tmp_path).returncode == 2
    done = call_main("classify", "run-1", "i.png", "--mean", "1,2,3", cwd=tmp_path)
    assert done.stderr.startswith(
        "Error: --mean, --scale, --names and --transform-of: are for --net and --weights; "
    )


def test_a_net_of_loose_files_predicts_as_the_model_whose_transform_it_gets(tmp_path: Path) -> None:
    (tmp_path / "runs/n-1/model").mkdir(parents=True)
    make_model(tmp_path / "runs/n-1/model")
    cv2.imwrite(str(tmp_path / "i.png"), np.random.default_rng(2).integers(0, 256, (4, 4, 3), np.uint8))
    weights = tmp_path / "runs/n-1/model/weights.caffemodel"
    done = call_main("deploy", "n-1", "--fold-bn", weights, "-o", "folded.prototxt", cwd=tmp_path)
    assert done.returncode == 0
    words = ("--net", "folded.prototxt", "--weights", "folded.caffemodel", "--transform-of", "n-1")
    shown = [call_main("classify", *given, "i.png", cwd=tmp_path).stdout for given in (words, ("n-1",))]
    assert shown[0] == shown[1] != ""


def test_a_description_that_does_not_fit_the_net_is_one_line_that_names_it(tmp_path: Path) -> None:
    make_model(tmp_path)
    cv2.imwrite(str(tmp_path / "i.png"), np.zeros((4, 4, 3), np.uint8))
    described = tmp_path / "model.json"
    values = json.loads(described.read_text())
    for changes, text in (
        (
            {"transform": {"mean_value": [1, 2]}},
            "transform.mean_value: has 2 values, and the net has 3 channels",
        ),
        ({"classes": [*"abcdef"]}, "deploy.prototxt has 5 classes, but 6 names are given; give one name for"),
    ):
        described.write_text(json.dumps({**values, **changes}))
        done = call_main("classify", ".", "i.png", cwd=tmp_path)
        assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
        assert done.stderr.startswith(f"Error: model.json: {text}")


def test_loose_means_and_names_that_do_not_fit_the_net_are_one_line(tmp_path: Path) -> None:
    write_model(tmp_path)
    (tmp_path / "names.txt").write_text("ant\nbee\n")
    cv2.imwrite(str(tmp_path / "i.png"), np.zeros((9, 7, 3), np.uint8))
    words = ("classify", "--net", "deploy.prototxt", "--weights", "w.caffemodel", "i.png")
    for options, text in (
        (("--mean", "1,2"), "Error: --mean: has 2 values, and the net has 3 channels; give one for each"),
        (("--names", "names.txt"), "Error: names.txt: deploy.prototxt has 5 classes, but 2 names are given"),
        (("--scale", "nan"), "Error: --scale: nan is not a scale of pixels"),
    ):
        done = call_main(*words, *options, cwd=tmp_path)
        assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
        assert done.stderr.startswith(text)
