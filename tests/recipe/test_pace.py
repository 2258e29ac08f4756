"""How fast a recipe trains: by a log, by its source, by the paper's tables."""

from __future__ import annotations

import pytest

from caffe_recipes.errors import InputError
from caffe_recipes.recipe.model import Recipe
from caffe_recipes.recipe.pace import (
    Pace,
    PaceKind,
    RunSize,
    given_pace,
    logged_pace,
    measured_pace,
    moved_pace,
    order_paces,
    reported_pace,
    shape_of,
)
from caffe_recipes.recipe.source import load_recipe

KNL = RunSize(256, 1, 32)


@pytest.fixture
def recipe() -> Recipe:
    return load_recipe("stampede2-64n-72ep")


def loss(iteration: int, time: str, rank: int = 0) -> str:
    return f"[{rank}] I1120 {time}.000000  6374 solver.cpp:228] Iteration {iteration}, loss = 6.9"


SOLVING = "[0] I1120 10:00:00.000000  6374 solver.cpp:288] Solving ResNet-50"


def images_per_s(recipe: Recipe, *lines: str) -> float:
    return logged_pace(recipe, [("train.log", lines)]).images_per_s


def test_a_log_s_pace_is_the_images_between_two_lines_by_the_seconds_between_them(recipe: Recipe) -> None:
    found = logged_pace(
        recipe, [("a.log", [SOLVING, loss(0, "10:00:10"), loss(40, "10:00:30"), loss(80, "10:00:50")])]
    )
    assert found.images_per_s == pytest.approx(80 * 4096 / 40)
    assert (found.kind, found.source, found.notes) == ("log", "a.log", ())


def test_time_between_two_starts_does_not_count(recipe: Recipe) -> None:
    first = [loss(0, "10:00:00"), loss(40, "10:00:20")]
    again = [SOLVING, loss(40, "11:00:00"), loss(80, "11:00:20")]
    assert images_per_s(recipe, *first, *again) == pytest.approx(40 * 4096 / 20)


def test_iterations_and_times_that_go_back_do_not_count(recipe: Recipe) -> None:
    lines = [loss(40, "23:59:40"), loss(80, "00:00:00"), loss(0, "00:01:00"), loss(40, "00:01:20")]
    assert images_per_s(recipe, *lines) == pytest.approx(40 * 4096 / 20)


def test_lines_of_other_ranks_are_ignored(recipe: Recipe) -> None:
    lines = [loss(0, "10:00:00"), loss(40, "10:00:05", rank=7), loss(40, "10:00:20")]
    assert images_per_s(recipe, *lines) == pytest.approx(40 * 4096 / 20)


def test_several_logs_are_one_pace_and_nothing_counts_between_them(recipe: Recipe) -> None:
    logs = [
        ("init-1.log", [loss(0, "10:00:00"), loss(40, "10:00:20")]),
        ("cyc1-1.log", [loss(0, "10:10:00"), loss(40, "10:10:40")]),
    ]
    found = logged_pace(recipe, logs)
    assert found.images_per_s == pytest.approx(80 * 4096 / 60)
    assert found.source == "init-1.log and 1 more"


def with_iter_size(recipe: Recipe) -> Recipe:
    doubled = recipe.phases[1].model_copy(update={"iter_size": 2})
    return recipe.model_copy(update={"phases": (recipe.phases[0], doubled, *recipe.phases[2:])})


def test_the_phase_of_a_log_gives_its_images_per_iteration(recipe: Recipe) -> None:
    lines = [loss(0, "10:00:00"), loss(40, "10:00:20")]
    found = logged_pace(with_iter_size(recipe), [("logs/cyc1-2.log", lines)])
    assert found.images_per_s == pytest.approx(40 * 2 * 4096 / 20)
    assert found.notes == ()


def test_if_the_recipe_of_a_log_matters_and_is_guessed_that_is_reported(recipe: Recipe) -> None:
    found = logged_pace(with_iter_size(recipe), [("x.log", [loss(0, "10:00:00"), loss(40, "10:00:20")])])
    assert found.notes == ("assumes that x.log is the log of phase init",)


@pytest.mark.parametrize(
    ("lines", "what"), [([], "no lines"), (["hello"], "no lines"), ([loss(0, "10:00:00")], "1 line")]
)
def test_a_log_without_two_iterations_is_refused(recipe: Recipe, lines: list[str], what: str) -> None:
    with pytest.raises(InputError, match=r"^a.log: " + what + r".*; give a Caffe log"):
        logged_pace(recipe, [("a.log", lines)])


