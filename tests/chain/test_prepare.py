"""What is made before the first phase; on this machine, with the stand-in for caffe."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from caffe_recipes.chain.setting import Setting
from caffe_recipes.errors import RunFailed

if TYPE_CHECKING:
    from tests.chain.conftest import Place


def test_a_disk_that_is_full_for_the_digits_fails_the_run_which_says_so_in_its_journal(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(folder: Path) -> None:
        raise RunFailed(folder, "cannot be written: No space left on device", "make room on its disk")

    lmdb = place.root / "digits" / "digits_train_lmdb"
    monkeypatch.setattr(Setting, "built_lmdbs", property(lambda setting: (lmdb,)))
    monkeypatch.setattr("caffe_recipes.data.digits.build_digits", fail)
    with pytest.raises(RunFailed, match="digits: cannot be written: No space left on device"):
        place.run()
    assert place.events()[-1]["event"] == "failed"
    monkeypatch.undo()
    assert place.run().outputs
