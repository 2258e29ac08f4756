"""Values that a source does not state are marked in the files that hold them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

import caffe_recipes as cr
from caffe_recipes.recipe.model import Recipe
from caffe_recipes.render.dialect import translate_whole
from tests.shipped import OF_CAFFE

MakeRecipe = Callable[..., Recipe]

RULE = "as elsewhere"


def files_containing(recipe: Recipe, what: str) -> set[str]:
    """Return the names of the files that hold a text, without their folders."""
    return {path.rpartition("/")[2] for path, text in cr.generate(recipe).items() if what in text}


def marked(*marks: dict[str, str]) -> Callable[[dict[str, Any]], None]:
    def change(raw: dict[str, Any]) -> None:
        raw["derived"] = [{**mark, "rule": RULE} for mark in marks]

    return change


@pytest.mark.parametrize("name", OF_CAFFE)
def test_every_mark_of_a_recipe_stands_in_a_file_that_it_generates(name: str) -> None:
    recipe = cr.load_recipe(name)
    files = cr.generate(recipe)
    for mark in recipe.derived:
        text = (
            files[f"prototxt/{name}/solver_{mark.phase}.prototxt"] if mark.phase else "".join(files.values())
        )
        key, rule = re.escape(mark.key.removeprefix("solver.")), re.escape(mark.rule)
        assert re.search(rf"^(# Derived: {key}|{key}: .*# (.*; )?derived): {rule}$", text, re.MULTILINE), mark


SOLVERS = {f"solver_{name}.prototxt" for name in ("init", "cyc1", "cyc2", "cyc3", "collapse")}
NETS = {"train_val.prototxt", "train_val_noaug.prototxt"}
JOBS = {"chain.sbatch", "phase.sbatch"}


@pytest.mark.parametrize(
    ("key", "files"),
    [
        ("net.fillers", NETS),
        ("data", NETS),
        ("nets", NETS),
        ("nets.train_val_noaug.test", {"train_val_noaug.prototxt"}),
        ("cluster", {"run.sh"} | JOBS | NETS),
        ("cluster.nodes", {"run.sh"} | JOBS),
        ("cluster.kmp_affinity", {"run.sh"}),
        ("trainer", {"run.sh"}),
        ("phases", SOLVERS),
        ("title", {"run.sh"}),  # of nothing else
    ],
)
def test_a_mark_of_no_phase_stands_at_the_top_of_the_files_that_it_concerns(
    make_recipe: MakeRecipe, key: str, files: set[str]
) -> None:
    assert files_containing(make_recipe(marked({"key": key})), f"# Derived: {key}: {RULE}\n") == files


def test_a_derived_value_of_the_solver_block_is_marked_in_every_solver(make_recipe: MakeRecipe) -> None:
    recipe = make_recipe(marked({"key": "solver.momentum"}))
    assert files_containing(recipe, f"\nmomentum: 0.9 # derived: {RULE}\n") == SOLVERS
    assert files_containing(recipe, "Derived") == set()


def test_a_phase_that_states_a_value_of_its_own_has_no_mark_of_the_common_one(
    make_recipe: MakeRecipe,
) -> None:
    recipe = make_recipe(marked({"key": "solver.weight_decay"}))
    assert files_containing(recipe, f"derived: {RULE}\n") == SOLVERS - {"solver_collapse.prototxt"}


def test_a_phase_s_mark_stands_in_its_solver_whatever_it_is_of(make_recipe: MakeRecipe) -> None:
    def change(raw: dict[str, Any]) -> None:
        marked({"phase": "cyc1", "key": "net"}, {"phase": "cyc1", "key": "stepvalue"})(raw)
        del raw["phases"][1]["lr_iter"]
        raw["phases"][1].update(lr_policy="multistep", gamma=0.1, stepvalue=[100, 200])

    recipe = make_recipe(change)
    assert files_containing(recipe, f"# Derived: net: {RULE}\n") == {"solver_cyc1.prototxt"}
    assert files_containing(recipe, f"stepvalue: 100 # derived: {RULE}\n") == {"solver_cyc1.prototxt"}


def test_the_marks_are_the_same_in_a_recipe_for_another_caffe() -> None:
    recipe = cr.load_recipe("tf-256n-90ep")
    theirs = translate_whole(recipe, "intel")
    assert files_containing(theirs, "erived: ") == files_containing(recipe, "erived: ")


def test_a_net_shared_by_rows_lists_the_derived_values_of_all_of_them() -> None:
    recipe = cr.load_recipe("paper-t1-7680-240n-linear")
    assert "Derived: cluster: the paper names no machine" in cr.generate(recipe)[f"jobs/{recipe.name}/run.sh"]
    net = cr.generate(recipe)["prototxt/paper-vlab-batch-32/train_val.prototxt"]
    assert "# Derived: net.fillers: those of the published nets\n" in net
    assert "names no machine" not in net


def test_values_of_a_shared_net_derived_by_one_row_are_in_its_script(make_recipe: MakeRecipe) -> None:
    def change(raw: dict[str, Any]) -> None:
        marked({"key": "net.zero_init"})(raw)
        raw["nets_dir"] = "prototxt/shared"

    assert files_containing(make_recipe(change), f"# Derived: net.zero_init: {RULE}\n") == {"run.sh"}
