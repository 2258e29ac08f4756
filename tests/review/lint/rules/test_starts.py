"""Nets that need weights, in phases that start without any."""

from __future__ import annotations

import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.chain import Chain, Link
from caffe_recipes.caffe.prototxt import parse_document
from caffe_recipes.review.lint.findings import Finding
from caffe_recipes.review.lint.subjects import start_rule

DATA = 'layer { name: "d" type: "Data" top: "x" top: "y" include { phase: TRAIN } }'
NORM = 'layer { name: "b" type: "BatchNorm" bottom: "x" top: "b" batch_norm_param { PARAM } }'
PRODUCTS = """
layer { name: "p" type: "InnerProduct" bottom: "x" top: "p" inner_product_param { num_output: 4 FILLER } }
layer { name: "q" type: "InnerProduct" bottom: "p" top: "q" inner_product_param { num_output: 4 } }
"""


def starts(net: str, weights: str | None, resumes: str = "") -> list[Finding]:
    read = parse_document(DATA + net, "net.prototxt", pb.NetParameter)
    solver = parse_document("max_iter: 9", "solver.prototxt", pb.SolverParameter)
    return list(start_rule.run(Chain((Link("a", solver, read, 9, weights, resumes=resumes),))))


@pytest.mark.parametrize(
    ("param", "weights", "expected"),
    [
        ("use_global_stats: true", "", "statistics-empty"),
        ("use_global_stats: true", None, "statistics-unknown"),
        ("use_global_stats: true", "other.caffemodel", None),
        ("use_global_stats: true eps: 1", "", None),
        ("use_global_stats: false", "", None),
        ("", "", None),
    ],
)
def test_global_statistics_need_weights(param: str, weights: str | None, expected: str | None) -> None:
    found = starts(NORM.replace("PARAM", param), weights)
    assert [one.id for one in found] == ([expected] if expected else [])
    assert not found or "multiplies by 1/sqrt(eps) = 316.2: the loss saturates" in found[0].effect


def test_a_phase_that_resumes_has_its_statistics() -> None:
    assert starts(NORM.replace("PARAM", "use_global_stats: true"), "", "a_iter_3.solverstate") == []


def test_a_norm_whose_own_phase_is_test_needs_weights() -> None:
    (found,) = starts(NORM.replace('top: "b"', 'top: "b" phase: TEST').replace("PARAM", ""), "")
    assert found.id == "statistics-empty"


@pytest.mark.parametrize("weights", ["", None, "other.caffemodel"])
@pytest.mark.parametrize("filler", ["", 'weight_filler { type: "msra" }'])
def test_a_net_without_fillers_needs_weights(weights: str | None, filler: str) -> None:
    found = starts(PRODUCTS.replace("FILLER", filler), weights)
    assert [one.id for one in found] == (["fillers-missing"] if weights == "" and not filler else [])


def test_a_single_layer_may_start_at_0() -> None:
    assert starts(PRODUCTS.partition('\nlayer { name: "q"')[0].replace("FILLER", ""), "") == []
