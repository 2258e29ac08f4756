"""Messages from plain values: what fits a field, and what is refused with the name of the field."""

from __future__ import annotations

import math

import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.messages import build_message
from caffe_recipes.errors import InputError


def test_values_of_every_kind_reach_their_fields() -> None:
    message = build_message(
        pb.ConvolutionParameter,
        "c",
        {
            "num_output": 8,
            "kernel_size": [3, 5],
            "bias_term": False,
            "weight_filler": {"type": "gaussian", "std": 0.01, "variance_norm": "AVERAGE"},
            "bias_filler": pb.FillerParameter(value=2),
            "engine": pb.ConvolutionParameter.CAFFE,
        },
    )
    filler = pb.FillerParameter(type="gaussian", std=0.01, variance_norm=pb.FillerParameter.AVERAGE)
    assert message == pb.ConvolutionParameter(
        num_output=8,
        kernel_size=[3, 5],
        bias_term=False,
        weight_filler=filler,
        bias_filler=pb.FillerParameter(value=2),
        engine=pb.ConvolutionParameter.CAFFE,
    )


def test_a_single_value_is_accepted_for_a_repeated_field() -> None:
    assert build_message(pb.ConvolutionParameter, "c", {"kernel_size": 3}).kernel_size == [3]
    assert len(build_message(pb.LayerParameter, "l", {"param": {"lr_mult": 0}}).param) == 1


def test_none_is_absent_and_an_empty_mapping_is_present() -> None:
    layer = build_message(pb.LayerParameter, "l", {"relu_param": {}, "pooling_param": None})
    assert layer.HasField("relu_param")
    assert not layer.HasField("pooling_param")


def test_a_message_given_is_copied() -> None:
    filler = pb.FillerParameter(type="msra")
    message = build_message(pb.ConvolutionParameter, "c", {"weight_filler": filler})
    filler.type = "xavier"
    assert message.weight_filler.type == "msra"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"num_outputs": 1},
            "c: ConvolutionParameter has no field 'num_outputs'; did you mean 'num_output'?",
        ),
        ({"num_output": -1}, "c: num_output: invalid value -1; expected an integer from 0 to 4294967295"),
        ({"num_output": 2**32}, "integer"),
        ({"num_output": 1.0}, "integer"),
        ({"num_output": True}, "integer"),
        ({"num_output": "8"}, "invalid value '8'"),
        ({"num_output": [8]}, "invalid value [8]"),
        ({"kernel_size": [3, "5"]}, "kernel_size: invalid value '5'"),
        ({"bias_term": 1}, "bias_term: invalid value 1; expected True or False"),
        ({"engine": "caffe"}, "c: engine: Engine has no value 'caffe'; "),
        ({"engine": 99}, "Engine has no value 99"),
        ({"engine": ["CAFFE"]}, "Engine has no value ['CAFFE']"),
        (
            {"weight_filler": "msra"},
            "weight_filler: invalid value 'msra'; expected a FillerParameter or a mapping",
        ),
        ({"weight_filler": pb.NetState(stage=["a", "b"])}, "expected a FillerParameter"),
        (
            {"weight_filler": {"type": b"msra"}},
            "c: weight_filler: type: invalid value b'msra'; expected text",
        ),
        (
            {"weight_filler": {"std": math.nan}},
            "std: invalid value nan; expected a number of at most 3.40282346e+38",
        ),
        ({"weight_filler": {"std": 1e39}}, "std: invalid value 1e+39"),
        ({"weight_filler": {"std": 10**400}}, "std: invalid value 1000"),
        ({"weight_filler": {"std": "0.1"}}, "std: invalid value '0.1'"),
    ],
)
def test_an_invalid_value_is_refused_with_its_field(fields: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as caught:
        build_message(pb.ConvolutionParameter, "c", fields)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 250
