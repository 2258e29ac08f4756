"""A short chain in a Caffe root that all hosts of a cluster see, whose trainer fails on command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.datums import write_datums
from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.render.tree import write_files
from caffe_recipes.run.training_plan import plan_training
from tests.cluster.harness.cluster import ROOT, Cluster

RECIPE = """\
name: small
title: Three short phases
trainer: ./caffe
prototxt_dir: prototxt/small
net: {{name: Small, builder: resnet_small, classes: 10}}
nets: {{train_val: {{}}, train_val_noaug: {{test: false}}}}
data:
  train: {{lmdb: {tmp}/lmdb, source: data/train_lmdb, images: {records}}}
  test: {{lmdb: data/test_lmdb, images: 16, batch_size: 16}}
  crop_size: 28
  mean_value: [104, 117, 123]
cluster: {{nodes: {nodes}, ranks_per_node: 2, batch_per_rank: 8, omp_num_threads: 1}}
solver: {{lr_policy: fixed, display: 2, solver_mode: CPU}}
phases:
  - {{name: init, net: train_val, base_lr: 0.1, max_iter: 8, snapshot_prefix: {tmp}/init}}
  - {{name: cyc1, net: train_val, base_lr: 0.05, max_iter: 8, snapshot_prefix: {tmp}/cyc1}}
  - {{name: last, net: train_val_noaug, base_lr: 0.01, max_iter: 6, snapshot_prefix: {tmp}/last}}
