"""A real Slurm on the hosts of a cluster: slurmctld on the head, slurmd on every node, munge on all.

    with Cluster.up(4) as cluster, Slurm.up(cluster) as slurm:
        cluster.run("head", ["sbatch", "--wrap", "hostname"])

Each host sees its /etc/slurm alone. The daemons end with `down`, or with the cluster at the latest.
Debian's Slurm has no accounting here, no limits of memory and no preemption.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from caffe_recipes.cluster.slurm.answers import parse_scontrol_jobs
from caffe_recipes.cluster.slurm.jobs import Job, JobState
from tests.cluster.harness.cluster import Cluster, NoCluster

PARTITIONS: Mapping[str, str] = {
    "debug": "Nodes=ALL Default=YES MaxTime=INFINITE",
    "short": "Nodes=ALL MaxTime=10 MaxNodes=2",
}
# Of slurmctld and a child of its own, which hides its name's beginning; a job's is `slurmstepd: ...`.
_DAEMON = re.compile(r"(?:munged|slurmd|slurmctld)(?: .*)?|(?:slurmctld)?: slurmscriptd")
_UP_S = 60.0
# What makes tests quick: the queue is looked at every second; two seconds lie between SIGTERM and SIGKILL; a
# requeued job begins again once its credential has expired, which takes two minutes unless told, and never
# less than five seconds. Whether a limit of time is reached is looked at every half minute, whatever is set.
_SETTINGS: Mapping[str, str] = {
    "ClusterName": "test",
    "SlurmctldHost": "head",
    "SlurmUser": "root",
    "AuthType": "auth/munge",
    "AuthInfo": "cred_expire=5",
    "CredType": "cred/munge",
    "StateSaveLocation": "/run/slurm/state",
    "SlurmctldPidFile": "/run/slurm/slurmctld.pid",
    "SlurmctldLogFile": "/run/slurm/slurmctld.log",
    "SlurmdPidFile": "/run/slurm/slurmd.pid",
    "SlurmdLogFile": "/run/slurm/slurmd.log",
    "SlurmdSpoolDir": "/run/slurm/spool",
    "SlurmdParameters": "config_overrides",
    # Finds the descendants of the script, but not those that outlive their parent.
    "ProctrackType": "proctrack/linuxproc",
    "TaskPlugin": "task/none",
    "MpiDefault": "none",
    "SelectType": "select/cons_tres",
    "SelectTypeParameters": "CR_CPU",
    "SchedulerType": "sched/builtin",
    "SchedulerParameters": "batch_sched_delay=0,sched_interval=1,sched_min_interval=0",
    "ReturnToService": "2",
    "SlurmctldTimeout": "10",
    "SlurmdTimeout": "10",
    "KillWait": "2",
    "AccountingStorageType": "accounting_storage/none",
    "JobAcctGatherType": "jobacct_gather/none",
}
_START_MUNGE = """\
mkdir -p /run/munge /run/slurm/state /run/slurm/spool
cd /run/munge
cp "$1/munge.key" key
chmod 400 key
munged --force --key-file="$PWD/key" --socket="$PWD/munge.socket.2" --pid-file="$PWD/munged.pid" \
    --log-file="$PWD/log" --seed-file="$PWD/seed"
