"""Build an LMDB of images as convert_imageset does, but in parallel, and resume an interrupted build.

A plan decides which image becomes which record before anything is written. The LMDB is built in
`.NAME.partial` beside its destination, by one process at a time, and is renamed when it is complete. A commit
every 1000 records survives kill -9 and power cuts; the next build with the same plan continues from there.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from random import Random
from typing import TypeVar

import lmdb

from caffe_recipes.caffe.datums import commit_records, open_datums, writing
from caffe_recipes.caffe.lmdb_pages import load_tree
from caffe_recipes.data.archives import is_archive, load_archive
from caffe_recipes.data.convert import (
    Converted,
    Settings,
    WorkerKilled,
    can_encode,
    convert_all,
    convert_some,
    describe_excess,
    suffix_of,
)
from caffe_recipes.data.images import Picture, Pictures, load_classes, load_folder, load_list
from caffe_recipes.data.manifest import BuildManifest, RecordsDigest, load_manifest, write_manifest
from caffe_recipes.errors import DataError, InputError, RunFailed
from caffe_recipes.files import lock, make_own_folder, name_beside, write_whole

T = TypeVar("T")


@dataclass(frozen=True)
class BuildPlan:
    """The images in the order of their records; image i becomes the record with the key `%08d_name` of i."""

    pictures: Sequence[Picture]
    classes: tuple[str, ...] | None
    settings: Settings
    seed: int | None

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the names, labels, order and settings: all that decides the records but the pixels."""
        digest = hashlib.sha256(json.dumps(asdict(self.settings), sort_keys=True).encode())
        for picture in self.pictures:
            digest.update(os.fsencode(f"\n{picture.name}\0{picture.label}"))
        return digest.hexdigest()

    @cached_property
    def size_bytes(self) -> int:
        """The total size of the image files; if it differs, the images have changed."""
        return sum(picture.size_bytes for picture in self.pictures)


def plan_build(
    found: Pictures, settings: Settings, *, seed: int | None = None, classes: int | None = None
) -> BuildPlan:
    """Return the plan of a build, shuffled if there is a `seed`; raises InputError if it cannot be built.

    `classes` is the required number of classes: labels go from 0 to `classes` - 1.
    """
    check_settings(settings)
    pictures = found.pictures if seed is None else shuffle(found.pictures, seed)
    _check_labels(found, classes)
    if settings.is_encoded and (settings.resizes or settings.is_gray) and settings.encode_type is None:
        _check_suffixes(found, is_gray=settings.is_gray)
    return BuildPlan(pictures, found.classes, settings, seed)


def shuffle(items: Sequence[T], seed: int) -> list[T]:
    """Return the items shuffled; the same seed gives the same order on every machine.

    Only `Random.random()` is used, whose values Python promises not to change.

    >>> shuffle("abcde", 1)
    ['a', 'd', 'e', 'c', 'b']
    """
    random = Random(seed)
    return sorted(items, key=lambda _: random.random())


def check_settings(settings: Settings) -> None:
    """Raise InputError for settings that contradict each other, or give images too large for a Datum.

    convert_imageset would not report them.
    """
    both = settings.resize_height_px, settings.resize_width_px
    if any(both) and not all(both):
        raise InputError("--resize-height, --resize-width", "only one of them is given", "give both")
    if any(both) and settings.shorter_side_px:
        raise InputError("--shorter-side", "cannot be combined with --resize-height", "give one of them")
    if settings.encode_type is not None and not settings.is_encoded:
        raise InputError("--encode-type", "cannot be combined with --raw", "give one of them")
    least = settings.shorter_side_px
    excess = describe_excess(*(both if all(both) else (least, least)), settings)
    if excess:
        raise InputError("--shorter-side" if least else "--resize-height", excess, "give fewer pixels")


