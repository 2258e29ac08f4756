"""ibrun of TACC, which starts the ranks with the hydra of the loaded MPI."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from caffe_recipes.cluster.launchers.hydra import LAUNCHER as HYDRA
from caffe_recipes.cluster.launchers.launcher import Launcher, RankLaunch


class Ibrun(Launcher):
    """ibrun, which takes the hosts and the ranks per node from the Slurm job.

    Options for the underlying mpiexec are in MY_MPIRUN_OPTIONS: `-l` prefixes each line of output with
    `[rank] `. It cannot be called without starting ranks. Source: TACC's user guides.
    """

    program = "ibrun"
    processes = ("ibrun",)
    hint = "run inside a job at TACC, or use another --profile"
    chooses_hosts = False
    version_option = ""
    variables: ClassVar[Mapping[str, str]] = {"MY_MPIRUN_OPTIONS": "-l"}
    exits = HYDRA.exits

    def words(self, launch: RankLaunch) -> tuple[str, ...]:
        """Return its argv up to the command, for the first ranks of the current job.

        >>> " ".join(LAUNCHER.words(RankLaunch(LAUNCHER, ("c1", "c2"), 2)))
        'ibrun -n 4 -o 0'
        """
        return (self.program, *launch.option_words, "-n", str(launch.ranks), "-o", "0")

    def environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the variables that make hydra's ssh strict."""
        return HYDRA.environment(environment)

    def step_environment(self, name: str, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the variables of hydra's step in a Slurm job."""
        return HYDRA.step_environment(name, environment)

    def asks_slurm(self, environment: Mapping[str, str]) -> bool:
        """Return whether hydra starts its proxies with srun."""
        return HYDRA.asks_slurm(environment)


LAUNCHER = Ibrun()
