"""What staging asks of a node: `node.sh`, run there by the Host, and what it answers."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Literal, TypeVar

from caffe_recipes.cluster.hosts import COMMAND_S, Host
from caffe_recipes.cluster.parallel import ask_all
from caffe_recipes.errors import CaffeRecipesError, ClusterError

T = TypeVar("T")

# A tenth of gigabit Ethernet: a slower copy of an LMDB has come to a stop for all that anybody would wait.
SLOWEST_BYTES_PER_S = 10e6
_LONGEST_S = 86400.0
_ANSWER = "caffe-recipes: "


@dataclass(frozen=True)
class NodeState:
    """What lies at the LMDB's place on a host.

    `present` with a digest: verified by staging, and not changed since. `refused`: `reason` says why nothing
    can be put there; `unreachable`: why the host does not answer.
    """

    host: str
    kind: Literal["absent", "present", "refused", "unreachable"]
    size_bytes: int = 0
    digest: str | None = None
    free_bytes: int = 0
    sees_source: bool = False
    reason: str = ""


class NodeRefusal(ClusterError):
    """A node that cannot take an LMDB, or keep it; `what` says why."""


def on_each(
    hosts: Sequence[Host], act: Callable[[Host], T], timeout_s: float = _LONGEST_S
) -> list[T | CaffeRecipesError | None]:
    """Call `act` on every host at once; each one's result or error, in order."""
    return [answer.error or answer.value for answer in ask_all(hosts, act, timeout_s)]


def probe_node(host: Host, lmdb: str, source: str, source_bytes: int) -> NodeState:
    """Look at what lies at an LMDB's place; a host that does not answer is a state as well."""
    try:
        words = ask_node(host, "probe", lmdb, source, str(source_bytes))
    except NodeRefusal as refusal:
        return NodeState(host.name, "refused", reason=refusal.what)
    except ClusterError as error:
        return NodeState(host.name, "unreachable", reason=error.what)
    if words[0] == "absent":
        return NodeState(host.name, "absent", free_bytes=int(words[1]), sees_source=words[2] == "1")
    return NodeState(host.name, "present", int(words[1]), None if words[2] == "-" else words[2])


def hash_node(host: Host, lmdb: str, size_bytes: int) -> str:
    """Return the digest of the LMDB that lies on a host; raises ClusterError."""
    return ask_node(host, "digest", lmdb, timeout_s=seconds_for(size_bytes))[1]


def reserve_part(host: Host, lmdb: str, part: str, size_bytes: int) -> None:
    """Make the folder and an empty file in it, where there is room; raises ClusterError."""
    ask_node(host, "reserve", lmdb, part, str(size_bytes))


def take_part(
    host: Host, lmdb: str, part: str, source: str, size_bytes: int, *, room_bytes: int, digest: str | None
) -> None:
    """Reserve a part and have the node read the source itself; with a digest commit it, too.

    Raises ClusterError. One command, since 64 nodes each take their time for one.
    """
    limit_s = seconds_for(size_bytes)
    words = (part, str(room_bytes), source, f"{limit_s:.0f}", str(size_bytes), digest or "-")
    ask_node(host, "take", lmdb, *words, timeout_s=2 * limit_s + COMMAND_S)


def commit_part(host: Host, lmdb: str, part: str, size_bytes: int, digest: str) -> None:
    """Verify what has been filled, and give it its name; raises ClusterError."""
    ask_node(host, "commit", lmdb, part, str(size_bytes), digest, timeout_s=seconds_for(size_bytes))


def abandon_part(host: Host, lmdb: str) -> None:
    """Take away what is under way; raises ClusterError."""
    ask_node(host, "abandon", lmdb)


def clean_node(host: Host, lmdb: str) -> tuple[str, str]:
    """Take away what staging put on a host; return `cleaned` with bytes, `kept` with why, or `nothing`."""
    words = ask_node(host, "clean", lmdb)
    return words[0], " ".join(words[1:])


def seconds_for(size_bytes: int) -> float:
    """Return how long reading a file may take."""
    return COMMAND_S + size_bytes / SLOWEST_BYTES_PER_S


def normalize_lmdb(lmdb: str) -> str:
    """Return an LMDB's path as nodes get it; raises ClusterError for one that is no place for it.

    >>> normalize_lmdb("/tmp//lmdb/")
    '/tmp/lmdb'
    """
    if not lmdb.startswith("/") or ".." in lmdb.split("/") or "\0" in lmdb:
        raise ClusterError(
            lmdb, "is no absolute path", "give the folder's whole path on the nodes, without `..`"
        )
    path = "/" + posixpath.normpath(lmdb).lstrip("/")
    if path == "/":
        raise ClusterError(lmdb, "is no folder for an LMDB", "name one, as /tmp/train_lmdb")
    return path


def ask_node(host: Host, verb: str, *words: str, timeout_s: float = COMMAND_S) -> list[str]:
    """Run a verb of `node.sh` on a host; return its answer's words.

    Raises NodeRefusal for what the node refuses, ClusterError where it gives no answer.
    """
    done = host.run(["sh", "-c", _program(), "caffe-recipes", verb, *words], timeout_s)
    last = done.stdout.rstrip("\n").rpartition("\n")[2]
    where = f"{host.name}:{words[0]}"
    if not last.startswith(_ANSWER):
        said = " ".join((done.stderr or done.stdout).split())[:200]
        what = f"`{verb}` gives no answer that can be read: {said or f'exit {done.returncode}'}"
        raise ClusterError(where, what, "check that the host has sh and GNU coreutils")
    answer = last.removeprefix(_ANSWER).split()
    if answer[0] == "refused":
        raise NodeRefusal(where, " ".join(answer[1:]), "mend it, or stage elsewhere")
    return answer


@cache
def _program() -> str:
    return resources.files(__package__).joinpath("node.sh").read_text("utf-8")
