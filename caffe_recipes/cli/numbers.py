"""Numbers on the command line: of ASCII digits, as in a recipe's YAML; Python would read `6_0` too."""

from __future__ import annotations

import math
import re
from typing import Any

import click

_MOST_DIGITS = 400
_WHOLE = re.compile(rf"[-+]?[0-9]{{1,{_MOST_DIGITS}}}")
_THOUSANDS = re.compile(r"[0-9]{1,3}(,[0-9]{3})+")
_NUMBER = re.compile(
    rf"[-+]?(?:[0-9]{{1,{_MOST_DIGITS}}}(?:\.[0-9]*)?|\.[0-9]+)(?:e[-+]?[0-9]+)?|[-+]?(?:nan|inf(?:inity)?)",
    re.IGNORECASE,
)


class Whole(click.IntRange):
    """A whole number, of a range if one is given."""

    def convert(self, value: str | int, param: click.Parameter | None, context: click.Context | None) -> int:
        """Read it; click says which option is wrong."""
        if isinstance(value, str) and not _WHOLE.fullmatch(value.strip()):
            self.fail(f"'{value[:80]}' is no whole number; write it as 1281167.", param, context)
        return int(super().convert(int(value), param, context))


class Count(Whole):
    """A whole number from 1 to 2^31 - 1, with commas between its thousands or none."""

    def __init__(self) -> None:
        super().__init__(1, 2**31 - 1)

    def convert(self, value: str | int, param: click.Parameter | None, context: click.Context | None) -> int:
        """Read it; click says which option is wrong."""
        if isinstance(value, str) and _THOUSANDS.fullmatch(value):
            value = value.replace(",", "")
        return super().convert(value, param, context)


class Number(click.types.FloatParamType):
    """A number with a fraction or without; the command judges `nan` and `inf`."""

    def convert(
        self,
        value: Any,  # noqa: ANN401 - text, or a default
        param: click.Parameter | None,
        context: click.Context | None,
    ) -> float:
        """Read it; click says which option is wrong."""
        if isinstance(value, str) and not _NUMBER.fullmatch(value.strip()):
            self.fail(f"'{value[:80]}' is no number; write it as 90 or 0.5.", param, context)
        return float(super().convert(value, param, context))


class Seconds(click.FloatRange):
    """A time that passes: no `nan`, and no `inf`."""

    def convert(
        self, value: str | float, param: click.Parameter | None, context: click.Context | None
    ) -> float:
        """Read it; click says which option is wrong."""
        seconds = float(super().convert(NUMBER.convert(value, param, context), param, context))
        if not math.isfinite(seconds):
            self.fail(f"{value} is no time in seconds.", param, context)
        return seconds


COUNT = Count()
NUMBER = Number()
