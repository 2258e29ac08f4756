"""Images to an LMDB as convert_imageset builds it: in parallel, and going on where it was cut off.

The work grows in `.NAME.partial` beside the LMDB, and takes its name when it is whole. A commit every 1000
records keeps what was done, through kill -9 and power cuts; the next build with the same plan goes on there.

What a build is to do, decided before anything is written: which image becomes which record, and how.

The folder in which something large grows until it is whole: one process at a time, and one plan.

Where an LMDB is to stand: seen before a million images are looked for, and before anything is written.

The images that a user names: by a list, a folder of classes, or ImageNet's archives.
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
    suffix_of,
    tell_excess,
)
from caffe_recipes.data.images import Picture, Pictures, load_classes, load_folder, load_list
from caffe_recipes.data.manifest import BuildManifest, RecordsDigest, load_manifest, write_manifest
from caffe_recipes.errors import DataError, InputError, RunFailed
from caffe_recipes.files import lock, make_own_folder, name_beside, write_whole

T = TypeVar("T")


@dataclass(frozen=True)
class BuildPlan:
    """Images in the order of their records; the record of the i-th has the key `%08d_name` of i."""

    pictures: Sequence[Picture]
    classes: tuple[str, ...] | None
    settings: Settings
    seed: int | None

    @cached_property
    def digest(self) -> str:
        """Digest the names, labels, order and settings: all that decides the records, but the images."""
        digest = hashlib.sha256(json.dumps(asdict(self.settings), sort_keys=True).encode())
        for picture in self.pictures:
            digest.update(os.fsencode(f"\n{picture.name}\0{picture.label}"))
        return digest.hexdigest()

    @cached_property
    def size_bytes(self) -> int:
        """Add up the images' files: with another sum they are not the same."""
        return sum(picture.size_bytes for picture in self.pictures)


def plan_build(
    found: Pictures, settings: Settings, *, seed: int | None = None, classes: int | None = None
) -> BuildPlan:
    """Order the images, shuffled if there is a `seed`; raises InputError for what cannot be built.

    `classes` is how many there have to be: labels go from 0 to `classes` - 1.
    """
    check_settings(settings)
    pictures = found.pictures if seed is None else shuffle(found.pictures, seed)
    _check_labels(found, classes)
    if settings.is_encoded and (settings.resizes or settings.is_gray) and settings.encode_type is None:
        _check_suffixes(found, is_gray=settings.is_gray)
    return BuildPlan(pictures, found.classes, settings, seed)


def shuffle(items: Sequence[T], seed: int) -> list[T]:
    """Shuffle: the same seed gives the same order on every machine.

    Only `Random.random()` is drawn from, whose values Python promises to keep.

    >>> shuffle("abcde", 1)
    ['a', 'd', 'e', 'c', 'b']
    """
    random = Random(seed)
    return sorted(items, key=lambda _: random.random())


def check_settings(settings: Settings) -> None:
    """Raise InputError for settings that contradict each other, or make images that no Datum holds.

    convert_imageset would not tell.
    """
    both = settings.resize_height_px, settings.resize_width_px
    if any(both) and not all(both):
        raise InputError("--resize-height, --resize-width", "only one of them is given", "give both")
    if any(both) and settings.shorter_side_px:
        raise InputError("--shorter-side", "stands beside --resize-height", "give one of them")
    if settings.encode_type is not None and not settings.is_encoded:
        raise InputError("--encode-type", "stands beside --raw", "give one of them")
    least = settings.shorter_side_px
    excess = tell_excess(*(both if all(both) else (least, least)), settings)
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
    """See that each image can be encoded again as what it is."""
    suffixes = Counter(suffix_of(picture.name) for picture in found.pictures)
    bad = next((suffix for suffix in suffixes if not can_encode(suffix, is_gray=is_gray)), None)
    if bad is not None:
        name = next(picture.name for picture in found.pictures if suffix_of(picture.name) == bad)
        what = f"'{name}' cannot be encoded as its suffix says{' in grey' if is_gray else ''}"
        raise DataError(found.where, what, "give --encode-type jpg")


RESUME = "run the same command again to resume"


