"""The progress of a build: reported rarely, and by the rate of this build alone."""

from __future__ import annotations

import pytest

from caffe_recipes.cli.data import BuildProgress


def test_progress_is_reported_every_ten_seconds_by_this_build_s_pace(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = [0.0]
    progress = BuildProgress(lambda: now[0])
    for second, done in ((0, 1000), (5, 1500), (10, 2000), (15, 2500), (25, 3500)):
        now[0] = second
        progress(done, 14_000)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines()[1:] == [
        "2,000 of 14,000 images, 100 images/s, 2 min left",
        "3,500 of 14,000 images, 100 images/s, 2 min left",
    ]


def test_the_time_left_is_shown_in_seconds_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    progress = BuildProgress(lambda: now[0])
    for second, done in ((0, 0), (10, 100), (20, 910)):
        now[0] = second
        progress(done, 1000)
    assert [line.split(", ")[-1] for line in capsys.readouterr().err.splitlines()] == [
        "2 min left",
        "2 s left",
    ]


def test_a_resumed_build_reports_where_it_resumes(capsys: pytest.CaptureFixture[str]) -> None:
    progress = BuildProgress(lambda: 0.0)
    progress(1234, 9000)
    progress(1235, 9000)
    assert capsys.readouterr().err == "resuming: 1,234 of 9,000 images are done\n"


def test_a_stalled_build_reports_no_rate(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    progress = BuildProgress(lambda: now[0])
    for second in (0, 20):
        now[0] = second
        progress(0, 9)
    assert capsys.readouterr().err == ""
