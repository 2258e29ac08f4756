"""`caffe-recipes fmt`: what it writes, what it leaves alone, and that `--check` writes nothing."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.prototxt import parse_prototxt
from caffe_recipes.cli.prototxts import fmt
from caffe_recipes.errors import CheckFailed, InputError, PrototxtError

UGLY = "base_lr:0.10 # start\n\n  net : 'n'"
CANONICAL = 'net: "n"\nbase_lr: 0.1 # start\n'


def call(*words: str | Path, given: bytes | None = None) -> Result:
    return CliRunner().invoke(fmt, [str(word) for word in words], input=given)


@pytest.fixture
def ugly(tmp_path: Path) -> Path:
    path = tmp_path / "solver.prototxt"
    path.write_text(UGLY)
    return path


def test_a_file_is_formatted_in_place_and_then_left_alone(ugly: Path) -> None:
    done = call(ugly)
    assert (done.exit_code, done.stdout) == (0, f"formatted {ugly}\n1 formatted, 0 unchanged\n")
    assert ugly.read_text() == CANONICAL
    before = ugly.stat()
    assert call(ugly).stdout == "0 formatted, 1 unchanged\n"
    assert (ugly.stat().st_ino, ugly.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert list(ugly.parent.iterdir()) == [ugly]


@pytest.mark.parametrize(
    ("name", "text", "formatted"),
    [
        ("deploy.prototxt", "layer{type:'ReLU'}", 'layer { type: "ReLU" }\n'),
        ("old.prototxt", "layers{type:RELU}", "layers { type: RELU }\n"),
        ("phases.prototxt", "params_pair{batch_size:3}", "params_pair { batch_size: 3 }\n"),
        ("labels.prototxt", "item{label:3}", "item { label: 3 }\n"),
        ("windows.prototxt", "\ufeffname:'n'\r\n# last\r\n", 'name: "n"\n# last\n'),
    ],
)
def test_every_kind_of_prototxt_is_formatted(tmp_path: Path, name: str, text: str, formatted: str) -> None:
    (tmp_path / name).write_bytes(text.encode())
    assert call(tmp_path / name).exit_code == 0
    assert (tmp_path / name).read_bytes() == formatted.encode()


def test_check_names_what_would_change_and_writes_nothing(ugly: Path) -> None:
    (ugly.parent / "b.prototxt").write_text(CANONICAL)
    done = call("--check", ugly, ugly.parent / "b.prototxt")
    assert isinstance(done.exception, CheckFailed)
    assert str(done.exception) == "1 of 2 files would change; run caffe-recipes fmt on them"
    assert done.stdout == f"would format {ugly}\n"
    assert ugly.read_text() == UGLY
    done = call("--check", ugly.parent / "b.prototxt")
    assert (done.exit_code, done.stdout) == (0, "0 would change, 1 unchanged\n")


def test_diff_prints_what_would_change_and_writes_nothing(ugly: Path) -> None:
    done = call("--diff", ugly)
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        f"--- a/{ugly}",
        f"+++ b/{ugly}",
        "@@ -1,3 +1,2 @@",
        "-base_lr:0.10 # start",
        "-",
        "-  net : 'n'",
        "\\ No newline at end of file",
        '+net: "n"',
        "+base_lr: 0.1 # start",
    ]
    assert ugly.read_text() == UGLY
    assert isinstance(call("--diff", "--check", ugly).exception, CheckFailed)


def test_a_folder_stands_for_the_prototxts_below_it(tmp_path: Path) -> None:
    inside, hidden, other = tmp_path / "a/b/n.prototxt", tmp_path / ".git/n.prototxt", tmp_path / "a/n.txt"
    for path in (inside, hidden, other):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("name:'n'")
    done = call(tmp_path, inside)
    assert done.stdout == f"formatted {inside}\n1 formatted, 0 unchanged\n"
    assert (hidden.read_text(), other.read_text()) == ("name:'n'", "name:'n'")


def test_a_folder_that_cannot_be_read_is_not_skipped(unreadable: Path) -> None:
    (unreadable / "n.prototxt").write_text(UGLY)
    done = call("--check", unreadable)
    assert str(done.exception).startswith(f"{unreadable / 'closed'}: cannot be read: Permission denied")
    assert (unreadable / "n.prototxt").read_text() == UGLY


def test_a_folder_without_prototxts_is_reported(tmp_path: Path) -> None:
    done = call(tmp_path)
    assert isinstance(done.exception, InputError)
    assert str(done.exception) == f"{tmp_path}: contains no prototxt files; name the files"


def test_one_bad_file_leaves_all_files_unchanged(ugly: Path) -> None:
    bad = ugly.parent / "bad.prototxt"
    bad.write_text("base_lr: 1\ngamma: x")
    done = call(ugly, bad)
    assert isinstance(done.exception, PrototxtError)
    assert str(done.exception) == f"{bad}:2:8: 'gamma' takes a number, not 'x'; write it in decimal"
    assert ugly.read_text() == UGLY


def test_standard_input_goes_to_standard_output() -> None:
    done = call("-", given=UGLY.encode())
    assert (done.exit_code, done.stdout) == (0, CANONICAL)
    done = call("-", given=b"gama: 2.0 base_lr: 1 # one")
    assert (done.exit_code, done.stdout) == (0, "base_lr: 1 # one\ngama: 2\n")
    assert done.stderr == (
        "<stdin>:1:1: SolverParameter has no field 'gama' in any known Caffe; did you mean 'gamma'?\n"
    )
    assert call("-", "x.prototxt", given=b"").exit_code == 2
    assert isinstance(call("--check", "-", given=UGLY.encode()).exception, CheckFailed)
    assert "is over 3 bytes" in str(call("--max-bytes", "3", "-", given=b"net: 'n'").exception)


def test_a_file_keeps_its_mode_and_a_link_stays_a_link(ugly: Path) -> None:
    ugly.chmod(0o640)
    link = ugly.parent / "link.prototxt"
    link.symlink_to(ugly.name)
    done = call(link, ugly)
    assert done.stdout == f"formatted {link}\n1 formatted, 0 unchanged\n"
    assert link.is_symlink()
    assert ugly.read_text() == CANONICAL
    assert stat.S_IMODE(ugly.stat().st_mode) == 0o640


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_if_one_file_cannot_be_written_none_is(ugly: Path) -> None:
    locked = ugly.parent / "locked.prototxt"
    locked.write_text(UGLY)
    locked.chmod(0o444)
    done = call(ugly, locked)
    assert str(done.exception).startswith(f"{locked}: cannot be written (Permission denied)")
    assert ugly.read_text() == UGLY
    assert sorted(ugly.parent.iterdir()) == [locked, ugly]


def test_if_one_file_cannot_be_written_the_rest_are_unchanged(ugly: Path) -> None:
    second = ugly.parent / "b" / f"{'s' * 240}.prototxt"  # no temporary name of it fits
    second.parent.mkdir()
    second.write_text(UGLY)
    done = call(ugly, second)
    assert str(done.exception).startswith(f"{second}: cannot be written (File name too long)")
    assert ugly.read_text() == UGLY
    assert sorted(path.name for path in ugly.parent.iterdir()) == ["b", "solver.prototxt"]


def test_reformatting_keeps_the_message_that_caffe_reads(tmp_path: Path) -> None:
    text = (
        "layer < name: 'a' \"b\" convolution_param: { pad: [1, 0x2], engine: 1; axis: -1 } > , name: 't\\x41'"
    )
    path = tmp_path / "n.prototxt"
    path.write_text(text)
    assert call(path).exit_code == 0
    assert parse_prototxt(path.read_text(), pb.NetParameter) == parse_prototxt(text, pb.NetParameter)
    assert path.read_text() == (
        'name: "tA"\nlayer { name: "ab" convolution_param { pad: 1 pad: 2 engine: CAFFE axis: -1 } }\n'
    )


def test_a_folder_stands_for_its_pt_files_too_but_not_for_pytorch_s_weights(tmp_path: Path) -> None:
    (tmp_path / "solver.pt").write_text(UGLY)
    (tmp_path / "zip.pt").write_bytes(b"PK\x03\x04archive/data.pkl")
    (tmp_path / "pickle.pt").write_bytes(b"\x80\x02cfoo")
    (tmp_path / "tensor.pt").write_bytes(b"ab\0c")
    done = call(tmp_path)
    assert (done.exit_code, done.stdout) == (
        0,
        f"formatted {tmp_path / 'solver.pt'}\n1 formatted, 0 unchanged\n",
    )
    assert (tmp_path / "solver.pt").read_text() == CANONICAL
