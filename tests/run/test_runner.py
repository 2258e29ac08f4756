from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from caffe_recipes.cluster.commands import COMMAND_S, Completed
from caffe_recipes.cluster.hosts import LocalHost, open_host
from caffe_recipes.errors import InputError, RunFailed, WeightsError
from tests.stand_in_host import answer_call

if TYPE_CHECKING:
    from tests.run.conftest import Place


@pytest.mark.usefixtures("launching")
def test_each_phase_starts_from_the_verified_snapshot_of_the_one_before(place: Place) -> None:
    state = place.run()
    assert (place.root / "trained.txt").read_text().splitlines() == [
        "init -",
        "cyc1 runs/small-1/snapshots/small_init_iter_8.caffemodel",
        "last runs/small-1/snapshots/small_cyc1_iter_6.caffemodel",
    ]
    assert list(state.finished) == ["init", "cyc1", "last"]
    assert state.outputs == {"loss": 0.25, "loss3/top-1": 0.75, "loss3/top-5": 0.9375}
    assert state.launch is None


def test_a_run_prints_its_steps_and_ends_with_a_table(place: Place) -> None:
    place.run()
    output = place.output.getvalue()
    assert "\x1b" not in output
    assert "init: 8 iterations from the nets' fillers" in output
    assert "staged data/train_lmdb" in output
    table = output[output.index("\nphase ") + 1 :].splitlines()
    assert table[0].split() == ["phase", "iterations", "epochs", "time", "images/s", "loss"]
    assert table[1].split()[:3] == ["init", "8", "4.00"]
    assert table[4].split()[:3] == ["all", "18", "9.00"]
    assert "loss3/top-1: 75.00% (reported: 76.3%)" in table
    assert table[-1] == "model: runs/small-1/snapshots/small_last_iter_4.caffemodel"


def test_an_lmdb_is_staged_once_and_for_other_runs_too(place: Place) -> None:
    place.run()
    staged = place.root / "tmp/train_lmdb"
    before = (staged / "data.mdb").stat()
    assert (staged / "data.mdb").read_bytes() == (place.root / "data/train_lmdb/data.mdb").read_bytes()
    place.run(new=True)
    assert (staged / "data.mdb").stat().st_ino == before.st_ino
    events = [[event for event in place.events(number) if event["event"] == "staged"] for number in (1, 2)]
    assert [len(found) for found in events] == [1, 0]
    assert (events[0][0]["hosts"], events[0][0]["bytes"]) == (["localhost"], before.st_size)
    output = place.output.getvalue()
    assert "within the classes; to be staged on 1 of 1 host by copy\n" in output
    assert "within the classes; staged\n" in output


def test_a_host_whose_disk_cannot_take_the_lmdb_fails_the_run_by_name(place: Place) -> None:
    class FullHost(LocalHost):
        def run(self, argv: Sequence[str], timeout_s: float = COMMAND_S) -> Completed:
            if "take" in argv:
                return answer_call(argv, "refused not enough space: 5 bytes free, 7 needed")
            return super().run(argv, timeout_s)

    place.connect = FullHost
    message = r"localhost:.*/tmp/train_lmdb: not enough space: 5 bytes free, 7 needed; free space"
    with pytest.raises(RunFailed, match=message):
        place.run()
    assert place.trained() == []
    place.connect = open_host
    assert place.run().outputs


def test_a_finished_run_repeats_nothing_and_shows_its_table_again(place: Place) -> None:
    place.begin()
    before = place.tree()
    place.output.truncate(0)
    place.run()
    assert place.tree() == before
    assert "runs/small-1 is finished" in place.output.getvalue()


def test_a_finished_run_whose_model_is_missing_is_an_error(place: Place) -> None:
    place.begin()
    model = place.root / "runs/small-1/snapshots/small_last_iter_4.caffemodel"
    model.write_bytes(model.read_bytes()[:100])
    with pytest.raises(WeightsError, match="is no longer the snapshot that phase last finished with"):
        place.run()
    model.unlink()
    with pytest.raises(WeightsError, match="cannot be read"):
        place.run()


def test_an_emptied_journal_does_not_train_over_what_is_finished(place: Place) -> None:
    place.begin()
    (place.root / "runs/small-1/journal.jsonl").write_text("")
    with pytest.raises(InputError, match="is empty; restore it"):
        place.run()
    assert place.trained() == ["init", "cyc1", "last"]


def test_new_starts_another_run_and_leaves_the_first_as_it_was(place: Place) -> None:
    place.begin()
    before = {path: kept for path, kept in place.tree().items() if path.startswith("runs/small-1")}
    place.run(new=True)
    after = place.tree()
    assert {path: kept for path, kept in after.items() if path.startswith("runs/small-1")} == before
    assert list(place.state(2).finished) == ["init", "cyc1", "last"]
    assert place.trained() == ["init", "cyc1", "last"] * 2


