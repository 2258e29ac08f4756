"""How far a build is: told seldom, and by the pace of this build alone."""

from __future__ import annotations

import pytest

from caffe_recipes.cli.progress import Progress


def test_progress_is_told_every_ten_seconds_by_this_build_s_pace(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    tell = Progress(lambda: now[0])
    for second, done in ((0, 1000), (5, 1500), (10, 2000), (15, 2500), (25, 3500)):
        now[0] = second
        tell(done, 10_000)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == [
        "2,000 of 10,000 images, 100 images/s, 1 min left",
        "3,500 of 10,000 images, 100 images/s, 1 min left",
    ]


def test_a_build_that_stands_still_tells_no_pace(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    tell = Progress(lambda: now[0])
    for second in (0, 20):
        now[0] = second
        tell(7, 9)
    assert capsys.readouterr().err == ""
