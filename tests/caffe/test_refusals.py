"""Settings of one layer that stop Caffe, from the checks in its sources."""

from __future__ import annotations

import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.prototxt import parse_prototxt
from caffe_recipes.caffe.refusals import ENGINE_BLOCKS, find_filler_refusals, find_refusals


def rules(text: str, net_engine: str = "") -> list[str]:
    layer = parse_prototxt(f'name: "l" {text}', pb.LayerParameter)
    return [refusal.rule for refusal in find_refusals(layer, net_engine)]


def pool(text: str) -> str:
    return f'type: "Pooling" bottom: "a" top: "b" pooling_param {{ {text} }}'


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (pool("kernel_size: 3 pad_h: 1"), "size-half-given"),
        (pool("kernel_size: 3 pad_w: 0"), "size-half-given"),
        (pool("kernel_size: 3 stride_w: 2"), "size-half-given"),
        (pool("kernel_h: 3"), "size-half-given"),
        (pool("kernel_size: 3 pad: 1 pad_h: 1 pad_w: 1"), "size-given-twice"),
        (pool("kernel_size: 3 pool: STOCHASTIC"), "pooling-stochastic"),
        (pool("global_pooling: true kernel_h: 2 kernel_w: 2"), "global-pooling-sized"),
        (pool("global_pooling: true pad_h: 1 pad_w: 1"), "global-pooling-sized"),
        (
            'type: "Convolution" convolution_param { num_output: 1 kernel_size: 1 stride_h: 2 }',
            "size-half-given",
        ),
        ('type: "Slice" slice_param { axis: 1 slice_dim: 1 }', "axis-given-twice"),
        ('type: "Concat" concat_param { axis: 0 concat_dim: 1 }', "axis-given-twice"),
        ('type: "DummyData" top: "a" dummy_data_param { shape { dim: 1 } num: 1 }', "size-given-twice"),
        ('type: "SoftmaxWithLoss" top: "loss" top: "prob"', "loss-weight-count"),
        ('type: "SoftmaxWithLoss" top: "loss" top: "prob" loss_weight: 1', "loss-weight-count"),
        ('type: "Dropout" dropout_param { dropout_ratio: 1 }', "dropout-ratio"),
        ('type: "Sigmoid" sigmoid_param { engine: CUDNN }', "engine-unknown"),
        (
            'type: "Eltwise" bottom: "a" bottom: "b" eltwise_param { coeff: 1 operation: MAX }',
            "eltwise-coeff",
        ),
        ('type: "Accuracy" accuracy_param { top_k: 0 }', "layer-value-refused"),
        ('type: "BatchNorm" batch_norm_param { eps: -1 }', "layer-value-refused"),
        ('type: "Data" data_param { prefetch: 0 }', "layer-value-refused"),
        ('type: "Exp" exp_param { base: -2 }', "layer-value-refused"),
        ('type: "HDF5Data" transform_param { mirror: true }', "layer-value-refused"),
        ('type: "HDF5Output"', "layer-value-refused"),
        ('type: "LRN" lrn_param { alpha: -1 }', "layer-value-refused"),
        ('type: "LRN" lrn_param { k: 0 }', "layer-value-refused"),
        ('type: "Log" log_param { base: 1 }', "layer-value-refused"),
        ('type: "Log" log_param { scale: 0 }', "layer-value-refused"),
        ('type: "MemoryData" memory_data_param { channels: 1 height: 2 }', "layer-value-refused"),
        ('type: "SPP" spp_param { pool: STOCHASTIC }', "layer-value-refused"),
        ('type: "SoftmaxWithLoss" loss_param { label_smoothing: 1 }', "layer-value-refused"),
        ('type: "WindowData" window_data_param { crop_size: 5 }', "layer-value-refused"),
        (
            'type: "WindowData" transform_param { crop_size: 5 } window_data_param { fg_fraction: 2 }',
            "layer-value-refused",
        ),
        ('type: "LRN" lrn_param { beta: nan }', "value-not-finite"),
        ('type: "Exp" exp_param { shift: inf }', "value-not-finite"),
        ('type: "Data" data_param { batch_size: 4294967295 }', "value-overflows"),
    ],
)
def test_nets_that_stop_caffe_are_refused(text: str, rule: str) -> None:
    assert rules(text) == [rule]


@pytest.mark.parametrize(
    "text",
    [
        pool("kernel_h: 3 kernel_w: 2 stride_h: 1 stride_w: 2 pad_h: 0 pad_w: 1"),
        pool("global_pooling: true pad: 0 stride: 1"),
        'type: "Convolution" convolution_param { num_output: 1 kernel_size: 1 pad_w: 2 }',
        'type: "Slice" slice_param { slice_dim: 1 }',
        'type: "SoftmaxWithLoss" top: "loss" top: "prob" loss_weight: 1 loss_weight: 0',
        'type: "SoftmaxWithLoss" loss_weight: 1',
        'type: "Dropout" dropout_param { dropout_ratio: 0 }',
        'type: "Data" data_param { batch_size: 2 rand_skip: 4294967295 }',
        'type: "Exp" exp_param { base: 1 }',
        'type: "LRN" lrn_param { k: 0 norm_region: WITHIN_CHANNEL }',
        'type: "BatchNorm" batch_norm_param { eps: 0 }',
        'type: "Eltwise" bottom: "a" bottom: "b" eltwise_param { coeff: 1 coeff: 2 operation: MAX }',
        'type: "DummyData" top: "a" dummy_data_param { num: 1 channels: 2 height: 3 width: 4 }',
    ],
)
def test_nets_that_caffe_runs_are_accepted(text: str) -> None:
    assert rules(text) == []


def test_an_unknown_engine_stops_the_types_that_read_theirs_and_no_others() -> None:
    for type_, block in ENGINE_BLOCKS.items():
        assert rules(f'type: "{type_}" engine: "FOO"') == ["engine-unknown"]
        assert rules(f'type: "{type_}"', net_engine="FOO") == ["engine-unknown"]
        assert rules(f'type: "{type_}" engine: "FOO" {block} {{ engine: CAFFE }}') == []
        assert rules(f'type: "{type_}" engine: "MKLDNN:CPU,FPGA"', net_engine="FOO") == []
    assert rules('type: "PReLU" engine: "FOO"') == []


@pytest.mark.parametrize(
    ("filler", "rule"),
    [
        (pb.FillerParameter(type="gaussian", std=-1), ["filler-range"]),
        (pb.FillerParameter(type="gaussian", std=0), ["filler-range"]),
        (pb.FillerParameter(type="gaussian", std=float("nan")), ["filler-range"]),
        (pb.FillerParameter(type="gaussian", sparse=-2), ["filler-sparse"]),
        (pb.FillerParameter(type="uniform", min=1, max=0), ["filler-range"]),
        (pb.FillerParameter(type="xavier", sparse=2), ["filler-sparse"]),
        (pb.FillerParameter(type="gaussian", sparse=2), []),
        (pb.FillerParameter(type="uniform", min=1, max=1), []),
        (pb.FillerParameter(type="constant", std=-1), []),
    ],
)
def test_fillers_that_caffe_stops_at_are_refused(filler: pb.FillerParameter, rule: list[str]) -> None:
    assert [refusal.rule for refusal in find_filler_refusals(filler)] == rule
