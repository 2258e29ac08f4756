"""run.sh of digits-local with real programs: mpiexec.hydra and caffe-torch train the chain here."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from caffe_recipes.data.digits import build_digits
from caffe_recipes.recipe.model import Recipe
from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.render.recipe_files import generate

PROGRAMS = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
FINAL = "digits_collapse_iter_4.caffemodel"
pytestmark = pytest.mark.skipif(
    not all(shutil.which(tool, path=PROGRAMS) for tool in ("mpiexec.hydra", "caffe-torch", "flock")),
    reason="the extra `local` is not installed: no mpiexec.hydra or no caffe-torch",
)


def short_recipe() -> Recipe:
    """Three phases of digits-local, both nets, in a few iterations; the second, to be killed in, has more."""
    recipe = load_recipe("digits-local")
    init, cyc1, *_, collapse = recipe.phases
    few = {"max_iter": 4, "display": 1}
    phases = (
        init.model_copy(update=few | {"warmup_iter": 2}),
        cyc1.model_copy(update=few | {"max_iter": 40}),
        collapse.model_copy(update=few),
    )
    return recipe.model_copy(update={"phases": phases})


class DigitsRoot:
    """A Caffe root with the generated files, the digits, and an ssh that must not be needed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.logs = root / "logs/digits-local"
        for path, text in generate(short_recipe()).items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text, "utf-8")
        build_digits(root / "examples/digits")
        for tool in ("ssh", "scp"):
            (root / tool).write_text("#!/bin/sh\necho no ssh here >&2; exit 255\n")
            (root / tool).chmod(0o755)

    def start(self) -> subprocess.Popen[str]:
        """Start run.sh in a process group of its own."""
        with (self.root / "said").open("w") as file:
            return subprocess.Popen(
                ["bash", "jobs/digits-local/run.sh"],
                cwd=self.root,
                env={**os.environ, "PATH": f"{self.root}:{PROGRAMS}"},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )

    def run(self) -> str:
        """Run run.sh to success; return its output."""
        process = self.start()
        try:
            code = process.wait(timeout=300)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        output = (self.root / "said").read_text()
        assert code == 0, output[-3000:]
        return output

    def kill_in(self, phase: str) -> None:
        """Run run.sh, and kill it with its group while a phase trains."""
        log = self.logs / f"{phase}.log"
        process = self.start()
        deadline = time.monotonic() + 300
        try:
            while not log.exists() or "Iteration 1, loss" not in log.read_text():
                assert process.poll() is None, (self.root / "said").read_text()[-3000:]
                assert time.monotonic() < deadline, f"{phase} never began"
                time.sleep(0.02)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.mark.slow
def test_a_chain_killed_in_phase_2_ends_as_an_undisturbed_one(tmp_path: Path) -> None:
    undisturbed = DigitsRoot(tmp_path / "undisturbed")
    output = undisturbed.run()
    assert "] loss3/top-1 = " in output

    killed = DigitsRoot(tmp_path / "killed")
    killed.kill_in("cyc1")
    assert "Optimization Done" not in (killed.logs / "cyc1.log").read_text()
    records = sorted(path.name for path in killed.root.glob("*.made-from"))
    assert records == ["digits_init_iter_4.caffemodel.made-from"]
    output = killed.run()
    assert "init: is finished\n" in output
    assert (killed.root / FINAL).read_bytes() == (undisturbed.root / FINAL).read_bytes()
