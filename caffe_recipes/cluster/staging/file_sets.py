"""Sets of files to stage, their digests, and what `manage.sh` does with them on a host.

Each host gets its own files of a set, in one folder. An LMDB is a set of one file, data.mdb, for all hosts.
On a host, each file is verified before it gets its final name, never replaces another file, and has its own
stamp. So an interrupted staging resumes with the missing files.

The digest of a source, which every copy is checked against, is cached in the user's cache folder. A copy that
staging did not make has no stamp and gets none, since `--clean` must not remove it. Each run checks it twice,
and hashing 42 GB takes minutes, so its digest is cached, too, until the copy changes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import posixpath
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from caffe_recipes.cluster.commands import COMMAND_S, Host
from caffe_recipes.cluster.hosts import Answer, ask_all
from caffe_recipes.cluster.remote import OTHER_FOLDER, NodeRefusal, call_to_end, seconds_for, unreadable
from caffe_recipes.cluster.staging.relay import DATA, digest_of
from caffe_recipes.errors import ClusterError, DataError, InputError
from caffe_recipes.file_format import FORMAT
from caffe_recipes.files.bounded_reads import read_within, reading
from caffe_recipes.files.locks import lock
from caffe_recipes.files.user_cache import private_cache, write_cache_file
from caffe_recipes.trust import is_as_safe_as_its_folder
from caffe_recipes.wording import describe_count

# Each file is an argument of the command, and the system limits their total length.
_FILES_PER_COMMAND = 64
# Space besides the data, for the stamp and for the lock file that every reader of an LMDB creates.
_OVERHEAD_BYTES = 1 << 20
_CLEAN_S = 600.0
_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")
# What manage.sh answers about a file that it does not refuse, by verb.
_BYTES = "[0-9]{1,19}"
_ANSWERS = {
    "survey": rf"present {_BYTES} ([0-9a-f]{{64}}|-) {_BYTES}|absent {_BYTES} [01] {_BYTES}",
    "identify": rf"[0-9a-f]+ [0-9]+ {_BYTES} -?[0-9.]+",
    "digest": "digest [0-9a-f]{64}",
    "reserve": "done",
    "take": "done",
    "commit": "done",
}
_CLEANED = re.compile(rf"(kept) (.+)|(cleaned) ({_BYTES})|nothing")


@dataclass(frozen=True)
class SourceFile:
    """The source file on this machine, with the attributes that change when it is written."""

    data: Path
    size_bytes: int
    mtime_ns: int
    inode: int


def find_source(folder: Path) -> SourceFile:
    """Return the data file of the LMDB in a folder. Raises DataError if there is none."""
    hint = "give the LMDB's folder"
    source = stat_source(folder.absolute() / DATA, hint)
    if not source.data.is_file() or source.size_bytes == 0:
        raise DataError(source.data, "is not an LMDB", hint)
    return source


def stat_source(path: Path, hint: str = "copy or create the files again") -> SourceFile:
    """Return a source file with its attributes. Raises DataError if it does not exist."""
    with reading(path, DataError, hint):
        status = path.stat()
    return SourceFile(path, status.st_size, status.st_mtime_ns, status.st_ino)


@dataclass(frozen=True)
class SetFile:
    """A file to stage under `name`; its `digest`, computed as in `relay`, is None until it is needed."""

    name: str
    source: SourceFile
    digest: str | None = None

    @property
    def size_bytes(self) -> int:
        """Return the size of the file."""
        return self.source.size_bytes


@dataclass(frozen=True)
class FileSet:
    """The files that each host, by name, gets in `folder`; most of them come from the folder `source`.

    `root` is the Caffe root, whose owner is trusted on each host.
    """

    folder: str
    source: Path
    wanted: Mapping[str, Sequence[SetFile]]
    root: Path = Path("/")

    def __post_init__(self) -> None:
        """Raise InputError unless the folder is absolute, and DataError if a file name is not portable."""
        object.__setattr__(self, "folder", normalize_folder(self.folder))
        for file in self._all:
            if not _NAME.fullmatch(file.name):
                what = (
                    f"{file.name!r} has characters other than letters, digits, dots, dashes and underscores"
                )
                raise DataError(self.source, what, "rename the files of the set")

    @cached_property
    def _all(self) -> Sequence[SetFile]:
        return tuple(dict.fromkeys(file for each in self.wanted.values() for file in each))

    @cached_property
    def lmdb(self) -> SetFile | None:
        """Return the data.mdb of an LMDB, which every host gets; None if the set is not an LMDB."""
        return self._all[0] if [file.name for file in self._all] == [DATA] else None

    @property
    def read_paths(self) -> list[str]:
        """Return what is read on this machine: the source folder, and the files that are not as safe as it.

        Checking a thousand files one by one takes seconds. An LMDB's file is checked with its folder.
        """
        paths = [file.source.data for file in (() if self.lmdb else self._all)]
        apart = [path for path in paths if path.parent != self.source or not is_as_safe_as_its_folder(path)]
        return [str(self.source), *map(str, apart)]

    @property
    def names(self) -> Sequence[str]:
        """Return the name of an LMDB's file; other sets are found on a host by the stamps of their files."""
        return (DATA,) if self.lmdb else ()

    def is_read_by_nodes(self, file: SetFile) -> bool:
        """Return whether nodes may read the file themselves: it is in the source folder, under its name."""
        return file.source.data == self.source / file.name

    def with_digest(self, digest: str | None) -> FileSet:
        """Return the set of an LMDB with its digest."""
        wanted = {host: [replace(file, digest=digest) for file in each] for host, each in self.wanted.items()}
        return replace(self, wanted=wanted)