def _check_labels(found: Pictures, classes: int | None) -> None:
    if classes is None:
        return
    if found.classes is not None and len(found.classes) != classes:
        raise DataError(found.where, f"has {len(found.classes):,} classes, not {classes:,}", "fix --classes")
    bad = [picture for picture in found.pictures if picture.label >= classes]
    if bad:
        what = f"'{bad[0].name}' has label {bad[0].label}, which is not one of the {classes:,} classes from 0"
        raise DataError(found.where, what, "fix the label, or --classes")


def _check_suffixes(found: Pictures, *, is_gray: bool) -> None:
    """Raise DataError unless each image can be encoded again in the format of its suffix."""
    suffixes = Counter(suffix_of(picture.name) for picture in found.pictures)
    bad = next((suffix for suffix in suffixes if not can_encode(suffix, is_gray=is_gray)), None)
    if bad is not None:
        name = next(picture.name for picture in found.pictures if suffix_of(picture.name) == bad)
        what = f"'{name}' cannot be encoded in the format of its suffix{' in grey' if is_gray else ''}"
        raise DataError(found.where, what, "give --encode-type jpg")


RESUME = "run the same command again to resume"


def locked(partial: Path) -> AbstractContextManager[None]:
    """Return a lock that one process holds at a time; entering it raises DataError if another one does."""
    return lock(partial / "lock", DataError(partial, "another build is running there", "wait until it ends"))


def check_plan(partial: Path, digest: str) -> None:
    """Raise DataError if the unfinished build in `partial` was started with another plan."""
    path = partial / "plan"
    if not path.exists():
        write_whole({path: digest.encode()}, is_synced=True)
    elif path.read_bytes() != digest.encode():
        what = "was started with other images or settings"
        raise DataError(partial, what, "remove it, or give the images and settings that it was started with")


_COMMIT_EVERY, _COMMIT_BYTES = 1000, 1 << 26  # whichever comes first: a thousand raw photos fill the memory
_START_BYTES = 1 << 30  # of address space; the file itself grows with its records
_BEGIN_AGAIN = "remove it, and build again"

Progress = Callable[[int, int], None]


class _SizeError(DataError):
    """An image has another size than the first one."""


@dataclass
class _Done:
    """What an unfinished LMDB contains: the images before `next`, except those that were skipped."""

    next: int = 0
    labels: Counter[int] = field(default_factory=Counter)
    skipped: list[str] = field(default_factory=list)
    digest: RecordsDigest = field(default_factory=RecordsDigest)
    shape: tuple[int, ...] | None = None


@dataclass
class _Waiting:
    """Records that wait for the next commit."""

    environment: lmdb.Environment
    records: list[tuple[bytes, bytes]] = field(default_factory=list)
    size_bytes: int = 0

    def add(self, key: bytes, value: bytes) -> None:
        self.records.append((key, value))
        self.size_bytes += len(value)

    @property
    def are_enough(self) -> bool:
        return len(self.records) == _COMMIT_EVERY or self.size_bytes >= _COMMIT_BYTES

    def commit(self) -> None:
        """Write the records; raises lmdb.Error, after which they are not tried again."""
        records, self.records, self.size_bytes = self.records, [], 0
        if records:
            commit_records(self.environment, records)


def build_lmdb(
    plan: BuildPlan,
    out: Path,
    *,
    workers: int = 1,
    skip_bad: bool = False,
    on_progress: Progress = lambda done, total: None,
) -> BuildManifest:
    """Build the LMDB `out` and its manifest, or resume the build; a finished LMDB of this plan is kept.

    An image that does not decode ends the build. With `skip_bad` it is left out, as convert_imageset does,
    and its number is not used. `on_progress` gets the images done and their total. Raises DataError, or
    RunFailed if a worker was killed or the disk is full.
    """
    if os.path.lexists(out):
        return _check_same(plan, out)
    partial = out.with_name(f".{out.name}.partial")
    try:
        with writing(out, RESUME):
            make_own_folder(partial)
            with locked(partial):
                return _build(plan, out, partial, workers, skip_bad, on_progress)
    except (lmdb.InvalidError, lmdb.CorruptedError, lmdb.VersionMismatchError) as error:
        raise DataError(partial, f"is damaged ({error})", _BEGIN_AGAIN) from None
    except lmdb.Error as error:
        raise RunFailed(out, f"cannot be written: {error}", RESUME) from None
    except WorkerKilled as error:
        hint = f"{RESUME}; give fewer --workers if memory is short"
        raise RunFailed(out, f"a worker was killed, at '{error}' or soon after", hint) from None


