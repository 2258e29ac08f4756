"""What a recipe leaves to the machine is chosen when a run starts, and recorded."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from caffe_recipes.cluster.commands import Completed
from caffe_recipes.cluster.hosts import open_host
from caffe_recipes.errors import ClusterError, RecipeError
from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.render.recipe_files import generate
from caffe_recipes.run.choices import choose_for_machine
from caffe_recipes.run.context import RunOptions, RunSetup, find_setting
from caffe_recipes.run.events import Chosen
from caffe_recipes.run.preflight.nodes import ask_facts
from tests.stand_in_host import StandInHost

if TYPE_CHECKING:
    from tests.run.conftest import Place

H100 = "GPU 0: NVIDIA H100 80GB HBM3\nGPU 1: NVIDIA H100 80GB HBM3\n"


def setting_of(place: Place) -> RunSetup:
    return find_setting(load_recipe(place.recipe), RunOptions(root=place.root), open_host)


def leave_device_open(place: Place) -> None:
    place.edit("trainer: ./caffe", "trainer: caffe-torch")
    place.edit(", solver_mode: CPU", "")


def choose(place: Place, answer: Completed) -> RunSetup:
    return choose_for_machine(
        replace(setting_of(place), hosts=(StandInHost(answer=lambda argv, stdin: answer),))
    )


def test_a_run_divides_the_cores_by_the_ranks_and_records_the_threads(place: Place) -> None:
    place.edit(", omp_num_threads: 1", "")
    place.run()
    facts = ask_facts(place.connect("localhost"), ())
    threads = max(min(facts.usable, facts.processors.cores) // 2, 1)
    (chosen,) = [event for event in place.events() if event["event"] == "chosen"]
    assert (chosen["threads"], chosen["chooses_device"]) == (threads, False)
    hint = "per rank; to choose yourself, set cluster.omp_num_threads"
    assert f"chosen for this machine: {threads} thread" in place.output.getvalue()
    assert hint in place.output.getvalue()
    kept = json.loads((place.root / "runs/small-1/recipe.json").read_text())
    assert kept["cluster"]["omp_num_threads"] is None, "the recipe is the same on every machine"
    argv = choose_for_machine(setting_of(place)).training_argv((), "hostfile")
    assert f"OMP_NUM_THREADS {threads}" in " ".join(argv)


def test_nothing_is_chosen_for_a_recipe_that_sets_everything(place: Place) -> None:
    setting = setting_of(place)
    assert choose_for_machine(setting) == setting
    assert setting.chosen.describe() == ""


def test_a_gpu_that_pytorch_finds_is_used_for_training_and_evaluation(place: Place) -> None:
    leave_device_open(place)
    setting = choose(place, Completed(0, f"some library: hello\n{H100}", ""))
    assert setting.chosen == Chosen(chooses_device=True, gpu=0, gpu_name="NVIDIA H100 80GB HBM3", gpus=2)
    assert setting.training_argv(("train",), "hostfile")[-2:] == ("train", "--gpu=0,1")
    assert setting.chosen.arguments == ("--gpu=0",)
    assert setting.chosen.describe() == (
        "chosen for this machine: GPUs 0 to 1 (NVIDIA H100 80GB HBM3); "
        "to choose yourself, set solver.solver_mode"
    )


@pytest.mark.parametrize(("gpus", "flag"), [(1, "--gpu=0"), (8, "--gpu=0,1")])
def test_two_ranks_take_at_most_two_gpus(place: Place, gpus: int, flag: str) -> None:
    leave_device_open(place)
    listed = "".join(f"GPU {gpu}: NVIDIA H100\n" for gpu in range(gpus))
    setting = choose(place, Completed(0, listed, ""))
    assert setting.training_argv(("train",), "hostfile")[-1] == flag


@pytest.mark.parametrize(
    "answer", [Completed(0, "no GPU that PyTorch can use\n", ""), Completed(2, "", "broken")]
)
def test_without_a_gpu_the_cpu_trains(place: Place, answer: Completed) -> None:
    leave_device_open(place)
    setting = choose(place, answer)
    assert setting.training_argv(("train",), "hostfile")[-1] == "train"
    assert "the CPU, since PyTorch finds no GPU" in setting.chosen.describe()


def test_a_host_that_does_not_answer_is_left_to_the_preflight(place: Place) -> None:
    leave_device_open(place)
    host = StandInHost(fault=ClusterError("standin", "is down"))
    setting = replace(setting_of(place), hosts=(host,))
    assert choose_for_machine(setting) == setting


def test_the_files_of_a_recipe_that_leaves_the_device_open_train_on_any_machine(place: Place) -> None:
    leave_device_open(place)
    place.edit(", omp_num_threads: 1", "")
    files = generate(load_recipe(place.recipe))
    assert "solver_mode: CPU # `caffe-recipes run` uses" in files["prototxt/small/solver_init.prototxt"]
    threads = "export OMP_NUM_THREADS=$(($(nproc) / 2 ? $(nproc) / 2 : 1))\n"
    assert threads in files["jobs/small/run.sh"]
    assert "--ntasks-per-node=2 --exclusive\n" in files["jobs/small/chain.sbatch"]


def test_the_threads_on_several_nodes_must_be_given(place: Place) -> None:
    place.edit("nodes: 1, ranks_per_node: 2", "nodes: 2, ranks_per_node: 1")
    place.edit(", omp_num_threads: 1", "")
    with pytest.raises(RecipeError, match=r"omp_num_threads: missing, and 2 nodes may have different cores"):
        load_recipe(place.recipe)
