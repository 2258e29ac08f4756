"""Build an LMDB of images as convert_imageset does, but in parallel, and resume an interrupted build.

A plan decides which image becomes which record before anything is written. The LMDB is built in
`.NAME.partial` next to its destination, by one process at a time, and is renamed when it is complete. A
commit every 1000 records survives kill -9 and power cuts; the next build with the same plan resumes there.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from random import Random
from typing import TypeVar

import lmdb
from google.protobuf.message import DecodeError

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.datums import commit_records, open_datums, writing
from caffe_recipes.caffe.lmdb_pages import load_tree
from caffe_recipes.data.archives import is_archive, load_archive
from caffe_recipes.data.convert import (
    Converted,
    WorkerKilled,
    can_encode,
    convert_all,
    convert_batch,
    describe_excess,
    suffix_of,
)
from caffe_recipes.data.images import (
    ConversionSettings,
    Picture,
    Pictures,
    Progress,
    load_classes,
    load_folder,
    load_list,
)
from caffe_recipes.data.manifest import (
    BuildManifest,
    RecordsDigest,
    check_own_data,
    load_manifest,
    write_manifest,
)
from caffe_recipes.errors import DataError, InputError, RunFailed, hint_for
from caffe_recipes.files.atomic_writes import check_replaceable, make_own_folder, name_beside, write_whole
from caffe_recipes.files.bounded_reads import read_bytes
from caffe_recipes.files.locks import lock
from caffe_recipes.wording import describe_count, plural

T = TypeVar("T")


@dataclass(frozen=True)
class BuildPlan:
    """The images in record order; image i becomes the record with the key `%08d_name`, where %08d is i."""

    pictures: Sequence[Picture]
    classes: tuple[str, ...] | None
    settings: ConversionSettings
    seed: int | None

    def key(self, index: int) -> bytes:
        """Return the key of the record of an image."""
        return os.fsencode(f"{index:08d}_{self.pictures[index].name}")

    @cached_property
    def settings_text(self) -> bytes:
        """The settings as JSON."""
        return json.dumps(asdict(self.settings), sort_keys=True).encode()

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the names, labels, order and settings: all that decides the records except pixels."""
        digest = hashlib.sha256(self.settings_text)
        for picture in self.pictures:
            digest.update(os.fsencode(f"\n{picture.name}\0{picture.label}"))
        return digest.hexdigest()

    @cached_property
    def size_bytes(self) -> int:
        """The total size of the image files; a change shows that the images have changed."""
        return sum(picture.size_bytes for picture in self.pictures)


def plan_build(
    found: Pictures, settings: ConversionSettings, *, seed: int | None = None, classes: int | None = None
) -> BuildPlan:
    """Return the plan of a build, shuffled if `seed` is given. Raises InputError if it cannot be built.

    `classes` is the required number of classes; labels must be 0 to `classes` - 1.
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


def split_pictures(found: Pictures, share: float, seed: int) -> tuple[Pictures, Pictures]:
    """Divide images into training and test images, which are a `share` of each class that `seed` selects.

    Both keep their order, and have images of each class. An image that is listed twice is in only one of
    them. Raises DataError for a class with one image.
    """
    by_label: dict[int, dict[tuple[str, int | None], str]] = {}
    for one in found.pictures:
        by_label.setdefault(one.label, {})[one.path, one.offset] = one.name
    tested: set[tuple[str, int | None]] = set()
    for label, names in by_label.items():
        if len(names) == 1:
            what = f"label {label} has only one image, '{next(iter(names.values()))}'"
            raise DataError(found.where, what, "add one, since training and test images both need the class")
        count = min(max(round(share * len(names)), 1), len(names) - 1)
        tested.update(shuffle(list(names), seed)[:count])
    train = [one for one in found.pictures if (one.path, one.offset) not in tested]
    test = [one for one in found.pictures if (one.path, one.offset) in tested]
    return replace(found, pictures=train), replace(found, pictures=test)


def check_settings(settings: ConversionSettings) -> None:
    """Raise InputError if settings contradict each other, or make images too large for a Datum.

    convert_imageset would report neither.
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
        has = describe_count(len(found.classes), "class", "classes")
        raise DataError(found.where, f"has {has}, not {classes:,}", "fix --classes")
    bad = [picture for picture in found.pictures if picture.label >= classes]
    if bad:
        wanted = f"{classes:,} classes 0 to {classes - 1}"
        what = f"'{bad[0].name}' has label {bad[0].label}, which is not one of the {wanted}"
        raise DataError(found.where, what, "fix the label, or --classes")


