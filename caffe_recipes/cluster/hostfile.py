"""Read node lists, and hostfiles as mpiexec.hydra does (`host` or `host:ranks` per line, `#` comments).

The first line is the host of rank 0. A line may also be a node list, `c401-[001-064]`, in the syntax of Slurm
and ClusterShell. Hydra does not understand node lists, so it gets the output of `render_hostfile`. Hydra also
crashes on `host:x`, rejects a comment after a host, counts a host that appears twice as two, and silently
reuses hosts if there are too few; here each of these is a one-line error that names the place.

ClusterShell's NodeSet is a set: it sorts, and drops duplicates. The order of hosts determines the order of
ranks, so entries are expanded here, and duplicates are kept for the caller to check.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from caffe_recipes.errors import InputError
from caffe_recipes.files.bounded_reads import read_bytes, reading
from caffe_recipes.limits import MOST_HOSTFILE_BYTES, MOST_HOSTS, MOST_NODELIST_BYTES
from caffe_recipes.wording import describe_count

_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
# A resolver takes these for addresses, which nobody intends: `0` is this machine.
_NUMBER = re.compile(r"[0-9]+|0+(?:\.0+)+")
_MAX_NAME_LENGTH = 255
_RANGE = re.compile(r"([0-9]{1,15})(?:-([0-9]{1,15})(?:/([1-9][0-9]{0,5}))?)?")
# A comma within brackets does not separate entries.
_LIST_ENTRY = re.compile(r"(?:[^\[\],]|\[[^\[\]]*\])+")
_BRACKET = re.compile(r"\[([^\[\]]*)\]")
_LAST_NUMBER = re.compile(r"(.*?)([0-9]{1,15})([^0-9]*)", re.DOTALL)
_LIST_HINT = "write hosts as in c401-[001-064,070]"


def is_host_name(text: str) -> bool:
    """Return whether a text can be a host name. ssh would take one with a leading dash for an option.

    >>> is_host_name("c401-001.example.org"), is_host_name("-oProxyCommand=x"), is_host_name("0")
    (True, False, False)
    """
    return len(text) <= _MAX_NAME_LENGTH and _HOST.fullmatch(text) is not None and not _NUMBER.fullmatch(text)


def explain_bad_host_name(text: str, hint: str) -> str:
    """Return a specific hint for a text that is not a host name, or `hint` if there is none."""
    if len(text) > _MAX_NAME_LENGTH:
        return f"host names have at most {_MAX_NAME_LENGTH} characters"
    if _HOST.fullmatch(text.rstrip(".")):
        return "remove the trailing dot" if text.endswith(".") else "a host name cannot be a number"
    return hint


def parse_nodelist(text: str, where: str | Path) -> tuple[str, ...]:
    """Return the hosts of a node list in order, including duplicates.

    Raises InputError if the text is not a node list, is empty, or has more than MOST_HOSTS hosts.

    >>> parse_nodelist("c402-001,c401-[003,001-002]", "nodes")
    ('c402-001', 'c401-003', 'c401-001', 'c401-002')
    """
    stripped = _refuse_long(text, where).strip()
    entries = _LIST_ENTRY.findall(stripped)
    if not entries or ",".join(entries) != stripped:
        raise InputError(where, f"{stripped[:80]!r} is not a node list", _LIST_HINT)
    hosts: list[str] = []
    for entry in entries:
        hosts += expand_entry(entry, where)
        if len(hosts) > MOST_HOSTS:
            raise _too_many(where, entry)
    return tuple(hosts)


def expand_entry(entry: str, where: str | Path) -> tuple[str, ...]:
    """Return the hosts of one entry; the last bracket varies fastest.

    >>> expand_entry("r[2,1]-n[09-10]", "nodes")
    ('r2-n09', 'r2-n10', 'r1-n09', 'r1-n10')
    """
    pieces = _BRACKET.split(entry)  # text, bracket, text, bracket, ..., text
    if not is_host_name("".join(_with_digits(pieces))):
        raise InputError(where, f"{entry[:80]!r} is not a host", explain_bad_host_name(entry, _LIST_HINT))
    if len(pieces) == 1:
        return (entry,)
    brackets = [[_parse_range(item, entry, where) for item in bracket.split(",")] for bracket in pieces[1::2]]
    if math.prod(sum(len(numbers) for numbers, _ in bracket) for bracket in brackets) > MOST_HOSTS:
        raise _too_many(where, entry)
    choices = [[str(n).zfill(width) for numbers, width in bracket for n in numbers] for bracket in brackets]
    texts = pieces[::2]
    return tuple(
        "".join(map("".join, itertools.zip_longest(texts, chosen, fillvalue="")))
        for chosen in itertools.product(*choices)
    )


def fold_hosts(hosts: Sequence[str]) -> str:
    """Return a node list that expands to the same hosts in the same order.

    >>> fold_hosts(["c401-003", "c401-001", "c401-002", "c402-001"])
    'c401-003,c401-[001-002],c402-001'
    """
    runs: list[list[str]] = []
    for host in hosts:
        if runs and _comes_after(runs[-1][-1], host):
            runs[-1].append(host)
        else:
            runs.append([host])
    return ",".join(_fold(run) for run in runs)


def find_duplicate(hosts: Sequence[str]) -> int | None:
    """Return the index of the first host that repeats an earlier one; None if none does. Ignores case.

    >>> find_duplicate(["c1", "c2", "C1"]), find_duplicate(["c1", "c2"])
    (2, None)
    """
    seen: set[str] = set()
    for index, host in enumerate(hosts):
        if host.lower() in seen:
            return index
        seen.add(host.lower())
    return None


def _with_digits(pieces: list[str]) -> list[str]:
    return ["0" if index % 2 else piece for index, piece in enumerate(pieces)]


def _parse_range(item: str, entry: str, where: str | Path) -> tuple[range, int]:
    """Return the numbers of a range, and how many digits they have at least. Raises InputError."""
    found = _RANGE.fullmatch(item)
    if found is None:
        raise InputError(where, f"{item[:40]!r} in {entry[:80]!r} is not a range", _LIST_HINT)
    first, last, step = int(found[1]), int(found[2] or found[1]), int(found[3] or 1)
    if last < first:
        raise InputError(where, f"range {item} runs backwards", f"write {found[2]}-{found[1]}")
    padded = any(len(number or "") > 1 and number[0] == "0" for number in (found[1], found[2]))
    if padded and found[2] and len(found[2]) != len(found[1]):
        raise InputError(where, f"range {item} has numbers of different widths", _LIST_HINT)
    return range(first, last + 1, step), len(found[1])


def _comes_after(previous: str, host: str) -> bool:
    """Return whether two hosts differ only in their last number, which is larger in the second host."""
    one, other = _LAST_NUMBER.fullmatch(previous), _LAST_NUMBER.fullmatch(host)
    if one is None or other is None or (one[1], one[3]) != (other[1], other[3]):
        return False
    return int(one[2]) < int(other[2])


def _fold(run: list[str]) -> str:
    """Fold ascending hosts with NodeSet; list them one by one if the result would expand differently."""
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet

    if len(run) == 1:
        return run[0]
    folded = str(NodeSet.fromlist(run, resolver=RESOLVER_NOGROUP))
    kept = list(NodeSet(folded, resolver=RESOLVER_NOGROUP)) == run and len(_LIST_ENTRY.findall(folded)) == 1
    return folded if kept else ",".join(run)


def _refuse_long(text: str, where: str | Path) -> str:
    """Return a node list or a line; raises InputError for one that would take too long to parse."""
    if len(text) > MOST_NODELIST_BYTES:
        what = f"{text[:80]!r} continues for over {MOST_NODELIST_BYTES:,} bytes"
        raise InputError(where, what, "write ranges, as in c401-[001-064], or one host per line")
    return text


def _too_many(where: str | Path, entry: str) -> InputError:
    return InputError(where, f"{entry[:80]!r} names more than {MOST_HOSTS:,} hosts", "check its ranges")


_LINE = re.compile(r"(?P<hosts>[A-Za-z0-9._\[\],/-]+?)(?::[1-9][0-9]{0,5})?")
_LOOPBACK = re.compile(r"localhost(?:\..*)?|127(?:\.[0-9]+){3}", re.IGNORECASE)
_LINE_HINT = "write one `host` or `host:ranks` per line"
_RANKS_HINT = "write the number of ranks as an integer of at least 1; -ppn overrides it"
# Lines that other programs accept but hydra does not, with a hint for each; the first match applies.
_MISTAKES = (
    (re.compile(r".*\s#.*"), "write the comment on a line of its own, as hydra requires"),
    (re.compile(r"\S+@\S+.*"), "write only the host; set its user in ~/.ssh/config"),
    (re.compile(r".*\bslots\s*=.*"), "this is the syntax of Open MPI; for hydra write `host:ranks`"),
    (
        re.compile(r"\[?[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f.]{0,15}){2,}(?:%\w+)?\]?(?::[0-9]+)?"),
        "hydra reads what follows a colon as the number of ranks; write the host's name, and its address in"
        " /etc/hosts or as HostName in ~/.ssh/config",
    ),
    (re.compile(r"[^\s:]+\s+[0-9]+"), "for hydra write one `host:ranks` per line"),
    (re.compile(r".*\s(?:binding|ifname)\s*=.*"), "options of a host are not supported; write `host:ranks`"),
    (re.compile(r"[^\s:\"'/]+\s*:\s*[^\s:\"'/]*"), _RANKS_HINT),
)


def load_hostfile(path: str | Path) -> tuple[str, ...]:
    """Return the names of the hosts in a hostfile, in order.

    Raises InputError, with `file:line` as its `where`, if the file is not valid.
    """
    with reading(path, InputError, "give a readable file with one host per line"):
        if not Path(path).exists():
            raise InputError(path, "no such file", "write one host per line into it")
        data = read_bytes(path, MOST_HOSTFILE_BYTES + 1)
    if len(data) > MOST_HOSTFILE_BYTES:
        raise InputError(path, f"is over {MOST_HOSTFILE_BYTES:,} bytes", "is it a hostfile?")
    try:
        return parse_hostfile(data.decode("utf-8-sig"), path)
    except UnicodeDecodeError:
        raise InputError(path, "is not a text file", "give a hostfile with one host per line") from None


def parse_hostfile(text: str, where: str | Path) -> tuple[str, ...]:
    r"""Return the names of the hosts, in order; ranks in `host:ranks` are ignored, since -ppn overrides them.

    Raises InputError if there are no hosts, a host appears twice, or a line is not a host.

    >>> parse_hostfile("# two racks\nc401-001\nc402-[002,001]:2\n", "hostfile")
    ('c401-001', 'c402-002', 'c402-001')
    """
    hosts = _numbered_hosts(text, where)
    names = tuple(name for name, _ in hosts)
    duplicate = find_duplicate(names)
    if duplicate is not None:
        name, again = hosts[duplicate]
        first = next(number for other, number in hosts if other.lower() == name.lower())
        what = f"host {name} appears twice (first on line {first})"
        raise InputError(f"{where}:{again}", what, "remove one; -ppn sets the ranks per host")
    if not names:
        raise InputError(where, "contains no hosts", "write one host per line")
    return names


def _numbered_hosts(text: str, where: str | Path) -> list[tuple[str, int]]:
    """Return the hosts in order, each with the number of its line. Raises InputError."""
    hosts: list[tuple[str, int]] = []
    for number, line in enumerate(text.split("\n"), 1):
        at = f"{where}:{number}"
        entry = _refuse_long(line, at).strip()
        if not entry or entry.startswith("#"):
            continue
        found = _LINE.fullmatch(entry)
        if found is None:
            raise InputError(at, f"{entry[:80]!r} is not a host", _hint(entry[:80]))
        hosts += ((name, number) for name in parse_nodelist(found["hosts"], at))
        if len(hosts) > MOST_HOSTS:
            raise InputError(at, f"the file has more than {MOST_HOSTS:,} hosts", "check its ranges")
    return hosts


def render_hostfile(hosts: Sequence[str]) -> str:
    r"""Return the text of a hostfile that every hydra can read: one host per line, in the order of ranks.

    >>> render_hostfile(("c401-002", "c401-001"))
    'c401-002\nc401-001\n'
    """
    return "".join(f"{host}\n" for host in hosts)


def find_hosts_outside_job(hosts: Iterable[str], job: Iterable[str]) -> tuple[str, ...]:
    """Return the hosts that are not among a job's hosts; both may be short or fully qualified names.

    >>> find_hosts_outside_job(["c1", "C2.a.org", "c3", "c4.a.org"], ["c1.a.org", "c2", "c4.b.org"])
    ('c3', 'c4.a.org')
    """
    names = {name.lower() for name in job}
    short = {name.partition(".")[0]: name for name in names}

    def is_inside(host: str) -> bool:
        if host.lower() in names:
            return True
        first, dot, _ = host.lower().partition(".")
        match = short.get(first, "")
        return match != "" and not (dot and "." in match)

    return tuple(host for host in hosts if not is_inside(host))


def take_hosts(hosts: tuple[str, ...], nodes: int, ranks_per_node: int, where: str | Path) -> tuple[str, ...]:
    """Return the hosts that get ranks: the first `nodes`.

    Raises InputError if there are fewer, since hydra would start the other ranks on the first hosts again.
    Also raises it if localhost appears beside other hosts, since it is a different machine on each of them.
    """
    if len(hosts) < nodes:
        room = f"{describe_count(len(hosts), 'host')} x {describe_count(ranks_per_node, 'rank')}"
        what = f"{room} = {len(hosts) * ranks_per_node}, but the recipe needs {nodes * ranks_per_node}"
        raise InputError(where, what, f"give {describe_count(nodes, 'host')}")
    taken = hosts[:nodes]
    here = next((name for name in taken if _LOOPBACK.fullmatch(name)), None)
    other = next((name for name in taken if not _LOOPBACK.fullmatch(name)), None)
    if here and other:
        what = f"lists {here} beside {other}, but {here} is a different machine on each host"
        raise InputError(where, what, f"replace {here} with the name of this machine")
    return taken


def _hint(entry: str) -> str:
    return next((hint for pattern, hint in _MISTAKES if pattern.fullmatch(entry)), _LINE_HINT)