def _build(
    plan: BuildPlan, out: Path, partial: Path, workers: int, skip_bad: bool, on_progress: Progress
) -> BuildManifest:
    if os.path.lexists(out):
        return _check_same(plan, out)
    if not _has_records(partial):
        (partial / "plan").unlink(missing_ok=True)  # without records another plan loses nothing
    check_plan(partial, plan.digest)
    try:
        manifest = _fill(partial / "lmdb", plan, workers, skip_bad, on_progress)
    except DataError as error:
        # These records cannot be resumed from: to fix the sizes takes another plan.
        if isinstance(error, _SizeError) or not _has_records(partial):
            shutil.rmtree(partial)
        raise
    write_manifest(out, manifest)
    (partial / "lmdb").rename(out)
    shutil.rmtree(partial, ignore_errors=True)  # the LMDB is finished in any case
    return manifest


def _check_same(plan: BuildPlan, out: Path) -> BuildManifest:
    """Return the manifest of an existing LMDB; raises DataError unless the plan would build the same LMDB."""
    manifest = load_manifest(out)
    if manifest is None:
        raise DataError(out, "already exists", "remove it, or give another path")
    if (manifest.plan, manifest.size_bytes) != (plan.digest, plan.size_bytes):
        what = "already exists, built from other images or settings"
        raise DataError(out, what, "remove it, or give another path")
    with open_datums(out) as datums:
        if len(datums) != manifest.images:
            what = f"holds {len(datums):,} records, but its manifest says {manifest.images:,}"
            raise DataError(out, what, "remove it, and build it again")
    return manifest


def _has_records(partial: Path) -> bool:
    """Return whether an unfinished build has any records; raises DataError for damaged pages."""
    file = partial / "lmdb" / "data.mdb"
    if not file.exists() or not file.stat().st_size:
        return False
    try:
        tree = load_tree(file.parent)
        count = sum(1 for _ in tree) if tree else None  # all pages, since lmdb crashes on damaged ones
    except DataError as error:
        raise DataError(partial, error.what, _BEGIN_AGAIN) from None
    if count is None:
        raise DataError(partial, "is damaged: it does not contain an LMDB", _BEGIN_AGAIN)
    return count > 0


def _fill(
    folder: Path, plan: BuildPlan, workers: int, skip_bad: bool, on_progress: Progress
) -> BuildManifest:
    with lmdb.open(os.fspath(folder), lock=False, map_size=_START_BYTES) as environment:
        done = _read_done(environment, plan)
        if done.skipped and not skip_bad:
            what = f"was started with --skip-bad, which left out '{done.skipped[0]}'"
            raise DataError(folder.parent, what, "give --skip-bad, or remove it")
        on_progress(done.next, len(plan.pictures))
        waiting = _Waiting(environment)
        try:
            for index, made in _convert_rest(plan, done.next, workers):
                picture = plan.pictures[index]
                wrong = made.wrong or _compare_shape(plan, done, made)
                if not wrong:
                    record = os.fsencode(f"{index:08d}_{picture.name}"), made.value
                    done.labels[picture.label] += 1
                    done.digest.add(*record)
                    waiting.add(*record)
                elif skip_bad and made.wrong:
                    done.skipped.append(picture.name)
                else:
                    raise _bad_image(plan, index, wrong, is_decoded=not made.wrong)
                if waiting.are_enough:
                    waiting.commit()
                    on_progress(index + 1, len(plan.pictures))
        finally:
            waiting.commit()
    count = done.labels.total()
    if not count:
        raise DataError(plan.pictures[0].path, "does not decode, nor does any other", "give other images")
    settings = asdict(plan.settings)
    return BuildManifest(
        count,
        plan.size_bytes,
        done.labels,
        plan.classes,
        done.skipped,
        settings,
        plan.seed,
        plan.digest,
        done.digest.hexdigest(),
    )


