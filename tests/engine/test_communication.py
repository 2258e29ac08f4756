"""Several ranks under a real mpiexec.hydra."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TextIO

import numpy as np
import pytest

from caffe_recipes.caffe import pb

Launch = Callable[..., subprocess.CompletedProcess[str]]
Change = Callable[..., None]
BIN = Path(sys.executable).parent

# Prints what a rank listens on between its start and the first tensor, without a pickle.
RENDEZVOUS = """
import json, os
from pathlib import Path
from mpi4py import MPI
from caffe_recipes.engine.communication import join_ranks

def no_pickle(*_):
    raise AssertionError("pickled")

def listening():
    mine = {os.readlink(fd) for fd in Path("/proc/self/fd").iterdir() if os.path.lexists(fd)}
    rows = [row.split() for name in ("tcp", "tcp6") for row in Path("/proc/net", name).open()]
    return {row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in mine}

MPI.pickle.__init__(no_pickle, no_pickle)
world = join_ranks(os.environ)
before = listening()
world.connect("cpu")
opened = listening() - before
import torch
value = torch.full((2,), float(world.rank + 1))
world.sum(value)()
world.raise_if_any_failed(None)
line = json.dumps([sorted(opened), value.tolist(), world.entropy]) + "\\n"
os.write(1, line.encode())  # at once: hydra mixes the ranks' pieces
"""
# One rank prints why, and aborts; the other waits for it in MPI.
ABORT = """
import os, sys
from mpi4py import MPI
from caffe_recipes.engine.communication import join_ranks
world = join_ranks(os.environ)
if world.rank == 1:
    print("why: " + "x" * 3000, file=sys.stderr)
    world.abort(2)
world.raise_if_any_failed(None)
"""
# Trains, but rank 0 takes long to print the line that says why it failed.
SLOW_TO_SAY = """
import os, sys, time
from caffe_recipes.engine.main import main

class SlowStream:
    def __getattr__(self, name):
        return getattr(sys.__stderr__, name)

    def write(self, text):
        if text.startswith("caffe-torch"):
            time.sleep(1)
        return sys.__stderr__.write(text)

if os.environ["PMI_RANK"] == "0":
    sys.stderr = SlowStream()
sys.argv = ["caffe-torch", "train", "-solver", "solver.prototxt"]
sys.exit(main())
"""


def launch(program: str, ranks: int, **environment: str) -> subprocess.CompletedProcess[str]:
    argv = [str(BIN / "mpiexec.hydra"), "-n", str(ranks), sys.executable, "-c", program]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PMI", "GLOO"))}
    return subprocess.run(argv, env=clean | environment, capture_output=True, text=True, timeout=120)


def torchrun(case: Path, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [str(BIN / "torchrun"), "--standalone", "--nproc-per-node", "2", "--no-python"]
    argv += [str(BIN / "caffe-torch"), *words]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PMI", "GLOO"))}
    clean["TMPDIR"] = str(case)  # where torchrun leaves the folder of its logs
    return subprocess.run(argv, cwd=case, env=clean, capture_output=True, text=True, timeout=240)


def weights(path: Path) -> np.ndarray:
    net = pb.NetParameter.FromString(path.read_bytes())
    return np.concatenate([np.array(blob.data) for layer in net.layer for blob in layer.blobs])


def losses_in(log: str) -> list[float]:
    """Give all losses of training displayed: of iterations, and of the net's outputs."""
    return [float(found) for found in re.findall(r"(?:Iteration \d+,|output #0:) loss = (\S+)", log)]


def own_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("caffe-torch")]


def test_ranks_average_their_gradients_and_rank_0_logs_and_writes(
    case: Path, run: Callable[..., tuple[int, str]], mpiexec: Launch, change: Change
) -> None:
    change(case / "net.prototxt", ("batch_size: 4", "batch_size: 6"))
    tested = "max_iter: 6 momentum: 0.9 snapshot: 3 test_iter: 2 test_interval: 3"
    change(case / "solver.prototxt", ("max_iter: 6", tested))

    def resume_alone() -> np.ndarray:
        assert run("train", "-solver", "solver.prototxt", "-snapshot", "run_iter_3.solverstate")[0] == 0
        return weights(case / "run_iter_6.caffemodel")

    done = mpiexec(1, case, "train", "-solver", "solver.prototxt")
    assert done.returncode == 0, done.stderr
    alone, losses, tests = weights(case / "run_iter_6.caffemodel"), losses_in(done.stderr), "Test net output"
    resumed = resume_alone()
    change(case / "net.prototxt", ("batch_size: 6", "batch_size: 2"))
    done = mpiexec(3, case, "train", "-solver", "solver.prototxt")
    assert done.returncode == 0, done.stderr
    assert weights(case / "run_iter_6.caffemodel") == pytest.approx(alone, abs=1e-6)
    assert losses_in(done.stderr) == pytest.approx(losses, abs=1e-5)
    assert (done.stderr.count("Iteration 2, loss = "), done.stderr.count(tests)) == (1, 3)
    assert "] Training with 3 ranks, global batch size 6\n" in done.stderr
    assert done.stderr.count("Optimization Done.") == 2  # the solver's and the tool's
    change(case / "net.prototxt", ("batch_size: 2", "batch_size: 6"))
    assert resume_alone() == pytest.approx(resumed, abs=1e-6)


