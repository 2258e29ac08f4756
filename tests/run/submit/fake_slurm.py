"""A Slurm that is a dict: its commands answer on a stand-in host, as the real ones do."""

from __future__ import annotations

from dataclasses import dataclass, field

from caffe_recipes.cluster.commands import Completed
from tests.stand_in_host import StandInHost

OUR_ID = 1000
_COMMANDS = ("sbatch", "squeue", "scontrol", "sinfo", "sacct", "scancel")
_AWAY = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n"
# As Slurm 22.05 prints it on a machine without slurm.conf.
_UNCONFIGURED = (
    "sbatch: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host\n"
    "sbatch: error: fetch_config: DNS SRV lookup failed\n"
    "sbatch: error: _establish_config_source: failed to fetch config\n"
    "sbatch: fatal: Could not establish a configuration source\n"
)


@dataclass
class FakeJob:
    """A job that was accepted."""

    job_id: int
    name: str
    argv: tuple[str, ...] = ()
    state: str = "PENDING"
    reason: str = "Resources"
    failed_node: str = ""
    user_id: int = OUR_ID


@dataclass
class FakeSlurm:
    """Takes jobs, without a word if `is_mute`.

    `refuses` is what it says of a job whose name ends so, `refuses_tests` of any that is only to be
    tested, `refuses_excluding` of one of those that goes without some nodes.
    """

    jobs: dict[int, FakeJob] = field(default_factory=dict)
    is_there: bool = True
    is_configured: bool = True
    is_away: bool = False
    is_mute: bool = False
    cluster: str = ""  # which alone knows the jobs
    refuses: dict[str, str] = field(default_factory=dict)
    refuses_tests: str = ""
    refuses_excluding: str = ""
    partitions: tuple[str, ...] = (
        "PartitionName=debug Default=YES State=UP TotalNodes=4 MaxNodes=UNLIMITED MinNodes=0 "
        "MaxTime=02:00:00 DefaultTime=00:30:00",
        "PartitionName=long Default=NO State=UP TotalNodes=2 MaxNodes=UNLIMITED MaxTime=UNLIMITED "
        "DefaultTime=NONE",
    )
    nodes: str = "debug|up|2:00:00|4|idle|n[1-4]\n"
    ends: dict[int, str] = field(default_factory=dict)  # what a job ends in before scancel reaches it
    calls: list[tuple[str, ...]] = field(default_factory=list)

    @property
    def host(self) -> StandInHost:
        """Where its commands are."""
        return StandInHost("login1", self._answer)

    def submitted(self) -> list[tuple[str, ...]]:
        """The sbatch commands without --test-only."""
        return [call for call in self.calls if call[0] == "sbatch" and "--test-only" not in call]

    def _answer(self, argv: tuple[str, ...], stdin: bytes) -> Completed:
        if not self.is_there:
            return Completed(127, "", "env: 'sbatch': No such file or directory\n")
        if argv[-2:] == ("id", "-u"):
            return Completed(0, f"{OUR_ID}\n", "")
        at = next(index for index, word in enumerate(argv) if word in _COMMANDS)
        call = argv[at:]
        if not self.is_configured:
            return Completed(1, "", _UNCONFIGURED)
        if call == ("sbatch", "--version"):
            return Completed(0, "slurm-wlm 22.05.8\n", "")
        self.calls.append(call)
        if self.is_away:
            return Completed(1, "", _AWAY)
        return getattr(self, f"_{call[0]}")(call)  # type: ignore[no-any-return]

    def _sbatch(self, call: tuple[str, ...]) -> Completed:
        name = _option(call, "--job-name")
        if "--test-only" in call and any(word.startswith("--exclude=") for word in call):
            refusal = self.refuses_excluding
            return Completed(1 if refusal else 0, "", f"{refusal}\n")
        if "--test-only" in call:
            return Completed(1 if self.refuses_tests else 0, "", f"sbatch: error: {self.refuses_tests}\n")
        for suffix, refusal in self.refuses.items():
            if name.endswith(suffix):
                return Completed(1, "", f"sbatch: error: {refusal}\n")
        job_id = 12 + len(self.jobs)
        self.jobs[job_id] = FakeJob(job_id, name, call)
        return (
            Completed(124, "", "")
            if self.is_mute
            else Completed(0, f"{job_id}{self.cluster and f';{self.cluster}'}\n", "")
        )

    def _squeue(self, call: tuple[str, ...]) -> Completed:
        if not self._is_asked(call):
            return Completed(0, "", "")
        names, ids = _option(call, "--name").split(","), _option(call, "--jobs").split(",")
        lines = [
            f"{job.job_id}|{job.job_id}|{job.state}|1|debug|30:00|N/A|N/A|N/A||{job.reason}|{job.name}\n"
            for job in self.jobs.values()
            if str(job.job_id) in ids or (job.name in names and _option(call, "--user") == str(job.user_id))
        ]
        return Completed(0, "".join(lines), "")

    def _scontrol(self, call: tuple[str, ...]) -> Completed:
        if call[-1] == "partition":
            return Completed(0, "\n".join(self.partitions), "")
        job = self.jobs.get(int(call[-1]))
        if job is None or not self._is_asked(call):
            return Completed(1, "", "slurm_load_jobs error: Invalid job id specified\n")
        blamed = f" FailedNode={job.failed_node}" if job.failed_node else ""
        return Completed(
            0,
            f"JobId={job.job_id} JobName={job.name} UserId=a({job.user_id}) "
            f"JobState={job.state} Reason={job.reason} Partition=debug NodeList=(null) "
            f"ExitCode=0:0{blamed}\n",
            "",
        )

    def _sinfo(self, call: tuple[str, ...]) -> Completed:
        return Completed(0, self.nodes, "")

    def _sacct(self, call: tuple[str, ...]) -> Completed:
        return Completed(1, "", "Slurm accounting storage is disabled\n")

    def _is_asked(self, call: tuple[str, ...]) -> bool:
        return not self.cluster or f"--clusters={self.cluster}" in call

    def _scancel(self, call: tuple[str, ...]) -> Completed:
        if not self._is_asked(call):
            return Completed(1, "", "scancel: error: Invalid job id specified\n")
        for job_id, state in self.ends.items():
            self.jobs[job_id].state = state
        if any(option.startswith("--signal") for option in call):
            return Completed(0, "", "")
        for word in call[1:]:
            if word.isdigit() and int(word) not in self.ends:
                self.jobs[int(word)].state = "CANCELLED"
        return Completed(0, "", "")


def _option(call: tuple[str, ...], name: str) -> str:
    return next((word.partition("=")[2] for word in call if word.startswith(f"{name}=")), "")
