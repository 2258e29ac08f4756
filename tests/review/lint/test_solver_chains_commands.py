"""A script's commands: what they train, leave out and test, the same for a folder as for its files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.render.recipe_files import generate
from caffe_recipes.review.lint.findings import Finding
from caffe_recipes.review.lint.folders import lint_targets
from caffe_recipes.review.lint.inputs import LintOptions
from tests.review.conftest import net_text, solver_text

FIRST = {"lr_policy": '"poly_cyc"', "power": 1, "max_iter": "500 # 32000 / 64 * 1 epoch", "lr_iter": 1000}
Solvers = Mapping[str, Mapping[str, object]]
SOLVERS: Solvers = {"1": FIRST, "2": {"base_lr": 0.5}}
TRAIN = "caffe train --solver=own/solver_{}.prototxt {}\n"
BOTH = TRAIN.format(1, "") + TRAIN.format(2, "--weights=own_1_iter_500.caffemodel")


def lint_both_ways(tmp_path: Path, text: str, solvers: Solvers = SOLVERS) -> list[Finding]:
    """Lint the solvers as files and as a folder, with a script, and hold that nothing differs."""
    own, script = tmp_path / "own", tmp_path / "run.sh"
    own.mkdir(exist_ok=True)
    (own / "train_val.prototxt").write_text(net_text("TRAIN", "TEST"))
    for name, changes in solvers.items():
        (own / f"solver_{name}.prototxt").write_text(
            solver_text({"snapshot_prefix": f'"/tmp/own_{name}"', **changes})
        )
    script.write_text(text)
    files = [str(own / f"solver_{name}.prototxt") for name in solvers]
    found = lint_targets(files, LintOptions(script=script))
    folder = lint_targets([str(own)], LintOptions(script=script))
    assert [one for one in folder if one.id != "order-guessed"] == found
    return found


def ids(found: list[Finding]) -> list[str]:
    return [one.id for one in found]


@pytest.mark.parametrize("words", ["1 2", "$(ls)"])
def test_a_loop_s_ranks_are_judged(tmp_path: Path, words: str) -> None:
    text = f"for p in {words}; do mpirun -n 64 caffe train --solver=own/solver_$p.prototxt; done\n"
    found = ids(lint_both_ways(tmp_path, text))
    assert "global-batch" in found
    assert "solver-untold" in found


def test_a_command_that_cannot_be_determined_is_a_note_at_its_line(tmp_path: Path) -> None:
    (found,) = lint_both_ways(tmp_path, "mpirun -n 2 \\\n  caffe train --solver=$1\n")
    assert (found.id, found.severity, found.where) == ("solver-untold", "note", f"{tmp_path / 'run.sh'}:2")
    assert found.what.endswith("$1")


@pytest.mark.parametrize(
    ("words", "written"),
    [
        ("mpiexec.hydra -n 2 -hosts a, b", "-hosts a,b"),
        ("mpirun -host a ,b -n 2", "-host a,b"),
        ("srun --nodelist=c1, c2", "--nodelist c1,c2"),
        ("mpiexec -hosts a,b -n 2", ""),
        ('mpiexec -hosts "a, b" -n 2', ""),
        ("mpiexec -n 2 -hosts a, \\\n", ""),
        ("mpiexec -hosts $(echo a) -n 2", ""),
    ],
)
def test_a_list_of_hosts_that_a_space_ends_is_an_error(tmp_path: Path, words: str, written: str) -> None:
    found = lint_both_ways(tmp_path, f"\n{words} {BOTH}")
    split = [one for one in found if one.id == "hosts-split"]
    assert [one.severity for one in split] == ["error"] * bool(written)
    assert all(one.write == f"{written}, without a space" for one in split)
    assert all(one.where == f"{tmp_path / 'run.sh'}:2" for one in split)


def test_a_command_in_a_loop_is_named_with_the_line_where_that_begins(tmp_path: Path) -> None:
    text = "\nfor p in 1 2; do\n  caffe train --solver=own/solver_$p.prototxt\ndone\n"
    (found,) = lint_both_ways(tmp_path, text)
    assert (found.id, found.where) == ("solver-untold", f"{tmp_path / 'run.sh'}:3")
    assert found.what.startswith("in the loop or function at line 2, the solver of this command is unknown")


def test_a_phase_that_is_never_trained_is_reported_and_its_weights_are_missed(tmp_path: Path) -> None:
    text = "# " + TRAIN.format(1, "") + TRAIN.format(2, "--weights=own_1_iter_500.caffemodel")
    (found,) = [one for one in lint_both_ways(tmp_path, text) if one.severity != "note"]
    assert (found.id, found.severity, found.phase) == ("not-started", "warning", "1")


def test_weights_of_a_phase_that_is_never_trained_are_unknown(tmp_path: Path) -> None:
    text = BOTH.replace("caffe train --solver=own/solver_2", "# caffe") + TRAIN.format(
        3, "--weights=own_2_iter_1000.caffemodel"
    )
    found = lint_both_ways(tmp_path, text, {**SOLVERS, "3": {"base_lr": 0.5}})
    assert [one.id for one in found if one.severity != "note"] == ["weights-unknown", "not-started"]


@pytest.mark.parametrize(
    ("given", "rule", "severity"),
    [
        ("--weights=/tmp/own_2_iter_1000.caffemodel", "", ""),
        ("--weights=$1", "", ""),
        ("--weights=own_1_iter_500.caffemodel", "test-weights-not-final", "warning"),
        ("--weights=own_2_iter_999.caffemodel", "test-weights-unknown", "warning"),
        ("--weights=other_iter_1000.caffemodel", "test-weights-unknown", "warning"),
        ("", "test-without-weights", "error"),
    ],
)
def test_the_weights_of_a_test_are_the_last_phase_s(
    tmp_path: Path, given: str, rule: str, severity: str
) -> None:
    found = lint_both_ways(tmp_path, BOTH + f"caffe test --model=own/train_val.prototxt {given}\n")
    assert [(one.id, one.severity) for one in found] == ([(rule, severity)] if rule else [])
    if rule:
        assert found[0].where == f"{tmp_path / 'run.sh'}:3"
        assert found[0].write == "--weights=own_2_iter_1000.caffemodel"


def test_a_test_between_phases_is_not_a_test_of_the_wrong_model(tmp_path: Path) -> None:
    test = "caffe test --model=own/train_val.prototxt --weights=own_{}.caffemodel\n"
    assert lint_both_ways(tmp_path, BOTH + test.format("1_iter_500") + test.format("2_iter_1000")) == []


def test_a_model_of_phases_that_are_not_given_is_not_judged(tmp_path: Path) -> None:
    more = TRAIN.format(3, "--weights=own_2_iter_1000.caffemodel")
    test = "caffe test --model=own/train_val.prototxt --weights=own_3_iter_7.caffemodel\n"
    assert lint_both_ways(tmp_path, BOTH + more + test) == []


def test_time_needs_no_weights(tmp_path: Path) -> None:
    assert lint_both_ways(tmp_path, BOTH + "caffe time --model=own/train_val.prototxt\n") == []


def test_the_model_of_our_own_script_is_judged(tmp_path: Path) -> None:
    for path, text in generate(load_recipe("digits-local")).items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    script = tmp_path / "jobs" / "digits-local" / "run.sh"
    folder = str(tmp_path / "prototxt" / "digits-local")
    rules = ("test-weights-unknown", "test-weights-not-final", "test-without-weights")
    assert not {*ids(lint_targets([folder], LintOptions(script=script)))} & {*rules}
    text = script.read_text()
    script.write_text(
        text.replace("--weights=digits_collapse_iter_112", "--weights=digits_collapse_iter_113")
    )
    (found,) = [one for one in lint_targets([folder], LintOptions(script=script)) if one.id in rules]
    line = text[: text.index("--weights=digits_collapse_iter_112")].count("\n") + 1
    assert (found.id, found.where) == ("test-weights-unknown", f"{script}:{line}")
