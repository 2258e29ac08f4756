from __future__ import annotations

import json
from pathlib import Path

import pytest

from caffe_recipes.errors import InputError
from caffe_recipes.run.journal import JournalError
from caffe_recipes.run.submit.submissions import (
    Submission,
    SubmissionJournal,
    Submissions,
    fold_submissions,
    load_submissions,
    submissions_path,
)

SCRIPT = "jobs/small/chain.sbatch"


def open_journal(root: Path) -> SubmissionJournal:
    return SubmissionJournal(submissions_path(root, "small"), lambda: 1_000_000.0)


def submission(name: str, group: str = "aaaaaa", phase: str | None = None) -> Submission:
    return Submission(name, group, SCRIPT, 1_000_000.0, ("sbatch", SCRIPT), "slurm", phase, "runs/a.out")


def test_the_submissions_are_computed_from_the_events(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    for name in ("small-a", "small-b", "small-c"):
        journal.begin(submission(name))
    assert [each.name for each in journal.state().all if not each.is_settled] == [
        "small-a",
        "small-b",
        "small-c",
    ]
    journal.settle("small-a", 12)
    journal.refuse("small-b", "no such account")
    journal.settle("small-c", 13)
    journal.cancel("small-c")
    state = journal.state()
    journal.close()
    outcomes = [(each.outcome, each.job_id, each.reason) for each in state.all]
    assert outcomes == [
        ("submitted", 12, ""),
        ("refused", None, "no such account"),
        ("cancelled", 13, ""),
    ]
    assert all(each.is_settled for each in state.all)
    assert state.all[0].argv == ("sbatch", SCRIPT)


def test_the_latest_are_those_of_the_last_submit(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    journal.begin(submission("small-a"))
    journal.begin(submission("small-b-init", "bbbbbb", "init"))
    journal.begin(submission("small-b-cyc1", "bbbbbb", "cyc1"))
    latest = journal.state().latest
    journal.close()
    assert [each.phase for each in latest] == ["init", "cyc1"]


def test_without_submissions_no_file_exists_or_is_created(tmp_path: Path) -> None:
    assert load_submissions(submissions_path(tmp_path, "small")) == Submissions()
    assert Submissions().latest == ()
    assert list(tmp_path.iterdir()) == []


def test_a_second_concurrent_submit_is_refused(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    with pytest.raises(InputError, match="another submit or cancel of this recipe is running; wait for it"):
        open_journal(tmp_path)
    journal.close()
    open_journal(tmp_path).close()


def test_a_line_that_a_crash_truncated_is_not_read_and_then_cut_off(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    journal.begin(submission("small-a"))
    with journal.path.open("ab") as file:
        file.write(b'{"time": "2026-11-')
    assert [each.name for each in journal.state().all if not each.is_settled] == ["small-a"]
    journal.settle("small-a", 12)
    journal.close()
    assert [json.loads(line)["event"] for line in journal.path.read_text().splitlines()] == [
        "submitting",
        "submitted",
    ]


@pytest.mark.parametrize(
    "line",
    [
        "{}",
        "3",
        '{"time": "2026-11-22T08:00:00+00:00", "event": "submitting"}',
        '{"time": "2026-11-22T08:00:00+00:00", "event": "submitted", "name": "none", "job_id": 1}',
    ],
)
def test_a_damaged_line_is_named(line: str) -> None:
    good = (
        '{"format": 1, "time": "2026-11-22T08:00:00+00:00", "event": "submitting", '
        '"name": "small-a", "group": "aaaaaa", "script": "x"}'
    )
    with pytest.raises(JournalError, match="runs/x:2: is not a journal line; fix it, or move it away"):
        fold_submissions(f"{good}\n{line}\n", "runs/x")


def test_submissions_of_another_format_are_not_read_and_say_so(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    with journal.path.open("ab") as file:
        file.write(b'{"format": 1, "ti')
    journal.begin(submission("small-a"))
    journal.close()
    text = journal.path.read_text()
    assert [each.name for each in fold_submissions(text, "runs/x").all] == ["small-a"]
    hint = "move it away once no job of the recipe is pending or running"
    with pytest.raises(JournalError, match=rf"^runs/x: written by another version .*format 2; .*; {hint}$"):
        fold_submissions(text.replace('"format": 1', '"format": 2'), "runs/x")
