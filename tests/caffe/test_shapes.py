import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.layer_types.dimensions import Shape
from caffe_recipes.caffe.prototxt import load_prototxt, parse_prototxt
from caffe_recipes.caffe.shapes import infer_shapes, select_layers
from caffe_recipes.errors import PrototxtError
from tests.caffe.layer_types.conftest import net_of, one_layer, source

REFERENCE = Path(__file__).parents[3] / "shared" / "reference"
needs_reference = pytest.mark.skipif(not REFERENCE.is_dir(), reason="../shared/reference is not here")


def known(shape: Shape | None) -> tuple[int, ...]:
    """Give a shape that must have no unknown dimension."""
    dims = tuple(dim for dim in shape or () if dim is not None)
    assert shape == dims
    return dims


@needs_reference
@pytest.mark.parametrize("recipe", ["resnet50_custom_lr", "resnet50_448nodes"])
@pytest.mark.parametrize("file", ["train_val.prototxt", "train_val_noaug.prototxt"])
def test_published_resnet_has_the_known_number_of_parameters(recipe: str, file: str) -> None:
    net = load_prototxt(REFERENCE / "surfsara" / recipe / file, pb.NetParameter)
    shapes = infer_shapes(net, pb.TRAIN)
    counts: Counter[str] = Counter()
    for layer in shapes.layers:
        assert layer.learned is not None
        counts[layer.layer.type] += sum(math.prod(known(blob)) for blob in layer.learned)
    statistics = counts.pop("BatchNorm")
    assert (counts.total(), statistics) == (25_557_096, 53_173)
    assert known(shapes.blobs["pool1"])[1:] == (64, 56, 56)
    assert shapes.blobs["fc1000"] == (*known(shapes.blobs["label"]), 1000)


@needs_reference
@pytest.mark.parametrize(
    ("case", "log", "image"),
    [("p1_lenet", "train.log", (1, 28, 28)), ("p2_miniresnet", "train_a.log", (3, 32, 32))],
)
@pytest.mark.parametrize("phase", [pb.TRAIN, pb.TEST])
def test_every_top_has_the_shape_that_caffe_logged(
    case: str, log: str, image: tuple[int, int, int], phase: int
) -> None:
    net = load_prototxt(REFERENCE / "parity" / case / "net.prototxt", pb.NetParameter)
    text = (REFERENCE / "parity" / case / log).read_text()
    part = text.split("Network initialization done.")[phase]  # Caffe sets up the TRAIN net first
    logged = {}
    for setup in re.split(r"Setting up ", part)[1:]:
        tops = re.findall(r"Top shape: ((?:\d+ )*)\(\d+\)", setup)
        logged[setup.split(maxsplit=1)[0]] = [tuple(map(int, top.split())) for top in tops]
    compared = 0
    for layer in infer_shapes(net, phase, images=lambda source: image).layers:
        if layer.layer.name in logged:  # TEST folds BatchNorm and Scale away
            assert list(layer.tops) == logged[layer.layer.name], layer.layer.name
            compared += 1
    assert compared >= 9


@needs_reference
def test_learned_shapes_are_those_that_caffe_saved() -> None:
    case = REFERENCE / "parity" / "p2_miniresnet"
    saved = pb.NetParameter.FromString((case / "a_iter_40.caffemodel").read_bytes())
    blobs = {layer.name: tuple(tuple(blob.shape.dim) for blob in layer.blobs) for layer in saved.layer}
    net = load_prototxt(case / "net.prototxt", pb.NetParameter)
    for layer in infer_shapes(net, pb.TRAIN).layers:
        assert layer.learned == blobs[layer.layer.name]


def test_a_misfit_names_both_makers_and_both_shapes() -> None:
    net = net_of(
        source((32, 3, 56, 56))
        + """
        layer { name: 'left' type: 'ReLU' bottom: 'b0' top: 'l' }
        layer { name: 'right' type: 'Pooling' bottom: 'b0' top: 'r'
                pooling_param { kernel_size: 2 stride: 2 } }
        layer { name: 'sum' type: 'Eltwise' bottom: 'l' bottom: 'r' top: 's' }"""
    )
    with pytest.raises(PrototxtError) as caught:
        infer_shapes(net, pb.TRAIN, path="train_val.prototxt")
    assert str(caught.value) == (
        "train_val.prototxt: layer 'sum' (Eltwise) needs bottoms of the same shape: 'l' is 32x3x56x56 "
        "(from layer 'left'), 'r' is 32x3x28x28 (from layer 'right'); fix one of these layers"
    )


