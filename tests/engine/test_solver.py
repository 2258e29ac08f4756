"""The training loop: what is tested, displayed, averaged and written, and when."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.weights import load_weights
from caffe_recipes.engine.communication import Ranks
from caffe_recipes.engine.glog import Log
from caffe_recipes.engine.operators.data import RecordReader
from caffe_recipes.engine.settings import load_solver
from caffe_recipes.engine.signal_requests import SignalRequests
from caffe_recipes.engine.solver import RateSchedule, SmoothedLoss
from caffe_recipes.engine.subcommands import StartPoint, prepare_solver
from caffe_recipes.errors import RunFailed
from tests.engine.conftest import needs_gpu
from tests.engine.operators.test_data import QUIET

Run = Callable[..., tuple[int, str]]
Change = Callable[..., None]


def train(run: Run, *words: str) -> str:
    code, log = run("train", "-solver", "solver.prototxt", *words)
    assert code == 0, log[-1000:]
    return log


def messages(log: str, pattern: str) -> list[Any]:
    """Give what `re.findall` does: texts for one group of the pattern, tuples for several."""
    return re.findall(pattern, "\n".join(line.partition("] ")[2] for line in log.splitlines()), re.M)


def weights(path: Path) -> np.ndarray:
    net = pb.NetParameter.FromString(path.read_bytes())
    return np.concatenate([np.array(blob.data) for layer in net.layer for blob in layer.blobs])


ALL = ("batch_size: 4", "batch_size: 10")  # every iteration sees the whole LMDB


@pytest.mark.parametrize(
    ("error", "is_looked_for"),
    [
        (torch.OutOfMemoryError("full"), False),
        (
            RuntimeError("DefaultCPUAllocator: no memory: you tried to allocate 4096 bytes."),
            False,
        ),
        (MemoryError(), False),
        (ValueError("other"), True),
    ],
)
def test_no_second_pass_looks_for_the_layer_that_found_the_memory_full(
    case: Path, error: Exception, is_looked_for: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    param = load_solver("solver.prototxt", 0, [])
    solver = prepare_solver(param, "solver.prototxt", StartPoint(), Ranks(), SignalRequests(), QUIET, "cpu")
    looked_for: list[bool] = []

    def look() -> str:
        looked_for.append(True)
        return "layer 'ip'"

    class Loss:
        """A loss whose backward pass fails."""

        device = torch.device("cuda" if isinstance(error, torch.OutOfMemoryError) else "cpu")

        def backward(self) -> None:
            raise error

    monkeypatch.setattr(solver.net, "find_failing_layer", look)
    solver.net.pass_name = "iteration 7"
    with closing(solver), pytest.raises(RunFailed) as caught:
        solver._backward(Loss())  # type: ignore[arg-type]
    assert bool(looked_for) == is_looked_for
    assert caught.value.where == ("layer 'ip'" if is_looked_for else "net.prototxt: iteration 7")
    assert ("memory" in caught.value.what) != is_looked_for


def test_display_and_snapshot_come_at_their_iterations(case: Path, run: Run, change: Change) -> None:
    change(case / "solver.prototxt", ("max_iter: 6", "max_iter: 6 snapshot: 4"))
    log = train(run)
    assert messages(log, r"^Iteration (\d+), loss") == ["0", "2", "4", "6"]
    assert messages(log, r"^Iteration (\d+), lr") == ["0", "2", "4"]
    names = sorted(path.name for path in case.glob("run_*"))
    assert names == [f"run_iter_{i}.{suffix}" for i in (4, 6) for suffix in ("caffemodel", "solverstate")]


def test_the_time_spent_waiting_for_data_is_displayed(
    case: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = re.findall(r"Iteration (\d+), waited (\d+)% for data, (\d+)% for other ranks", train(run))
    assert [int(iteration) for iteration, _, _ in quick] == [2, 4]
    read = RecordReader._image

    def read_slowly(reader: RecordReader, record: int) -> object:
        time.sleep(0.02)
        return read(reader, record)

    monkeypatch.setattr(RecordReader, "_image", read_slowly)
    slow = re.findall(r"Iteration \d+, waited (\d+)% for data", train(run))
    assert min(map(int, slow)) > 50


def test_snapshot_after_train_can_be_switched_off(case: Path, run: Run, change: Change) -> None:
    change(case / "solver.prototxt", ("max_iter: 6", "max_iter: 6 snapshot_after_train: false"))
    train(run)
    assert not list(case.glob("run_*"))


def test_the_last_loss_is_shown_only_where_display_divides_max_iter(
    case: Path, run: Run, change: Change
) -> None:
    change(case / "solver.prototxt", ("max_iter: 6", "max_iter: 5"))
    assert messages(train(run), r"^Iteration (\d+), loss") == ["0", "2", "4"]


def test_training_resumes_as_if_it_had_not_stopped(case: Path, run: Run, change: Change) -> None:
    change(case / "net.prototxt", ALL)
    change(case / "solver.prototxt", ("max_iter: 6", "max_iter: 6 snapshot: 3 momentum: 0.9"))
    train(run)
    through = weights(case / "run_iter_6.caffemodel")
    (case / "run_iter_6.caffemodel").unlink()
    log = train(run, "-snapshot", "run_iter_3.solverstate")
    assert "SGDSolver: restoring history" in log
    assert messages(log, r"^Iteration (\d+), loss") == ["4", "6"]
    assert weights(case / "run_iter_6.caffemodel") == pytest.approx(through, abs=1e-7)


def test_snapshots_in_hdf5_resume_too(case: Path, run: Run, change: Change) -> None:
    settings = "max_iter: 6 snapshot: 3 momentum: 0.9 snapshot_format: HDF5"
    change(case / "net.prototxt", ALL)
    change(case / "solver.prototxt", ("max_iter: 6", settings))
    log = train(run)
    assert "Snapshotting to HDF5 file run_iter_3.caffemodel.h5" in log
    through = load_weights(case / "run_iter_6.caffemodel.h5")
    (case / "run_iter_6.caffemodel.h5").unlink()
    train(run, "-snapshot", "run_iter_3.solverstate.h5")
    again = load_weights(case / "run_iter_6.caffemodel.h5")
    for one, other in zip(through.layer, again.layer, strict=True):
        for blob, same in zip(one.blobs, other.blobs, strict=True):
            assert list(same.data) == pytest.approx(list(blob.data), abs=1e-7)


@pytest.mark.parametrize("kind", ["Adam", "AdaDelta", "RMSProp"])
def test_rules_with_two_histories_resume_too(case: Path, run: Run, change: Change, kind: str) -> None:
    change(case / "net.prototxt", ALL)
    settings = f'max_iter: 6 snapshot: 3 momentum: 0.9 delta: 0.001 base_lr: 0.01 type: "{kind}"'
    change(case / "solver.prototxt", ("max_iter: 6", settings), ("base_lr: 0.1\n", ""))
    train(run)
    state = pb.SolverState.FromString((case / "run_iter_3.solverstate").read_bytes())
    assert len(state.history) == 4
    through = weights(case / "run_iter_6.caffemodel")
    train(run, "-snapshot", "run_iter_3.solverstate")
    assert weights(case / "run_iter_6.caffemodel") == pytest.approx(through, abs=1e-6)


def test_the_state_that_caffe_writes_for_rmsprop_has_no_velocity_which_restarts(
    case: Path, run: Run, change: Change
) -> None:
    settings = 'max_iter: 6 snapshot: 3 momentum: 0.9 delta: 0.001 base_lr: 0.01 type: "RMSProp"'
    change(case / "solver.prototxt", ("max_iter: 6", settings), ("base_lr: 0.1\n", ""))
    train(run)
    state = pb.SolverState.FromString((case / "run_iter_3.solverstate").read_bytes())
    results = []
    for velocities in (
        [],
        [pb.BlobProto(shape=blob.shape, data=[0] * len(blob.data)) for blob in state.history[2:]],
    ):
        del state.history[2:]
        state.history.extend(velocities)
        (case / "run_iter_3.solverstate").write_bytes(state.SerializeToString())
        train(run, "-snapshot", "run_iter_3.solverstate")
        results.append(weights(case / "run_iter_6.caffemodel"))
    assert results[0] == pytest.approx(results[1], abs=1e-7)


def test_a_solverstate_of_another_type_is_refused(case: Path, run: Run, change: Change) -> None:
    train(run)
    change(case / "solver.prototxt", ("max_iter: 6", 'max_iter: 9 type: "Adam" momentum: 0.9'))
    code, log = run("train", "-solver", "solver.prototxt", "-snapshot", "run_iter_6.solverstate")
    assert code == 2
    assert "has 2 blobs of history, but this net and solver need 4" in log


def test_iter_size_combines_small_batches_into_a_large_one(case: Path, run: Run, change: Change) -> None:
    change(case / "net.prototxt", ALL)
    train(run)
    whole = weights(case / "run_iter_6.caffemodel")
    change(case / "net.prototxt", ("batch_size: 10", "batch_size: 5"))
    change(case / "solver.prototxt", ("max_iter: 6", "max_iter: 6 iter_size: 2"))
    train(run)
    assert weights(case / "run_iter_6.caffemodel") == pytest.approx(whole, abs=1e-6)


def test_the_displayed_loss_is_the_mean_of_the_last_iterations(case: Path, run: Run, change: Change) -> None:
    change(case / "solver.prototxt", ("display: 2", "display: 1"))
    plain = [float(x) for x in messages(train(run), r"^Iteration \d+, loss = (\S+)")]
    change(case / "solver.prototxt", ("display: 1", "display: 1 average_loss: 3"))
    smooth = [float(x) for x in messages(train(run), r"^Iteration \d+, loss = (\S+)")]
    means = [np.mean(plain[max(0, i - 2) : i + 1]) for i in range(7)]
    assert smooth == pytest.approx(means, rel=1e-4)


def test_the_mean_is_kept_in_float32_steps() -> None:
    smoothed = SmoothedLoss(1)
    assert smoothed.add(0.275269, 0) != 0.275269
    assert smoothed.add(1e8, 1) == 1e8


TESTED = "test_iter: 3 test_interval: 2 max_iter: 6"


def test_the_test_net_continues_where_the_last_test_ended(case: Path, run: Run, change: Change) -> None:
    change(case / "solver.prototxt", ("max_iter: 6", TESTED), ("base_lr: 0.1", "base_lr: 0"))
    log = train(run)
    losses = messages(log, r"Test net output #0: loss = (\S+)")
    assert messages(log, r"^Iteration (\d+), Testing net") == ["0", "2", "4", "6"]
    assert len(set(losses)) > 1  # 12 of 10 records each time, so every test starts two further on
    assert losses[0] != losses[1]


def test_the_first_test_can_be_left_out(case: Path, run: Run, change: Change) -> None:
    change(case / "solver.prototxt", ("max_iter: 6", TESTED + " test_initialization: false"))
    assert messages(train(run), r"^Iteration (\d+), Testing net") == ["2", "4", "6"]


def test_test_compute_loss_prints_the_loss_of_the_whole_net(case: Path, run: Run, change: Change) -> None:
    change(case / "solver.prototxt", ("max_iter: 6", TESTED + " test_compute_loss: true"))
    log = train(run)
    assert messages(log, r"^Test loss: (\S+)") == messages(log, r"Test net output #0: loss = (\S+)")


def test_several_test_nets_have_their_own_files_states_and_iterations(
    case: Path, run: Run, change: Change
) -> None:
    text = (case / "net.prototxt").read_text()
    rule = 'include { stage: "a" }'
    staged = f'layer {{ name: "top" type: "Accuracy" bottom: "ip" bottom: "label" top: "top" {rule} }}'
    (case / "net.prototxt").write_text(text + staged)
    (case / "other.prototxt").write_text(text)
    settings = (
        'max_iter: 6 test_net: "other.prototxt" test_iter: 1 test_iter: 2 test_interval: 6 '
        'test_state { stage: "b" } test_state { stage: "a" }'
    )
    change(case / "solver.prototxt", ("max_iter: 6", settings))
    log = train(run)
    assert messages(log, r"^Iteration (\d+), Testing net \(#(\d)\)") == [
        ("0", "0"), ("0", "1"), ("6", "0"), ("6", "1"),
    ]  # fmt: skip
    assert len(messages(log, r"Test net output #1: (top) =")) == 2


def test_train_net_and_inline_nets_are_taken(case: Path, run: Run, change: Change) -> None:
    change(case / "solver.prototxt", ('net: "net.prototxt"', 'train_net: "net.prototxt"'))
    by_file = messages(train(run), r"^Iteration \d+, loss = (\S+)")
    inline = (case / "net.prototxt").read_text()
    change(case / "solver.prototxt", ('train_net: "net.prototxt"', f"net_param {{ {inline} }}"))
    assert messages(train(run), r"^Iteration \d+, loss = (\S+)") == by_file


def test_flags_choose_level_and_stages_of_the_train_net(case: Path, run: Run, change: Change) -> None:
    change(case / "net.prototxt", ('name: "loss"', 'name: "loss" include { stage: "deep" min_level: 2 }'))
    log = train(run, "-stage", "wide,deep", "-level", "2")
    assert messages(log, r"Train net output #0: (loss) =")
    log = train(run)
    assert not messages(log, r"Train net output #0: (loss) =")


def test_old_solver_types_are_numbers(case: Path, run: Run, change: Change) -> None:
    change(case / "solver.prototxt", ("max_iter: 6", "max_iter: 6 solver_type: ADAM momentum: 0.9"))
    train(run)
    assert len(pb.SolverState.FromString((case / "run_iter_6.solverstate").read_bytes()).history) == 4


def test_disabled_update_trains_nothing(case: Path, run: Run, change: Change) -> None:
    change(case / "solver.prototxt", ("max_iter: 6", "max_iter: 6 snapshot: 3 disabled_update: true"))
    train(run)
    assert (weights(case / "run_iter_3.caffemodel") == weights(case / "run_iter_6.caffemodel")).all()


def test_weights_can_come_from_several_files(case: Path, run: Run, change: Change) -> None:
    train(run)
    model = pb.NetParameter.FromString((case / "run_iter_6.caffemodel").read_bytes())
    (case / "same.caffemodel").write_bytes(model.SerializeToString())
    log = train(run, "-weights", "run_iter_6.caffemodel,same.caffemodel")
    assert messages(log, r"^Finetuning from (.*)") == ["run_iter_6.caffemodel", "same.caffemodel"]


def test_the_clipped_norm_is_logged(case: Path, run: Run, change: Change) -> None:
    change(case / "solver.prototxt", ("max_iter: 6", "max_iter: 6 clip_gradients: 0.001"))
    assert len(messages(train(run), r"^Gradient clipping")) == 6


def test_plateau_steps_when_the_loss_has_not_fallen_for_its_window() -> None:
    solver = pb.SolverParameter(lr_policy="plateau", base_lr=1, gamma=0.5, plateau_winsize=[3, 2])
    schedule = RateSchedule(solver, Log(enabled=False))
    losses = [5.0, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0, 3.0, 3.0, 3.0, 3.0]
    rates = [schedule.rate(iteration, loss) for iteration, loss in enumerate(losses)]
    assert rates == [1, 1, 1, 1, 0.5, 0.5, 0.25, 0.25, 0.25, 0.25, 0.25]
    assert schedule.state(11).current_step == 2


def test_multistep_logs_when_it_steps() -> None:
    import io

    stream = io.StringIO()
    solver = pb.SolverParameter(lr_policy="multistep", base_lr=1, gamma=0.1, stepvalue=[2, 4])
    schedule = RateSchedule(solver, Log(stream=stream))
    assert [schedule.rate(i, 0) for i in range(5)] == pytest.approx([1, 1, 0.1, 0.1, 0.01])
    assert re.findall(r"Iteration (\d), step = (\d)", stream.getvalue()) == [("2", "1"), ("4", "2")]


NORMALISED = (
    'layer { name: "bn" type: "BatchNorm" bottom: "data" top: "bn" }'
    'layer { name: "ip" type: "InnerProduct" bottom: "bn"'
)


def test_statistics_without_params_of_their_own_decay_as_any_blob(
    case: Path, run: Run, change: Change
) -> None:
    """BatchNorm's blobs have lr_mult 1 unless the net says 0: no gradient, but weight decay."""
    change(case / "net.prototxt", ('layer { name: "ip" type: "InnerProduct" bottom: "data"', NORMALISED))
    change(case / "solver.prototxt", ("max_iter: 6", "max_iter: 2 weight_decay: 0.5"), ("display: 2", ""))
    train(run)
    net = pb.NetParameter.FromString((case / "run_iter_2.caffemodel").read_bytes())
    factor = next(layer for layer in net.layer if layer.name == "bn").blobs[2].data[0]
    kept = 1 - 0.1 * 0.5  # of each iteration's update
    assert factor == pytest.approx((kept * 0.999 + 1) * kept, rel=1e-5)


