"""Bad input: one line with place, mistake and remedy, exit 2, and not a byte on disk changed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import lmdb
import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.errors import CaffeRecipesError, RecipeError
from caffe_recipes.run.caffe import Caffe
from caffe_recipes.run.preflight.checks import CHECKS
from caffe_recipes.run.tensorflow import TensorFlow

if TYPE_CHECKING:
    from tests.run.conftest import Place, WriteLmdb

Spoil = Callable[["Place", "WriteLmdb"], None]


def text(path: str, content: str | bytes, mode: int = 0o644) -> Spoil:
    def spoil(place: Place, write_lmdb: WriteLmdb) -> None:
        target = place.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content if isinstance(content, bytes) else content.encode())
        target.chmod(mode)

    return spoil


def edit(before: str, after: str) -> Spoil:
    return lambda place, write_lmdb: place.edit(before, after)


def remove(path: str) -> Spoil:
    def spoil(place: Place, write_lmdb: WriteLmdb) -> None:
        target = place.root / path
        if target.is_dir():
            shutil.rmtree(target)
        else:
            target.unlink()

    return spoil


def without_records(path: str) -> Spoil:
    def spoil(place: Place, write_lmdb: WriteLmdb) -> None:
        shutil.rmtree(place.root / path)
        with (
            lmdb.open(str(place.root / path), lock=False) as environment,
            environment.begin(write=True) as begun,
        ):
            begun.put(b"a record", b"that goes")
            begun.delete(b"a record")

    return spoil


def labelled(path: str, count: int, label: int) -> Spoil:
    def spoil(place: Place, write_lmdb: WriteLmdb) -> None:
        shutil.rmtree(place.root / path)
        write_lmdb(place.root / path, count, lambda index: label)

    return spoil


def cut(path: str, size: int) -> Spoil:
    def spoil(place: Place, write_lmdb: WriteLmdb) -> None:
        target = place.root / path
        target.write_bytes(target.read_bytes()[:size])

    return spoil


def as_large(path: str, other: str) -> Spoil:
    def spoil(place: Place, write_lmdb: WriteLmdb) -> None:
        text(other, bytes((place.root / path).stat().st_size))(place, write_lmdb)

    return spoil


def weights(content: bytes) -> Spoil:
    def spoil(place: Place, write_lmdb: WriteLmdb) -> None:
        (place.root / "start.caffemodel").write_bytes(content)
        place.edit("name: init,", "name: init, weights: start.caffemodel,")

    return spoil


def all_of(*spoils: Spoil) -> Spoil:
    def spoil(place: Place, write_lmdb: WriteLmdb) -> None:
        for each in spoils:
            each(place, write_lmdb)

    return spoil


OTHER_NET = pb.NetParameter(
    layer=[pb.LayerParameter(name="ip", blobs=[pb.BlobProto(data=[1.0], shape=pb.BlobShape(dim=[1]))])]
).SerializeToString()

CASES: dict[str, tuple[Spoil, str]] = {
    "unknown key": (
        edit("crop_size", "crop_sise"),
        r"small.yaml:10: data.crop_sise: .*did you mean 'crop_size'",
    ),
    "negative number": (edit("max_iter: 6", "max_iter: -6"), r"small.yaml:\d+: phases\[1\].max_iter: .*-6"),
    "missing number": (edit("base_lr: 0.05, ", ""), r"small.yaml:\d+: phases\[1\].base_lr: missing"),
    "empty hostfile": (text("hostfile", "\n"), "hostfile: contains no hosts; "),
    "host twice": (text("hostfile", "a\nlocalhost\na\n"), "hostfile:3: host a appears twice"),
    "garbage hostfile": (text("hostfile", b"\x00\xff\x00"), "hostfile: is not a text file; "),
    "no hostfile for two nodes": (
        edit("nodes: 1,", "nodes: 2,"),
        "hostfile: no such file; write 2 hosts to it",
    ),
    "more ranks than hosts x ppn": (
        all_of(text("hostfile", "localhost\n"), edit("nodes: 1,", "nodes: 2,")),
        "hostfile: 1 host x 2 ranks = 2, but the recipe needs 4; give 2 hosts",
    ),
    "host that does not exist": (
        text("hostfile", "no-such-host.invalid\n"),
        "no-such-host.invalid: cannot be reached by ssh",
    ),
    "missing trainer": (remove("caffe"), r"caffe: no such Caffe binary; build Caffe .* --caffe"),
    "trainer that is no program": (text("caffe", "text", 0o644), "caffe: is not an executable program"),
    "trainer that is a folder": (
        all_of(remove("caffe"), text("caffe/caffe", "x")),
        "caffe: is not an executable program",
    ),
    "trainer that is garbage": (text("caffe", b"\x7fELF\x00", 0o755), "./caffe: does not start: "),
    "trainer that lacks a library": (
        text("caffe", "#!/bin/sh\necho 'libmlsl.so: cannot open' >&2; exit 127\n", 0o755),
        "./caffe: does not start: libmlsl.so: cannot open",
    ),
    "missing training LMDB": (
        remove("data/train_lmdb"),
        "localhost:tmp/train_lmdb: no LMDB there, and none to stage from data/train_lmdb; "
        "build it with `caffe-recipes data build`, or give its folder with --lmdb-source",
    ),
    "another LMDB where the training LMDB is staged": (
        text("tmp/train_lmdb/data.mdb", "the user's own"),
        r"localhost:.*/tmp/train_lmdb: has a different LMDB \(14 bytes; the source has [\d,]+\); free space",
    ),
    "another LMDB as large as the one that is staged there": (
        as_large("data/train_lmdb/data.mdb", "tmp/train_lmdb/data.mdb"),
        "tmp/train_lmdb: has a different LMDB .same size as the source, but different content.; free space",
    ),
    "a file where the training LMDB is staged": (
        text("tmp/train_lmdb", "the user's own"),
        "localhost:.*/tmp/train_lmdb: is not a folder; free space, move the old data away",
    ),
    "empty data.mdb": (text("data/train_lmdb/data.mdb", b""), "data/train_lmdb: is empty"),
    "LMDB without records": (without_records("data/train_lmdb"), "data/train_lmdb: holds no records"),
    "LMDB cut short": (cut("data/train_lmdb/data.mdb", 20_000), "data/train_lmdb: is truncated"),
    "label outside the classes": (
        labelled("data/train_lmdb", 128, 10),
        "label 10, which is not one of the 10 classes 0 to 9; "
        "write `classes: 11`, or more, in the recipe, or fix the list of images and build the LMDB again",
    ),
    "missing test LMDB": (
        remove("data/test_lmdb"),
        "data/test_lmdb: no such LMDB; build it with `caffe-recipes data build`, or correct data.test.lmdb",
    ),
    "test label outside the classes": (labelled("data/test_lmdb", 16, -1), "data/test_lmdb: .*label -1"),
    "prototxt that differs": (
        text("prototxt/small/solver_init.prototxt", "base_lr: 1\n"),
        "solver_init.prototxt: differs from what the recipe generates; `caffe-recipes generate --check --out",
    ),
    "a file where runs are kept": (
        text("runs", "the user's own"),
        "/runs: is not a folder, and a run writes in runs; move it away",
    ),
    "a file where locks are kept": (
        text("logs/small", "the user's own"),
        "/logs/small: is not a folder, and a run writes in logs/small; move it away",
    ),
    "missing start weights": (
        edit("name: init,", "name: init, weights: none.caffemodel,"),
        "none.caffemodel: no such file",
    ),
    "empty start weights": (weights(b""), "start.caffemodel: is empty"),
    "HTML as start weights": (weights(b"<html>not found</html>"), "start.caffemodel: is an HTML page"),
    "truncated start weights": (weights(OTHER_NET[:-2]), "start.caffemodel: .*truncated"),
    "start weights of another net": (weights(OTHER_NET), "start.caffemodel: does not fit net Small: "),
    "what lint calls an error": (
        lambda place, write_lmdb: place.take_net_without_loss(),
        r"small: nets.train_val: \[no-loss\] layer .*: nothing is learned, .*; "
        r"add a loss, such as SoftmaxWithLoss; or see `caffe-recipes lint --explain no-loss`",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_one_line_and_changes_nothing(place: Place, write_lmdb: WriteLmdb, case: str) -> None:
    spoil, message = CASES[case]
    spoil(place, write_lmdb)
    before = place.tree()
    with pytest.raises(CaffeRecipesError, match=message) as caught:
        place.run()
    assert place.tree() == before
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    assert caught.value.hint or isinstance(caught.value, RecipeError)


def test_the_command_prints_the_error_on_stderr_and_exits_2(place: Place) -> None:
    (place.root / "hostfile").write_text("localhost\nlocalhost\n")
    before = place.tree()
    code, stdout, stderr = place.call()
    assert (code, stdout) == (2, "")
    message = "hostfile:2: host localhost appears twice (first on line 1)"
    assert stderr == f"Error: {place.root}/{message}; remove one; -ppn sets the ranks per host\n"
    assert place.tree() == before


def test_all_findings_are_shown_though_the_first_error_decides(place: Place) -> None:
    (place.root / "data/test_lmdb/data.mdb").write_bytes(b"")
    (place.root / "prototxt/small").mkdir(parents=True)
    (place.root / "prototxt/small/solver_cyc1.prototxt").write_text("")
    with pytest.raises(CaffeRecipesError, match="solver_cyc1"):
        place.run()
    first, *lines = place.output.getvalue().splitlines()
    assert first.startswith("checking ")
    rows = [(line[:8].strip(), line[8:23].strip()) for line in lines]
    assert [subject for mark, subject in rows if mark == "failed"] == ["prototxts", "test data"]
    # Another test's ranks may be at work on this machine; this recipe has no mean file.
    ignored = ("spares", "launches", "/tmp", "mean file")
    others = {*ignored, *(name for name in TensorFlow.checks if name not in Caffe.checks)}
    assert [subject for _, subject in rows if subject not in ignored] == [
        name for name in CHECKS if name not in others
    ]


def test_an_error_of_lint_that_the_recipe_accepts_does_not_stop_a_run(place: Place) -> None:
    place.take_net_without_loss()
    place.edit("reported:", "accept: [{finding: no-loss, reason: a stand-in}]\nreported:")
    assert place.run().outputs
    assert "ok      lint           no errors in 3 phases" in place.output.getvalue()


def test_caffe_torch_is_not_a_stand_in_for_a_missing_caffe(place: Place) -> None:
    (place.root / "caffe").unlink()
    code, _, stderr = place.call("--caffe", "caffe-torch")
    assert code == 2
    assert "is not a Caffe binary; write `trainer: caffe-torch` in the recipe to use" in stderr


def test_overwrite_replaces_prototxts_that_differ(place: Place) -> None:
    changed = place.root / "prototxt/small/solver_init.prototxt"
    changed.parent.mkdir(parents=True)
    changed.write_text("base_lr: 1\n")
    assert place.run(overwrite=True).outputs
    assert "base_lr: 0.1\n" in changed.read_text()


def test_a_caffe_given_on_the_command_line_takes_the_place_of_the_recipes(
    place: Place, tmp_path: Path
) -> None:
    (place.root / "caffe").rename(tmp_path / "another caffe")
    code, stdout, _ = place.call("--caffe", str(tmp_path / "another caffe"))
    assert code == 0
    assert "model: runs/small-1/snapshots/small_last_iter_4.caffemodel" in stdout


def test_an_lmdb_source_given_on_the_command_line_is_staged(place: Place, tmp_path: Path) -> None:
    (place.root / "data/train_lmdb").rename(tmp_path / "elsewhere")
    assert place.run(lmdb_source=tmp_path / "elsewhere").outputs
    staged = place.root / "tmp/train_lmdb/data.mdb"
    assert staged.read_bytes() == (tmp_path / "elsewhere/data.mdb").read_bytes()