def test_a_misfit_without_bottoms_is_about_one_layer() -> None:
    shapes = "shape { dim: 2 } shape { dim: 3 } shape { dim: 3 }"
    net = net_of(f"layer {{ name: 'd' type: 'DummyData' top: 'a' top: 'b' dummy_data_param {{ {shapes} }} }}")
    with pytest.raises(
        PrototxtError, match=r"layer 'd' \(DummyData\) has 3 shapes for 2 tops; fix this layer"
    ):
        infer_shapes(net, pb.TRAIN)


def test_an_unknown_bottom_names_the_nearest_blob() -> None:
    net = net_of(source((1, 3)) + "layer { name: 'x' type: 'ReLU' bottom: 'b1' top: 'y' }")
    with pytest.raises(PrototxtError, match=r"layer 'x' \(ReLU\) reads blob 'b1'.*did you mean 'b0'\?"):
        infer_shapes(net, pb.TRAIN)


def test_an_unknown_bottom_that_resembles_no_blob_gets_no_guess() -> None:
    net = net_of(source((1, 3)) + "layer { name: 'x' type: 'ReLU' bottom: 'fc' top: 'y' }")
    with pytest.raises(PrototxtError, match=r"; use a blob that a layer above produces$"):
        infer_shapes(net, pb.TRAIN)


def test_a_bottom_of_another_phase_names_its_layer_and_the_phase() -> None:
    net = net_of(
        """layer { name: 'd' type: 'Data' top: 'data' include { phase: TRAIN } data_param { batch_size: 1 } }
        layer { name: 'x' type: 'ReLU' bottom: 'data' top: 'y' }"""
    )
    infer_shapes(net, pb.TRAIN)
    with pytest.raises(PrototxtError, match=r"layer 'd' produces it, but not before this one in phase TEST"):
        infer_shapes(net, pb.TEST)
    net.layer[0].include[0].stage.append("train")
    with pytest.raises(PrototxtError, match=r"layer 'd' produces it, but only in stage 'train'"):
        infer_shapes(net, pb.TRAIN)
    infer_shapes(net, pb.TRAIN, stages=["train"])


def test_a_top_made_twice_is_refused_unless_in_place() -> None:
    relu = "layer { name: 'r' type: 'ReLU' bottom: 'b0' top: 'b0' }"
    assert infer_shapes(net_of(source((1, 3)) + relu), pb.TRAIN).blobs["b0"] == (1, 3)
    again = "layer { name: 'i' type: 'Input' top: 'b0' input_param { shape { dim: 1 } } }"
    with pytest.raises(PrototxtError, match="'b0', which layer 'in' already produces"):
        infer_shapes(net_of(source((1, 3)) + again), pb.TRAIN)


@pytest.mark.parametrize(
    ("rules", "state", "kept"),
    [
        ("", {}, True),
        ("include { phase: TRAIN }", {}, True),
        ("include { phase: TEST }", {}, False),
        ("include { phase: TEST } include { min_level: 1 }", {"level": 1}, True),
        ("include { min_level: 2 }", {"level": 1}, False),
        ("include { max_level: 0 }", {"level": 1}, False),
        ("include { stage: 'a' stage: 'b' }", {"stages": ["a"]}, False),
        ("include { stage: 'a' }", {"stages": ["a", "b"]}, True),
        ("include { not_stage: 'a' }", {"stages": ["a"]}, False),
        ("exclude { phase: TRAIN }", {}, False),
        ("exclude { stage: 'a' }", {}, True),
    ],
)
def test_rules_decide_which_layers_a_phase_keeps(rules: str, state: dict[str, Any], kept: bool) -> None:
    net = net_of(f"layer {{ name: 'x' type: 'Input' {rules} }}")
    assert bool(select_layers(net, pb.TRAIN, **state)) is kept


DATA = "layer {{ name: 'd' type: 'Data' top: 'data' top: 'label' data_param {{ batch_size: 8 }} {} }}"