def lmdb_set(lmdb: str, folder: Path, hosts: Iterable[str], root: Path = Path("/")) -> FileSet:
    """Return the set to stage the LMDB in a folder. Raises DataError if there is none, and InputError."""
    data = SetFile(DATA, find_source(folder))
    return FileSet(lmdb, data.source.data.parent, dict.fromkeys(hosts, (data,)), root)


def normalize_folder(folder: str) -> str:
    """Return a folder's path in normal form. Raises InputError unless it is the absolute path of a folder.

    >>> normalize_folder("/tmp//lmdb/")
    '/tmp/lmdb'
    """
    if not folder.startswith("/") or ".." in folder.split("/") or "\0" in folder:
        raise InputError(
            folder, "is not an absolute path", "give the full path of the folder on the nodes, without `..`"
        )
    path = "/" + posixpath.normpath(folder).lstrip("/")
    if path == "/":
        raise InputError(folder, "is not a folder for an LMDB", "give one, e.g. /tmp/train_lmdb")
    return path


@dataclass(frozen=True)
class FoundFile:
    """A file that is on a host; one with a digest was verified by staging and has not changed since."""

    size_bytes: int
    digest: str | None


@dataclass(frozen=True)
class NodeState:
    """Which files of a set are on a host; `absent` if it lacks any of them.

    For `refused`, `reason` says why nothing can be copied there; for `unreachable`, why the host does not
    answer. `sees_source` is true if the host can read all files that it lacks.
    """

    host: str
    kind: Literal["absent", "present", "refused", "unreachable"]
    found: Mapping[str, FoundFile] = field(default_factory=dict)
    free_bytes: int = 0
    sees_source: bool = False
    reason: str = ""


def survey_hosts(hosts: Sequence[Host], files: FileSet, timeout_s: float) -> list[NodeState]:
    """Return which files each host has, in the order of the hosts."""
    answers = ask_all(hosts, lambda host: _survey_host(host, files), timeout_s)
    return [to_state(answer) for answer in answers]


def to_state(answer: Answer[NodeState]) -> NodeState:
    """Return the state that a host reported; an error is a state, too."""
    if answer.value is not None:
        return answer.value
    reason = answer.error.what if answer.error else ""
    is_refused = isinstance(answer.error, NodeRefusal)
    return NodeState(answer.host.name, "refused" if is_refused else "unreachable", reason=reason)


def _survey_host(host: Host, files: FileSet) -> NodeState:
    """Return which files a host has. Raises ClusterError."""
    wanted, found, free_bytes, sees = files.wanted[host.name], dict[str, FoundFile](), 0, True
    answers = ask_files(host, "survey", files, wanted, lambda file: [file.size_bytes], [str(files.source)])
    for file, (kind, *words) in zip(wanted, answers, strict=True):
        if kind == "present":
            found[file.name] = FoundFile(int(words[0]), None if words[1] == "-" else words[1])
        else:
            free_bytes = int(words[0])
            sees = sees and (words[1] == "1" or not files.is_read_by_nodes(file))
    if len(found) == len(wanted):
        return NodeState(host.name, "present", found)
    return NodeState(host.name, "absent", found, free_bytes, sees)


