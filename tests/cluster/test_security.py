"""What keeps a run from asking, trusting and leaking; on this machine alone."""

from __future__ import annotations

import pytest

from caffe_recipes.cluster.hydra_ssh import ssh_environment

STRICT = "-oBatchMode=yes -oStrictHostKeyChecking=yes -oUpdateHostKeys=no -oForwardAgent=no"
MPICH, INTEL = "HYDRA_LAUNCHER_EXTRA_ARGS", "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS"


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({}, {MPICH, INTEL}),
        ({"HYDRA_LAUNCHER": "ssh", "SLURM_JOB_NODELIST": "a"}, {MPICH, INTEL}),
        ({"HYDRA_BOOTSTRAP": "rsh"}, {INTEL}),
        ({"I_MPI_HYDRA_BOOTSTRAP": "slurm"}, {MPICH}),
        ({"I_MPI_HYDRA_BOOTSTRAP": "ssh", "SLURM_NODELIST": "a"}, {INTEL}),
        *(({name: "a"}, set()) for name in ("SLURM_JOB_NODELIST", "PE_HOSTFILE", "LSB_MCPU_HOSTS")),
    ],
)
def test_words_for_ssh_are_given_to_ssh_alone(environment: dict[str, str], told: set[str]) -> None:
    given = ssh_environment(environment)
    assert given.pop("SSH_ASKPASS_REQUIRE") == "never"
    assert given == dict.fromkeys(told, STRICT)


def test_the_users_own_words_come_behind_ours_of_which_ssh_takes_the_first() -> None:
    assert ssh_environment({MPICH: "-oForwardAgent=yes"})[MPICH] == f"{STRICT} -oForwardAgent=yes"
