"""A cluster of stand-ins: Stampede2 is not here, so `mpiexec.hydra`, `ssh` and `scp` only record and pretend.

A call is three files with its argv, environment and working directory. Each node is a folder with a `tmp` of
its own, into which the recipe's paths under /tmp are mapped, so that nothing is written to the real one.
A test changes what a stand-in does by a hook: shell text that it reads before it acts.
"""

from __future__ import annotations

import copy
import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from caffe_recipes.recipe.model import Recipe
from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.render.recipe_files import net_file
from caffe_recipes.render.scripts import render_run_script
from tests.jobs.job_play import Play, make_play

STAND_IN = r"""#!/bin/bash
tool=${0##*/}
call=$PLAY/calls/$EPOCHREALTIME.$$.$tool
mapfile -d '' -t environment </proc/$$/environ
printf '%s\0' "$@" >"$call.argv"
printf '%s\0' "${environment[@]}" >"$call.environ"
printf '%s\n' "$PWD" >"$call.cwd"
while [[ ${1-} == -o* ]]; do shift; done
on_node() { printf '%s' "$PLAY/nodes/$1/tmp/${2#/tmp/}"; }
finish() {
  case $tool in
    mpiexec.hydra)
      for word; do [[ $word != --solver=* ]] || solver=${word#--solver=}; done
      while read -r key value; do
        case $key in
          snapshot_prefix:) prefix=${value//\"/} ;;
          max_iter:) max_iter=$value ;;
        esac
      done <"$solver"
      read -r host <hostfile
      echo "[0] I1120 11:49:33.77 6374 solver.cpp:436] Iteration $max_iter, loss = ${LOSS-0.87}" >&2
      echo "weights of $solver" >"$(on_node "$host" "${prefix}_iter_$max_iter.caffemodel")"
      ;;
    ssh)
      text=$(cat)
      text=${text//\/tmp\/resnet_50/$PLAY/nodes/$1/tmp/resnet_50}
      bash -s <<<"${text//\/tmp\/ilsvrc12/$PLAY/nodes/$1/tmp/ilsvrc12}"
      ;;
    scp) cp "$(on_node "${1%%:*}" "${1#*:}")" "$2" ;;
  esac
}
[ ! -e "$PLAY/hook.$tool" ] || . "$PLAY/hook.$tool"
finish "$@"
"""
# The options of every ssh and scp.
STRICT = ("-oBatchMode=yes", "-oStrictHostKeyChecking=yes", "-oUpdateHostKeys=no", "-oForwardAgent=no")
CAFFE = r"""#!/bin/bash
printf "%s\0" "$@" >"$PLAY/test.argv"
cat >&2 <<END
I0402 13:18:56.347901 30419 caffe.cpp:500] Batch 999, loss3/top-1 = 0.8
I0402 13:18:56.347940 30419 caffe.cpp:505] Loss: 0.942313
I0402 13:18:56.347950 30419 caffe.cpp:517] loss = 0.942313 (* 1 = 0.942313 loss)
I0402 13:18:56.347960 30419 caffe.cpp:517] loss3/top-1 = 0.762781
I0402 13:18:56.348022 30419 caffe.cpp:517] loss3/top-5 = 0.931862
END
"""
# Reads a script without doing anything: no command is found, and nothing exits.
HARMLESS = """PATH=/none
exit() { :; }; trap() { :; }; command() { :; }; exec() { :; }; command_not_found_handle() { :; }; set() { :; }
"""


@dataclass(frozen=True)
class Call:
    """A call of a stand-in."""

    argv: tuple[str, ...]
    environment: dict[str, str]
    folder: Path