def _convert_rest(plan: BuildPlan, start: int, workers: int) -> Iterator[tuple[int, Converted]]:
    with closing(convert_all(plan.pictures[start:], plan.settings, workers)) as converted:
        yield from enumerate(converted, start)


def _read_done(environment: lmdb.Environment, plan: BuildPlan) -> _Done:
    """Read the records that an interrupted build has written."""
    done = _Done()
    with environment.begin(buffers=True) as transaction:
        for key, value in transaction.cursor():
            index = int(bytes(key[:8]))
            done.skipped += [picture.name for picture in plan.pictures[done.next : index]]
            done.labels[plan.pictures[index].label] += 1
            done.digest.add(bytes(key), bytes(value))
            done.next = index + 1
    if plan.settings.check_size and done.next:
        first = next(picture for picture in plan.pictures if picture.name not in done.skipped)
        done.shape = convert_some([first], plan.settings)[0].shape
    return done


def _compare_shape(plan: BuildPlan, done: _Done, made: Converted) -> str:
    """Return how an image's size differs from the first one's; "" if not, or if sizes may differ."""
    if not plan.settings.check_size:
        return ""
    done.shape = done.shape or made.shape
    if made.shape == done.shape:
        return ""
    size, first = (" x ".join(map(str, shape)) for shape in (made.shape, done.shape))
    return f"is {size}, but the first image is {first}"


def _bad_image(plan: BuildPlan, index: int, wrong: str, *, is_decoded: bool) -> DataError:
    picture = plan.pictures[index]
    where = picture.path if picture.offset is None else f"{picture.path}: {picture.name}"
    if is_decoded:
        return _SizeError(where, wrong, "resize the images, or leave out --check-size")
    return DataError(where, wrong, "fix it and run the same command again to resume; or give --skip-bad")


# NAME_MAX, less what the longest derived name adds.
_MOST_NAME_BYTES = 255 - len(name_beside(Path("_.manifest.json")).name) + len("_")


def check_out(out: Path, images: Path) -> None:
    """Raise DataError if the name of `out` is too long, or if it is inside `images`, as a class would be."""
    length = len(os.fsencode(out.name))
    if length > _MOST_NAME_BYTES:
        what = f"the name has {length} bytes, more than {_MOST_NAME_BYTES}, which its manifest's name allows"
        raise DataError(out, what, "shorten it")
    if images.is_dir() and Path(os.path.realpath(out)).is_relative_to(os.path.realpath(images)):
        raise DataError(out, f"is inside {images}, whose folders are classes", "give a path outside it")


def load_pictures(
    images: Path, *, root: Path | None = None, labels: Path | None = None, class_list: Path | None = None
) -> Pictures:
    """Return the images of a list, folder or tar; raises InputError.

    `root` is the folder that a list's paths start from, `labels` the file with the labels of a tar's images.
    `class_list` names the classes of a folder or tar in the order of their labels.
    """
    known = load_classes(class_list) if class_list is not None else None
    if images.exists() and not images.is_dir() and not images.is_file():
        # A pipe cannot be read twice, first to find out what it is.
        raise DataError(images, "is a pipe or a device", "write the list to a file, and give that")
    try:
        kind = "folder" if images.is_dir() else "tar" if is_archive(images) else "list"
    except (OSError, ValueError) as error:
        what = f"cannot be read: {getattr(error, 'strerror', None) or error}"
        raise DataError(images, what, "give a list, a folder or a tar of images") from None
    for name, given, kinds in (
        ("--root", root, ("list",)),
        ("--labels", labels, ("tar",)),
        ("--class-list", class_list, ("folder", "tar")),
    ):
        if given is not None and kind not in kinds:
            raise InputError(name, f"cannot be used with a {kind} of images", "leave it out")
    if kind == "folder":
        return load_folder(images, known)
    return load_archive(images, labels, known) if kind == "tar" else load_list(images, root)
