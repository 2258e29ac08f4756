"""`caffe-recipes preflight` on this machine: what it prints, its exit codes, and that it changes nothing."""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.datums import write_datums
from caffe_recipes.cluster.hosts import open_host
from caffe_recipes.errors import HostFailed, InputError
from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.render.recipe_files import generate
from caffe_recipes.run.context import RunOptions, find_setting
from caffe_recipes.run.events import RunState
from caffe_recipes.run.policy import Policy
from caffe_recipes.run.preflight.checks import preflight_recipe
from caffe_recipes.run.preflight.nodes import look_at_nodes
from caffe_recipes.run.preflight.storage import check_start
from caffe_recipes.run.runner import run_chain
from caffe_recipes.run.trainer import Checkpoint
from caffe_recipes.run.training_plan import plan_training
from tests.cli.command_line import call_main
from tests.stand_in_host import StandInHost

if TYPE_CHECKING:
    from tests.run.conftest import Place

MAIN = "from caffe_recipes.cli.main import main; main()"


def call(place: Place, *words: str) -> tuple[int, str, str]:
    done = call_main("preflight", place.recipe, *words, cwd=place.root)
    return done.returncode, done.stdout, done.stderr


def test_all_checks_pass_and_nothing_on_disk_changes(place: Place) -> None:
    before = place.tree()
    code, stdout, stderr = call(place)
    assert (code, stderr) == (0, "")
    assert stdout.splitlines()[-1].endswith("start the training with `run`")
    # A warning is not a failure: tests that run beside this one may have launched ranks on this machine.
    assert not [line for line in stdout.splitlines() if line.startswith("failed")]
    assert "ok      trainer        ./caffe trains, and supports lr_policy fixed\n" in stdout
    assert place.tree() == before


def test_a_check_that_fails_is_exit_1_and_reported_as_json_too(place: Place) -> None:
    (place.root / "data/test_lmdb/data.mdb").write_bytes(b"")
    code, stdout, _ = call(place)
    assert code == 1
    assert stdout.splitlines()[-1] == "1 check failed (test data): fix what is listed above, and try again"
    code, stdout, _ = call(place, "--json")
    assert code == 1
    failed = [one for one in json.loads(stdout) if one["mark"] == "failed"]
    assert [(one["subject"], one["hosts"]) for one in failed] == [("test data", [])]


def test_an_image_that_is_smaller_than_the_crop_fails_with_both_numbers(place: Place) -> None:
    text = place.recipe.read_text()
    place.recipe.write_text(text.replace("crop_size: 28\n", "crop_size: 32\n"))
    code, stdout, _ = call(place)
    assert code == 1
    problem = (
        "has an image of 28x28 pixels, which is smaller than crop_size: 32; write `crop_size: 28`, or less, "
        "in the recipe, or use larger images"
    )
    root = place.root.resolve()
    assert f"failed  training data  {root}/data/train_lmdb: {problem}\n" in stdout
    assert f"failed  test data      {root}/data/test_lmdb: {problem}\n" in stdout
    resized = "train_val: {random_aspect_ratio: {min_area_ratio: 0.08, aspect_ratio_change: 0.75}}"
    text = place.recipe.read_text().replace("train_val: {}", resized)
    text = text.replace("net: train_val_noaug, base_lr", "net: train_val, base_lr")
    text = text.replace("batch_size: 16}", "batch_size: 16, shorter_side_px: 32}")
    place.recipe.write_text(text + "accept: [{finding: raw-datums-scrambled, reason: the pixels are 0}]\n")
    code, stdout, _ = call(place)
    assert code == 0, stdout


def test_an_encoded_image_that_is_smaller_than_the_crop_fails_too(place: Place) -> None:
    shutil.rmtree(place.root / "data/train_lmdb")
    records = [(str(i), pb.Datum(data=b"P6 30 27 255 ", encoded=True, label=0)) for i in range(128)]
    write_datums(place.root / "data/train_lmdb", records)
    code, stdout, _ = call(place)
    assert code == 1
    assert "data/train_lmdb: has an image of 30x27 pixels, which is smaller than crop_size: 28" in stdout
    assert "[crop-above-image]" in stdout


def test_the_size_of_snapshots_is_known_from_the_first_image(place: Place) -> None:
    place.edit("  mean_value: [104, 117, 123]\n", "")  # which would give the channels
    _, stdout, _ = call(place)
    assert re.search(r"^ok      disk .* for 558 kB of snapshots$", stdout, re.MULTILINE), stdout


def test_digits_that_will_be_built_are_as_large_as_the_crop(place: Place) -> None:
    path = place.root / "small.yaml"
    text = place.recipe.read_text().replace("data/train_lmdb", "data/digits_train_lmdb")
    text = text.replace("data/test_lmdb", "data/digits_val_lmdb").replace(
        "data:\n", "data:\n  prepare: digits\n"
    )
    path.write_text(text.replace("crop_size: 28\n", "crop_size: 40\n"))
    code, stdout, _ = call(place)
    assert code == 1
    assert (
        "data/digits_train_lmdb: has an image of 32x32 pixels, which is smaller than crop_size: 40; "
        in stdout
    )


