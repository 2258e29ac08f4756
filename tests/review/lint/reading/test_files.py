"""Files as a chain: names, several solvers in one, each alone, what a command says of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from caffe_recipes.errors import PrototxtError
from caffe_recipes.review.lint.reading.files import find_training
from caffe_recipes.review.lint.reading.reader import Options
from caffe_recipes.review.lint.reading.script import parse_script
from caffe_recipes.review.lint.reading.targets import lint
from tests.review.conftest import LintSolvers, net_text, solver_text

HALF = {"lr_policy": '"poly_cyc"', "power": 1, "max_iter": 500, "lr_iter": 1000}


def test_the_order_given_is_the_order_of_the_chain(lint_solvers: LintSolvers, tmp_path: Path) -> None:
    assert lint_solvers({"a": HALF, "b": {"base_lr": 0.5}}) == []
    paths = [str(tmp_path / "own" / f"solver_{name}.prototxt") for name in "ba"]
    assert [one.id for one in lint(paths, Options())] == ["join-jump", "final-rate-high"]


def test_alone_a_solver_is_no_last_phase(lint_solvers: LintSolvers) -> None:
    assert lint_solvers({"a": HALF, "b": {}}, is_alone=True) == []
    jump = lint_solvers({"a": {**HALF, "warmup_iter": 100}}, is_alone=True)
    assert [one.id for one in jump] == ["warmup-end-jump"]


def test_several_solvers_in_one_file_are_a_chain(lint_solvers: LintSolvers, tmp_path: Path) -> None:
    own = tmp_path / "own"
    pairs = "".join(
        f"params_pair {{ solver_params {{\n{solver_text(changes)}}} batch_size: 32 }}\n"
        for changes in (HALF, {"base_lr": 0.9, "snapshot_prefix": '"/tmp/b"'})
    )
    (own / "solvers.prototxt").write_text(pairs)
    (found,) = lint([str(own / "solvers.prototxt")], Options())
    assert found.id == "join-jump"
    assert found.values["before"] == pytest.approx(0.501)
    assert found.where == f"{own / 'solvers.prototxt'}:14:1"


def test_a_net_that_several_phases_use_is_looked_at_once(lint_solvers: LintSolvers, tmp_path: Path) -> None:
    path = tmp_path / "own" / "train_val.prototxt"
    path.write_text(net_text("TRAIN", "TEST").replace("shuffle: true", ""))
    found = lint_solvers({"a": HALF, "b": {"base_lr": 0.5}})
    assert [one.id for one in found] == ["train-unshuffled"]
    again = lint([*(str(path) for path in sorted((tmp_path / "own").iterdir()))], Options())
    assert [one.id for one in again] == ["train-unshuffled"]


def test_a_net_of_its_own_is_looked_at_without_a_solver(lint_solvers: LintSolvers, tmp_path: Path) -> None:
    path = tmp_path / "own" / "train_val.prototxt"
    assert lint([str(path)], Options()) == []
    assert [one.id for one in lint([str(path)], Options(classes=11))] == ["outputs-below-classes"]


def test_a_net_of_the_old_format_is_taken_as_caffe_upgrades_it(
    lint_solvers: LintSolvers, tmp_path: Path
) -> None:
    data = 'data_param {{ source: "l" backend: LMDB batch_size: 32 shuffle: true }}'
    product = 'inner_product_param {{ num_output: 9 weight_filler {{ type: "xavier" }} }}'
    text = (
        f'layers {{{{ name: "d" type: DATA top: "data" top: "label" {{rule}} {data} }}}}\n'
        f'layers {{{{ name: "ip" type: INNER_PRODUCT bottom: "data" top: "ip" {product} }}}}\n'
        'layers {{ name: "loss" type: SOFTMAX_LOSS bottom: "ip" bottom: "label" top: "loss" }}\n'
    )
    path = tmp_path / "own" / "train_val.prototxt"
    path.write_text(text.format(rule=""))
    assert [one.id for one in lint_solvers({"a": {}})] == ["old-format"]
    path.write_text(text.format(rule="include { phase: TRAIN }"))
    found = [one.id for one in lint_solvers({"a": {"max_iter": "1000 # 32000 / 64 * 2 epochs"}}, ranks=4)]
    assert {"last-net-without-test", "global-batch", "old-format"} <= set(found)


def test_one_file_that_cannot_be_read_stops_the_chain(lint_solvers: LintSolvers) -> None:
    with pytest.raises(PrototxtError, match=r"solver_a.prototxt:9:1: .*no field 'gama'"):
        lint_solvers({"a": {"gama": 1}})


def test_a_net_that_cannot_be_read_is_a_finding_of_its_solver_s(
    lint_solvers: LintSolvers, tmp_path: Path
) -> None:
    (tmp_path / "own" / "train_val.prototxt").write_text("layer { nmae: 'a' }")
    (found,) = lint_solvers({"a": {}})
    assert (found.id, found.severity) == ("unreadable", "error")
    assert found.where.endswith("train_val.prototxt:1:9")
    assert "did you mean 'name'?" in found.write


def test_a_command_in_another_folder_is_found(lint_solvers: LintSolvers, tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("caffe train --solver=models/o-wn/solver_a.prototxt")
    (found,) = lint_solvers({"a": {}}, script=script)
    assert (found.id, found.where) == ("solver-path", f"{script}:1")
    assert found.write == "--solver=models/own/solver_a.prototxt"
    script.write_text("caffe train --solver=own/solver_a.prototxt")
    assert lint_solvers({"a": {}}, script=script, caffe_root=tmp_path) == []
    (found,) = lint_solvers({"a": {}}, script=script, caffe_root=tmp_path / "own")[:1]
    assert found.id == "solver-path"


def test_the_command_with_most_folders_in_common_is_a_solver_s_own() -> None:
    script = parse_script(
        "caffe train --solver=a/solver.prototxt\ncaffe train --solver=b/solver.prototxt\n"
        "caffe train --solver=other.prototxt"
    )
    found = find_training(script, "x/b/solver.prototxt")
    assert found is script.trainings[1]
    assert find_training(script, "x/c/solver_1.prototxt") is None


def test_each_phase_has_the_ranks_of_its_own_command(lint_solvers: LintSolvers, tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    command = "mpirun -n {} caffe train --solver=own/solver_{}.prototxt {}\n"
    weights = "--weights=own_a_iter_500.caffemodel"
    script.write_text(command.format(2, "a", "") + command.format(1, "b", weights))
    solvers = {"a": {**HALF, "max_iter": "500 # 32000 / 64 * 1 epoch"}, "b": {"base_lr": 0.5}}
    (found,) = lint_solvers(solvers, script=script)
    assert (found.id, found.phase, found.values["batch"]) == ("global-batch", "b", 32)
    (found,) = lint_solvers(solvers, script=script, ranks=4)[:1]
    assert (found.id, found.phase, found.values["batch"]) == ("global-batch", "a", 128)


def test_the_nets_of_2014_are_looked_at_in_their_own_phase(lint_solvers: LintSolvers, tmp_path: Path) -> None:
    """A file for each phase, without a rule of any layer."""
    own, plain = tmp_path / "own", net_text("TRAIN").replace("include { phase: TRAIN }", "")
    (own / "train.prototxt").write_text(plain.replace("shuffle: true", ""))
    ratio = "crop_size: 28 random_aspect_ratio_param { aspect_ratio_change: 0.75 }"
    (own / "train.prototxt").write_text(plain.replace("shuffle: true", "").replace("crop_size: 28", ratio))
    (own / "test.prototxt").write_text(plain.replace("TRAIN_lmdb", "TEST_lmdb").replace("shuffle: true", ""))
    solver = {
        "net": None, "train_net": '"own/train.prototxt"', "test_net": '"own/test.prototxt"',
        "test_iter": 5, "test_interval": 100,
    }  # fmt: skip
    found = lint_solvers({"a": solver})
    assert [one.id for one in found] == ["train-unshuffled"]
    assert "train.prototxt" in found[0].where
    files = [own / name for name in ("solver_a.prototxt", "train.prototxt", "test.prototxt")]
    assert [one.id for one in lint([str(path) for path in files], Options())] == ["train-unshuffled"]


def test_a_test_net_that_is_not_under_the_caffe_root_is_an_error(
    lint_solvers: LintSolvers, tmp_path: Path
) -> None:
    (found,) = lint_solvers({"a": {"test_net": '"own/no.prototxt"', "test_iter": 1, "test_interval": 1}},
                            caffe_root=tmp_path)  # fmt: skip
    assert (found.id, found.severity) == ("net-missing", "error")
