"""Files of another Caffe become ours where fields are equal; any other field is an error with its line."""

from __future__ import annotations

import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.dialects.convert import convert_document, convert_nets, with_own_fields
from caffe_recipes.caffe.dialects.schema import parse_lenient
from caffe_recipes.caffe.prototxt import Document, is_kind, parse_prototxt
from caffe_recipes.errors import PrototxtError


def convert(text: str, dialect: str) -> tuple[Document[pb.NetParameter], list[str]]:
    return convert_document(parse_lenient(text, "a.prototxt"), dialect)


STATISTICS = (
    "nvcaffe's BatchNorm keeps running means; other Caffes keep sums and a factor that divides them: "
    "test results differ slightly, and each misreads the statistics in the other's caffemodels"
)


@pytest.mark.parametrize(
    ("dialect", "theirs", "ours", "notes"),
    [
        (
            "nvcaffe",
            "batch_norm_param { engine: CUDNN scale_bias: false }",
            "batch_norm_param { use_weight_bias: false }",
            [
                "1:28: drops BatchNormParameter.Engine CUDNN, which changes only speed, memory or files",
                "1:42: BatchNormParameter.scale_bias is use_weight_bias here",
            ],
        ),
        (
            "nvcaffe",
            "data_param { cache: true shuffle: true threads: 4 }",
            "data_param { shuffle: true }",
            [
                "1:22: drops DataParameter.cache, which changes only speed, memory or files",
                "1:48: drops DataParameter.threads, which changes only speed, memory or files",
            ],
        ),
        (
            "nvcaffe",
            "data_param { shuffle: true }",
            "data_param { }",
            ["1:22: drops shuffle, which nvcaffe ignores without cache"],
        ),
        (
            "nvcaffe",
            "type: 'BatchNorm' batch_norm_param { use_global_stats: false eps: 1e-8 }",
            "type: 'BatchNorm' batch_norm_param { }",
            [
                f"1:9: {STATISTICS}",
                "1:46: drops use_global_stats, which nvcaffe ignores",
                "1:70: drops eps, since nvcaffe uses at least 1e-05",
            ],
        ),
        (
            "nvcaffe",
            "type: 'BatchNorm' batch_norm_param { use_global_stats: true eps: 1e-5 }",
            "type: 'BatchNorm' batch_norm_param { eps: 1e-5 }",
            [f"1:9: {STATISTICS}", "1:46: drops use_global_stats, which nvcaffe ignores"],
        ),
        (
            "nvcaffe",
            "image_data_param { batch_size: 8 }",
            "image_data_param { batch_size: 8 }",
            [
                "1:28: nvcaffe's batch_size is that of all GPUs of a host; SURFsara's is that of one process"
                ": each GPU gets batch_size / GPUs images, and BatchNorm normalizes over those only"
            ],
        ),
        (
            "nvcaffe",
            "forward_type: FLOAT",
            "",
            ["1:9: drops LayerParameter.forward_type, which has its default"],
        ),
        (
            "bvlc",
            "pooling_param { round_mode: CEIL }",
            "pooling_param { }",
            ["1:25: drops PoolingParameter.round_mode, which has its default"],
        ),
        (
            "surfsara",
            "pooling_param { ceil_mode: true }",
            "pooling_param { }",
            ["1:25: drops PoolingParameter.ceil_mode, which has its default"],
        ),
        ("nvcaffe", 'name: "a" data_param { shuffle: false }', 'name: "a" data_param { shuffle: false }', []),
    ],
)
def test_what_means_the_same_is_converted_and_noted(
    dialect: str, theirs: str, ours: str, notes: list[str]
) -> None:
    document, found = convert(f"layer {{ {theirs} }}", dialect)
    assert document.message == parse_prototxt(f"layer {{ {ours} }}", pb.NetParameter)
    assert found == [f"a.prototxt:{note}" for note in notes]
    assert (document.given is not None) == bool(notes)


