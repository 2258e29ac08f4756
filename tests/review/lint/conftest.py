"""Fixtures for the tests of lint's rules for one net and on a recipe."""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.prototxt import parse_document
from caffe_recipes.review.lint.check import check_net
from caffe_recipes.review.lint.findings import Finding
from caffe_recipes.review.lint.folders import lint_targets
from caffe_recipes.review.lint.inputs import LintOptions
from caffe_recipes.review.lint.registry import load_rules

CheckText = Callable[..., dict[str, Finding]]
Change = Callable[[dict[str, Any]], object]
LintRecipe = Callable[[str, Change], list[Finding]]


def ids_judging(*subjects: str) -> set[str]:
    """Give the ids of the rules whose subject starts with one of these words."""
    return {name for name, rule in load_rules().items() if rule.subject.startswith(subjects)}


@pytest.fixture
def check_text() -> CheckText:
    """Give a function that checks the text of a net, and gives its findings by id, the first of each."""

    def check(text: str, **known: object) -> dict[str, Finding]:
        found = check_net(parse_document(text, "net.prototxt", pb.NetParameter), **known)  # type: ignore[arg-type]
        for finding in found:
            assert finding.severity == load_rules()[finding.id].severity
            assert finding.what and finding.effect and finding.write
            assert finding.where.startswith("net.prototxt")
        first: dict[str, Finding] = {}
        for finding in found:
            first.setdefault(finding.id, finding)
        return first

    return check


@pytest.fixture
def lint_recipe(tmp_path: Path) -> LintRecipe:
    """Give a function that lints a shipped recipe after a change to its YAML's values."""

    def run(name: str, change: Change) -> list[Finding]:
        text = resources.files("caffe_recipes").joinpath("recipes", f"{name}.yaml").read_text()
        raw = yaml.safe_load(text)
        change(raw)
        path = tmp_path / "changed.yaml"
        path.write_text(yaml.safe_dump(raw, sort_keys=False))
        return lint_targets([str(path)], LintOptions())

    return run
