"""The log of an evaluation by TensorFlow: its result, and nothing that it does not contain."""

from __future__ import annotations

from pathlib import Path

import pytest

from caffe_recipes.errors import InputError
from caffe_recipes.tensorflow.logs import load_evaluations, parse_evaluations

SEED = Path(__file__).resolve().parents[3] / "shared" / "seeds" / "001_7bab8357854a84d6.txt"
PREFIX = "I0415 09:27:08.750324 140247695472448 tf_logging.py:116] "
PUBLISHED = (
    f"{PREFIX}Evaluation [225/250]\n"
    f"{PREFIX}Evaluation [250/250]\n"
    f"{PREFIX}Finished evaluation at 2018-04-15-16:27:08\n"
    f"{PREFIX}Saving dict for global step 14075: Top-1 accuracy = 0.75232, Top-5 accuracy = 0.9241,"
    " global_step = 14075, loss = 1.9024274\n"
    f"{PREFIX}Eval results: {{'Top-1 accuracy': 0.75232, 'loss': 1.9024274, 'global_step': 14075}}\n"
)


def test_the_published_log_s_result_is_read() -> None:
    (found,) = parse_evaluations(PUBLISHED).evaluations
    assert (found.step, found.top1, found.top5, found.loss) == (14075, 0.75232, 0.9241, 1.9024274)
    assert (found.batches, found.batches_total, found.line) == (250, 250, 4)


@pytest.mark.skipif(not SEED.is_file(), reason="the source's text is not here; its lines are held above")
def test_the_source_s_own_text_is_read() -> None:
    (found,) = load_evaluations(SEED)
    assert (found.step, found.top1, found.top5, found.loss) == (14075, 0.75232, 0.9241, 1.9024274)


def test_several_evaluations_are_read_in_their_order() -> None:
    log = parse_evaluations(PUBLISHED + PUBLISHED.replace("14075", "4680"))
    assert [one.step for one in log.evaluations] == [14075, 4680]


def test_names_with_underscores_and_carriage_returns_are_read() -> None:
    line = "INFO:Saving dict for global step 9: loss = 2.0, top_1_accuracy = 0.5, top_5_accuracy = 1\r"
    (found,) = parse_evaluations(line).evaluations
    assert (found.top1, found.top5, found.loss) == (0.5, 1.0, 2.0)


def test_missing_values_are_none_and_values_that_are_not_numbers_are_skipped() -> None:
    (found,) = parse_evaluations("Saving dict for global step 9: global_step = 9, loss = none").evaluations
    assert (found.top1, found.top5, found.loss, found.batches) == (None, None, None, None)


def test_an_interrupted_evaluation_reports_how_far_it_got(tmp_path: Path) -> None:
    log = tmp_path / "eval.log"
    log.write_text(f"{PREFIX}Evaluation [225/250]\n")
    assert parse_evaluations(log.read_text()).unfinished == (225, 250)
    with pytest.raises(
        InputError, match=r"eval.log: has no line .*; it ends at batch 225 of 250; give the complete output"
    ):
        load_evaluations(log)


@pytest.mark.parametrize("top", ["75.00", "-0.1", "nan"])
def test_an_accuracy_that_is_not_a_fraction_is_refused(tmp_path: Path, top: str) -> None:
    log = tmp_path / "eval.log"
    log.write_text(f"x\nSaving dict for global step 9: top_1_accuracy = {top}, loss = 2.0\n")
    what = r"eval.log:2: top-1 accuracy \S+ is not between 0 and 1; write it as a fraction"
    with pytest.raises(InputError, match=what):
        load_evaluations(log)


def test_a_missing_log_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere: cannot be read: No such file or directory"):
        load_evaluations(tmp_path / "nowhere")
