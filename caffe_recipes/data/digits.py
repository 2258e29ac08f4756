"""Build training and validation LMDBs of scikit-learn's 1,797 handwritten digits, without a download.

Each image is enlarged from 8x8 to 32x32 pixels, scaled to 0..255, and stored as a PNG with three equal
channels. A fifth of each class is held out. A fixed SEED and integer arithmetic give the same pixels and the
same order on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.datums import check_datums, write_datums
from caffe_recipes.errors import DataError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


CLASSES = 10
TRAIN_COUNT, VAL_COUNT = 1438, 359
SEED = 1
_SCALE = 4  # 8 pixels to 32
SIDE_PX = 8 * _SCALE
_LEVELS = 16  # scikit-learn's white


@dataclass(frozen=True)
class DigitsLmdbs:
    """The paths of the two LMDBs."""

    train: Path
    val: Path


def build_digits(folder: str | Path) -> DigitsLmdbs:
    """Build `digits_train_lmdb` and `digits_val_lmdb` in `folder`, unless they exist; return their paths.

    A key is `%08d_<index in load_digits()>.png`. Raises DataError if an existing LMDB has different records,
    or if scikit-learn, numpy or OpenCV is not installed.
    """
    lmdbs = DigitsLmdbs(Path(folder) / "digits_train_lmdb", Path(folder) / "digits_val_lmdb")
    counts = {lmdbs.train: TRAIN_COUNT, lmdbs.val: VAL_COUNT}
    missing = [path for path, count in counts.items() if not _is_complete(path, count)]
    if missing:
        images, labels = _load(folder)
        parts = dict(zip(counts, split_stratified(labels), strict=True))
        for path in missing:
            write_datums(path, _datums(parts[path], images, labels))
    return lmdbs


def build_digit_records(folder: str | Path, files: tuple[int, int]) -> None:
    """Build the TFRecords folders `train` and `validation` in `folder`, from its two LMDBs of digits.

    `files` are the numbers of files in the two. Finished folders are kept. Raises DataError as `build_digits`
    does, and if an existing folder has different files.
    """
    from caffe_recipes.data.tfrecords import write_tfrecords

    lmdbs = build_digits(folder)
    for lmdb, name, shards in ((lmdbs.train, "train", files[0]), (lmdbs.val, "validation", files[1])):
        write_tfrecords(lmdb, Path(folder) / name, shards=shards, prefix=name)


def split_stratified(labels: Sequence[int]) -> tuple[list[int], list[int]]:
    """Split the indices of `labels` into (kept, held out), shuffled, with a fifth of each class held out.

    The number held out of a class is rounded to the nearest integer. Only `Random.random()` is used, whose
    values Python promises not to change.

    >>> [len(part) for part in split_stratified([0] * 10 + [1] * 5)]
    [12, 3]
    """
    random = Random(SEED)
    kept: list[int] = []
    held: list[int] = []
    for label in sorted(set(labels)):
        indices = [index for index, other in enumerate(labels) if other == label]
        indices.sort(key=lambda _: random.random())
        count = round(0.2 * len(indices))
        held += indices[:count]
        kept += indices[count:]
    for part in (kept, held):
        part.sort(key=lambda _: random.random())
    return kept, held


def enlarge(image: NDArray[np.integer]) -> NDArray[np.uint8]:
    """Return a square image enlarged four times by cubic (Catmull-Rom) interpolation.

    Values of 0.._LEVELS become 0..255. Edges are repeated. The result is exact: each output pixel is at k/8
    between two input pixels, so all weights are multiples of 1/1024.
    """
    import numpy as np

    size = len(image)
    weights = np.zeros((_SCALE * size, size), np.int64)
    for x in range(_SCALE * size):
        left, k = divmod(2 * x - (_SCALE - 1), 2 * _SCALE)
        cubic = (
            -64 * k + 16 * k**2 - k**3,
            1024 - 40 * k**2 + 3 * k**3,
            64 * k + 32 * k**2 - 3 * k**3,
            -8 * k**2 + k**3,
        )
        for offset, weight in enumerate(cubic, -1):
            weights[x, min(max(left + offset, 0), size - 1)] += weight
    enlarged = weights @ image.astype(np.int64) @ weights.T
    unit = _LEVELS * 1024**2
    rounded: NDArray[np.int64] = (255 * enlarged + unit // 2) // unit  # halves are rounded up
    return rounded.clip(0, 255).astype(np.uint8)


def _is_complete(path: Path, count: int) -> bool:
    if not path.exists():
        return False
    found = check_datums(path, CLASSES).count
    if found != count:
        raise DataError(path, f"holds {found:,} of {count:,} digits", "remove it")
    return True


def _load(folder: str | Path) -> tuple[NDArray[np.integer], list[int]]:
    try:
        import cv2  # noqa: F401
        from sklearn.datasets import load_digits
    except ImportError as error:
        what = f"the digits cannot be built without {str(error.name).partition('.')[0]}"
        raise DataError(folder, what, "install the extra 'local' of caffe-recipes (see its README)") from None
    digits = load_digits()
    return digits.images.astype("uint8"), digits.target.tolist()


def _datums(
    indices: Sequence[int], images: NDArray[np.integer], labels: Sequence[int]
) -> Iterator[tuple[str, pb.Datum]]:
    import cv2
    import numpy as np

    for index in indices:
        pixels = np.repeat(enlarge(images[index])[:, :, np.newaxis], 3, axis=2)
        height, width, channels = pixels.shape
        data = cv2.imencode(".png", pixels)[1].tobytes()
        yield (
            f"{index:04d}.png",
            pb.Datum(
                channels=channels, height=height, width=width, label=labels[index], data=data, encoded=True
            ),
        )
