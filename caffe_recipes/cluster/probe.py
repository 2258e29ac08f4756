"""Asking the launcher that is really there: which it is, and whether it knows an option."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from caffe_recipes.cluster.hosts import Host
from caffe_recipes.errors import ClusterError

# How a launcher says its version; given behind an option, that is all it does, unless it refuses the option.
_VERSION: Mapping[str, str] = {"mpiexec.hydra": "-version", "srun": "--version"}
_REFUSALS = ("unrecognized argument", "unrecognized option", "invalid option")
_ASK_S = 20.0


def launcher_version(host: Host, program: str) -> str:
    """Return the line in which a launcher names its version; raises ClusterError if it does not answer."""
    done = host.run([program, _asks_version(program)], _ASK_S)
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    version = next((line for line in lines if "ersion" in line or line.startswith("slurm")), None)
    if done.returncode != 0 or version is None:
        raise ClusterError(host.name, f"{program} does not say its version", f"try `{program} -version`")
    return version


def launcher_knows(
    host: Host,
    program: str,
    option: str,
    within: Callable[[Sequence[str]], Sequence[str]] = lambda argv: argv,
) -> bool:
    """Tell whether a launcher takes an option, without starting anything; raises ClusterError.

    Of Intel MPI's hydras only those of 2018 know -PSM2; MPICH's never did. `within` is what the launcher is
    called in, as modules.
    """
    done = host.run(within([program, *option.split(), _asks_version(program)]), _ASK_S)
    if done.returncode == 0:
        return True
    said = f"{done.stdout}\n{done.stderr}"
    if any(refusal in said for refusal in _REFUSALS):
        return False
    reason = next((line.strip() for line in said.splitlines() if line.strip()), f"code {done.returncode}")
    raise ClusterError(host.name, f"{program} {option} fails: {reason[:200]}", f"try `{program} -version`")


def _asks_version(program: str) -> str:
    return _VERSION.get(program.rpartition("/")[2], "-version")
