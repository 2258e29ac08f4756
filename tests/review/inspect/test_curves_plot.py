from pathlib import Path

import pytest

from caffe_recipes.errors import InputError
from caffe_recipes.review.inspect.curves import TrainingCurve, load_log_curves
from caffe_recipes.review.inspect.curves_plot import render_curves

pytest.importorskip("matplotlib")


def curve(tmp_path: Path, name: str = "one.log") -> TrainingCurve:
    path = tmp_path / name
    path.write_text(
        "".join(
            f"I1120 11:49:33.000000  7 s.cpp:1] Iteration {at}, Testing net (#0)\n"
            f"I1120 11:49:33.000000  7 s.cpp:1]     Test net output #0: top-1 = {at / 20}\n"
            f"I1120 11:49:33.000000  7 s.cpp:1]     Test net output #1: loss = 2\n"
            f"I1120 11:49:33.000000  7 s.cpp:1] Iteration {at}, loss = {9 - at if at < 8 else 'nan'}\n"
            f"I1120 11:49:33.000000  7 s.cpp:1] Iteration {at}, lr = 0.{at}\n"
            for at in range(10)
        )
    )
    (found,) = load_log_curves(path, None)
    return found


def test_panels_names_and_published_results_are_drawn(tmp_path: Path) -> None:
    one = curve(tmp_path, "one $x.log")
    one.published_top1, one.published_loss = 0.763, 0.942
    texts = render_curves([one, curve(tmp_path, "two.log")], "iterations", "svg").decode()
    for text in (
        "loss",
        "accuracy",
        "learning rate",
        "published 0.763",
        "one $x.log",
        "two.log",
        "iterations",
    ):
        assert f"<!-- {text} -->" in texts
    assert texts == render_curves([one, curve(tmp_path, "two.log")], "iterations", "svg").decode()


@pytest.mark.parametrize("phase", ["Test", "Train"])
def test_top5_is_drawn_beside_top1(tmp_path: Path, phase: str) -> None:
    log = tmp_path / "x.log"
    head = "I1120 11:49:33.000000  7 s.cpp:1] "
    start = "Testing net (#0)" if phase == "Test" else "loss = 2"
    outputs = [f"{head}    {phase} net output #{at}: loss3/top-{at} = 0.{at}\n" for at in (1, 5)]
    pictures = []
    for shown in (outputs[:1], outputs[1:], outputs):
        lines = (f"{head}Iteration {at}, {start}\n{''.join(shown)}" for at in range(9))
        log.write_text("".join(lines))
        pictures.append(render_curves(load_log_curves(log, None), "iterations", "svg").decode())
    key = "line: test" if phase == "Test" else "dots: training, smoothed"
    keys = [f"<!-- {key}{more} -->" for more in ("", "; with triangles: top-5", "; with triangles: top-5")]
    assert all(key in picture for key, picture in zip(keys, pictures, strict=True))
    drawn = [picture.count('<path d="M ') for picture in pictures]
    assert drawn[2] > max(drawn[:2])
    assert all(picture.count("<!-- x.log -->") for picture in pictures)


@pytest.mark.parametrize("kind", ["png", "pdf"])
def test_pictures_have_their_format(tmp_path: Path, kind: str) -> None:
    starts = {"png": b"\x89PNG", "pdf": b"%PDF"}
    assert render_curves([curve(tmp_path)], "hours", kind).startswith(starts[kind])


def test_many_curves_are_named_without_collisions(tmp_path: Path) -> None:
    texts = render_curves([curve(tmp_path, f"{at}.log") for at in range(12)], "iterations", "svg").decode()
    assert texts.count("<!-- 11.log -->") == 3


def test_long_names_keep_their_ends_which_differ(tmp_path: Path) -> None:
    names = [f"{'a-very-long-name-' * 3}{kind}.log" for kind in ("fp16", "fp32")]
    texts = render_curves([curve(tmp_path, name) for name in names], "iterations", "svg").decode()
    for kind in ("fp16", "fp32"):
        assert f"name-{kind}.log -->" in texts


def test_a_name_that_is_not_utf_8_is_drawn_escaped(tmp_path: Path) -> None:
    texts = render_curves([curve(tmp_path, "a\udcff.log")], "iterations", "svg").decode()
    assert r"a\udcff.log" in texts


def test_a_log_with_nothing_to_draw_is_one_clear_line(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text(
        "I1120 11:49:33.000000  7 s.cpp:1] Iteration 5, Testing net (#0)\n"
        "I1120 11:49:33.000000  7 s.cpp:1]     Test net output #0: mAP = 0.5\n"
    )
    with pytest.raises(InputError, match="shows no loss, accuracy or rate; give a"):
        render_curves(load_log_curves(log, None), "iterations", "svg")


def test_a_long_name_of_a_phase_hides_no_name_after_its_end(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    texts = [
        f"{text}\n"
        for net in ("a", "b" * 200, "c")
        for text in (
            f"Finetuning from {net}",
            f"Solving {net}",
            "Iteration 0, loss = 2",
            f"Iteration {len(net)}, loss = 1",
        )
    ]
    log.write_text("".join(f"I1120 11:49:33.000000  7 s.cpp:1] {text}" for text in texts))
    picture = render_curves(load_log_curves(log, None), "iterations", "svg").decode()
    assert f"<!-- {'b' * 18}…{'b' * 17} -->" in picture and "<!-- c -->" in picture


def test_rates_that_no_logarithm_has_are_drawn_nevertheless(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    for rates in (("0", "nan"), ("inf", "-1"), ("0.1", "0"), ("1e-300", "1e300")):
        texts = (f"Iteration {at}, lr = {rate}\n" for at, rate in enumerate(rates))
        log.write_text("".join(f"I1120 11:49:33.000000  7 s.cpp:1] {text}" for text in texts))
        assert render_curves(load_log_curves(log, None), "iterations", "svg", log=True)
