import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.prototxt import load_prototxt, parse_prototxt
from caffe_recipes.caffe.shape_rules import Shape
from caffe_recipes.caffe.shapes import infer_shapes, select_layers
from caffe_recipes.errors import PrototxtError

REFERENCE = Path(__file__).parents[3] / "shared" / "reference"
needs_reference = pytest.mark.skipif(not REFERENCE.is_dir(), reason="../shared/reference is not here")


def net_of(text: str) -> pb.NetParameter:
    return parse_prototxt(text, pb.NetParameter, "net.prototxt")


def source(*shapes: tuple[int, ...]) -> str:
    """Give a layer that makes blobs b0, b1, ... of these shapes."""
    tops = " ".join(f"top: 'b{i}'" for i in range(len(shapes)))
    dims = " ".join(f"shape {{ {' '.join(f'dim: {dim}' for dim in shape)} }}" for shape in shapes)
    return f"layer {{ name: 'in' type: 'Input' {tops} input_param {{ {dims} }} }}\n"


def one_layer(body: str, *shapes: tuple[int, ...]) -> tuple[list[Shape | None], list[Shape]]:
    """Give tops' and learned blobs' shapes of a layer `x` that reads blobs b0, b1, ... of `shapes`."""
    bottoms = " ".join(f"bottom: 'b{i}'" for i in range(len(shapes)))
    tops = "" if "top:" in body else "top: 'y'"
    net = net_of(source(*shapes) + f"layer {{ name: 'x' {bottoms} {tops} {body} }}")
    layer = infer_shapes(net, pb.TRAIN).layers[-1]
    return list(layer.tops), list(layer.learned or [])


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