@pytest.mark.parametrize(
    "files", ["prototxt: train_val.prototxt", "prototxt: a, test_prototxt: train_val.prototxt"]
)
@pytest.mark.parametrize("overwrite", [False, True])
def test_the_net_that_a_recipe_reads_is_never_overwritten(place: Place, overwrite: bool, files: str) -> None:
    net = generate(load_recipe(place.recipe))["prototxt/small/train_val.prototxt"].partition("\n\n")[2]
    own = place.root / "train_val.prototxt"
    own.write_text(f"# by hand\n{net}")
    (place.root / "a").write_text(net)
    place.edit("prototxt_dir: prototxt/small", "prototxt_dir: .")
    place.edit("{name: Small, builder: resnet_small,", f"{{name: Small, {files},")
    with pytest.raises(InputError) as caught:
        run_chain(load_recipe(place.recipe), RunOptions(root=place.root, overwrite=overwrite))
    assert str(caught.value) == (
        f"{own}: the recipe reads its net from this file, which would be replaced by the generated one; "
        "write another prototxt_dir in the recipe, such as prototxt/small"
    )
    assert own.read_text() == f"# by hand\n{net}"


def test_a_phase_that_resumes_starts_from_its_checkpoint(place: Place) -> None:
    setting = find_setting(load_recipe(place.recipe), RunOptions(root=place.root), open_host)
    plan = plan_training(setting.recipe, "runs/small-1")
    assert [one.message for one in check_start(look_at_nodes(setting, plan, RunState()))] == [
        "the nets' fillers"
    ]
    kept = Checkpoint("init", 4, "s", "", "m", "", "tmp/s", "tmp/m")
    view = look_at_nodes(setting, plan, RunState(checkpoints={"init": (replace(kept, iteration=2), kept)}))
    assert [one.message for one in check_start(view)] == ["the checkpoint at 4 of init"]


def test_an_lmdb_with_another_number_of_records_is_a_warning(place: Place) -> None:
    place.edit("images: 128", "images: 129")
    place.edit("images: 16,", "images: 1600,")
    found = preflight_recipe(load_recipe(place.recipe), RunOptions(root=place.root), open_host)
    assert [one.message for one in found if one.mark == "warn" and one.subject.endswith(" data")] == [
        "data/train_lmdb: 128 records, but data.train.images is 129, from which the epochs are counted; "
        "write `images: 128`, or use another LMDB",
        "data/test_lmdb: 16 records, but data.test.images is 1,600, from which the iterations of a test "
        "follow; write `images: 16`, or use another LMDB",
    ]


def test_a_hostfile_that_is_missing_is_exit_2(place: Place) -> None:
    code, stdout, stderr = call(place, "--hostfile", "nowhere")
    assert (code, stdout) == (2, "")
    assert stderr.startswith("Error: nowhere: ")


def test_a_resumed_run_is_checked_where_it_is(place: Place) -> None:
    place.behave(cyc1="ends-early")
    with pytest.raises(Exception, match="cyc1"):
        place.run()
    code, stdout, _ = call(place)
    assert code == 0, stdout
    assert "starts from    runs/small-1/snapshots/small_init_iter_8.caffemodel\n" in stdout
    kept = place.root / "runs/small-1/snapshots/small_init_iter_8.caffemodel"
    kept.write_bytes(kept.read_bytes()[:-1])
    code, stdout, _ = call(place)
    assert code == 1
    assert "is no longer the snapshot that phase init finished with" in stdout
    assert call(place, "--new")[0] == 0


def test_ctrl_c_ends_all_trials(place: Place) -> None:
    script = (
        f"pwd -P >'{place.root}/where.part'; mv '{place.root}/where.part' '{place.root}/where'; sleep 600"
    )
    (place.root / "caffe").write_text(f"#!/bin/sh\n{script}\n")
    argv = [sys.executable, "-c", MAIN, "preflight", str(place.recipe)]
    with subprocess.Popen(
        argv, cwd=place.root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, preexec_fn=listen
    ) as process:
        until = time.monotonic() + 600
        while not (place.root / "where").exists():
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.wait(600) == 130
    folder = Path((place.root / "where").read_text().strip())
    while folder.exists():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_checkpoints_count_towards_the_disk_space_if_they_are_enabled(place: Place) -> None:
    def disk(*words: str) -> str:
        rows = json.loads(call(place, "--json", *words)[1])
        return next(str(one["said"]) for one in rows if one["subject"] == "disk")

    # Of each phase a pair of files and a kept model; then six more files, here and where Caffe writes.
    assert disk().endswith(" free on localhost for 558 kB of snapshots")
    assert disk("--checkpoint-every", "2").endswith(" free on localhost for 1.3 MB of snapshots")


