from __future__ import annotations

from dataclasses import replace

import pytest
from rich.cells import cell_len

from caffe_recipes.run.monitor.screen.contents import HostCell, PhaseRow, ScreenContents
from caffe_recipes.run.monitor.screen.drawing import draw_curve, draw_screen

CURVE = [(epoch / 10, 7.0 / (1 + epoch)) for epoch in range(200)]
CONTENTS = ScreenContents(
    "runs/stampede2-64n-72ep-1",
    "cyc1, phase 2 of 5",
    ran_s=4000,
    left_s=10_400,
    phases=[
        PhaseRow("init", "finished", 7800, 7800, 2.1, 6400),
        PhaseRow("cyc1", "training", 1200, 3750, 1.9, 6412, 1600),
        PhaseRow("cyc2", "waiting", 0, 4000),
        PhaseRow("cyc3", "waiting", 0, 4000),
        PhaseRow("collapse", "waiting", 0, 3060),
    ],
    epochs=28.8,
    all_epochs=72.3,
    losses=CURVE,
    rates=[(0, 0.1), (20, 1.6)],
    images_per_s=6412,
    tested=0.612,
    reported_percent=76.3,
    hosts=[HostCell(f"c401-{number:03}") for number in range(64)],
)
SIZES = [(80, 24), (200, 60), (40, 12)]


def draw(contents: ScreenContents, width: int = 80, height: int = 24, *, can_draw: bool = True) -> list[str]:
    lines = [f"line {number}" for number in range(100)]
    return [line.plain.rstrip() for line in draw_screen(contents, lines, width, height, can_draw=can_draw)]


@pytest.mark.parametrize("can_draw", [True, False])
@pytest.mark.parametrize(("width", "height"), SIZES)
def test_the_screen_fills_the_terminal_and_nothing_leaves_it(width: int, height: int, can_draw: bool) -> None:
    drawn = draw(CONTENTS, width, height, can_draw=can_draw)
    assert len(drawn) == height
    assert max(cell_len(line) for line in drawn) <= width
    assert drawn[-1].startswith("Ctrl-C stops watching")
    assert drawn[-2] == "line 99"
    assert can_draw or all(line.replace("…", "").isascii() for line in drawn)


def test_a_screen_of_80_by_24_shows_phases_chain_speed_test_hosts_and_curves() -> None:
    drawn = draw(CONTENTS)
    assert drawn[0] == f"{'runs/stampede2-64n-72ep-1  cyc1, phase 2 of 5':67} 2:53:20 left"
    assert [line.split()[0] for line in drawn[1:7]] == ["init", "cyc1", "cyc2", "cyc3", "collapse", "chain"]
    assert drawn[2].endswith("32%  training  1,200/3,750  loss 1.900  26:40 left")
    assert drawn[6].endswith("39%  epoch 28.8 of 72.3")
    assert drawn[7] == "no alarms"
    assert drawn[8] == "6,412 images/s, 100 a node  test top-1 61.20% (reported: 76.3%)"
    assert drawn[9] == "64 hosts: 64 at work"
    assert drawn[10] == "●" * 64
    assert drawn[11].startswith("loss 0.035  0.035 to 7, log scale")
    assert "rate 1.6" in drawn[11]


def test_a_wide_terminal_has_the_times_in_its_first_line() -> None:
    first = draw(CONTENTS, 120, 40)[0]
    assert first.endswith("1:06:40 since the start, 2:53:20 left")
    assert len(first) == 120


@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_narrow_terminal_keeps_the_times_left(width: int) -> None:
    drawn = draw(CONTENTS, width)
    assert drawn[0].startswith("runs/stampede2-64n")
    assert [line.split()[-2:] for line in (drawn[0], drawn[2])] == [["2:53:20", "left"], ["26:40", "left"]]
    assert ("loss" in drawn[2], "1,200/3,750" in drawn[2]) == (width >= 80, width >= 60)


def test_hosts_that_are_late_or_were_blamed_have_their_own_signs_and_are_named() -> None:
    hosts = [HostCell("a"), HostCell("b", "late"), HostCell("c", "blamed")]
    shown = replace(CONTENTS, hosts=hosts)
    assert "3 hosts: 1 at work, 1 late, 1 ended a launch: b, c  ●▼✗" in draw(shown)
    assert "3 hosts: 1 at work, 1 late, 1 ended a launch: b, c  ovx" in draw(shown, can_draw=False)


def test_alarms_are_words_and_those_without_room_are_counted() -> None:
    drawn = draw(replace(CONTENTS, alarms=["the loss is nan", "two", "three"]))
    assert drawn[7:9] == ["ALARM the loss is nan", "ALARM and 2 more"]
    assert draw(replace(CONTENTS, alarms=["one", "two", "three"]), 200, 60)[9] == "ALARM three"


def test_of_many_phases_those_around_the_one_in_progress_are_shown() -> None:
    rows = [PhaseRow(f"p{number}", "finished" if number < 20 else "waiting", 5, 5) for number in range(40)]
    names = [line.split()[0] for line in draw(replace(CONTENTS, phases=rows))]
    assert "p20" in names
    assert "p0" not in names
    assert "chain" in names


def test_texts_of_hosts_and_logs_cannot_write_elsewhere_on_the_screen() -> None:
    drawn = draw_screen(replace(CONTENTS, alarms=["a\n\x1b[2Jb"]), ["c\nd"], 80, 24)
    assert not any("\n" in line.plain for line in drawn)


def test_a_run_without_a_loss_has_no_curves() -> None:
    assert any("loss: none yet" in line for line in draw(replace(CONTENTS, losses=[], rates=[])))


@pytest.mark.parametrize("points", [[(0.0, 1.0)], [(0.0, 1.0), (0.0, 1.0)], [(0.0, 2.0), (5.0, 2.0)]])
def test_a_curve_of_few_or_equal_points_is_drawn(points: list[tuple[float, float]]) -> None:
    drawn = draw_curve(points, 10, 3)
    assert [len(row) for row in drawn] == [10, 10, 10]


def test_a_constant_rate_is_a_straight_line() -> None:
    drawn = draw_curve([(x, 0.1) for x in range(1000)], 30, 4, can_draw=False)
    assert drawn == [" " * 30] * 3 + ["*" * 30]


def test_losses_that_are_not_finite_are_left_out_of_the_curve() -> None:
    assert any("loss nan" in line for line in draw(replace(CONTENTS, losses=[*CURVE, (20.0, float("nan"))])))
