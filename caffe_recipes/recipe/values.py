"""What only a recipe's values are made of, besides those of `config.values`."""

from __future__ import annotations

from typing import Literal

Interpolation = Literal["LINEAR", "AREA", "NEAREST", "CUBIC", "LANCZOS4"]
Builder = Literal["resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "resnet_small"]
