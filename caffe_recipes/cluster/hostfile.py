"""Hostfiles, as mpiexec.hydra reads them: `host` or `host:ranks` a line, `#` starts a comment line.

Hydra crashes on `host:x`, refuses a comment behind a host, and silently wraps around when there are too few
hosts; here each is one line with the file and the line's number.
"""

from __future__ import annotations

import re
from pathlib import Path

from caffe_recipes.errors import ClusterError

_ENTRY = re.compile(r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(?::[1-9][0-9]*)?")


def load_hostfile(path: str | Path) -> tuple[str, ...]:
    """Read the hosts' names, in order.

    Raises ClusterError, whose `where` is `file:line`, for whatever parse_hostfile refuses.
    """
    try:
        text = Path(path).read_text("utf-8")
    except OSError as error:
        what = f"cannot be read: {error.strerror}"
        raise ClusterError(path, what, "write one host a line, or give --hostfile") from None
    except UnicodeDecodeError:
        raise ClusterError(path, "is not text", "a hostfile holds one host a line") from None
    return parse_hostfile(text, path)


def parse_hostfile(text: str, where: str | Path) -> tuple[str, ...]:
    r"""Return the hosts' names, in order; `host:ranks` counts as `host`, since -ppn overrides it.

    Raises ClusterError for a file without hosts, a host that is there twice, and a line that is no host.

    >>> parse_hostfile("# two nodes\nc401-001\nc401-002:2\n", "hostfile")
    ('c401-001', 'c401-002')
    """
    line_of: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), 1):
        entry = line.strip()
        if not entry or entry.startswith("#"):
            continue
        at = f"{where}:{number}"
        found = _ENTRY.fullmatch(entry)
        if found is None:
            raise ClusterError(at, f"{entry[:80]!r} is no host", "write `host` or `host:ranks`, one a line")
        name = found["name"]
        if name in line_of:
            what = f"host {name} is there twice (first in line {line_of[name]})"
            raise ClusterError(at, what, "keep one: -ppn sets the ranks of each")
        line_of[name] = number
    if not line_of:
        raise ClusterError(where, "holds no host", "write one host a line")
    return tuple(line_of)


def take_hosts(hosts: tuple[str, ...], nodes: int, ranks_per_node: int, where: str | Path) -> tuple[str, ...]:
    """Return the hosts that hydra fills with ranks: the first `nodes`.

    Raises ClusterError if there are fewer: hydra would put the ranks left over on the first hosts again.
    """
    if len(hosts) < nodes:
        room = f"{len(hosts)} host{'s' if len(hosts) > 1 else ''} x {ranks_per_node} ranks"
        what = f"{room} = {len(hosts) * ranks_per_node}, the recipe needs {nodes * ranks_per_node}"
        raise ClusterError(where, what, f"list {nodes} hosts")
    return hosts[:nodes]
