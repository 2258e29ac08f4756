"""Ensembles of a run's models: real nets from their fillers, predicted by the real caffe-torch."""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.datums import write_datums
from caffe_recipes.errors import DataError, InputError, RunFailed, WeightsError
from caffe_recipes.recipe.model import Recipe, Reported
from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.render.tree import write_files
from caffe_recipes.run.ensemble import (
    EnsembleOptions,
    EnsembleResult,
    ensemble_as_json,
    load_predictions,
    measure_ensemble,
    render_ensemble,
)
from caffe_recipes.run.ensemble_averages import Labels, Scores
from caffe_recipes.run.events import Finish
from caffe_recipes.run.folders import create_run
from caffe_recipes.run.training_plan import plan_files
from tests.extras import needs_engine

pytestmark = needs_engine

RECIPE = """\
name: branched
title: Two branches off one phase
trainer: caffe-torch
prototxt_dir: prototxt/branched
net: {name: Small, builder: resnet_small, classes: 10}
nets: {train_val: {}, train_val_noaug: {test: false}}
data:
  train: {lmdb: data/test_lmdb, images: 128}
  test: {lmdb: data/test_lmdb, images: 20, batch_size: 10}
  crop_size: 28
  scale: 0.01
cluster: {nodes: 1, ranks_per_node: 1, batch_per_rank: 32, omp_num_threads: 1}
solver: {lr_policy: fixed, base_lr: 0.1, solver_mode: CPU}
phases:
  - {name: trunk, net: train_val, max_iter: 4, snapshot_prefix: tmp/trunk}
  - {name: left, weights: trunk, net: train_val_noaug, max_iter: 4, snapshot_prefix: tmp/left}
  - {name: right, weights: trunk, net: train_val_noaug, max_iter: 4, snapshot_prefix: tmp/right}
evaluation: {net: train_val, iterations: 2}
"""


def call_engine(argv: Sequence[str], folder: Path, environment: Mapping[str, str], output: BinaryIO) -> int:
    """Run caffe-torch in this process, which spares the start of torch."""
    from caffe_recipes.engine.main import main

    text = io.TextIOWrapper(output, write_through=True)
    try:
        with chdir(folder), redirect_stderr(text), redirect_stdout(text):
            return main(argv[1:])
    finally:
        text.detach()


def caffe_torch(root: Path, *words: str) -> str:
    output = io.BytesIO()
    assert call_engine(["caffe-torch", *words], root, {}, output) == 0
    return output.getvalue().decode()


def write_noise(path: Path, labels: Sequence[int], shape: tuple[int, int, int] = (3, 28, 28)) -> None:
    random = np.random.default_rng(0)
    channels, height, width = shape

    def datum(label: int) -> pb.Datum:
        data = random.integers(0, 256, shape, np.uint8).tobytes()
        return pb.Datum(channels=channels, height=height, width=width, data=data, label=label)

    write_datums(path, ((f"{index}", datum(label)) for index, label in enumerate(labels)))


def initialise(root: Path, name: str, seed: int, net: str = "train_val") -> Path:
    """Make a caffemodel of fillers."""
    solver = root / f"solver_{name}.prototxt"
    solver.write_text(
        f'net: "prototxt/branched/{net}.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 0 '
        f'snapshot_prefix: "{name}" solver_mode: CPU random_seed: {seed}'
    )
    caffe_torch(root, "train", "-solver", solver.name)
    return root / f"{name}_iter_0.caffemodel"


def make_root(root: Path) -> Recipe:
    (root / "branched.yaml").write_text(RECIPE)
    recipe = load_recipe(root / "branched.yaml")
    write_files(plan_files(recipe), root)
    write_noise(root / "data" / "test_lmdb", [index % 10 for index in range(20)])
    return recipe


