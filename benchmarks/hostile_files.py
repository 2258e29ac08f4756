"""What files cost that are made to cost much: each attack of tests/hostile_files.py, in 1.5 GB of memory.

`python benchmarks/hostile_files.py` prints of each the bytes on disk, the seconds with those to write it, and
what became of it. Before there were bounds, the aliases took 58 s and 5.9 GB, 49,000 keys 18 s, 1 MB of
newlines over 60 s in `lint`, the PNG 6 GB, 10 million empty layers 7 GB; the brackets ended in SIGSEGV.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    """Run all attacks in a process of their own, and print a table."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "tests.hostile_files", folder],
            cwd=ROOT,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            check=True,
        )
    for name, (became, seconds, size_bytes) in json.loads(done.stdout).items():
        print(f"{name:48} {size_bytes:>11,} bytes {seconds:7.2f} s  {became[:80]}")


if __name__ == "__main__":
    main()
