"""Small real images, in files and archives, and how convert_imageset makes records of them."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from caffe_recipes.caffe.datums import open_datums
from caffe_recipes.data.build import BuildPlan, plan_build
from caffe_recipes.data.images import ConversionSettings, load_list

CALL = "from caffe_recipes.cli.main import main; main()"
# A file with a size limit imitates a full disk.
FULL = (
    "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
    "resource.setrlimit(resource.RLIMIT_FSIZE, (2**22, 2**22));" + CALL
)


def noise(height: int, width: int, seed: int = 0) -> NDArray[np.uint8]:
    """Make a colour image that is smooth, as photos are."""
    small = np.random.default_rng(seed).integers(0, 256, (height // 8 + 1, width // 8 + 1, 3), np.uint8)
    return np.asarray(cv2.resize(small, (width, height), interpolation=cv2.INTER_CUBIC), np.uint8)


def encode(suffix: str, height: int = 30, width: int = 40, seed: int = 0) -> bytes:
    return bytes(cv2.imencode(suffix, noise(height, width, seed))[1])


@dataclass(frozen=True)
class Link:
    """A tar's member that is a link."""

    target: str
    is_hard: bool = False


def pack(
    files: Mapping[str, bytes | Link] | Iterable[tuple[str, bytes | Link]], kind: int = tarfile.GNU_FORMAT
) -> bytes:
    """Make a tar; from pairs, so that a name may occur twice."""
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w", format=kind) as tar:
        for name, what in files.items() if isinstance(files, Mapping) else files:
            info = tarfile.TarInfo(name)
            data = what if isinstance(what, bytes) else b""
            info.size = len(data)
            if isinstance(what, Link):
                info.type = tarfile.LNKTYPE if what.is_hard else tarfile.SYMTYPE
                info.linkname = what.target
            tar.addfile(info, io.BytesIO(data))
    return whole.getvalue()


def write_images(folder: Path, count: int = 10, classes: int = 3) -> Path:
    """Write a list of JPEGs and PNGs of different sizes, in two folders, and give its path."""
    lines = []
    for index in range(count):
        name = f"{'ab'[index % 2]}/{index}.{('jpg', 'JPEG', 'png')[index % 3]}"
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(encode(Path(name).suffix.lower(), 30 + index, 50 - index % 40, index))
        lines.append(f"{name} {index % classes}\n")
    (folder / "list.txt").write_text("".join(lines))
    return folder / "list.txt"


def plan_of(
    listed: Path,
    settings: ConversionSettings = ConversionSettings(),  # noqa: B008
    seed: int | None = None,
) -> BuildPlan:
    return plan_build(load_list(listed), settings, seed=seed)


def records(lmdb: Path) -> list[tuple[bytes, bytes]]:
    """Read all records, bit by bit."""
    with open_datums(lmdb) as datums:
        return [(key, datum.SerializeToString(deterministic=True)) for key, datum in datums]


def names(folder: Path) -> Sequence[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def listed(tmp_path: Path) -> Path:
    """Give the list of ten images in `images/`."""
    return write_images(tmp_path / "images")
