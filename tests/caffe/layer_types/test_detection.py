"""Layers of detectors: the number of tops at which Caffe aborts."""

from __future__ import annotations

import pytest

from tests.caffe.layer_types.conftest import rules_of


@pytest.mark.parametrize("kind", ["PSROIPooling", "PriorBox", "ROIPooling"])
def test_detectors_with_a_second_top_are_refused(kind: str) -> None:
    assert rules_of(f'type: "{kind}" top: "a" top: "b"') == ["tops-count"]
    assert rules_of(f'type: "{kind}" top: "a"') == []
