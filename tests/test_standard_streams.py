"""Tests of output that is full or has no reader."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from caffe_recipes.errors import InputError, ReaderGone
from caffe_recipes.standard_streams import print_error, print_output


def test_output_without_a_reader_ends_without_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, err in (("stdout", False), ("stderr", True)):
        reader, writer = os.pipe()
        os.close(reader)
        with os.fdopen(writer, "w") as stream:
            monkeypatch.setattr(sys, name, stream)
            with pytest.raises(ReaderGone):
                print_output("text", err=err)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_output_to_a_full_disk_is_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, err, stream in (("stdout", False, "output"), ("stderr", True, "error")):
        with Path("/dev/full").open("w") as full:
            monkeypatch.setattr(sys, name, full)
            with pytest.raises(InputError, match=f"^cannot write to standard {stream}: No space left on "):
                print_output("text", err=err)


def test_an_error_that_cannot_be_printed_is_not_written_again_at_exit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stream:  # closing it writes what is pending, as Python does at exit
        monkeypatch.setattr(sys, "stderr", stream)
        print_error("an error")
