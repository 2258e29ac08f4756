"""Kill `caffe-recipes run` at random instants, and see what the same command makes of it afterwards.

One machine, two ranks under the real hydra; a stand-in for Caffe trains deterministically. A chain is killed
once or more, as chance has it, and started again by the same command until it ends.

    python benchmarks/kills.py [KILLS [SEED]]

Printed at the end: how many kills, how many chains ended with the undisturbed models, and how many phases
that were finished have been launched again, which must be none.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.cluster.faults.faulty_chain import RECIPE, write_lmdb  # noqa: E402

KILLS, SEED = 40, 1
_RUN = [sys.executable, "-c", "from caffe_recipes.cli.main import main; main()", "run", "recipe.yaml"]
_STAND_IN = f'#!/bin/sh\nexec "{sys.executable}" -I "{ROOT}/tests/stand_in/caffe.py" "$@"\n'


def make_root(root: Path) -> Path:
    """Make a Caffe root for one chain."""
    root.mkdir()
    (root / "recipe.yaml").write_text(RECIPE.format(nodes=1, tmp="tmp", records=128))
    write_lmdb(root / "data/train_lmdb", 128)
    write_lmdb(root / "data/test_lmdb", 16)
    (root / "caffe").write_text(_STAND_IN)
    (root / "caffe").chmod(0o755)
    (root / "behaviour.json").write_text('{"ms": 50}')
    return root


def start(root: Path) -> subprocess.Popen[bytes]:
    """Start the command in a root; its output is appended to `output.txt`."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    with (root / "output.txt").open("ab") as output:
        return subprocess.Popen(
            _RUN,
            cwd=root,
            env={**environment, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(root / "cache")},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )


def models(root: Path) -> dict[str, bytes]:
    """Return the snapshots that a chain has kept."""
    return {path.name: path.read_bytes() for path in (root / "runs/small-1/snapshots").glob("*.caffemodel")}


def repeated(root: Path) -> list[str]:
    """Return the phases that were launched after they had finished."""
    lines = (root / "runs/small-1/journal.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    finished: set[str] = set()
    again = []
    for event in events:
        if event["event"] == "finished":
            finished.add(event["phase"])
        if event["event"] == "launched" and event["phase"] in finished:
            again.append(event["phase"])
    return again


def main() -> None:
    """Measure the undisturbed chain, then kill."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kills", metavar="KILLS", type=int, nargs="?", default=KILLS)
    parser.add_argument("seed", metavar="SEED", type=int, nargs="?", default=SEED)
    given, _ = parser.parse_known_args()
    kills, chance = given.kills, random.Random(given.seed)
    with tempfile.TemporaryDirectory() as folder:
        undisturbed, begun = make_root(Path(folder) / "undisturbed"), time.monotonic()
        assert start(undisturbed).wait() == 0, (undisturbed / "output.txt").read_text()
        seconds, expected = time.monotonic() - begun, models(undisturbed)
        print(f"undisturbed: {seconds:.1f} s, {len(expected)} models", flush=True)
        done = chains = same = 0
        again: list[str] = []
        while done < kills:
            chains += 1
            root = make_root(Path(folder) / f"chain-{chains}")
            while True:
                process = start(root)
                try:
                    code = process.wait(chance.uniform(0, seconds) if done < kills else None)
                    break
                except subprocess.TimeoutExpired:
                    process.send_signal(signal.SIGKILL)
                    process.wait()
                    done += 1
            is_same = code == 0 and models(root) == expected
            same += is_same
            again += repeated(root)
            if not is_same:
                print(f"chain {chains}: exit {code}\n{(root / 'output.txt').read_text()[-2000:]}", flush=True)
        print(f"{done} kills in {chains} chains: {same} ended with the undisturbed models")
        print(f"finished phases that were launched again: {len(again)}")


if __name__ == "__main__":
    main()
