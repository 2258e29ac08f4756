"""The table of rules: every id that can be found is in it, and every id of it can be found."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import caffe_recipes.review.lint
from caffe_recipes.review.lint.check import DIALECT_RULES, NET_RULES
from caffe_recipes.review.lint.folders import all_rules
from caffe_recipes.review.lint.rules import RULES, SEVERITIES, finding
from caffe_recipes.review.lint.solver_rules import _FAULTS

FILES = sorted(Path(caffe_recipes.review.lint.__path__[0]).rglob("*.py"))


def ids_found() -> set[str]:
    """Gather the ids that the code makes findings of: the first argument of each call of `finding`.

    In the table of a solver's values it is that of each `Fault`.
    """
    found = {rule for rule, *_ in _FAULTS.values()}
    for path in FILES:
        of_table = path.name == "solver_rules.py"
        for node in ast.walk(ast.parse(path.read_text())):
            name = getattr(node.func, "id", "") if isinstance(node, ast.Call) else ""
            if not isinstance(node, ast.Call) or name not in ("finding", *(["Fault"] if of_table else [])):
                continue
            rule = node.args[0]
            if of_table and isinstance(rule, ast.Attribute):
                assert ast.unparse(rule) == "fault.rule"  # the table's own, found where it is made
            elif isinstance(rule, ast.Constant):
                found.add(str(rule.value))
            else:
                assert isinstance(rule, ast.Name), f"{path}: {ast.dump(rule)}"
                assert (path.name, rule.id) == ("solver_rules.py", "rule")
    return found


def test_each_id_is_in_the_table_and_each_of_the_table_is_found_somewhere() -> None:
    assert ids_found() == set(RULES)


def test_the_tables_share_no_id() -> None:
    assert len(all_rules()) == len(RULES) + len(NET_RULES) + len(DIALECT_RULES)
    assert set(all_rules()) == {*RULES, *NET_RULES, *DIALECT_RULES}


@pytest.mark.parametrize("name", all_rules())
def test_a_rule_has_a_name_a_severity_and_one_line(name: str) -> None:
    rule = all_rules()[name]
    assert name == name.lower()
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    assert rule.severity in SEVERITIES
    assert 10 < len(rule.looks_for) < 100
    assert "\n" not in rule.looks_for


def test_a_finding_is_as_grave_as_its_rule() -> None:
    assert finding("join-jump", "a", "b", "c", "d", before=1.0).severity == "warning"
    with pytest.raises(KeyError):
        finding("join-jum", "a", "b", "c", "d")