def _check_suffixes(found: Pictures, *, is_gray: bool) -> None:
    """Raise DataError if an image cannot be re-encoded in the format of its suffix."""
    suffixes = Counter(suffix_of(picture.name) for picture in found.pictures)
    bad = next((suffix for suffix in suffixes if not can_encode(suffix, is_gray=is_gray)), None)
    if bad is not None:
        name = next(picture.name for picture in found.pictures if suffix_of(picture.name) == bad)
        what = f"'{name}' cannot be encoded in the format of its suffix{' in grey' if is_gray else ''}"
        raise DataError(found.where, what, "give --encode-type jpg")


RESUME_HINT = "run the same command again to resume"


def build_lock(partial: Path) -> AbstractContextManager[None]:
    """Return a lock for one process at a time. Entering it raises DataError if another process holds it."""
    return lock(partial / "lock", DataError(partial, "another build is running in it", "wait until it ends"))


def check_plan(partial: Path, digest: str) -> None:
    """Raise DataError if the unfinished build in `partial` was started with a different plan."""
    path = partial / "plan"
    if not path.exists():
        write_whole({path: digest.encode()}, is_synced=True)
    elif read_bytes(path, len(digest) + 1) != digest.encode():
        what = "was started with other images or settings"
        raise DataError(partial, what, "remove it, or give the images and settings that it was started with")


def _check_continued(partial: Path, plan: BuildPlan) -> None:
    """Raise DataError if an unfinished build cannot be finished with this plan.

    It can if all of its records are also the first ones of this plan, e.g. after a bad image was deleted.
    """
    try:
        check_plan(partial, plan.digest)
    except DataError:
        if not _has_first_records(partial, plan):
            raise


def _has_first_records(partial: Path, plan: BuildPlan) -> bool:
    """Return whether the records of an unfinished build are the first ones of a plan."""
    settings = partial / _SETTINGS
    if not settings.is_file() or read_bytes(settings, len(plan.settings_text) + 1) != plan.settings_text:
        return False
    with (
        lmdb.open(os.fsencode(partial / "lmdb"), lock=False, readonly=True) as environment,
        environment.begin(buffers=True) as transaction,
    ):
        for place, (key, value) in enumerate(transaction.cursor()):
            if place == len(plan.pictures) or bytes(key) != plan.key(place):
                return False
            if _label_of(bytes(value)) != plan.pictures[place].label:
                return False
    return True


def _label_of(value: bytes) -> int | None:
    """Return the label of a record; None if it is damaged."""
    try:
        return int(pb.Datum.FromString(value).label)
    except DecodeError:
        return None


_SETTINGS = "settings"
_COMMIT_EVERY, _COMMIT_BYTES = 1000, 1 << 26  # whichever comes first: 1000 raw photos could fill the memory
_START_BYTES = 1 << 30  # of address space; the file itself grows with its records
_REBUILD_HINT = "remove it, and build again"


class _SizeError(DataError):
    """Raised for an image whose size differs from the first one's."""


@dataclass
class _BuildState:
    """The contents of an unfinished LMDB: all images before `next`, except those that were skipped."""

    next: int = 0
    labels: Counter[int] = field(default_factory=Counter)
    skipped: list[str] = field(default_factory=list)
    digest: RecordsDigest = field(default_factory=RecordsDigest)
    shape: tuple[int, ...] | None = None
    enlarged: list[tuple[int, int]] = field(default_factory=list)

    def describe_enlarged(self, settings: ConversionSettings) -> str:
        """Return how many images were enlarged since the build was started or resumed; "" if none was."""
        if not self.enlarged:
            return ""
        height, width = min(self.enlarged, key=lambda size: size[0] * size[1])
        count = f"{describe_count(len(self.enlarged), 'image')} {plural(len(self.enlarged), 'was', 'were')}"
        return f"{count} enlarged to {settings.size_text}; the smallest is {height} x {width}"


