"""Data layers: shapes, misfits, and settings at which Caffe aborts."""

from __future__ import annotations

import pytest

from tests.caffe.layer_types.conftest import Sizes, check_misfit, rules_of


@pytest.mark.parametrize(
    ("body", "bottoms", "what"),
    [
        ("type: 'HDF5Output'", [(2, 4), (2,)], "produces 0 tops, not 1"),
    ],
)
def test_data_layers_that_do_not_fit_are_reported_in_one_line(body: str, bottoms: Sizes, what: str) -> None:
    check_misfit(body, bottoms, what)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ('type: "DummyData" top: "a" dummy_data_param { shape { dim: 1 } num: 1 }', "size-given-twice"),
        ('type: "Data" data_param { prefetch: 0 }', "layer-value-refused"),
        ('type: "HDF5Data" transform_param { mirror: true }', "layer-value-refused"),
        ('type: "HDF5Output"', "layer-value-refused"),
        ('type: "ImageData" image_data_param { new_width: 8 }', "size-half-given"),
        ('type: "ImageData" image_data_param { new_width: 0 new_height: 8 }', "size-half-given"),
        ('type: "MemoryData" memory_data_param { channels: 1 height: 2 }', "layer-value-refused"),
        ('type: "WindowData" window_data_param { crop_size: 5 }', "layer-value-refused"),
        (
            'type: "WindowData" transform_param { crop_size: 5 } window_data_param { fg_fraction: 2 }',
            "layer-value-refused",
        ),
    ],
)
def test_data_layers_that_stop_caffe_are_refused(text: str, rule: str) -> None:
    assert rules_of(text) == [rule]


@pytest.mark.parametrize(
    "text",
    [
        'type: "DummyData" top: "a" dummy_data_param { num: 1 channels: 2 height: 3 width: 4 }',
        'type: "ImageData" image_data_param { new_height: 8 new_width: 9 }',
        'type: "ImageData" image_data_param { new_height: 0 new_width: 0 }',
    ],
)
def test_data_layers_that_caffe_runs_are_accepted(text: str) -> None:
    assert rules_of(text) == []
