"""A deploy net has the layers that predict, and nothing that only training or testing needs."""

from __future__ import annotations

from typing import Any

import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.deploy import DeployOptions, derive_deploy
from caffe_recipes.caffe.dialects.schema import parse_lenient
from caffe_recipes.caffe.layer_types.normalization import has_own_scale
from caffe_recipes.caffe.prototxt import parse_document, render_checked
from caffe_recipes.errors import InputError, PrototxtError

NET = """# my net
name: "small"
layer {
  name: "images" type: "Data" top: "data" top: "label" include { phase: TEST }
  transform_param { crop_size: 8 mean_value: 1 mean_value: 2 mean_value: 3 }
  data_param { source: "x" batch_size: 4 backend: LMDB }
}
# the first
layer {
  name: "conv1" type: "Convolution" bottom: "data" top: "conv1" param { lr_mult: 1 }
  convolution_param { num_output: 2 kernel_size: 3 # small
    weight_filler { type: "xavier" } engine: MKL2017 } }
layer { name: "bn1" type: "BatchNorm" bottom: "conv1" top: "conv1" param { lr_mult: 0 } }
layer { name: "aux" type: "InnerProduct" bottom: "conv1" top: "aux" inner_product_param { num_output: 3 } }
layer { name: "loss1" type: "SoftmaxWithLoss" bottom: "aux" bottom: "label" top: "loss1" loss_weight: 0.3 }
layer { name: "fc" type: "InnerProduct" bottom: "conv1" top: "fc" inner_product_param { num_output: 3 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "fc" bottom: "label" top: "loss" }
layer { name: "acc" type: "Accuracy" bottom: "fc" bottom: "label" top: "acc" }
layer { name: "hush" type: "Silence" bottom: "label" }
"""
DEPLOY = """# my net

name: "small"
layer {
  name: "images"
  type: "Input"
  top: "data"
  input_param { shape { dim: 1 dim: 3 dim: 8 dim: 8 } }
}
# the first
layer {
  name: "conv1"
  type: "Convolution"
  bottom: "data"
  top: "conv1"
  convolution_param {
    num_output: 2
    kernel_size: 3 # small
  }
}
layer {
  name: "bn1"
  type: "BatchNorm"
  bottom: "conv1"
  top: "conv1"
  batch_norm_param { use_global_stats: true }
}
layer {
  name: "fc"
  type: "InnerProduct"
  bottom: "conv1"
  top: "fc"
  inner_product_param { num_output: 3 }
}
layer {
  name: "prob"
  type: "Softmax"
  bottom: "fc"
  top: "prob"
}
"""


def derive(text: str, options: DeployOptions) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    document = parse_document(text, "net.prototxt", pb.NetParameter)
    made = derive_deploy(document.message, options, comments=document.comments, path="net.prototxt")
    return render_checked(made.net, made.comments), made.outputs, made.notes


def test_the_layers_from_the_images_to_the_main_prediction_stay_with_their_comments() -> None:
    text, outputs, notes = derive(NET, DeployOptions())
    assert text.split() == DEPLOY.split()
    assert outputs == ("prob",)
    assert notes == (
        "the net has 2 losses: the predictions of loss stay; "
        "left out: loss1 (weight 0.3); choose with --loss",
    )


def test_losses_that_are_chosen_each_leave_a_prediction() -> None:
    text, outputs, _ = derive(NET, DeployOptions(batch=2, losses=("loss", "loss1")))
    assert outputs == ("prob", "prob_loss")
    assert "dim: 2 dim: 3" in text
    with pytest.raises(InputError, match="has no loss 'x' in phase TEST; its losses: loss1, loss"):
        derive(NET, DeployOptions(losses=("x",)))


INPUTS = """layer { name: "in" type: "Input" top: "data" top: "size"
  input_param { shape { dim: 2 dim: 3 dim: 4 dim: 4 } shape { dim: 2 dim: 3 } } }
layer { name: "boxes" type: "Input" top: "boxes" input_param { shape { dim: 5 dim: 3 } } }
layer { name: "end" type: "Reshape" bottom: "data" top: "end" reshape_param { shape { dim: %s dim: 48 } } }
layer { name: "two" type: "InnerProduct" bottom: "size" top: "two" inner_product_param { num_output: 1 } }
layer { name: "five" type: "InnerProduct" bottom: "boxes" top: "five" inner_product_param { num_output: 1 } }
"""


