"""Fetching from a host whose /tmp others share into a run's folder, and verifying the result."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.prototxt import parse_prototxt
from caffe_recipes.cluster.hosts import LocalHost
from caffe_recipes.cluster.remote import NodeRefusal, own_file_stamp
from caffe_recipes.errors import ClusterError, HostFailed, RunFailed, WeightsError
from caffe_recipes.run.caffe import find_ignored_learned
from caffe_recipes.run.caffe_models import verify_weights
from caffe_recipes.run.snapshots import check_places, delete_parts, fetch_snapshot

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of another user")
NET = parse_prototxt(
    """name: "tiny"
    layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }
    layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y" inner_product_param { num_output: 4 } }""",
    pb.NetParameter,
    "tiny.prototxt",
)


def weights(name: str = "ip", value: float = 0.5, outputs: int = 4) -> bytes:
    net = pb.NetParameter(name="tiny")
    net.layer.add(name="in", type="Input")
    layer = net.layer.add(name=name, type="InnerProduct")
    layer.blobs.add(shape=pb.BlobShape(dim=[outputs, 3]), data=[value] * outputs * 3)
    layer.blobs.add(shape=pb.BlobShape(dim=[outputs]), data=[value] * outputs)
    return net.SerializeToString()


def fits(path: Path) -> None:
    verify_weights(path, NET)


@dataclass
class Place:
    """A host's /tmp, and where its snapshot is kept here."""

    tmp: Path
    to: Path
    host: LocalHost = field(default_factory=lambda: LocalHost("n1"))

    @property
    def snapshot(self) -> Path:
        return self.tmp / "x_iter_4.caffemodel"

    def fetch(self, stamp: str | None = None) -> str:
        return fetch_snapshot(self.host, self.to.parent, str(self.snapshot), stamp, self.to, fits)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    tmp, kept = tmp_path / "tmp", tmp_path / "runs/x-1/snapshots"
    tmp.mkdir()
    tmp.chmod(0o1777)
    kept.mkdir(parents=True)
    return Place(tmp, kept / "x_iter_4.caffemodel")


@pytest.mark.parametrize(
    ("folder", "file"), [(0o755, 0o644), (0o700, 0o600), (0o2775, 0o644), (0o1777, 0o644)]
)
def test_a_snapshot_is_fetched_whole_and_as_readable_as_its_folder(
    place: Place, folder: int, file: int
) -> None:
    place.to.parent.chmod(folder)
    place.snapshot.write_bytes(weights())
    assert place.fetch() == hashlib.sha256(weights()).hexdigest()
    assert place.to.read_bytes() == weights()
    assert place.to.stat().st_mode & 0o777 == file
    assert list(place.to.parent.iterdir()) == [place.to]


def link_to_what_others_have(path: Path) -> None:
    theirs = path.with_name("theirs")
    theirs.write_bytes(weights())
    os.chown(theirs, NOBODY, NOBODY)
    path.symlink_to(theirs)


def hard_link_to_what_others_have(path: Path) -> None:
    link_to_what_others_have(path)
    path.unlink()
    path.hardlink_to(path.with_name("theirs"))


def link_to_what_is_ours(path: Path) -> None:
    path.with_name("ours").write_bytes(weights())
    path.symlink_to(path.with_name("ours"))


def made_before_by_others(path: Path) -> None:
    path.write_bytes(weights())
    os.chown(path, NOBODY, NOBODY)
    path.chmod(0o666)  # so that our training writes to it


ATTACKS: dict[str, tuple[Callable[[Path], None], str]] = {
    "a link to another user's": (link_to_what_others_have, "is a symbolic link owned by user root (0)"),
    "a hard link to another user's": (hard_link_to_what_others_have, "belongs to user nobody (65534)"),
    "a link to ours": (link_to_what_is_ours, "is a symbolic link owned by user root (0)"),
    "made before by another user": (made_before_by_others, "belongs to user nobody (65534)"),
    "a pipe": (os.mkfifo, "is not a file"),
}


@needs_root
@pytest.mark.parametrize("attack", ATTACKS)
def test_files_that_another_user_could_have_made_are_not_fetched(place: Place, attack: str) -> None:
    make, what = ATTACKS[attack]
    make(place.snapshot)
    with pytest.raises(RunFailed) as caught:
        place.fetch()
    assert str(caught.value).startswith(f"n1:{place.snapshot}: the snapshot {what}; remove it,")
    assert list(place.to.parent.iterdir()) == []
    with pytest.raises(ClusterError, match=re.escape(f"n1:{place.snapshot}: {what}")):
        check_places(place.host, [str(place.tmp / "free"), str(place.snapshot)], place.to.parent)


