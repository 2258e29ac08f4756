"""Stage a set of files: each host gets its own files of the set, in one folder.

On a host, each file is treated like the data.mdb of an LMDB, by the same functions: it is verified before it
gets its final name, never replaces another file, and has its own stamp. So an interrupted staging resumes
with the missing files.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from caffe_recipes.cluster.commands import COMMAND_S, Host
from caffe_recipes.cluster.remote import NodeRefusal, ask_node, call, seconds_for, unreadable
from caffe_recipes.cluster.staging.manifest import Copy, cache_folder, load_copies, save_copies, staging_lock
from caffe_recipes.cluster.staging.plan import (
    How,
    NodeState,
    StagingPlan,
    choose_way,
    estimate_ways,
    normalize_lmdb,
    on_each,
    render_plan,
)
from caffe_recipes.cluster.staging.stage import Say, StagedHost, StagingEnv, host_results
from caffe_recipes.cluster.staging.ways import find_failures
from caffe_recipes.errors import DataError
from caffe_recipes.wording import describe_count

# Each file is an argument of the command, and the system limits their total length.
_FILES_PER_COMMAND = 64
_ABANDON_S = 15.0
_CLEAN_S = 600.0
_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")
_HINT = "have it removed, or stage to another folder"
_ONE_FILE = "sends the same file to every host, and these differ"


@dataclass(frozen=True)
class SetFile:
    """A file to stage under `name`; `path` is our copy of it, and `digest` is computed as in `relay`."""

    name: str
    path: Path
    size_bytes: int
    digest: str


@dataclass(frozen=True)
class FileSet:
    """The files that each host, by name, gets in `folder`; most of them come from the folder `source`."""

    folder: str
    source: Path
    wanted: Mapping[str, Sequence[SetFile]]

    def __post_init__(self) -> None:
        """Raise InputError unless the folder is absolute, and DataError if a file name is not portable."""
        object.__setattr__(self, "folder", normalize_lmdb(self.folder))
        for file in dict.fromkeys(file for each in self.wanted.values() for file in each):
            if not _NAME.fullmatch(file.name):
                what = (
                    f"{file.name!r} has characters other than letters, digits, dots, dashes and underscores"
                )
                raise DataError(self.source, what, "rename the files of the set")

    def is_read_by_nodes(self, file: SetFile) -> bool:
        """Return whether nodes may read the file themselves: it is in the source folder, under its name."""
        return file.path == self.source / file.name


@dataclass(frozen=True)
class _Probe:
    """The state of a host, and the files that it lacks."""

    state: NodeState
    lacking: tuple[SetFile, ...] = ()


def stage_set(
    hosts: Sequence[Host], files: FileSet, env: StagingEnv, say: Say = lambda line: None
) -> tuple[StagedHost, ...]:
    """Send every host the files that it lacks, each atomically; return the outcome of each host.

    Raises ClusterError if another process is staging to the same folder, and InputError if the requested way
    is not available. If a host fails, its outcome says so, and the others are still staged.
    """
    cache = env.cache or cache_folder()
    with staging_lock(files.folder, cache):
        probes = [
            probe
            if isinstance(probe, _Probe)
            else _Probe(NodeState(host.name, "unreachable", reason=probe.what))
            for host, probe in zip(
                hosts, on_each(hosts, lambda host: _probe(host, files, cache)), strict=True
            )
            if probe is not None
        ]
        plan = _plan(files, probes, env)
        for line in render_plan(plan):
            say(line)
        lacking = {probe.state.host: probe.lacking for probe in probes}
        missing = {state.host for state in plan.missing}
        busy = [host for host in hosts if host.name in missing]
        try:
            done = on_each(busy, lambda host: _send(host, files, lacking[host.name], plan.how))
        except BaseException:
            _abandon(busy, files.folder)
            raise
        failed = find_failures(busy, done)
        _abandon([host for host in busy if host.name in failed], files.folder)
        return host_results(hosts, plan, failed)


def clean_set(host: Host, folder: str) -> tuple[str, str]:
    """Remove the files that `stage_set` put on a host; the result is that of `clean_node`.

    Raises ClusterError, or its subclass NodeRefusal if a process is reading one of the files.
    """
    *records, _ = call(host, "node", "set-clean", folder, timeout_s=_CLEAN_S, place=folder)
    answers = [record.split() for record in records]
    kept = [" ".join(why) for word, *why in answers if word != "cleaned"]
    if kept:
        return "kept", f"{describe_count(len(kept), 'file')}: {kept[0]}"
    return ("cleaned", str(sum(int(size) for _, size in answers))) if answers else ("nothing", "")


def _probe(host: Host, files: FileSet, cache: Path) -> _Probe:
    try:
        return _compare(host, files, cache)
    except NodeRefusal as refusal:
        return _Probe(NodeState(host.name, "refused", reason=refusal.what))


def _compare(host: Host, files: FileSet, cache: Path) -> _Probe:
    """Compare the files on a host with those that it should have. Raises NodeRefusal if one differs."""
    lacking, unsure, free_bytes, sees = list[SetFile](), list[SetFile](), 0, True
    for file, (kind, *words) in _ask_each(
        host, "set-probe", files, files.wanted[host.name], [str(files.source)], lambda file: [file.size_bytes]
    ):
        if kind == "absent":
            lacking.append(file)
            free_bytes = int(words[0])
            sees = sees and (words[1] == "1" or not files.is_read_by_nodes(file))
        elif int(words[0]) != file.size_bytes:
            sizes = f"{int(words[0]):,} bytes; the source has {file.size_bytes:,}"
            what = f"{file.name} is a different file ({sizes})"
            raise NodeRefusal(host.name, what, _HINT, files.folder)
        elif words[1] != file.digest:
            unsure.append(file)
    for file, digest in _digests(host, files, unsure, cache).items():
        if digest != file.digest:
            what = f"{file.name} is a different file (same size as the source, but different content)"
            raise NodeRefusal(host.name, what, _HINT, files.folder)
    needed = sum(file.size_bytes for file in lacking)
    if lacking and free_bytes < needed:
        what = f"not enough space: {free_bytes:,} bytes free, {needed:,} needed"
        raise NodeRefusal(host.name, what, "free space there", files.folder)
    if not lacking:
        return _Probe(NodeState(host.name, "present"))
    return _Probe(NodeState(host.name, "absent", free_bytes=free_bytes, sees_source=sees), tuple(lacking))


def _digests(host: Host, files: FileSet, unsure: Sequence[SetFile], cache: Path) -> dict[SetFile, str]:
    """Return the digests of files on a host without our stamp, from the cache or by hashing them."""
    place = f"{host.name}:{files.folder}"
    known = load_copies(place, cache) if unsure else {}
    stamps = {file: " ".join(words) for file, words in _ask_each(host, "set-identify", files, unsure)}
    found = {
        file: copy.digest for file in unsure if (copy := known.get(file.name)) and copy.stamp == stamps[file]
    }
    rest = [file for file in unsure if file not in found]
    new = {file: digest for file, (_, digest) in _ask_each(host, "set-digest", files, rest)}
    if new:
        save_copies(place, {file.name: Copy(stamps[file], digest) for file, digest in new.items()}, cache)
    return found | new


def _plan(files: FileSet, probes: Sequence[_Probe], env: StagingEnv) -> StagingPlan:
    """Return the plan. Raises InputError if the requested way is not available."""
    states = [probe.state for probe in probes]
    missing = tuple(state for state in states if state.kind == "absent")
    size_bytes = sum(file.size_bytes for probe in probes for file in probe.lacking)
    each = -(-size_bytes // max(1, len(missing)))
    unavailable: dict[How, str] = {"chain": _ONE_FILE, "sbcast": _ONE_FILE}
    options = estimate_ways(missing, each, env.rates, unavailable) if missing else ()
    return StagingPlan(
        lmdb=files.folder,
        source=str(files.source),
        size_bytes=size_bytes,
        present=tuple(state.host for state in states if state.kind == "present"),
        missing=missing,
        refused=tuple((state.host, state.reason) for state in states if state.reason),
        options=options,
        how=choose_way(options, env.how) if missing else None,
        is_split=True,
    )


def _send(host: Host, files: FileSet, lacking: Sequence[SetFile], how: How | None) -> None:
    """Let a host copy the files that it can read, and send it the others. Raises ClusterError."""
    part = uuid.uuid4().hex[:12]

    def words(file: SetFile) -> list[object]:
        return [f".{file.name}.part-{part}", file.size_bytes, file.digest]

    pulled = [file for file in lacking if how == "copy" and files.is_read_by_nodes(file)]
    limit_s = seconds_for(max((file.size_bytes for file in pulled), default=0))
    for _ in _ask_each(host, "set-take", files, pulled, [str(files.source), f"{limit_s:.0f}"], words):
        pass
    for file in lacking:
        if file not in pulled:
            for _ in _ask_each(host, "set-reserve", files, [file], (), words):
                host.put(file.path, f"{files.folder}/{words(file)[0]}")
            for _ in _ask_each(host, "set-commit", files, [file], (), words):
                pass


def _abandon(hosts: Sequence[Host], folder: str) -> None:
    """Remove unfinished copies; on a dead host they remain until the next staging removes them."""
    on_each(hosts, lambda host: ask_node(host, "set-abandon", folder), _ABANDON_S)


def _ask_each(
    host: Host,
    verb: str,
    files: FileSet,
    some: Sequence[SetFile],
    common: Sequence[str] = (),
    words: Callable[[SetFile], Sequence[object]] = lambda file: (),
) -> Iterator[tuple[SetFile, list[str]]]:
    """Call a verb of manage.sh for many files at a time; yield each file with the words of its answer.

    Raises NodeRefusal, which names the file, if the host refuses one, and HostFailed if there is no answer.
    """
    for start in range(0, len(some), _FILES_PER_COMMAND):
        batch = some[start : start + _FILES_PER_COMMAND]
        lines = [" ".join(map(str, (file.name, *words(file)))) for file in batch]
        limit_s = 2 * seconds_for(sum(file.size_bytes for file in batch)) + COMMAND_S
        *records, _ = call(
            host,
            "node",
            verb,
            files.folder,
            *common,
            *lines,
            timeout_s=limit_s,
            place=files.folder,
            hint=_HINT,
        )
        if len(records) != len(batch):
            raise unreadable(host.name, verb, " ".join(records), files.folder)
        for file, record in zip(batch, records, strict=True):
            kind, _, rest = record.partition(" ")
            if kind == "refused":
                raise NodeRefusal(host.name, f"{file.name}: {rest.strip()}", _HINT, files.folder)
            yield file, record.split()
