"""A deploy net and its weights are written where they replace nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.prototxt import render_checked
from caffe_recipes.errors import InputError, PrototxtError
from caffe_recipes.review.deploy import (
    DeployChoices,
    check_deploy_output,
    check_dialect,
    load_deploy,
    write_deploy,
)
from tests.caffe.test_deploy import DEPLOY, NET


def test_weights_beside_the_net_replace_no_other_weights(tmp_path: Path) -> None:
    out, beside = tmp_path / "a.prototxt", tmp_path / "a.caffemodel"
    for _ in range(2):  # the same command again
        assert write_deploy(out, "one", pb.NetParameter(name="one")) == [out, beside]
    before = beside.read_bytes()
    with pytest.raises(InputError, match=r"a\.caffemodel: holds other weights; remove it, or give another"):
        write_deploy(out, "two", pb.NetParameter(name="two"))
    assert (out.read_text(), beside.read_bytes()) == ("one", before)
    check_deploy_output(out, [beside], has_weights=False)
    with pytest.raises(InputError, match=r"a\.caffemodel: is an input of this command"):
        check_deploy_output(out, [beside], has_weights=True)


def test_the_net_of_a_finished_run_is_found_by_its_name_after_recipes_and_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for run in ("mine-1", "digits-local-1"):
        model = tmp_path / "root/runs" / run / "model"
        model.mkdir(parents=True)
        (model / "model.json").touch()
        (model / "deploy.prototxt").write_text(DEPLOY)
    choices = DeployChoices(caffe_root=Path("root"))
    for given in ("mine-1", "mine"):
        assert load_deploy(given, choices).path == "root/runs/mine-1/model/deploy.prototxt"
    assert load_deploy("digits-local", choices).path == "digits-local:train_val"


def test_a_name_without_a_model_is_said_to_be_an_unfinished_run_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs/mine-1").mkdir(parents=True)
    (tmp_path / "runs/mine-2").touch()
    with pytest.raises(
        InputError, match=r"^mine-1: is a run that has no model yet; give the name of its rec"
    ):
        load_deploy("mine-1", DeployChoices())
    for given in ("mine-2", "mine", "absent-1", f"{'n' * 300}-1"):
        with pytest.raises(InputError, match=f"^'{given}' is not a recipe, file, folder or run; "):
            load_deploy(given, DeployChoices())


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        (
            "kernel_size: 3",
            "kernel_sise: 3",
            r":11:37: ConvolutionParameter has no field 'kernel_sise'; did you mean 'kernel_size'",
        ),
        (
            '"BatchNorm"',
            '"Batchnorm"',
            r":13:21: layer 'bn1' has type 'Batchnorm'.*; did you mean 'BatchNorm'\?",
        ),
        ('"SoftmaxWithLoss"', '"SoftMaxWithLoss"', "did you mean 'SoftmaxWithLoss'"),
        ('"Data"', '"data"', "did you mean 'Data'"),
        ("crop_size: 8", "crop_sise: 8", "has no field 'crop_sise'; did you mean 'crop_size'"),
        ('type: "BatchNorm"', "", "layer 'bn1' has no type"),
    ],
)
def test_likely_slips_are_refused(tmp_path: Path, old: str, new: str, error: str) -> None:
    (tmp_path / "net.prototxt").write_text(NET.replace(old, new))
    with pytest.raises(PrototxtError, match=error):
        load_deploy(str(tmp_path / "net.prototxt"), DeployChoices())


def test_slips_in_the_net_inside_a_solver_and_in_that_of_a_recipe_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    solver = tmp_path / "solver.prototxt"
    for old, new, error in (
        (
            "kernel_size",
            "kernel_sise",
            r"solver\.prototxt:11:37: ConvolutionParameter has no field 'kernel",
        ),
        ('"BatchNorm"', '"Batchnorm"', r"solver\.prototxt: layer 'bn1' has type .* 'BatchNorm'\?"),
    ):
        solver.write_text(f"net_param {{ {NET.replace(old, new)} }} base_lr: 1")
        with pytest.raises(PrototxtError, match=error):
            load_deploy(str(solver), DeployChoices())
    solver.write_text(f"net_param {{ {NET} }} base_lr: 1")
    assert load_deploy(str(solver), DeployChoices()).outputs == ("prob",)
    net = pb.NetParameter()
    net.layer.add(name="act", type="Relu", bottom=["a"], top=["a"])
    monkeypatch.setattr("caffe_recipes.render.prototxts.build_net", lambda recipe, name: net)
    with pytest.raises(PrototxtError, match=r"digits-local:train_val: layer 'act' .*; did you mean 'ReLU'\?"):
        load_deploy("digits-local", DeployChoices())


def test_what_a_deploy_net_does_not_contain_may_be_of_any_caffe(tmp_path: Path) -> None:
    text = NET.replace('"Accuracy"', '"MyMetric"').replace('name: "small"', 'name: "small" my_version: "v1"')
    text = text.replace('top: "loss" }', 'top: "loss" my_loss_param { weight: 3 } }')
    text = text.replace("lr_mult: 1", "lr_mult: 1 my_prune: 0.5").replace('"xavier"', '"xavier" my_seed: 3')
    text += 'layer { name: "own" type: "MyFancyLoss" bottom: "fc" bottom: "label" include { phase: TRAIN } }'
    (tmp_path / "net.prototxt").write_text(text)
    made = load_deploy(str(tmp_path / "net.prototxt"), DeployChoices())
    assert render_checked(made.net, made.comments).split() == DEPLOY.split()
    assert not any("no known Caffe" in note for note in made.notes)


def test_what_no_known_caffe_has_stays_with_a_note(tmp_path: Path) -> None:
    text = NET.replace('"BatchNorm"', '"Sudoku"').replace("kernel_size: 3", "kernel_size: 3 my_prune: 1")
    (tmp_path / "net.prototxt").write_text(text)
    made = load_deploy(str(tmp_path / "net.prototxt"), DeployChoices())
    assert [layer.type for layer in made.net.layer][2] == "Sudoku"
    assert made.notes[-1] == (
        "no known Caffe has layer type 'Sudoku', field 'ConvolutionParameter.my_prune': "
        "kept, since they may be of a fork"
    )


def test_fields_and_types_of_forks_and_data_layers_of_any_type_stay(tmp_path: Path) -> None:
    text = NET.replace('"Data"', '"MyRecords"').replace(
        'type: "Silence"', 'type: "Silence" forward_type: FLOAT16'
    )
    text = text.replace('"BatchNorm"', '"Mish"').replace('type: "InnerProduct"', 'type: "GroupNorm"')
    text = text.replace("kernel_size: 3", "kernel_size: 3 filter_group: 1")
    text = text.replace("crop_size: 8", "crop_size: 8 my_noise: 1")
    (tmp_path / "net.prototxt").write_text(text)
    made = load_deploy(str(tmp_path / "net.prototxt"), DeployChoices(image=(3, 8, 8))).net
    assert [layer.type for layer in made.layer] == ["Input", "Convolution", "Mish", "GroupNorm", "Softmax"]


def test_what_a_dialect_lacks_is_refused_and_what_it_reads_differently_is_a_note(tmp_path: Path) -> None:
    (tmp_path / "net.prototxt").write_text(NET)
    made = load_deploy(str(tmp_path / "net.prototxt"), DeployChoices())
    checked = check_dialect(made, "nvcaffe", "net")
    assert checked.net == made.net
    assert [note for note in checked.notes if note not in made.notes] == [
        "nvcaffe's BatchNorm keeps running means; other Caffes keep sums and a factor that divides them; "
        "divide blobs 0 and 1 of each BatchNorm by blob 2 before nvcaffe uses weights of another Caffe"
    ]
    assert check_dialect(made, "bvlc", "net") == made
    for layer, name in zip(made.net.layer[1:], ("ReLU6", "BatchNorm", "Mish"), strict=False):
        layer.type = name
    what = "net: nvcaffe has no layer type 'ReLU6'; .*nvcaffe has no layer type 'Mish'"
    with pytest.raises(InputError, match=what):
        check_dialect(made, "nvcaffe", "net")


@pytest.mark.parametrize("has_weights", [False, True])
def test_a_net_does_not_get_the_name_of_weights(tmp_path: Path, has_weights: bool) -> None:
    with pytest.raises(InputError, match=r"a\.caffemodel: is the name of weights, and a net is written"):
        check_deploy_output(tmp_path / "a.caffemodel", [], has_weights=has_weights)
