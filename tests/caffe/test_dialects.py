"""Every counterpart replaces something that its dialect lacks by fields that it has."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.dialects import (
    COUNTERPARTS,
    LR_POLICIES,
    TYPE_COUNTERPARTS,
    Definition,
    field_dialects,
    find_counterpart,
    find_dialect,
    find_layer_counterpart,
    layer_type_dialects,
    load_dialects,
    lr_policy_dialects,
    solver_type_dialects,
)

REFERENCE = Path(__file__).parents[3] / "shared/reference/dialects.json"
ALL = ("surfsara", "intel", "bvlc", "nvcaffe")


@pytest.mark.parametrize(
    ("owner", "name", "known"),
    [
        ("SolverParameter", "base_lr", ALL),
        ("SolverParameter", "rampup_interval", ("nvcaffe",)),
        ("SolverParameter", "warmup_iter", ("surfsara", "intel")),
        ("SolverParameter", "lr_iter", ("surfsara",)),
        ("SolverParameter", "test_offset", ("intel",)),
        ("SolverParameter", "gama", ()),
        ("PoolingParameter.RoundMode", "FLOOR", ("bvlc",)),
        ("PoolingParameter.Engine", "MKLDNN", ("surfsara", "intel")),
        ("PoolingParameter.Engine", "CAFFE", ALL),
        ("Phase", "TEST", ALL),
        ("RandomResizeParameter", "min_size", ("surfsara", "intel")),
        ("ClipParameter", "min", ("bvlc",)),
        ("NoSuchParameter", "x", ()),
        ("NoSuchParameter.Engine", "x", ()),
    ],
)
def test_field_is_known_to(owner: str, name: str, known: tuple[str, ...]) -> None:
    assert field_dialects(owner, name) == known


def test_words_are_known_to() -> None:
    assert layer_type_dialects("Convolution") == ALL
    assert layer_type_dialects("Swish") == ("intel", "bvlc")
    assert layer_type_dialects("Konvolution") == ()
    assert lr_policy_dialects("poly_cyc") == ("surfsara",)
    assert lr_policy_dialects("poly") == ALL
    assert solver_type_dialects("SAG") == ("nvcaffe",)


def test_missing_or_changed_fields_are_ours_and_added_ones_are_not() -> None:
    for dialect in load_dialects().values():
        for owner, names in dialect.missing.items():
            assert all("surfsara" in field_dialects(owner, name) for name in names or ())
        for owner, definitions in dialect.changed.items():
            assert all("surfsara" in field_dialects(owner, name) for name in definitions)
        for owner, definitions in dialect.added.items():
            assert not any("surfsara" in field_dialects(owner, name) for name in definitions)


def test_a_changed_field_is_reported_as_the_other_defines_it() -> None:
    changed = load_dialects()["nvcaffe"].changed["DataParameter"]
    assert changed["shuffle"] == Definition(14, "optional", "bool", "false")
    assert pb.DataParameter.SHUFFLE_FIELD_NUMBER == 11


@pytest.mark.skipif(not REFERENCE.exists(), reason="../shared/reference is not here to compare with")
def test_data_are_the_references_whole() -> None:
    reference = json.loads(REFERENCE.read_text())
    assert list(load_dialects()) == list(reference)
    for name, dialect in load_dialects().items():
        entry = reference[name]
        for words in ("layer_types", "lr_policies", "solver_types"):
            assert getattr(dialect, words) == set(entry[words])
        assert plain(dialect.added) == entry.get("only_here", {})
        missing = {o: "whole" if n is None else sorted(n) for o, n in dialect.missing.items()}
        assert missing == {
            o: n if n == "whole" else sorted(n) for o, n in entry.get("missing_here", {}).items()
        }
        assert plain(dialect.changed) == {
            owner: {field: both[name] for field, both in fields.items()}
            for owner, fields in entry.get("different_here", {}).items()
        }


def plain(owners: object) -> object:
    """Turn definitions into the lists that JSON has."""
    return json.loads(json.dumps(owners))


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
    for lacking, other in TYPE_COUNTERPARTS.items():
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
    assert find_layer_counterpart(find_dialect("nvcaffe"), "ROIPooling") == ""
    assert find_layer_counterpart(find_dialect("intel"), "SpatialDropout") == "Dropout"