def locked(partial: Path) -> AbstractContextManager[None]:
    """Let one process build at a time; entering raises DataError where another does."""
    return lock(partial / "lock", DataError(partial, "another build is under way there", "wait for its end"))


def check_plan(partial: Path, digest: str) -> None:
    """Raise DataError if what is there was begun with another plan."""
    path = partial / "plan"
    if not path.exists():
        write_whole({path: digest.encode()}, is_synced=True)
    elif path.read_bytes() != digest.encode():
        what = "was begun with other images or settings"
        raise DataError(partial, what, "remove it, or give the images and settings that it was begun with")


_COMMIT_EVERY, _COMMIT_BYTES = 1000, 1 << 26  # whichever comes first: a thousand raw photos fill a memory
_START_BYTES = 1 << 30  # of addresses; the file grows with what is in it
_BEGIN_AGAIN = "remove it, and build again"

Tell = Callable[[int, int], None]


class _SizeError(DataError):
    """An image is of another size than the first."""


@dataclass
class _Done:
    """What the LMDB holds so far: images up to `next`, but those left out."""

    next: int = 0
    labels: Counter[int] = field(default_factory=Counter)
    skipped: list[str] = field(default_factory=list)
    digest: RecordsDigest = field(default_factory=RecordsDigest)
    shape: tuple[int, ...] | None = None


@dataclass
class _Waiting:
    """Records on their way into the LMDB: by the thousand, or fewer where they are large."""

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
        """Write them; what fails is not tried twice. Raises lmdb.Error."""
        records, self.records, self.size_bytes = self.records, [], 0
        if records:
            commit_records(self.environment, records)


def build_lmdb(
    plan: BuildPlan,
    out: Path,
    *,
    workers: int = 1,
    skip_bad: bool = False,
    tell: Tell = lambda done, total: None,
) -> BuildManifest:
    """Build the LMDB `out` and its manifest beside it, or go on with it; a finished one of this plan is kept.

    An image that does not decode ends the build, or is left out if `skip_bad` is set, as convert_imageset
    does: its number is nobody's key. `tell` hears of images done, and how many there are. Raises DataError,
    or RunFailed for a worker that was killed or a disk that is full.
    """
    if os.path.lexists(out):
        return _check_same(plan, out)
    partial = out.with_name(f".{out.name}.partial")
    try:
        with writing(out, RESUME):
            make_own_folder(partial)
            with locked(partial):
                return _build(plan, out, partial, workers, skip_bad, tell)
    except (lmdb.InvalidError, lmdb.CorruptedError, lmdb.VersionMismatchError) as error:
        raise DataError(partial, f"is damaged ({error})", _BEGIN_AGAIN) from None
    except lmdb.Error as error:
        raise RunFailed(out, f"cannot be written: {error}", RESUME) from None
    except WorkerKilled as error:
        hint = f"{RESUME}; give fewer --workers if memory is short"
        raise RunFailed(out, f"a worker was killed, at '{error}' or soon after", hint) from None


def _build(
    plan: BuildPlan, out: Path, partial: Path, workers: int, skip_bad: bool, tell: Tell
) -> BuildManifest:
    if os.path.lexists(out):
        return _check_same(plan, out)
    if not _has_records(partial):
        (partial / "plan").unlink(missing_ok=True)  # nothing is lost by another one
    check_plan(partial, plan.digest)
    try:
        manifest = _fill(partial / "lmdb", plan, workers, skip_bad, tell)
    except DataError as error:
        # Nothing that helps against sizes goes on with these records: another plan is needed.
        if isinstance(error, _SizeError) or not _has_records(partial):
            shutil.rmtree(partial)
        raise
    write_manifest(out, manifest)
    (partial / "lmdb").rename(out)
    shutil.rmtree(partial, ignore_errors=True)  # all is done, whoever looks into it now
    return manifest