@pytest.mark.parametrize(
    ("dialect", "text", "message"),
    [
        (
            "nvcaffe",
            "solver_data_type: FLOAT16 base_lr: 1",
            "1:1: SolverParameter.solver_data_type of nvcaffe has no",
        ),
        (
            "nvcaffe",
            "base_lr: 1 rampup_interval: 9",
            "1:12: SolverParameter.rampup_interval of nvcaffe has no equal in a recipe; remove it; "
            "here the warm-up is warmup_iter, which is linear, not quadratic",
        ),
        (
            "bvlc",
            "base_lr: 1 rampup_interval: 9",
            "1:12: SolverParameter has no field 'rampup_interval'; it belongs",
        ),
        (
            "bvlc",
            "layer { pooling_param { round_mode: FLOOR } }",
            "1:25: PoolingParameter.round_mode of BVLC's",
        ),
        (
            "surfsara",
            "layer { pooling_param { ceil_mode: false } }",
            "1:25: PoolingParameter has no field 'ceil_mode'",
        ),
        ("surfsara", "layer { my_param { a: 1 } }", "1:9: LayerParameter has no field 'my_param'"),
        (
            "nvcaffe",
            "layer { type: 'A' } layer { torch_param { a: 1 } }",
            "1:29: LayerParameter has no field",
        ),
    ],
)
def test_what_has_no_equal_is_named_with_its_line(dialect: str, text: str, message: str) -> None:
    with pytest.raises(PrototxtError) as caught:
        convert(text, dialect)
    assert str(caught.value).startswith(f"a.prototxt:{message}")


# The first scales by its fillers, the second by default ones, and the third not at all.
NORMS = """layer { name: "a" type: "BatchNorm" bottom: "x" top: "y" include { phase: TEST }
  batch_norm_param { scale_filler { value: 2 } bias_filler { value: 3 } eps: 0.1 } }
layer { name: "b" type: "BatchNorm" bottom: "y" top: "y" batch_norm_param { scale_bias: true } }
layer { name: "b_scale" type: "BatchNorm" bottom: "y" top: "z" batch_norm_param { eps: 0.2 } }
layer { name: "end" type: "ReLU" bottom: "z" top: "z" }
"""
OURS = """layer { name: "a" type: "BatchNorm" bottom: "x" top: "y" include { phase: TEST }
  batch_norm_param { eps: 0.1 } }
layer { name: "a_scale" type: "Scale" bottom: "y" top: "y" include { phase: TEST }
  scale_param { bias_term: true filler { value: 2 } bias_filler { value: 3 } } }
layer { name: "b" type: "BatchNorm" bottom: "y" top: "y" batch_norm_param { } }
layer { name: "b_scale_" type: "Scale" bottom: "y" top: "y" scale_param { bias_term: true } }
layer { name: "b_scale" type: "BatchNorm" bottom: "y" top: "z" batch_norm_param { eps: 0.2 } }
layer { name: "end" type: "ReLU" bottom: "z" top: "z" }
"""


def test_a_batch_norm_that_scales_itself_gets_a_scale_layer_which_means_the_same_in_each_engine() -> None:
    document, notes = convert(NORMS, "nvcaffe")
    assert document.message == parse_prototxt(OURS, pb.NetParameter)
    assert notes[0] == ("a.prototxt:1:19: a Scale layer after it holds the scale and shift of a BatchNorm")
    assert document.where("layer[1].name") == "a.prototxt:1:9"
    assert document.where("layer[5].type") == "a.prototxt:5:21"
    assert with_own_fields(document.message, document) == parse_lenient(NORMS).message


def test_the_rates_of_statistics_that_nvcaffe_sets_itself_are_written() -> None:
    rates = " ".join("param { lr_mult: 2 decay_mult: 3 }" for _ in range(3))
    document, notes = convert(f'layer {{ name: "bn" type: "BatchNorm" {rates} }}', "nvcaffe")
    params = document.message.layer[0].param
    assert [(param.lr_mult, param.decay_mult) for param in params] == [(0, 0)] * 3
    assert notes[1] == (
        "a.prototxt:1:38: writes 0 for the rates of a BatchNorm's statistics, as nvcaffe does itself"
    )
    assert "nvcaffe's BatchNorm keeps running means" in notes[0]


def test_nvcaffe_does_not_test_first_unless_asked() -> None:
    document, notes = convert("test_interval: 5 base_lr: 1", "nvcaffe")
    assert document.message == pb.SolverParameter(test_interval=5, base_lr=1, test_initialization=False)
    assert notes == ["a.prototxt:1:1: gets test_initialization: false, nvcaffe's default"]