def test_a_source_outside_the_root_may_be_named_relative_to_it(place: Place) -> None:
    (place.root / "data/train_lmdb").rename(place.root.parent / "train_lmdb")
    place.edit("source: data/train_lmdb", "source: ../train_lmdb")
    code, stdout, stderr = call(place)
    assert (code, stderr) == (0, ""), stdout


@pytest.mark.slow
def test_nothing_is_tried_while_a_launch_is_running(place: Place) -> None:
    place.behave(init="waits")
    run = place.start()
    wait_until_trained(place)
    running = f"small-1 is running (process {run.pid} on {socket.gethostname()})"
    assert tried(place) == {running}
    code, stdout, _ = call(place)
    watch = "watch it with `caffe-recipes attach small-1`, or see `caffe-recipes status small`"
    outcome = f"no check failed; {running}; skipped while it runs: launcher, trainer; {watch}"
    assert (code, stdout.splitlines()[-1]) == (0, outcome)
    assert tried(place, "--new") == {running}
    run.kill()
    run.communicate()
    assert tried(place) == {"a launch of this run is under way"}
    assert tried(place, "--new") == {"the mpiexec of a killed run is still running"}
    follower = place.start()
    assert follower.stdout is not None
    stdout = ""
    while "is still training; continuing with it" not in stdout:
        line = follower.stdout.readline()
        assert line, stdout
        stdout += line
    for subject in ("launcher", "trainer"):
        assert f"warn    {subject:15}skipped: a launch of this run is under way\n" in stdout
    (place.root / "release").touch()
    follower.communicate(timeout=600)
    assert follower.returncode == 0
    assert place.trained() == ["init", "cyc1", "last"]


def tried(place: Place, *words: str) -> set[str]:
    """Return why launcher and trainer are skipped."""
    rows = {one["subject"]: one for one in json.loads(call(place, "--json", *words)[1])}
    found = [rows[subject] for subject in ("launcher", "trainer")]
    assert {one["mark"] for one in found} == {"warn"}
    return {one["said"].removeprefix("skipped: ") for one in found}


def wait_until_trained(place: Place) -> None:
    """Wait for the last output of the first phase before it waits for the file `release`."""
    log = place.root / "runs/small-1/logs/init-1.log"
    until = time.monotonic() + 600
    while not log.exists() or "Iteration 4, lr" not in log.read_text():
        assert time.monotonic() < until
        time.sleep(0.05)


def listen() -> None:
    """Undo what a shell's `&` has the tests ignore."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_unreachable_hosts_are_reported_in_one_row_and_not_checked_further(place: Place) -> None:
    place.edit("nodes: 1,", "nodes: 3,")
    place.edit("batch_per_rank: 32", "batch_per_rank: 8")
    (place.root / "hostfile").write_text("c401-[001-003]\n")
    silent = HostFailed("", "did not respond for 15 s", "check the host and its network")
    hosts = {f"c401-00{number}": StandInHost(f"c401-00{number}", fault=silent) for number in (1, 2, 3)}
    found = preflight_recipe(
        load_recipe(place.recipe), RunOptions(root=place.root), lambda name, copy_with: hosts[name]
    )
    row = next(one for one in found if one.subject == "hosts")
    assert row.message.startswith("c401-[001-003]: did not respond for 15 s; check the host")
    assert (row.mark, row.hosts) == ("failed", tuple(hosts))
    skipped = {one.subject for one in found if one.message == "not checked: no answer from c401-[001-003]"}
    assert skipped == {"cores", "memory", "clock", "launcher", "trainer"}
    assert all(host.asked == [] for host in hosts.values())
    assert all(host.closed for host in hosts.values())


def test_a_run_that_would_be_refused_fails_the_check(place: Place) -> None:
    place.begin(cyc1="ends-early")
    place.edit("base_lr: 0.05", "base_lr: 0.04")
    code, stdout, _ = call(place, "--overwrite")
    assert (code, stdout.splitlines()[-1]) == (
        1,
        "1 check failed (run): fix what is listed above, and try again",
    )
    assert "runs/small-1: the recipe has changed since the run started: phases[1].base_lr: 0.05" in stdout
    assert call(place, "--overwrite", "--new")[0] == 0


def test_an_interval_that_run_would_refuse_is_refused(place: Place) -> None:
    place.edit("max_iter: 6,", "max_iter: 6, snapshot: 3,")
    place.edit("base_lr: 0.01,", "base_lr: 0.01, weights: cyc1, weights_iter: 3,")
    code, _, stderr = call(place, "--checkpoint-every", "8")
    with pytest.raises(InputError) as error:
        place.run(policy=Policy(checkpoint_every=8))
    assert (code, stderr) == (2, f"Error: {error.value}\n")
