from __future__ import annotations

import signal
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from caffe_recipes.caffe.logs import LogSummary, summarize_log
from caffe_recipes.cluster.rank_exits import ENDED_BY_US
from caffe_recipes.run.context import Run
from caffe_recipes.run.tensorflow import ProgramLog
from caffe_recipes.run.trainer import Training
from caffe_recipes.run.trainer_log import (
    LogTail,
    describe_last_words,
    find_divergence,
    find_failure,
    find_guessing,
    find_unread,
    has_passed,
    images_per_s,
    is_ending,
    measure,
)

TRAINING = Training("init", "net", (), None, "tmp/a_iter_100.caffemodel", "kept", 100, False, 64, 1)
STOPPED = replace(TRAINING, is_stopped=True)


def lines(*losses: tuple[int, float, str]) -> list[str]:
    """Write losses as rank 0's log: (second, iteration, loss)."""
    return [
        f"[0] I1120 11:49:{second:02}.000000 6374 solver.cpp:312] Iteration {int(iteration)}, loss = {loss}"
        for second, iteration, loss in losses
    ]


def summary(*losses: tuple[int, float, str]) -> LogSummary:
    return summarize_log(lines(*losses))


def test_a_growing_log_is_read_a_whole_line_at_a_time(tmp_path: Path) -> None:
    log = tmp_path / "log"
    tail = LogTail(log)
    tail.read()
    first, second = lines((0, 0, "2.5"), (1, 20, "1.5"))
    log.write_text(f"{first}\n{second[:30]}")
    tail.read()
    assert tail.summary.losses == {0: 2.5}
    with log.open("a") as file:
        file.write(f"{second[30:]}\n[0] cut sho")
    tail.read()
    assert tail.summary.losses == {0: 2.5, 20: 1.5}
    tail.read(to_end=True)
    assert tail.last_line == "cut sho"


def peak_bytes(read: Callable[[], object]) -> int:
    """Return the peak memory of Python's objects meanwhile."""
    tracemalloc.start()
    try:
        read()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_flood_is_read_by_bounded_pieces(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"[0] %s\n" % (b"again " * 2_000) * 1_000 + f"{lines((0, 0, '2.5'))[0]}\n".encode())
    tail = LogTail(log)
    assert peak_bytes(tail.read) < 8 << 20 < log.stat().st_size
    assert (tail.lines, tail.summary.losses) == (1_001, {0: 2.5})