@pytest.mark.parametrize(
    ("body", "bottoms", "tops", "learned"),
    [
        (
            "type: 'Convolution' convolution_param { num_output: 6 kernel_size: 3 stride: 2 pad: 1 }",
            [(2, 4, 9, 8)],
            [(2, 6, 5, 4)],
            [(6, 4, 3, 3), (6,)],
        ),
        (
            "type: 'Convolution' convolution_param { num_output: 6 kernel_h: 1 kernel_w: 3 dilation: 2"
            " group: 2 bias_term: false }",
            [(2, 4, 9, 8)],
            [(2, 6, 9, 4)],
            [(6, 2, 1, 3)],
        ),
        (
            "type: 'Convolution' convolution_param { num_output: 6 kernel_size: 3 }",
            [(2, 4, 9, 8, 7)],
            [(2, 6, 7, 6, 5)],
            [(6, 4, 3, 3, 3), (6,)],
        ),
        (
            "type: 'Deconvolution' convolution_param { num_output: 6 kernel_size: 4 stride: 2 pad: 1 }",
            [(2, 4, 9, 8)],
            [(2, 6, 18, 16)],
            [(4, 6, 4, 4), (6,)],
        ),
        ("type: 'Pooling' pooling_param { kernel_size: 3 stride: 2 }", [(2, 4, 8, 9)], [(2, 4, 4, 4)], []),
        (
            "type: 'Pooling' pooling_param { kernel_size: 2 stride: 2 pad: 1 }",
            [(2, 4, 3, 4)],
            [(2, 4, 2, 3)],
            [],
        ),
        ("type: 'Pooling' pooling_param { global_pooling: true }", [(2, 4, 7, 9)], [(2, 4, 1, 1)], []),
        (
            "type: 'InnerProduct' inner_product_param { num_output: 10 }",
            [(2, 4, 3, 3)],
            [(2, 10)],
            [(10, 36), (10,)],
        ),
        (
            "type: 'InnerProduct' inner_product_param { num_output: 10 axis: -1 transpose: true"
            " bias_term: false }",
            [(2, 4, 3)],
            [(2, 4, 10)],
            [(3, 10)],
        ),
        ("type: 'BatchNorm'", [(2, 4, 3, 3)], [(2, 4, 3, 3)], [(4,), (4,), (1,)]),
        ("type: 'Scale' scale_param { bias_term: true }", [(2, 4, 3, 3)], [(2, 4, 3, 3)], [(4,), (4,)]),
        ("type: 'Scale' scale_param { axis: 0 num_axes: -1 }", [(2, 4)], [(2, 4)], [(2, 4)]),
        ("type: 'Scale' scale_param { axis: 0 }", [(2, 4, 3), (2,)], [(2, 4, 3)], []),
        ("type: 'Bias'", [(2, 4, 3)], [(2, 4, 3)], [(4,)]),
        ("type: 'PReLU'", [(2, 4, 3)], [(2, 4, 3)], [(4,)]),
        ("type: 'PReLU' prelu_param { channel_shared: true }", [(2, 4, 3)], [(2, 4, 3)], [()]),
        ("type: 'LRN'", [(2, 4, 3, 3)], [(2, 4, 3, 3)], []),
        ("type: 'Dropout'", [(2, 4)], [(2, 4)], []),
        ("type: 'Eltwise'", [(2, 4), (2, 4), (2, 4)], [(2, 4)], []),
        ("type: 'Concat'", [(2, 4, 3), (2, 5, 3)], [(2, 9, 3)], []),
        ("type: 'Concat' concat_param { axis: 0 }", [(2, 4), (1, 4)], [(3, 4)], []),
        ("type: 'Slice' top: 'p' top: 'q'", [(2, 4, 3)], [(2, 2, 3), (2, 2, 3)], []),
        (
            "type: 'Slice' top: 'p' top: 'q' slice_param { slice_point: 1 }",
            [(2, 4, 3)],
            [(2, 1, 3), (2, 3, 3)],
            [],
        ),
        ("type: 'Split' top: 'p' top: 'q'", [(2, 4)], [(2, 4), (2, 4)], []),
        ("type: 'Flatten'", [(2, 4, 3, 3)], [(2, 36)], []),
        ("type: 'Reshape' reshape_param { shape { dim: 0 dim: -1 dim: 2 } }", [(2, 4, 3)], [(2, 6, 2)], []),
        (
            "type: 'Reshape' reshape_param { axis: 1 num_axes: 1 shape { dim: 2 dim: -1 } }",
            [(2, 4, 3)],
            [(2, 2, 2, 3)],
            [],
        ),
        ("type: 'Permute' permute_param { order: 0 order: 2 }", [(2, 4, 3)], [(2, 3, 4)], []),
        ("type: 'Softmax'", [(2, 10)], [(2, 10)], []),
        ("type: 'SoftmaxWithLoss'", [(2, 10), (2,)], [()], []),
        ("type: 'SoftmaxWithLoss' top: 'l' top: 'p'", [(2, 10), (2,)], [(), (2, 10)], []),
        ("type: 'EuclideanLoss'", [(2, 10), (2, 10, 1, 1)], [()], []),
        ("type: 'HingeLoss'", [(2, 10), (2,)], [()], []),
        ("type: 'Accuracy' top: 'a' top: 'per_class'", [(2, 10), (2,)], [(), (10,)], []),
        ("type: 'ArgMax' argmax_param { top_k: 5 }", [(2, 10)], [(2, 1, 5)], []),
        ("type: 'ArgMax' argmax_param { axis: 1 }", [(2, 10, 3, 3)], [(2, 1, 3, 3)], []),
        ("type: 'Reduction' reduction_param { axis: 1 }", [(2, 10, 3)], [(2,)], []),
        ("type: 'Crop'", [(2, 4, 9, 9), (2, 5, 7, 6)], [(2, 4, 7, 6)], []),
        ("type: 'BatchReindex'", [(8, 4, 3), (5,)], [(5, 4, 3)], []),
        (
            "type: 'Embed' embed_param { num_output: 6 input_dim: 100 }",
            [(9, 2)],
            [(9, 2, 6)],
            [(100, 6), (6,)],
        ),
        ("type: 'Filter' top: 'p' top: 'q'", [(8, 4), (8,), (8, 1)], [(None, 4), (None,)], []),
        (
            "type: 'Im2col' convolution_param { kernel_size: 3 stride: 2 pad: 1 }",
            [(2, 4, 9, 8)],
            [(2, 36, 5, 4)],
            [],
        ),
        (
            "type: 'LSTM' recurrent_param { num_output: 5 }",
            [(9, 2, 3, 4), (9, 2)],
            [(9, 2, 5)],
            [(20, 12), (20,), (20, 5)],
        ),
        (
            "type: 'LSTM' top: 'h' top: 'hT' top: 'cT' recurrent_param { num_output: 5 expose_hidden: true }",
            [(9, 2, 3), (9, 2), (2, 7), (1, 2, 5), (1, 2, 5)],
            [(9, 2, 5), (1, 2, 5), (1, 2, 5)],
            [(20, 3), (20,), (20, 7), (20, 5)],
        ),
        ("type: 'LSTMUnit' top: 'c' top: 'h'", [(1, 2, 5), (1, 2, 20), (1, 2)], [(1, 2, 5)] * 2, []),
        ("type: 'Normalize'", [(2, 4, 3, 3)], [(2, 4, 3, 3)], [()]),
        ("type: 'Normalize' norm_param { channel_shared: false }", [(2, 4)], [(2, 4)], [(4,)]),
        ("type: 'Parameter' parameter_param { shape { dim: 3 dim: 4 } }", [], [(3, 4)], [(3, 4)]),
        (
            "type: 'RNN' recurrent_param { num_output: 5 }",
            [(9, 2, 3), (9, 2)],
            [(9, 2, 5)],
            [(5, 3), (5,), (5, 5), (5, 5), (5,)],
        ),
        ("type: 'SPP' spp_param { pyramid_height: 3 }", [(2, 4, 13, 13)], [(2, 84)], []),
        ("type: 'SPP' spp_param { pyramid_height: 1 }", [(2, 4, 13, 13)], [(2, 4, 1, 1)], []),
        ("type: 'Tile' tile_param { axis: 2 tiles: 3 }", [(2, 4, 3)], [(2, 4, 9)], []),
    ],
)
def test_layer_types_have_caffes_shapes(
    body: str, bottoms: list[tuple[int, ...]], tops: list[tuple[int, ...]], learned: list[tuple[int, ...]]
) -> None:
    assert one_layer(body, *bottoms) == (tops, learned)


