"""Images to an LMDB as convert_imageset builds it: in parallel, and going on where it was cut off.

The work grows in `.NAME.partial` beside the LMDB, and takes its name when it is whole. A commit every 1000
records keeps what was done, through kill -9 and power cuts; the next build with the same plan goes on there.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path

import lmdb

from caffe_recipes.caffe.datums import commit_records, open_datums
from caffe_recipes.caffe.disk import writing
from caffe_recipes.caffe.lmdb_pages import load_tree
from caffe_recipes.data.manifest import Manifest, RecordsDigest, load_manifest, write_manifest
from caffe_recipes.data.partial import GOES_ON, check_plan, locked
from caffe_recipes.data.plan import Plan
from caffe_recipes.data.workers import Made, WorkerKilled, convert_all, convert_some
from caffe_recipes.errors import DataError, RunFailed

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
    plan: Plan, out: Path, *, workers: int = 1, skip_bad: bool = False, tell: Tell = lambda done, total: None
) -> Manifest:
    """Build the LMDB `out` and its manifest beside it, or go on with it; a finished one of this plan is kept.

    An image that does not decode ends the build, or is left out if `skip_bad` is set, as convert_imageset
    does: its number is nobody's key. `tell` hears of images done, and how many there are. Raises DataError,
    or RunFailed for a worker that was killed or a disk that is full.
    """
    if os.path.lexists(out):
        return _check_same(plan, out)
    partial = out.with_name(f".{out.name}.partial")
    try:
        with writing(out, GOES_ON):
            partial.mkdir(parents=True, exist_ok=True)
            with locked(partial):
                return _build(plan, out, partial, workers, skip_bad, tell)
    except (lmdb.InvalidError, lmdb.CorruptedError, lmdb.VersionMismatchError) as error:
        raise DataError(partial, f"is damaged ({error})", _BEGIN_AGAIN) from None
    except lmdb.Error as error:
        raise RunFailed(out, f"cannot be written: {error}", GOES_ON) from None
    except WorkerKilled as error:
        hint = f"{GOES_ON}; give fewer --workers if memory is short"
        raise RunFailed(out, f"a worker was killed, at '{error}' or soon after", hint) from None


def _build(plan: Plan, out: Path, partial: Path, workers: int, skip_bad: bool, tell: Tell) -> Manifest:
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


def _check_same(plan: Plan, out: Path) -> Manifest:
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


def _fill(folder: Path, plan: Plan, workers: int, skip_bad: bool, tell: Tell) -> Manifest:
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
    return Manifest(
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


def _convert_rest(plan: Plan, start: int, workers: int) -> Iterator[tuple[int, Made]]:
    with closing(convert_all(plan.pictures[start:], plan.settings, workers)) as converted:
        yield from enumerate(converted, start)


def _read_done(environment: lmdb.Environment, plan: Plan) -> _Done:
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


def _compare_shape(plan: Plan, done: _Done, made: Made) -> str:
    """Say how an image's size differs from the first one's, where that is asked."""
    if not plan.settings.check_size:
        return ""
    done.shape = done.shape or made.shape
    if made.shape == done.shape:
        return ""
    size, first = (" x ".join(map(str, shape)) for shape in (made.shape, done.shape))
    return f"is {size}, and the first image {first}"


def _bad_image(plan: Plan, index: int, wrong: str, *, is_decoded: bool) -> DataError:
    picture = plan.pictures[index]
    where = picture.path if picture.offset is None else f"{picture.path}: {picture.name}"
    if is_decoded:
        return _SizeError(where, wrong, "resize the images, or leave out --check-size")
    return DataError(where, wrong, "mend it, and the same command goes on; or give --skip-bad")
