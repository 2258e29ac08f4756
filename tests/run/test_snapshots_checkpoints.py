"""Checkpoints of a real training, by caffe-torch: fetched, placed where they were, resumed from."""

from __future__ import annotations

import contextlib
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.datums import write_datums
from caffe_recipes.caffe.prototxt import parse_prototxt
from caffe_recipes.cluster.hosts import LocalHost
from caffe_recipes.errors import PrototxtError, RunFailed, WeightsError
from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.run.caffe import Caffe, render_checkpoint_solver, require_caffe
from caffe_recipes.run.snapshots import choose_interval, drop_checkpoints, place_checkpoint
from caffe_recipes.run.trainer import Checkpoint, Training

NET = """name: "tiny"
layer { name: "data" type: "Data" top: "data" top: "label"
  data_param { source: "lmdb" batch_size: 4 backend: LMDB } transform_param { scale: 0.01 } }
layer { name: "bn" type: "BatchNorm" bottom: "data" top: "bn" }
layer { name: "ip" type: "InnerProduct" bottom: "bn" top: "ip"
  inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""
SOLVER = """# one snapshot, at the end
net: "net.prototxt"
base_lr: 0.1
lr_policy: "fixed"
momentum: 0.9
max_iter: 6 # all
snapshot_prefix: "tmp/run"
solver_mode: CPU
random_seed: 1
"""


@dataclass
class Root:
    """A Caffe root where a phase of six iterations has been trained, with a snapshot after every two.

    Two iterations are an epoch: a resumed training reads from the first record on.
    """

    path: Path
    caffe: Caffe
    training: Training
    host: LocalHost = field(default_factory=lambda: LocalHost("n1"))

    def files(self) -> dict[str, str]:
        return {self.caffe.recipe.net_path(self.training.net): (self.path / "net.prototxt").read_text()}

    def written(self, iteration: int, suffix: str = "solverstate") -> Path:
        return self.path / f"tmp/run_iter_{iteration}.{suffix}"

    def fetch(self, iteration: int = 4) -> Checkpoint:
        return self.fetch_state(f"tmp/run_iter_{iteration}.solverstate")

    def fetch_state(self, state: str) -> Checkpoint:
        folder = "runs/x-1/checkpoints"
        return self.caffe.models.fetch_checkpoint(
            self.host, self.path, self.files(), self.training, state, folder
        )

    def verify(self, checkpoint: Checkpoint) -> None:
        self.caffe.models.verify_checkpoint(self.path, self.files(), self.training.net, checkpoint)

    def kept(self) -> list[str]:
        folder = self.path / "runs/x-1/checkpoints"
        return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def train(*words: str) -> None:
    main = pytest.importorskip("caffe_recipes.engine.main", reason="the extra `engine` is not installed").main
    before = [(number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGHUP)]
    assert main(["train", *words]) == 0
    for number, handler in before:
        signal.signal(number, handler)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train the phase once; its tests have copies."""
    path = tmp_path_factory.mktemp("trained")
    (path / "tmp").mkdir()
    datums = (
        pb.Datum(channels=1, height=4, width=4, data=bytes(range(n, n + 16)), label=n % 3) for n in range(8)
    )
    write_datums(path / "lmdb", ((f"{number}", datum) for number, datum in enumerate(datums)))
    (path / "net.prototxt").write_text(NET)
    (path / "solver.prototxt").write_text(render_checkpoint_solver(SOLVER, 2))
    with contextlib.chdir(path):
        train("-solver", "solver.prototxt")
    return path


@pytest.fixture
def root(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Root]:
    path = tmp_path / "root"
    shutil.copytree(trained, path)
    monkeypatch.chdir(path)
    caffe = Caffe(require_caffe(load_recipe("digits-local"), path))
    yield Root(path, caffe, replace(caffe.steps("runs/x-1")[0], phase="init", last_iter=6))
    assert not list(path.rglob("*.part*"))


def test_a_phase_is_resumed_from_a_checkpoint_to_the_snapshot_of_an_undisturbed_one(root: Root) -> None:
    checkpoint = root.fetch()
    end = root.written(6, "caffemodel").read_bytes()
    for path in (root.path / "tmp").iterdir():
        path.unlink()
    root.verify(checkpoint)
    place_checkpoint([LocalHost(f"n{number}") for number in range(3)], root.path, checkpoint)
    assert sorted(path.name for path in (root.path / "tmp").iterdir()) == [
        "run_iter_4.caffemodel",
        "run_iter_4.solverstate",
    ]
    train("-solver", "solver.prototxt", "-snapshot", checkpoint.state_path)
    assert root.written(6, "caffemodel").read_bytes() == end


def test_a_checkpoint_names_where_it_is_kept_and_where_ranks_read_it(root: Root) -> None:
    checkpoint = root.fetch(2)
    assert (checkpoint.phase, checkpoint.iteration) == ("init", 2)
    assert checkpoint.state == "runs/x-1/checkpoints/run_iter_2.solverstate"
    assert checkpoint.state_path == str(root.written(2))
    assert checkpoint.model_path == str(root.written(2, "caffemodel"))
    assert (root.path / checkpoint.model).read_bytes() == root.written(2, "caffemodel").read_bytes()
    assert root.kept() == ["run_iter_2.caffemodel", "run_iter_2.solverstate"]
    assert root.fetch(2) == checkpoint


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def edit_state(change: Callable[[pb.SolverState], object]) -> Callable[[Path], None]:
    def edit(path: Path) -> None:
        state = pb.SolverState.FromString(path.read_bytes())
        change(state)
        path.write_bytes(state.SerializeToString())

    return edit