@dataclass
class _PendingRecords:
    """Records that are waiting for the next commit."""

    environment: lmdb.Environment
    records: list[tuple[bytes, bytes]] = field(default_factory=list)
    size_bytes: int = 0

    def add(self, key: bytes, value: bytes) -> None:
        self.records.append((key, value))
        self.size_bytes += len(value)

    @property
    def is_full(self) -> bool:
        return len(self.records) == _COMMIT_EVERY or self.size_bytes >= _COMMIT_BYTES

    def commit(self) -> None:
        """Write the records. Raises lmdb.Error, after which they are dropped."""
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
    warn: Callable[[str], object] = lambda text: None,
) -> BuildManifest:
    """Build the LMDB `out` and its manifest, or resume the build. A finished LMDB of this plan is kept.

    An image that cannot be decoded ends the build; with `skip_bad`, it is skipped, as in convert_imageset,
    and its number is not used. `on_progress` gets the number of images done and their total, and
    `warn` a sentence at the end if small images were enlarged. Raises
    DataError, or RunFailed if a worker was killed or the disk is full.
    """
    if os.path.lexists(out):
        return _check_existing(plan, out)
    partial = _partial_of(out)
    try:
        with writing(out, RESUME_HINT):
            make_own_folder(partial)
            with build_lock(partial):
                return _build(plan, out, partial, workers, skip_bad, on_progress, warn)
    except (lmdb.InvalidError, lmdb.CorruptedError, lmdb.VersionMismatchError) as error:
        raise DataError(partial, f"is damaged ({error})", _REBUILD_HINT) from None
    except lmdb.Error as error:
        raise RunFailed(out, f"cannot be written: {error}", RESUME_HINT) from None
    except WorkerKilled as error:
        hint = f"{RESUME_HINT}; give fewer --workers if memory is short"
        raise RunFailed(out, f"a worker was killed while it read '{error}' or soon after", hint) from None


def _partial_of(out: Path) -> Path:
    return out.with_name(f".{out.name}.partial")


def _build(
    plan: BuildPlan,
    out: Path,
    partial: Path,
    workers: int,
    skip_bad: bool,
    on_progress: Progress,
    warn: Callable[[str], object],
) -> BuildManifest:
    if os.path.lexists(out):
        return _check_existing(plan, out)
    if not _has_records(partial):
        (partial / "plan").unlink(missing_ok=True)  # there are no records yet that a new plan would lose
    _check_continued(partial, plan)
    write_whole(
        {partial / _SETTINGS: plan.settings_text, partial / "plan": plan.digest.encode()}, is_synced=True
    )
    try:
        manifest, enlarged = _fill(partial / "lmdb", plan, workers, skip_bad, on_progress)
    except DataError as error:
        # The build cannot resume from these records: fixing the sizes changes the plan.
        if isinstance(error, _SizeError) or not _has_records(partial):
            shutil.rmtree(partial)
        raise
    write_manifest(out, manifest)
    (partial / "lmdb").rename(out)
    shutil.rmtree(partial, ignore_errors=True)  # even if this fails, the LMDB is finished
    if enlarged:
        warn(enlarged)
    return manifest


def _check_existing(plan: BuildPlan, out: Path) -> BuildManifest:
    """Return the manifest of an existing LMDB. Raises DataError if the plan would build a different one."""
    manifest = _load_existing(out)
    if (manifest.plan, manifest.size_bytes) != (plan.digest, plan.size_bytes):
        what = "already exists, built from other images or settings"
        raise DataError(out, what, "remove it, or give another path")
    with open_datums(out) as datums:
        if len(datums) != manifest.images:
            what = f"holds {describe_count(len(datums), 'record')}, but its manifest says {manifest.images:,}"
            raise DataError(out, what, "remove it, and build it again")
    return manifest


