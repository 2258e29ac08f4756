"""The place of a process among the ranks, from the variables of one launcher, of several, and of none."""

from __future__ import annotations

import pytest

from caffe_recipes.engine.launch_variables import (
    RankPlace,
    check_store,
    count_lone_tasks,
    find_place,
    rank_on_host,
)
from caffe_recipes.errors import InputError

HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1"}
HYDRA_OF_ONE = {"PMI_RANK": "0", "PMI_SIZE": "1", "MPI_LOCALRANKID": "0"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}
STORE = {"MASTER_ADDR": "node1", "MASTER_PORT": "29500"}
BY_HAND = {"RANK": "3", "WORLD_SIZE": "8", **STORE}
TORCHRUN = BY_HAND | {"TORCHELASTIC_RUN_ID": "none", "LOCAL_RANK": "3"}
STEP = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "3", "SLURM_LOCALID": "1"}
PMIX = {"PMIX_RANK": "1", "PMIX_NAMESPACE": "slurm.pmix.1.0"}  # sets no number of ranks
SCRIPT = {"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}
ALONE = {"RANK": "0", "WORLD_SIZE": "1"}


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        (HYDRA, RankPlace(1, 2, by_mpi=True)),
        (OPEN_MPI, RankPlace(2, 4, by_mpi=True)),
        (TORCHRUN, RankPlace(3, 8)),
        (BY_HAND, RankPlace(3, 8)),
        (STEP | STORE, RankPlace(1, 3)),
        (STEP, RankPlace()),
        (TORCHRUN | ALONE | STEP, RankPlace()),
        (HYDRA | STEP, RankPlace(1, 2, by_mpi=True)),
        (TORCHRUN | STEP, RankPlace(3, 8)),
        (TORCHRUN | HYDRA, RankPlace(3, 8)),
        (TORCHRUN | HYDRA_OF_ONE, RankPlace(3, 8)),
        (TORCHRUN | ALONE | HYDRA, RankPlace()),
        (TORCHRUN | ALONE | HYDRA | STEP | STORE, RankPlace()),
        (TORCHRUN | ALONE | OPEN_MPI, RankPlace()),
        (TORCHRUN | ALONE | HYDRA_OF_ONE, RankPlace()),
        (TORCHRUN | ALONE, RankPlace()),
        (BY_HAND | HYDRA_OF_ONE, RankPlace(3, 8)),
        (BY_HAND | STEP, RankPlace(3, 8)),
        (HYDRA_OF_ONE | STEP, RankPlace()),
        (HYDRA_OF_ONE | STEP | STORE, RankPlace(1, 3)),
        (HYDRA_OF_ONE, RankPlace()),
        (OPEN_MPI | STEP | STORE, RankPlace(2, 4, by_mpi=True)),
        (PMIX | STEP | STORE, RankPlace(1, 3)),
        (PMIX | STEP, RankPlace()),
        (HYDRA | {"RANK": "1", "WORLD_SIZE": "2"}, RankPlace(1, 2, by_mpi=True)),
        (HYDRA | ALONE, RankPlace(1, 2, by_mpi=True)),
        (ALONE, RankPlace()),
        (SCRIPT, RankPlace()),
        ({"RANK": "3", "PMI_RANK": "x"}, RankPlace()),
        ({}, RankPlace()),
    ],
)
def test_a_rank_is_that_of_the_innermost_launcher(environment: dict[str, str], place: RankPlace) -> None:
    assert find_place(environment) == place


def test_a_task_of_srun_knows_how_many_others_train_alone() -> None:
    made = (STEP, PMIX | STEP, STEP | STORE, HYDRA | STEP, TORCHRUN | STEP)
    counts = [count_lone_tasks(environment) for environment in made]
    assert counts == [3, 3, 1, 1, 1]


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"PMI_RANK": "x", "PMI_SIZE": "2"}, "PMI_RANK: 'x' is not an integer"),
        ({"PMI_RANK": "5", "PMI_SIZE": "2"}, "PMI_RANK: is 5, but PMI_SIZE is 2; give 0 to 1"),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, "RANK: is -1, but WORLD_SIZE is 2; give 0 to 1"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "WORLD_SIZE: is 0; give 1 or more"),
        (HYDRA | BY_HAND, "RANK 3 of WORLD_SIZE 8 contradicts rank 1 of 2 of the MPI launcher; unset RANK"),
    ],
)
def test_variables_that_cannot_be_are_refused(environment: dict[str, str], message: str) -> None:
    with pytest.raises(InputError) as caught:
        find_place(environment)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (
            {"RANK": "0", "WORLD_SIZE": "2"},
            "this is one of 2 ranks, but MASTER_ADDR and MASTER_PORT are not set",
        ),
        (STEP | {"MASTER_ADDR": "node1"}, "this is one of 3 ranks, but MASTER_PORT is not set"),
        (BY_HAND | {"MASTER_PORT": "ib0"}, "MASTER_PORT: 'ib0' is not an integer"),
        (BY_HAND | {"MASTER_PORT": "99999"}, "MASTER_PORT: is 99999; give 1 to 65535"),
    ],
)
def test_ranks_that_cannot_meet_do_not_train_alone(environment: dict[str, str], message: str) -> None:
    with pytest.raises(InputError) as caught:
        check_store(environment)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("environment", [{}, HYDRA, BY_HAND, STEP | STORE, SCRIPT])
def test_ranks_that_can_meet_are_not_refused(environment: dict[str, str]) -> None:
    check_store(environment)


def test_a_number_on_its_host_must_be_one() -> None:
    assert [rank_on_host(of) for of in ({}, HYDRA, TORCHRUN, STEP, HYDRA | TORCHRUN)] == [0, 1, 3, 1, 3]
    by_hand = HYDRA_OF_ONE | BY_HAND | {"LOCAL_RANK": "2"}
    pmi2 = {"PMI_RANK": "1", "PMI_SIZE": "3"} | STEP
    assert [rank_on_host(of) for of in (by_hand, pmi2, ALONE | STEP)] == [2, 1, 1]
    for wrong in ("x", "-1"):
        with pytest.raises(InputError):
            rank_on_host({"LOCAL_RANK": wrong})