def finish_run(root: Path, models: dict[str, Path], number: int = 1) -> Path:
    """Write a run whose phases have left these models."""
    recipe = load_recipe(root / "branched.yaml")
    folder = root / "runs" / f"branched-{number}"
    folder.parent.mkdir(exist_ok=True)
    journal = create_run(folder, recipe, plan_files(recipe))
    for phase, model in models.items():
        snapshot = f"runs/{folder.name}/snapshots/{phase}_iter_4.caffemodel"
        (root / snapshot).write_bytes(model.read_bytes())
        sha256 = hashlib.sha256(model.read_bytes()).hexdigest()
        journal.append(Finish(phase, snapshot, sha256, 1.0, None, 0.5, {}))
    journal.close()
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a root with a finished run, and predictions of it: a few seconds."""
    root = tmp_path_factory.mktemp("caffe root")
    make_root(root)
    models = {name: initialise(root, name, seed) for seed, name in enumerate(("trunk", "left", "right"), 1)}
    finish_run(root, models)
    return root


@pytest.fixture
def root(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Cache digests in a folder that no other test uses."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(made / "cache"))
    return made


def measure(root: Path, run: str = "branched-1", **options: object) -> tuple[EnsembleResult, list[str]]:
    messages: list[str] = []
    given = replace(EnsembleOptions(root), **options)  # type: ignore[arg-type]
    return measure_ensemble(run, given, messages.append, call_engine), messages


def test_the_leaves_are_measured_as_caffe_test_does_and_their_predictions_are_kept(root: Path) -> None:
    found, messages = measure(root)
    assert [member.name for member in found.members] == ["left", "right"]
    assert (found.images, found.classes, found.missing) == (20, 10, ())
    for member, single in zip(found.members, found.measured.single, strict=True):
        words = ("-model", "prototxt/branched/train_val.prototxt", "-weights", str(member.path))
        log = caffe_torch(root, "test", *words, "-iterations", "2")
        for name, value in (("top-1", single.top1), ("top-5", single.top5)):
            assert float(re.findall(rf"\] loss3/{name} = ([0-9.]+)", log)[-1]) == pytest.approx(value)
    assert measure(root) == (found, [])
    assert len(messages) in (0, 2)  # none where another test came first


def test_the_ensemble_is_computed_from_the_kept_scores(root: Path) -> None:
    found, _ = measure(root)
    snapshots = root / "runs/branched-1/snapshots"
    total = np.zeros((20, 10))
    for name in ("left", "right"):
        (path,) = snapshots.glob(f"{name}_iter_4.*.npz")
        kept = load_predictions(path)
        assert kept is not None
        powers = np.exp(kept.scores.astype(np.float64) - kept.scores.max(1, keepdims=True))
        total += powers / powers.sum(1, keepdims=True)
    assert found.measured.ensemble.top1 == (total.argmax(1) == np.arange(20) % 10).mean()


def test_phases_and_files_may_be_members(root: Path) -> None:
    model = str(root / "right_iter_0.caffemodel")
    found, _ = measure(root, members=("trunk", model))
    assert [member.name for member in found.members] == ["trunk", model]
    assert found.measured.single[1] == measure(root)[0].measured.single[1]


def test_a_damaged_file_of_predictions_is_recreated(root: Path) -> None:
    found, _ = measure(root)
    (path,) = (root / "runs/branched-1/snapshots").glob("left_iter_4.*.npz")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    again, messages = measure(root)
    assert (again, len(messages)) == (found, 1)
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    "spoil",
    [
        lambda scores, labels: (scores[:5], labels[:5]),
        lambda scores, labels: (scores[:, :5], labels),
        lambda scores, labels: (scores[:, :9], labels % 9),
        lambda scores, labels: (scores, np.roll(labels, 1)),
        lambda scores, labels: (scores * np.float32("nan"), labels),
    ],
    ids=["images", "classes", "classes and labels", "labels", "NaN"],
)
def test_cached_predictions_of_another_lmdb_are_recreated(
    root: Path, spoil: Callable[[Scores, Labels], tuple[Scores, Labels]]
) -> None:
    found, _ = measure(root)
    (path,) = (root / "runs/branched-1/snapshots").glob("right_iter_4.*.npz")
    whole = path.read_bytes()
    kept = load_predictions(path)
    assert kept is not None
    scores, labels = spoil(kept.scores, kept.labels)
    np.savez(path, scores=scores, labels=labels)
    again, messages = measure(root)
    assert (again, len(messages) > 0) == (found, True)
    assert path.read_bytes() == whole


def test_a_run_that_cannot_be_written_to_is_measured_and_nothing_is_kept(root: Path) -> None:
    found, _ = measure(root)
    folder = finish_run(root, {name: root / f"{name}_iter_0.caffemodel" for name in ("left", "right")}, 6)
    (folder / "logs").rmdir()
    (folder / "logs").symlink_to("/proc")  # where not even root makes a file
    again, messages = measure(root, "branched-6")
    assert again.measured == found.measured
    assert (
        messages[1] == f"warning: {folder / 'logs'} cannot be written to; predictions of left are not cached"
    )
    assert sorted(path.suffix for path in (folder / "snapshots").iterdir()) == [".caffemodel"] * 2


@pytest.mark.promise("nothing is written through planted links")
def test_in_a_run_that_others_can_write_to_nothing_is_trusted_or_written(root: Path) -> None:
    found, _ = measure(root)
    folder = finish_run(root, {name: root / f"{name}_iter_0.caffemodel" for name in ("left", "right")}, 7)
    for path in (root / "runs/branched-1/snapshots").glob("*_iter_4.*.npz"):
        kept = load_predictions(path)
        assert kept is not None
        np.savez(folder / "snapshots" / path.name, scores=kept.scores[:, ::-1], labels=kept.labels)
    (root / "profile").write_text("mine")
    (folder / "logs/predict-left_iter_4.log").symlink_to(root / "profile")
    for name in ("logs", "snapshots"):
        (folder / name).chmod(0o777)
    again, messages = measure(root, "branched-7")
    assert again.measured == found.measured
    what = "can be changed by anybody; predictions of left are not cached"
    assert messages[1] == f"warning: {folder / 'snapshots'} {what}"
    (folder / "snapshots").chmod(0o755)
    measure(root, "branched-7")
    assert (root / "profile").read_text() == "mine"


def test_a_model_whose_scores_overflow_is_one_clear_error(root: Path) -> None:
    model = root / "huge.caffemodel"
    message = pb.NetParameter.FromString((root / "left_iter_0.caffemodel").read_bytes())
    blob = next(layer for layer in message.layer if layer.name == "fc10").blobs[0]
    values = [3e38] * len(blob.data)
    del blob.data[:]
    blob.data.extend(values)
    model.write_bytes(message.SerializeToString())
    with pytest.raises(RunFailed, match=r"the scores of record '.*' are not finite"):
        measure(root, members=("left", str(model)))


def test_another_lmdb_is_predicted_again_and_both_are_kept(root: Path) -> None:
    write_noise(root / "other_lmdb", [1] * 7)
    found, messages = measure(root, lmdb=root / "other_lmdb")
    assert (found.images, len(messages)) == (7, 2)
    assert measure(root, lmdb=root / "other_lmdb")[1] == []
    assert measure(root)[0].images == 20


def test_the_table_and_the_json_agree(root: Path) -> None:
    found, _ = measure(root)
    text = "\n".join(render_ensemble(found, "data/test_lmdb"))
    values = json.loads(json.dumps(ensemble_as_json(found)))
    for member in values["members"]:
        line = next(line for line in text.splitlines() if line.startswith(member["name"]))
        assert line.split()[1] == f"{100 * member['top1']:.2f}"
    assert f"top-1 {100 * values['ensemble']['top1']:.2f}%" in text
    assert "reported" not in text
    assert values["reported"] == {"members": ["left", "right"]}


def test_the_reported_ensemble_accuracy_is_shown_beside_ours(root: Path) -> None:
    found, _ = measure(root, members=("trunk", "left"))
    found = replace(found, reported=Reported(top1_percent=77.5))
    lines = render_ensemble(found, "data/test_lmdb")
    ours = next(index for index, line in enumerate(lines) if line.startswith("ensemble, "))
    assert lines[ours + 1] == "reported by the source for left, right: top-1 77.5%"
    assert ensemble_as_json(found)["reported"] == {"members": ["left", "right"], "top1_percent": 77.5}


@pytest.mark.parametrize(
    ("members", "part"),
    [
        (("left",), "one member, left; an ensemble needs two or more"),
        (("left", "left"), "'left' is named twice"),
        (("left", "rigth"), "no phase 'rigth' in branched; did you mean 'right'"),
        (("left", "none.caffemodel"), "none.caffemodel: cannot be read: no such file"),
    ],
)
def test_a_run_that_is_not_an_ensemble_is_refused(root: Path, members: tuple[str, ...], part: str) -> None:
    with pytest.raises(InputError, match=re.escape(part)):
        measure(root, members=members)


def test_unfinished_leaves_are_reported_and_a_run_needs_two(root: Path) -> None:
    model = root / "left_iter_0.caffemodel"
    finish_run(root, {"trunk": model}, number=2)
    with pytest.raises(InputError, match=r"no finished member; .* finished: trunk"):
        measure(root, "branched-2")
    with pytest.raises(InputError, match="phase left of branched-2 is not finished"):
        measure(root, "branched-2", members=("trunk", "left"))
    finish_run(root, {"trunk": model, "left": model}, number=3)
    with pytest.raises(InputError, match="one member, left"):
        measure(root, "branched-3")
    finish_run(root, {}, number=4)
    with pytest.raises(InputError, match=r"no finished member; .* finished: none yet"):
        measure(root, "branched-4")


def test_a_model_of_another_net_is_refused(root: Path) -> None:
    net = root / "prototxt/branched/train_val.prototxt"
    other = net.with_name("other.prototxt")
    other.write_text(net.read_text().replace("num_output: 10", "num_output: 7"))
    # the labels would be none of 7 classes, which no iteration looks at
    model = initialise(root, "other", 1, "other")
    cached = sorted(root.rglob("*.npz"))
    with pytest.raises(WeightsError, match="does not fit net Small: layer 'fc10'"):
        measure(root, members=("trunk", str(model)))
    assert sorted(root.rglob("*.npz")) == cached, "nothing is predicted before all models are checked"


def test_a_model_given_instead_of_the_run_is_refused_with_the_right_option(root: Path) -> None:
    message = (
        r"^left\.caffemodel: is a model, .*; give the run, and the models as `--members left\.caffemodel,"
    )
    with pytest.raises(InputError, match=message):
        measure(root, "left.caffemodel")


def test_a_model_that_is_not_what_its_phase_left_is_refused(root: Path) -> None:
    folder = finish_run(root, {name: root / f"{name}_iter_0.caffemodel" for name in ("left", "right")}, 5)
    (folder / "snapshots/left_iter_4.caffemodel").write_bytes(b"spoilt")
    with pytest.raises(WeightsError, match="is no longer the model of left"):
        measure(root, "branched-5")


def test_images_of_another_shape_are_refused(root: Path) -> None:
    write_noise(root / "grey_lmdb", [0, 1], (1, 28, 28))
    with pytest.raises(InputError, match=r"^left on .*grey_lmdb: ") as caught:
        measure(root, lmdb=root / "grey_lmdb")
    assert "\n" not in str(caught.value)
    write_noise(root / "small_lmdb", [0, 1], (3, 8, 8))
    with pytest.raises(InputError, match=r"^left on .*small_lmdb: ") as caught:
        measure(root, lmdb=root / "small_lmdb")
    assert "\n" not in str(caught.value)


def test_a_label_that_is_not_a_class_names_its_record(root: Path) -> None:
    write_noise(root / "eleven_lmdb", [0, 10])
    with pytest.raises(InputError, match="record '00000001_1' has label 10"):
        measure(root, lmdb=root / "eleven_lmdb")


def test_what_is_not_an_lmdb_is_refused(root: Path) -> None:
    with pytest.raises(DataError, match="none"):
        measure(root, lmdb=root / "none")


def test_a_net_that_has_changed_since_is_refused(root: Path) -> None:
    net = root / "prototxt/branched/train_val.prototxt"
    before = net.read_text()
    net.write_text(before.replace('name: "Small"', 'name: "Other"'))
    try:
        with pytest.raises(InputError, match="is not the net that branched-1 was started with"):
            measure(root)
    finally:
        net.write_text(before)