def _check_same(plan: BuildPlan, out: Path) -> BuildManifest:
    """Give the manifest of an LMDB that is what the plan would build; raises DataError if it is not."""
    manifest = load_manifest(out)
    if manifest is None:
        raise DataError(out, "is there already", "remove it, or give another path")
    if (manifest.plan, manifest.size_bytes) != (plan.digest, plan.size_bytes):
        what = "is there already, of other images or settings"
        raise DataError(out, what, "remove it, or give another path")
    with open_datums(out) as datums:
        if len(datums) != manifest.images:
            what = f"holds {len(datums):,} records, and its manifest says {manifest.images:,}"
            raise DataError(out, what, "remove it, and build it again")
    return manifest


def _has_records(partial: Path) -> bool:
    """Tell if an unfinished build came to its first record; raises DataError for damaged pages."""
    file = partial / "lmdb" / "data.mdb"
    if not file.exists() or not file.stat().st_size:
        return False
    try:
        tree = load_tree(file.parent)
        count = sum(1 for _ in tree) if tree else None  # all pages: to read damaged ones kills
    except DataError as error:
        raise DataError(partial, error.what, _BEGIN_AGAIN) from None
    if count is None:
        raise DataError(partial, "is damaged: it holds no LMDB", _BEGIN_AGAIN)
    return count > 0


def _fill(folder: Path, plan: BuildPlan, workers: int, skip_bad: bool, tell: Tell) -> BuildManifest:
    with lmdb.open(os.fspath(folder), lock=False, map_size=_START_BYTES) as environment:
        done = _read_done(environment, plan)
        if done.skipped and not skip_bad:
            what = f"was begun with --skip-bad, and '{done.skipped[0]}' is left out there"
            raise DataError(folder.parent, what, "give --skip-bad, or remove it")
        tell(done.next, len(plan.pictures))
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
                    tell(index + 1, len(plan.pictures))
        finally:
            waiting.commit()
    count = done.labels.total()
    if not count:
        raise DataError(plan.pictures[0].path, "is as bad as all other images", "give images that decode")
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
    """Take in the records that an earlier build left: the last key says how far it came."""
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
    """Say how an image's size differs from the first one's, where that is asked."""
    if not plan.settings.check_size:
        return ""
    done.shape = done.shape or made.shape
    if made.shape == done.shape:
        return ""
    size, first = (" x ".join(map(str, shape)) for shape in (made.shape, done.shape))
    return f"is {size}, and the first image {first}"


def _bad_image(plan: BuildPlan, index: int, wrong: str, *, is_decoded: bool) -> DataError:
    picture = plan.pictures[index]
    where = picture.path if picture.offset is None else f"{picture.path}: {picture.name}"
    if is_decoded:
        return _SizeError(where, wrong, "resize the images, or leave out --check-size")
    return DataError(where, wrong, "fix it and run the same command again to resume; or give --skip-bad")


# NAME_MAX, but for the longest name that is made of it.
_MOST_NAME_BYTES = 255 - len(name_beside(Path("_.manifest.json")).name) + len("_")


def check_out(out: Path, images: Path) -> None:
    """Raise DataError if `out` has too long a name, or would be taken for a class of the folder `images`."""
    length = len(os.fsencode(out.name))
    if length > _MOST_NAME_BYTES:
        what = f"the name has {length} bytes, and {_MOST_NAME_BYTES} leave room for those of its other files"
        raise DataError(out, what, "shorten it")
    if images.is_dir() and Path(os.path.realpath(out)).is_relative_to(os.path.realpath(images)):
        raise DataError(out, f"lies within {images}, whose folders are classes", "give a path beside it")


def load_pictures(
    images: Path, *, root: Path | None = None, labels: Path | None = None, class_list: Path | None = None
) -> Pictures:
    """Find the images of a list, folder or tar; raises InputError.

    `root` is of a list's paths, `labels` of a tar's images; `class_list` names the classes of folders and
    tars in label order.
    """
    known = load_classes(class_list) if class_list is not None else None
    if images.exists() and not images.is_dir() and not images.is_file():
        # It is read twice, to see what it is, and a pipe's beginning would be gone.
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
            raise InputError(name, f"does not go with a {kind} of images", "leave it out")
    if kind == "folder":
        return load_folder(images, known)
    return load_archive(images, labels, known) if kind == "tar" else load_list(images, root)
