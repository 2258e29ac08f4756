"""Time `caffe-recipes generate stampede2-64n-72ep` from a cold start, against Python's own."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time

CALLS = 15
PROGRAM = "import sys; from caffe_recipes.cli.main import main; sys.argv[0] = 'caffe-recipes'; main()"
CASES = {
    "python": ["-c", "pass"],
    "caffe-recipes --help": ["-c", PROGRAM, "--help"],
    "caffe-recipes show": ["-c", PROGRAM, "show", "stampede2-64n-72ep"],
    "caffe-recipes generate": ["-c", PROGRAM, "generate", "stampede2-64n-72ep"],
}


def seconds_of(words: list[str]) -> list[float]:
    """Time each call in a folder of its own, so that every file is written."""
    times = []
    for _ in range(CALLS):
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            subprocess.run([sys.executable, *words], cwd=folder, check=True, stdout=subprocess.DEVNULL)
            times.append(time.perf_counter() - start)
    return times


def main() -> None:
    for name, words in CASES.items():
        times = seconds_of(words)
        print(f"{name:24} {min(times):6.3f} s at best, {statistics.median(times):6.3f} s median of {CALLS}")


if __name__ == "__main__":
    main()