@pytest.mark.parametrize(
    ("body", "bottoms", "what"),
    [
        ("type: 'Convolution' convolution_param { kernel_size: 3 }", [(2, 4, 9, 9)], "no num_output"),
        ("type: 'Convolution' convolution_param { num_output: 4 }", [(2, 4, 9, 9)], "no kernel_size"),
        (
            "type: 'Convolution' convolution_param { num_output: 4 kernel_size: 11 }",
            [(2, 4, 9, 9)],
            "larger than its padded input",
        ),
        (
            "type: 'Convolution' convolution_param { num_output: 4 kernel_size: 3 stride: 0 }",
            [(2, 4, 9, 9)],
            "has stride 0",
        ),
        (
            "type: 'Convolution' convolution_param { num_output: 4 kernel_size: 3 group: 3 }",
            [(2, 4, 9, 9)],
            "has group 3",
        ),
        (
            "type: 'Convolution' convolution_param { num_output: 4 kernel_size: 3 kernel_size: 3"
            " kernel_size: 3 }",
            [(2, 4, 9, 9)],
            "3 values of kernel_size for 2",
        ),
        ("type: 'Pooling' pooling_param { kernel_size: 9 }", [(2, 4, 7, 7)], "larger than its padded input"),
        ("type: 'InnerProduct'", [(2, 4)], "no num_output"),
        ("type: 'Eltwise'", [(2, 4), (2, 5)], "bottoms of the same shape"),
        ("type: 'Eltwise'", [(2, 4)], "takes 2 or more bottoms, not 1"),
        ("type: 'ReLU'", [(2, 4), (2, 4)], "takes 1 bottom, not 2"),
        ("type: 'Scale'", [(2, 4)] * 3, "takes 1 to 2 bottoms, not 3"),
        ("type: 'ReLU' top: 'p' top: 'q'", [(2, 4)], "produces 1 top, not 2"),
        ("type: 'Concat'", [(2, 4, 3), (2, 4, 4)], "bottoms of the same shape"),
        ("type: 'Concat'", [(2, 4, 3), (2, 4)], "bottoms with the same number of axes"),
        ("type: 'ArgMax'", [()], "axis 0, which its bottom does not have"),
        ("type: 'Concat' concat_param { axis: 3 }", [(2, 4, 3), (2, 4, 3)], "axis 3"),
        ("type: 'Slice' top: 'p' top: 'q'", [(2, 5)], "cannot slice 5 into 2"),
        ("type: 'Slice' top: 'p' top: 'q' slice_param { slice_point: 5 }", [(2, 5)], "cannot slice 5"),
        ("type: 'Reshape' reshape_param { shape { dim: 0 dim: 5 } }", [(2, 4)], "cannot reshape to 0, 5"),
        ("type: 'SoftmaxWithLoss'", [(2, 10, 3), (2,)], "one label for each of its 6"),
        ("type: 'Accuracy'", [(2, 10), (3,)], "one label for each of its 2"),
        ("type: 'Scale' scale_param { axis: 1 }", [(2, 4, 3), (5,)], "bottoms of the same shape"),
        ("type: 'Crop'", [(2, 4, 5, 9), (2, 4, 7, 6)], "cannot crop 5 to 7"),
        ("type: 'Permute' permute_param { order: 3 }", [(2, 4)], "cannot permute"),
        ("type: 'BatchReindex'", [(8, 4), (5, 1)], "one axis of indices"),
        ("type: 'Embed' embed_param { num_output: 6 }", [(9,)], "no input_dim"),
        ("type: 'Filter'", [(8, 4), (8, 2)], "a selector with one number"),
        ("type: 'Filter'", [(8, 4), (7,)], "bottoms of the same shape"),
        ("type: 'LRN'", [(2, 4)], "a bottom with 4 axes"),
        ("type: 'LRN' lrn_param { local_size: 4 }", [(2, 4, 3, 3)], "local_size 4, which is not odd"),
        ("type: 'LSTM' recurrent_param { num_output: 5 }", [(9, 2, 3), (9, 3)], "bottoms of the same shape"),
        ("type: 'LSTM' recurrent_param { num_output: 5 }", [(9, 2, 3)], "takes 2 to 5 bottoms"),
        (
            "type: 'RNN' recurrent_param { num_output: 5 expose_hidden: true }",
            [(9, 2, 3), (9, 2)],
            "takes 3 to 4 bottoms, not 2",
        ),
        ("type: 'LSTMUnit'", [(1, 2, 5), (1, 2, 19), (1, 2)], "four gates for each"),
        ("type: 'SPP' spp_param { pyramid_height: 4 }", [(2, 4, 3, 3)], "cannot divide 3 into 4"),
        ("type: 'Softmax' softmax_param { axis: 2 }", [(2, 4)], "axis 2, which its bottom does not have"),
        ("type: 'Tile'", [(2, 4)], "has no tiles"),
        ("type: 'HDF5Output'", [(2, 4), (2,)], "produces 0 tops, not 1"),
        ("type: 'Flatten' flatten_param { axis: 2 end_axis: 1 }", [(2, 4, 3)], "axis 2 after end_axis 1"),
        (
            "type: 'ArgMax' argmax_param { top_k: 11 }",
            [(2, 10)],
            "top_k 11, but its bottom has only 10 values",
        ),
        ("type: 'Pooling' pooling_param { kernel_size: 2 pad: 2 }", [(2, 4, 7, 7)], "has pad 2, not smaller"),
    ],
)
def test_a_misfit_is_one_line_that_names_the_layer(
    body: str, bottoms: list[tuple[int, ...]], what: str
) -> None:
    with pytest.raises(PrototxtError) as caught:
        one_layer(body, *bottoms)
    assert what in str(caught.value)
    assert "layer 'x'" in str(caught.value)
    assert str(caught.value).count("(from layer 'in')") == len(bottoms)
    assert "\n" not in str(caught.value)


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


def test_a_bottom_of_another_phase_names_its_layer_and_the_phase() -> None:
    net = net_of(
        """layer { name: 'd' type: 'Data' top: 'data' include { phase: TRAIN } data_param { batch_size: 1 } }
        layer { name: 'x' type: 'ReLU' bottom: 'data' top: 'y' }"""
    )
    infer_shapes(net, pb.TRAIN)
    with pytest.raises(PrototxtError, match=r"layer 'd' produces it, but not before this one in phase TEST"):
        infer_shapes(net, pb.TEST)


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
