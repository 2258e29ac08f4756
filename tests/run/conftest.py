"""A Caffe root with a small recipe, tiny LMDBs, a stand-in for caffe, and the real mpiexec.hydra."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.datums import write_datums
from caffe_recipes.cluster.commands import Host
from caffe_recipes.cluster.hosts import is_this_machine, open_host
from caffe_recipes.cluster.slurm.this_job import SLURM_VARIABLES
from caffe_recipes.errors import RunFailed
from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.render.own_code import allowing_code
from caffe_recipes.run.console import Reporter
from caffe_recipes.run.context import RunOptions
from caffe_recipes.run.events import RunState
from caffe_recipes.run.journal import load_journal
from caffe_recipes.run.process import StartTrainer, launch_trainer
from caffe_recipes.run.runner import run_chain
from tests.cli.command_line import call_main
from tests.run.fake_caffe import place_program
from tests.run.threaded_trainer import start_threads
from tests.stand_in_host import QuickHost

RECIPE = """\
name: small
title: Three short phases
trainer: ./caffe
prototxt_dir: prototxt/small
net: {name: Small, builder: resnet_small, classes: 10}
nets: {train_val: {}, train_val_noaug: {test: false}}
data:
  train: {lmdb: tmp/train_lmdb, source: data/train_lmdb, images: 128}
  test: {lmdb: data/test_lmdb, images: 16, batch_size: 16}
  crop_size: 28
  mean_value: [104, 117, 123]
cluster: {nodes: 1, ranks_per_node: 2, batch_per_rank: 32, omp_num_threads: 1}
solver: {lr_policy: fixed, display: 2, solver_mode: CPU}
phases:
  - {name: init, net: train_val, base_lr: 0.1, max_iter: 8, snapshot_prefix: tmp/small_init}
  - {name: cyc1, net: train_val, base_lr: 0.05, max_iter: 6, snapshot_prefix: tmp/small_cyc1}
  - {name: last, net: train_val_noaug, base_lr: 0.01, max_iter: 4, snapshot_prefix: tmp/small_last}
