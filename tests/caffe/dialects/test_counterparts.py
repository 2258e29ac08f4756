"""Every counterpart replaces something that its dialect lacks by fields that it has."""

from __future__ import annotations

import pytest

from caffe_recipes.caffe.dialects import (
    COUNTERPARTS,
    LAYER_TYPES,
    LR_POLICIES,
    field_dialects,
    find_counterpart,
    find_layer_counterpart,
    layer_type_dialects,
    load_dialects,
)


def test_every_dialect_has_its_counterparts() -> None:
    assert set(COUNTERPARTS) == set(load_dialects())


# A table for all layers with a ReLU of their own; some dialects have one or another of its fields.
RELU = {"relu", "negative_slope"}


@pytest.mark.parametrize("dialect", COUNTERPARTS)
def test_a_counterpart_answers_a_field_that_another_has_and_this_lacks(dialect: str) -> None:
    for owner, name in COUNTERPARTS[dialect]:
        if name not in RELU:
            assert field_dialects(owner, name), (owner, name)
            assert dialect not in field_dialects(owner, name), (owner, name)


def test_layers_and_policies_are_answered_by_what_is_known_more_widely() -> None:
    for lacking, other in LAYER_TYPES.items():
        assert set(layer_type_dialects(other)) > set(layer_type_dialects(lacking))
    for policy in LR_POLICIES.values():
        assert all(policy.uses in dialect.lr_policies for dialect in load_dialects().values())


@pytest.mark.parametrize(
    ("dialect", "owner", "name", "expected"),
    [
        ("nvcaffe", "SolverParameter", "warmup_iter", "rampup_interval, which is quadratic, not linear"),
        ("surfsara", "SolverParameter", "rampup_interval", "warmup_iter, which is linear, not quadratic"),
        ("intel", "SolverParameter", "lr_iter", "poly with max_iter set to lr_iter"),
        ("bvlc", "DataParameter", "shuffle", "convert_imageset -shuffle"),
        ("bvlc", "BatchNormParameter", "filler", "Scale layer"),
        ("nvcaffe", "PoolingParameter.Engine", "MKLDNN", "CAFFE or unset"),
        ("surfsara", "BatchNormParameter.Engine", "CUDNN", "CAFFE or unset"),
    ],
)
def test_the_tables_go_in_both_directions(dialect: str, owner: str, name: str, expected: str) -> None:
    assert expected in find_counterpart(dialect, owner, name)


def test_a_field_without_a_counterpart_gets_none() -> None:
    assert find_counterpart("surfsara", "SolverParameter", "min_lr") == ""
    assert find_layer_counterpart("nvcaffe", "ROIPooling") == ""
    assert find_layer_counterpart("intel", "SpatialDropout") == "Dropout"