def test_a_recipe_s_net_gets_its_own_fields_back() -> None:
    data = (
        'layer { name: "d" type: "Data" include { phase: TRAIN } data_param { batch_size: 8 cache: true } }'
    )
    rest = 'layer { name: "bn" type: "BatchNorm" batch_norm_param { scale_bias: true } }'
    document, _ = convert(f"eltwise_mem_sharing: false {data} {rest}", "nvcaffe")
    document.message.layer[0].data_param.batch_size = 9
    again = with_own_fields(document.message, document)
    given = parse_lenient(f"eltwise_mem_sharing: false {data} {rest}").message
    assert is_kind(given, pb.NetParameter)
    given.layer[0].data_param.batch_size = 9
    assert again.SerializeToString(deterministic=True) == given.SerializeToString(deterministic=True)


def test_batch_norms_of_one_name_share_the_scale_and_shift_of_both_phases() -> None:
    norms = "".join(
        f'layer {{ name: "bn" type: "BatchNorm" bottom: "x" top: "x" include {{ phase: {phase} }} '
        f"batch_norm_param {{ scale_bias: true eps: {eps} }} }}"
        for phase, eps in (("TRAIN", 0.1), ("TEST", 0.2))
    )
    document, _ = convert(norms, "nvcaffe")
    assert [layer.name for layer in document.message.layer] == ["bn", "bn_scale"] * 2
    assert with_own_fields(document.message, document) == parse_lenient(norms).message


def test_the_shared_names_of_scale_and_shift_go_to_the_scale_layer() -> None:
    rates = "param { lr_mult: 0 } " * 3
    names = 'param { name: "s" lr_mult: 2 } param { share_mode: PERMISSIVE }'
    norm = "batch_norm_param { scale_bias: true }"
    document, _ = convert(f'layer {{ name: "bn" type: "BatchNorm" {rates} {names} {norm} }}', "nvcaffe")
    own, scale = document.message.layer
    assert len(own.param) == 3
    assert list(scale.param) == [pb.ParamSpec(name="s"), pb.ParamSpec(share_mode="PERMISSIVE")]


def test_a_scale_layer_has_one_name_in_two_nets() -> None:
    norm = 'layer { name: "bn" type: "BatchNorm" bottom: "x" top: "x" batch_norm_param { scale_bias: true } }'
    relu = 'layer { name: "bn_scale" type: "ReLU" bottom: "x" top: "x" }'
    documents = [parse_lenient(text, f"{name}.prototxt") for name, text in (("a", norm + relu), ("b", norm))]
    joined = convert_nets(documents, "nvcaffe")
    names = [(layer.name, len(layer.include)) for layer in joined.message.layer]
    assert names == [("bn", 0), ("bn_scale_", 0), ("bn_scale", 1)]


def test_two_nets_that_differ_in_speed_alone_are_joined_and_keep_the_fields_of_the_training_net() -> None:
    plain = 'layer { name: "c" type: "Convolution" convolution_param { num_output: 2 } }'
    fast = plain.replace("num_output", 'conv_algos_override: "1,1,1" num_output')
    train, test = f"eltwise_mem_sharing: true {plain}", f"eltwise_mem_sharing: false {fast}"
    for one, other in ((train, test), (test, train)):
        joined = convert_nets([parse_lenient(one, "a"), parse_lenient(other, "b")], "nvcaffe")
        assert len(joined.message.layer) == 1
        assert with_own_fields(joined.message, joined) == parse_lenient(one).message


def test_a_layer_of_one_phase_keeps_the_fields_of_its_own_net() -> None:
    train = 'layer { name: "r" type: "ReLU" relu_param { negative_slope: 1 } }'
    test = 'layer { name: "r" type: "ReLU" forward_type: FLOAT include { phase: TEST } }'
    joined = convert_nets([parse_lenient(train, "a"), parse_lenient(test, "b")], "nvcaffe")
    again = with_own_fields(joined.message, joined)
    assert again == parse_lenient(train.replace("} }", "} include { phase: TRAIN } }") + test).message
