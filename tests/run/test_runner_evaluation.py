"""The evaluation at a run's end; on this machine, with the stand-in for caffe."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from caffe_recipes.errors import RunFailed

if TYPE_CHECKING:
    from tests.run.conftest import Place


def test_an_evaluation_that_stalls_is_ended_and_the_same_command_continues_with_it(place: Place) -> None:
    place.behave(evaluation="fails")
    with pytest.raises(RunFailed, match="evaluation: no outputs"):
        place.run()
    place.behave(evaluation="waits")
    code, _, stderr = place.call("--stall-s", "1")
    last = stderr.splitlines()[-1]
    assert (code, "Traceback" in stderr) == (3, False)
    assert re.search(
        r"evaluation: no output in the log for \d+ s; ended the test; log: .*/evaluation-2\.log", last
    )
    place.wait_for_no_process()
    assert place.events()[-1]["event"] == "failed"
    place.behave()
    assert place.run().outputs == {"loss": 0.25, "loss3/top-1": 0.75, "loss3/top-5": 0.9375}
    assert place.trained() == ["init", "cyc1", "last"]
