"""A finished run that is run again."""

from __future__ import annotations

import errno
import os
import sys
from typing import TYPE_CHECKING

import pytest

import caffe_recipes as cr
from caffe_recipes.errors import InputError, WeightsError
from caffe_recipes.run.journal import JournalError

if TYPE_CHECKING:
    from tests.run.conftest import Place


def make_read_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prevent journals from being opened for writing, as on a read-only disk."""
    opened = os.open

    def refuse(path: str, flags: int, mode: int = 0o777) -> int:
        if str(path).endswith("journal.jsonl") and flags & os.O_RDWR:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return opened(path, flags, mode)

    monkeypatch.setattr(os, "open", refuse)


def test_a_finished_run_on_a_read_only_disk_is_shown(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    before = place.run()
    make_read_only(monkeypatch)
    assert place.run().outputs == before.outputs
    assert "small-1 is finished; use --new to start another run" in place.output.getvalue()


def test_a_hostfile_that_a_finished_run_does_not_use_is_named(place: Place) -> None:
    place.begin()
    place.run(hostfile=place.root / "other")
    last = place.output.getvalue().partition("small-1 is finished; ")[2]
    assert last.startswith("--hostfile is not used; use --new to start another run")


def test_a_run_that_is_not_finished_needs_a_disk_that_can_be_written(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.begin(cyc1="ends-early")
    make_read_only(monkeypatch)
    with pytest.raises(
        JournalError, match="cannot be opened: Read-only file system; have its file system mounted read-write"
    ) as caught:
        place.run()
    assert "--new" not in str(caught.value)


def test_a_possible_location_of_a_lost_snapshot_is_named(place: Place) -> None:
    place.begin(cyc1="ends-early")
    kept = place.root / "runs/small-1/snapshots/small_init_iter_8.caffemodel"
    kept.write_bytes(kept.read_bytes()[:100])
    hint = "restore it, for example from tmp/small_init_iter_8.caffemodel on the host of rank 0"
    with pytest.raises(WeightsError, match=hint):
        place.run()
    kept.write_bytes((place.root / "tmp/small_init_iter_8.caffemodel").read_bytes())
    assert place.run().outputs


def test_a_run_whose_program_was_replaced_before_its_report_finishes(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "caffe_recipes.run.report.writing", None)
    assert place.run().outputs
    assert "the report of runs/small-1 was not written: " in place.output.getvalue()


def test_python_trains_a_recipe_and_the_same_call_trains_nothing_again(place: Place) -> None:
    summary = cr.run_recipe(place.recipe, root=place.root)
    assert (summary.run, summary.state, summary.top1) == ("small-1", "finished", 0.75)
    logs = sorted((place.root / "runs" / "small-1" / "logs").iterdir())
    assert cr.run_recipe(cr.load_recipe(place.recipe), root=place.root).run == "small-1"
    assert sorted((place.root / "runs" / "small-1" / "logs").iterdir()) == logs
    with pytest.raises(InputError):
        cr.run_recipe(place.root / "absent.yaml", root=place.root)