evaluation: {{net: train_val, iterations: 1}}
"""
_SIDE = "name: side, weights: init, net: train_val_noaug, base_lr: 0.01, max_iter: 8"
# Its phase `side` branches off the first, before the last.
GRAPH = RECIPE.replace(
    "  - {{name: last,",
    f"  - {{{{{_SIDE}, snapshot_prefix: {{tmp}}/side}}}}\n  - {{{{name: last, weights: cyc1,",
)
PHASES = ("init", "cyc1", "last")
_PROGRAM = ROOT / "tests/stand_in/caffe.py"
_STAND_IN = f'#!/bin/sh\nexec "{sys.executable}" -IS "{_PROGRAM}" "$@"\n'
_RUN = [sys.executable, "-c", "from caffe_recipes.cli.main import main; main()", "run"]
_POLL_S = 0.002
_PATIENCE_S = 120.0


@dataclass(frozen=True)
class Started:
    """A run under way, and the file that it writes to."""

    process: subprocess.Popen[str]
    output: Path

    def read_output(self) -> str:
        """Return its output so far."""
        return self.output.read_text()

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Signal only this process, which nsenter has forked into the host's processes."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        while not children.read_text():
            time.sleep(_POLL_S)
        os.kill(int(children.read_text().split()[0]), number)
        if number == signal.SIGCONT:  # nsenter stops with its child, and would not report the child's end
            os.kill(self.process.pid, number)
        if number == signal.SIGKILL:
            self.process.wait()

    def wait_until(self, condition: Callable[[], object]) -> None:
        """Poll until a condition holds, while it runs."""
        until = time.monotonic() + _PATIENCE_S
        while not condition():
            code = self.process.poll()
            assert code is None, f"it ended before, with {code}:\n{self.read_output()[-4000:]}"
            assert time.monotonic() < until, f"it never came to that:\n{self.read_output()[-4000:]}"
            time.sleep(_POLL_S)

    def wait_until_ended(self) -> None:
        """Wait until it exits, with any code."""
        try:
            self.process.wait(timeout=_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.kill(signal.SIGABRT)  # for Python to print the stack of each thread
            self.process.wait()
            raise AssertionError(f"it does not end:\n{self.read_output()[-4000:]}") from None

    def finish(self, code: int = 0) -> str:
        """Wait until it exits with `code`; return its output, whose last line is the error."""
        self.wait_until_ended()
        ended = self.process.returncode
        assert ended == code, f"{ended}, not {code}:\n{self.read_output()[-4000:]}"
        assert "Traceback" not in self.read_output(), self.read_output()[-4000:]
        return self.read_output()


class FaultyChain:
    """A recipe and its Caffe root; on each host its LMDB and its snapshots are in `tmp`."""

    def __init__(
        self, cluster: Cluster, root: Path, nodes: int = 2, records: int = 128, recipe: str = RECIPE
    ) -> None:
        """Create the root; the hostfile holds all of the cluster's nodes, of which `nodes` are needed."""
        self._recipe = recipe
        self.cluster, self.root, self.nodes = cluster, root, nodes
        self.run_folder, self.tmp = root / "runs/small-1", f"/tmp/{root.name}"
        self._starts = 0
        root.mkdir()
        (root / "recipe.yaml").write_text(recipe.format(nodes=nodes, tmp=self.tmp, records=records))
        (root / "hostfile").write_text("".join(f"{name}\n" for name in cluster.nodes))
        write_lmdb(root / "data/train_lmdb", records)
        write_lmdb(root / "data/test_lmdb", 16)
        (root / "caffe").write_text(_STAND_IN)
        (root / "caffe").chmod(0o755)
        self.behave()

    def behave(self, **phases: object) -> None:
        """Script what goes wrong in which phase; see the stand-in's `behaviour`."""
        (self.root / "behaviour.json").write_text(json.dumps({"ms": 20, **phases}))

    def start(self, *words: str, recipe: str = "recipe.yaml") -> Started:
        """Start `caffe-recipes run` on the head."""
        return self.begin([*_RUN, recipe, *words])

    def begin(self, argv: Sequence[str], **variables: str) -> Started:
        """Start a command of ours on the head, in the root."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
        environment |= {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(self.root / "cache")}
        environment["PYTHONFAULTHANDLER"] = "1"
        self._starts += 1
        output = self.root / f"said-{self._starts}.txt"
        with output.open("w") as file:
            process: subprocess.Popen[str] = self.cluster.popen(
                "head",
                ["env", "-C", str(self.root), *(f"{key}={value}" for key, value in variables.items()), *argv],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_listen_to_signals,
            )
        return Started(process, output)

    def start_amid(self, phase: str, *words: str) -> Started:
        """Start, and return once a phase waits at iteration 4; it continues once a file `release` exists."""
        self.behave(**{phase: {"does": "waits", "at": 4}})
        run = self.start(*words)
        run.wait_until(lambda: "Iteration 4, lr" in self.log(phase))
        return run

    def release(self) -> None:
        """Let a waiting phase continue."""
        (self.root / "release").touch()

    def run(self, *words: str, code: int = 0) -> str:
        """Run until it exits with `code`; return its output."""
        return self.start(*words).finish(code)

    def proxies(self) -> list[str]:
        """Return the paths that hydra's proxy may have, which its ssh starts on each host."""
        folders = (Path(sys.executable).parent, Path("/usr/bin"))
        return [str(path) for folder in folders if (path := folder / "hydra_pmi_proxy").exists()]

    def signal_ranks(self, host: str, number: signal.Signals, ranks: Sequence[int] | None = None) -> None:
        """Signal all trainers on a host, or those of some ranks."""
        for pid, rank in self.ranks_on(host).items():
            if ranks is None or rank in ranks:
                with suppress(ProcessLookupError):  # hydra ends the others with the first
                    os.kill(pid, number)

    def ranks_on(self, host: str) -> dict[int, int]:
        """Return the trainers on a host: the rank by the process."""
        found = {}
        for pid in _processes_of(self.cluster.pids[host]):
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"train" in words and any(word.endswith(b"/stand_in/caffe.py") for word in words):
                ranks = [word.partition(b"=")[2] for word in environment if word.startswith(b"PMI_RANK=")]
                found[pid] = int(ranks[0])
        return found

    def cut_logins(self, host: str) -> None:
        """Kill the ssh sessions on a host, except for those that hold its ranks."""
        spared = set(self.ranks_on(host))
        for pid in _processes_of(self.cluster.pids[host]):
            try:
                cmdline = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
            if cmdline.startswith(b"sshd") and not _is_listener(cmdline) and not spared & _below(pid):
                os.kill(pid, signal.SIGKILL)

    def kill_all_on(self, host: str) -> None:
        """Kill the processes that hydra and ssh have left on a host that was unreachable for a while."""
        for pid in _processes_of(self.cluster.pids[host]):
            argv = Path(f"/proc/{pid}/cmdline")
            with suppress(OSError):
                if pid != self.cluster.pids[host] and not _is_listener(argv.read_bytes()):
                    os.kill(pid, signal.SIGKILL)

    def fill(self, host: str, leave_bytes: int) -> None:
        """Fill a host's /tmp but for some bytes."""
        tmp = Path(f"/proc/{self.cluster.pids[host]}/root/tmp")
        there = os.statvfs(tmp)
        with (tmp / "full").open("wb") as file, suppress(OSError):
            os.posix_fallocate(file.fileno(), 0, max(1, there.f_bavail * there.f_frsize - leave_bytes))

    def unfill(self, host: str) -> None:
        """Make room again in a host's /tmp."""
        Path(f"/proc/{self.cluster.pids[host]}/root/tmp/full").unlink()

    def has_event(self, event: str, phase: str | None = None) -> bool:
        """Return whether the journal holds an event."""
        return any(entry["event"] == event and phase in (None, entry.get("phase")) for entry in self.events())

    def events(self) -> list[dict[str, object]]:
        """Return the journal's whole lines."""
        path = self.run_folder / "journal.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def log(self, phase: str, attempt: int = 1) -> str:
        """Return the log of the trainer of a phase so far."""
        path = self.run_folder / f"logs/{phase}-{attempt}.log"
        return path.read_text() if path.exists() else ""

    def trained(self) -> list[str]:
        """Return the phases in the order in which rank 0 began to train them."""
        path = self.root / "trained.txt"
        return [line.split()[0] for line in path.read_text().splitlines()] if path.exists() else []

    def of(self, host: str, path: str = "") -> Path:
        """Return where a path in this chain's folder on a host is seen from here."""
        return Path(f"/proc/{self.cluster.pids[host]}/root{self.tmp}/{path}")

    def models(self) -> Mapping[str, bytes]:
        """Return the snapshots that the run has kept."""
        return {path.name: path.read_bytes() for path in (self.run_folder / "snapshots").glob("*.caffemodel")}

    def check_finished(self) -> None:
        """Compare the result with that of an undisturbed chain; no partial file and no process is left."""
        self.check_files()
        left = self.cluster.leftovers(5)
        assert left == {}, left

    def check_files(self) -> None:
        """Compare the final files with those of an undisturbed chain; none is partial."""
        models, expected = self.models(), self.expected()
        assert {name: len(data) for name, data in models.items()} == {n: len(d) for n, d in expected.items()}
        assert [name for name, data in models.items() if data != expected[name]] == [], "their bytes differ"
        halves = [path for path in self.run_folder.parent.rglob("*") if ".part" in path.name]
        halves += self.run_folder.parent.glob(".*")
        assert halves == [], halves
        whole = (self.root / "data/train_lmdb/data.mdb").read_bytes()
        for host in self.cluster.nodes[: self.nodes]:
            if host in self.cluster.pids and self.of(host).is_dir():
                found = {path.name for path in self.of(host).iterdir()}
                assert not [name for name in found if ".part" in name], found
                assert "lmdb" not in found or self.of(host, "lmdb/data.mdb").read_bytes() == whole

    def expected(self) -> Mapping[str, bytes]:
        """Return the snapshots of an undisturbed chain."""
        return train_undisturbed(self._recipe.format(nodes=self.nodes, tmp="tmp", records=128))


