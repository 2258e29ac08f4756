"""Loops and functions of a script: not followed, and named where they train."""

from __future__ import annotations

import pytest

from caffe_recipes.review.lint.scripts import find_blocks, parse_script, read_lines

TRAIN = "mpirun -n 64 caffe train --solver="


@pytest.mark.parametrize(
    ("text", "begins", "line"),
    [
        (f"for p in init cyc1; do {TRAIN}solver_$p.prototxt; done", 1, 1),
        ("\nfor p in a b\ndo\n  mpirun -n 64 \\\n  caffe train --solver=solver_${p}.prototxt\ndone", 2, 5),
        (f"run() {{\n {TRAIN}$1\n}}\nrun solver_init.prototxt\nrun solver_cyc1.prototxt", 1, 2),
        (f"function run {{\n {TRAIN}$1; }}\nrun a.prototxt", 1, 2),
        (f"f()\n{{\n if true; then\n  {TRAIN}$1\n fi\n}}", 1, 4),
        (f"f() {{\n for p in a; do\n  {TRAIN}$p\n done\n}}", 2, 3),
        (f"f() {{\n echo\n}}\n{TRAIN}$1", 0, 4),
        (f"for p in *; do\n echo $p\ndone | sort\n{TRAIN}$(ls)", 0, 4),
    ],
)
def test_commands_that_only_a_shell_can_resolve_are_reported_with_their_loop_or_function(
    text: str, begins: int, line: int
) -> None:
    script = parse_script(text, "train.sh")
    assert script.trainings == ()
    (unresolved,) = script.unresolved
    assert (unresolved.where, unresolved.begins, unresolved.ranks) == (f"train.sh:{line}", begins, 64)
    assert script.ranks == 64


def test_a_plain_command_inside_a_function_is_reported_too() -> None:
    script = parse_script(
        f"last() {{\n {TRAIN}b.prototxt --weights=a_iter_5.caffemodel\n}}\n{TRAIN}a.prototxt\nlast"
    )
    assert [one.solver for one in script.trainings] == ["a.prototxt"]
    assert [(one.solver, one.begins) for one in script.unresolved] == [("b.prototxt", 1)]


def test_prose_that_starts_like_a_loop_opens_no_loop() -> None:
    text = f"for the first phase, call\nwhile it trains look at\nrun() and\n{TRAIN}a.prototxt\n"
    assert [one.solver for one in parse_script(text).trainings] == ["a.prototxt"]


@pytest.mark.parametrize(
    "text",
    [
        "for p in a; do " * 1000,
        "f() {\n" * 100_000,
        "done; done; }\nfor in do",
        "f 'a\nf() {",
        " " * 100_000 + "(",
    ],
)
def test_any_text_is_read_in_time_that_grows_with_its_length(text: str) -> None:
    assert len(find_blocks(read_lines(text))) <= text.count("\n") + 1
