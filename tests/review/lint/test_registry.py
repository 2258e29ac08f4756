"""The table of rules: every id in it is found by the module that registers it, and by a test."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from string import Formatter

import pytest

import caffe_recipes.caffe.refusals
from caffe_recipes.review.lint import registry, rules
from caffe_recipes.review.lint.findings import SEVERITIES, Finding
from caffe_recipes.review.lint.registry import Subject, finding, load_rules

RULES = load_rules()
MODULES = sorted(Path(rules.__file__).parent.glob("[!_]*.py"))
LINT = [*MODULES, *Path(registry.__file__).parent.glob("*.py")]
# What these find is a value of `caffe.refusals`, or of a table, which names the rule.
BY_VALUE = {"rates", "reads", "records", "refusals", "dialect_rates"}
# What these find is a rule of a module beside, too.
SHARED = {"mean-values-misfit", "solver-value-refused", "pooling-size-changes"}
TESTS = [Path(__file__).parent, Path(__file__).parents[2] / "caffe" / "dialects"]


def id_of(call: ast.AST, names: tuple[str, ...] = ("finding", "Refusal")) -> Iterator[str]:
    """Yield the ids that a call's first argument may be, if it is a call of one of these names."""
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id.endswith(names):
        for node in ast.walk(call.args[0]) if call.args else ():
            if isinstance(node, ast.Constant):
                yield str(node.value)


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text())))


def found_in(paths: Iterable[Path]) -> set[str]:
    """Give the ids of the rules that modules find."""
    return {name for path in paths for node in nodes_of(path) for name in id_of(node)}


def registered_in(path: Path) -> set[str]:
    """Give the ids of the rules that a module registers, each above a check or a part of one."""
    ids: set[str] = set()
    for node in nodes_of(path):
        ids |= set(id_of(node, ("_rule",)))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "also":
            ids |= {str(one.value) for one in node.args[:1] if isinstance(one, ast.Constant)}
    return ids


def test_each_module_finds_the_rules_that_it_registers_and_no_others() -> None:
    for path in MODULES:
        found, own = found_in([path]) - SHARED, registered_in(path) - SHARED
        assert path.stem in BY_VALUE or path.stem == "reading" or found == own, path.stem
    read = next(path for path in MODULES if path.stem == "reading")
    assert registered_in(read) <= found_in(LINT)


def test_every_rule_about_refusals_belongs_to_check_refusals() -> None:
    general = Path(caffe_recipes.caffe.refusals.__file__)
    refusals = next(path for path in MODULES if path.stem == "refusals")
    refused = {
        name
        for path in (general, refusals, *general.parent.glob("layer_types/*.py"))
        for node in nodes_of(path)
        for name in id_of(node, ("Refusal",))
    }
    assert refused == registered_in(refusals)


def test_a_module_of_rules_has_one_subject_and_at_most_400_lines() -> None:
    assert not [path.stem for path in MODULES if path.read_text().count("\n") > 400]


NEW_RULE = """
from caffe_recipes.review.lint.net_text import layer_finding
from caffe_recipes.review.lint.subjects import data_rule


@data_rule("layer-unlucky", "warning", "a layer with an unlucky name", what="{layer}", effect="a", write="b")
def _check_names(view, index, layer):
    if layer.name == "13":
        yield layer_finding("layer-unlucky", view, index, "name")
"""
LIST_AND_LINT = """
from caffe_recipes.review.lint import rules
rules.__path__.append(".")
from caffe_recipes.cli.main import commands
commands(["lint", "--explain", "layer-unlucky"], standalone_mode=False)
commands(["lint", "net.prototxt"], standalone_mode=False)
"""


def test_a_module_put_beside_the_others_is_listed_explained_and_called(tmp_path: Path) -> None:
    (tmp_path / "luck.py").write_text(NEW_RULE)
    (tmp_path / "net.prototxt").write_text('layer { name: "13" type: "Input" top: "data" }\n')
    run = [sys.executable, "-c", LIST_AND_LINT]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True)
    assert "problem  a layer with an unlucky name" in done.stdout, done.stderr
    assert "net.prototxt:1:9: warning [layer-unlucky] layer '13' (Input)" in done.stdout


def test_a_check_with_several_rules_is_called_once() -> None:
    subject: Subject[[]] = Subject("nothing")

    @subject.add
    @subject.add
    def check() -> Iterator[Finding]:
        yield finding("join-jump", "a", write="b")

    assert len([*subject.run()]) == 1


def test_each_rule_is_named_by_a_test_beside() -> None:
    files = [path for folder in TESTS for path in folder.rglob("test_*.py") if path != Path(__file__)]
    tests = "".join(path.read_text() for path in files)
    assert [name for name in RULES if f'"{name}"' not in tests] == []


def test_an_id_is_given_once() -> None:
    with pytest.raises(AssertionError, match="join-jump"):
        Subject("a file by itself").also("join-jump", "note", "the same again")


def test_a_rule_has_a_name_a_severity_and_one_line() -> None:
    wrong = [
        name
        for name, one in RULES.items()
        if not re.fullmatch("[a-z0-9-]+", name)
        or one.severity not in SEVERITIES
        or not re.fullmatch(r".{10,98}[^.\n]", one.summary)
        or not one.subject
    ]
    assert wrong == []


def test_the_texts_of_a_rule_name_each_value_and_compute_nothing() -> None:
    computed = [
        (name, field)
        for name, one in RULES.items()
        for template in (one.what, one.effect, one.write)
        for _, field, _, _ in Formatter().parse(template)
        if field is not None and not field.isidentifier()
    ]
    assert computed == []


def test_a_finding_fills_the_texts_of_its_rule_and_reports_the_values_that_the_rule_names() -> None:
    one = finding("top-made-twice", "a", layer="layer 'b' (ReLU)", name="c", producer="layer 'd' (ReLU)")
    assert (one.effect, one.values) == ("Caffe aborts: Top blob 'c' produced by multiple sources", {})
    with pytest.raises(KeyError, match="producer"):
        finding("top-made-twice", "a", layer="layer 'b' (ReLU)", name="c")


def test_a_finding_takes_the_texts_of_its_rule_unless_it_has_its_own() -> None:
    one = finding("join-jump", "a", "b", write="c")
    assert (one.severity, one.effect, one.write) == ("warning", RULES["join-jump"].effect, "c")
    with pytest.raises(KeyError):
        finding("join-jum", "a", "b")