def _load_existing(out: Path) -> BuildManifest:
    """Return the manifest of what exists at `out`. Raises DataError if no build has made it."""
    check_own_data(out)
    manifest = load_manifest(out)
    if manifest is None and out.exists() and not out.is_dir() and not out.is_file():
        raise DataError(out, "is a pipe or a device", "give another path")
    if manifest is None:
        raise DataError(out, "already exists", "remove it, or give another path")
    return manifest


def _has_records(partial: Path) -> bool:
    """Return whether an unfinished build has any records. Raises DataError if a page is damaged."""
    file = partial / "lmdb" / "data.mdb"
    if not file.exists() or not file.stat().st_size:
        return False
    try:
        tree = load_tree(file.parent)
        count = sum(1 for _ in tree) if tree else None  # reads all pages, since lmdb crashes on damaged ones
    except DataError as error:
        raise DataError(partial, error.what, _REBUILD_HINT) from None
    if count is None:
        raise DataError(partial, "is damaged: it does not contain an LMDB", _REBUILD_HINT)
    return count > 0


def _fill(
    folder: Path, plan: BuildPlan, workers: int, skip_bad: bool, on_progress: Progress
) -> tuple[BuildManifest, str]:
    """Write the records that are missing; return the manifest, and a sentence on enlarged images."""
    with lmdb.open(os.fsencode(folder), lock=False, map_size=_START_BYTES) as environment:
        state = _load_state(environment, plan)
        if state.skipped and not skip_bad:
            what = f"was started with --skip-bad, which skipped '{state.skipped[0]}'"
            raise DataError(folder.parent, what, "give --skip-bad, or remove it")
        on_progress(state.next, len(plan.pictures))
        pending = _PendingRecords(environment)
        try:
            for index, made in _convert_rest(plan, state.next, workers):
                picture = plan.pictures[index]
                error = made.error or _compare_shape(plan, state, made)
                if not error:
                    record = plan.key(index), made.value
                    state.labels[picture.label] += 1
                    state.digest.add(*record)
                    state.enlarged += [made.enlarged] if made.enlarged else []
                    pending.add(*record)
                elif skip_bad and made.error:
                    state.skipped.append(picture.name)
                else:
                    raise _image_error(plan, index, error, is_decoded=not made.error)
                if pending.is_full:
                    pending.commit()
                    on_progress(index + 1, len(plan.pictures))
        finally:
            pending.commit()
    if not state.labels.total():
        raise DataError(
            plan.pictures[0].path, "cannot be decoded, and neither can any other image", "give other images"
        )
    return _manifest_of(plan, state), state.describe_enlarged(plan.settings)


def _manifest_of(plan: BuildPlan, state: _BuildState) -> BuildManifest:
    return BuildManifest(
        state.labels.total(),
        plan.size_bytes,
        state.labels,
        plan.classes,
        state.skipped,
        asdict(plan.settings),
        plan.seed,
        plan.digest,
        state.digest.hexdigest(),
    )


def _convert_rest(plan: BuildPlan, start: int, workers: int) -> Iterator[tuple[int, Converted]]:
    with closing(convert_all(plan.pictures[start:], plan.settings, workers)) as converted:
        yield from enumerate(converted, start)


def _load_state(environment: lmdb.Environment, plan: BuildPlan) -> _BuildState:
    """Return the state of an interrupted build, from its records."""
    state = _BuildState()
    with environment.begin(buffers=True) as transaction:
        for key, value in transaction.cursor():
            index = int(bytes(key[:8]))
            state.skipped += [picture.name for picture in plan.pictures[state.next : index]]
            state.labels[plan.pictures[index].label] += 1
            state.digest.add(bytes(key), bytes(value))
            state.next = index + 1
    if plan.settings.check_size and state.next:
        first = next(picture for picture in plan.pictures if picture.name not in state.skipped)
        state.shape = convert_batch([first], plan.settings)[0].shape
    return state


def _compare_shape(plan: BuildPlan, state: _BuildState, made: Converted) -> str:
    """Return how an image's size differs from the first one's; "" if it does not, or may."""
    if not plan.settings.check_size:
        return ""
    state.shape = state.shape or made.shape
    if made.shape == state.shape:
        return ""
    size, first = (" x ".join(map(str, shape)) for shape in (made.shape, state.shape))
    return f"is {size}, but the first image is {first}"