def part_name(file: SetFile, token: str) -> str:
    """Return the name of a file while it arrives on a host; `token` is that of the staging.

    >>> part_name(SetFile("data.mdb", SourceFile(Path("/shared/data.mdb"), 7, 0, 0)), "1")
    '.data.mdb.part-1'
    """
    return f".{file.name}.part-{token}"


PartVerb = Literal["reserve", "take", "commit"]


def ask_parts(host: Host, verb: PartVerb, files: FileSet, some: Sequence[SetFile], token: str) -> None:
    """Reserve space for files, let the host take them from the source, or commit them. Raises ClusterError.

    `reserve` creates an empty part. `take` reserves and fills it, and commits it if the digest is known.
    `commit` verifies a part, and gives it its final name. Every command on 64 nodes takes time, so that one
    command does this for many files.
    """
    slowest_s = seconds_for(max((file.size_bytes for file in some), default=0))
    common = [str(files.source), f"{slowest_s:.0f}"] if verb == "take" else []
    passes = {"reserve": 0, "take": 2, "commit": 1}[verb]

    def words(file: SetFile) -> list[object]:
        size_bytes = file.size_bytes
        return [part_name(file, token), size_bytes + _OVERHEAD_BYTES, size_bytes, file.digest or "-"]

    ask_files(host, verb, files, some, words, common, passes)


def ask_files(
    host: Host,
    verb: str,
    files: FileSet,
    some: Sequence[SetFile],
    words: Callable[[SetFile], Sequence[object]] = lambda file: (),
    common: Sequence[str] = (),
    passes: int = 0,
) -> list[list[str]]:
    """Call a verb of manage.sh for many files at a time; return the words of the answer for each file.

    `passes` is how often the host reads or writes the files. Raises NodeRefusal if the host refuses a file,
    which the error names unless it belongs to an LMDB, and HostFailed if there is no valid answer.
    """
    answers = []
    for start in range(0, len(some), _FILES_PER_COMMAND):
        batch = some[start : start + _FILES_PER_COMMAND]
        lines = [" ".join(map(str, (file.name, *words(file)))) for file in batch]
        limit_s = COMMAND_S + passes * seconds_for(sum(file.size_bytes for file in batch))
        records = _call(host, verb, files.folder, files.root, *common, *lines, limit_s=limit_s)
        if len(records) != len(batch):
            raise unreadable(host.name, verb, " ".join(records), files.folder)
        for file, record in zip(batch, records, strict=True):
            kind, _, reason = record.partition(" ")
            if kind == "refused":
                what = reason.strip() if files.lmdb else f"{file.name}: {reason.strip()}"
                raise NodeRefusal(host.name, what, OTHER_FOLDER, files.folder)
            if not re.fullmatch(_ANSWERS[verb], record):
                raise unreadable(host.name, verb, record, files.folder)
            answers.append(record.split())
    return answers


def abandon_parts(host: Host, files: FileSet) -> None:
    """Remove unfinished copies. Raises ClusterError."""
    _call(host, "abandon", files.folder, files.root, *files.names)


def clean_host(host: Host, folder: str, names: Sequence[str] = (), root: Path = Path("/")) -> tuple[str, str]:
    """Remove the files that staging put on a host: those with these names, or all that have a stamp.

    The owner of the Caffe root, `root`, is trusted. Returns `cleaned` with bytes, `kept` with a reason, or
    `nothing`. Raises ClusterError, or its subclass NodeRefusal if a process is reading one of the files.
    """
    records = _call(host, "clean", folder, root, *names, limit_s=_CLEAN_S)
    answers = [_CLEANED.fullmatch(record) for record in records]
    if not all(answers):
        raise unreadable(host.name, "clean", " ".join(records), folder)
    kept = [answer[2] for answer in answers if answer and answer[1]]
    sizes = [int(answer[4]) for answer in answers if answer and answer[3]]
    if kept:
        return "kept", kept[0] if names else f"{describe_count(len(kept), 'file')}: {kept[0]}"
    return ("cleaned", str(sum(sizes))) if sizes else ("nothing", "")