def first_dims(text: str, options: DeployOptions) -> list[int]:
    net = derive_deploy(parse_document(text, "net.prototxt", pb.NetParameter).message, options).net
    return [shape.dim[0] for layer in net.layer for shape in layer.input_param.shape]


def test_inputs_keep_their_shapes_and_a_batch_changes_those_that_have_that_of_the_first() -> None:
    assert first_dims(INPUTS % 2, DeployOptions()) == [2, 2, 5]
    assert first_dims(INPUTS % 0, DeployOptions(batch=7)) == [7, 7, 5]
    assert first_dims(INPUTS % 2, DeployOptions(image=(1, 6, 8))) == [2, 2, 5]


@pytest.mark.parametrize("kind", ["Input", "DummyData"])
def test_the_batch_is_that_of_the_images_also_after_boxes(kind: str) -> None:
    layers = INPUTS.splitlines()
    block = "input_param" if kind == "Input" else "dummy_data_param"
    boxes = layers.pop(2).replace("Input", kind).replace("input_param", block)
    text = "\n".join([boxes, *layers])
    assert first_dims(text % 2, DeployOptions()) == [5, 2, 2]
    assert first_dims(text % 0, DeployOptions(batch=7)) == [5, 7, 7]


def test_layers_that_are_written_for_the_batch_of_the_net_name_it() -> None:
    what = "'end' .* cannot reshape .*; fix .*, or give --batch 2, if the net is written for it"
    with pytest.raises(PrototxtError, match=what):
        derive(INPUTS % 2, DeployOptions(batch=1))
    fixed = 'type: "Reshape" bottom: "data" top: "fc" reshape_param { shape { dim: 4 dim: 192 } }'
    data = NET.replace('type: "InnerProduct" bottom: "conv1" top: "fc"', fixed)
    data = data.replace("} } inner_product_param { num_output: 3 }", "} }")
    with pytest.raises(PrototxtError, match="or give --batch 4, if the net is written for it"):
        derive(data, DeployOptions())
    with pytest.raises(PrototxtError, match=r"; fix one of these layers\Z"):
        derive(INPUTS % 3, DeployOptions(batch=2))


def test_the_time_steps_of_recurrent_layers_are_no_batch() -> None:
    recurrent = """layer { name: "in" type: "Input" top: "x" top: "cont"
      input_param { shape { dim: 5 dim: 2 dim: 3 } shape { dim: 5 dim: 2 } } }
    layer { name: "lstm" type: "LSTM" bottom: "x" bottom: "cont" top: "y"
      recurrent_param { num_output: 4 } }"""
    assert first_dims(recurrent, DeployOptions()) == [5, 5]
    with pytest.raises(InputError, match=r"--batch: layer 'lstm' \(LSTM\) reads time steps, then streams"):
        derive(recurrent, DeployOptions(batch=2))
    dummy = recurrent.replace("Input", "DummyData").replace("input_param", "dummy_data_param")
    assert first_dims(dummy, DeployOptions()) == [5, 5]


def test_a_loss_without_an_activation_leaves_its_scores() -> None:
    text, outputs, _ = derive(NET.replace("SoftmaxWithLoss", "HingeLoss"), DeployOptions())
    assert outputs == ("fc",)
    assert "Softmax" not in text


def test_a_deploy_net_stays_as_it_is() -> None:
    assert derive(DEPLOY, DeployOptions()) == (DEPLOY, ("prob",), ())


def test_unknown_sizes_and_nets_that_predict_nothing_are_refused() -> None:
    with pytest.raises(InputError, match=r"the size of 'data' .* is not known; give it with --input C,H,W"):
        derive(NET.replace("crop_size: 8", ""), DeployOptions())
    with pytest.raises(PrototxtError, match="predicts nothing in phase TEST"):
        derive(NET[: NET.index("# the first")], DeployOptions())
    with pytest.raises(PrototxtError, match="has no layers"):
        derive("name: 'n'", DeployOptions())
    with pytest.raises(PrototxtError, match=r"layer 'odd' \(SoftmaxWithLoss\) has no bottom"):
        derive(NET + 'layer { name: "odd" type: "SoftmaxWithLoss" }', DeployOptions())