mountpoint -q /etc/slurm || mount --bind "$1" /etc/slurm
"""
_STOP = """\
read -r pid <"$1" && kill "$pid" || exit 0
while kill -0 "$pid" 2>/dev/null; do sleep 0.02; done
"""


def why_not() -> str | None:
    """Return what this machine lacks for a Slurm, in one line; None if nothing."""
    lacking = [name for name in ("slurmctld", "slurmd", "munged", "sbatch") if shutil.which(name) is None]
    if lacking:
        return f"a test Slurm needs {', '.join(lacking)}: run `make test-cluster`, which installs them"
    return None


@dataclass
class Slurm:
    """A Slurm that runs on a cluster."""

    cluster: Cluster

    @classmethod
    @contextmanager
    def up(
        cls,
        cluster: Cluster,
        *,
        cpus: int = 8,
        partitions: Mapping[str, str] = PARTITIONS,
        settings: Mapping[str, str] | None = None,
    ) -> Iterator[Slurm]:
        """Bring up a Slurm on a cluster's hosts, and take it down again.

        `partitions` gives each one's line in slurm.conf, `settings` changes other lines; a node has `cpus`.
        """
        reason = why_not()
        if reason:
            raise NoCluster(reason)
        slurm = cls(cluster)
        slurm._write(cpus, partitions, settings or {})
        try:
            for host in ("head", *cluster.nodes):
                slurm.start(host)
            slurm.wait_until_idle()
            yield slurm
        finally:
            slurm.down()

    def start(self, host: str) -> None:
        """Start Slurm on one host, as after a boot."""
        self._sh(host, _START_MUNGE, str(self._folder))
        if host == "head":
            self.start_controller()
        else:
            self.cluster.run(host, ["slurmd"])

    def down(self) -> None:
        """Cancel all jobs and stop all daemons, on the hosts that there still are."""
        if "head" in self.cluster.pids:
            self.stop_controller()
        for host in (name for name in self.cluster.pids if name != "head"):
            self._sh(host, _STOP, "/run/slurm/slurmd.pid")
        for host in self.cluster.pids:
            self._sh(host, _STOP, "/run/munge/munged.pid")
            self.cluster.run(host, ["umount", "/etc/slurm"], check=False)

    def stop_controller(self) -> None:
        """Stop slurmctld; it knows its jobs again when it is started."""
        self._sh("head", _STOP, "/run/slurm/slurmctld.pid")

    def start_controller(self) -> None:
        """Start slurmctld and wait until it answers."""
        self.cluster.run("head", ["slurmctld"])
        self._wait("scontrol ping | grep -q 'is UP'")

    def freeze_controller(self) -> None:
        """Suspend slurmctld: it answers nothing, and handles what it was sent once it is thawed."""
        self._sh("head", 'read -r pid </run/slurm/slurmctld.pid; kill -s STOP "$pid"')

    def thaw_controller(self) -> None:
        """Resume slurmctld."""
        self._sh("head", 'read -r pid </run/slurm/slurmctld.pid; kill -s CONT "$pid"')

    def job(self, job_id: int) -> Job:
        """Return a job that slurmctld knows."""
        return next(job for job in self.jobs() if job.job_id == job_id)

    def wait_for(self, job_id: int, state: JobState, within_s: float = 60) -> Job:
        """Wait until a job is in a state, and return it; stop waiting if it ends in another one."""
        deadline = time.monotonic() + within_s
        while (job := self.job(job_id)).state is not state:
            waits = time.monotonic() < deadline and not job.state.is_over
            assert waits, f"{state.value} is not reached: {job}"
            time.sleep(0.1)
        return job

    def jobs(self) -> tuple[Job, ...]:
        """Return all jobs that slurmctld knows."""
        argv = ["scontrol", "--oneliner", "show", "job"]
        env = {"LC_ALL": "C", "SLURM_TIME_FORMAT": "standard"}
        return parse_scontrol_jobs(self.cluster.run("head", argv, env=env).stdout)

    def has_ended_step(self, job_id: int, step: int) -> bool:
        """Return whether a step of a job has ended on all of its nodes, according to their slurmd."""
        message = f"[{job_id}.{step}] done with job"
        argv = ["grep", "-qF", message, "/run/slurm/slurmd.log"]
        done = [self.cluster.run(node, argv, check=False).returncode for node in self.cluster.nodes]
        return done.count(0) == self.job(job_id).nodes

    def end_soon(self, job_id: int, in_s: int = 2) -> None:
        """Have a job's time limit end within seconds; slurmctld sees that within half a minute."""
        self.cluster.run("head", ["scontrol", "update", f"JobId={job_id}", f"EndTime=now+{in_s}"])

    def begin(self, job_id: int, when: str) -> None:
        """Have a pending job begin at a time, as in `now+1hour`."""
        self.cluster.run("head", ["scontrol", "update", f"JobId={job_id}", f"StartTime={when}"])

    def clear(self) -> None:
        """Cancel all jobs, and wait until nothing of them is left on the nodes."""
        ids = [str(job.job_id) for job in self.jobs() if not job.state.is_over]
        if ids:
            self.cluster.run("head", ["scancel", *ids])
        self.wait_until_idle()

    def wait_until_idle(self) -> None:
        """Wait until every node is free."""
        self._wait(f'test "$(sinfo -h -p {self._partition} -t idle -o %D)" = {len(self.cluster.nodes)}')

    def leftovers(self) -> dict[str, list[str]]:
        """Return the processes that are still there after a while, but for Slurm's own daemons."""
        deadline = time.monotonic() + 5
        while (found := self._strangers()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return found

    def _strangers(self) -> dict[str, list[str]]:
        found = {
            host: [command for command in commands if not _DAEMON.fullmatch(command)]
            for host, commands in self.cluster.processes().items()
        }
        return {host: commands for host, commands in found.items() if commands}

    def _write(self, cpus: int, partitions: Mapping[str, str], settings: Mapping[str, str]) -> None:
        self._folder = self.cluster.folder / "slurm"
        self._partition = next(iter(partitions))
        self._folder.mkdir()
        (self._folder / "munge.key").write_bytes(os.urandom(1024))
        lines = [f"{key}={value}" for key, value in {**_SETTINGS, **settings}.items()]
        lines += [f"NodeName={name} CPUs={cpus} RealMemory=1000" for name in self.cluster.nodes]
        lines += [f"PartitionName={name} {line}" for name, line in partitions.items()]
        (self._folder / "slurm.conf").write_text("".join(f"{line}\n" for line in lines))

    def _sh(self, host: str, script: str, *words: str) -> None:
        self.cluster.run(host, ["sh", "-euc", script, "sh", *words])

    def _wait(self, script: str) -> None:
        until = f"until {script}; do sleep 0.05; done"
        done = self.cluster.run("head", ["timeout", str(_UP_S), "sh", "-c", until], check=False)
        if done.returncode != 0:
            log = self.cluster.run("head", ["tail", "-n", "20", "/run/slurm/slurmctld.log"], check=False)
            raise AssertionError(f"Slurm is not ready: {script}\n{done.stderr}{log.stdout}")
