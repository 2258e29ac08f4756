"""Findings as text and JSON."""

from __future__ import annotations

import json
from dataclasses import replace

from caffe_recipes.review.lint.registry import finding, load_rules
from caffe_recipes.review.lint.report import (
    render_findings,
    render_findings_json,
    render_github,
    render_rules,
)

ONE = finding(
    "join-jump",
    "a/s.prototxt:4:1",
    "it jumps",
    "b",
    effect="it shakes",
    write="base_lr: 1",
    before=1.0,
    after=2.0,
)
GRAVE = finding("lr-iter-missing", "a/s.prototxt:9:1", "no lr_iter", "b")


def test_a_finding_is_a_block_that_starts_with_its_place() -> None:
    assert "\n".join(render_findings([ONE])) == (
        "a/s.prototxt:4:1: warning [join-jump] b: it jumps\n    it shakes\n    help: base_lr: 1\n\n"
        "0 errors, 1 warning, 0 notes"
    )


def test_an_accepted_finding_shows_its_reason_and_is_not_counted_with_the_others() -> None:
    both = [replace(ONE, accepted="published so"), GRAVE]
    text = "\n".join(render_findings(both, is_verbose=True))
    assert "a/s.prototxt:4:1: warning, accepted [join-jump]" in text
    assert "    accepted: published so\n" in text
    assert text.endswith("\n\n1 error, 0 warnings, 0 notes; 1 accepted")


def test_accepted_findings_are_a_line_each_after_the_others() -> None:
    accepted = replace(ONE, accepted="published so")
    lines = render_findings([accepted, replace(accepted, where="b.prototxt:2:1"), GRAVE])
    assert lines[0].startswith("a/s.prototxt:9:1: error")
    assert lines[-4:-1] == [
        "",
        "a/s.prototxt:4:1: accepted [join-jump] b: published so (and 1 place more)",
        "",
    ]
    (short,) = [line for line in render_findings([accepted], width=40) if "accepted [" in line]
    assert short == "a/s.prototxt:4:1: accepted [join-jump..."


def test_a_phase_that_the_text_names_is_not_named_twice() -> None:
    named = replace(ONE, what="from a to b")
    assert "[join-jump] from a to b\n" in "\n".join(render_findings([named]))


def test_no_findings_is_one_line() -> None:
    assert "\n".join(render_findings([])) == "0 errors, 0 warnings, 0 notes"


def test_names_cannot_forge_lines() -> None:
    text = "\n".join(render_findings([replace(ONE, where="a\nb\x1b[31m", what="x\ny")]))
    assert r"a\nb\x1b[31m: warning [join-jump] b: x\ny" in text


def test_json_holds_every_field() -> None:
    (one,) = json.loads(render_findings_json([ONE]))
    assert one == {
        "id": "join-jump",
        "severity": "warning",
        "where": "a/s.prototxt:4:1",
        "what": "it jumps",
        "effect": "it shakes",
        "write": "base_lr: 1",
        "values": {"before": 1.0, "after": 2.0},
        "phase": "b",
        "accepted": "",
    }
    assert render_findings_json([]) == "[]"


def test_json_has_text_for_what_is_not_a_number() -> None:
    odd = finding("join-jump", "a", "b", before=float("nan"), after=float("inf"))
    (one,) = json.loads(render_findings_json([odd]), parse_constant=lambda name: AssertionError(name))
    assert one["values"] == {"before": "nan", "after": "inf"}


def test_rules_are_listed_gravest_first() -> None:
    lines = render_rules()
    assert len(lines) == len(load_rules())
    severities = [line.split()[1] for line in lines]
    assert severities == sorted(severities, key=["error", "warning", "note"].index)


def test_a_rule_that_can_be_fixed_is_marked_in_the_list() -> None:
    marked = {line.split()[0] for line in render_rules() if line.endswith(" (--fix)")}
    assert marked == {name for name in load_rules() if load_rules()[name].fix}
    assert "net-folder" in marked


def test_the_same_finding_at_several_places_is_one_block_that_names_them() -> None:
    others = [replace(ONE, where=f"a/{name}.prototxt:4:1", phase=name) for name in "cde"]
    text = "\n".join(render_findings([ONE, *others]))
    assert text.count("it jumps") == 1
    assert "\n    also at a/c.prototxt:4:1 (c), a/d.prototxt:4:1 (d), a/e.prototxt:4:1 (e)\n" in text
    assert text.endswith("0 errors, 1 warning in 4 places, 0 notes")


def test_blocks_and_their_positions_are_counted() -> None:
    others = [replace(ONE, where=f"a/{name}.prototxt:4:1", accepted="as published") for name in "cde"]
    text = "\n".join(render_findings([ONE, GRAVE, *others, replace(ONE, what="it falls")]))
    assert text.count("[") == 3 + 1
    assert text.endswith("1 error, 2 warnings, 0 notes; 1 accepted in 3 places")


def test_very_many_places_are_counted() -> None:
    text = "\n".join(render_findings([replace(ONE, where=f"s{index}.prototxt:4:1") for index in range(20)]))
    assert "s5.prototxt:4:1 (b), ... (20 in total)\n" in text
    assert "s6.prototxt" not in text


def test_severities_and_places_are_painted() -> None:
    text = "\n".join(render_findings([ONE, GRAVE], lambda text, colour: f"<{colour}>{text}</>"))
    assert "<bold>a/s.prototxt:4:1</>: <yellow>warning</> [join-jump]" in text
    assert "<red>error</> [lr-iter-missing]" in text


def test_github_gets_a_command_for_each_finding_with_its_place_escaped() -> None:
    odd = replace(ONE, where="a,b:c.prototxt:4:7", what="50% more\nlines")
    accepted = replace(GRAVE, accepted="so published")
    assert "\n".join(render_github([odd, accepted])) == (
        "::warning file=a%2Cb%3Ac.prototxt,line=4,col=7,title=join-jump::"
        "b: 50%25 more%0Alines%0Ait shakes%0Ahelp: base_lr: 1"
    )
    assert "\n".join(render_github([GRAVE])).startswith(
        "::error file=a/s.prototxt,line=9,col=1,title=lr-iter-missing::"
    )
    assert "\n".join(render_github([replace(ONE, where="")])).startswith("::warning title=join-jump::")


def test_a_narrow_terminal_gets_whole_words_and_colours() -> None:
    found = replace(
        ONE, what="it jumps by more than it should where the two phases meet", accepted="as published"
    )
    text = "\n".join(render_findings([found], lambda text, colour: f"<{text}>", width=60, is_verbose=True))
    assert text.splitlines()[:4] == [
        "<a/s.prototxt:4:1>: <warning, accepted> [join-jump] b: it jumps",
        "  by more than it should where the two phases meet",
        "    it shakes",
        "    accepted: as published",
    ]