@needs_root
def test_a_snapshot_in_another_users_folder_is_not_fetched(place: Place) -> None:
    place.tmp /= "theirs"
    place.tmp.mkdir()
    place.snapshot.write_bytes(weights())
    os.chown(place.tmp, NOBODY, NOBODY)
    with pytest.raises(RunFailed, match=r"the snapshot is under .*theirs, which belongs to user nobody"):
        place.fetch()


def a_link_elsewhere(part: Path) -> None:
    part.symlink_to(part.parents[3] / "elsewhere")


def a_hard_link_elsewhere(part: Path) -> None:
    part.hardlink_to(part.parents[3] / "elsewhere")


def a_file_that_all_may_write(part: Path) -> None:
    part.write_bytes(b"half a snapshot")
    part.chmod(0o666)


@pytest.mark.parametrize("make", [a_link_elsewhere, a_hard_link_elsewhere, a_file_that_all_may_write])
@pytest.mark.parametrize("suffix", [".part", ".part.0badf00d.part"])
def test_nothing_at_the_temporary_path_of_a_copy_is_written_through(
    place: Place, make: Callable[[Path], None], suffix: str
) -> None:
    elsewhere = place.to.parents[3] / "elsewhere"
    elsewhere.write_bytes(b"mine")
    place.snapshot.write_bytes(weights())
    make(place.to.with_name(place.to.name + suffix))
    place.fetch()
    assert elsewhere.read_bytes() == b"mine"
    assert list(place.to.parent.iterdir()) == [place.to]
    assert not place.to.is_symlink()
    readable = 0o600 | place.to.parent.stat().st_mode & 0o444
    assert (place.to.stat().st_mode & 0o777, place.to.stat().st_nlink) == (readable, 1)


def test_only_the_parts_that_a_killed_run_left_are_deleted(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    kept = {"a.part.b_iter_2.solverstate", "a_iter_2.caffemodel", ".b", "a.party"}
    for name in (*kept, "a_iter_2.solverstate.part", ".a_iter_2.caffemodel.part.0badf00d"):
        (tmp_path / "checkpoints" / name).touch()
    delete_parts(tmp_path)
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == kept


def test_a_folder_at_the_temporary_path_is_one_line(place: Place) -> None:
    place.snapshot.write_bytes(weights())
    place.to.with_name(f"{place.to.name}.part").mkdir()
    with pytest.raises(RunFailed, match=r"\.part: cannot be written: Is a directory"):
        place.fetch()
    assert not place.to.exists()


def test_an_old_snapshot_is_refused_and_a_symbolic_link_gets_no_stamp(place: Place) -> None:
    place.snapshot.write_bytes(weights())
    stamp = own_file_stamp(place.host, str(place.snapshot), place.tmp)
    with pytest.raises(RunFailed, match="the snapshot is an old file, from before this training"):
        place.fetch(stamp)
    place.snapshot.rename(place.tmp / "real")
    place.snapshot.symlink_to(place.tmp / "real")
    with pytest.raises(NodeRefusal, match="is a symbolic link"):
        own_file_stamp(place.host, str(place.snapshot), place.tmp)


def test_an_unreachable_host_is_not_reported_as_a_bad_snapshot(place: Place) -> None:
    class GoneHost(LocalHost):
        def run(self, argv: object, timeout_s: float = 1.0) -> object:  # type: ignore[override]
            raise HostFailed("n1", "does not answer", "look after it")

    place.host = GoneHost("n1")
    with pytest.raises(RunFailed, match=r"^n1: does not answer; look after it"):
        place.fetch()


BAD: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty"),
    "html": (b"<!DOCTYPE html><html>", "is an HTML page, not a caffemodel"),
    "truncated": (weights()[:-3], "is not a caffemodel, or a truncated one"),
    "renamed": (weights("ip1"), "does not fit net tiny: layer 'ip' is missing, and 1 more"),
    "nan": (
        weights(value=float("nan")),
        "layer 'ip', blob 0 has 12 of 12 values that are not finite, such as nan, and 1 more",
    ),
    "shape": (weights(outputs=5), "layer 'ip', blob 0 is 5x3, not 4x3, and 1 more"),
}


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_snapshot_is_one_clear_line_and_not_kept(place: Place, bad: str) -> None:
    data, what = BAD[bad]
    place.snapshot.write_bytes(data)
    with pytest.raises(WeightsError) as kept:
        verify_weights(place.snapshot, NET)
    with pytest.raises(RunFailed) as fetched:
        place.fetch()
    for caught in (kept, fetched):
        assert what in str(caught.value)
        assert "\n" not in str(caught.value)
    assert str(fetched.value).startswith(f"n1:{place.snapshot}: the snapshot ")
    assert list(place.to.parent.iterdir()) == []


def test_an_ignored_layer_counts_only_if_it_has_weights(tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(weights("ip1"))
    assert find_ignored_learned(["in", "ip1", "never"], tmp_path / "w") == ["ip1"]
    assert find_ignored_learned([], tmp_path / "w") == []
