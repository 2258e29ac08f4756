"""Which models are averaged by default."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from caffe_recipes.errors import InputError
from caffe_recipes.recipe.model import Recipe
from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.run.ensemble import find_members, unfinished_members
from caffe_recipes.run.events import Finish, RunState

PAPER = load_recipe("paper-f4-4096-120ep")


def finished(recipe: Recipe, *left_out: str) -> RunState:
    """Return the state of a run whose phases have finished, but for those that are named."""
    names = [phase.name for phase in recipe.phases if phase.name not in left_out]
    return RunState(
        finished={
            name: Finish(name, f"{name}.caffemodel", _digest_of(name), 1, None, None, {}) for name in names
        }
    )


def _digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def names_of(recipe: Recipe, state: RunState, named: tuple[str, ...] | None = None) -> list[str]:
    return [member.name for member in find_members(Path("run"), recipe, state, named)]


def test_the_paper_s_ensemble_leaves_out_the_first_collapse() -> None:
    assert names_of(PAPER, finished(PAPER)) == ["c2", "c3", "c4", "c5", "c6"]
    assert names_of(PAPER, finished(PAPER), ("c1", "c6")) == ["c1", "c6"]


def test_by_default_the_members_are_the_ends_of_the_branches() -> None:
    cyclic = load_recipe("digits-cyclic")
    assert names_of(cyclic, finished(cyclic)) == [f"collapse{number}" for number in range(1, 6)]


def test_a_member_that_is_not_finished_is_missing_and_no_other_phase_is() -> None:
    state = finished(PAPER, "c1", "c5")
    assert names_of(PAPER, state) == ["c2", "c3", "c4", "c6"]
    assert unfinished_members(PAPER, state) == ("c5",)


def test_a_phase_and_its_own_file_are_one_model(tmp_path: Path) -> None:
    copy = tmp_path / "copy.caffemodel"
    copy.write_bytes(b"c2")
    with pytest.raises(InputError, match=r"--members: 'c2' and '.*copy\.caffemodel' are the same model"):
        names_of(PAPER, finished(PAPER), ("c2", "c3", str(copy)))
