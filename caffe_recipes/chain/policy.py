"""What a run does of its own accord: after a failure, about checkpoints, when a log falls silent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from caffe_recipes.errors import InputError, RunFailed

OnFailure = Literal["stop", "retry", "replace"]
ON_FAILURE: tuple[OnFailure, ...] = get_args(OnFailure)
RETRIES = 3


@dataclass(frozen=True)
class Policy:
    """What to do after a failed launch, and how often; iterations between checkpoints; silence that counts.

    `replace` puts a spare of the hostfile in a failed host's place, and launches again; without such a host
    it does as `retry`. Without `stall_s` the log's own pace decides.
    """

    on_failure: OnFailure = "stop"
    retries: int = RETRIES
    checkpoint_every: int | None = None
    stall_s: float | None = None


def check_policy(policy: Policy, launcher: str, *, side_by_side: bool = False) -> None:
    """Raise InputError for spares under a launcher that would start no rank on them."""
    what = "ibrun starts ranks on the first hosts of the job, and none on a spare"
    if policy.on_failure == "replace" and launcher == "ibrun":
        raise InputError("--on-failure replace", what, "use --on-failure retry, or another --profile")
    if side_by_side and launcher == "ibrun":
        raise InputError("--side-by-side", what, "leave it out, or use another --profile")


class LaunchFailed(RunFailed):
    """A launch that came to nothing; `host` is the one that is to blame, if one is."""

    def __init__(self, what: str, hint: str = "", host: str | None = None, where: str = "") -> None:
        """Keep the host; where it happened is for whoever knows the phase to say."""
        super().__init__(where, what, hint)
        self.host = host


class SnapshotOutOfReach(LaunchFailed):
    """A phase that has trained, and whose snapshot cannot be fetched now: it is not to be trained again."""


class SnapshotNotKept(RunFailed):
    """A snapshot that our own disk does not take: no launch is to blame, and to try again helps nothing."""
