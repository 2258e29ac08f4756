"""A folder of another author: which solvers it holds, and the order in which they are probably trained."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from caffe_recipes.caffe.chain import phase_name_from_path, phase_order
from caffe_recipes.errors import InputError, PrototxtError
from caffe_recipes.review.lint.findings import Finding
from caffe_recipes.review.lint.folders import find_chain, lint_targets
from caffe_recipes.review.lint.inputs import LintOptions
from tests.review.conftest import net_text, solver_text

HALF = {
    "lr_policy": '"poly_cyc"',
    "power": 1,
    "max_iter": 500,
    "lr_iter": 1000,
    "snapshot_prefix": '"/tmp/a"',
}
END = {"base_lr": 0.5}
LintFolder = Callable[..., list[Finding]]


@pytest.fixture
def lint_folder(tmp_path: Path) -> LintFolder:
    """Give a function that writes a folder's files, and lints it."""
    own = tmp_path / "own"
    own.mkdir()
    (own / "train_val.prototxt").write_text(net_text("TRAIN", "TEST"))

    def run(files: dict[str, dict[str, object] | str], **options: object) -> list[Finding]:
        for name, content in files.items():
            (own / name).parent.mkdir(exist_ok=True)
            (own / name).write_text(content if isinstance(content, str) else solver_text(content))
        return lint_targets([str(own)], LintOptions(**options))  # type: ignore[arg-type]

    return run


@pytest.mark.parametrize(
    "names",
    [
        ["solver_init", "solver_cyc1", "solver_cyc2", "solver_cyc10", "solver_collapse"],
        ["solver", "solver_collapse"],
        ["solver_1", "solver_2"],
        ["phase0_solver", "phase1_solver"],
        ["solver-stage-1", "solver-stage-2", "solver-final"],
        ["main", "coll"],
    ],
)
def test_the_order_of_phases_is_read_from_their_names(names: list[str]) -> None:
    ranks = [phase_order(phase_name_from_path(f"{name}.prototxt")) for name in names]
    assert None not in ranks
    assert ranks == sorted(set(ranks))  # type: ignore[type-var]


def test_phase_names_without_an_order_have_no_position() -> None:
    assert [phase_order(name) for name in ("quick", "lenet", "adam", "x1y")] == [None] * 4


def test_solvers_are_a_chain_in_the_order_of_their_names(lint_folder: LintFolder) -> None:
    (found,) = lint_folder({"solver_2.prototxt": END, "solver_1.prototxt": HALF})
    assert (found.id, found.severity) == ("order-guessed", "note")
    assert found.what.endswith("by their names: solver_1.prototxt, solver_2.prototxt")


def test_solvers_of_unknown_order_are_checked_alone(lint_folder: LintFolder) -> None:
    (found,) = lint_folder({"adam_solver.prototxt": END, "sgd_solver.prototxt": HALF})
    assert (found.id, found.severity) == ("order-unknown", "note")
    assert "adam_solver.prototxt, sgd_solver.prototxt" in found.what


@pytest.mark.parametrize("name", ["train.sh", "README.md", "README", "job.slurm"])
def test_a_script_in_the_folder_gives_the_order(lint_folder: LintFolder, name: str) -> None:
    commands = (
        "caffe train --solver=own/sgd_solver.prototxt\n"
        "caffe train --solver=own/adam_solver.prototxt --weights=a_iter_501.caffemodel\n"
    )
    found = lint_folder({"adam_solver.prototxt": END, "sgd_solver.prototxt": HALF, name: commands})
    assert [one.id for one in found] == ["order-guessed", "snapshot-never-fires"]
    assert found[0].what.endswith("by the commands of a script: sgd_solver.prototxt, adam_solver.prototxt")


