from __future__ import annotations

import errno
import io
import re
from dataclasses import replace

import pytest
from rich.console import Console
from rich.text import Text

from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.run.console import PROGRESS_INTERVAL_S, Reporter, SafeConsole, describe_accuracy
from caffe_recipes.run.preflight.findings import CheckResult
from caffe_recipes.run.trainer_log import PhaseProgress

PHASES = {"init": 7800, "cyc1": 3750, "last": 400}
PROGRESS = PhaseProgress("cyc1", 1240, 3750, 0.4567891, 2.3456, 6301.2, 1631, 10_000, PHASES)
START = PhaseProgress("init", 0, 7800, None, 6.9, None, None, None, PHASES)
WAITING = replace(START, next_iter=40)
LINE = (
    "cyc1 2/3  1240/3750  lr 0.45679     loss 2.346     6,301 images/s  phase   27:11 left  run  2:46:40 left"
)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def plain_reporter(clock: Clock) -> tuple[Reporter, io.StringIO]:
    output = io.StringIO()
    return Reporter(Console(file=output, soft_wrap=True, highlight=False), clock), output


def test_a_line_of_progress_shows_rate_loss_speed_and_the_time_left() -> None:
    reporter, output = plain_reporter(Clock())
    reporter.show_progress(PROGRESS)
    assert output.getvalue() == f"  {LINE}\n"


def test_the_accuracy_of_the_last_test_is_shown_if_there_are_tests() -> None:
    reporter, output = plain_reporter(Clock())
    reporter.show_progress(replace(PROGRESS, test_accuracy=0.97531))
    assert "  loss 2.346    test 97.53%   6,301 images/s  " in output.getvalue()
    shown = [live_line(width, replace(PROGRESS, test_accuracy=0.97531)) for width in (80, 120)]
    assert all("test 97.53%" in line for line in shown)


def test_values_not_known_yet_are_blank_and_move_no_column() -> None:
    reporter, output = plain_reporter(Clock())
    reporter.show_progress_line(START)
    reporter.show_progress_line(PROGRESS)
    first, second = output.getvalue().splitlines()
    assert first == "  init 1/3     0/7800                 loss 6.900"
    assert first.index("loss") == second.index("loss")


@pytest.mark.parametrize("width", [80, 100, 120])
def test_until_the_speed_is_known_its_column_shows_what_it_waits_for(width: int) -> None:
    reporter, output = plain_reporter(Clock())
    reporter.show_progress_line(WAITING)
    assert (
        output.getvalue() == "  init 1/3     0/7800                 loss 6.900  next loss at iteration 40\n"
    )
    known, waiting = (live_line(width, progress).splitlines()[0] for progress in (PROGRESS, WAITING))
    assert "loss 6.900  next loss at iteration 40  " in waiting
    assert waiting.index("loss") == known.index("loss")
    assert len(waiting) == len(known)
    assert "next" not in live_line(40, WAITING)


def test_a_log_without_a_terminal_is_not_flooded() -> None:
    clock = Clock()
    reporter, output = plain_reporter(clock)
    for step in range(1000):
        clock.now = step * PROGRESS_INTERVAL_S / 100
        reporter.show_progress(PROGRESS)
    assert output.getvalue().count("\n") == 10
    assert "\x1b" not in output.getvalue()


def test_a_terminal_gets_one_live_line_that_is_erased() -> None:
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=120, color_system=None)
    reporter = Reporter(console, Clock())
    reporter.show_progress(PROGRESS)
    reporter.end_progress()
    assert LINE.removeprefix("cyc1 2/3  ") in output.getvalue()
    assert output.getvalue().endswith("\x1b[2K")


def live_line(width: int, progress: PhaseProgress = PROGRESS) -> str:
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=width, color_system=None)
    reporter = Reporter(console, Clock())
    reporter.show_progress(progress)
    reporter.end_progress()
    return output.getvalue()


def test_a_narrower_terminal_shortens_words_then_drops_rate_speed_and_bar() -> None:
    assert "cyc1 2/3  ━━━━━━──────────────  1240/3750  lr" in live_line(130)
    assert "cyc1 2/3  ━━━━──────────  1240/3750  lr" in live_line(120)
    times = "  left  27:11  run  2h46m"
    short = f"1240/3750  lr 0.45679     loss 2.346     6,301/s{times}"
    assert f"cyc1 2/3  ━━━━━━──────────────  {short}" in live_line(110)
    without_rate = short.replace("lr 0.45679     ", "")
    assert f"cyc1 2/3  ━━━───────  {without_rate}" in live_line(80)
    without_speed = without_rate.replace("     6,301/s", "  ")
    assert f"cyc1 2/3  ━━━─────────  {without_speed}" in live_line(72)
    assert f"cyc1 2/3  {without_speed}" in live_line(58)
    assert "cyc1 2/3  1240/3750  loss 2.346    run  2h46m" in live_line(50)


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 120, 200])
def test_no_line_of_progress_is_wider_than_its_terminal_and_none_is_cut(width: int) -> None:
    for text in filter(None, strip_controls(live_line(width)).splitlines()):
        assert len(text) <= width
        assert "…" not in text
        assert "run  2h46m" in text or " left" in text or width < 60


