"""The line that attach prints for a launch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.run.events import Failed, decode_event
from caffe_recipes.run.folded_events import describe_event
from tests.run.recorded_run import launch_of

if TYPE_CHECKING:
    from tests.run.conftest import Place


def test_a_launch_that_resumes_is_reported_with_its_checkpoint(place: Place) -> None:
    recipe = load_recipe(place.recipe)
    launched = launch_of(attempt=2, resumed=6)
    assert describe_event(launched, recipe, "runs/small-1") == "init: 2 iterations from the checkpoint at 6"
    branched = decode_event("branched", {"phase": "last", "folder": "", "hosts": ["n3", "n4"]}, 0.0)
    line = "last: branch on n3, n4; log: runs/small-1/branches/last/logs"
    assert describe_event(branched, recipe, "runs/small-1") == line
    launched = launch_of(attempt=2)
    assert describe_event(launched, recipe, "runs/small-1") == "init: 8 iterations from the nets' fillers"


def test_the_cause_of_a_failure_is_a_line_and_what_to_change_is_in_its_error(place: Place) -> None:
    recipe = load_recipe(place.recipe)
    details = {
        "phase": "init",
        "reason": "the loss is nan",
        "cause": "it diverged",
        "change": "lower base_lr",
    }
    event = decode_event("failed", details, 0.0)
    assert isinstance(event, Failed)
    assert describe_event(event, recipe, "runs/small-1") == "init: cause of the failure: it diverged"
    assert (
        str(event.error("a.log")) == "phase init: failed: the loss is nan; first, lower base_lr; log: a.log"
    )
    unknown = decode_event("failed", {"phase": "init", "reason": "it died"}, 0.0)
    assert describe_event(unknown, recipe, "runs/small-1") == ""