def test_a_changed_recipe_is_refused_with_what_changed(place: Place) -> None:
    place.begin(cyc1="ends-early")
    before = place.tree()
    place.edit("base_lr: 0.05", "base_lr: 0.04")
    with pytest.raises(
        InputError,
        match=r"small-1: the recipe has changed since the run started: phases\[1\].base_lr: 0.05 -> 0.04",
    ):
        place.run()
    place.edit("base_lr: 0.04", "base_lr: 0.05")
    assert place.tree() == before


def test_a_key_that_all_phases_inherit_is_reported_once(place: Place) -> None:
    place.begin(cyc1="ends-early")
    place.edit("solver: {lr_policy: fixed,", "solver: {lr_policy: fixed, momentum: 0.8,")
    with pytest.raises(
        InputError, match=r"has changed since the run started: solver.momentum: null -> 0.8; "
    ):
        place.run()


def test_a_title_and_other_descriptive_fields_may_change(place: Place) -> None:
    place.begin(cyc1="ends-early")
    place.edit("title: Three short phases", "title: Three phases\nsource: nowhere")
    place.edit("top1_percent: 76.3", "top1_percent: 80")
    place.edit("name: cyc1,", "name: cyc1, comment: 'a phase, and not a kind', reported: {minutes: 3},")
    place.edit("omp_num_threads: 1", "omp_num_threads: 1, tmp_gb: 100")
    assert place.run(overwrite=True).outputs  # the comment stands in a prototxt
    assert place.trained() == ["init", "cyc1", "cyc1", "last"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("source: data/train_lmdb", "source: data/test_lmdb"),
        ("omp_num_threads: 1", "omp_num_threads: 2"),
        ("max_iter: 8", "max_iter: 16, stop_iter: 8"),
        ("iterations: 1", "iterations: 2"),
    ],
)
def test_fields_that_affect_the_training_must_not_change(place: Place, before: str, after: str) -> None:
    place.begin(cyc1="ends-early")
    place.edit(before, after)
    with pytest.raises(InputError, match="the recipe has changed since"):
        place.run()


OWN_NET = """\
name: "Own"
layer { name: "data" type: "Data" top: "data" top: "label" include { phase: TRAIN } }
layer { name: "pool" type: "Pooling" bottom: "data" top: "pool"
  pooling_param { pool: MAX kernel_size: 4 stride: 4 } }
layer { name: "ip" type: "InnerProduct" bottom: "pool" top: "ip" inner_product_param { num_output: 10 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""
OWN_NETS = {
    "prototxt: own.prototxt": ("own.prototxt", OWN_NET),
    "function: 'own_nets:own'": ("own_nets.py", f"def own(net):\n    return '''{OWN_NET}'''\n"),
}


@pytest.fixture(params=OWN_NETS)
def own_net(place: Place, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the small recipe's net the user's own, fail its second phase, and return the net's file."""
    monkeypatch.setenv("CAFFE_RECIPES_RUN_CODE", "1")
    name, text = OWN_NETS[request.param]
    place.edit("builder: resnet_small", request.param)
    (place.root / name).write_text(text)
    place.behave(cyc1="ends-early")
    with pytest.raises(RunFailed):
        place.run()
    place.behave()
    return place.root / name


def test_a_net_of_the_users_own_that_changed_since_is_refused_with_the_prototxts(
    place: Place, own_net: Path
) -> None:
    own_net.write_text(own_net.read_text().replace("pool: MAX", "pool: AVE"))
    before = place.tree()
    files = "prototxt/small/train_val.prototxt, prototxt/small/train_val_noaug.prototxt"
    for overwrite in (False, True):
        with pytest.raises(InputError, match=f"small-1: the recipe now generates different {files}; .*--new"):
            place.run(overwrite=overwrite)
    assert place.tree() == before


def test_a_comment_in_a_net_of_the_users_own_changes_nothing(place: Place, own_net: Path) -> None:
    own_net.write_text(f"# as published\n{own_net.read_text()}")
    place.run()
    assert place.trained() == ["init", "cyc1", "cyc1", "last"]


@pytest.mark.parametrize("content", ["", "[]", '{"a": 1'])
def test_a_runs_damaged_digests_are_named(place: Place, content: str) -> None:
    place.begin(init="ends-early")
    (place.root / "runs/small-1/prototxts.json").write_text(content)
    with pytest.raises(InputError, match=r"small-1/prototxts\.json: cannot be read: not .*JSON.*; .*--new"):
        place.run()


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        ("nan", "the loss is nan at iteration 2"),
        ("bvlc-nan", "the loss is nan at iteration 2"),
        ("stuck", "the loss is stuck at 87.3365 at iteration 4"),
        ("ends-early", "it ended after iteration 6 of 8"),
        ("stopped", "it was stopped early by a signal"),
        ("dies", "Check failed: status == 0 (2 vs. 0) No such file"),
        ("no-step", "srun: Unable to confirm allocation for job 12: Unable to contact slurm controller"),
        ("writes-nothing", "the snapshot is missing"),
        ("empty", "the snapshot is empty"),
        ("truncated", "truncated"),
        ("other", "the snapshot does not fit net Small: layer 'conv1' is missing"),
    ],
)
def test_a_phase_that_went_wrong_fails_the_run_whatever_the_trainer_returned(
    place: Place, behaviour: str, reason: str
) -> None:
    place.behave(init=behaviour)
    with pytest.raises(RunFailed) as caught:
        place.run()
    assert str(caught.value).startswith("phase init: failed: ")
    assert reason in str(caught.value)
    assert str(caught.value).endswith("log: runs/small-1/logs/init-1.log")
    assert not place.state().finished
    assert list((place.root / "runs/small-1/snapshots").iterdir()) == []


