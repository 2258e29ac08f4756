"""Loops and functions of a script: the lines that are run, and what stays as it stands."""

from __future__ import annotations

import pytest

from caffe_recipes.review.lint.scripts import expand_lines, parse_script

PHASES = ["solver_init.prototxt", "solver_cyc1.prototxt", "solver_cyc2.prototxt"]


@pytest.mark.parametrize(
    "text",
    [
        "for p in init cyc1 cyc2; do mpirun -n 64 caffe train --solver=solver_$p.prototxt; done",
        "for p in init cyc1 cyc2\ndo\n  mpirun -n 64 \\\n  caffe train --solver=solver_${p}.prototxt\ndone",
        'for p in "init" cyc1 cyc2 ; do # all\nmpirun -n 64 caffe train --solver "solver_$p.prototxt"\ndone',
        'A="init cyc1 cyc2"\nfor p in $A; do mpirun -n 64 caffe train --solver=solver_$p.prototxt; done',
        "A=(init cyc1 cyc2)\n"
        'for p in "${A[@]}"; do\n mpirun -n 64 caffe train --solver=solver_$p.prototxt\ndone',
        "run() {\n  mpirun -n 64 caffe train --solver=$1\n}\n"
        "run solver_init.prototxt\nrun solver_cyc1.prototxt && run 'solver_cyc2.prototxt'",
        "function run {\n mpirun -n 64 caffe train --solver=solver_${1}.prototxt ${2:+--weights=$2}; }\n"
        "run init\nrun \\\n cyc1\nrun cyc2",
        "run() { mpirun -n 64 caffe train --solver=solver_$1.prototxt; }\n"
        "for p in init cyc1 cyc2; do run $p; done",
        "run()\n{\n p=$1\n mpirun -n 64 caffe train --solver=solver_$p.prototxt\n}\n"
        "run init\nrun cyc1\nif true; then run cyc2; fi",
    ],
)
def test_each_pass_and_each_call_is_a_training(text: str) -> None:
    script = parse_script(text)
    assert [one.solver for one in script.trainings] == PHASES
    assert [one.ranks for one in script.trainings] == [64] * 3
    assert (script.untold, script.ranks) == ((), 64)


def test_a_number_s_loop_goes_through_its_range() -> None:
    script = parse_script("for i in {1..3}; do caffe train --solver=s_$i.prototxt; done")
    assert [one.solver for one in script.trainings] == ["s_1.prototxt", "s_2.prototxt", "s_3.prototxt"]


def test_weights_are_those_of_the_call() -> None:
    text = (
        'run() {\n caffe train --solver="$1" ${2:+--weights="$2"}\n}\n'
        "run a.prototxt\nrun b.prototxt a_iter_5.caffemodel\n"
    )
    trainings = parse_script(text, "run.sh").trainings
    assert [(one.weights, one.where) for one in trainings] == [
        ("", "run.sh:4"),
        ("a_iter_5.caffemodel", "run.sh:5"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "for p in $(ls); do\nmpirun -n 64 caffe train --solver=solver_$p.prototxt\ndone",
        "for p in *.prototxt; do\nmpirun -n 64 caffe train --solver=$p\ndone",
        'run() {\nmpirun -n 64 caffe train --solver=$1\n}\nrun "$@"',
        "\nmpirun -n 64 caffe train --solver=$1",
    ],
)
def test_what_takes_a_shell_to_tell_is_said_and_its_ranks_count(text: str) -> None:
    script = parse_script(text)
    assert script.trainings == ()
    assert [one.ranks for one in script.untold] == [64]
    assert script.ranks == 64


def test_lines_keep_their_numbers_around_loops() -> None:
    text = "one\nfor p in a b; do\n  two $p\ndone\nthree\n"
    lines = [(line.strip(), number) for line, number in expand_lines(text) if line.strip()]
    assert lines == [("one", 1), ("two a", 3), ("two b", 3), ("three", 5)]


@pytest.mark.parametrize(
    "text",
    [
        "for p in a; do " * 1000,
        "for p in {1..9999}; do\n" * 4 + "x\n" * 1000 + "done\n" * 4,
        "f() { f; f; }\nf\n" * 100,
        "f() {\n" * 100,
        "done; done; }\nfor in do",
        "f 'a\nf() {",
    ],
)
def test_no_text_grows_without_end(text: str) -> None:
    assert sum(len(line) for line, _ in expand_lines(text)) < 20_000_000