def test_a_given_script_takes_precedence_over_names(lint_folder: LintFolder, tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(
        "caffe train --solver=own/solver_2.prototxt\n"
        "caffe train --solver=own/solver_1.prototxt --weights=a_iter_500.caffemodel\n"
    )
    assert lint_folder({"solver_1.prototxt": END, "solver_2.prototxt": HALF}, script=script) == []


def test_nets_in_another_folder_are_reported_once(lint_folder: LintFolder) -> None:
    net = '"models/far/train_val.prototxt"'
    found = lint_folder({
        "solver_1.prototxt": {**HALF, "net": net},
        "solver_2.prototxt": {**END, "net": net},
        "one_solver_adam.prototxt": {"net": net},
        "two_solver.prototxt": {"net": '"models/other/train_val.prototxt"'},
    })  # fmt: skip
    several, single = [one for one in found if one.id == "net-folder"]
    assert several.what == "the nets of 1, 2, one_adam are in far, but the solvers are in own" or (
        several.what == "the nets of one_adam, 1, 2 are in far, but the solvers are in own"
    )
    assert (dict(several.values), several.phase) == ({"folder": "far", "own": "own"}, "")
    assert (single.what, single.phase) == ("the net is in other, but the solver is in own", "two")


def test_one_solver_alone_is_a_whole_chain(lint_folder: LintFolder) -> None:
    assert [one.id for one in lint_folder({"solver.prototxt": HALF})] == ["final-rate-high"]


def test_each_folder_below_is_a_chain_of_its_own(lint_folder: LintFolder) -> None:
    net = net_text("TRAIN", "TEST")
    found = lint_folder({
        "a/solver_1.prototxt": {**HALF, "net": '"own/a/n.prototxt"'},
        "a/solver_2.prototxt": {**END, "net": '"own/a/n.prototxt"'},
        "a/n.prototxt": net,
        "b/solver.prototxt": {"net": '"own/b/n.prototxt"'},
        "b/n.prototxt": net,
        ".git/broken.prototxt": "x",
    })  # fmt: skip
    assert [one.id for one in found] == ["order-guessed"]


def test_an_unreadable_file_is_a_finding_and_the_rest_is_checked(lint_folder: LintFolder) -> None:
    found = lint_folder({
        "solver.prototxt": {"solver_mode": None},
        "bad.prototxt": "layer {",
        "empty.prototxt": "",
        "labels.prototxt": 'item { name: "a" label: 1 } item { name: "b" label: 1 }',
    })  # fmt: skip
    assert sorted(one.id for one in found) == [
        "label-twice",
        "solver-mode-absent",
        "unreadable",
        "unreadable",
    ]


@pytest.mark.parametrize(
    ("name", "text"), [("solver_2.prototxt", "layer {"), ("phase_2.prototxt", "# x\nbase_lr: 1\ngamma: x")]
)
def test_a_solver_that_cannot_be_read_stops_it(lint_folder: LintFolder, name: str, text: str) -> None:
    with pytest.raises(PrototxtError, match=name):
        lint_folder({"solver_1.prototxt": HALF, name: text, "solver_3.prototxt": END})


def test_a_folder_that_cannot_be_listed_is_named(
    lint_folder: LintFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str) -> NoReturn:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("os.scandir", refuse)
    with pytest.raises(InputError, match="own: cannot be read: Permission denied; check its permissions"):
        lint_folder({})


def test_nets_that_no_solver_uses_are_checked_too(lint_folder: LintFolder) -> None:
    text = net_text("TRAIN", "TEST").replace("shuffle: true", "")
    assert [one.id for one in lint_folder({"other.prototxt": text})] == ["train-unshuffled"]


def test_a_folder_without_prototxts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"contains no \.prototxt file; give a folder with"):
        lint_targets([str(tmp_path)], LintOptions())


def test_the_solvers_of_a_folder_are_found_in_the_order_of_their_training(tmp_path: Path) -> None:
    (tmp_path / "train_val.prototxt").write_text(net_text("TRAIN", "TEST"))
    for name in ("solver_collapse", "solver_init", "solver_cyc1"):
        (tmp_path / f"{name}.prototxt").write_text(solver_text(END))
    names = [Path(file).stem for file in find_chain(tmp_path, 10**6)]
    assert names == ["solver_init", "solver_cyc1", "solver_collapse"]


def test_a_chain_of_a_folder_needs_an_order_and_one_folder_of_solvers(tmp_path: Path) -> None:
    (tmp_path / "train_val.prototxt").write_text(net_text("TRAIN", "TEST"))
    with pytest.raises(InputError, match="contains no solver"):
        find_chain(tmp_path, 10**6)
    for name in ("quick_solver", "solver"):
        (tmp_path / f"{name}.prototxt").write_text(solver_text(END))
    with pytest.raises(InputError, match="order of its solvers is unknown: quick_solver"):
        find_chain(tmp_path, 10**6)
    assert len(find_chain(tmp_path, 10**6, is_ordered=False)) == 2
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "solver.prototxt").write_text(solver_text(END))
    with pytest.raises(InputError, match=r"has solvers in .*/b; give one of these folders"):
        find_chain(tmp_path, 10**6)
