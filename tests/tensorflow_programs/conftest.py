"""Digits as TFRecords, once a session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from caffe_recipes.data.digits import build_digit_records
from tests.tensorflow_programs.launch import Digits, write_rates


@pytest.fixture(scope="session", autouse=True)
def own_tmp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Have what a killed rank leaves behind go with the tests' folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("tmp")))
        yield


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Digits:
    folder = tmp_path_factory.mktemp("digits")
    build_digit_records(folder, (8, 8))
    rates = write_rates(folder / "rates", 0.02, 10, 0.1, 40)
    return Digits(folder / "train", folder / "validation", rates)
