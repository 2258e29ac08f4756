"""The weights and mean files of a run: on every host that reads them, and as large as the images."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.datums import write_datums
from caffe_recipes.caffe.shapes import infer_shapes
from caffe_recipes.cluster.commands import Completed, Host
from caffe_recipes.cluster.hosts import LocalHost
from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.render.prototxts import build_net
from caffe_recipes.run.context import RunOptions, find_setting
from caffe_recipes.run.events import Finish, RunState
from caffe_recipes.run.preflight.checks import preflight_recipe
from caffe_recipes.run.preflight.findings import CheckResult
from caffe_recipes.run.preflight.lmdbs import check_means
from caffe_recipes.run.preflight.machine import check_spares
from caffe_recipes.run.preflight.nodes import NodeView, look_at_nodes
from caffe_recipes.run.preflight.storage import check_start
from caffe_recipes.run.snapshots import digest_weights
from caffe_recipes.run.training_plan import plan_training
from tests.stand_in_host import StandInHost

if TYPE_CHECKING:
    from tests.run.conftest import Place

MEAN = "data/mean.binaryproto"


def far_host(name: str, root: Path, seen: Path) -> StandInHost:
    """Return a host that sees another folder as the Caffe root."""

    def answer(argv: tuple[str, ...], stdin: bytes) -> Completed:
        there = [word.replace(str(root), str(seen)) for word in argv]
        done = LocalHost().start(there, 60).finish(60, stdin)
        return Completed(done.returncode, done.stdout.replace(str(seen), str(root)), done.stderr)

    return StandInHost(name, answer)


@pytest.fixture
def far(place: Place) -> Path:
    """Give the folder that the host n2 sees as the Caffe root; it has the same data."""
    seen = place.root.parent / "far root"
    shutil.copytree(place.root / "data", seen / "data")
    return seen


def look(place: Place, far: Path, state: RunState | None = None) -> NodeView:
    """Look at this machine and n2."""
    (place.root / "hosts").write_text("n1\nn2\n")
    recipe = load_recipe(place.recipe)

    def connect(name: str, copy_with: str = "") -> Host:
        return LocalHost(name) if name == "n1" else far_host(name, place.root, far)

    options = RunOptions(root=place.root, hostfile=place.root / "hosts")
    setting = find_setting(recipe, options, connect)
    return look_at_nodes(setting, plan_training(recipe, "runs/small-1"), state or RunState())


def write_mean(path: Path, *shape: int) -> None:
    mean = pb.BlobProto(num=1, channels=shape[0], height=shape[1], width=shape[2])
    mean.data.extend([0.5] * math.prod(shape))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(mean.SerializeToString())


def write_weights(place: Place, path: Path) -> None:
    weights = pb.NetParameter(name="Small")
    for layer in infer_shapes(build_net(load_recipe(place.recipe), "train_val"), pb.TRAIN).layers:
        if layer.learned:
            made = weights.layer.add(name=layer.layer.name, type=layer.layer.type)
            for shape in layer.learned:
                sizes = [size or 3 for size in shape]
                made.blobs.add(shape={"dim": sizes}, data=[0.5] * math.prod(sizes))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(weights.SerializeToString())


def results(found: list[CheckResult]) -> list[tuple[str, tuple[str, ...], str]]:
    return [(one.mark, one.hosts, one.message.partition(";")[0]) for one in found]


@pytest.mark.parametrize(
    "path", ["given/w.caffemodel", "runs/small-1/snapshots/small_init_iter_8.caffemodel"]
)
def test_the_weights_of_a_phase_are_checked_on_every_host(place: Place, far: Path, path: str) -> None:
    ours, theirs, state = place.root / path, far / path, RunState()
    place.edit("nodes: 1", "nodes: 2")
    write_weights(place, ours)
    if path.startswith("given"):
        place.edit("{name: init,", f"{{name: init, weights: {path},")
    else:
        finish = Finish("init", path, digest_weights(ours), 1.0, None, None, {})
        state = RunState(finished={"init": finish})

    def check() -> list[tuple[str, tuple[str, ...], str]]:
        return results(check_start(look(place, far, state)))

    assert check() == [("failed", ("n2",), f"n2:{ours}: no such file there")]
    theirs.parent.mkdir(parents=True)
    theirs.write_bytes(b"")
    size = ours.stat().st_size
    assert check() == [("failed", ("n2",), f"n2:{ours}: has 0 bytes there, {size:,} here")]
    theirs.write_bytes(bytes(size))
    assert check() == [("failed", ("n2",), f"n2:{ours}: differs from the file here")]
    shutil.copy(ours, theirs)
    assert check() == [("ok", (), path)]


def use_mean(place: Place, path: str = MEAN) -> None:
    place.edit("mean_value: [104, 117, 123]", f"mean_file: {path}")


def no_file(path: Path) -> None:
    path.unlink(missing_ok=True)


def a_folder(path: Path) -> None:
    no_file(path)
    path.mkdir()


def an_empty_file(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize(
    ("spoil", "what"),
    [
        (no_file, "no such file there"),
        (a_folder, "is not a file that can be read"),
        (an_empty_file, "is empty"),
        (lambda path: write_mean(path, 3, 2, 2), "has 58 bytes, but the others have 9,419"),
    ],
)
def test_a_mean_file_that_a_host_cannot_use_is_found(
    place: Place, far: Path, spoil: Callable[[Path], None], what: str
) -> None:
    place.edit("nodes: 1", "nodes: 2")
    use_mean(place)
    for root in (place.root, far):
        write_mean(root / MEAN, 3, 28, 28)
    assert results(check_means(look(place, far))) == [("ok", (), MEAN)]
    spoil(far / MEAN)
    assert results(check_means(look(place, far))) == [("failed", ("n2",), f"n2:{place.root / MEAN}: {what}")]


def test_a_mean_file_that_may_not_be_read_is_found(place: Place, far: Path) -> None:
    place.edit("nodes: 1", "nodes: 2")
    use_mean(place)
    for root in (place.root, far):
        write_mean(root / MEAN, 3, 28, 28)
    view = look(place, far)
    path, facts = str(place.root / MEAN), view.facts["n2"]
    unread = replace(facts, sizes=facts.sizes | {path: (9419, False)})
    found = check_means(replace(view, facts=view.facts | {"n2": unread}))
    assert results(found) == [("failed", ("n2",), f"n2:{path}: is not a file that can be read")]


def preflight(place: Place) -> dict[str, str]:
    """Return the messages of the checks that fail on this machine, by subject."""
    options = RunOptions(root=place.root)
    found = preflight_recipe(load_recipe(place.recipe), options, lambda name, copy_with: LocalHost(name))
    return {one.subject: one.message for one in found if one.mark == "failed"}


def test_a_mean_file_that_is_missing_fails_the_preflight(place: Place) -> None:
    assert preflight(place) == {}
    use_mean(place)
    assert preflight(place) == {
        "mean file": f"localhost:{place.root / MEAN}: no such file there; "
        "every rank reads it: copy it there, or correct `mean_file` in the recipe"
    }
    write_mean(place.root / MEAN, 3, 28, 28)
    assert preflight(place) == {}


def test_a_file_that_is_not_a_mean_image_fails_the_preflight(place: Place) -> None:
    use_mean(place)
    (place.root / MEAN).write_text("<html>")
    what = f"{place.root / MEAN}: is not a mean file; make it with compute_image_mean"
    assert preflight(place) == {"mean file": what}


def test_a_mean_image_of_another_size_than_the_images_is_found(place: Place) -> None:
    use_mean(place)
    write_mean(place.root / MEAN, 3, 32, 28)
    found = preflight(place)
    assert found.keys() == {"lint"}, "it is reported once"
    assert "is a mean of 28x32 pixels and 3 channels, but the first record of" in found["lint"]


def test_a_mean_image_that_fits_only_the_first_image_is_found_in_the_data(place: Place) -> None:
    use_mean(place)
    write_mean(place.root / MEAN, 3, 28, 28)
    shutil.rmtree(place.root / "data/train_lmdb")
    sizes = [28] * 127 + [30]
    images = [pb.Datum(channels=3, height=px, width=28, data=bytes(3 * px * 28), label=0) for px in sizes]
    write_datums(place.root / "data/train_lmdb", [(f"{i:03}", image) for i, image in enumerate(images)])
    what = "has an image of 28x30 pixels and 3 channels, but mean_file is of 28x28 pixels and 3 channels; "
    assert preflight(place)["training data"].startswith(f"{place.root}/data/train_lmdb: {what}")


def test_the_mean_file_of_the_evaluation_is_read_on_this_machine(place: Place) -> None:
    place.edit("batch_size: 16}", f"batch_size: 16, mean_file: {MEAN}}}")
    place.edit("images: 128}", "images: 128, mean_value: [1]}")
    place.edit("  mean_value: [104, 117, 123]\n", "")
    assert preflight(place)["mean file"].startswith(f"{place.root / MEAN}: cannot be read: No such file")
    place.edit("evaluation: {net: train_val, iterations: 1}\n", "")
    assert preflight(place) == {}


def test_a_spare_without_the_mean_file_is_unfit(place: Place, far: Path) -> None:
    use_mean(place)
    write_mean(place.root / MEAN, 3, 28, 28)
    view = look(place, far)
    assert (view.setting.spares, tuple(view.facts)) == (("n2",), ("n1",))
    messages = [one.message for one in check_spares(view) if one.unfit]
    assert any(message.startswith(f"n2:{place.root / MEAN}: no such file there") for message in messages)
    write_mean(far / MEAN, 3, 28, 28)
    view = look(place, far)
    assert not any(MEAN in one.message for one in check_spares(view))


def test_a_mean_file_that_no_rank_will_read_again_is_not_checked_on_hosts(place: Place, far: Path) -> None:
    use_mean(place)
    write_mean(place.root / MEAN, 3, 28, 28)
    place.edit("nodes: 1", "nodes: 2")
    names = ("init", "cyc1", "last")
    finished = {name: Finish(name, f"{name}.caffemodel", "", 1.0, None, None, {}) for name in names}
    assert results(check_means(look(place, far, RunState(finished=finished)))) == [("ok", (), MEAN)]
