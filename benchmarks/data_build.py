"""Time `data build` on 500x375 JPEGs, against the same OpenCV calls in a plain loop and Caffe's own tool.

The loop is what convert_imageset does, in its order: read, decode, resize, encode, put, commit every 1000. Of
Caffe's tool the speed is known from another machine alone; where it is installed it is timed here.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import cv2
import lmdb
import numpy as np
from numpy.typing import NDArray

from caffe_recipes.caffe import pb
from caffe_recipes.data.build import build_lmdb, plan_build
from caffe_recipes.data.images import ConversionSettings, load_list
from caffe_recipes.data.manifest import manifest_path

IMAGES, DIFFERENT, SIDE_PX = 8000, 100, 256  # so many that the start of workers is little
CAFFE_IMAGES_PER_S = {"resized to 256x256 and encoded": 476, "as they are": 569}  # one core, another machine
REPEATS = 2


def photo(seed: int) -> NDArray[np.uint8]:
    """Make 500x375 pixels with the detail of a photo: noise at several scales."""
    random = np.random.default_rng(seed)
    pixels = 128 + random.normal(0, 4, (375, 500, 3)).astype(np.float32)
    for size, contrast in ((4, 60), (16, 50), (64, 30), (200, 14)):
        small = random.normal(0, contrast, (size * 3 // 4, size, 3)).astype(np.float32)
        pixels += cv2.resize(small, (500, 375), interpolation=cv2.INTER_CUBIC)
    return pixels.clip(0, 255).astype(np.uint8)


def write_images(folder: Path) -> Path:
    for index in range(DIFFERENT):
        cv2.imwrite(str(folder / f"{index}.jpg"), photo(index))
    lines = (f"{index % DIFFERENT}.jpg {index % DIFFERENT}\n" for index in range(IMAGES))
    (folder / "list.txt").write_text("".join(lines))
    return folder / "list.txt"


def plain_loop(listed: Path, out: Path, settings: ConversionSettings) -> None:
    """Do what convert_imageset does, on one thread."""
    cv2.setNumThreads(1)
    with lmdb.open(os.fspath(out), map_size=1 << 31) as environment:
        writing = environment.begin(write=True)
        for index, line in enumerate(listed.read_text().splitlines()):
            name, label = line.split()
            image = cv2.imread(str(listed.parent / name), cv2.IMREAD_COLOR)
            assert image is not None
            if settings.resizes:
                image = cv2.resize(image, (SIDE_PX, SIDE_PX))
                data = cv2.imencode(".jpg", image)[1].tobytes()
            else:
                data = (listed.parent / name).read_bytes()
            datum = pb.Datum(data=data, label=int(label), encoded=True)
            writing.put(f"{index:08d}_{name}".encode(), datum.SerializeToString())
            if (index + 1) % 1000 == 0:
                writing.commit()
                writing = environment.begin(write=True)
        writing.commit()


def caffes_own(listed: Path, out: Path, settings: ConversionSettings) -> None:
    sizes = [f"--resize_height={SIDE_PX}", f"--resize_width={SIDE_PX}"] if settings.resizes else []
    argv = ["convert_imageset", *sizes, "--encoded", f"{listed.parent}/", str(listed), str(out)]
    subprocess.run(argv, check=True, capture_output=True)


@dataclass(frozen=True)
class Speed:
    """Images in a second of the clock, which other work slows, and in a second of one core."""

    wall: float
    core: float

    def __str__(self) -> str:
        return f"{self.wall:6,.0f} images/s, {self.core:6,.0f} in a second of one core"


def images_per_s(work: Callable[[Path], object], folder: Path) -> Speed:
    """Take the best of some runs."""
    best = Speed(0, 0)
    for _ in range(REPEATS):
        start, cores = time.perf_counter(), cores_s()
        work(folder / "lmdb")
        wall, core = IMAGES / (time.perf_counter() - start), IMAGES / (cores_s() - cores)
        best = Speed(max(best.wall, wall), max(best.core, core))
        shutil.rmtree(folder / "lmdb")
        manifest_path(folder / "lmdb").unlink(missing_ok=True)
    return best


def cores_s() -> float:
    """Count what all cores did for this process and its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def measure(listed: Path, folder: Path, settings: ConversionSettings, what: str) -> None:
    plan = plan_build(load_list(listed), settings)
    loop = images_per_s(lambda out: plain_loop(listed, out, settings), folder)
    one = images_per_s(lambda out: build_lmdb(plan, out, workers=1), folder)
    two = images_per_s(lambda out: build_lmdb(plan, out, workers=2), folder)
    caffe = CAFFE_IMAGES_PER_S[what]
    print(f"{what}:")
    print(f"  plain OpenCV loop     {loop}")
    print(f"  data build --workers 1{one}: {one.core / loop.core:.2f} of the loop")
    by_cores = 2 * two.core / one.core  # what two cores of one's own would give
    print(f"  data build --workers 2{two}: {two.wall / one.wall:.2f} of one worker by the clock, ", end="")
    print(f"{by_cores:.2f} by what the cores did")
    print(f"  convert_imageset      {caffe:6,} images/s of one core elsewhere: {one.core / caffe:.2f} of it")
    if shutil.which("convert_imageset"):
        own = images_per_s(lambda out: caffes_own(listed, out, settings), folder)
        print(f"  convert_imageset here {own}; data build {one.core / own.core:.2f} of it")


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_known_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        listed = write_images(folder)
        size = sum(path.stat().st_size for path in folder.glob("*.jpg")) / DIFFERENT
        cores = len(os.sched_getaffinity(0))
        load = os.getloadavg()[0]
        print(f"{IMAGES:,} JPEGs of 500x375, {size / 1000:.0f} kB each; {cores} cores, load {load:.1f}")
        square = ConversionSettings(resize_height_px=SIDE_PX, resize_width_px=SIDE_PX)
        measure(listed, folder, square, "resized to 256x256 and encoded")
        measure(listed, folder, ConversionSettings(), "as they are")


if __name__ == "__main__":
    main()
