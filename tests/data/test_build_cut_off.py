"""Builds that are cut off: what is left, what is reported, and how they resume."""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import lmdb
import pytest

from caffe_recipes.caffe.datums import check_datums
from caffe_recipes.data.build import build_lmdb, build_lock, check_planned
from caffe_recipes.data.images import ConversionSettings
from caffe_recipes.data.manifest import BuildManifest, manifest_path
from caffe_recipes.data.tfrecords import check_tfrecords
from caffe_recipes.errors import DataError, RunFailed
from tests.data.conftest import CALL, FULL, names, plan_of, records, write_images

SQUARE = ConversionSettings(resize_height_px=16, resize_width_px=24)


def test_a_build_begun_by_another_plan_is_not_resumed(listed: Path, tmp_path: Path) -> None:
    (listed.parent / "a/4.JPEG").write_bytes(b"bad")
    with pytest.raises(DataError, match="--skip-bad"):
        build_lmdb(plan_of(listed), tmp_path / "lmdb")
    with pytest.raises(
        DataError, match=r"\.lmdb\.partial: was started with other images or settings; remove it"
    ):
        build_lmdb(plan_of(listed, SQUARE), tmp_path / "lmdb")


@pytest.mark.parametrize("is_first", [False, True])
def test_a_build_resumes_without_a_bad_image_that_was_deleted(
    listed: Path, tmp_path: Path, is_first: bool
) -> None:
    lines = listed.read_text().splitlines()
    bad = listed.parent / lines[0 if is_first else 2].split()[0]
    bad.write_bytes(b"bad")
    with pytest.raises(DataError, match="--skip-bad"):
        build_lmdb(plan_of(listed), tmp_path / "lmdb")
    bad.unlink()
    listed.write_text("\n".join(line for line in lines if not line.startswith(f"{lines[2].split()[0]} ")))
    if is_first:
        listed.write_text("\n".join(lines[1:]))
    check_planned(plan_of(listed), tmp_path / "lmdb")
    build_lmdb(plan_of(listed), tmp_path / "lmdb")
    resumed = records(tmp_path / "lmdb")
    build_lmdb(plan_of(listed), tmp_path / "again")
    assert resumed == records(tmp_path / "again") and len(resumed) == len(lines) - 1


def test_an_unfinished_build_whose_images_or_labels_have_changed_is_not_resumed(
    listed: Path, tmp_path: Path
) -> None:
    lines = listed.read_text().splitlines()
    (listed.parent / lines[3].split()[0]).write_bytes(b"bad")
    with pytest.raises(DataError, match="--skip-bad"):
        build_lmdb(plan_of(listed), tmp_path / "lmdb")
    relabelled = f"{lines[0].split()[0]} {int(lines[0].split()[1]) + 1}"
    for changed in (lines[1:], [lines[1], lines[0], *lines[2:]], [relabelled, *lines[1:]], lines[:2]):
        listed.write_text("\n".join(changed))
        for act in (check_planned, build_lmdb):
            with pytest.raises(DataError, match="was started with other images or settings"):
                act(plan_of(listed), tmp_path / "lmdb")


def test_an_unfinished_build_with_a_damaged_record_is_not_resumed_by_another_list(
    listed: Path, tmp_path: Path
) -> None:
    lines = listed.read_text().splitlines()
    (listed.parent / lines[3].split()[0]).write_bytes(b"bad")
    with pytest.raises(DataError, match="--skip-bad"):
        build_lmdb(plan_of(listed), tmp_path / "lmdb")
    with (
        lmdb.open(str(tmp_path / ".lmdb.partial/lmdb"), lock=False) as environment,
        environment.begin(write=True) as transaction,
    ):
        transaction.put(plan_of(listed).key(1), b"\xff")
    listed.write_text("\n".join(lines[:3] + lines[4:]))
    with pytest.raises(DataError, match="was started with other images or settings"):
        check_planned(plan_of(listed), tmp_path / "lmdb")


def test_an_unfinished_build_is_not_checked_while_it_is_written(listed: Path, tmp_path: Path) -> None:
    (listed.parent / listed.read_text().splitlines()[3].split()[0]).write_bytes(b"bad")
    with pytest.raises(DataError, match="--skip-bad"):
        build_lmdb(plan_of(listed), tmp_path / "lmdb")
    with (
        build_lock(tmp_path / ".lmdb.partial"),
        pytest.raises(DataError, match="another build is running in it"),
    ):
        check_planned(plan_of(listed, SQUARE), tmp_path / "lmdb")


