"""scikit-learn's 1,797 handwritten digits as two LMDBs that share no image: small, real, without a download.

Each image is enlarged from 8x8 to 32x32, spread over 0..255, and stored as a PNG of three equal channels. A
fifth of each class is held out. SEED and integer arithmetic give every machine the same pixels in one order.
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
_LEVELS = 16  # scikit-learn's white


@dataclass(frozen=True)
class DigitsLmdbs:
    """Where the two LMDBs are."""

    train: Path
    val: Path


def build_digits(folder: str | Path) -> DigitsLmdbs:
    """Build `digits_train_lmdb` and `digits_val_lmdb` in `folder`, where they are not there yet.

    A key is `%08d_<index in load_digits()>.png`. Raises DataError if an LMDB of that name holds anything
    else, or if scikit-learn, numpy or OpenCV are not installed.
    """
    lmdbs = DigitsLmdbs(Path(folder) / "digits_train_lmdb", Path(folder) / "digits_val_lmdb")
    counts = {lmdbs.train: TRAIN_COUNT, lmdbs.val: VAL_COUNT}
    missing = [path for path, count in counts.items() if not _is_whole(path, count)]
    if missing:
        images, labels = _load(folder)
        parts = dict(zip(counts, split_stratified(labels, 0.2, SEED), strict=True))
        for path in missing:
            write_datums(path, _datums(parts[path], images, labels))
    return lmdbs


def split_stratified(labels: Sequence[int], held_out: float, seed: int) -> tuple[list[int], list[int]]:
    """Split the indices of `labels` into (kept, held out), the same fraction of each class, both shuffled.

    The number held out of a class is rounded to the nearest. Only `Random.random()` is drawn from, whose
    values Python promises to keep.

    >>> [len(part) for part in split_stratified([0] * 10 + [1] * 5, 0.2, seed=1)]
    [12, 3]
    """
    random = Random(seed)
    kept: list[int] = []
    held: list[int] = []
    for label in sorted(set(labels)):
        indices = [index for index, other in enumerate(labels) if other == label]
        indices.sort(key=lambda _: random.random())
        count = round(held_out * len(indices))
        held += indices[:count]
        kept += indices[count:]
    for part in (kept, held):
        part.sort(key=lambda _: random.random())
    return kept, held


def enlarge(image: NDArray[np.integer], levels: int = _LEVELS) -> NDArray[np.uint8]:
    """Enlarge a square image of 0..levels four times, to 0..255, by cubic (Catmull-Rom) interpolation.

    Edges are repeated. Exact: an output pixel lies k/8 between two inputs, so all weights are whole numbers
    of 1/1024.
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
    unit = levels * 1024**2
    rounded: NDArray[np.int64] = (255 * enlarged + unit // 2) // unit  # halves up
    return rounded.clip(0, 255).astype(np.uint8)


def _is_whole(path: Path, count: int) -> bool:
    if not path.exists():
        return False
    found = check_datums(path, CLASSES).count
    if found != count:
        raise DataError(path, f"holds {found:,} records, not the {count:,} digits", "remove it")
    return True


def _load(folder: str | Path) -> tuple[NDArray[np.integer], list[int]]:
    try:
        import cv2  # noqa: F401
        from sklearn.datasets import load_digits
    except ImportError as error:
        what = f"the digits cannot be built without {str(error.name).partition('.')[0]}"
        raise DataError(folder, what, "install this project's extra 'local', as its README says") from None
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
