"""Schedules: stretches over the age of the model, from recipes and from any solvers."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.chain import Chain, Link
from caffe_recipes.caffe.prototxt import Document
from caffe_recipes.errors import InputError
from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.review.inspect.schedules import (
    load_chain,
    load_schedules,
    schedule_chain,
    schedule_recipe,
)
from caffe_recipes.review.inspect.schedules_plot import Mark, curve_of, marks_of

Write = Callable[[str, str], str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    monkeypatch.chdir(tmp_path)

    def write_one(name: str, text: str) -> str:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return name

    return write_one


def chain_of(**solvers: pb.SolverParameter) -> Chain:
    return Chain(
        tuple(
            Link(name, Document("", "", solver, {}, {}), None, solver.max_iter)
            for name, solver in solvers.items()
        )
    )


def jumps(marks: list[Mark]) -> list[tuple[str, str]]:
    return [(f"{mark.before:.4g}", f"{mark.after:.4g}") for mark in marks]


def test_the_jumps_of_the_64_node_chain_are_those_that_it_has() -> None:
    marks = list(marks_of(schedule_recipe(load_recipe("stampede2-64n-72ep"))))
    assert jumps(marks) == [
        ("1.599", "1.467"),
        ("0.9334", "1.02"),
        ("0.2551", "0.255"),
        ("0.7635", "0.5738"),
        ("0.1028", "0.19"),
        ("0.5716", "0.4296"),
        ("0.07696", "0.143"),
    ]
    assert [round(mark.x, 2) for mark in marks] == [4.99, 24.94, 36.93, 40.12, 52.11, 55.31, 67.3]


def test_a_branch_begins_at_the_age_of_its_snapshot() -> None:
    main, collapse = schedule_recipe(load_recipe("stampede2-448n-90ep")).stretches
    assert (main.taken_iter, main.iterations) == (7638, 8040)
    assert collapse.begins == pytest.approx(7638 * 14336 / 1281167)
    assert collapse.rate_before == pytest.approx(0.24, rel=1e-6)
    assert collapse.x_at(collapse.iterations) == pytest.approx(main.x_at(main.iterations))
    curve = curve_of(main)
    assert curve.xs[curve.taken - 1] == pytest.approx(main.x_at(7638))
    assert curve.xs[-1] == pytest.approx(main.x_at(8039))


def test_branches_have_lanes_beside_the_line_to_the_last_model() -> None:
    stretches = schedule_recipe(load_recipe("digits-cyclic")).stretches
    trunk = ["init", *(f"cyc{number}" for number in range(1, 6)), "collapse5"]
    assert [each.name for each in stretches if each.lane == 0] == trunk
    assert [each.lane for each in stretches if each.name not in trunk] == [1] * 4
    for each in stretches:
        if each.name.startswith("collapse"):
            assert each.decay_before == pytest.approx(0.002)
    alike = load_recipe("digits-cyclic")
    phases = tuple(
        phase.model_copy(update={"weights": "cyc1"}) if phase.name.startswith("collapse") else phase
        for phase in alike.phases
    )
    crowded = schedule_recipe(alike.model_copy(update={"phases": phases})).stretches
    # collapse5 is on the line to the last model now, and the cycles behind the first are branches off it
    assert len({each.lane for each in crowded if each.name.startswith("collapse")}) == 5
    for one, other in itertools.combinations(crowded, 2):
        if one.lane == other.lane:
            first, second = sorted((one, other), key=lambda each: each.begins)
            assert second.begins >= first.x_at(first.iterations)


def test_a_line_has_one_lane() -> None:
    for name in ("stampede2-64n-72ep", "stampede2-448n-90ep"):
        assert {each.lane for each in schedule_recipe(load_recipe(name)).stretches} == {0}


def test_solvers_follow_one_another_over_iterations_or_epochs() -> None:
    first = pb.SolverParameter(lr_policy="fixed", base_lr=1, max_iter=100)
    second = pb.SolverParameter(lr_policy="fixed", base_lr=0.5, max_iter=50, iter_size=2)
    chained = schedule_chain("a", chain_of(x=first, y=second), None)
    assert (chained.unit, [part.begins for part in chained.stretches]) == ("iterations", [0, 100])
    assert jumps(list(marks_of(chained))) == [("1", "0.5")]
    aged = schedule_chain("a", chain_of(x=first, y=second), 0.1)
    assert aged.unit == "epochs"
    assert aged.stretches[1].begins == pytest.approx(10)
    assert aged.stretches[1].x_at(50) == pytest.approx(20)


def test_a_curve_has_both_sides_of_every_step() -> None:
    steps = pb.SolverParameter(
        lr_policy="multistep", base_lr=1, gamma=0.1, stepvalue=[7001, 9002], max_iter=10**4
    )
    curve = curve_of(schedule_chain("a", chain_of(x=steps), None).stretches[0])
    assert {7000, 7001, 9001, 9002, 9999} <= set(curve.xs)
    assert len(curve.xs) < 700


def test_a_curve_of_any_length_has_few_points() -> None:
    endless = pb.SolverParameter(lr_policy="step", base_lr=1, gamma=0.1, stepsize=1, max_iter=2**31 - 1)
    assert len(curve_of(schedule_chain("a", chain_of(x=endless), None).stretches[0]).xs) < 2000


def test_a_plateau_has_a_place_but_no_points() -> None:
    unknown = pb.SolverParameter(lr_policy="plateau", base_lr=1, max_iter=10)
    known = pb.SolverParameter(lr_policy="fixed", base_lr=1, max_iter=10)
    schedule = schedule_chain("a", chain_of(x=unknown, y=known), None)
    assert curve_of(schedule.stretches[0]).xs == ()
    assert list(marks_of(schedule)) == []
    assert schedule.stretches[1].begins == 10


def test_rates_that_are_not_numbers_are_gaps_and_no_jumps() -> None:
    lost = pb.SolverParameter(lr_policy="poly_cyc", power=2, base_lr=1, max_iter=9, warmup_iter=4)
    schedule = schedule_chain("a", chain_of(x=lost), None)
    assert all(rate != rate for rate in curve_of(schedule.stretches[0]).rates[4:])
    assert list(marks_of(schedule)) == []


def test_files_are_distinguished_from_recipes_and_named_as_lint_names_their_phases(write: Write) -> None:
    one = write("nets/solver_one.prototxt", 'base_lr: 1 lr_policy: "fixed" max_iter: 5')
    two = write("nets/solver.txt", 'base_lr: 1 lr_policy: "fixed" max_iter: 5')
    (chained,) = load_schedules([one, two])
    assert chained.name == "nets"
    assert [part.name for part in chained.stretches] == ["one", "solver"]
    first, second = load_schedules([one, two], apart=True)
    assert (first.name, second.name) == ("nets/solver_one.prototxt", "nets/solver.txt")
    recipe, solvers = load_schedules([one, "digits-local"], 0.5)
    assert (recipe.name, solvers.name, solvers.unit) == ("digits-local", "nets/solver_one.prototxt", "epochs")


def test_solvers_without_epochs_are_not_drawn_beside_recipes(write: Write) -> None:
    solver = write("nets/solver.prototxt", 'base_lr: 1 lr_policy: "fixed" max_iter: 5')
    with pytest.raises(
        InputError,
        match=r"nets/solver.prototxt: cannot be drawn beside a recipe, whose schedule is in epochs; ",
    ):
        load_schedules(["digits-local", solver])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("digits-lokal", "'digits-lokal' is not a recipe, file, folder or run; did you mean 'digits-local'?"),
        ("solver_a.pt", "solver_a.pt: no such file; did you mean 'solver_b.pt'?"),
        (".", ".: is a folder; give a recipe or a solver file"),
        ("digits-local:train_val", "digits-local:train_val: is a recipe's net; give a recipe or"),
    ],
)
def test_a_file_without_a_schedule_is_described(write: Write, name: str, message: str) -> None:
    write("solver_b.pt", "base_lr: 1")
    with pytest.raises(InputError, match=re.escape(message)):
        load_schedules([name])


def test_the_solvers_of_a_recipe_are_not_a_file() -> None:
    with pytest.raises(InputError, match="digits-local: is a recipe; give a solver file"):
        load_chain(["digits-local"])


def test_a_recipe_name_takes_precedence_over_a_folder_of_that_name(write: Write) -> None:
    write("digits-local/solver.prototxt", "base_lr: 1")
    assert load_schedules(["digits-local"])[0].name == "digits-local"
    with pytest.raises(InputError, match=r"\./digits-local: is a folder"):
        load_schedules(["./digits-local"])


def test_a_solver_may_be_as_large_as_the_user_allows(write: Write) -> None:
    solver = write("solver.prototxt", 'base_lr: 1 lr_policy: "fixed" max_iter: 5')
    with pytest.raises(InputError, match="is over 9 bytes"):
        load_schedules([solver], max_bytes=9)