evaluation: {net: train_val, iterations: 1}
reported: {top1_percent: 76.3}
"""

# A net that computes no loss.
NO_LOSS = """\
layer { name: "a" type: "Data" top: "x" top: "y" include { phase: TRAIN } data_param { source: "q" } }
layer { name: "b" type: "Data" top: "x" top: "y" include { phase: TEST } data_param { source: "q" } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip" inner_product_param { num_output: 10 } }
"""


def open_quick_host(name: str) -> Host:
    return QuickHost(name) if is_this_machine(name) else open_host(name)


WriteLmdb = Callable[[Path, int, Callable[[int], int]], None]


def _write_lmdb(path: Path, count: int, label: Callable[[int], int] = lambda index: index % 10) -> None:
    pixels = bytes(3 * 28 * 28)
    datums = (
        pb.Datum(channels=3, height=28, width=28, data=pixels, label=label(index)) for index in range(count)
    )
    write_datums(path, ((f"{index}", datum) for index, datum in enumerate(datums)))


def _listen_to_signals() -> None:
    """Restore signals that nohup, or a shell's `&`, has the tests ignore; a run would inherit that."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@dataclass
class Place:
    """A Caffe root, and the output of the runs in it."""

    root: Path
    output: io.StringIO = field(default_factory=io.StringIO)
    connect: Callable[[str], Host] = open_quick_host
    start_trainer: StartTrainer = start_threads
    begun: Path | None = None

    @property
    def recipe(self) -> Path:
        return self.root / "small.yaml"

    def edit(self, before: str, after: str) -> None:
        text = self.recipe.read_text()
        assert before in text
        self.recipe.write_text(text.replace(before, after))

    def take_net_without_loss(self) -> None:
        """Train a net of the recipe's own that computes no loss."""
        self.edit("builder: resnet_small", "prototxt: own.prototxt")
        (self.root / "own.prototxt").write_text(NO_LOSS)

    def behave(self, **phases: str) -> None:
        (self.root / "behaviour.json").write_text(json.dumps(phases))

    def run(self, **options: object) -> RunState:
        console = Console(file=self.output, soft_wrap=True, highlight=False)
        given = RunOptions(root=self.root, **options)  # type: ignore[arg-type]
        recipe, reporter = load_recipe(self.recipe), Reporter(console)
        with allowing_code("always"):
            return run_chain(
                recipe,
                given,
                reporter,
                connect=lambda name, copy_with: self.connect(name),
                start=self.start_trainer,
            )

    def begin(self, **phases: str) -> None:
        """Leave what a first run of the small recipe leaves if its phases behave so: finished, or failed.

        Each such run is made once in a session, and copied from then on. What follows behaves well.
        """
        assert self.recipe.read_text() == RECIPE and not (self.root / "runs").exists()
        assert self.begun is not None
        kept = self.begun / json.dumps(phases)
        if not kept.exists():
            self.behave(**phases)
            with pytest.raises(RunFailed) if phases else nullcontext():
                self.run()
            self.behave()
            shutil.copytree(self.root, kept)
        else:
            shutil.copytree(kept, self.root, dirs_exist_ok=True)

    def start(self, *words: str) -> subprocess.Popen[str]:
        argv = [
            sys.executable,
            "-c",
            "from caffe_recipes.cli.main import main; main()",
            "run",
            str(self.recipe),
            *words,
        ]
        return subprocess.Popen(
            argv,
            preexec_fn=_listen_to_signals,
            cwd=self.root,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def call(self, *words: str) -> tuple[int, str, str]:
        """Call `caffe-recipes run` in this process; return its exit code and what it printed."""
        chain = partial(
            run_chain, connect=lambda name, copy_with: self.connect(name), start=self.start_trainer
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("caffe_recipes.run.runner.run_chain", chain)
            done = call_main("run", self.recipe, *words, cwd=self.root)
        return done.returncode, done.stdout, done.stderr

    def trained(self) -> list[str]:
        path = self.root / "trained.txt"
        return [line.split()[0] for line in path.read_text().splitlines()] if path.exists() else []

    def events(self, number: int = 1) -> list[dict[str, object]]:
        path = self.root / "runs" / f"small-{number}" / "journal.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]

    def state(self, number: int = 1) -> RunState:
        return load_journal(self.root / "runs" / f"small-{number}" / "journal.jsonl")

    def tree(self) -> dict[str, tuple[int, bytes]]:
        """Return everything on disk: mode and content by path."""
        return {
            str(path.relative_to(self.root)): (
                path.stat().st_mode,
                path.read_bytes() if path.is_file() else b"",
            )
            for path in sorted(self.root.rglob("*"))
        }

    def processes(self, named: str = "") -> list[int]:
        """The processes still running in this root, or those of them with this word in their name."""
        found = []
        for entry in Path("/proc").iterdir():
            try:  # A process may end between any two of these
                if not entry.name.isdigit() or (entry / "cwd").readlink() != self.root:
                    continue
                if named in (entry / "comm").read_text():
                    found.append(int(entry.name))
            except OSError:
                continue
        return found

    def trainer_threads(self) -> list[threading.Thread]:
        """The trainers of this root that are threads of the test."""
        return [thread for thread in threading.enumerate() if thread.name.startswith(str(self.root))]

    def wait_for_no_process(self, patience_s: float = 600) -> None:
        """Wait for hydra's proxies, which end shortly after mpiexec, and for trainers that are threads."""
        deadline = time.monotonic() + patience_s
        while (self.processes() or self.trainer_threads()) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert (self.processes(), self.trainer_threads()) == ([], [])


@pytest.fixture(scope="session")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder for the runs that tests share."""
    return tmp_path_factory.mktemp("begun")


@pytest.fixture
def place(tmp_path: Path, begun: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """Make a root where the small recipe runs; no process may be left in it afterwards."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in SLURM_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    root = tmp_path / "caffe root"
    root.mkdir()
    made = Place(root, begun=begun)
    made.recipe.write_text(RECIPE)
    _write_lmdb(root / "data" / "train_lmdb", 128)
    _write_lmdb(root / "data" / "test_lmdb", 16)
    place_program(root)
    yield made
    try:
        made.wait_for_no_process(60)  # a test that failed may have left a run that would never end
    finally:
        for process in made.processes():
            os.kill(process, signal.SIGKILL)


@pytest.fixture
def launching(place: Place) -> None:
    """Let the real mpiexec.hydra start the ranks of `Place.run`, as processes."""
    place.start_trainer = launch_trainer


@pytest.fixture
def shared(place: Place) -> Path:
    """Make a folder beside the root in which anybody can put files, as in /tmp."""
    folder = place.root.parent / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


@pytest.fixture
def write_lmdb() -> WriteLmdb:
    """Give a function that writes an LMDB of images with given labels."""
    return _write_lmdb