def _call(
    host: Host, verb: str, folder: str, root: Path, *words: str, limit_s: float = COMMAND_S
) -> list[str]:
    words = (folder, str(root), *words)
    return call_to_end(host, "node", verb, *words, timeout_s=limit_s, place=folder, hint=OTHER_FOLDER)


# A file modified more recently may be written again without a change of its mtime, which has a coarse clock.
_SETTLED_S = 2.0
_SAVING = threading.Lock()


def load_digest(source: SourceFile, cache: Path) -> str | None:
    """Return the cached digest of a source; None if the source was never hashed, or has changed since."""
    try:
        known = _load_cached("manifests", source.data, cache)
    except (OSError, ValueError):
        return None
    if {**known, "digest": ""} != _identity(source, ""):
        return None
    return str(known["digest"])


def hash_source(source: SourceFile, cache: Path) -> str:
    """Hash a source, and cache and return its digest. Raises DataError, also if the source changes."""
    with reading(source.data, DataError, "check its disk"):
        digest = digest_of(source.data)
    save_digest(source, digest, cache)
    return digest


def known_digest(source: SourceFile, cache: Path) -> str:
    """Return the digest of a source, from the cache or by hashing it. Raises DataError."""
    return load_digest(source, cache) or hash_source(source, cache)


def save_digest(source: SourceFile, digest: str, cache: Path) -> None:
    """Cache the digest of a source. Raises DataError if the source has changed."""
    if stat_source(source.data) != source:
        raise DataError(
            source.data,
            "changed while it was being staged",
            "stop the program that writes to it, and stage again",
        )
    if time.time() - source.mtime_ns / 1e9 > _SETTLED_S:
        with contextlib.suppress(OSError):  # without a cache it is hashed again next time
            _save_cached("manifests", source.data, _identity(source, digest), cache)


@contextlib.contextmanager
def staging_lock(lmdb: str, cache: Path) -> Iterator[None]:
    """Hold the lock for staging to a path. Raises ClusterError if another process of the user holds it."""
    name = hashlib.sha256(lmdb.encode(errors="surrogateescape")).hexdigest()[:16]
    busy = ClusterError(lmdb, "is being staged by another process", "wait for it to end")
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):  # without a lock each node still verifies its copy
            held.enter_context(lock(private_cache(cache) / f"stage-{name}.lock", busy))
        yield


def _identity(source: SourceFile, digest: str) -> dict[str, str | int]:
    return {
        "path": str(source.data),
        "bytes": source.size_bytes,
        "mtime_ns": source.mtime_ns,
        "inode": source.inode,
        "digest": digest,
    }


class Copy(NamedTuple):
    """A file on a host: its stamp, which changes whenever it is written, and its digest at that stamp."""

    stamp: str
    digest: str


def load_copies(lmdb: str, cache: Path) -> dict[str, Copy]:
    """Return the cached copies of an LMDB by host, or the cached files of a set on one host by name.

    The cache is ignored if other users can write to it.
    """
    try:
        known = _load_cached("copies", lmdb, cache)["copies"]
        return {str(host): Copy(str(stamp), str(digest)) for host, (stamp, digest) in known.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def save_copies(lmdb: str, found: Mapping[str, Copy], cache: Path) -> None:
    """Add copies to the cache; the hosts that have an LMDB share one file."""
    with _SAVING, contextlib.suppress(OSError):  # without a cache they are hashed again next time
        copies = {**load_copies(lmdb, cache), **found}
        _save_cached("copies", lmdb, {"copies": copies}, cache)


CacheKind = Literal["manifests", "copies"]


def _load_cached(kind: CacheKind, path: str | Path, cache: Path) -> dict[str, Any]:
    """Return the values that are cached for a path. Raises OSError or ValueError if there are none."""
    values = json.loads(read_within(_cached_file(kind, path, cache), "json-bytes"))
    if not isinstance(values, dict) or values.pop("format", None) != FORMAT:
        raise ValueError("written by another version")
    return values


def _save_cached(kind: CacheKind, path: str | Path, values: Mapping[str, object], cache: Path) -> None:
    write_cache_file(_cached_file(kind, path, cache), json.dumps({"format": FORMAT, **values}))


def _cached_file(kind: CacheKind, path: str | Path, cache: Path) -> Path:
    """Return the file for what is cached for a path. Raises OSError."""
    return private_cache(cache) / kind / f"{hashlib.sha256(os.fsencode(path)).hexdigest()[:32]}.json"