def test_a_loss_that_only_training_computes_becomes_the_prediction() -> None:
    loss = 'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "fc" bottom: "label" top: "loss"'
    aux = 'top: "loss1" loss_weight: 0.3'
    train_only = NET.replace(loss, f"{loss} include {{ phase: TRAIN }}")
    train_only = train_only.replace(aux, f"{aux} include {{ phase: TRAIN }}")
    text, outputs, _ = derive(train_only, DeployOptions())
    assert text.split() == DEPLOY.split()
    assert outputs == ("prob",)


@pytest.mark.parametrize("reader", ["Accuracy", "HDF5Output"])
def test_without_a_loss_the_prediction_is_what_an_accuracy_or_a_writer_reads(reader: str) -> None:
    top = 'top: "acc"' if reader == "Accuracy" else ""
    text = f"""{NET[: NET.index("# the first")]}
    layer {{ name: "fc" type: "InnerProduct" bottom: "data" top: "fc"
      inner_product_param {{ num_output: 3 }} }}
    layer {{ name: "out" type: "Softmax" bottom: "fc" top: "out" }}
    layer {{ name: "end" type: "{reader}" bottom: "out" bottom: "label" {top} }}"""
    made, outputs, _ = derive(text, DeployOptions())
    assert outputs == ("out",)
    assert reader not in made


def test_losses_whose_labels_only_training_reads_become_predictions() -> None:
    train_only = NET.replace("phase: TEST", "phase: TRAIN")
    for loss in ("loss", "loss1"):
        train_only = train_only.replace(f'top: "{loss}"', f'top: "{loss}" include {{ phase: TRAIN }}')
    text, outputs, notes = derive(train_only, DeployOptions())
    assert text.split() == DEPLOY.split()
    assert outputs == ("prob",)
    assert notes[-1] == "phase TEST has no data layer: the images are those of phase TRAIN"


def test_data_that_only_stages_have_are_found() -> None:
    staged = NET.replace("include { phase: TEST }", 'include { stage: "val" }')
    train = NET[NET.index("layer {") : NET.index("# the first")].replace("crop_size: 8", "crop_size: 6")
    train = train.replace("include { phase: TEST }", 'include { stage: "train" }')
    staged = staged.replace("layer {", f"{train.replace('images', 'train')}layer {{", 1)
    staged += 'layer { name: "x" type: "Softmax" bottom: "fc" top: "x" include { stage: "deploy" } }'
    text, outputs, notes = derive(staged, DeployOptions())
    assert text.split() == DEPLOY.split()
    assert outputs == ("prob",)
    assert notes[-1] == "phase TEST has data only in stages: the layers are those of stage 'val'"
    text, _, notes = derive(staged, DeployOptions(state=pb.NetState(stage=["train"])))
    assert "dim: 6 dim: 6" in text
    assert len(notes) == 1  # on the losses


def test_test_data_that_only_stages_have_come_before_those_of_training() -> None:
    data = NET[NET.index("layer {") : NET.index("# the first")]
    train = data.replace("phase: TEST", "phase: TRAIN").replace("crop_size: 8", "crop_size: 5")
    on_train, on_test = (data.replace("phase: TEST", f'phase: TEST stage: "{name}"') for name in ("x", "y"))
    text = (
        train + on_train.replace("crop_size: 8", "crop_size: 6") + on_test + NET[NET.index("# the first") :]
    )
    text, _, notes = derive(text, DeployOptions())
    assert "dim: 8 dim: 8" in text
    assert notes[-1] == "phase TEST has data only in stages: the layers are those of stage 'y'"