def spoil(state: pb.SolverState) -> None:
    state.history[0].data[0] = float("nan")


SPOILT: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "no state": ("solverstate", Path.unlink, "the checkpoint is missing"),
    "no model": ("caffemodel", Path.unlink, "the checkpoint is missing"),
    "half a state": ("solverstate", truncate, "is not a solverstate, or a truncated one"),
    "half a model": ("caffemodel", truncate, "is not a caffemodel, or a truncated one"),
    "an empty model": ("caffemodel", lambda path: path.write_bytes(b""), "the checkpoint is empty"),
    "a nan": ("solverstate", edit_state(spoil), "history 0 has 1 of .* values that are not finite"),
    "too few": (
        "solverstate",
        edit_state(lambda s: s.history.pop()),
        "4 blobs of history, but the net has 5",
    ),
    "another's": (
        "solverstate",
        edit_state(lambda state: setattr(state, "learned_net", "/tmp/y_iter_4.caffemodel")),
        "names another caffemodel, /tmp/y_iter_4.caffemodel",
    ),
    "misnamed": (
        "solverstate",
        edit_state(lambda state: setattr(state, "iter", 5)),
        "is from iteration 5, but its name says 4",
    ),
    "too late": (
        "solverstate",
        edit_state(lambda state: setattr(state, "iter", 7)),
        "its iteration is 7; expected 1 to 6",
    ),
}


@pytest.mark.parametrize("what", SPOILT)
def test_nothing_is_kept_of_a_checkpoint_with_a_damaged_file(root: Root, what: str) -> None:
    suffix, spoil, message = SPOILT[what]
    path = root.written(4, suffix)
    spoil(path)
    with pytest.raises(
        RunFailed, match=f"^n1:{path}: the checkpoint .*{message.removeprefix('the checkpoint ')}"
    ) as caught:
        root.fetch()
    assert "\n" not in str(caught.value)
    assert root.kept() == []


def test_a_file_not_named_like_a_solverstate_is_not_fetched(root: Root) -> None:
    with pytest.raises(RunFailed, match="does not have the name of a Caffe solverstate"):
        root.fetch_state("tmp/run_iter_4.caffemodel")


@pytest.mark.parametrize("suffix", ["solverstate", "caffemodel"])
def test_a_kept_file_that_has_changed_is_not_resumed_from(root: Root, suffix: str) -> None:
    checkpoint = root.fetch()
    kept = root.path / f"runs/x-1/checkpoints/run_iter_4.{suffix}"
    truncate(kept)
    with pytest.raises(
        WeightsError, match="is no longer the checkpoint of phase init at iteration 4; resume"
    ):
        root.verify(checkpoint)
    kept.unlink()
    with pytest.raises(
        WeightsError, match="the checkpoint of phase init at iteration 4 cannot be read: No such"
    ):
        root.verify(checkpoint)


def test_older_checkpoints_go_here_and_there_but_for_what_is_still_needed(root: Root) -> None:
    first, second, last = (root.fetch(iteration) for iteration in (2, 4, 6))
    drop_checkpoints([root.host], root.path, second, [first, second], spared=["tmp/run_iter_2.caffemodel"])
    assert {name.partition(".")[0] for name in root.kept()} == {"run_iter_4", "run_iter_6"}
    assert not root.written(2).exists()
    assert root.written(2, "caffemodel").exists()
    assert root.written(4).exists()
    root.written(6).write_bytes(b"another state")
    drop_checkpoints([root.host], root.path, None, [second, replace(last), first], ())
    assert root.kept() == []
    assert sorted(path.name for path in (root.path / "tmp").iterdir()) == ["run_iter_6.solverstate"]


@pytest.mark.parametrize(
    ("text", "becomes"),
    [
        ("max_iter: 9", "max_iter: 9\nsnapshot: 3\n"),
        ("max_iter: 9\n", "max_iter: 9\nsnapshot: 3\n"),
        ("snapshot:9 # all\n\n# end\n", "snapshot:3 # all\n\n# end\n"),
        (
            "# snapshot: 1\nsnapshot : # of\n 0x9;max_iter: 9",
            "# snapshot: 1\nsnapshot : # of\n 3;max_iter: 9",
        ),
        ('snapshot_prefix: "snapshot: 8" snapshot: 9', 'snapshot_prefix: "snapshot: 8" snapshot: 3'),
        ("\ufeffsnapshot: 9", "snapshot: 3"),
    ],
)
def test_only_the_interval_of_a_solver_changes(text: str, becomes: str) -> None:
    assert render_checkpoint_solver(text, 3) == becomes


def test_the_checkpoint_solver_differs_only_in_its_snapshot_interval() -> None:
    changed = parse_prototxt(render_checkpoint_solver(SOLVER, 2), pb.SolverParameter)
    assert changed.snapshot == 2
    changed.ClearField("snapshot")
    assert changed == parse_prototxt(SOLVER, pb.SolverParameter)
    with pytest.raises(PrototxtError):
        render_checkpoint_solver("no solver", 2)


@pytest.mark.parametrize(
    ("every", "needed", "interval"),
    [(500, (), 500), (500, (7638,), 402), (4, (6, 9), 3), (10, (6, 9), 3), (2, (9,), 1), (9, (9,), 9)],
)
def test_iterations_that_later_phases_need_get_their_snapshots(
    every: int, needed: tuple[int, ...], interval: int
) -> None:
    assert choose_interval(every, needed) == interval
