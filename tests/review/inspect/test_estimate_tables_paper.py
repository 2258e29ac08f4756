"""The paper's times, computed again from what it measured."""

from __future__ import annotations

import pytest

from caffe_recipes.review.inspect.estimate_tables import TableRow, compare_tables, render_tables, table_values

ALL = compare_tables()


def of(table: str) -> list[TableRow]:
    return [each for each in ALL if each.table == table]


def test_every_row_of_every_table_is_there() -> None:
    tables = ("VI", "II", "III", "IV", "VII", "IX", "XII", "XIII")
    assert [len(of(f"Table {name}")) for name in tables] == [4, 3, 5, 5, 6, 4, 18, 12]


def test_table_vi_follows_from_its_throughput() -> None:
    assert all(abs(each.difference) <= 0.1 for each in of("Table VI"))


@pytest.mark.parametrize("table", ["Table XII", "Table XIII"])
def test_the_projected_times_are_within_a_minute_everywhere(table: str) -> None:
    assert all(abs(each.difference) < 1 for each in of(table))
    assert {each.how for each in of(table)} == {"measured"}


def test_the_72_epochs_at_6303_images_per_second_are_245_minutes() -> None:
    (found,) = of("72 epochs")
    assert round(found.computed) == 245
    assert found.printed == 240


@pytest.mark.parametrize(
    ("table", "rows"),
    [
        (
            "Table II",
            ((8192, 256, 14200, 90, 140), (12288, 512, 9400, 90, 80), (11520, 720, 10000, 90, 62)),
        ),
        (
            "Table III",
            (
                (4096, 256, 11560, 37, 63),
                (8192, 256, 7800, 50, 70),
                (8192, 512, 7800, 50, 49),
                (12288, 512, 5600, 54, 46),
                (12288, 768, 11560, 37, 39),
            ),
        ),
        (
            "Table IV",
            (
                (2048, 256, 18120, 29, 64),
                (4096, 256, 11560, 37, 63),
                (8192, 256, 4530, 29, 41.5),
                (8192, 256, 5780, 37, 52),
                (8192, 512, 5780, 37, 37),
            ),
        ),
        (
            "Table VII",
            (
                (8192, 512, 7800, 50, 70),
                (9600, 800, 8000, 60, 62.5),
                (6400, 800, 10000, 50, 56),
                (6400, 800, 15000, 75, 80),
                (8192, 1024, 10000, 64, 56),
                (8192, 1024, 7800, 50, 44),
            ),
        ),
        (
            "Table IX",
            (
                (10240, 512, 11400, 91, 82),
                (16384, 512, 7200, 92, 74),
                (32768, 1024, 4000, 100, 42),
                (49152, 1536, 2600, 100, 28),
            ),
        ),
    ],
)
def test_the_recipes_hold_the_rows_as_the_paper_prints_them(
    table: str, rows: tuple[tuple[float, ...], ...]
) -> None:
    found = [
        (each.batch, each.workers, each.iterations, each.printed_epochs, each.printed) for each in of(table)
    ]
    assert tuple(found) == rows


@pytest.mark.parametrize(
    ("table", "minutes"),
    [
        ("Table II", (128.7, 77.2, 61.2)),
        ("Table III", (62.9, 70.7, 49.9, 46.0, 70.3)),
        ("Table IV", (64.3, 62.9, 41.1, 52.4, 37.0)),
        ("Table VII", (70.2, 62.5, 56.0, 84.0, 56.0, 43.7)),
        ("Table IX", (83.6, 75.0, 41.8, 28.0)),
    ],
)
def test_a_run_takes_its_images_at_the_measured_throughput(table: str, minutes: tuple[float, ...]) -> None:
    assert tuple(each.computed for each in of(table)) == pytest.approx(minutes, abs=0.051)


def test_every_difference_above_1_percent_is_explained_and_no_other() -> None:
    runs = [each for each in ALL if each.iterations]
    apart = {(each.table, each.row) for each in runs if abs(each.percent) > 1}
    assert {(each.table, each.row) for each in runs if each.remark} == apart
    assert apart == {
        ("Table II", 1),
        ("Table II", 2),
        ("Table II", 3),
        ("Table III", 2),
        ("Table III", 3),
        ("Table III", 5),
        ("Table IV", 3),
        ("Table VII", 4),
        ("Table IX", 1),
        ("Table IX", 2),
    }


def test_rows_between_and_beyond_the_measured_points_are_marked() -> None:
    estimated = {(each.table, each.row): each.how for each in ALL if each.how not in (None, "measured")}
    assert estimated == {("Table II", 3): "interpolated", ("Table IV", 1): "beyond"}


def test_the_computed_epochs_are_shown_beside_the_printed_ones() -> None:
    third = of("Table III")[4]
    assert (round(third.epochs or 0, 1), third.printed_epochs) == (110.9, 37)
    assert round(of("Table IX")[2].epochs or 0) == 102


def test_the_text_names_each_table_with_both_numbers_and_the_difference() -> None:
    text = "\n".join(render_tables())
    for table in dict.fromkeys(each.table for each in ALL):
        assert f"{table}: " in text
    assert "  row 4: 75.00 epochs of 1.28M images at Table VI's 67.2 s, as in row 3" in text
    assert max(map(len, text.splitlines())) <= 120
    assert "-0.0" not in text


def test_the_values_have_the_differences_too() -> None:
    values = table_values()
    assert len(values) == len(ALL)
    assert values[0]["difference"] == pytest.approx(0.077, abs=0.001)


def test_the_rows_of_a_table_say_in_the_text_whose_speed_is_extrapolated() -> None:
    text = render_tables()
    (row,) = [line for line in text if line.endswith("  extrapolated")]
    assert row.split()[:3] == ["1", "2,048", "256"]
    hows = [each["how"] for each in table_values() if each["table"] == "Table IV"]
    start = text.index(next(line for line in text if line.startswith("Table IV: "))) + 2
    words = [line.split()[-1] for line in text[start : start + 5]]
    assert words == ["extrapolated" if how == "beyond" else how for how in hows]


def test_weak_scaling_is_compared_with_what_the_paper_states() -> None:
    rows = [each for each in ALL if each.table == "Section V-A, weak scaling"]
    assert [each.printed for each in rows] == [81, 88, 81, 97, 90]
    assert [round(each.computed, 1) for each in rows] == [81.0, 86.7, 81.8, 97.0, 90.0]
    assert rows[2].remark == "from 1 node on Stampede2; printed: above 81%"
    assert "speed of one node is derived" in rows[3].remark


def test_the_traffic_of_ibm_and_facebook_is_beside_the_paper_s() -> None:
    rows = [each for each in ALL if each.table == "Section V-A, traffic"]
    assert [(each.remark, each.workers, each.printed) for each in rows] == [
        ("this work", 256, 49),
        ("IBM [4]", 64, 12),
        ("Facebook [3]", 32, 6),
    ]
    assert all(abs(each.difference) < 0.3 for each in rows)
