"""Measure the report of a large run: the time to write it, its size, and how soon a browser has drawn it.

    python benchmarks/report.py [--iterations 22610] [--hosts 64] [--keep report.html]

The run is made here: the shipped recipe's five phases on many hosts, with a loss, an output and a rate for
each iteration, tests, and a launch that failed and was repeated on a spare. The browser is Debian's Chromium;
without one, only the first two are measured. Processor time is shown as well, for a busy machine.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.run.events import (
    Evaluated,
    Evaluating,
    Failed,
    Finish,
    Launch,
    Replaced,
    Retrying,
    RunStarted,
    Staged,
)
from caffe_recipes.run.folders import create_run
from caffe_recipes.run.report.writing import write_report
from caffe_recipes.run.training_plan import plan_files, plan_steps

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the tests drive the browser

RECIPE = "stampede2-64n-72ep"
FAILED = (
    "I1120 00:00:00.000000  6374 solver.cpp:397] Solving ResNet-50\n"
    '[127] *** Aborted at 1700437000 (unix time) try "date -d @1700437000" if you are using GNU date ***\n'
    "[127] *** SIGBUS (@0x2b5a) received by PID 6501 (TID 0x2b5a) from PID 11098; stack trace: ***\n"
)


def make_log(iterations: int, rate: float, seconds: float) -> Iterator[str]:
    """Yield the lines of a phase's log."""
    noise = random.Random(iterations)
    yield "I1120 00:00:00.000000  6374 solver.cpp:397] Solving ResNet-50\n"
    for at in range(iterations):
        now = at * seconds
        clock = f"{int(now // 3600 % 24):02}:{int(now // 60 % 60):02}:{now % 60:09.6f}"
        stamp = f"I11{20 + int(now // 86400)} {clock}"
        loss = f"{6.9 / (1 + at / 1500) + noise.gauss(0, 0.1):.6g}"
        yield f"{stamp}  6374 solver.cpp:312] Iteration {at}, loss = {loss}\n"
        yield f"{stamp}  6374 solver.cpp:333]     Train net output #0: loss = {loss} (* 1 = {loss} loss)\n"
        yield f"{stamp}  6374 sgd_solver.cpp:219] Iteration {at}, lr = {rate * (1 - at / iterations):.6g}\n"
        if at % 500 == 0:
            yield f"{stamp}  6374 solver.cpp:433] Iteration {at}, Testing net (#0)\n"
            top1 = 0.75 * (1 - 1 / (1 + at / 900)) + 0.001
            yield f"{stamp}  6374 solver.cpp:502]     Test net output #0: loss3/top-1 = {top1:.6g}\n"


def make_run(root: Path, iterations: int, hosts: int) -> Path:
    """Write the folder of a run as `run` leaves it; the third phase fails once, on the last host."""
    recipe = load_recipe(RECIPE)
    steps, folder = plan_steps(recipe), root / "runs" / f"{RECIPE}-1"
    now = 1_700_000_000.0
    journal = create_run(folder, recipe, plan_files(recipe), lambda: now)
    names = tuple(f"c401-{number:03}" for number in range(1, hosts + 2))
    used, bad, spare, emit = names[:hosts], names[hosts - 1], names[hosts], journal.append
    emit(RunStarted(1, names[0]))
    now += 300
    emit(Staged("/tmp/ilsvrc12_train_lmdb", 250 << 30, used, "examples/imagenet/ilsvrc12_train_lmdb"))
    whole = sum(step.last_iter for step in steps)
    for number, step in enumerate(steps):
        count, attempt = round(step.last_iter * iterations / whole), 1
        if number == 2:
            emit(_launch(step.phase, 1, used))
            (folder / "logs" / f"{step.phase}-1.log").write_text(FAILED)
            now += 900
            emit(Failed("rank 127 was killed by SIGBUS", step.phase, bad, seconds=900))
            emit(Replaced(bad, spare))
            emit(Retrying(1, 3))
            used, attempt = (*names[: hosts - 1], spare), 2
        emit(_launch(step.phase, attempt, used))
        log = folder / "logs" / f"{step.phase}-{attempt}.log"
        log.write_text("".join(make_log(count, 1.0 / (number + 1), 0.7)))
        now += count * 0.7
        snapshot = f"runs/{folder.name}/snapshots/{step.phase}.caffemodel"
        emit(Finish(step.phase, snapshot, "0" * 64, count * 0.7, 5800.0, 1.25, {}))
    emit(Evaluating(snapshot))
    now += 120
    outputs = {"loss3/loss3": 0.94, "loss3/top-1": 0.7612, "loss3/top-5": 0.9301}
    emit(Evaluated(steps[-1].phase, outputs, f"runs/{folder.name}/logs/evaluation-1.log"))
    journal.close()
    return folder


def _launch(phase: str, attempt: int, hosts: tuple[str, ...]) -> Launch:
    log = f"runs/{RECIPE}-1/logs/{phase}-{attempt}.log"
    name = f"0123456789abcdef/{phase}-{attempt}"
    return Launch(
        phase, attempt, log, hosts[0], None, 0.0, {}, name, ("train",), hosts, "", 0, {}, None, None
    )


def measure_browser(page: Path, work: Path) -> str:
    """Return how long the page took until its charts were drawn."""
    from tests.run.report.chromium import PROGRAM, open_chromium

    if PROGRAM is None:
        return "no Chromium here"
    with open_chromium(work) as browser:
        times = []
        for _ in range(3):
            browser.open(page, 1280)
            times.append(int(browser.ask("document.documentElement.dataset.ready")))
    return f"drawn and interactive {min(times)} ms after navigation (goal: < 1000 ms)"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--iterations", type=int, default=22610)
    parser.add_argument("--hosts", type=int, default=64)
    parser.add_argument("--keep", type=Path, help="also keep the page here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as work:
        root = Path(work)
        folder = make_run(root, options.iterations, options.hosts)
        out = options.keep or root / "report.html"
        begun, begun_cpu = time.perf_counter(), time.process_time()
        write_report([str(folder)], out, str(root))
        took_s, cpu_s = time.perf_counter() - begun, time.process_time() - begun_cpu
        print(f"{options.iterations:,} iterations, {options.hosts} hosts")
        print(f"written in {took_s:.2f} s ({cpu_s:.2f} s of processor time; goal: < 3 s)")
        print(f"{out.stat().st_size / 1e6:.2f} MB (goal: < 2 MB)")
        print(measure_browser(out.resolve(), root / "browser"))


if __name__ == "__main__":
    main()
