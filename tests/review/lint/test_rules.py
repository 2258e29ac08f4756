"""The table of rules: every id in it is found by a check that carries it, and by a test."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from string import Formatter

import pytest

import caffe_recipes.caffe.refusals
import caffe_recipes.review.lint.folders
from caffe_recipes.caffe.dialects.check import DIFFERENCE_RULES
from caffe_recipes.review.lint.rules import RULES, SEVERITIES, finding, rule

LINT = Path(caffe_recipes.review.lint.folders.__file__).parent
# What these find is a value of `caffe.refusals`, or of a table, which names the rule.
BY_VALUE = {"check_refusals", "check_reads", "_check_rate_faults", "check_records"}
TESTS = [Path(__file__).parent, Path(__file__).parents[2] / "caffe" / "dialects"]


def id_of(call: ast.AST, names: tuple[str, ...] = ("finding", "Refusal")) -> Iterator[str]:
    """Yield the ids that a call's first argument may be, if it is a call of one of these names."""
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id.endswith(names):
        for node in ast.walk(call.args[0]) if call.args else ():
            if isinstance(node, ast.Constant):
                yield str(node.value)


@cache
def trees() -> list[ast.Module]:
    """Return the modules of lint."""
    return [ast.parse(path.read_text()) for path in sorted(LINT.glob("*.py"))]


def functions() -> Iterator[ast.FunctionDef]:
    """Yield the functions and methods of lint."""
    for tree in trees():
        yield from (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def named_rules() -> dict[str, str]:
    """Give the ids of the rules that a module names, since several of its checks find them."""
    assigned = [node for tree in trees() for node in tree.body if isinstance(node, ast.Assign)]
    return {
        target.id: name
        for node in assigned
        for target in node.targets
        if isinstance(target, ast.Name)
        for name in id_of(node.value, ("_rule",))
    }


def carried_by(function: ast.FunctionDef, named: dict[str, str]) -> set[str]:
    """Give the ids of the rules that stand above a function."""
    ids = {name for decorator in function.decorator_list for name in id_of(decorator, ("_rule",))}
    names = {node.id for node in function.decorator_list if isinstance(node, ast.Name)}
    return ids | {named[name] for name in names & named.keys()}


def test_each_check_finds_the_rules_that_it_carries_and_no_others() -> None:
    named = named_rules()
    carried: set[str] = set()
    for function in functions():
        found = {name for node in ast.walk(function) for name in id_of(node)}
        own = carried_by(function, named)
        assert found <= own, function.name
        assert own == found or function.name in BY_VALUE, function.name
        carried |= own
    assert carried | set(DIFFERENCE_RULES) == RULES.keys()


def test_every_rule_about_refusals_belongs_to_check_refusals() -> None:
    general = Path(caffe_recipes.caffe.refusals.__file__)
    modules = [ast.parse(path.read_text()) for path in (general, *general.parent.glob("layer_types/*.py"))]
    refused = {name for tree in modules for node in ast.walk(tree) for name in id_of(node, ("Refusal",))}
    (check,) = (one for one in functions() if one.name == "check_refusals")
    assert refused == carried_by(check, {})


def test_reading_files_imports_every_rule() -> None:
    code = "import caffe_recipes.review.lint.inputs as i; from caffe_recipes.review.lint.rules import RULES"
    run = [sys.executable, "-c", f"{code}; print(len(RULES))"]
    assert int(subprocess.run(run, capture_output=True, text=True, check=True).stdout) == len(RULES)


def test_each_rule_is_named_by_a_test_beside() -> None:
    files = [path for folder in TESTS for path in folder.rglob("test_*.py") if path != Path(__file__)]
    tests = "".join(path.read_text() for path in files)
    assert [name for name in RULES if f'"{name}"' not in tests] == []


def test_an_id_is_given_once() -> None:
    with pytest.raises(AssertionError, match="join-jump"):
        rule("a file by itself", "join-jump", "note", "the same again")


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