def test_a_build_begun_by_another_plan_is_restarted_if_it_has_no_records(
    listed: Path, tmp_path: Path
) -> None:
    partial = tmp_path / ".lmdb.partial"
    (partial / "lmdb").mkdir(parents=True)
    (partial / "plan").write_text("another")
    lmdb.open(str(partial / "lmdb"), lock=False).close()
    build_lmdb(plan_of(listed), tmp_path / "lmdb")
    assert names(tmp_path) == ["images", "lmdb", "lmdb.manifest.json"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can play another user")
def test_an_unfinished_build_of_another_user_is_refused_and_not_read(listed: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        shared = Path(name)
        shared.chmod(0o1777)
        partial = shared / ".lmdb.partial"
        (partial / "lmdb").mkdir(parents=True)
        lmdb.open(str(partial / "lmdb"), lock=False).close()
        os.mkfifo(partial / "plan")  # reading it would wait
        os.chown(partial, 65534, 65534)
        with pytest.raises(DataError, match="cannot be written: it belongs to user 65534"):
            check_planned(plan_of(listed), shared / "lmdb")


def test_an_unfinished_build_that_is_damaged_is_named(listed: Path, tmp_path: Path) -> None:
    bad = listed.parent / "a/4.JPEG"
    whole = bad.read_bytes()
    bad.write_bytes(b"bad")
    with pytest.raises(DataError, match="--skip-bad"):
        build_lmdb(plan_of(listed), tmp_path / "lmdb")
    bad.write_bytes(whole)
    (tmp_path / ".lmdb.partial" / "lmdb" / "data.mdb").write_bytes(b"x" * 20_000)
    with pytest.raises(
        DataError, match=r"\.lmdb\.partial: is damaged: it does not contain an LMDB; remove it, and"
    ):
        build_lmdb(plan_of(listed), tmp_path / "lmdb")


def test_a_full_disk_is_a_failed_run_that_can_continue(tmp_path: Path) -> None:
    listed = write_images(tmp_path / "images", 6)
    listed.write_text(listed.read_text() * 500)
    words = [
        "data",
        "build",
        "--images",
        str(listed),
        "--out",
        str(tmp_path / "lmdb"),
        "--workers",
        "1",
        "--raw",
    ]
    done = subprocess.run([sys.executable, "-c", FULL, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert done.stderr.startswith(f"Error: {tmp_path / 'lmdb'}: cannot be written: ")
    assert "free space on its disk, or have it checked; run the same command again to resume" in done.stderr
    assert names(tmp_path) == [".lmdb.partial", "images"]
    build_lmdb(plan_of(listed, ConversionSettings(is_encoded=False)), tmp_path / "lmdb")
    assert check_datums(tmp_path / "lmdb", 3).count == 3000


def test_an_unfinished_build_that_is_truncated_is_named_rather_than_read(
    listed: Path, tmp_path: Path
) -> None:
    (listed.parent / "a/4.JPEG").write_bytes(b"bad")
    with pytest.raises(DataError, match="--skip-bad"):
        build_lmdb(plan_of(listed), tmp_path / "lmdb")
    os.truncate(tmp_path / ".lmdb.partial" / "lmdb" / "data.mdb", 8192)
    with pytest.raises(DataError, match=r"\.lmdb\.partial: is truncated: data.mdb has .*; remove it, and"):
        build_lmdb(plan_of(listed), tmp_path / "lmdb", skip_bad=True)


def test_damaged_pages_of_an_unfinished_build_are_named_rather_than_read(
    listed: Path, tmp_path: Path
) -> None:
    (listed.parent / "a/4.JPEG").write_bytes(b"bad")
    with pytest.raises(DataError, match="--skip-bad"):
        build_lmdb(plan_of(listed), tmp_path / "lmdb")
    file = tmp_path / ".lmdb.partial" / "lmdb" / "data.mdb"
    data = file.read_bytes()
    file.write_bytes(data[:8192] + bytes(len(data) - 8192))  # the two meta pages are intact
    with pytest.raises(DataError, match=r"\.lmdb\.partial: is damaged \(page \d .*; remove it, and build"):
        build_lmdb(plan_of(listed), tmp_path / "lmdb", skip_bad=True)
    assert names(tmp_path) == [".lmdb.partial", "images"]


def test_a_disk_too_full_for_the_manifest_is_a_failed_run_that_can_continue(
    listed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(out: Path, manifest: BuildManifest) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(out))

    monkeypatch.setattr("caffe_recipes.data.build.write_manifest", fail)
    with pytest.raises(
        RunFailed, match=r"No space left on device; free space .*; run the same command again to resume"
    ):
        build_lmdb(plan_of(listed), tmp_path / "lmdb")
    monkeypatch.undo()
    assert build_lmdb(plan_of(listed), tmp_path / "lmdb").images == 10


def test_tfrecords_on_a_full_disk_are_a_failed_run_that_can_continue(tmp_path: Path) -> None:
    listed = write_images(tmp_path / "images", 6)
    listed.write_text(listed.read_text() * 500)
    build_lmdb(plan_of(listed, ConversionSettings(120, 160)), tmp_path / "lmdb")
    words = ["data", "tfrecords", str(tmp_path / "lmdb"), "--out", str(tmp_path / "records"), "--shards", "2"]
    done = subprocess.run([sys.executable, "-c", FULL, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert done.stderr == (
        f"Error: {tmp_path / 'records'}: cannot be written: File too large; "
        "raise the limit on the size of files (ulimit -f); run the same command again to resume\n"
    )
    assert not (tmp_path / "records").exists()
    subprocess.run([sys.executable, "-c", CALL, *words], check=True, capture_output=True)
    assert check_tfrecords(tmp_path / "records").count == 3000
    assert names(tmp_path) == [
        *("images", "lmdb", "lmdb.manifest.json", "records", "records.manifest.json"),
    ]


def test_an_unfinished_build_that_may_not_be_written_is_not_a_full_disk(listed: Path, tmp_path: Path) -> None:
    (tmp_path / ".lmdb.partial").mkdir()
    (tmp_path / ".lmdb.partial" / "lmdb").write_text("")
    hint = "check the path and its permissions, or give another path; run the same"
    with pytest.raises(DataError, match=rf"lmdb: cannot be written: Not a directory; {hint}"):
        build_lmdb(plan_of(listed), tmp_path / "lmdb")


def test_a_worker_that_cannot_be_started_is_not_reported_as_another_build(
    listed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(process: BaseProcess) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(BaseProcess, "start", fail)
    hint = r"check this machine's memory, limits \(ulimit -a\) and disks; run the same"
    with pytest.raises(RunFailed, match=f"Resource temporarily unavailable; {hint}"):
        build_lmdb(plan_of(listed), tmp_path / "lmdb", workers=2)


def test_skipped_images_are_skipped_only_as_long_as_that_is_requested(
    listed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (listed.parent / "b/1.JPEG").write_bytes(b"bad")
    monkeypatch.setattr("caffe_recipes.data.build._COMMIT_EVERY", 3)

    def cut_off(done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_lmdb(plan_of(listed), tmp_path / "lmdb", skip_bad=True, on_progress=cut_off)
    what = r"\.lmdb\.partial: was started with --skip-bad, which skipped 'b/1.JPEG'; give --skip-bad"
    with pytest.raises(DataError, match=what):
        build_lmdb(plan_of(listed), tmp_path / "lmdb")
    assert build_lmdb(plan_of(listed), tmp_path / "lmdb", skip_bad=True).skipped == ["b/1.JPEG"]


def test_large_records_are_committed_before_a_thousand_of_them_fill_the_memory(
    listed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("caffe_recipes.data.build._COMMIT_BYTES", 10_000)
    reported: list[int] = []
    raw = ConversionSettings(40, 50, is_encoded=False)
    build_lmdb(plan_of(listed, raw), tmp_path / "lmdb", on_progress=lambda done, total: reported.append(done))
    assert reported == [0, 2, 4, 6, 8, 10]


def count_kept(partial: Path) -> int:
    """Count the records that an unfinished build has committed."""
    if not (partial / "lmdb" / "data.mdb").exists():
        return 0
    try:
        with lmdb.open(str(partial / "lmdb"), lock=False, readonly=True) as environment:
            return int(environment.stat()["entries"])
    except lmdb.Error:
        return 0


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_killed_build_resumes_to_the_same_result_as_an_undisturbed_one(
    tmp_path: Path, workers: int
) -> None:
    listed = write_images(tmp_path / "images", 12)
    listed.write_text(listed.read_text() * 400)
    words = [
        "--images",
        str(listed),
        "--resize-height",
        "24",
        "--resize-width",
        "24",
        "--shuffle",
        "--encode-type",
    ]
    out = tmp_path / "killed" / "lmdb"
    words = ["data", "build", *words, "png", "--workers", str(workers), "--out", str(out)]
    with subprocess.Popen([sys.executable, "-c", CALL, *words]) as process:
        while count_kept(out.parent / ".lmdb.partial") < 1000:
            assert process.poll() is None
            time.sleep(0.005)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        process.send_signal(signal.SIGKILL)
    assert len(children) >= (workers if workers > 1 else 0)
    while any(is_alive(int(child)) for child in children):
        time.sleep(0.01)
    assert names(out.parent) == [".lmdb.partial"]
    assert 1000 <= count_kept(out.parent / ".lmdb.partial") < 4800
    subprocess.run([sys.executable, "-c", CALL, *words], check=True, capture_output=True)
    plain = tmp_path / "plain" / "lmdb"
    build_lmdb(plan_of(listed, ConversionSettings(24, 24, encode_type="png"), seed=1), plain)
    assert names(out.parent) == ["lmdb", "lmdb.manifest.json"]
    assert manifest_path(out).read_bytes() == manifest_path(plain).read_bytes()
    assert records(out) == records(plain)


def test_a_kill_between_the_manifest_and_the_name_is_repaired(listed: Path, tmp_path: Path) -> None:
    out = tmp_path / "lmdb"
    built = build_lmdb(plan_of(listed), out)
    before = records(out)
    partial = tmp_path / ".lmdb.partial"
    partial.mkdir()
    (partial / "plan").write_text(built.plan)
    shutil.move(out, partial / "lmdb")
    assert build_lmdb(plan_of(listed), out) == built
    assert records(out) == before
    assert names(tmp_path) == ["images", "lmdb", "lmdb.manifest.json"]


def state(process: int) -> str:
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.slow
@pytest.mark.parametrize("is_sending", [False, True], ids=["any time", "amid a result"])
def test_a_killed_worker_is_a_failed_run_that_can_continue(tmp_path: Path, is_sending: bool) -> None:
    listed = write_images(tmp_path / "images", 6)
    listed.write_text(listed.read_text() * 1000)
    argv = [sys.executable, "-c", CALL, "data", "build", "--images", str(listed), "--workers", "2", "--raw"]
    argv += ["--out", str(tmp_path / "lmdb"), "--resize-height", "100", "--resize-width", "100"]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as process:
        while count_kept(tmp_path / ".lmdb.partial") < 1000:
            assert process.poll() is None
            time.sleep(0.005)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        workers = [int(c) for c in children if b"spawn_main" in Path(f"/proc/{c}/cmdline").read_bytes()]
        if is_sending:  # a result is larger than what may wait between two processes
            process.send_signal(signal.SIGSTOP)
            while state(workers[0]) != "S":
                time.sleep(0.01)
        os.kill(workers[0], signal.SIGKILL)
        process.send_signal(signal.SIGCONT)
        try:
            _, stderr = process.communicate(timeout=600)
        finally:
            process.kill()
    assert process.returncode == 3
    where = r"'[ab]/\d\.\w+' or soon after"
    killed = rf"Error: .*/lmdb: a worker was killed while it read {where}; run the same command"
    assert re.match(killed, stderr.splitlines()[-1])
    assert not (tmp_path / "lmdb").exists()
    assert subprocess.run(argv, check=False, capture_output=True).returncode == 0
    assert check_datums(tmp_path / "lmdb", 3).count == 6000


@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_ends_a_build_quietly_and_it_continues(tmp_path: Path, workers: int) -> None:
    listed = write_images(tmp_path / "images", 6)
    listed.write_text(listed.read_text() * 1000)
    argv = [sys.executable, "-c", CALL, "data", "build"]
    argv += ["--images", str(listed), "--out", str(tmp_path / "lmdb"), "--workers", str(workers), "--raw"]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        while count_kept(tmp_path / ".lmdb.partial") < 1000:
            assert process.poll() is None
            time.sleep(0.005)
        os.killpg(process.pid, signal.SIGINT)
        _, stderr = process.communicate(timeout=600)
    assert (process.returncode, stderr.strip()) == (130, "")
    assert names(tmp_path) == [".lmdb.partial", "images"]
    assert subprocess.run(argv, check=False, capture_output=True).returncode == 0
    assert check_datums(tmp_path / "lmdb", 3).count == 6000
