"""Time commands on ResNet-50 from a cold start, against Python's own."""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CALLS = 15
PROGRAM = "import sys; from caffe_recipes.cli.main import main; sys.argv[0] = 'caffe-recipes'; main()"
FOLDER = Path(__file__).resolve().parent.parent / "prototxt" / "stampede2-64n-72ep"
NET, OTHER = str(FOLDER / "train_val.prototxt"), str(FOLDER / "train_val_noaug.prototxt")
CASES = {
    "python": ["-c", "pass"],
    "caffe-recipes --help": ["-c", PROGRAM, "--help"],
    "caffe-recipes show": ["-c", PROGRAM, "show", "stampede2-64n-72ep"],
    "caffe-recipes generate": ["-c", PROGRAM, "generate", "stampede2-64n-72ep"],
    "caffe-recipes lint": ["-c", PROGRAM, "lint", NET],
    "caffe-recipes diff": ["-c", PROGRAM, "diff", NET, OTHER],
    "caffe-recipes summary": ["-c", PROGRAM, "summary", NET],
}


def seconds_of(words: list[str]) -> list[float]:
    """Time each call in a folder of its own, so that every file is written."""
    times = []
    for _ in range(CALLS):
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            done = subprocess.run(
                [sys.executable, *words], cwd=folder, stdout=subprocess.DEVNULL, check=False
            )
            times.append(time.perf_counter() - start)
            if done.returncode not in (0, 1):  # 1: lint found something, diff a difference
                raise SystemExit(f"{' '.join(words[2:])}: exit {done.returncode}")
    return times


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_known_args()
    for name, words in CASES.items():
        times = seconds_of(words)
        print(f"{name:24} {min(times):6.3f} s at best, {statistics.median(times):6.3f} s median of {CALLS}")


if __name__ == "__main__":
    main()