@pytest.mark.parametrize(
    ("transform", "shape"),
    [
        ("", (8, 3, 40, 50)),
        ("transform_param { crop_size: 32 }", (8, 3, 32, 32)),
        ("transform_param { crop_h: 20 crop_w: 30 }", (8, 3, 20, 30)),
        ("transform_param { force_gray: true }", (8, 1, 40, 50)),
    ],
)
def test_data_takes_what_it_does_not_state_from_the_first_record(
    transform: str, shape: tuple[int, ...]
) -> None:
    shapes = infer_shapes(net_of(DATA.format(transform)), pb.TRAIN, images=lambda source: (3, 40, 50))
    assert shapes.blobs == {"data": shape, "label": (8,)}


def test_unknown_dimensions_stay_unknown_and_fit_any_other() -> None:
    net = net_of(
        DATA.format("transform_param { crop_size: 9 }")
        + """layer { name: 'c' type: 'Convolution' bottom: 'data' top: 'c'
                     convolution_param { num_output: 4 kernel_size: 3 } }
        layer { name: 'i' type: 'InnerProduct' bottom: 'data' top: 'i' inner_product_param { num_output: 5 } }
        layer { name: 'l' type: 'SoftmaxWithLoss' bottom: 'i' bottom: 'label' top: 'l' }"""
    )
    shapes = infer_shapes(net, pb.TRAIN)
    assert [layer.learned for layer in shapes.layers[1:3]] == [((4, None, 3, 3), (4,)), ((5, None), (5,))]
    assert shapes.blobs["c"] == (8, 4, 7, 7)


def test_a_layer_type_without_a_rule_makes_blobs_of_unknown_shape() -> None:
    net = net_of(
        """layer { name: 'h' type: 'Python' top: 'data' }
        layer { name: 'r' type: 'ReLU' bottom: 'data' top: 'y' }"""
    )
    assert infer_shapes(net, pb.TRAIN).blobs == {"data": None, "y": None}


@pytest.mark.parametrize(
    ("layer", "shapes"),
    [
        (
            "type: 'HDF5Data' hdf5_data_param { source: 'x' batch_size: 4 }",
            [(4, 3, 40, 50), None],
        ),
        ("type: 'AnnotatedData' data_param { batch_size: 4 }", [(4, 3, 40, 50), None]),
        ("type: 'VideoData' data_param { batch_size: 4 }", [(4, 3, 40, 50), (4,)]),
        ("type: 'VideoData' video_data_param {}", [None, None]),  # of a fork that has the batch there
        ("type: 'WindowData' window_data_param { batch_size: 4 crop_size: 7 }", [(4, 3, 7, 7), (4,)]),
        ("type: 'Input'", [None, None]),
    ],
)
def test_other_sources_have_the_shapes_that_are_known_of_them(
    layer: str, shapes: list[tuple[int, ...] | None]
) -> None:
    net = net_of(f"layer {{ name: 'd' top: 'data' top: 'label' {layer} }}")
    found = infer_shapes(net, pb.TRAIN, images=lambda source: (3, 40, 50))
    assert list(found.layers[0].tops) == shapes


@pytest.mark.parametrize(
    ("layer", "what"),
    [
        ("type: 'HDF5Data'", "has no batch_size"),
        ("type: 'ImageData' image_data_param { batch_size: 0 }", "has batch_size 0"),
        ("type: 'WindowData' window_data_param { batch_size: 4 }", "has no crop_size"),
        ("type: 'Input' input_param { shape { dim: -1 } }", "has a negative dim"),
        ("type: 'Input' top: 'e' input_param { shape { dim: 1 } shape { dim: 2 } }", ""),
    ],
)
def test_a_source_that_caffe_would_refuse_is_refused(layer: str, what: str) -> None:
    net = net_of(f"layer {{ name: 'd' top: 'data' {layer} }}")
    if not what:
        assert infer_shapes(net, pb.TRAIN).blobs == {"data": (1,), "e": (2,)}
        return
    with pytest.raises(PrototxtError, match=what):
        infer_shapes(net, pb.TRAIN)


