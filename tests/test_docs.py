"""Every command that README.md and docs/ show is run and its output compared, or has a reason why not.

A listing's `...` stands for any lines; times and speeds are compared as placeholders.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import click
import pytest
import yaml
from rich.console import Console

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.model_folder import ModelDescription
from caffe_recipes.caffe.prototxt import load_prototxt
from caffe_recipes.caffe.shapes import infer_shapes
from caffe_recipes.cli.main import commands
from caffe_recipes.cluster.profiles import parse_profile
from caffe_recipes.recipe.shipped import shipped_recipes
from caffe_recipes.recipe.source import load_recipe, parse_recipe
from caffe_recipes.run.console import Reporter
from caffe_recipes.run.events import Finish, RunState
from caffe_recipes.run.training_plan import plan_steps
from tests.cli.command_line import call_main
from tests.extras import needs_local, needs_onnx

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PROGRAMS = Path(sys.executable).parent
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
# Command lines that no test runs, and why.
NOT_RUN = {
    r"make( |$)": "installs, or trains: .ci/run calls it",
    r"pip install": "installs from the network: tests/test_wheel.py builds and reads the wheel",
    r"source |git config|eval ": "changes the reader's shell or configuration",
    r"caffe-recipes completion .* > ~/": "writes to the reader's home: tests/cli/test_setup.py",
    r"caffe-recipes run digits-(local|cyclic)": "trains for minutes: make demo does, and .ci/run",
    r"caffe-recipes run digits-rates.yaml": "trains for minutes: tests/run/test_each.py runs a small family",
    r"caffe-recipes run (mine|photos)\.yaml": "trains half a minute, as tests/run/test_runner_end_to_end.py",
    r"caffe-recipes (plot digits-local-1|parse-log (runs/|digits-))": "needs a run: tests/run/monitor",
    r"caffe-recipes report digits": "needs two runs: tests/cli/test_report.py",
    r"caffe-recipes (runs|diff digits-local-1) ": "needs runs: tests/run/monitor/test_comparison.py",
    r"caffe-recipes plot colleague": "needs the reader's log: tests/cli/test_plot.py",
    r"caffe-recipes ensemble ": "needs the run before it: tests/run/test_ensemble.py",
    r"caffe-recipes (run|preflight|stage) .*--hostfile": "needs hosts: tests/cluster",
    r"caffe-recipes (submit|status) ": "needs Slurm: tests/cluster/slurm",
    r"caffe-recipes data (build --images|check ilsvrc12)": "needs images: tests/cli/test_data.py",
    r"caffe-recipes new --net": "needs images: tests/authoring/test_new_options.py",
    r"caffe-recipes deploy train_val": "needs the reader's files: tests/cli/test_deploy.py",
    r"caffe-recipes deploy digits-local-1 ": "needs a run: tests/cli/test_classify.py",
    r"caffe-recipes (classify|export) ": "needs a run, or the reader's files: tests/cli/test_export.py",
    r"caffe-recipes adopt models/": "needs the reader's files: tests/authoring/test_adopt.py",
    r"(mpiexec\.hydra .*)?caffe-torch ": "trains: tests/engine",
}

TRAINING = "caffe-recipes run lenet.yaml"


@dataclass(frozen=True)
class Shown:
    """A command of a document, and the lines that are shown below it, if any are."""

    document: Path
    line: str
    output: str | None

    @property
    def reason(self) -> str | None:
        """Why it is not run."""
        return next((why for pattern, why in NOT_RUN.items() if re.match(pattern, self.line)), None)

    def __str__(self) -> str:
        return f"{self.document.name}: {self.line}"


def read_blocks(document: Path, *languages: str) -> list[str]:
    return [text for language, text in BLOCK.findall(document.read_text()) if language in languages]


def read_commands(document: Path) -> Iterator[Shown]:
    for text in read_blocks(document, ""):
        if text.startswith("$ "):
            for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
                line, _, output = part.partition("\n")
                yield Shown(document, line, output or None)
        else:
            for line in text.splitlines():
                if re.match(r"(sudo )?(caffe-|make|pip|git|source|eval|mpiexec|jobs/)", line):
                    yield Shown(document, line, None)


SHOWN = [shown for document in DOCUMENTS for shown in read_commands(document)]


def stripped(text: str) -> str:
    """Put a placeholder for what differs from run to run."""
    text = re.sub(r"[\d,.]+ images/s", "<n> images/s", text)
    return re.sub(r"\b\d+:\d\d(:\d\d)?\b|\b[\d.]+ (s|min)\b", "<time>", text)


def differs(shown: str, printed: str) -> str | None:
    """Return the first part of a listing that is not printed, in order; `...` lines stand for any."""
    at = 0
    for number, part in enumerate(re.split(r"^\.\.\.\n", stripped(shown), flags=re.MULTILINE)):
        found = stripped(printed).find(part, at)
        if found < 0 or (number == 0 and found > 0):
            return part
        at = found + len(part)
    rest = stripped(printed)[at:]
    return None if not rest or shown.endswith("...\n") else f"nothing more, but there is: {rest}"


def run_as_reader(document: Path, lines: Iterable[Shown], folder: Path) -> None:
    """Run lines of a document as its reader would: beside the checkout's files, and those that it lists."""
    for name in ("prototxt", "jobs"):
        shutil.copytree(ROOT / name, folder / name)
    if document.name == "README.md":
        for name, language in (("my_nets.py", "python"), ("lenet.yaml", "yaml")):
            (folder / name).write_text(read_blocks(document, language)[0])
    (folder / "docs" / "images").mkdir(parents=True)
    environment = {
        **os.environ,
        "PATH": f"{PROGRAMS}:{os.environ['PATH']}",
        "HOME": str(folder),
        "XDG_STATE_HOME": str(folder / "state"),
        "COLUMNS": "120",
    }
    for shown in lines:
        words = words_of(shown.line)
        if words and shown.line != TRAINING:
            done = call_main(*words, cwd=folder, env=environment, together=True)
        else:
            done = subprocess.run(
                ["bash", "-c", shown.line],
                cwd=folder,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
        assert done.returncode in (0, 1), f"{shown}\n{done.stdout}"
        assert "Error:" not in done.stdout, f"{shown}\n{done.stdout}"
        if shown.output is not None:
            assert differs(shown.output, done.stdout) is None, f"{shown}\n{done.stdout}"


def words_of(line: str) -> list[str] | None:
    """Return what follows `caffe-recipes` in a line of nothing else; None if it needs a shell."""
    program, *words = shlex.split(line, comments=True)
    needs_shell = re.search(r"[|&;<>()$`*?~{]", line.partition(" #")[0])
    return words if program == "caffe-recipes" and words and not needs_shell else None


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_each_command_does_what_its_document_shows(document: Path, tmp_path: Path) -> None:
    lines = [shown for shown in SHOWN if shown.document == document and not shown.reason]
    run_as_reader(document, [shown for shown in lines if shown.line != TRAINING], tmp_path)


@pytest.mark.slow
def test_the_recipe_that_the_readme_shows_is_trained(tmp_path: Path) -> None:
    lines = [shown for shown in SHOWN if shown.line == TRAINING]
    assert len(lines) == 1
    run_as_reader(ROOT / "README.md", lines, tmp_path)


def test_a_line_that_needs_a_shell_is_seen() -> None:
    assert words_of("caffe-recipes lr 'my net'  # as $ always") == ["lr", "my net"]
    for line in ("caffe-recipes fmt < a", "caffe-recipes lr a | tail", "caffe-torch a", "caffe-recipes lr *"):
        assert words_of(line) is None


def test_each_reason_not_to_run_a_command_is_needed() -> None:
    for pattern in NOT_RUN:
        assert any(re.match(pattern, shown.line) for shown in SHOWN), pattern


def unknown_options(shown: Shown) -> list[str]:
    """Return the options of a line that its command does not have."""
    _, _, call = shown.line.partition("caffe-recipes ")
    words = shlex.split(re.split(r" [>|] |[\")]", call)[0], comments=True)
    command: click.Command = commands
    while isinstance(command, click.Group):
        found = command.get_command(click.Context(command), words.pop(0))
        assert found is not None
        command = found
    known = {option for param in command.params for option in (*param.opts, *param.secondary_opts)}
    return [word for word in words if word.startswith("-") and word.partition("=")[0] not in known]


def test_each_command_that_is_shown_has_its_options() -> None:
    calls = [shown for shown in SHOWN if "caffe-recipes " in shown.line]
    assert [str(shown) for shown in calls if unknown_options(shown)] == []
    assert unknown_options(Shown(ROOT, "caffe-recipes lr --evry 5", None)) == ["--evry"]


def test_the_end_of_the_demo_is_what_a_run_with_these_results_prints() -> None:
    (listing,) = [text for text in read_blocks(ROOT / "README.md", "") if text.startswith("...\nphase ")]
    recipe = load_recipe("digits-local")
    rows = re.findall(r"^(\w+) +[\d,]+ +[\d.]+ +(\d+) s +([\d,]+) +([\d.]+)$", listing, re.MULTILINE)
    steps = {step.phase: step.fetched for step in plan_steps(recipe, "runs/digits-local-1")}
    finished = {
        phase: Finish(phase, steps[phase], "", float(time), float(speed.replace(",", "")), float(loss), {})
        for phase, time, speed, loss in rows
    }
    found = re.findall(r"^(l\S+): ([\d.]+)(%)?$", listing, re.MULTILINE)
    outputs = {name: float(value) / (100 if percent else 1) for name, value, percent in found}
    output = io.StringIO()
    state = RunState(finished=finished, evaluations={"collapse": outputs})
    Reporter(Console(file=output, width=120)).show_result(recipe, state)
    printed = "".join(f"{line.rstrip()}\n" for line in output.getvalue().splitlines())
    assert printed == listing.removeprefix("...\n")


def test_the_profiles_that_the_documents_show_are_valid() -> None:
    shown = {name: read_blocks(ROOT / f"docs/{name}.md", "yaml") for name in ("running", "submitting")}
    whole = parse_profile(shown["running"][0], "running.md")
    more = yaml.safe_load(shown["submitting"][0])
    assert whole.name == "ours"
    assert parse_profile(yaml.safe_dump({"name": "ours", "title": "Ours", **more}), "submitting.md").slurm


def test_the_acceptance_that_is_shown_is_a_recipe_s() -> None:
    (shown,) = [
        text for text in read_blocks(ROOT / "docs/reviewing.md", "yaml") if text.startswith("accept:")
    ]
    text, accept = shipped_recipes()["stampede2-64n-72ep"].file.read_text("utf-8"), "accept:\n"
    recipe = parse_recipe(text.replace(accept, f"{shown}\n", 1).partition("  - finding:")[0], "shown", Path())
    (accepted,) = recipe.accept
    assert (accepted.finding, accepted.phase) == ("warmup-end-jump", "init")


def make_digits_model(folder: Path) -> None:
    """Write the model of a run of digits-local in `folder`, with random weights."""
    folder.mkdir(parents=True)
    (folder / "deploy.prototxt").write_text(call_main("deploy", "digits-local", "--input", "3,28,28").stdout)
    weights, random = pb.NetParameter(), Random(0)
    for one in infer_shapes(load_prototxt(folder / "deploy.prototxt", pb.NetParameter), pb.TEST).layers:
        layer = weights.layer.add(name=one.layer.name)
        for shape in one.learned or ():
            sizes = [size or 1 for size in shape]
            values = [random.uniform(0, 0.1) for _ in range(math.prod(sizes))]
            layer.blobs.add(shape=pb.BlobShape(dim=sizes), data=values)
    (folder / "weights.caffemodel").write_bytes(weights.SerializeToString())
    transform = {"scale": 0.0078125, "crop_size": 28, "mean_value": [104.0, 117.0, 123.0]}
    (folder / "model.json").write_text(
        ModelDescription(name="digits", classes=None, shape=(3, 28, 28), transform=transform).render()
    )


@needs_local
@needs_onnx
def test_the_numbers_in_three_programs_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    make_digits_model(tmp_path / "runs/digits-local-1/model")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(PROGRAMS), prepend=os.pathsep)
    (snippet,) = read_blocks(ROOT / "docs/models.md", "python")
    exec(snippet, {})
    printed = re.fullmatch(r"\[(.*?)\]\nwrote.*?\n\[(.*?)\]\n(\[.*)", capfd.readouterr().out, re.DOTALL)
    assert printed is not None
    opencv, onnx, classified = printed.groups()
    rows = json.loads(classified)[0]["classes"]
    for shown in (opencv, onnx):
        numbers = [float(number) for number in shown.split()]
        assert len(numbers) == 10
        assert [numbers[row["class"]] for row in rows] == pytest.approx(
            [row["probability"] for row in rows], abs=1e-4
        )
    assert rows[0]["probability"] < 0.999


def test_a_listing_that_is_stale_is_found() -> None:
    assert differs("a\n...\nc\n", "a\nb\nc\n") is None
    assert differs("1 files, 3 s\n", "1 files, 14 s\n") is None
    assert differs("a\n...\nd\n", "a\nb\nc\n") == "d\n"
    assert differs("a\n", "a\nb\n") is not None
    assert differs("b\n", "a\nb\n") == "b\n"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_each_picture_and_file_that_a_document_points_to_exists(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", document.read_text()):
        if "://" not in target:
            assert (document.parent / target).exists(), target


def test_make_help_lists_each_target() -> None:
    phony = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    listed = subprocess.run(  # Under `make test`, make would also print the folder that it enters.
        ["make", "--no-print-directory", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert [line.partition(":")[0] for line in listed.splitlines()] == phony[0].split()


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 200