@cache
def train_undisturbed(recipe: str) -> Mapping[str, bytes]:
    """Train a chain with the stand-in only, on one rank without `run`; return its snapshots.

    They are a function of the recipe alone, so that many tests share them.
    """
    with tempfile.TemporaryDirectory() as folder:
        aside = Path(folder)
        write_lmdb(aside / "tmp/lmdb", 128)
        (aside / "recipe.yaml").write_text(recipe)
        plan = plan_training(load_recipe(aside / "recipe.yaml"), "tmp")
        write_files(plan.files, aside)
        for step in plan.trainings:
            words = [word.replace("tmp/snapshots/", "tmp/") for word in step.arguments]
            command = [sys.executable, "-IS", str(_PROGRAM), *words]
            done = subprocess.run(command, cwd=aside, capture_output=True, text=True, check=False)
            assert "Optimization Done" in done.stderr, done.stderr
        return {path.name: path.read_bytes() for path in (aside / "tmp").glob("*.caffemodel")}


def _listen_to_signals() -> None:
    """Restore signals that nohup, or a shell's `&`, has the tests ignore; a run would inherit that."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def _is_listener(cmdline: bytes) -> bool:
    """Return whether this is sshd itself, which may prefix its name, and not one that serves a login."""
    return cmdline.removeprefix(b"sshd: ").startswith(b"/usr/sbin/sshd")


def _processes_of(first: int) -> list[int]:
    """Return the processes in the namespace of a host's first one."""
    space = _namespace(first)
    everyone = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [pid for pid in everyone if _namespace(pid) == space]


def _below(pid: int) -> set[int]:
    """Return a process and its descendants, as far as they are still its children."""
    found = {pid}
    with suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            found |= _below(int(child))
    return found


def _namespace(pid: int) -> str | None:
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:
        return None


def write_lmdb(path: Path, count: int) -> None:
    """Write an LMDB of black images."""
    datums = (
        pb.Datum(channels=3, height=28, width=28, data=bytes(3 * 28 * 28), label=index % 10)
        for index in range(count)
    )
    write_datums(path, ((f"{index}", datum) for index, datum in enumerate(datums)))
