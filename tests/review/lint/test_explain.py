"""`lint --explain`: each rule at length, in plain words."""

from __future__ import annotations

import pytest

from caffe_recipes.review.lint.explain import explain_rule
from caffe_recipes.review.lint.registry import load_rules

HEADS = ["problem", "checks", "effect", "help", "fix", "exit", "accept"]


def test_every_rule_explains_what_it_checks_and_how_to_accept_it() -> None:
    wrong = []
    for name in load_rules():
        lines = "\n".join(explain_rule(name)).splitlines()
        heads = [line[:9].strip() for line in lines[1:] if line[0] != " "]
        if heads != HEADS or max(map(len, lines)) > 110 or f"finding: {name}," not in "\n".join(lines):
            wrong.append(name)
    assert wrong == []


@pytest.mark.parametrize(
    ("name", "subject"),
    [
        ("warmup-end-jump", "the rate of one solver"),
        ("weight-decay-large", "the values of one solver"),
        ("tmp-too-small", "a folder, or a recipe"),
        ("unused-top", "the blobs and names of a net: missing, unread and duplicate ones"),
        ("dialect-field", "any prototxt, for the Caffe given by --dialect"),
    ],
)
def test_a_rule_names_the_kind_of_input_it_checks(name: str, subject: str) -> None:
    assert f"\nchecks   {subject}" in "\n".join(explain_rule(name))


def test_a_note_fails_nothing_by_itself() -> None:
    assert "exit     0, or 1 with --fail-on note" in "\n".join(explain_rule("zero-start-partly"))


def test_the_texts_of_findings_are_shown_with_the_names_of_their_values() -> None:
    assert "\nhelp     include { phase: <name> }\n" in "\n".join(explain_rule("phase-without-include"))
    assert "effect   see each finding\n" in "\n".join(explain_rule("solver-value-refused"))


def test_a_rule_explains_what_fix_does_about_it() -> None:
    assert "fix      removes the field\n" in "\n".join(explain_rule("solver-field-unread"))
    assert "fix      by hand\n" in "\n".join(explain_rule("join-jump"))