def test_a_log_whose_losses_cannot_be_read_is_reported(place: Place) -> None:
    place.behave(init="unknown-lines")
    place.run()
    warned = "init: warning: the log shows a snapshot at iteration 8, but no loss:"
    assert place.output.getvalue().count(warned) == 1
    assert "cyc1: warning" not in place.output.getvalue()


def test_a_failed_phase_is_tried_again_and_the_finished_ones_are_not(place: Place) -> None:
    place.begin(cyc1="empty")
    state = place.run()
    assert place.trained() == ["init", "cyc1", "cyc1", "last"]
    assert state.attempts == {"init": 1, "cyc1": 2, "last": 1}
    assert (place.root / "runs/small-1/logs/cyc1-1.log").exists()
    assert "init: already finished" in place.output.getvalue()


def test_a_snapshot_of_an_earlier_training_is_not_mistaken_for_the_new_one(place: Place) -> None:
    place.begin()
    place.behave(init="writes-nothing")
    with pytest.raises(RunFailed, match="the snapshot is an old file"):
        place.run(new=True)


def spoil_last_byte(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


SPOILING: dict[str, Callable[[Path], object]] = {
    "emptied": lambda path: path.write_bytes(b""),
    "one bit turned": spoil_last_byte,
    "deleted": Path.unlink,
    "a folder": replace_by_folder,
}


@pytest.mark.parametrize("spoiling", SPOILING)
@pytest.mark.parametrize(("failing", "needed"), [("last", "cyc1_iter_6"), ("evaluation", "last_iter_4")])
def test_a_finished_phase_whose_snapshot_was_damaged_since_is_not_built_upon(
    place: Place, spoiling: str, failing: str, needed: str
) -> None:
    place.begin(**{failing: "ends-early"})
    path = place.root / f"runs/small-1/snapshots/small_{needed}.caffemodel"
    whole = path.read_bytes()
    SPOILING[spoiling](path)
    before = place.tree()
    with pytest.raises(InputError, match=rf"small_{needed}\.caffemodel: .*; restore it, .*--new"):
        place.run()
    assert place.tree() == before
    if path.is_dir():
        path.rmdir()
    path.write_bytes(whole)
    trained = place.trained()
    assert place.run().outputs
    assert place.trained() == trained + (["last"] if failing == "last" else [])


def test_a_snapshot_that_nothing_needs_any_more_may_go(place: Place) -> None:
    place.begin(last="ends-early")
    (place.root / "runs/small-1/snapshots/small_init_iter_8.caffemodel").unlink()
    assert place.run().outputs


def test_a_journal_that_is_not_a_journal_is_refused_and_new_starts_beside_it(place: Place) -> None:
    place.begin()
    journal = place.root / "runs/small-1/journal.jsonl"
    journal.write_text("what\n")
    with pytest.raises(InputError, match=r"journal.jsonl:1: is not a journal line"):
        place.run()
    journal.unlink()
    with pytest.raises(InputError, match=r"journal.jsonl: cannot be opened"):
        place.run()
    assert not journal.exists()
    assert place.run(new=True).outputs


def test_a_given_caffemodel_starts_the_chain(place: Place) -> None:
    place.begin()
    (place.root / "start.caffemodel").write_bytes(
        (place.root / "runs/small-1/snapshots/small_last_iter_4.caffemodel").read_bytes()
    )
    place.edit("name: init,", "name: init, weights: start.caffemodel,")
    place.run(new=True)
    assert (place.root / "trained.txt").read_text().splitlines()[3] == "init start.caffemodel"


class OutputThatEdits(io.StringIO):
    """The output of a run whose user changes the shape of the net as soon as `cyc1` trains."""

    net: Path

    def write(self, text: str) -> int:
        if "cyc1" in text:
            self.net.write_text(self.net.read_text().replace("size: 4 stride: 4", "size: 2 stride: 2"))
        return super().write(text)


def test_snapshots_are_checked_against_the_net_of_the_run_even_if_its_source_is_edited(
    place: Place, own_net: Path
) -> None:
    place.output = output = OutputThatEdits()
    output.net = own_net
    place.run()
    assert "size: 2 stride: 2" in own_net.read_text()
    assert place.trained() == ["init", "cyc1", "cyc1", "last"]
