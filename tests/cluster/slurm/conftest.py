from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

RECORDED = Path(__file__).parent / "recorded"


@pytest.fixture
def recorded() -> Callable[[str], str]:
    """Give a function that returns an answer by its file's name; see recorded/README.txt."""
    return lambda name: (RECORDED / f"{name}.txt").read_text("utf-8")
