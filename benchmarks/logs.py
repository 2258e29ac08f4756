"""Measure how fast training logs are read, against Caffe's own parse_log.py, and the memory that it takes.

    python benchmarks/logs.py [--iterations 70000] [--parse-log tools/extra/parse_log.py] [--gigabytes 1]

The log is made here: a loss, an output and a rate for each iteration. Caffe's reader is the user's copy, made
to run on Python 3, with its extract_seconds.py beside it; without --parse-log only ours is timed. With
--gigabytes, a log of 128 ranks with the labels of `mpiexec -l` is read as well, in a process of its own.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path

from caffe_recipes.caffe.measurements import MeasuredLog, read_measurements

RANKS = 128
TIMES = 5


def make_lines(at: int) -> Iterator[str]:
    """Yield the lines of an iteration."""
    second = at // 10
    clock = f"{second // 3600 % 24:02}:{second // 60 % 60:02}:{second % 60:02}"
    stamp = f"I11{20 + second // 86400:02} {clock}.581089"
    loss = f"{6.9 / (1 + at / 1e4):.6g}"
    yield f"{stamp}  6374 solver.cpp:312] Iteration {at}, loss = {loss}\n"
    yield f"{stamp}  6374 solver.cpp:333]     Train net output #0: loss = {loss} (* 1 = {loss} loss)\n"
    yield f"{stamp}  6374 sgd_solver.cpp:219] Iteration {at}, lr = 0.1\n"


def write_log(path: Path, iterations: int) -> None:
    """Write a log of one rank."""
    with path.open("w") as file:
        file.write("I1120 00:00:00.000000  6374 solver.cpp:397] Solving ResNet-50\n")
        for at in range(iterations):
            file.writelines(make_lines(at))


def write_labelled_log(path: Path, most_bytes: int) -> None:
    """Write a log of 128 ranks."""
    size = at = 0
    with path.open("w") as file:
        while size < most_bytes:
            lines = list(make_lines(at))
            size += file.write("".join(f"[{rank}] {line}" for rank in range(RANKS) for line in lines))
            at += 1


def read_whole(path: Path) -> int:
    """Read a log with our reader; return the number of measurements."""
    return sum(len(rows) for rows in read_measurements(path, MeasuredLog()))


def measure(readers: Sequence[Callable[[Path], object]], path: Path) -> list[float]:
    """Return the least processor time of each reader in seconds, of a few runs in turn."""
    seconds: list[list[float]] = [[] for _ in readers]
    for _ in range(TIMES):
        for read, taken in zip(readers, seconds, strict=True):
            begun = time.process_time()
            read(path)
            taken.append(time.process_time() - begun)
    return [min(taken) for taken in seconds]


def load_parse_log(file: Path) -> Callable[[Path], object]:
    """Return the reader of the user's copy of parse_log.py."""
    sys.path.insert(0, str(file.resolve().parent))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parse: Callable[[str], object] = import_module(file.stem).parse_log
    return lambda path: parse(str(path))


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--iterations", type=int, default=70_000)
    parser.add_argument("--parse-log", type=Path, metavar="FILE", help="your copy of Caffe's parse_log.py")
    parser.add_argument("--gigabytes", type=float, default=0, help="size of the log of 128 ranks")
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        print(read_whole(options.read), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "train.log")
        write_log(path, options.iterations)
        lines = 3 * options.iterations
        readers = [read_whole, *([load_parse_log(options.parse_log)] if options.parse_log else [])]
        ours, *others = measure(readers, path)
        print(f"caffe-recipes: {ours:.2f} s for {lines:,} lines, {ours / lines * 1e6:.2f} us a line")
        for theirs in others:
            each = theirs / lines * 1e6
            print(f"parse_log.py:  {theirs:.2f} s, {each:.2f} us a line: {theirs / ours:.2f} times ours")
        if options.gigabytes:
            write_labelled_log(path, int(options.gigabytes * 1e9))
            argv = [sys.executable, __file__, "--read", str(path)]
            begun = time.monotonic()
            count, most_kb = subprocess.run(argv, check=True, capture_output=True, text=True).stdout.split()
            took = time.monotonic() - begun
            size = f"{options.gigabytes:g} GB of {RANKS} ranks"
            print(f"{size}: {count} measurements in {took:.0f} s, {int(most_kb) / 1024:.0f} MB")


if __name__ == "__main__":
    main()