def test_a_blob_larger_than_caffe_can_count_is_refused() -> None:
    large = 2**62
    for body, what in {
        "type: 'ReLU'": None,
        "type: 'InnerProduct' inner_product_param { num_output: 1 axis: 0 }": None,
        "type: 'InnerProduct' inner_product_param { num_output: 2 axis: 0 }": "over 2^63-1 numbers",
        "type: 'Tile' tile_param { axis: 0 tiles: 2 }": "has a blob of over 2^63-1 numbers",
        f"type: 'Parameter' parameter_param {{ shape {{ {'dim: 1 ' * 33} }} }}": "has a blob of 33 axes",
        f"type: 'Reshape' reshape_param {{ shape {{ {'dim: 1 ' * 33} }} }}": "cannot reshape to 33 axes",
    }.items():
        shapes = [] if "Parameter'" in body else [(large,)]
        if what is None:
            one_layer(body, *shapes)
            continue
        with pytest.raises(PrototxtError) as caught:
            one_layer(body, *shapes)
        assert what in str(caught.value)


def test_an_input_larger_than_caffe_can_count_is_refused() -> None:
    one_layer("type: 'ReLU'", (1,) * 32)
    with pytest.raises(
        PrototxtError, match=r"layer 'in' \(Input\) has a blob of 400 axes, more than Caffe's 32"
    ):
        one_layer("type: 'ReLU'", (2**63 - 1,) * 400)
    with pytest.raises(PrototxtError, match="net: input has a blob of 33 axes"):
        infer_shapes(net_of(f"input: 'a' input_shape {{ {'dim: 2 ' * 33} }}"), pb.TEST)


def test_a_long_name_gets_no_suggestion() -> None:
    long = "a" * 201
    net = net_of(f"{source((1,))} layer {{ name: 'x' type: 'ReLU' bottom: '{long}' top: '{long}b' }}")
    with pytest.raises(PrototxtError, match=r"produces; use a blob that a layer above produces$"):
        infer_shapes(net, pb.TRAIN)


def test_net_inputs_have_the_shapes_stated() -> None:
    net = net_of("input: 'a' input: 'b' input_shape { dim: 1 dim: 3 } input_shape { dim: 2 }")
    assert infer_shapes(net, pb.TEST).blobs == {"a": (1, 3), "b": (2,)}
    old = net_of("input: 'a' input_dim: 1 input_dim: 3 input_dim: 224 input_dim: 224")
    assert infer_shapes(old, pb.TEST).blobs == {"a": (1, 3, 224, 224)}


def test_the_old_layers_format_is_refused() -> None:
    with pytest.raises(PrototxtError, match="old format"):
        infer_shapes(net_of("layers { name: 'x' type: RELU }"), pb.TRAIN)


@pytest.mark.parametrize(
    ("bottoms", "layer"),
    [
        ([(2, 3)], 'type: "Pooling" pooling_param { kernel_size: 1 }'),
        ([(2, 3, 4)], 'type: "Pooling" pooling_param { global_pooling: true }'),
        ([(2, 3)], 'type: "Reshape" reshape_param { shape { dim: 0 dim: -2 dim: -1 } }'),
        ([(2, 3), (2, 2)], 'type: "MultinomialLogisticLoss"'),
        ([(2, 3), (2,), (1, 1, 3, 2)], 'type: "InfogainLoss"'),
        ([(2, 3), (2, 4), (2,)], 'type: "ContrastiveLoss"'),
        ([(2, 3), (2, 3), (2, 2)], 'type: "ContrastiveLoss"'),
        ([(2, 3, 2, 2), (2, 3, 2, 2), (2,)], 'type: "ContrastiveLoss"'),
        ([(2, 3), (2, 3), (2, 1), (2, 1)], 'type: "SmoothL1Loss" loss_weight: 1'),
        ([], 'type: "DummyData" dummy_data_param { shape { dim: 2 dim: 0 } }'),
    ],
)
def test_bottoms_that_fail_the_set_up_of_a_layer_are_a_misfit(
    bottoms: list[tuple[int, ...]], layer: str
) -> None:
    dims = [" ".join(f"dim: {dim}" for dim in shape) for shape in bottoms]
    inputs = "".join(
        f'layer {{ name: "i{i}" type: "Input" top: "i{i}" input_param {{ shape {{ {of} }} }} }}\n'
        for i, of in enumerate(dims)
    )
    reads = " ".join(f'bottom: "i{i}"' for i in range(len(bottoms)))
    net = parse_prototxt(f'{inputs}layer {{ name: "x" {reads} top: "x" {layer} }}', pb.NetParameter)
    with pytest.raises(PrototxtError, match="layer 'x'"):
        infer_shapes(net, pb.TRAIN)
