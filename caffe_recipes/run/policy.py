"""The policy of a run: what it does after a failed launch. `--help` shows its values; it imports little."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from caffe_recipes.errors import InputError

if TYPE_CHECKING:
    from caffe_recipes.cluster.launchers.launcher import Launcher

OnFailure = Literal["stop", "retry", "replace"]
ON_FAILURE: tuple[OnFailure, ...] = get_args(OnFailure)
RETRIES = 3


@dataclass(frozen=True)
class Policy:
    """What to do after a failed launch and how often, when to write checkpoints, and when to report a stall.

    `replace` replaces a failed host with a spare from the hostfile and launches again; if no host is to
    blame, it does the same as `retry`. `checkpoint_every` is in iterations. Without `stall_s`, the limit is
    derived from the pace of the log.
    """

    on_failure: OnFailure = "stop"
    retries: int = RETRIES
    checkpoint_every: int | None = None
    stall_s: float | None = None


def check_policy(policy: Policy, launcher: Launcher, *, side_by_side: bool = False) -> None:
    """Raise InputError if spares are needed and the launcher cannot start ranks on them."""
    if launcher.chooses_hosts:
        return
    what = f"{launcher.program} starts ranks only on the first hosts of the job, never on a spare"
    if policy.on_failure == "replace":
        raise InputError("--on-failure replace", what, "use --on-failure retry, or another --profile")
    if side_by_side:
        raise InputError("--side-by-side", what, "leave it out, or use another --profile")
