"""Numbers as options take them: written in ASCII digits, or refused in one line."""

from __future__ import annotations

import click
import pytest

from caffe_recipes.cli.options import COUNT, NUMBER, Number, Seconds, Whole

Kind = Whole | Number | Seconds
WHOLE = Whole(0, 2**31 - 1)
SECONDS = Seconds(min=0)


@pytest.mark.parametrize("kind", [WHOLE, COUNT, NUMBER, SECONDS], ids=["whole", "count", "number", "seconds"])
@pytest.mark.parametrize("text", ["6_0", "６０", "٦", "1_000", "", "x", "0x10", "1,0", "9" * 5000])
def test_numbers_that_only_python_reads_are_refused(kind: Kind, text: str) -> None:
    with pytest.raises(click.BadParameter) as caught:
        kind.convert(text, None, None)
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 150


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (WHOLE, "60", 60),
        (WHOLE, " 60 ", 60),
        (COUNT, "1,281,167", 1281167),
        (NUMBER, "90", 90.0),
        (NUMBER, "0.5", 0.5),
        (NUMBER, ".5", 0.5),
        (NUMBER, "1e-3", 0.001),
        (NUMBER, "-2.", -2.0),
        (SECONDS, "1.5", 1.5),
    ],
)
def test_numbers_as_people_write_them_are_read(kind: Kind, text: str, value: float) -> None:
    assert kind.convert(text, None, None) == value


@pytest.mark.parametrize("text", ["nan", "inf", "1e400", "-1"])
def test_times_that_are_negative_or_not_finite_are_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        SECONDS.convert(text, None, None)


def test_bounds_are_reported() -> None:
    with pytest.raises(click.BadParameter, match="-1 is too small; give 0 or more"):
        WHOLE.convert("-1", None, None)
    with pytest.raises(click.BadParameter, match="2147483648 is too large; give 2147483647 or less"):
        WHOLE.convert(str(2**31), None, None)
