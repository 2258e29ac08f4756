"""The signals that ask a training for a stop or a snapshot."""

from __future__ import annotations

from caffe_recipes.engine.signal_requests import SignalRequests


def test_a_signal_that_arrives_while_requests_are_drained_is_not_lost() -> None:
    class Watched(SignalRequests):
        """Fails where a request would be overwritten that came after the one that was read."""

        def __setattr__(self, name: str, value: bool) -> None:
            assert value or getattr(self, name, True), f"{name} is written though it was not requested"
            super().__setattr__(name, value)

    requests = Watched(stop=True, snapshot=True)
    assert requests.drain() == SignalRequests(stop=True, snapshot=True)
    assert requests.drain() == SignalRequests()
