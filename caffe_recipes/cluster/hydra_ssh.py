"""What the ssh that hydra starts itself is told: it asks nobody, adds no host key, forwards no agent.

Hydra calls `ssh -x` with what the user has configured. Without a terminal ssh still asks by SSH_ASKPASS,
where a graphical session has set it, and adds keys where `accept-new` or `no` stands in ~/.ssh/config.
"""

from __future__ import annotations

from collections.abc import Mapping

# A known host may show further keys: UpdateHostKeys would write those down. ssh takes the first value given.
_STRICT = "-oBatchMode=yes -oStrictHostKeyChecking=yes -oUpdateHostKeys=no -oForwardAgent=no"
# Where MPICH's and Intel's hydra take words for the program that starts their proxies, and which that is.
_WORDS_AND_PROGRAM: Mapping[str, tuple[str, ...]] = {
    "HYDRA_LAUNCHER_EXTRA_ARGS": ("HYDRA_LAUNCHER", "HYDRA_BOOTSTRAP"),
    "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": ("I_MPI_HYDRA_BOOTSTRAP", "HYDRA_LAUNCHER"),
}
# Within a job of one of these hydra starts its proxies by srun, blaunch, qrsh or llspawn, for whom the words
# would mean something else: to srun, `-o` is a file to write.
_BATCH_SYSTEMS = ("SLURM_JOB_NODELIST", "SLURM_NODELIST", "LSB_MCPU_HOSTS", "PE_HOSTFILE", "LOADL_HOSTFILE")


def ssh_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that make hydra's ssh strict; its words only where it is ssh that hydra starts.

    What `environment` has of words already is kept behind ours.

    >>> ssh_environment({"HYDRA_LAUNCHER_EXTRA_ARGS": "-p 2222"})["HYDRA_LAUNCHER_EXTRA_ARGS"][-7:]
    '-p 2222'
    >>> ssh_environment({"SLURM_JOB_NODELIST": "c401-[001-064]"})
    {'SSH_ASKPASS_REQUIRE': 'never'}
    """
    words_of = {
        words: " ".join(filter(None, (_STRICT, environment.get(words))))
        for words, programs in _WORDS_AND_PROGRAM.items()
        if _starts_ssh(environment, programs)
    }
    return {"SSH_ASKPASS_REQUIRE": "never", **words_of}


def _starts_ssh(environment: Mapping[str, str], programs: tuple[str, ...]) -> bool:
    said = next((environment[name] for name in programs if environment.get(name)), None)
    return said == "ssh" if said else not any(environment.get(name) for name in _BATCH_SYSTEMS)