def test_a_line_without_end_is_cut(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as file:
        file.write(b"[0] ")
        file.truncate(48 << 20)  # zeros, that take no room on the disk
        file.seek(0, 2)
        file.write(f"\n{lines((0, 0, '2.5'))[0]}\n".encode())
    tail = LogTail(log)
    assert peak_bytes(lambda: tail.read(to_end=True)) < 8 << 20
    assert (tail.lines, tail.summary.losses) == (2, {0: 2.5})


@pytest.mark.parametrize("label", ["", "[3] "])
def test_the_line_that_glog_dies_with_is_found_in_the_midst_of_a_long_log(tmp_path: Path, label: str) -> None:
    log = tmp_path / "log"
    with log.open("wb") as file:
        file.truncate(90 << 20)
        file.seek(40 << 20)
        file.write(f"\n{label}F1120 11:49:33.768350  6374 layer_factory.hpp:81] Unknown layer\n".encode())
    tail = LogTail(log)
    tail.read(to_end=True)
    assert "Unknown layer" in (tail.summary.fatal or "")


def test_a_resume_reads_both_ends_of_a_long_log_and_the_reason_of_the_end(tmp_path: Path) -> None:
    log, ignored = tmp_path / "log", log_line("Ignoring source layer fc1000")
    head, middle, end = lines((0, 0, "2.5"), (1, 20, "2"), (2, 40, "1.5"))
    with log.open("wb") as file:
        file.write(f"{head}\n".encode())
        for at in (30 << 20, 60 << 20):
            file.seek(at)
            file.write(f"\n{middle}\n{ignored if at < 40 << 20 else SNAPSHOT}\n".encode())
        file.seek(90 << 20)
        file.write(f"\n{end}\n{log_line('Optimization Done.')}\n".encode())
    tail = LogTail(log)
    assert peak_bytes(lambda: tail.read(to_end=True)) < 8 << 20
    assert tail.summary.losses == {0: 2.5, 40: 1.5}
    assert list(tail.summary.ignored) == ["fc1000"]
    assert tail.summary.snapshots == [TRAINING.snapshot]
    assert tail.summary.done
    assert find_failure(tail, TRAINING) is None


def test_bytes_that_are_not_text_do_not_stop_the_watch(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"\xff\xfe\n" + lines((0, 0, "2.5"))[0].encode() + b"\n")
    tail = LogTail(log)
    tail.read()
    assert tail.summary.losses == {0: 2.5}


def test_speed_is_images_between_displays_by_their_times() -> None:
    seen = summary((0, 0, "2"), (10, 40, "2"), (15, 80, "2"))
    assert images_per_s([seen], 4096) == pytest.approx(80 * 4096 / 15)
    assert images_per_s([seen], 4096, displays=2) == pytest.approx(40 * 4096 / 5)
    assert images_per_s([summary((0, 0, "2"))], 4096) is None
    assert images_per_s([], 4096) is None
    again = summary((0, 40, "2"), (20, 80, "2"))
    assert images_per_s([seen, again], 4096) == pytest.approx(120 * 4096 / 35), "every launch counts"
    assert images_per_s([summary((5, 0, "2"), (5, 40, "2"))], 4096) is None


def test_the_time_left_is_computed_from_the_current_speed() -> None:
    progress = measure(summary((0, 0, "2"), (10, 100, "1.5")), "init", {"init": 300}, 64, later_iterations=50)
    assert (progress.iteration, progress.loss, progress.rate) == (100, 1.5, None)
    assert progress.phase_left_s == pytest.approx(20)
    assert progress.chain_left_s == pytest.approx(25)


def test_until_the_speed_is_known_the_next_loss_is_named() -> None:
    def waits(*seen: tuple[int, float, str], last: int = 203) -> str:
        return measure(summary(*seen), "init", {"init": last}, 64, 0, display_iter=20).waits_for

    assert waits((0, 0, "2")) == "next loss at iteration 20"
    assert waits((0, 1000, "2"), last=2000) == "next loss at iteration 1,020"
    assert waits((0, 0, "2"), (10, 20, "2")) == "", (
        "the speed is known from the first display after the start"
    )
    assert waits((0, 0, "2"), last=19) == "", "no other loss follows"


def test_the_rate_is_that_of_the_iteration_that_is_shown() -> None:
    log = [
        log_line("Iteration 80, loss = 2"),
        log_line("Iteration 80, lr = 0.074286"),
        log_line("Iteration 100, loss = 1.5"),
        log_line("Iteration 100, lr = 0.09"),
    ]
    before = measure(summarize_log(log[:3]), "init", {"init": 300}, 64, later_iterations=0)
    assert (before.iteration, before.loss, before.rate) == (100, 1.5, None)
    assert measure(summarize_log(log), "init", {"init": 300}, 64, later_iterations=0).rate == 0.09


@pytest.mark.parametrize("loss", ["nan", "-nan", "inf"])
def test_a_loss_that_is_not_a_number_is_lost_at_once(loss: str) -> None:
    failure = find_divergence(summary((0, 0, "2"), (1, 20, loss), (2, 40, "2")).losses)
    assert failure is not None
    assert failure.endswith("at iteration 20")


def test_a_saturated_loss_is_lost_when_it_stays() -> None:
    assert find_divergence(summary((0, 0, "2"), (1, 20, "87.3365"), (2, 40, "2")).losses) is None
    stuck = find_divergence(summary((0, 0, "2"), (1, 20, "87.3365"), (2, 40, "87.3365")).losses)
    assert stuck == "the loss is stuck at 87.3365 at iteration 40"


def test_a_log_without_its_end_fails_with_its_last_line(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("[proxy:0@vm] execvp error on file ./caffe (No such file or directory)\n\n")
    tail = LogTail(log)
    tail.read()
    failure = find_failure(tail, TRAINING)
    assert failure is not None
    assert failure.startswith("it ended before the first iteration, saying: [proxy:0@vm] execvp error")


def tail_of(tmp_path: Path, *lines: str) -> LogTail:
    (tmp_path / "log").write_text("".join(f"{line}\n" for line in lines))
    tail = LogTail(tmp_path / "log")
    tail.read(to_end=True)
    return tail


def log_line(text: str) -> str:
    return f"[0] I1120 11:49:33.768350  6374 solver.cpp:770] {text}"


SNAPSHOT = log_line(f"Snapshotting to binary proto file {TRAINING.snapshot}")
END = log_line("Snapshot end")
EARLY = log_line("Optimization stopped early.")


@pytest.mark.parametrize(
    ("log", "whole"),
    [
        ([], False),
        ([SNAPSHOT], False),
        ([SNAPSHOT, log_line("Iteration 80, loss = 2")], False),
        ([SNAPSHOT, END], True),
        ([SNAPSHOT.replace("_100", "_50"), END], False),
        ([SNAPSHOT.replace("_100", "_50"), END, SNAPSHOT], False),
        ([SNAPSHOT, log_line("Iteration 100, loss = 2")], True),
        ([SNAPSHOT, log_line("Iteration 100, loss = 2").replace("[0]", "[1]")], False),
    ],
)
def test_a_snapshot_is_complete_once_the_log_reports_it_or_something_later(
    tmp_path: Path, log: list[str], whole: bool
) -> None:
    tail = tail_of(tmp_path, *log)
    assert has_passed(tail.summary, TRAINING.snapshot, 100) is whole
    assert (find_failure(tail, STOPPED) is None) is whole


TF_TRAINING = replace(
    TRAINING,
    snapshot="runs/a/model/model.ckpt-100.index",
    needed=(("runs/a/model/model.ckpt-100.data-00000-of-00001", "kept"),),
)
TF_LINE = (
    "[0] I1120 11:49:33.768350 139955 basic_session_run_hooks.py:629] Saving checkpoints for {} into {}."
)
KILLED = "srun: error: node2: task 3: Killed"


@pytest.mark.parametrize(
    ("training", "log", "ending"),
    [
        (TRAINING, [log_line("Iteration 99, loss = 2")], False),
        (TRAINING, [SNAPSHOT.replace("_100", "_50"), END], False),
        (TRAINING, [SNAPSHOT], True),
        (TRAINING, [SNAPSHOT, KILLED], False),
        (TRAINING, [log_line("Optimization Done.")], True),
        (STOPPED, [SNAPSHOT], False),
        (STOPPED, [SNAPSHOT, END], True),
        (TF_TRAINING, [TF_LINE.format(50, "runs/a/model/model.ckpt")], False),
        (TF_TRAINING, [TF_LINE.format(100, "runs/a/model/model.ckpt")], True),
        (TF_TRAINING, [TF_LINE.format(100, "runs/a/model/model.ckpt..")], True),
    ],
)
def test_training_is_ending_from_its_last_snapshot_on_unless_a_rank_was_killed(
    tmp_path: Path, training: Training, log: list[str], ending: bool
) -> None:
    tail = LogTail(tmp_path / "log", ProgramLog() if training is TF_TRAINING else None)
    tail.path.write_text("".join(f"{line}\n" for line in log))
    tail.read(to_end=True)
    assert is_ending(tail, training) is ending


def test_only_a_phase_that_is_to_be_stopped_may_stop_early(tmp_path: Path) -> None:
    tail = tail_of(tmp_path, SNAPSHOT, END, EARLY)
    assert find_failure(tail, STOPPED) is None
    assert find_failure(tail, TRAINING) == "it was stopped early by a signal"
    assert find_failure(tail_of(tmp_path, EARLY), STOPPED) == "it was stopped early by a signal"


def test_a_loss_beyond_the_iteration_of_the_stop_is_nobodys(tmp_path: Path) -> None:
    after = tail_of(tmp_path, SNAPSHOT, END, log_line("Iteration 120, loss = nan"), EARLY)
    assert find_failure(after, STOPPED) is None
    at = tail_of(tmp_path, SNAPSHOT, END, log_line("Iteration 100, loss = nan"), EARLY)
    assert find_failure(at, STOPPED) == "the loss is nan at iteration 100"


def test_a_rank_ended_by_a_signal_is_reported_with_that_signal(tmp_path: Path) -> None:
    tail = tail_of(
        tmp_path,
        *lines((0, 20, "2.5")),
        "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES",
        "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)",
        "This typically refers to a problem with your application.",
        "Please see the FAQ page for debugging suggestions",
    )
    assert find_failure(tail, TRAINING) == "it ended after iteration 20 of 100, saying: Killed (signal 9)"


def test_the_report_of_a_training_that_went_well_is_not_a_reason_for_its_end(tmp_path: Path) -> None:
    progress = [
        *lines((0, 20, "2.5")),
        "I20251120 11:49:33.768350  6374 solver.cpp:770] Iteration 20, lr = 0.1",
    ]
    reached = "it ended after iteration 20 of 100"
    assert find_failure(tail_of(tmp_path, *progress), TRAINING) == reached
    tail = tail_of(tmp_path, "[1] std::bad_alloc", *progress)
    assert find_failure(tail, TRAINING) == f"{reached}, saying: std::bad_alloc"


BLOCK = ["=   PID 3556 RUNNING AT node2", "=   EXIT CODE: 9"]
MAIN_ERROR = "[mpiexec@head] main (mpiexec.c:270): process manager error waiting for completion"


def test_the_signal_that_ended_a_rank_is_named_but_no_host_on_a_guess(tmp_path: Path) -> None:
    killed = "a rank was killed by signal 9 (out of memory?)"
    tail = tail_of(tmp_path, *BLOCK, MAIN_ERROR)
    assert find_failure(tail, TRAINING) == f"{killed} before the first iteration"
    tail = tail_of(tmp_path, *lines((0, 20, "2.5")), *BLOCK, MAIN_ERROR)
    assert find_failure(tail, TRAINING) == f"{killed} after iteration 20 of 100"


def test_ranks_that_the_run_itself_ended_are_not_reported_as_killed(tmp_path: Path) -> None:
    tail = tail_of(tmp_path, *lines((0, 20, "2.5")), ENDED_BY_US, *BLOCK, MAIN_ERROR)
    assert find_failure(tail, TRAINING) == "the run ended it after iteration 20 of 100"


def test_a_launcher_that_a_signal_has_killed_is_named_with_the_signal(tmp_path: Path) -> None:
    tail = tail_of(tmp_path, *lines((0, 20, "2.5")))
    assert find_failure(tail, TRAINING, signal.SIGTERM) == (
        "the launcher was killed by signal 15 (terminated) after iteration 20 of 100"
    )
    done = tail_of(tmp_path, log_line("Optimization Done."))
    assert find_failure(done, TRAINING, signal.SIGTERM) is None


def test_an_error_of_caffe_is_preferred_to_the_signal_that_ended_a_rank(tmp_path: Path) -> None:
    tail = tail_of(tmp_path, "[0] F1120 11:49:33.768350  6374 a.cpp:1] Check failed: x", *BLOCK)
    assert find_failure(tail, TRAINING) == "Check failed: x"
    assert find_failure(tail_of(tmp_path, log_line("Optimization Done."), *BLOCK), TRAINING) is None


def test_the_label_of_another_rank_is_not_part_of_the_last_line(tmp_path: Path) -> None:
    tail = tail_of(tmp_path, "[0] [1] no route to host")
    assert find_failure(tail, TRAINING) == "it ended before the first iteration, saying: no route to host"
    tail = tail_of(tmp_path, "[0] [1] F1120 11:49:33.768350  6374 a.cpp:1] Check failed: x")
    assert find_failure(tail, TRAINING) == "Check failed: x"
    tail = tail_of(tmp_path, "[0] caffe-torch: no such LMDB[0] ")
    assert find_failure(tail, TRAINING) == "no such LMDB"


COMPLAINT = "[libprotobuf ERROR google/protobuf/text_format.cc:274] Error parsing x: 1:2: no field y"


def test_a_protobuf_error_does_not_fail_a_training_that_continues(tmp_path: Path) -> None:
    assert find_failure(tail_of(tmp_path, COMPLAINT, log_line("Optimization Done.")), TRAINING) is None


def test_a_protobuf_error_is_reported_with_the_failure(tmp_path: Path) -> None:
    tail = tail_of(tmp_path, COMPLAINT, *lines((0, 20, "2.5")), "Killed")
    why = "saying: Killed; protobuf reported: Error parsing x: 1:2: no field y"
    assert find_failure(tail, TRAINING) == f"it ended after iteration 20 of 100, {why}"
    tail = tail_of(tmp_path, COMPLAINT)
    assert find_failure(tail, TRAINING) == f"it ended before the first iteration, saying: {COMPLAINT}"
    tail = tail_of(tmp_path, COMPLAINT, "F1120 11:49:33.768350  6374 a.cpp:1] Check failed: x")
    assert find_failure(tail, TRAINING) == "Error parsing x: 1:2: no field y; then: Check failed: x"


WAITING = "W1120 11:49:33.768350  6374 a.cpp:1] Waiting for data"
TESTING = "I1120 11:49:33.768350  6374 caffe.cpp:500] Batch 0, loss = 0.4"


@pytest.mark.parametrize(
    ("log", "signs"),
    [
        (["Loading", "[1] Loading", "", "loading"], 2),
        ([WAITING, WAITING.replace("33", "59")], 1),
        ([COMPLAINT, COMPLAINT], 1),
        ([*lines((0, 0, "2")), WAITING, "something new", COMPLAINT], 1),
        ([*lines((0, 0, "2"), (9, 20, "2")), SNAPSHOT, END], 4),
        (
            [
                *lines((0, 0, "2")),
                log_line("Iteration 0, Testing net (#0)"),
                log_line("    Test net output #0: a = 1"),
            ],
            3,
        ),
        ([TESTING, WAITING, TESTING.replace("0", "1"), WAITING], 2),
    ],
)
def test_progress_is_a_sign_of_life_and_before_it_any_new_line(
    tmp_path: Path, log: list[str], signs: int
) -> None:
    assert tail_of(tmp_path, *log).signs == signs


def test_a_loss_that_stays_at_that_of_a_guess_for_an_epoch_is_reported() -> None:
    flat = summary((0, 0, "2.3026"), (10, 10, "2.31"), (20, 20, "2.29"))
    assert find_guessing(flat, 10, 20) == (
        "the loss has stayed at ln(10) = 2.303 for an epoch: the net is only guessing; "
        "check labels, base_lr and mean"
    )
    assert find_guessing(flat, 10, 21) is None, "not a whole epoch yet"
    assert find_guessing(flat, 1000, 20) is None
    assert find_guessing(flat, 1, 20) is None, "one class has nothing to guess"
    assert find_guessing(summary((0, 0, "2.3026"), (10, 10, "2.1"), (20, 20, "2.29")), 10, 20) is None
    late = summary((0, 0, "2.3026"), (10, 10, "2.1"), (20, 20, "2.3"), (30, 30, "2.3"), (40, 40, "2.3"))
    assert find_guessing(late, 10, 20) is not None, "it has forgotten what it knew"
    assert find_guessing(LogSummary(), 10, 20) is None


def test_an_accuracy_at_chance_in_two_tests_after_an_epoch_is_reported() -> None:
    def tested(*values: str) -> LogSummary:
        texts = []
        for number, value in enumerate(values):
            texts.append(log_line(f"Iteration {20 * number}, Testing net (#0)"))
            texts.append(log_line(f"    Test net output #0: loss3/top-1 = {value}"))
        return summarize_log(texts)

    assert find_guessing(tested("0.1", "0.1", "0.11"), 10, 20) == (
        "the accuracy is 11% after an epoch, no better than guessing among 10 classes; "
        "check labels, base_lr and mean"
    )
    assert find_guessing(tested("0.1", "0.1"), 10, 20) is None, "one test is luck"
    assert find_guessing(tested("0.1", "0.1", "0.3"), 10, 20) is None


def test_snapshots_without_the_losses_before_them_are_reported() -> None:
    def written(iteration: int, *losses: tuple[int, float, str]) -> LogSummary:
        snapshot = f"Snapshotting to binary proto file tmp/a_iter_{iteration}.caffemodel"
        return summarize_log([*lines(*losses), log_line(snapshot)])

    assert (find_unread(written(100), 20) or "").startswith(
        "the log shows a snapshot at iteration 100, but no loss: this program's lines are not known here"
    )
    assert "but no loss since iteration 0:" in (find_unread(written(100, (0, 0, "2")), 20) or "")
    assert find_unread(written(100, (0, 80, "2")), 20) is None
    assert find_unread(written(100), 0) is None, "the solver displays nothing"
    assert find_unread(written(15), 20, first_iter=10) is None, "nothing was due"
    assert find_unread(written(100), 20, first_iter=90) is None, "a snapshot on request after a resume"
    assert find_unread(LogSummary(), 20) is None


def test_the_accuracy_of_progress_is_that_of_the_last_test_with_one() -> None:
    at = "[0] I1120 11:49:33.587818 6374 solver.cpp:562] "
    test = [f"{at}Iteration 0, Testing net (#0)", f"{at}    Test net output #0: top-1 = 0.101562"]
    later = [f"{at}Iteration 40, Testing net (#0)", f"{at}    Test net output #0: loss3/top-1 = 0.75"]
    begun = f"{at}Iteration 80, Testing net (#0)"
    text = [*test, *lines((34, 0, "2.3")), *later, f"{at}    Test net output #1: loss3/top-5 = 0.9", begun]
    seen = [
        measure(summarize_log(part), "init", {"init": 100}, 64, 0).test_accuracy for part in ([], test, text)
    ]
    assert seen == [None, 0.101562, 0.75]


@pytest.mark.parametrize("before", [180, 190, 280, 295])
def test_what_is_kept_of_a_line_does_not_end_within_a_secret(tmp_path: Path, before: int) -> None:
    secret, text = "hunter2-is-a-long-secret", "x" * before
    (tmp_path / "log").write_text(
        f"[libprotobuf ERROR a.cc:1] {'y' * before}{secret}{'x' * 300}\nsaying {text}{secret}{'x' * 300}\n"
    )
    launcher = Mock(environment={"TOKEN": secret})
    setting = Mock(profile=Mock(launcher=launcher), trainer=Mock(new_log_summary=LogSummary))
    tail = Run.read_log(Mock(path=tmp_path.joinpath, setting=setting), "log")
    tail.read(to_end=True)
    words = describe_last_words(tail, "")
    assert "protobuf reported" in words
    assert "hunt" not in f"{words} {tail.last_line}"
