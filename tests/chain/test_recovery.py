"""What a run does after a failed launch, by policy; on this machine, with the stand-in for caffe."""

from __future__ import annotations

import pytest

from caffe_recipes.chain.policy import Policy
from caffe_recipes.errors import RunFailed
from tests.chain.conftest import Place


def events(place: Place) -> list[str]:
    told = ("launched", "failed", "retrying", "finished")
    return [str(event["event"]) for event in place.events() if event["event"] in told]


def test_without_a_policy_the_first_failure_ends_the_run(place: Place) -> None:
    place.behave(init="ends-early")
    with pytest.raises(RunFailed, match="phase init: failed: it ended after iteration 6 of 8"):
        place.run()
    assert events(place) == ["launched", "failed"]


def test_a_failed_launch_is_tried_again_so_often(place: Place) -> None:
    place.behave(init="ends-early")
    with pytest.raises(RunFailed, match=r"phase init: failed: .*; log: .*/init-3.log; after 2 retries"):
        place.run(policy=Policy("retry", retries=2))
    assert events(place) == ["launched", "failed", "retrying"] * 2 + ["launched", "failed"]
    assert "trying again (2 of 2)" in place.output.getvalue()
    place.behave()
    place.run()
    assert place.trained() == ["init"] * 4 + ["cyc1", "last"]


def test_each_phase_has_its_retries(place: Place) -> None:
    place.behave(cyc1="ends-early")
    with pytest.raises(RunFailed, match="phase cyc1: failed"):
        place.run(policy=Policy("retry", retries=1))
    assert place.trained() == ["init", "cyc1", "cyc1"]


def test_to_replace_without_a_dead_host_is_to_retry(place: Place) -> None:
    place.behave(init="nan")
    (place.root / "release").touch()
    with pytest.raises(RunFailed, match="phase init: failed: the loss is nan"):
        place.run(policy=Policy("replace", retries=1))
    assert events(place) == ["launched", "failed", "retrying", "launched", "failed"]
