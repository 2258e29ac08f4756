"""Files as a chain: their names, several solvers in one file, single files, and commands that use them."""

from __future__ import annotations

from pathlib import Path

import pytest

from caffe_recipes.errors import PrototxtError
from caffe_recipes.review.lint.folders import lint_targets
from caffe_recipes.review.lint.inputs import LintOptions
from caffe_recipes.review.lint.scripts import parse_script
from caffe_recipes.review.lint.solver_chains import find_training
from tests.review.conftest import LintSolvers, net_text, solver_text

HALF = {"lr_policy": '"poly_cyc"', "power": 1, "max_iter": 500, "lr_iter": 1000}


def test_the_order_given_is_the_order_of_the_chain(lint_solvers: LintSolvers, tmp_path: Path) -> None:
    assert lint_solvers({"a": HALF, "b": {"base_lr": 0.5}}) == []
    paths = [str(tmp_path / "own" / f"solver_{name}.prototxt") for name in "ba"]
    assert [one.id for one in lint_targets(paths, LintOptions())] == ["join-jump", "final-rate-high"]


def test_a_solver_on_its_own_is_not_a_last_phase(lint_solvers: LintSolvers) -> None:
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
    (found,) = lint_targets([str(own / "solvers.prototxt")], LintOptions())
    assert found.id == "join-jump"
    assert found.values["before"] == pytest.approx(0.501)
    assert found.where == f"{own / 'solvers.prototxt'}:14:1"


def test_a_net_that_several_phases_use_is_checked_once(lint_solvers: LintSolvers, tmp_path: Path) -> None:
    path = tmp_path / "own" / "train_val.prototxt"
    path.write_text(net_text("TRAIN", "TEST").replace("shuffle: true", ""))
    found = lint_solvers({"a": HALF, "b": {"base_lr": 0.5}})
    assert [one.id for one in found] == ["train-unshuffled"]
    again = lint_targets([*(str(path) for path in sorted((tmp_path / "own").iterdir()))], LintOptions())
    assert [one.id for one in again] == ["train-unshuffled"]


def test_a_net_alone_is_checked_without_a_solver(lint_solvers: LintSolvers, tmp_path: Path) -> None:
    path = tmp_path / "own" / "train_val.prototxt"
    assert lint_targets([str(path)], LintOptions()) == []
    assert [one.id for one in lint_targets([str(path)], LintOptions(classes=11))] == ["outputs-below-classes"]


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
    with pytest.raises(PrototxtError, match=r"solver_a.prototxt:9:8: 'gamma' takes a number"):
        lint_solvers({"a": {"gamma": "x"}})


def test_a_net_that_cannot_be_read_is_a_finding_of_its_solver_s(
    lint_solvers: LintSolvers, tmp_path: Path
) -> None:
    (tmp_path / "own" / "train_val.prototxt").write_text("layer { name: a }")
    (found,) = lint_solvers({"a": {}})
    assert (found.id, found.severity) == ("unreadable", "error")
    assert found.where.endswith("train_val.prototxt:1:15")
    assert found.write == 'write "a"'


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


def test_the_nets_of_2014_are_checked_in_their_own_phase(lint_solvers: LintSolvers, tmp_path: Path) -> None:
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
    assert [one.id for one in lint_targets([str(path) for path in files], LintOptions())] == [
        "train-unshuffled"
    ]


def test_a_test_net_that_is_not_under_the_caffe_root_is_an_error(
    lint_solvers: LintSolvers, tmp_path: Path
) -> None:
    (found,) = lint_solvers({"a": {"test_net": '"own/no.prototxt"', "test_iter": 1, "test_interval": 1}},
                            caffe_root=tmp_path)  # fmt: skip
    assert (found.id, found.severity) == ("net-missing", "error")


def test_unrelated_solvers_are_checked_one_by_one_with_a_note(
    lint_solvers: LintSolvers, tmp_path: Path
) -> None:
    own = tmp_path / "own"
    solvers = {"lenet": "", "lenet_cyc2": "", "alex": "alex", "vgg": "vgg"}
    for name, net in solvers.items():
        (own / f"{net or 'lenet'}.prototxt").write_text(net_text("TRAIN", "TEST"))
        text = solver_text({"net": f'"own/{net or "lenet"}.prototxt"', "snapshot_prefix": f'"/tmp/x/{name}"'})
        (own / f"{name}_solver.prototxt").write_text(text)
    found = lint_targets([str(own / f"{name}_solver.prototxt") for name in solvers], LintOptions())
    (apart,) = [one for one in found if one.id == "taken-alone"]
    assert "lenet_solver.prototxt, lenet_cyc2_solver.prototxt as one chain; " in apart.what
    assert "alex_solver.prototxt, vgg_solver.prototxt each by itself" in apart.what
    assert {one.phase for one in found if one.id == "join-jump"} == {"lenet_cyc2"}


def test_a_deploy_net_that_no_longer_matches_its_train_net_is_found(tmp_path: Path) -> None:
    paths = [tmp_path / f"{name}.prototxt" for name in ("train_val", "deploy")]
    ip = """layer { name: "%s" type: "InnerProduct" bottom: "%s" top: "%s"
      inner_product_param { num_output: %d weight_filler { type: "xavier" } } }"""
    fed = """layer { name: "data" type: "Input" top: "data"
      input_param { shape { dim: 1 dim: 3 dim: 8 dim: 8 } } }"""
    data = """layer { name: "data" type: "Data" top: "data" top: "label" include { phase: TRAIN }
      transform_param { crop_size: 8 } data_param { source: "a" batch_size: 2 backend: LMDB
      shuffle: true } }"""
    loss = 'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "b" bottom: "label" top: "loss" }'
    paths[0].write_text(data + ip % ("a", "data", "a", 5) + ip % ("b", "a", "b", 4) + loss)
    for deploy, ids in (
        (ip % ("a", "data", "a", 5) + ip % ("b", "a", "b", 4), []),
        (ip % ("a", "data", "a", 5) + ip % ("b", "a", "b", 3), ["deploy-misfit"]),
        (
            (ip % ("a", "data", "a", 5)).replace("{ num", "{ bias_term: false num") + ip % ("b", "a", "b", 4),
            ["deploy-misfit"],
        ),
        (ip % ("a", "data", "a", 5) + ip % ("c", "a", "c", 4), ["deploy-missing"]),
        (ip % ("b", "data", "b", 4), ["deploy-missing", "deploy-misfit"]),
    ):
        paths[1].write_text(fed + deploy)
        found = lint_targets([str(path) for path in paths], LintOptions())
        assert sorted(one.id for one in found) == sorted(ids)
        assert lint_targets([str(tmp_path)], LintOptions()) == found


@pytest.mark.parametrize("old", ['layers { name: "x" }', 'input: "data"'])
def test_a_net_inside_a_solver_is_not_upgraded(lint_solvers: LintSolvers, old: str) -> None:
    (found,) = lint_solvers({"a": {"net": None, "net_param": f"{{ {old} }}"}})
    assert (found.id, found.severity) == ("inline-net-old", "error")
    assert f"`{old.split()[0].rstrip(':')}`" in found.what


def test_text_that_old_protobufs_refuse_is_a_note(lint_solvers: LintSolvers) -> None:
    found = lint_solvers({"a": {"test_iter": "[]", "debug_info": "True"}})
    assert [(one.id, one.severity) for one in found] == [("newer-text", "note")] * 2
    assert "caffe-recipes fmt" in found[0].write
    assert "protobuf 2.5" in found[0].effect
