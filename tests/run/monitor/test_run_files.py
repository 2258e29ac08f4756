"""What attach reads, here and through a host's shell: both give the same."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from caffe_recipes.cluster.hosts import LocalHost
from caffe_recipes.errors import HostFailed, InputError, RunFailed
from caffe_recipes.limits import LIMITS_VARIABLE
from caffe_recipes.recipe.shipped import shipped_recipes
from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.run.folders import freeze_recipe
from caffe_recipes.run.monitor.run_files import (
    FilePiece,
    HostFiles,
    LocalFiles,
    Process,
    ReadRequest,
    RunFiles,
    load_frozen,
    name_recipe,
)
from caffe_recipes.run.process import make_room
from tests.stand_in_host import StandInHost, answer_call

HOSTILE = ["-n", "a b", "it's", "$(touch x)", '"', "new\nline", "*"]


@pytest.fixture(params=["here", "by a host's sh"])
def files(request: pytest.FixtureRequest) -> RunFiles:
    return LocalFiles() if request.param == "here" else HostFiles(LocalHost())


def test_new_content_is_read_to_the_byte(files: RunFiles, tmp_path: Path) -> None:
    path, whole = tmp_path / "log", bytes(range(256)) * 300
    path.write_bytes(whole)
    requests = [ReadRequest(str(path), start) for start in (0, 5, len(whole), len(whole) + 9)]
    assert files.read(requests).pieces == tuple(
        FilePiece(each.start, whole[each.start :]) for each in requests
    )


def test_a_file_over_the_limit_is_read_at_its_end(files: RunFiles, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"0123456789")
    snapshot = files.read([ReadRequest(str(path), 2, 8), ReadRequest(str(path), 2, 3)])
    assert snapshot.pieces == (FilePiece(2, b"23456789"), FilePiece(7, b"789"))


def test_a_file_over_the_limit_is_read_from_its_beginning_on_request(files: RunFiles, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"0123456789")
    requests = [
        ReadRequest(str(path), start, most, from_start=True)
        for start, most in ((2, 8), (2, 3), (9, 3), (12, 3))
    ]
    pieces = [FilePiece(2, b"23456789"), FilePiece(2, b"234"), FilePiece(9, b"9"), FilePiece(12, b"")]
    assert list(files.read(requests).pieces) == pieces


def test_a_missing_file_is_read_as_none(files: RunFiles, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    snapshot = files.read([ReadRequest(str(tmp_path / "none")), ReadRequest(str(tmp_path / "file" / "none"))])
    assert snapshot.pieces == (None, None)


@pytest.mark.promise("hostile files cost no more than their limit")
def test_a_large_recipe_of_a_run_is_refused(
    files: RunFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen = tmp_path / "recipe.json"
    frozen.write_text(json.dumps({"format": 1, **freeze_recipe(load_recipe("digits-local"))}))
    size = frozen.stat().st_size
    monkeypatch.setenv(LIMITS_VARIABLE, f"json-bytes={size}")
    assert load_frozen(files, str(tmp_path)).name == "digits-local"
    monkeypatch.setenv(LIMITS_VARIABLE, f"json-bytes={size - 1}")
    with pytest.raises(InputError, match=rf"recipe\.json: cannot be read: it is over {size - 1:,} bytes \("):
        load_frozen(files, str(tmp_path))


def test_a_path_that_is_not_a_file_is_refused_by_name(files: RunFiles, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"{tmp_path}: cannot be read"):
        files.read([ReadRequest(str(tmp_path))])


def test_runs_are_the_folders_that_hold_a_journal(files: RunFiles, tmp_path: Path) -> None:
    for name in ("small-1", "small-2", ".small-3.77"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        if name != "small-2":
            (tmp_path / "runs" / name / "journal.jsonl").touch()
    assert [name for name in files.names(str(tmp_path / "runs")) if name[0] != "."] == ["small-1"]
    assert files.names(str(tmp_path / "none")) == []


@pytest.mark.parametrize("name", HOSTILE)
def test_file_names_are_never_interpreted_by_a_shell(
    files: RunFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).mkdir()
    journal = Path(name) / "journal.jsonl"
    journal.write_text("x")
    assert files.read([ReadRequest(str(journal))], Process(1, name, name)).pieces == (FilePiece(0, b"x"),)
    assert files.names(name) == []
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_process_lives_while_it_has_the_file_open(files: RunFiles, tmp_path: Path) -> None:
    held, node = tmp_path / "journal.jsonl", socket.gethostname()
    held.touch()
    holder = subprocess.Popen(
        [sys.executable, "-c", "import sys; file = open(sys.argv[1]); print(); input()", str(held)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout
    holder.stdout.readline()

    def lives(pid: int, where: str = node) -> bool | None:
        return files.read((), Process(pid, where, str(held))).lives

    assert lives(holder.pid) is True
    assert lives(os.getpid()) is False, "its number has come round again"
    assert lives(holder.pid, "elsewhere") is None
    holder.communicate()
    assert lives(holder.pid) is False


def test_a_zombie_process_does_not_count_as_alive(files: RunFiles, tmp_path: Path) -> None:
    dead = subprocess.Popen(["true"])
    os.waitid(os.P_PID, dead.pid, os.WEXITED | os.WNOWAIT)
    process = Process(dead.pid, socket.gethostname(), str(tmp_path))
    assert files.read((), process).lives is False
    dead.wait()


@pytest.mark.parametrize(
    "records",
    [
        [],
        ["node n"],
        ["node n", "lives no", "piece x eA==", "end"],
        ["node n", "lives no", "piece 0 ?", "end"],
        ["node n", "lives no", "end"],
    ],
)
def test_an_invalid_answer_is_reported_with_the_host(records: list[str]) -> None:
    host = StandInHost(answer=lambda argv, stdin: answer_call(argv, *records))
    with pytest.raises(HostFailed, match=r"standin: cannot parse the answer to `look`: .*; check that"):
        HostFiles(host).read([ReadRequest("/x")])


def test_a_file_names_the_recipe_in_it_whichever_program_trains_it(tmp_path: Path) -> None:
    shipped = shipped_recipes()
    for name in ("digits-local", "tf-digits-local"):
        (tmp_path / "mine.yaml").write_text(shipped[name].file.read_text("utf-8"))
        assert name_recipe(str(tmp_path / "mine.yaml")) == name
    assert name_recipe("any-run-3") == "any-run-3"


def test_no_log_is_opened_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "log").symlink_to(tmp_path / "profile")
    with pytest.raises(RunFailed, match="cannot be created"):
        make_room(tmp_path / "log", lambda text: None)
    assert not (tmp_path / "profile").exists()


@pytest.mark.promise("hostile files cost no more than their limit")
def test_a_host_sends_no_more_of_a_file_than_is_requested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: RunFiles
) -> None:
    monkeypatch.setenv(LIMITS_VARIABLE, "journal-bytes=1000")
    (tmp_path / "journal").write_bytes(bytes(1000))
    assert files.read([ReadRequest(str(tmp_path / "journal"))]).pieces == (FilePiece(0, bytes(1000)),)
    (tmp_path / "journal").write_bytes(bytes(3000))
    assert files.read([ReadRequest(str(tmp_path / "journal"), 2000)]).pieces == (
        FilePiece(2000, bytes(1000)),
    )
    with pytest.raises(InputError, match=r"over 1,000 bytes .*journal-bytes=N raises this limit"):
        files.read([ReadRequest(str(tmp_path / "journal"))])
