from __future__ import annotations

import pytest

from caffe_recipes.cluster.launcher import hydra_argv, mlsl_environment, thread_environment

PUBLISHED = [
    *("mpiexec.hydra", "-PSM2", "-l", "-n", "128", "-ppn", "2", "-f", "hostfile"),
    *("-genv", "OMP_NUM_THREADS", "22", "-genv", "KMP_AFFINITY", "granularity=fine,compact,1,0"),
    *("./build/tools/caffe", "train", "--solver=solver_init.prototxt"),
]


def test_the_published_shape_gives_the_published_argv() -> None:
    argv = hydra_argv(
        PUBLISHED[-3:],
        nodes=64,
        ranks_per_node=2,
        environment=thread_environment(22, "granularity=fine,compact,1,0"),
        fabric="psm2",
    )
    assert list(argv) == PUBLISHED


def test_without_a_fabric_no_option_is_passed_that_other_hydras_refuse() -> None:
    argv = hydra_argv(["true"], nodes=1, ranks_per_node=3, environment={})
    assert argv == ("mpiexec.hydra", "-l", "-n", "3", "-ppn", "3", "-f", "hostfile", "true")


def test_an_unknown_fabric_is_refused() -> None:
    with pytest.raises(KeyError, match="carrier pigeon"):
        hydra_argv(["true"], nodes=1, ranks_per_node=1, environment={}, fabric="carrier pigeon")


def test_values_stay_single_words_whatever_they_hold() -> None:
    value = "a b'$(c)\" é"
    argv = hydra_argv(
        ["./my caffe"], nodes=1, ranks_per_node=1, environment={"K": value}, hostfile="my hosts"
    )
    assert value in argv
    assert "my hosts" in argv
    assert argv[-1] == "./my caffe"


def test_no_affinity_sets_no_variable() -> None:
    assert "KMP_AFFINITY" not in thread_environment(1)


def test_mlsl_cores_keep_their_order() -> None:
    assert mlsl_environment(2, (39, 38, 43, 42)) == {
        "MLSL_NUM_SERVERS": "2",
        "MLSL_SERVER_AFFINITY": "39,38,43,42",
    }
