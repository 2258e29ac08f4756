"""Run every benchmark of this folder and print its ratios. Benchmarks are measurements, never tests."""

from __future__ import annotations

import argparse
import runpy
from pathlib import Path


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_known_args()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        if path.name != Path(__file__).name:
            print(f"== {path.stem}", flush=True)
            runpy.run_path(str(path), run_name="__main__")


if __name__ == "__main__":
    main()