def test_a_terminal_that_knows_ascii_only_gets_a_bar_of_ascii() -> None:
    output = io.TextIOWrapper(io.BytesIO(), "ascii")
    console = Console(file=output, force_terminal=True, width=120, color_system=None)
    reporter = Reporter(console, Clock())
    reporter.show_progress(PROGRESS)
    reporter.end_progress()
    output.seek(0)
    assert "cyc1 2/3  ####----------  1240/3750" in output.read()


def test_a_check_that_is_wider_than_the_terminal_is_broken_between_words_under_its_column() -> None:
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=50, color_system=None, soft_wrap=True)
    reporter = Reporter(console, Clock())
    reporter.show_findings([CheckResult("folders", "runs, snapshots and prototxt can be written to by all")])
    reporter.show_findings([CheckResult("clock", "within 0.1 s", warns=True)])
    reporter.show_findings([CheckResult("test data", "will be built", is_checked=False)])
    assert output.getvalue() == (
        "ok      folders        runs, snapshots and\n"
        "                       prototxt can be written to\n"
        "                       by all\n"
        "warn    clock          within 0.1 s\n"
        "-       test data      will be built\n"
    )


def test_only_what_was_checked_is_green() -> None:
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=80, color_system="standard", soft_wrap=True)
    found = [CheckResult("disk", "10 GB free"), CheckResult("test data", "will be built", is_checked=False)]
    Reporter(console, Clock()).show_findings(found)
    assert ["\x1b[32m" in line for line in output.getvalue().splitlines()] == [True, False]
    assert [finding.mark for finding in found] == ["ok", "ok"]  # in JSON, as ever


def strip_controls(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "\n", text)


def test_texts_with_brackets_are_printed_as_they_are() -> None:
    reporter, output = plain_reporter(Clock())
    reporter.say("[0] Check failed: [/red] 'a'")
    assert output.getvalue() == "[0] Check failed: [/red] 'a'\n"


@pytest.mark.parametrize(
    "parts", [("::error::x",), (":", ":error::x"), ("  ", "::error::x"), ("a\n", "::error::x")]
)
def test_no_text_becomes_a_workflow_command_in_a_job_log(parts: tuple[str, ...]) -> None:
    stream = io.StringIO()
    console = SafeConsole(file=stream, width=80, color_system="truecolor", force_terminal=True)
    console.print(Text.assemble(*((part, f"rgb({index},0,0)") for index, part in enumerate(parts))))
    text = re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue())
    assert r"\x3a:error::x" in text
    assert not any(line.lstrip().startswith("::") for line in text.splitlines())


def test_accuracy_stands_beside_what_the_source_reports() -> None:
    outputs = {"loss": 0.942313, "loss3/top-1": 0.762781, "loss3/top-5": 0.931862}
    assert describe_accuracy(load_recipe("stampede2-64n-72ep").reported, outputs) == [
        "loss: 0.9423",
        "loss3/top-1: 76.28% (reported: 76.3%)",
        "loss3/top-5: 93.19% (reported: 93.2%)",
    ]


class GoneStream(io.StringIO):
    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error
        self.tries = 0

    def write(self, text: str) -> int:
        self.tries += 1
        raise self.error


@pytest.mark.parametrize(
    "error", [OSError(errno.EIO, "gone"), BrokenPipeError(errno.EPIPE, "gone"), ValueError("closed")]
)
@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_closed_console_is_tried_once_and_does_not_end_the_run(error: Exception, is_terminal: bool) -> None:
    output = GoneStream(error)
    reporter = Reporter(Console(file=output, force_terminal=is_terminal), Clock())
    reporter.show_progress(PROGRESS)
    reporter.say("one")
    reporter.end_progress()
    reporter.say("two")
    assert output.tries == 1


def test_a_branch_side_by_side_is_named_in_each_line_and_has_its_own_live_line() -> None:
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=120, color_system=None)
    reporter = Reporter(console, Clock())
    beside = reporter.for_branch("side")
    reporter.show_progress(PROGRESS)
    beside.show_progress(replace(PROGRESS, phase="side", iteration=7, phases={}))
    beside.say("trying again")
    beside.say("side: finished", names_phase=True)
    reporter.end_progress()
    output.seek(0)
    output.truncate()
    beside.show_progress(replace(PROGRESS, phase="side", iteration=8, phases={}))
    beside.end_progress()
    reporter.say("init: finished")
    printed = output.getvalue()
    assert "side 1/1" in printed
    assert "8/3750" in printed
    assert "cyc1" not in printed, "that line was taken away"
    assert "init: finished" in printed


def test_the_lines_of_a_branch_side_by_side_begin_with_its_name() -> None:
    reporter, output = plain_reporter(Clock())
    beside = reporter.for_branch("side")
    beside.say("trying again")
    beside.say("side: finished", names_phase=True)
    reporter.say("finished")
    assert output.getvalue() == "side: trying again\nside: finished\nfinished\n"
