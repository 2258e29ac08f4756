"""`caffe-recipes lint`: what it prints, and with what it exits."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = "import sys; from caffe_recipes.cli.main import main; sys.argv[0] = 'caffe-recipes'; main()"
SOLVER = """base_lr: 1
lr_policy: "poly"
power: 1
max_iter: 100
solver_mode: CPU
net: "net.prototxt"
snapshot_prefix: "own"
"""


def call(*words: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, "lint", *map(str, words)],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


@pytest.fixture
def solver(tmp_path: Path) -> Path:
    path = tmp_path / "solver.prototxt"
    path.write_text(SOLVER)
    return path


def test_findings_are_printed_and_fail(solver: Path) -> None:
    done = call("solver.prototxt", cwd=solver.parent)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.splitlines()[:2] == [
        "solver.prototxt:4:1: warning [final-rate-high] solver: the last phase ends at a rate of 0.01, "
        "which is 0.01 of its base_lr",
        "    the noise of the last batches stays in the final model",
    ]
    assert done.stdout.splitlines()[-1] == "0 errors, 1 warning, 1 note"


@pytest.mark.parametrize(("level", "code"), [("error", 0), ("warning", 1), ("note", 1), ("never", 0)])
def test_fail_on_says_from_where_on_it_fails(solver: Path, level: str, code: int) -> None:
    assert call("--fail-on", level, solver).returncode == code


def test_json_is_an_array(solver: Path) -> None:
    done = call("--json", solver)
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert [one["id"] for one in found] == ["net-not-found", "final-rate-high"] or [
        one["id"] for one in found
    ] == ["final-rate-high", "net-not-found"]
    assert found[0].keys() == {
        "id", "severity", "where", "what", "effect", "write", "values", "phase", "accepted"
    }  # fmt: skip


def test_alone_leaves_out_what_only_a_whole_chain_has(solver: Path) -> None:
    assert call("--alone", solver).returncode == 0


def test_format_json_is_the_same_as_json(solver: Path) -> None:
    assert call("--format", "json", solver).stdout == call("--json", solver).stdout


def test_format_github_prints_annotations_alone(solver: Path) -> None:
    lines = call("--format", "github", "solver.prototxt", cwd=solver.parent).stdout.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("::warning file=solver.prototxt,line=4,col=1,title=final-rate-high::solver: ")


def test_solvers_read_as_a_chain_are_announced_beside_the_findings(solver: Path) -> None:
    other = solver.with_name("solver2.prototxt")
    other.write_text(SOLVER)
    line = "2 solvers are checked as one chain; --alone checks each by itself\n"
    assert call(solver, other).stderr == line
    assert call("--alone", solver, other).stderr == ""
    assert call("--json", solver, other).stderr == ""


def test_fix_corrects_the_file_and_exits_as_lint_of_the_result(solver: Path) -> None:
    solver.write_text(SOLVER.replace("power: 1\n", "power: 1\ngamma: 0.1  # old\n"))
    done = call("--fix", "--alone", "solver.prototxt", cwd=solver.parent)
    assert (done.returncode, solver.read_text()) == (0, SOLVER.replace("power: 1\n", "power: 1\n# old\n"))
    assert done.stderr.startswith("fixed solver.prototxt:4:1 [solver-field-unread] gamma is never read")
    assert "solver-field-unread" not in done.stdout


def test_fix_with_diff_shows_the_change_and_writes_nothing(solver: Path) -> None:
    text = SOLVER + "gamma: 0.1\n"
    solver.write_text(text)
    done = call("--fix", "--diff", "--alone", solver)
    assert (done.returncode, done.stderr, solver.read_text()) == (1, "", text)
    assert "\n-gamma: 0.1\n" in done.stdout


def test_diff_alone_is_refused(solver: Path) -> None:
    done = call("--diff", solver)
    assert (done.returncode, "--diff needs --fix" in done.stderr) == (2, True)


def test_shipped_recipes_pass_and_print_what_they_accept() -> None:
    done = call("stampede2-64n-72ep", "digits-local")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"^stampede2-64n-72ep\.yaml:\d+: ", done.stdout, re.MULTILINE)
    assert "warning, accepted [warmup-end-jump] init: the rate drops by 8.3 %" in done.stdout
    assert "    accepted: as published; the paper and the 448-node recipe double it" in done.stdout


def test_rules_lists_all_and_explain_one() -> None:
    done = call("--rules")
    assert done.returncode == 0
    assert "join-jump " in done.stdout
    assert len(done.stdout.splitlines()) > 80
    one = call("--explain", "join-jump")
    assert one.returncode == 0
    assert one.stdout.startswith("join-jump: a warning\nproblem  a rate that jumps by more than 2 %")
    assert "\neffect   A phase starts from the weights" in one.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "Missing argument"),
        (["missing.prototxt"], "Error: missing.prototxt: cannot be read (No such file or directory)"),
        (["nowhere"], "Error: unknown recipe 'nowhere'; the recipes are digits-"),
        (["nowhere.yaml"], "Error: nowhere.yaml: cannot be read"),
        ([".", "--ranks", "2"], "Error: .: contains no .prototxt file"),
        (["digits-local", "--ranks", "2"], "Error: --ranks applies to files only: a recipe sets its own"),
        (["x.prototxt", "--ranks", "0"], "0 is too small; give 1 or more"),
        (["x.prototxt", "--dialect", "caffe2"], "'caffe2' is not one of"),
        (["x.prototxt", "--caffe-root", "nowhere"], "'nowhere' does not exist"),
        (["x.prototxt", "--script", "nowhere.sh"], "Error: nowhere.sh: cannot be read"),
        (["--explain", "join-jum"], "Error: no rule 'join-jum'; did you mean 'join-jump'?"),
    ],
)
def test_bad_input_gets_a_line_and_exit_2(words: list[str], said: str, tmp_path: Path) -> None:
    done = call(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", ": is empty: it has no fields; check that it was copied completely"),
        (b"base_lr: 1 gama: 2", ":1:12: SolverParameter has no field 'gama'; did you mean 'gamma'?"),
        (b"layer {" * 10_000, ":1:8: LayerParameter has no field 'layer'; "),
        (b"\x89PNG", ":1:1: byte 0x89 is not UTF-8"),
        (
            b"# " + b"." * 16_000_000,
            ": is over 16,000,000 bytes; if it is a prototxt, raise the limit with --max-bytes",
        ),
    ],
)
def test_a_file_that_is_no_prototxt_gets_one_line(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.prototxt"
    path.write_bytes(content)
    done = call(path)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"Error: {path}{said}")