def _image_error(plan: BuildPlan, index: int, error: str, *, is_decoded: bool) -> DataError:
    picture = plan.pictures[index]
    where = picture.path if picture.offset is None else f"{picture.path}: {picture.name}"
    if is_decoded:
        return _SizeError(where, error, "resize the images, or leave out --check-size")
    return DataError(where, error, "fix it and run the same command again to resume, or give --skip-bad")


# NAME_MAX, less what the longest derived file name adds.
_MAX_NAME_BYTES = 255 - len(name_beside(Path("_.manifest.json")).name) + len("_")


def check_lmdb_path(out: Path, images: Path) -> None:
    """Raise DataError if no LMDB of these images can be at `out`; call it before reading them.

    The name may be too long, `out` may be inside the folder `images`, exist without a manifest, or be in a
    folder that cannot be written to.
    """
    length = len(os.fsencode(out.name))
    if length > _MAX_NAME_BYTES:
        what = f"the name has {length} bytes; at most {_MAX_NAME_BYTES} fit with its manifest's suffix"
        raise DataError(out, what, "shorten it")
    if images.is_dir() and Path(os.path.realpath(out)).is_relative_to(os.path.realpath(images)):
        raise DataError(out, f"is inside {images}, whose folders are classes", "give a path outside it")
    if os.path.lexists(out):
        _load_existing(out)
        return
    with writing(out):
        nearest = next(folder for folder in out.absolute().parents if folder.exists())
        check_replaceable(name_beside(nearest / out.name))


def check_apart(one: Path, other: Path) -> None:
    """Raise DataError if one of two outputs would be within the other, or in the folder where it is built."""
    for outer, inner in ((one, other), (other, one)):
        path = Path(os.path.realpath(inner))
        if any(path.is_relative_to(os.path.realpath(folder)) for folder in (outer, _partial_of(outer))):
            raise DataError(inner, f"is within {outer}, which is built, too", "give another path")


def check_planned(plan: BuildPlan, out: Path) -> None:
    """Raise DataError if `out`, or an unfinished build of it, has other images or settings."""
    partial = _partial_of(out)
    if os.path.lexists(out):
        _check_existing(plan, out)
        return
    if os.path.lexists(partial):
        with writing(out):
            make_own_folder(partial)  # which refuses one of another user
    if (partial / "plan").exists():
        with build_lock(partial):  # LMDB crashes on pages that a running build writes anew
            if _has_records(partial):
                _check_continued(partial, plan)


def load_pictures(
    images: Path, *, root: Path | None = None, labels: Path | None = None, class_list: Path | None = None
) -> Pictures:
    """Return the images in a list, folder or tar. Raises InputError.

    `root` is the folder that the paths in a list are relative to, and `labels` the file with the labels of a
    tar's images. `class_list` names the classes of a folder or tar in label order.
    """
    known = load_classes(class_list) if class_list is not None else None
    if images.exists() and not images.is_dir() and not images.is_file():
        # A pipe cannot be read twice: once to detect the kind, and once for the content.
        raise DataError(images, "is a pipe or a device", "write the list to a regular file")
    try:
        kind = "folder" if images.is_dir() else "tar" if is_archive(images) else "list"
    except (OSError, ValueError) as error:
        what = f"cannot be read: {getattr(error, 'strerror', None) or error}"
        hint = hint_for(error, "give a list, a folder or a tar of images")
        raise DataError(images, what, hint) from None
    named = "leave it out: a list has no class names; those of a folder are the names of its subfolders"
    for name, given, kinds, hint in (
        ("--root", root, ("list",), "leave it out"),
        ("--labels", labels, ("tar",), "leave it out"),
        ("--class-list", class_list, ("folder", "tar"), named),
    ):
        if given is not None and kind not in kinds:
            raise InputError(name, f"cannot be used with a {kind} of images", hint)
    if kind == "folder":
        return load_folder(images, known)
    return load_archive(images, labels, known) if kind == "tar" else load_list(images, root)
