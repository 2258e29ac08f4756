"""What only a recipe's values are made of, besides those of `config.values`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

# Images a second of all ranks; the fastest machines train some millions.
SLOWEST, FASTEST = 0.001, 1e9
Speed = Annotated[float, Field(ge=SLOWEST, le=FASTEST)]

Interpolation = Literal["LINEAR", "AREA", "NEAREST", "CUBIC", "LANCZOS4"]
Builder = Literal["resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "resnet_small"]