class StandInCluster:
    """A Caffe root, nodes and a generated run.sh for one recipe."""

    def __init__(self, work: Path, recipe: Recipe) -> None:
        self.recipe = recipe
        self._locate(work)
        self.hosts = tuple(f"c401-{number:03}" for number in range(1, recipe.cluster.nodes + 1))
        self.lmdb = "tmp/ilsvrc12_train_lmdb/data.mdb"
        self._write_programs()
        self._write_files()

    def _locate(self, work: Path) -> None:
        self.work = work
        self.play = work / "play"
        self.root = work / "caffe root"
        self.script = work / "repository" / "jobs" / self.recipe.name / "run.sh"
        self.prototxts = work / "repository" / "prototxt" / self.recipe.name

    def copy_to(self, work: Path) -> StandInCluster:
        """Return a copy of all that this cluster has, with the times of its files."""
        shutil.copytree(self.work, work, symlinks=True, dirs_exist_ok=True)
        made = copy.copy(self)
        made._locate(work)
        return made

    def _write_programs(self) -> None:
        for tool in ("mpiexec.hydra", "ssh", "scp"):
            write(self.play / "bin" / tool, STAND_IN, 0o755)
        write(self.root / "build/tools/caffe", CAFFE, 0o755)
        # No test waits for a lock that stays held.
        text = render_run_script(self.recipe).replace("flock -w 5 9", "flock -n 9")
        write(self.script, text, 0o755)
        (self.play / "calls").mkdir()

    def _write_files(self) -> None:
        write(self.root / "hostfile", "".join(f"{host}\n" for host in self.hosts))
        write(self.root / self.recipe.data.test.lmdb / "data.mdb", "validation images")
        for host in self.hosts:
            write(self.node(host) / self.lmdb, "training images")
        for phase in self.recipe.phases:
            text = f'snapshot_prefix: "{phase.snapshot_prefix}"\nmax_iter: {phase.max_iter}\n'
            write(self.prototxts / f"solver_{phase.name}.prototxt", text)
        for net in self.recipe.nets:
            write(self.prototxts.parent.parent / net_file(self.recipe, net), f'name: "{net}"\n')

    def node(self, host: str) -> Path:
        """Return the folder that represents a node's disks."""
        return self.play / "nodes" / host

    def hook(self, tool: str, text: str) -> None:
        """Change the behaviour of a stand-in."""
        write(self.play / f"hook.{tool}", text)

    def start(
        self, *arguments: str, shell: str = 'exec "$0" "$@"', **environment: str
    ) -> subprocess.Popen[str]:
        """Start run.sh, the $0 of a shell command, in the Caffe root, in a process group of its own."""
        path = f"{self.play / 'bin'}:{os.environ['PATH']}"
        return subprocess.Popen(
            ["bash", "-c", shell, self.script, *arguments],
            cwd=self.root,
            env={"PATH": path, "HOME": str(self.play), "PLAY": str(self.play), **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(
        self, *arguments: str, shell: str = 'exec "$0" "$@"', **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run run.sh to its end, as `start` does."""
        process = self.start(*arguments, shell=shell, **environment)
        try:
            stdout, stderr = process.communicate(timeout=600)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    def calls(self, tool: str) -> list[Call]:
        """Return a stand-in's calls so far, oldest first."""
        # Written last, so the call is whole.
        ends = sorted((self.play / "calls").glob(f"*.{tool}.cwd"))
        return [
            Call(
                argv=(tool, *zero_separated(end.with_suffix(".argv"))),
                environment=dict(item.split("=", 1) for item in zero_separated(end.with_suffix(".environ"))),
                folder=Path(end.read_text().rstrip("\n")),
            )
            for end in ends
        ]

    def wait_for(self, path: Path) -> None:
        """Wait until a file exists."""
        deadline = time.monotonic() + 600
        while not path.exists():
            assert time.monotonic() < deadline, f"{path} never came"
            time.sleep(0.02)

    def forget_calls(self) -> None:
        """Forget the calls so far."""
        for path in (self.play / "calls").iterdir():
            path.unlink()

    def trained(self) -> list[str]:
        """Return the phases that mpiexec was called for, in order."""
        solvers = [
            word for call in self.calls("mpiexec.hydra") for word in call.argv if word.startswith("--solver=")
        ]
        return [Path(solver).stem.removeprefix("solver_") for solver in solvers]

    def stops(self, code: int, **environment: str) -> str:
        """Run to a failure with this exit code; return its one line, after those of what failed."""
        done = self.run(**environment)
        assert done.returncode == code, done.stderr
        ours = [line for line in done.stderr.splitlines() if line.startswith(f"{self.recipe.name}: ")]
        assert len(ours) == 1, done.stderr
        return ours[0]


def write(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    path.chmod(mode)


def zero_separated(path: Path) -> list[str]:
    return path.read_text().split("\0")[:-1]


@pytest.fixture(scope="session")
def published_cluster(tmp_path_factory: pytest.TempPathFactory) -> StandInCluster:
    """All 64 nodes and five phases, after a run; read-only."""
    cluster = StandInCluster(tmp_path_factory.mktemp("published"), load_recipe("stampede2-64n-72ep"))
    done = cluster.run()
    assert done.returncode == 0, done.stderr
    return cluster


def small_recipe() -> Recipe:
    """Return the first two phases on two nodes."""
    recipe = load_recipe("stampede2-64n-72ep")
    cluster = recipe.cluster.model_copy(update={"nodes": 2})
    return recipe.model_copy(update={"phases": recipe.phases[:2], "cluster": cluster})


@pytest.fixture
def small_cluster(tmp_path: Path) -> StandInCluster:
    """The first two phases on two nodes."""
    return StandInCluster(tmp_path, small_recipe())


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> StandInCluster:
    """The small cluster after a run; only to be copied."""
    cluster = StandInCluster(tmp_path_factory.mktemp("finished"), small_recipe())
    done = cluster.run()
    assert done.returncode == 0, done.stderr
    return cluster


@pytest.fixture
def finished_cluster(finished: StandInCluster, tmp_path: Path) -> StandInCluster:
    """The small cluster after a run of both phases and the evaluation, in a copy of its own."""
    made = finished.copy_to(tmp_path)
    made.forget_calls()
    return made


@pytest.fixture
def play(tmp_path: Path) -> Play:
    return make_play(tmp_path)
