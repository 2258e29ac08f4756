from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from caffe_recipes.cluster.slurm.sbatch_options import JobRequest
from caffe_recipes.errors import CaffeRecipesError, InputError
from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.render.recipe_files import generate
from caffe_recipes.render.tree import write_files
from caffe_recipes.run.submit.planned_jobs import (
    PlannedJobs,
    SubmitOptions,
    build_request,
    describe_assumed,
    plan_submission,
)

if TYPE_CHECKING:
    from tests.run.submit.conftest import Desk


def requests(desk: Desk, **more: object) -> list[JobRequest]:
    planned = plan_submission(load_recipe(desk.recipe), desk.options(**more))
    return [build_request(planned, step, "3fa210", None) for step in planned.steps]


def test_a_time_of_the_user_s_own_has_slurm_warn_in_time(desk: Desk) -> None:
    (request,) = requests(desk, time_s=600.0)
    assert "--signal=B:USR1@60" in request.options
    assert request.environment["STOP_GRACE_S"] == "30"
    (request,) = requests(desk, time_s=36_000.0)
    assert "--signal=B:USR1@600" in request.options
    assert "STOP_GRACE_S" not in request.environment


def test_without_a_time_the_warning_in_the_script_applies(desk: Desk) -> None:
    (request,) = requests(desk)
    assert not [option for option in request.options if option.startswith("--signal")]
    assert request.time_s is None


def test_a_recipe_whose_speed_is_known_asks_for_the_time_that_it_takes(tmp_path: Path) -> None:
    recipe = load_recipe("stampede2-64n-72ep")
    write_files(generate(recipe), tmp_path)
    options = SubmitOptions(recipe.name, tmp_path, tmp_path, profile="stampede2-skx")
    planned = plan_submission(recipe, options)
    assert planned.longest_s is not None
    assert 14_692 < planned.longest_s < 6 * 3600
    (request,) = [build_request(planned, step, "3fa210", 7) for step in planned.steps]
    assert (request.partition, request.dependency) == ("skx-normal", 7)
    assert request.arguments == ("--profile", "stampede2-skx")
    assert "RECIPE_FILE" not in request.environment


@pytest.mark.parametrize("split", [False, True])
def test_the_time_is_that_of_the_method_of_staging_that_the_job_will_use(tmp_path: Path, split: bool) -> None:
    recipe = load_recipe("paper-t9-49152-1536n")
    write_files(generate(recipe), tmp_path)

    def plan(*arguments: str) -> PlannedJobs:
        return plan_submission(
            recipe, SubmitOptions(recipe.name, tmp_path, tmp_path, split=split, arguments=arguments)
        )

    quick, slow = plan("--retries", "2"), plan("--how", "copy", "--retries", "2")
    assert len(quick.steps) == len(slow.steps)
    for one, other in zip(quick.steps, slow.steps, strict=True):
        assert one.time_s is not None
        assert other.time_s is not None
        assert other.time_s - one.time_s > 3.5 * 3600  # 1,536 nodes read 42 GB each at 5 GB/s in all
    assert "staging by chain" in describe_assumed(quick)
    assert "staging by copy" in describe_assumed(slow)


def test_spares_are_requested_on_top_of_the_nodes_of_the_recipe(desk: Desk) -> None:
    assert [request.nodes for request in requests(desk, spares=2)] == [3]
    assert [request.nodes for request in requests(desk)] == [None]


def test_options_of_sbatch_s_are_handed_on_and_counted(desk: Desk) -> None:
    (request,) = requests(desk, sbatch_options=("--reservation=course", "-plong"))
    assert request.options[-1] == "--reservation=course"
    assert request.partition == "long"


def test_nodes_excluded_by_the_user_are_excluded_together_with_failed_ones(desk: Desk) -> None:
    planned = plan_submission(load_recipe(desk.recipe), desk.options(sbatch_options=("-xn[7-8],n2",)))
    request = build_request(planned, planned.steps[0], "3fa210", None, ("n3", "n2"))
    assert request.exclude == ("n3", "n2", "n7", "n8")


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("--exclude=/etc/nodes", "'/etc/nodes' is a file; give the names of the nodes"),
        ("--exclude=n[1", "is not a node list"),
        ("--exclude=", "is not a node list"),
        ("-x", "is not a node list"),
    ],
)
def test_an_exclude_option_without_nodes_is_refused(desk: Desk, word: str, message: str) -> None:
    with pytest.raises(CaffeRecipesError, match=f"--exclude: .*{message}"):
        requests(desk, sbatch_options=(word,))


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("other.sbatch", "'other.sbatch' is not an option of sbatch; write --name=value"),
        ("--", "'--' is not an option"),
        ("--job=mine", "--job-name is set by submit; submit identifies its jobs by their names"),
        ("-Jmine", "--job-name is set by submit"),
        ("--dependency=afterok:7", "--dependency is set by submit; give --after"),
        ("--wrap=true", "--wrap is set by submit; submit the script with sbatch to use it"),
    ],
)
def test_options_that_submit_sets_itself_cannot_be_given_again(desk: Desk, word: str, message: str) -> None:
    with pytest.raises(InputError, match=f"--sbatch-option: {message}"):
        requests(desk, sbatch_options=(word,))


def test_a_job_with_spares_outlives_a_node(desk: Desk) -> None:
    assert ["--no-kill" in request.options for request in requests(desk, spares=1)] == [True]
    assert ["--no-kill" in request.options for request in requests(desk)] == [False]


def test_a_job_for_each_phase_has_its_name(desk: Desk) -> None:
    found = requests(desk, split=True)
    assert {Path(request.script).name for request in found} == {"phase.sbatch"}
    assert [(request.name, request.arguments[0]) for request in found] == [
        ("small-3fa210-init", "init"),
        ("small-3fa210-cyc1", "cyc1"),
        ("small-3fa210-last", "last"),
    ]


@pytest.mark.parametrize("value", ["a,b", 'it\'s "x" $(y)'])
def test_arguments_are_passed_on_unchanged(desk: Desk, value: str) -> None:
    (request,) = requests(desk, arguments=("--how", value), environment={"LMDB_SOURCE": value})
    assert request.arguments[-1] == value
    assert request.environment["LMDB_SOURCE"] == value
