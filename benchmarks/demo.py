"""Time what `make demo` runs after installation, the whole chain, against its aim of 120 s on two cores."""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

AIM_S = 120


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_known_args()
    caffe_recipes = str(Path(sys.executable).with_name("caffe-recipes"))
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        command = [caffe_recipes, "run", "digits-local"]
        done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
        wall_s = time.perf_counter() - start
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print("\n".join(line for line in done.stdout.splitlines() if line.startswith(("all ", "loss3/top-1"))))
    cpu_s = used.ru_utime + used.ru_stime
    print(f"{wall_s:.1f} s, {cpu_s:.1f} s of CPU; {wall_s / AIM_S:.2f} of the aim of {AIM_S} s")


if __name__ == "__main__":
    main()