NORMALISED = (
    'layer { name: "first" type: "InnerProduct" bottom: "data" top: "first"'
    '  inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }'
    'layer { name: "bn" type: "BatchNorm" bottom: "first" top: "bn" }'
    'layer { name: "sc" type: "Scale" bottom: "bn" top: "bn" scale_param { bias_term: true } }'
    'layer { name: "ip" type: "InnerProduct" bottom: "bn"'
)


def test_ranks_with_the_statistics_of_all_train_as_one_rank_does(
    case: Path, run: Callable[..., tuple[int, str]], mpiexec: Launch, change: Change
) -> None:
    change(case / "net.prototxt", ('layer { name: "ip" type: "InnerProduct" bottom: "data"', NORMALISED))
    change(case / "net.prototxt", ("batch_size: 4", "batch_size: 10"))
    assert run("train", "-solver", "solver.prototxt")[0] == 0
    alone = weights(case / "run_iter_6.caffemodel")
    change(case / "net.prototxt", ("batch_size: 10", "batch_size: 5"))
    apart = []
    for words in ((), ("--sync-bn",)):
        done = mpiexec(2, case, "train", "-solver", "solver.prototxt", *words)
        assert done.returncode == 0, done.stderr
        apart.append(np.abs(weights(case / "run_iter_6.caffemodel") - alone).max())
    assert apart[1] < 2e-5 < apart[0]


@pytest.mark.slow
def test_torchrun_trains_the_same_weights_as_mpiexec(case: Path, mpiexec: Launch) -> None:
    done = mpiexec(2, case, "train", "-solver", "solver.prototxt")
    assert done.returncode == 0, done.stderr
    by_mpi = (case / "run_iter_6.caffemodel").read_bytes()
    done = torchrun(case, "train", "-solver", "solver.prototxt")
    assert done.returncode == 0, done.stderr
    assert (case / "run_iter_6.caffemodel").read_bytes() == by_mpi
    assert done.stderr.count("Iteration 2, loss = ") == 1


@pytest.mark.slow
def test_a_failure_under_torchrun_is_reported_once(case: Path, change: Change) -> None:
    change(case / "solver.prototxt", ('"fixed"', '"cosine"'))
    done = torchrun(case, "train", "-solver", "solver.prototxt")
    assert done.returncode != 0
    assert len(own_lines(done.stderr)) == 1


@pytest.mark.slow
def test_ranks_without_a_seed_start_from_the_same_weights(
    case: Path, mpiexec: Launch, change: Change
) -> None:
    change(case / "solver.prototxt", ("random_seed: 1", ""), ("max_iter: 6", "max_iter: 6 iter_size: 2"))
    done = mpiexec(2, case, "train", "-solver", "solver.prototxt")
    assert done.returncode == 0, done.stderr


def test_bad_input_is_reported_once_before_any_rank_ends(case: Path, change: Change) -> None:
    change(case / "solver.prototxt", ('"fixed"', '"cosine"'))
    done = launch(SLOW_TO_SAY, 2)
    assert done.returncode == 2
    assert len(own_lines(done.stderr)) == 1
    assert "Traceback" not in done.stderr


def test_a_bad_record_of_one_rank_ends_all_and_is_named(
    case: Path, mpiexec: Launch, change: Change, raw: Callable[..., None]
) -> None:
    raw(case / "odd", [0, 1, 0, 1, 0, 7])  # rank 1 reads records 1, 3, 5
    change(case / "net.prototxt", ('source: "lmdb"', 'source: "odd"'), ("batch_size: 4", "batch_size: 1"))
    done = mpiexec(2, case, "train", "-solver", "solver.prototxt")
    assert done.returncode == 2
    (line,) = own_lines(done.stderr)
    assert "odd: record '00000005_r5' has label 7" in line