def test_a_log_of_another_net_is_noted(recipe: Recipe) -> None:
    lines = [SOLVING.replace("ResNet-50", "LeNet"), loss(0, "10:00:00"), loss(40, "10:00:20")]
    note = "a.log is the log of the net LeNet, which need not train as fast as ResNet-50"
    assert note in logged_pace(recipe, [("a.log", lines)]).notes
    assert note not in logged_pace(recipe, [("a.log", [SOLVING, *lines[1:]])]).notes


def test_a_log_whose_outputs_the_net_lacks_is_refused(recipe: Recipe) -> None:
    printed = "[0] I1120 10:00:11.000000  6374 solver.cpp:245]     Train net output #0: {} = 0.5"
    lines = [loss(0, "10:00:00"), printed.format("mbox_loss"), loss(40, "10:00:20")]
    with pytest.raises(InputError) as refused:
        logged_pace(recipe, [("a.log", lines)], ["loss3/loss3", "loss3/top-1"])
    assert str(refused.value) == (
        "a.log: is the log of another net: it prints mbox_loss, and ResNet-50 has the outputs loss3/loss3 and"
        " loss3/top-1; give a log of stampede2-64n-72ep"
    )
    lines[1] = printed.format("loss3/loss3")
    assert logged_pace(recipe, [("a.log", lines)], ["loss3/loss3"]).images_per_s > 0


def test_the_reported_rate_takes_precedence_over_that_of_a_node_and_the_minutes(recipe: Recipe) -> None:
    found = reported_pace(recipe)
    assert found
    assert (found.images_per_s, found.source) == (6303, "the recipe's reported images/s")
    minutes = reported_pace(load_recipe("stampede2-448n-90ep"))
    assert minutes
    assert minutes.images_per_s == pytest.approx((8040 + 402) * 14336 / (65 * 60))
    assert reported_pace(load_recipe("digits-local")) is None


def test_the_paper_s_tables_are_of_their_machines(recipe: Recipe) -> None:
    knl, skylake = (measured_pace(recipe, name, KNL) for name in ("stampede2-knl", "marenostrum4"))
    assert knl
    assert skylake
    assert knl.images_per_s == pytest.approx(1.28e6 / 85)
    assert skylake.images_per_s == 15170
    assert (knl.source, knl.notes) == ("the paper's Table V", ())


def test_a_machine_without_a_table_has_that_of_nodes_with_the_same_cores_and_it_is_reported(
    recipe: Recipe,
) -> None:
    for machine in ("stampede2-skx", None):
        found = measured_pace(recipe, machine, KNL)
        assert found
        assert found.images_per_s == 15170
        assert found.source == "the paper's Table VI (nodes with 2 x 24 cores)"


def test_no_table_covers_another_net_or_machine(recipe: Recipe) -> None:
    assert measured_pace(load_recipe("digits-local"), "stampede2-knl", KNL) is None
    bare = recipe.cluster.model_copy(update={"sockets_per_node": None})
    unknown = recipe.model_copy(update={"cluster": bare})
    assert measured_pace(unknown, "mpich", KNL) is None
    assert measured_pace(unknown, None, KNL) is None


def test_a_rate_takes_precedence_over_the_tables_and_these_over_minutes() -> None:
    kinds: tuple[PaceKind, ...] = ("minutes", "measured", "reported", "given", "log")
    paces = [Pace(1, kind, "") for kind in kinds]
    assert [pace.kind for pace in order_paces(paces)] == ["log", "given", "reported", "measured", "minutes"]
    assert [pace.kind for pace in order_paces(paces, "minutes")][:2] == ["minutes", "log"]
    doubtful = [Pace(1, "measured", "", ("beyond",)), Pace(1, "minutes", "")]
    assert [pace.kind for pace in order_paces(doubtful)] == ["minutes", "measured"]


def test_a_pace_scales_linearly_to_other_nodes_with_a_note(recipe: Recipe) -> None:
    known = given_pace(6400)
    assert moved_pace(known, recipe, shape_of(recipe)) is known
    moved = moved_pace(known, recipe, RunSize(128, 2, 16))
    assert moved.images_per_s == 12800
    assert moved.notes == (
        "known for 64 nodes; assumes that the speed per node does not change",
        "known for 64 images per node; assumes that the time per image does not change",
    )
    local = load_recipe("digits-local")
    (note,) = moved_pace(known, local, RunSize(2, 2, 32)).notes
    assert note.startswith("known for 1 node; ")


def test_a_pace_scales_by_a_table_where_one_exists(recipe: Recipe) -> None:
    of_own, there = Pace(5000, "measured", "table"), Pace(7500, "measured", "table", ("beyond",))
    moved = moved_pace(given_pace(6400), recipe, RunSize(128, 2, 16), (of_own, there))
    assert moved.images_per_s == 9600
    assert moved.notes == ("known for 64 nodes with 64 images each, scaled by table", "beyond")