def test_the_options_of_memory_and_precision_train(case: Path, run: Run, change: Change) -> None:
    change(case / "net.prototxt", ('layer { name: "ip" type: "InnerProduct" bottom: "data"', NORMALISED))
    train(run)
    plain = weights(case / "run_iter_6.caffemodel")
    train(run, "--checkpoint-activations")
    assert np.array_equal(weights(case / "run_iter_6.caffemodel"), plain)
    train(run, "--precision", "bf16")
    assert 0 < np.abs(weights(case / "run_iter_6.caffemodel") - plain).max() < 0.05


@needs_gpu
def test_a_run_resumed_on_a_gpu_ends_as_the_undisturbed_one(case: Path, run: Run, change: Change) -> None:
    change(case / "net.prototxt", ALL)
    change(case / "solver.prototxt", ("solver_mode: CPU", "momentum: 0.9 snapshot: 3 solver_mode: GPU"))
    assert "Use GPU with device ID 0" in train(run)
    undisturbed = weights(case / "run_iter_6.caffemodel")
    (case / "run_iter_6.caffemodel").unlink()
    train(run, "-snapshot", "run_iter_3.solverstate")
    assert np.array_equal(weights(case / "run_iter_6.caffemodel"), undisturbed)


@needs_gpu
def test_two_ranks_that_share_a_gpu_end_as_one_rank(
    case: Path, run: Run, change: Change, mpiexec: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    change(case / "net.prototxt", ALL)
    change(case / "solver.prototxt", ("solver_mode: CPU", "solver_mode: GPU"))
    train(run)
    alone = weights(case / "run_iter_6.caffemodel")
    change(case / "net.prototxt", ("batch_size: 10", "batch_size: 5"))
    done = mpiexec(2, case, "train", "-solver", "solver.prototxt")
    assert done.returncode == 0, done.stderr[-1000:]
    assert np.abs(weights(case / "run_iter_6.caffemodel") - alone).max() < 1e-6


@needs_gpu
def test_a_gpu_tests_and_predicts_as_the_cpu(case: Path, run: Run) -> None:
    train(run)
    common = ("-model", "net.prototxt", "-weights", "run_iter_6.caffemodel")
    logs, scores = [], []
    for flags in ((), ("-gpu", "0")):
        code, log = run("test", *common, "-iterations", "3", *flags)
        assert code == 0, log[-1000:]
        logs.append([float(value) for value in messages(log, r"loss = ([0-9.e-]+)")])
        assert run("predict", *common, "-out", "scores.npz", *flags)[0] == 0
        scores.append(np.load("scores.npz")["scores"])
    assert logs[0] == pytest.approx(logs[1], abs=1e-5)
    assert np.abs(scores[0] - scores[1]).max() < 1e-5


LOG = 'layer { name: "log" type: "Log" bottom: "ip" top: "log" } '
FIRST = "is the first whose output is not finite"
NO_UPDATE = "check the data, the layers and the starting weights, since no update has been made yet"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            (
                "net",
                ('layer { name: "loss"', LOG + 'layer { name: "loss"'),
                ('Loss" bottom: "ip"', 'Loss" bottom: "log"'),
            ),
            f"iteration 0: the loss is nan: layer 'log' (Log) {FIRST}; {NO_UPDATE}",
        ),
        (
            ("net", ("scale: 0.01", "scale: 1e38")),
            f"iteration 0: the loss is nan: layer 'data' (Data) {FIRST}; "
            "check what it reads, and its settings",
        ),
        (
            ("solver", ("base_lr: 0.1", "base_lr: 1e38")),
            f"iteration 1: the loss is nan: layer 'ip' (InnerProduct) {FIRST}; "
            "lower the learning rate, or check the data",
        ),
    ],
)
def test_a_loss_that_is_not_finite_is_explained_by_the_first_layer_that_is_not(
    case: Path, run: Run, change: Change, changes: tuple[Any, ...], message: str
) -> None:
    name, *pairs = changes
    change(case / f"{name}.prototxt", *pairs)
    code, log = run("train", "-solver", "solver.prototxt")
    assert (code, log.splitlines()[-1]) == (3, f"caffe-torch: {message}; Caffe would continue and return 0")


def test_the_layer_is_looked_for_in_the_batch_that_failed(case: Path, run: Run, change: Change) -> None:
    rows = np.zeros((6, 16), np.float32)
    rows[3, 5] = np.nan
    with h5py.File(case / "rows.h5", "w") as file:
        file["data"], file["label"] = rows, np.zeros(6, np.float32)
    (case / "list.txt").write_text("rows.h5")
    data = 'layer { name: "rows" type: "HDF5Data" top: "data" top: "label" '
    data += 'hdf5_data_param { source: "list.txt" batch_size: 2 } }'
    text = (case / "net.prototxt").read_text()
    (case / "net.prototxt").write_text(data + text[text.index('layer { name: "ip"') :])
    code, log = run("train", "-solver", "solver.prototxt")
    assert code == 3
    assert "iteration 1: the loss is nan: layer 'rows' (HDF5Data) is the first" in log
    assert "learning rate" not in log.splitlines()[-1]
