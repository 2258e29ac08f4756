"""Hostfiles, as mpiexec.hydra reads them: `host` or `host:ranks` a line, `#` starts a comment line.

The first line holds rank 0. Node lists are taken as well, `c401-[001-064]`, which hydra does not know: what
it gets is `render_hostfile`. Hydra crashes on `host:x`, refuses a comment behind a host, takes a host that is
there twice for two, and silently wraps around when there are too few; here each is one line with its place.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from caffe_recipes.cluster.nodelists import MOST_HOSTS, find_twice, parse_nodelist, slurm_hosts
from caffe_recipes.errors import ClusterError

_ENTRY = re.compile(r"(?P<hosts>[A-Za-z0-9._\[\],/-]+?)(?::(?P<ranks>[1-9][0-9]{0,5}))?")
_HERE = re.compile(r"localhost(?:\..*)?|127(?:\.[0-9]+){3}", re.IGNORECASE)
_MOST_BYTES = 10_000_000
_HINT = "write `host` or `host:ranks`, one a line"
_RANKS_HINT = "ranks are a number from 1 on, which -ppn overrides"
# What other programs read, and what hydra says of it at most by crashing; the first that fits.
_MISTAKES = (
    (re.compile(r".*\s#.*"), "hydra takes a comment in a line of its own only"),
    (re.compile(r"\S+@\S+.*"), "write the host alone, and its user in ~/.ssh/config"),
    (re.compile(r".*\bslots\s*=.*"), "that is for Open MPI; for hydra write `host:ranks`"),
    (re.compile(r"[^\s:]+\s+[0-9]+"), "for hydra write `host:ranks`, one a line"),
    (re.compile(r".*\s(?:binding|ifname)\s*=.*"), "a host's own options are not taken; write `host:ranks`"),
    (re.compile(r"[^\s:\"'/]+\s*:\s*[^\s:\"'/]*"), _RANKS_HINT),
)


@dataclass(frozen=True)
class HostLine:
    """A host of a hostfile: the line that names it, and the ranks it says; -ppn overrides those."""

    name: str
    ranks: int | None
    line: int


def load_hostfile(path: str | Path) -> tuple[str, ...]:
    """Read the hosts' names, in order.

    Raises ClusterError, whose `where` is `file:line`, for whatever parse_hostfile refuses.
    """
    try:
        data = _read(path)
        if not data and Path(path).is_fifo():
            raise ClusterError(path, "is a pipe that nobody has written to", "give a file")
        if len(data) > _MOST_BYTES:
            raise ClusterError(path, f"is over {_MOST_BYTES:,} bytes", "is it a hostfile?")
        text = data.decode("utf-8-sig")
    except OSError as error:
        what = f"cannot be read: {error.strerror}"
        raise ClusterError(path, what, "write one host a line, or give --hostfile") from None
    except UnicodeDecodeError:
        raise ClusterError(path, "is not text", "a hostfile holds one host a line") from None
    return parse_hostfile(text, path)


def parse_hostfile(text: str, where: str | Path) -> tuple[str, ...]:
    r"""Return the hosts' names, in order; `host:ranks` counts as `host`, since -ppn overrides it.

    Raises ClusterError for a file without hosts, a host that is there twice, and a line that is no host.

    >>> parse_hostfile("# two racks\nc401-001\nc402-[002,001]:2\n", "hostfile")
    ('c401-001', 'c402-002', 'c402-001')
    """
    hosts = parse_host_lines(text, where)
    names = tuple(host.name for host in hosts)
    again = find_twice(names)
    if again is not None:
        first = next(host.line for host in hosts if host.name.lower() == names[again].lower())
        what = f"host {names[again]} is there twice (first in line {first})"
        raise ClusterError(f"{where}:{hosts[again].line}", what, "keep one: -ppn sets the ranks of each")
    if not names:
        raise ClusterError(where, "holds no host", "write one host a line")
    return names


def parse_host_lines(text: str, where: str | Path) -> tuple[HostLine, ...]:
    r"""Return the hosts in their order, each as often as it is there; ClusterError for a line that is none.

    >>> parse_host_lines("b:4\na\nb\n", "hostfile")[0]
    HostLine(name='b', ranks=4, line=1)
    """
    hosts: list[HostLine] = []
    for number, line in enumerate(text.split("\n"), 1):
        entry = line.strip()
        if not entry or entry.startswith("#"):
            continue
        at = f"{where}:{number}"
        found = _ENTRY.fullmatch(entry)
        if found is None:
            raise ClusterError(at, f"{entry[:80]!r} is no host", _hint(entry[:80]))
        ranks = int(found["ranks"]) if found["ranks"] else None
        hosts += (HostLine(name, ranks, number) for name in parse_nodelist(found["hosts"], at))
        if len(hosts) > MOST_HOSTS:
            raise ClusterError(at, f"is host {MOST_HOSTS + 1:,}", "check the lines before")
    return tuple(hosts)


def render_hostfile(hosts: Sequence[str]) -> str:
    r"""Write a hostfile that every hydra reads: one host a line, in the order of ranks.

    >>> render_hostfile(("c401-002", "c401-001"))
    'c401-002\nc401-001\n'
    """
    return "".join(f"{host}\n" for host in hosts)


def find_hosts(hostfile: Path | None, environment: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the hosts of a hostfile, else those of the Slurm job around us, else None; ClusterError."""
    return load_hostfile(hostfile) if hostfile is not None else slurm_hosts(environment)


def take_hosts(hosts: tuple[str, ...], nodes: int, ranks_per_node: int, where: str | Path) -> tuple[str, ...]:
    """Return the hosts that hydra fills with ranks: the first `nodes`.

    Raises ClusterError if there are fewer: hydra would put the ranks left over on the first hosts again. And
    for localhost beside others, to which it is not the host that it is here.
    """
    if len(hosts) < nodes:
        ranks = f"{ranks_per_node} rank{'s' if ranks_per_node > 1 else ''}"
        room = f"{len(hosts)} host{'s' if len(hosts) > 1 else ''} x {ranks}"
        what = f"{room} = {len(hosts) * ranks_per_node}, the recipe needs {nodes * ranks_per_node}"
        raise ClusterError(where, what, f"give {nodes} hosts")
    taken = hosts[:nodes]
    here = next((name for name in taken if _HERE.fullmatch(name)), None)
    other = next((name for name in taken if not _HERE.fullmatch(name)), None)
    if here and other:
        what = f"holds {here} beside {other}: {here} means another machine on each host"
        raise ClusterError(where, what, "write its name")
    return taken


def _read(path: str | Path) -> bytes:
    """Read a file, or a pipe, as a shell's `<(...)` is; one that nobody writes to would be waited for."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        os.set_blocking(file.fileno(), True)
        return file.read(_MOST_BYTES + 1)


def _hint(entry: str) -> str:
    return next((hint for pattern, hint in _MISTAKES if pattern.fullmatch(entry)), _HINT)