def test_a_second_top_of_unknown_size_is_not_asked_of_the_option_for_images() -> None:
    second = NET.replace('bottom: "conv1" top: "fc"', 'bottom: "label" top: "fc"').replace(
        'type: "Data"', 'type: "AnnotatedData"'
    )
    hint = "the size of 'label' .* is not known; make it an Input layer with the shapes of its tops"
    with pytest.raises(InputError, match=hint):
        derive(second, DeployOptions())
    both = NET.replace('type: "Data"', 'type: "HDF5Data" hdf5_data_param { batch_size: 4 }').replace(
        'bottom: "conv1" top: "fc"', 'bottom: "conv1" bottom: "label" top: "fc"'
    )
    with pytest.raises(InputError, match=r"the size of 'data' .* make it an Input layer with the shapes of"):
        derive(both, DeployOptions())


def test_losses_of_one_name_are_told_apart_by_their_types_and_a_net_needs_no_name() -> None:
    twin = '"EuclideanLoss" bottom: "aux" bottom: "label" top: "loss1" loss_weight: 0 name: "loss"'
    text = NET.replace('"SoftmaxWithLoss" bottom: "aux" bottom: "label" top: "loss1" loss_weight: 0.3', twin)
    made, _, notes = derive(
        text.replace('name: "loss1" ', "").replace('name: "small"\n', ""), DeployOptions()
    )
    assert notes[0] == (
        "the net has 2 losses: the predictions of loss (SoftmaxWithLoss) stay; "
        "left out: loss (EuclideanLoss) (weight 0); choose with --loss"
    )
    assert made.startswith("# my net\nlayer {")


def test_losses_without_names_each_leave_a_prediction_of_its_own_name() -> None:
    loss = 'layer { type: "SigmoidCrossEntropyLoss" bottom: "aux" bottom: "label" top: "l%d" }\n'
    fc = 'layer { name: "fc%d" type: "InnerProduct" bottom: "fc" top: "fc%d"'
    fc += " inner_product_param { num_output: 3 } }\n"
    net = NET[: NET.index('layer { name: "loss"')].replace("loss_weight: 0.3", "")
    net += "".join(fc % (n, n) + loss.replace("aux", f"fc{n}") % n for n in range(4))
    _, outputs, _ = derive(net, DeployOptions())
    assert outputs == ("prob", "prob_2", "prob_3", "prob_4", "prob_5")


def test_all_that_a_loss_compares_stays_if_learned_layers_make_it() -> None:
    contrast = """layer { name: "fc2" type: "InnerProduct" bottom: "data" top: "fc2"
      inner_product_param { num_output: 3 } }
    layer { name: "loss" type: "ContrastiveLoss" bottom: "fc" bottom: "fc2" bottom: "label" top: "loss" }"""
    end = NET.index('layer { name: "loss"')
    assert derive(NET[:end] + contrast, DeployOptions())[1] == ("fc", "fc2")
    copy = """layer { name: "copy" type: "Flatten" bottom: "data" top: "copy" }
    layer { name: "loss" type: "EuclideanLoss" bottom: "fc" bottom: "copy" top: "loss" }"""
    assert derive(NET[:end] + copy, DeployOptions())[1] == ("fc",)


def test_batch_norms_that_normalize_by_the_batch_are_reported() -> None:
    written = NET.replace(
        'top: "conv1" param { lr_mult: 0 }', 'top: "conv1" batch_norm_param { use_global_stats: false }'
    )
    text, _, notes = derive(written, DeployOptions())
    assert "use_global_stats: false" in text
    assert notes[-1] == (
        "BatchNorm bn1 with use_global_stats: false: a prediction depends on its batch; "
        "remove the field to use the statistics in the weights"
    )


def test_a_batch_norm_that_scales_by_itself_says_so_without_its_fillers() -> None:
    norm = "batch_norm_param { bias_filler { value: 0 } %s }"
    for more in ("", "scale_filler { value: 1 }"):
        text = NET.replace('top: "conv1" param { lr_mult: 0 }', f'top: "conv1" {norm % more}')
        message: Any = parse_lenient(text + _NVCAFFE, "net.prototxt").message
        made = derive_deploy(message).net
        assert has_own_scale(made.layer[2])
        assert "filler" not in render_checked(made, {})


# a layer that only nvcaffe has, so that the net is read as one of any Caffe
_NVCAFFE = 'layer { name: "end" type: "Silence" bottom: "label" forward_type: FLOAT16 }'
