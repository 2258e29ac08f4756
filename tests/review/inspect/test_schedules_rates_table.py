"""Rates, iteration by iteration: equal to an evaluation of the formulas that shares no code with ours."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from click.testing import CliRunner, Result

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.chain import Chain, Link
from caffe_recipes.caffe.prototxt import Document
from caffe_recipes.cli.lr import lr
from caffe_recipes.errors import PrototxtError
from caffe_recipes.review.inspect.schedules import rate_rows, render_rates

Floats = npt.NDArray[np.float32]

ROOT = Path(__file__).resolve().parents[3]
THEIRS = ROOT.parent / "shared" / "reference" / "surfsara"
SOLVERS = [
    *(
        f"resnet50_custom_lr/solver_{phase}.prototxt"
        for phase in ("init", "cyc1", "cyc2", "cyc3", "collapse")
    ),
    *(f"resnet50_448nodes/{name}.prototxt" for name in ("solver", "solver_collapse")),
]
OURS = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("prototxt/*/solver_*.prototxt"))


def call(*words: str | Path) -> Result:
    return CliRunner().invoke(lr, [str(word) for word in words])


def in_float32(text: str) -> Floats:
    """Evaluate warm-up, `fixed`, `poly` and `poly_cyc` for every iteration; read by a pattern of its own."""
    given = dict(re.findall(r'^(\w+): "?([^"\s#]+)', text, re.MULTILINE))
    base_lr, start_lr = np.float32(given["base_lr"]), np.float32(given.get("warmup_start_lr", 0))
    warmup, last = int(given.get("warmup_iter", 0)), int(given["max_iter"])
    whole = {"fixed": last, "poly": last, "poly_cyc": int(given.get("lr_iter", 0))}[given["lr_policy"]]
    iteration = np.arange(last, dtype=np.float32)
    left = np.float32(1) - iteration / np.float32(whole)
    rate: Floats = base_lr * np.power(left, np.float32(given.get("power", 0)))
    if warmup:
        ramp = (iteration * base_lr + (np.float32(warmup) - iteration) * start_lr) / np.float32(warmup)
        rate = np.where(iteration < warmup, ramp, rate)
    return rate


def check_every_iteration(path: Path) -> None:
    done = call(path, "--csv")
    assert done.exit_code == 0, done.exception
    rows = list(csv.reader(io.StringIO(done.output)))
    expected = in_float32(path.read_text())
    assert rows[0] == ["iter", "lr"]
    assert [int(row[0]) for row in rows[1:]] == list(range(len(expected)))
    printed = np.array([row[1] for row in rows[1:]], dtype=np.float32)
    assert printed.dtype == expected.dtype == np.float32
    assert (printed.view(np.uint32) == expected.view(np.uint32)).all()


@pytest.mark.skipif(not THEIRS.is_dir(), reason="the published files are not beside this checkout")
@pytest.mark.parametrize("name", SOLVERS)
def test_every_rate_of_a_published_solver_is_bit_equal_to_an_evaluation_of_its_own(name: str) -> None:
    check_every_iteration(THEIRS / name)


@pytest.mark.parametrize("name", OURS)
def test_every_rate_of_a_generated_solver_is_bit_equal_too(name: str) -> None:
    check_every_iteration(ROOT / name)


def test_the_solvers_to_compare_are_found() -> None:
    assert len(SOLVERS) == 7
    assert len(OURS) >= 12


def test_rates_have_the_fewest_digits_that_read_back() -> None:
    solver = pb.SolverParameter(lr_policy="poly", power=2, base_lr=0.143, max_iter=1560)
    rows = dict(rate_rows(solver))
    assert rows[0] == "0.143"
    for text in rows.values():
        mantissa, e, exponent = text.partition("e")
        assert np.float32(f"{mantissa[:-1]}{e}{exponent}") != np.float32(text)


def test_values_that_are_not_finite_are_written_plainly() -> None:
    lost = pb.SolverParameter(lr_policy="poly_cyc", power=2, base_lr=1, max_iter=3)
    assert [text for _, text in rate_rows(lost)] == ["nan", "inf", "inf"]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], str]:
    monkeypatch.chdir(tmp_path)

    def write_one(name: str, text: str) -> str:
        (tmp_path / name).write_text(text)
        return name

    return write_one


Write = Callable[[str, str], str]
LINE = 'base_lr: 0.5 lr_policy: "poly" power: 1 max_iter: 11'
TWO_PHASES = """
params_pair { solver_params { base_lr: 1 lr_policy: "fixed" max_iter: 2 } batch_size: 8 }
params_pair { solver_params { base_lr: 1 lr_policy: "poly" power: 1 max_iter: 2 } }
"""


def test_one_solver_s_csv_has_two_columns_and_every_keeps_the_last(write: Write) -> None:
    done = call(write("a.prototxt", LINE), "--csv", "--every", "4")
    assert done.output == "iter,lr\n0,0.5\n4,0.3181818\n8,0.13636363\n10,0.045454532\n"


def test_text_is_aligned(write: Write) -> None:
    done = call(write("a.prototxt", LINE), "--every", "5")
    assert done.output == "iter  lr\n   0  0.5\n   5  0.27272725\n  10  0.045454532\n"


def test_several_solvers_are_distinguished_by_a_first_column_or_a_line(write: Write) -> None:
    paths = write("a,b.prototxt", LINE), write("c.prototxt", LINE)
    rows = list(csv.reader(io.StringIO(call(*paths, "--csv", "--every", "10").output)))
    assert rows[0] == ["solver", "iter", "lr"]
    assert [row[:2] for row in rows[1:]] == [[path, iteration] for path in paths for iteration in ("0", "10")]
    lines = call(*paths, "--every", "10").output.splitlines()
    assert lines[0] == "a,b.prototxt"
    assert lines[4:6] == ["", "c.prototxt"]


def test_each_solver_of_a_file_of_several_phases_is_named_by_its_field(write: Write) -> None:
    done = call(write("multi.prototxt", TWO_PHASES), "--csv")
    assert done.output.splitlines()[1:] == [
        "multi.prototxt:params_pair[0],0,1",
        "multi.prototxt:params_pair[0],1,1",
        "multi.prototxt:params_pair[1],0,1",
        "multi.prototxt:params_pair[1],1,0.5",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'max_iter: 5\nlr_policy: "plateau"\nbase_lr: 1',
            "a.prototxt:2:1: the rate of lr_policy plateau depends on the losses; read the rate in the log",
        ),
        ('base_lr: 1\nlr_policy: "fixed"', "a.prototxt: max_iter is missing, so no iteration is trained"),
        (
            'base_lr: 1\nmax_iter: -3\nlr_policy: "fixed"',
            "a.prototxt:2:1: max_iter is -3, so no iteration is trained",
        ),
        (
            'base_lr: 1 max_iter: 3 lr_policy: "pol"',
            "a.prototxt:1:24: lr_policy 'pol' is unknown; did you mean 'poly'",
        ),
        ("base_lr: 1 max_iter: 3", "a.prototxt: lr_policy is missing; choose from fixed, "),
        ('max_iter: 3 lr_policy: "step" gamma: 1', "lr_policy step needs stepsize above 0"),
        (
            'params_pair { solver_params { lr_policy: "fixed" max_iter: 2 } }\nparams_pair { batch_size: 8 }',
            "a.prototxt:2:1: max_iter is missing",
        ),
        ('layer { name: "a" }', "a.prototxt: expected a solver, found a NetParameter; give a solver file"),
        ("max_iter: 3 lr_polcy: 1", "did you mean 'lr_policy'?"),
        ("", "a.prototxt: is empty: it has no fields"),
    ],
)
def test_a_solver_whose_rate_cannot_be_computed_is_one_line(text: str, message: str, write: Write) -> None:
    done = call(write("a.prototxt", text))
    assert isinstance(done.exception, PrototxtError)
    assert done.exception.exit_code == 2
    assert message in str(done.exception)
    assert "\n" not in str(done.exception)
    assert done.output == ""


def test_a_bad_solver_after_a_good_one_prints_no_partial_table(write: Write) -> None:
    done = call(write("a.prototxt", LINE), write("b.prototxt", "max_iter: 1"))
    assert isinstance(done.exception, PrototxtError)
    assert done.output == ""


def test_a_file_over_the_limit_is_refused_unless_more_is_allowed(write: Write) -> None:
    path = write("a.prototxt", LINE)
    assert "is over 20 bytes" in str(call(path, "--max-bytes", "20").exception)
    assert call(path, "--max-bytes", "200").exit_code == 0


def test_a_table_of_many_rows_is_whole(write: Write) -> None:
    solver = pb.SolverParameter(lr_policy="fixed", base_lr=1, max_iter=20_001)
    chain = Chain((Link("a", Document("a", "", solver, {}, {}), None, solver.max_iter),))
    lines = [line for batch in render_rates(chain, as_csv=True) for line in batch]
    assert len(lines) == 20_002
    assert lines[-1] == "20000,1"


def test_a_solver_without_max_iter_takes_the_iterations_of_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "bare.prototxt").write_text("base_lr: 0.1 lr_policy: 'step' gamma: 0.1 stepsize: 2")
    (tmp_path / "whole.prototxt").write_text("base_lr: 0.5 lr_policy: 'fixed' max_iter: 1")
    done = call(tmp_path / "bare.prototxt")
    assert str(done.exception).endswith("set max_iter, or give lr --iterations")
    done = call(tmp_path / "bare.prototxt", "--iterations", "3", "--csv")
    assert done.output == "iter,lr\n0,0.1\n1,0.1\n2,0.010000001\n"
    done = call(tmp_path / "whole.prototxt", "--iterations", "3", "--csv")
    assert done.output == "iter,lr\n0,0.5\n"
