from __future__ import annotations

import re

import pytest

from caffe_recipes.cluster.profiles import load_profile, parse_profile
from caffe_recipes.recipe.model import Mlsl
from caffe_recipes.recipe.source import load_recipe, load_tensorflow_run
from caffe_recipes.run.context import find_profile
from caffe_recipes.run.training_plan import bind_ranks, find_servers, plan_launch, plan_training
from tests.shipped import OF_CAFFE

PREFIX = "models/intel_optimized_models/multinode/resnet50_custom_lr"


def test_the_published_chain_is_planned_as_published() -> None:
    recipe = load_recipe("stampede2-64n-72ep")
    plan = plan_training(recipe, "runs/x")
    assert [step.arguments for step in plan.trainings] == [
        ("train", f"--solver={PREFIX}/solver_init.prototxt"),
        *(
            ("train", f"--solver={PREFIX}/solver_{phase}.prototxt", f"--weights=runs/x/snapshots/{weights}")
            for phase, weights in [
                ("cyc1", "resnet_50_64nodes_init_iter_7800.caffemodel"),
                ("cyc2", "resnet_50_64nodes_cyc1_iter_3750.caffemodel"),
                ("cyc3", "resnet_50_64nodes_cyc2_iter_4750.caffemodel"),
                ("collapse", "resnet_50_64nodes_cyc3_iter_4750.caffemodel"),
            ]
        ),
    ]
    assert plan.trainings[-1].snapshot == "/tmp/resnet_50_64nodes_cyc_collapse_iter_1560.caffemodel"
    (testing,) = plan.testings
    assert testing.phase == "collapse"
    assert testing.arguments[0] == "test"
    assert "--iterations=1000" in testing.arguments


def test_the_published_launch_and_environment_are_kept() -> None:
    recipe = load_recipe("stampede2-64n-72ep")
    profile, hosts = find_profile(recipe, None), [f"c{number}" for number in range(64)]
    launch = plan_launch(recipe, profile, hosts, "hostfile", "")
    argv = launch.argv(("./build/tools/caffe",))
    published = (
        "mpiexec.hydra -PSM2 -l -n 128 -ppn 2 -f hostfile -genv OMP_NUM_THREADS 22 "
        "-genv KMP_AFFINITY granularity=fine,compact,1,0 ./build/tools/caffe"
    )
    assert " ".join(argv) == published
    assert launch.process_environment() == {
        "MLSL_NUM_SERVERS": "2",
        "MLSL_SERVER_AFFINITY": "39,38,43,42",
        "OMP_NUM_THREADS": "22",
        "KMP_AFFINITY": "granularity=fine,compact,1,0",
    }


@pytest.mark.parametrize(
    ("name", "per_node", "launcher", "options"),
    [
        ("tf-256n-8k-90ep", 2, "{options: [-PSM2]}", ("-PSM2", "-bind-to socket")),
        ("tf-256n-8k-90ep", 1, "{}", ()),
        ("tf-256n-8k-90ep", 2, "{options: [-bind-to numa]}", ("-bind-to numa",)),
        ("tf-256n-8k-90ep", 2, "{options: [--bind-to=none]}", ("--bind-to=none",)),
        ("tf-256n-8k-90ep", 2, "{program: srun}", ()),
        ("digits-local", 2, "{}", ()),
    ],
)
def test_several_ranks_of_tensorflow_on_a_node_are_bound_to_sockets_unless_the_profile_binds_them(
    name: str, per_node: int, launcher: str, options: tuple[str, ...]
) -> None:
    profile = parse_profile(f"{{name: p, title: p, launcher: {launcher}}}", "p.yaml")
    recipe = load_tensorflow_run(name) if name.startswith("tf-") else load_recipe(name)
    cluster = recipe.cluster.model_copy(update={"ranks_per_node": per_node})
    recipe = recipe.model_copy(update={"cluster": cluster})
    assert bind_ranks(profile, recipe).launcher.options == options


@pytest.mark.parametrize("program", ["mpiexec.hydra", "srun", "ibrun"])
def test_environment_from_a_profile_does_not_appear_in_any_argv(program: str) -> None:
    recipe = load_recipe("digits-local")
    text = f"{{name: a, title: a, launcher: {{program: {program}, environment: {{TOKEN: s3cret}}}}}}"
    profile = parse_profile(text, "a.yaml")
    launch = plan_launch(recipe, profile, ["a", "b"], "hostfile", "")
    argv = launch.argv(("caffe",))
    assert not any("s3cret" in word or "genvlist" in word for word in argv)
    assert launch.process_environment()["TOKEN"] == "s3cret"


def test_unset_mlsl_settings_come_from_the_profile() -> None:
    servers = find_servers(load_recipe("paper-t7-8192-256n"), load_profile("stampede2-knl"))
    assert servers == (2, (64, 65, 66, 67))
    recipe = load_recipe("paper-t2-8192-256n")
    assert find_servers(recipe, load_profile("stampede2-skx")) == (4, (64, 65, 66, 67))
    assert find_servers(load_recipe("digits-local"), load_profile("mpich")) == (None, ())


def test_a_recipe_without_servers_has_none_on_a_machine_with_some() -> None:
    recipe = load_recipe("paper-t2-8192-256n")
    none = recipe.model_copy(
        update={"cluster": recipe.cluster.model_copy(update={"mlsl": Mlsl(num_servers=0)})}
    )
    assert find_servers(none, load_profile("stampede2-skx")) == (0, ())


@pytest.mark.parametrize("name", OF_CAFFE)
def test_every_prototxt_that_a_plan_names_is_one_that_it_places(name: str) -> None:
    plan = plan_training(load_recipe(name), "runs/x")
    arguments = [word for step in plan.trainings for word in step.arguments]
    arguments += [word for testing in plan.testings for word in testing.arguments]
    named = {word.partition("=")[2] for word in arguments if word.startswith(("--solver=", "--model="))}
    assert named <= set(plan.files)
    assert all(path.endswith(".prototxt") for path in plan.files)
    texts = "".join(plan.files.values())
    assert set(re.findall(r'^net: "(.+)"$', texts, re.MULTILINE)) <= set(plan.files)


@pytest.mark.parametrize("name", OF_CAFFE)
def test_snapshots_of_a_plan_have_names_of_their_own(name: str) -> None:
    plan = plan_training(load_recipe(name), "runs/x")
    assert len({step.fetched for step in plan.trainings}) == len(plan.trainings)