@pytest.mark.slow
def test_sigint_stops_all_ranks_after_the_same_iteration(case: Path, change: Change) -> None:
    change(case / "solver.prototxt", ("max_iter: 6", "max_iter: 1000000"), ("display: 2", "display: 50"))
    argv = [
        str(BIN / "mpiexec.hydra"),
        "-n",
        "2",
        str(BIN / "caffe-torch"),
        "train",
        "-solver",
        "solver.prototxt",
    ]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PMI")}
    with (case / "log").open("w") as log:
        process = subprocess.Popen(argv, env=environment, stderr=log, stdout=log, start_new_session=True)
        try:
            for _ in range(600):
                if "Iteration 50, loss" in (case / "log").read_text():
                    break
                time.sleep(0.1)
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
        finally:
            process.kill()
            process.wait()
    assert "Optimization stopped early." in (case / "log").read_text()
    assert len(list(case.glob("run_iter_*.solverstate"))) == 1


def start_ranks(case: Path, by_hydra: bool, log: TextIO) -> list[subprocess.Popen[bytes]]:
    """Start two ranks that train for long: under mpiexec, or alone with torchrun's variables."""
    train = [str(BIN / "caffe-torch"), "train", "-solver", "solver.prototxt"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PMI", "GLOO"))}
    if by_hydra:
        argv = [str(BIN / "mpiexec.hydra"), "-n", "2", *train]
        return [subprocess.Popen(argv, cwd=case, env=clean, stderr=log, stdout=log, start_new_session=True)]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    meeting = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [
        subprocess.Popen(train, cwd=case, env=clean | meeting | {"RANK": rank}, stderr=log, stdout=log)
        for rank in "01"
    ]


def trainings_in(case: Path) -> list[int]:
    """Return the pids of the caffe-torch processes that train in a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (process / "cmdline").read_bytes().split(b"\0")
            if (process / "cwd").resolve() == case.resolve() and str(BIN / "caffe-torch").encode() in words[
                :2
            ]:
                found.append(int(process.name))
    return sorted(found)


@pytest.mark.slow
@pytest.mark.parametrize("by_hydra", [True, False])
@pytest.mark.parametrize("killed", [0, 1])
def test_ranks_end_soon_after_one_is_killed(case: Path, change: Change, by_hydra: bool, killed: int) -> None:
    change(case / "solver.prototxt", ("max_iter: 6", "max_iter: 1000000"), ("display: 2", "display: 50"))
    with (case / "log").open("w") as log:
        started = start_ranks(case, by_hydra, log)
        try:
            wait_for(lambda: "Iteration 50, loss" in (case / "log").read_text(), 120)
            victim = started[killed].pid if not by_hydra else trainings_in(case)[killed]
            os.kill(victim, signal.SIGKILL)
            wait_for(lambda: all(process.poll() is not None for process in started), 10)
            wait_for(lambda: not trainings_in(case), 10)
            assert all(process.returncode for process in started)
        finally:
            for process in started:
                process.kill()
                process.wait()
    lost = own_lines((case / "log").read_text())
    assert by_hydra or (len(lost) == 1 and "lost the connection to the other ranks" in lost[0])
    assert "Traceback" not in (case / "log").read_text()


def wait_for(condition: Callable[[], bool], limit_s: float) -> None:
    until = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.promise("ranks meet over no open door")
@pytest.mark.slow
def test_ranks_meet_without_a_store_that_others_can_reach_and_without_a_pickle() -> None:
    done = launch(RENDEZVOUS, 3)
    assert done.returncode == 0, done.stderr
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    assert [[at.split(":")[0] for at in opened] for opened, _, _ in reports] == [
        ["0100007F"]
    ] * 3  # gloo's own
    assert [summed for _, summed, _ in reports] == [[6.0, 6.0]] * 3
    assert len({entropy for _, _, entropy in reports}) == 1


@pytest.mark.promise("ranks meet over no open door")
@pytest.mark.slow
def test_gloo_takes_one_interface_alone() -> None:
    done = launch(RENDEZVOUS, 2, GLOO_SOCKET_IFNAME="lo,lo")
    assert done.returncode != 0
    assert "GLOO_SOCKET_IFNAME lists several network interfaces, lo,lo" in done.stderr


def test_the_output_of_a_rank_is_read_before_its_abort_is_handled() -> None:
    for _ in range(5):
        done = launch(ABORT, 2)
        assert done.returncode == 2
        assert f"why: {'x' * 3000}\n" in done.stderr
