"""Measure the CPU of commands from a cold start, against Python's own and that of importing our libraries.

Of each case, the least of many calls counts: the machine may be busy. `run` is measured up to its first
launch on this machine, without the launcher and the trainer that its preflight tries: its own CPU, and that
of the commands by which it asks its host.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

CALLS = 15
PROGRAM = "import sys; from caffe_recipes.cli.main import main; sys.argv[0] = 'caffe-recipes'; main()"
FOLDER = Path(__file__).resolve().parent.parent / "prototxt" / "stampede2-64n-72ep"
NET, OTHER = str(FOLDER / "train_val.prototxt"), str(FOLDER / "train_val_noaug.prototxt")
LIBRARIES = "import click, jinja2, pydantic, yaml, google.protobuf"
# What reads a recipe: `import pydantic` alone imports none of its models.
USED = (
    f"{LIBRARIES}; from pydantic import BaseModel, Field, model_validator; "
    "from google.protobuf import descriptor_pb2, descriptor_pool, message_factory"
)
COMMANDS = (
    "--help",
    "run --help",
    "status --help",
    "lint --rules",
    "show stampede2-64n-72ep",
    "generate stampede2-64n-72ep",
    f"lint {NET}",
    f"diff {NET} {OTHER}",
    f"summary {NET}",
)
HELP_GOAL_S, GENERATE_GOAL = 0.15, 1.6  # above Python; of importing the libraries

# Stops `run` where it would start its first launch, and prints the CPU of this process and of its children.
FIRST_LAUNCH = """
import os, resource, sys
from caffe_recipes.cli.main import main
from caffe_recipes.run import runner
from caffe_recipes.run.preflight import checks

def stop(*_):
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print("\\n" + " ".join(str(each.ru_utime + each.ru_stime) for each in both), flush=True)
    os._exit(0)

runner.run_chain.__kwdefaults__["start"] = stop
checks.CHECKS = {**checks.CHECKS, "launcher": lambda view: [], "trainer": lambda view: []}
sys.argv = ["caffe-recipes", "run", "digits-local", "--new", "--caffe-root", "."]
main()
"""


def cpu_s(code: str, *words: str) -> float:
    """Return the CPU of a call of Python in a folder of its own, so that every file is written."""
    with tempfile.TemporaryDirectory() as folder:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [sys.executable, "-c", code, *words], cwd=folder, stdout=subprocess.DEVNULL, check=False
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in (0, 1):  # 1: lint found something, diff a difference
        raise SystemExit(f"{' '.join(words)}: exit {done.returncode}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def best_of(cases: dict[str, tuple[str, ...]]) -> dict[str, float]:
    """Return the least CPU of each case; they take turns, since a machine is busier at some times."""
    best = dict.fromkeys(cases, float("inf"))
    for _ in range(CALLS):
        for name, (code, *words) in cases.items():
            best[name] = min(best[name], cpu_s(code, *words))
    return best


def time_first_launch() -> None:
    from caffe_recipes.recipe.source import load_recipe
    from caffe_recipes.run.training_plan import find_trainer

    with tempfile.TemporaryDirectory() as folder:
        trainer = find_trainer(load_recipe("digits-local"))
        trainer.data.build((Path(folder) / trainer.data.built[0]).parent)
        found = []
        for _ in range(CALLS):
            done = subprocess.run(
                [sys.executable, "-c", FIRST_LAUNCH], cwd=folder, capture_output=True, text=True, check=True
            )
            found.append([float(part) for part in done.stdout.splitlines()[-1].split()])
    own_s, children_s = min(found, key=sum)
    print(f"run digits-local, before its first launch: {own_s:.3f} s, and {children_s:.3f} s of children")


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_known_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # a package that is installed has its bytecode
    imports = {"python": ("pass",), "the five libraries": (LIBRARIES,), "what we use of them": (USED,)}
    best = best_of(imports | {command: (PROGRAM, *command.split()) for command in COMMANDS})
    bare_s, libraries_s = best["python"], best["the five libraries"]
    for name, took_s in best.items():
        words = " ".join(Path(word).name for word in name.split())
        print(
            f"{words:40} {took_s:6.3f} s, {took_s - bare_s:6.3f} s above Python, "
            f"{took_s / libraries_s:5.2f} x the libraries"
        )
    print(f"goals: --help and --rules {HELP_GOAL_S} s above Python, generate {GENERATE_GOAL} x the libraries")
    time_first_launch()


if __name__ == "__main__":
    main()
