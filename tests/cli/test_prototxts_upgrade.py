"""`caffe-recipes upgrade`: where the text goes, what is printed, and that all files are written or none."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from caffe_recipes.cli.prototxts import upgrade
from caffe_recipes.errors import CheckFailed, PrototxtError

OLD = "layers { type: RELU # kept\n}"
NEW = 'layer {\n  type: "ReLU" # kept\n}\n'


def call(*words: str | Path, given: bytes | None = None) -> Result:
    return CliRunner().invoke(upgrade, [str(word) for word in words], input=given)


@pytest.fixture
def old(tmp_path: Path) -> Path:
    path = tmp_path / "old.prototxt"
    path.write_text(OLD)
    return path


def test_one_file_goes_to_standard_output_and_what_changed_to_standard_error(old: Path) -> None:
    done = call(old)
    assert (done.exit_code, done.stdout) == (0, NEW)
    assert done.stderr == f"{old}: 1 V1 layer: now `layer`\n"
    assert old.read_text() == OLD
    done = call("-", given=OLD.encode())
    assert (done.stdout, done.stderr) == (NEW, "<stdin>: 1 V1 layer: now `layer`\n")


def test_write_changes_old_files_only(old: Path) -> None:
    today = old.parent / "today.prototxt"
    today.write_text("base_lr:1")
    done = call("--write", old, today)
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr.splitlines()[1] == f"{today}: up to date"
    assert (old.read_text(), today.read_text()) == (NEW, "base_lr:1")
    assert call("-w", old).stderr == f"{old}: up to date\n"
    assert old.read_text() == NEW
    assert sorted(old.parent.iterdir()) == [old, today]


def test_out_writes_elsewhere(old: Path) -> None:
    out = old.parent / "new.prototxt"
    assert call(old, "-o", out).stdout == ""
    assert (old.read_text(), out.read_text()) == (OLD, NEW)
    assert call(old.parent / "new.prototxt", "-o", "-").stdout == NEW
    assert call("-", "-o", "-", given=OLD.encode()).stdout == NEW
    assert not Path("-").exists()
    done = call(out, "-o", old)  # an up-to-date file is copied, in canonical form
    assert (done.exit_code, old.read_text()) == (0, NEW)


def test_check_and_diff_write_nothing(old: Path) -> None:
    done = call("--check", old)
    assert isinstance(done.exception, CheckFailed)
    assert str(done.exception) == "1 of 1 file would change; run caffe-recipes upgrade -w"
    done = call("--diff", old)
    assert done.exit_code == 0
    assert '+  type: "ReLU" # kept\n' in done.stdout
    assert isinstance(call("--check", "--diff", old).exception, CheckFailed)
    assert old.read_text() == OLD
    call("-w", old)
    assert call("--check", old).exit_code == 0


def test_one_bad_file_leaves_all_files_unchanged(old: Path) -> None:
    bad = old.parent / "bad.prototxt"
    bad.write_text("layers { }\nlayer { }")
    done = call("-w", old, bad)
    assert isinstance(done.exception, PrototxtError)
    assert str(done.exception).startswith(f"{bad}:1:1: the net has both `layers` and `layer`")
    assert (old.read_text(), done.stderr) == (OLD, "")
    assert call("-w", old, old.parent / "nope").stderr == ""  # nothing that looks done


@pytest.mark.parametrize(
    "words", [["a", "b"], ["-w", "-o", "c", "a"], ["--check", "-w", "a"], ["-w", "-"], ["-o", "c", "a", "b"]]
)
def test_options_that_contradict_each_other_are_refused(words: list[str]) -> None:
    done = call(*words)
    assert done.exit_code == 2
    assert done.stderr.startswith("Usage:")
