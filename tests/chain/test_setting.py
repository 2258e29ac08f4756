"""Where a run's hosts come from, and what its launcher is given of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from caffe_recipes.chain.setting import choose_hosts
from caffe_recipes.errors import ClusterError
from caffe_recipes.recipe.model import Recipe
from caffe_recipes.recipe.source import load_recipe

if TYPE_CHECKING:
    from tests.chain.conftest import Place


def recipe(place: Place, nodes: int) -> Recipe:
    place.edit("nodes: 1,", f"nodes: {nodes},")
    place.edit("batch_per_rank: 32", "batch_per_rank: 8")
    return load_recipe(place.recipe)


def test_the_launcher_gets_a_line_a_host_whatever_the_users_hostfile_holds(place: Place) -> None:
    (place.root / "mine").write_text("# a rack\n127.0.0.[1-2]:1\n")
    assert place.run(hostfile=place.root / "mine").outputs
    assert (place.root / "runs/small-1/hostfile").read_text() == "127.0.0.1\n"
    assert "hosts          127.0.0.1: 1 x 2 ranks" in place.output.getvalue()


def test_a_folded_hostfile_gives_its_hosts_in_its_order(place: Place) -> None:
    (place.root / "hostfile").write_text("c402-[002,001]:2\nc401-001\n")
    assert choose_hosts(recipe(place, 3), place.root, None) == ("c402-002", "c402-001", "c401-001")


def test_without_a_hostfile_the_slurm_job_around_us_gives_the_hosts(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_NODELIST", "c401-[003,001-002]")
    needs_two = recipe(place, 2)
    assert choose_hosts(needs_two, place.root, None) == ("c401-003", "c401-001")
    (place.root / "hostfile").write_text("a\nb\n")
    assert choose_hosts(needs_two, place.root, None) == ("a", "b")
    (place.root / "mine").write_text("c\nd\n")
    assert choose_hosts(needs_two, place.root, place.root / "mine") == ("c", "d")


def test_a_slurm_job_that_is_too_small_or_no_node_list_is_named(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_four = recipe(place, 4)
    monkeypatch.setenv("SLURM_JOB_NODELIST", "c401-[001-003]")
    said = "the Slurm job: 3 hosts x 2 ranks = 6, the recipe needs 8; give 4 hosts"
    with pytest.raises(ClusterError, match=said):
        choose_hosts(needs_four, place.root, None)
    monkeypatch.setenv("SLURM_JOB_NODELIST", "c401-[001-")
    with pytest.raises(ClusterError, match=r"\$SLURM_JOB_NODELIST: .* is no node list"):
        choose_hosts(needs_four, place.root, None)


def test_one_node_without_a_hostfile_or_a_job_is_this_machine(place: Place) -> None:
    assert choose_hosts(recipe(place, 1), place.root, None) == ("localhost",)
