"""What every part of a recipe is made of: the frozen base, and texts and numbers with their bounds."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

Interpolation = Literal["LINEAR", "AREA", "NEAREST", "CUBIC", "LANCZOS4"]


def _no_control_characters(text: str) -> str:
    if re.search(r"[\x00-\x1f\x7f]", text):
        raise ValueError("control characters and line breaks are not allowed")
    return text


Text = Annotated[str, Field(min_length=1), AfterValidator(_no_control_characters)]
PathText = Text
FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
CountOrZero = Annotated[int, Field(ge=0, le=2**31 - 1)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(gt=0, lt=1)]


class Value(BaseModel):
    """Base of all parts of a recipe: frozen, strict, and closed to unknown keys."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)
