"""srun, of Slurm: it starts the ranks as a step of the job."""

from __future__ import annotations

import re
import signal

from caffe_recipes.cluster.launchers.launcher import (
    SIGNAL_NAMES,
    Launcher,
    RankExits,
    RankLaunch,
    describe_signal,
    name_rank,
)

_ENDED = re.compile(
    r"srun: error: (\S{1,253}): (?:task (\d{1,7})|tasks? [][\d,-]+): (.{1,100}?)(?: \(core dumped\))?"
)
_CANCELLED = re.compile(r"slurmstepd: error: \*\*\* .*CANCELLED AT .*")
_OUT_OF_MEMORY = "Out Of Memory"
_SIGNAL_BY_TEXT = {signal.strsignal(number): number for number in SIGNAL_NAMES}
# Hydra does not notice that the srun which starts its proxies has failed, and waits forever.
NO_STEP = re.compile(r"srun: (?:error|fatal): (Unable to (?:confirm allocation|create step).*)")
# Printed while other steps hold its nodes, and once that is over.
STEP_WAITS = re.compile(
    r"(srun: Job \d+ step creation (?:temporarily|still) disabled, retrying.*)|srun: Step created for .*"
)


class SrunExits(RankExits):
    """Reads srun's report of each rank as it ends.

    >>> exits = SrunExits()
    >>> exits.feed("srun: error: node2: task 3: Killed")
    >>> exits.cause
    'node2: rank 3 was killed by signal 9 (out of memory?)'
    """

    VITAL = ("srun: ",)

    def __init__(self) -> None:
        """Start before the first line of output."""
        self._is_cancelled = False

    def feed(self, line: str) -> None:
        """Process the next line, without its rank label."""
        if not line.startswith(("srun: error: ", "slurmstepd: error: ")):
            return
        if _CANCELLED.fullmatch(line):  # all ranks are ended, and srun reports each
            self._is_cancelled = True
        elif not self.cause and not self._is_cancelled and (found := _ENDED.fullmatch(line)):
            host, rank, word = found.groups()
            if word == _OUT_OF_MEMORY:
                self.cause = f"{name_rank(host, rank)} was killed: out of memory"
            elif word in _SIGNAL_BY_TEXT:
                what = describe_signal(_SIGNAL_BY_TEXT[word])
                self.cause = f"{name_rank(host, rank)} was killed by {what}"


class Srun(Launcher):
    """srun of Slurm, with PMI-2."""

    program = "srun"
    processes = ("srun",)
    hint = "run on a machine of the Slurm cluster, or use another --profile"
    version_option = "--version"
    exits = SrunExits

    def words(self, launch: RankLaunch) -> tuple[str, ...]:
        """Return its argv up to the command; the ranks are in the order of the hosts.

        From srun(1): an arbitrary distribution assigns tasks in the order of a node list that names each host
        once per task; `--label` prefixes each line of output with `rank: `; MPICH and Intel MPI use PMI-2
        with Slurm. Ranks inherit srun's own environment, since `--export` would split values at commas. As
        with the other launchers, a rank may use all cores that the job has on its node, and thread affinity
        pins its threads: `--cpus-per-task` would imply `--exact`, and deny MLSL's servers the other cores.
        Without `--disable-status`, srun responds to a first SIGINT by printing its status, and stops no rank.

        >>> " ".join(LAUNCHER.words(RankLaunch(LAUNCHER, ("c2", "c1"), 2)))
        'srun --mpi=pmi2 --label --export=ALL --disable-status --cpu-bind=none --ntasks=4 --nodes=2 \
--distribution=arbitrary --nodelist=c2,c2,c1,c1'
        """
        placed = ",".join(host for host in launch.hosts for _ in range(launch.ranks_per_node))
        shape = (f"--ntasks={launch.ranks}", f"--nodes={len(launch.hosts)}")
        places = ("--distribution=arbitrary", f"--nodelist={placed}")
        ways = ("--mpi=pmi2", "--label", "--export=ALL", "--disable-status", "--cpu-bind=none")
        name = (f"--job-name={launch.step}",) if launch.step else ()
        return (self.program, *ways, *name, *launch.option_words, *shape, *places)


LAUNCHER = Srun()
