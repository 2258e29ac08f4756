from __future__ import annotations

from pathlib import Path

import pytest

from caffe_recipes.caffe.logs import LogSummary, read_log
from caffe_recipes.chain.watch import LogTail, find_divergence, find_failure, images_per_s, measure


def lines(*losses: tuple[int, float, str]) -> list[str]:
    """Write losses as rank 0's log: (second, iteration, loss)."""
    return [
        f"[0] I1120 11:49:{second:02}.000000 6374 solver.cpp:312] Iteration {int(iteration)}, loss = {loss}"
        for second, iteration, loss in losses
    ]


def summary(*losses: tuple[int, float, str]) -> LogSummary:
    return read_log(lines(*losses))


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
    assert tail.last_line == "[0] cut sho"


def test_bytes_that_are_no_text_do_not_stop_the_watch(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"\xff\xfe\n" + lines((0, 0, "2.5"))[0].encode() + b"\n")
    tail = LogTail(log)
    tail.read()
    assert tail.summary.losses == {0: 2.5}


def test_speed_is_images_between_displays_by_their_times() -> None:
    seen = summary((0, 0, "2"), (10, 40, "2"), (15, 80, "2"))
    assert images_per_s(seen, 4096) == pytest.approx(80 * 4096 / 15)
    assert images_per_s(seen, 4096, displays=2) == pytest.approx(40 * 4096 / 5)
    assert images_per_s(summary((0, 0, "2")), 4096) is None
    assert images_per_s(summary((5, 0, "2"), (5, 40, "2")), 4096) is None


def test_what_is_left_is_reckoned_at_the_speed_of_now() -> None:
    progress = measure(summary((0, 0, "2"), (10, 100, "1.5")), "init", 300, 64, later_iterations=50)
    assert (progress.iteration, progress.loss, progress.rate) == (100, 1.5, None)
    assert progress.phase_left_s == pytest.approx(20)
    assert progress.chain_left_s == pytest.approx(25)


@pytest.mark.parametrize("loss", ["nan", "-nan", "inf"])
def test_a_loss_that_is_no_number_is_lost_at_once(loss: str) -> None:
    said = find_divergence(summary((0, 0, "2"), (1, 20, loss), (2, 40, "2")))
    assert said is not None
    assert said.endswith("at iteration 20")


def test_a_saturated_loss_is_lost_when_it_stays() -> None:
    assert find_divergence(summary((0, 0, "2"), (1, 20, "87.3365"), (2, 40, "2"))) is None
    stuck = find_divergence(summary((0, 0, "2"), (1, 20, "87.3365"), (2, 40, "87.3365")))
    assert stuck == "the loss is stuck at 87.3365 at iteration 40"


def test_a_log_without_its_end_fails_with_what_was_said_last(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("[proxy:0@vm] execvp error on file ./caffe (No such file or directory)\n\n")
    tail = LogTail(log)
    tail.read()
    said = find_failure(tail, 100)
    assert said is not None
    assert said.startswith("it ended before the first iteration, saying: [proxy:0@vm] execvp error")
