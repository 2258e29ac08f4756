"""All findings of a chain, in the order in which a reader goes through the files."""

from __future__ import annotations

from dataclasses import replace

from caffe_recipes.caffe.chain import Chain
from caffe_recipes.review.lint.check import check_chain, sort_findings
from caffe_recipes.review.lint.findings import Finding, split_place
from caffe_recipes.review.lint.registry import finding

ONE = finding("join-jump", "a", "it jumps", write="base_lr: 1")


def test_a_chain_of_no_phases_has_no_findings() -> None:
    assert list(check_chain(Chain(()))) == []


def test_findings_are_sorted_by_file_and_line_and_given_once() -> None:
    def at(where: str) -> Finding:
        return replace(ONE, where=where)

    found = [at("b:2:1"), at("a:10:1"), at("a:9:1"), at("folder"), at("a"), at("a:9:1")]
    places = [one.where for one in sort_findings(found, ["a", "b"])]
    assert places == ["folder", "a", "a:9:1", "a:10:1", "b:2:1"]


def test_a_path_may_hold_colons_and_numbers() -> None:
    assert split_place("a:1/b:2.prototxt:3:4") == ("a:1/b:2.prototxt", 3, 4)
    assert split_place("r.yaml:3") == ("r.yaml", 3, 0)
