"""The authors' files: exactly these findings above a note, with these values, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from caffe_recipes.review.lint.findings import Finding
from caffe_recipes.review.lint.folders import lint_targets
from caffe_recipes.review.lint.inputs import LintOptions

PUBLISHED = Path(__file__).resolve().parents[4] / "shared" / "reference" / "surfsara"
pytestmark = pytest.mark.skipif(
    not PUBLISHED.is_dir(), reason="the published files are not beside this checkout"
)
LONG = [f"resnet50_custom_lr/solver_{name}.prototxt" for name in ("init", "cyc1", "cyc2", "cyc3", "collapse")]
WIDE = [f"resnet50_448nodes/{name}.prototxt" for name in ("solver", "solver_collapse")]

ExpectedFinding = tuple[str, str, str, dict[str, float | str]]

EXPECTED_LONG: list[ExpectedFinding] = [
    ("warmup-end-jump", "init", "1.599 to 1.467", {"before": 1.59904, "after": 1.46667}),
    ("join-jump", "cyc1", "0.9334 to 1.02", {"before": 0.933419, "after": 1.02}),
    ("warmup-end-jump", "cyc2", "0.7635 to 0.5738", {"before": 0.763491, "after": 0.573849}),
    ("epochs-claim", "cyc2", "says 3", {"iterations": 1000, "meant": 938}),
    ("warmup-end-jump", "cyc3", "0.5716 to 0.4296", {"before": 0.571618, "after": 0.429636}),
    ("epochs-claim", "cyc3", "says 3", {"iterations": 1000, "meant": 938}),
    ("join-jump", "cyc3", "0.1028 to 0.19", {"before": 0.102790, "after": 0.19}),
    ("last-net-without-test", "collapse", "train_val_noaug.prototxt", {}),
    ("join-jump", "collapse", "0.07696 to 0.143", {"before": 0.0769582, "after": 0.143}),
    ("collapse-weight-decay", "collapse", "4 times", {"before": 0.00005, "after": 0.0002}),
]
EXPECTED_WIDE: list[ExpectedFinding] = [
    ("warmup-end-jump", "solver", "4.789 to 4.534", {"before": 4.78946, "after": 4.53373}),
    ("net-folder", "collapse", "resnet_50_448nodes",
     {"folder": "resnet_50_448nodes", "own": "resnet50_448nodes"}),
    ("last-net-without-test", "collapse", "train_val_noaug.prototxt", {}),
    ("join-jump", "collapse", "0.24 (at iteration 7638) to 0.254",
     {"before": 0.24, "after": 0.254, "iteration": 7638}),
]  # fmt: skip


def assert_findings(found: list[Finding], expected: list[ExpectedFinding]) -> None:
    """Assert that exactly these findings are above a note, each with its text and its values."""
    grave = [one for one in found if one.severity != "note"]
    assert [(one.id, one.phase) for one in grave] == [(rule, phase) for rule, phase, _, _ in expected]
    for one, (_, _, text, values) in zip(grave, expected, strict=True):
        assert text in one.what
        assert {name: one.values[name] for name in values} == {
            name: value if isinstance(value, str) else pytest.approx(value, rel=1e-5)
            for name, value in values.items()
        }


def lint_published(names: list[str], **options: int | Path) -> list[Finding]:
    return lint_targets([str(PUBLISHED / name) for name in names], LintOptions(**options))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "known", [{}, {"ranks": 128}, {"images": 1281167}, {"ranks": 128, "images": 1281167}]
)
def test_the_chain_of_64_nodes(known: dict[str, int]) -> None:
    assert_findings(lint_published(LONG, **known), EXPECTED_LONG)


@pytest.mark.parametrize(
    "known", [{}, {"ranks": 896}, {"images": 1281167}, {"ranks": 896, "images": 1281167}]
)
def test_the_pair_of_448_nodes(known: dict[str, int]) -> None:
    assert_findings(lint_published(WIDE, **known), EXPECTED_WIDE)


def test_zero_started_batch_norms_in_the_last_blocks_only_are_a_note_of_each_net() -> None:
    for names in (LONG, WIDE):
        found = [one for one in lint_published(names) if one.id == "zero-start-partly"]
        assert {Path(one.where.split(":")[0]).name for one in found} == {
            "train_val.prototxt", "train_val_noaug.prototxt"
        }  # fmt: skip
        assert all("res2c, res3d, res4f, res5c" in one.what for one in found)


def test_the_folder_is_the_same_chain_in_the_same_order() -> None:
    found = lint_targets([str(PUBLISHED / "resnet50_custom_lr")], LintOptions())
    assert_findings(found, EXPECTED_LONG)
    assert found[0].id == "order-guessed"
    assert "init.prototxt, solver_cyc1.prototxt, solver_cyc2" in found[0].what
    both = lint_targets([str(PUBLISHED)], LintOptions())
    assert_findings(both, EXPECTED_WIDE + EXPECTED_LONG)


def test_a_caffe_root_turns_the_folder_into_an_error(tmp_path: Path) -> None:
    home = tmp_path / "models" / "intel_optimized_models" / "multinode" / "resnet50_448nodes"
    home.mkdir(parents=True)
    for path in (PUBLISHED / "resnet50_448nodes").iterdir():
        (home / path.name).write_text(path.read_text())
    paths = [str(home / Path(name).name) for name in WIDE]
    found = lint_targets(paths, LintOptions(caffe_root=tmp_path))
    assert "net-missing" in [one.id for one in found]
    assert_findings(
        [one for one in found if one.id != "net-missing"],
        [one for one in EXPECTED_WIDE if one[0] != "net-folder"],
    )


def test_a_script_of_the_authors_kind_adds_the_cores_and_its_own_slips(tmp_path: Path) -> None:
    models = "models/intel_optimized_models/multinode"
    script = tmp_path / "README.md"
    script.write_text(f"""
export MLSL_NUM_SERVERS=2
export MLSL_SERVER_AFFINITY="39,38,43,42"
mpiexec.hydra -PSM2 -l -n 896 -ppn 2 -f hostfile -genv OMP_NUM_THREADS 22
 ./build/tools/caffe train --solver={models}/resnet_50_448nodes/solver.prototxt
mpiexec.hydra -PSM2 -l -n 896 -ppn 2 -f hostfile -genv OMP_NUM_THREADS 22 \\
 ./build/tools/caffe train --solver={models}/resnet50_448nodes/solver_collapse.prototxt \\
 --weights=resnet_50_448nodes_iter_7638.prototxt
""")
    found = lint_published(WIDE, script=script)
    (cores,) = [one for one in found if one.id == "mlsl-on-openmp-cores"]
    assert (cores.severity, cores.values["cores"]) == ("note", "38,39,42,43")
    own = ("solver-path", "weights-no-caffemodel")
    assert [one.id for one in found if one.id in own] == list(own)
    assert_findings([one for one in found if one.id not in own], EXPECTED_WIDE)


def test_half_the_ranks_are_half_the_batch_that_the_schedule_was_made_for() -> None:
    found = [one for one in lint_published(LONG, ranks=64) if one.severity != "note"]
    extra = [one for one in found if one.id == "global-batch"]
    assert [one.values["batch"] for one in extra] == [2048, 2048]
    assert_findings([one for one in found if one not in extra], EXPECTED_LONG)
