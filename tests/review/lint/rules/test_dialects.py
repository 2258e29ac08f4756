"""`lint --dialect`: what another Caffe would not accept, as findings with their positions."""

from __future__ import annotations

from pathlib import Path

import pytest

import caffe_recipes as cr
from caffe_recipes.caffe.dialects import load_dialects
from caffe_recipes.errors import InputError, PrototxtError
from caffe_recipes.review.lint.findings import Finding
from caffe_recipes.review.lint.rules.dialects import check_dialect

AUTHORS = Path(__file__).resolve().parents[5] / "shared/reference/surfsara"
OTHERS = ("intel", "bvlc", "nvcaffe")

needs_authors = pytest.mark.skipif(not AUTHORS.is_dir(), reason="the published files are not here")


def ids(findings: list[Finding]) -> list[tuple[str, str]]:
    """Shorten findings to id and line."""
    return [(finding.id, finding.where.split(":")[1]) for finding in findings]


def check_file(path: Path, dialect: str) -> list[Finding]:
    return check_text(str(path), path.read_text(), dialect)


def check_text(path: str, text: str, dialect: str) -> list[Finding]:
    return [*check_dialect(text, path, dialect)]


@needs_authors
def test_the_authors_own_caffe_accepts_all_their_files_without_findings() -> None:
    files = sorted(AUTHORS.rglob("*.prototxt"))
    assert len(files) == 11
    assert [check_file(path, "surfsara") for path in files] == [[]] * 11


@needs_authors
def test_intel_s_caffe_lacks_poly_cyc_in_four_solvers_and_nothing_in_the_nets() -> None:
    found = {path.stem: ids(check_file(path, "intel")) for path in AUTHORS.rglob("*.prototxt")}
    lacking = [("dialect-lr-policy", "4"), ("dialect-field", "7")]
    assert {stem: findings for stem, findings in found.items() if findings} == {
        f"solver_{phase}": lacking for phase in ("init", "cyc1", "cyc2", "cyc3")
    }


@needs_authors
@pytest.mark.parametrize(
    ("dialect", "extra"),
    [("bvlc", set()), ("nvcaffe", {"DataParameter.prefetch", "BatchNorm", "batch_size"})],
)
def test_the_other_caffes_lack_more_of_the_published_net(dialect: str, extra: set[str]) -> None:
    net = check_file(AUTHORS / "resnet50_custom_lr/train_val.prototxt", dialect)
    assert {finding.values["name"] for finding in net} == extra | {
        "BatchNormParameter.filler",
        "DataParameter.shuffle",
        "TransformationParameter.random_aspect_ratio_param",
        "TransformationParameter.random_resize_param",
    }
    filler = next(f for f in net if f.values["name"] == "BatchNormParameter.filler")
    assert filler.values["count"] == 53
    assert filler.where.endswith("train_val.prototxt:96:5")
    assert "(53 times in this file; this is the first)" in filler.what
    solver = check_file(AUTHORS / "resnet50_custom_lr/solver_init.prototxt", dialect)
    assert [f.values["name"] for f in solver] == [
        "poly_cyc",
        "SolverParameter.lr_iter",
        "SolverParameter.warmup_iter",
        "SolverParameter.warmup_start_lr",
    ]
    collapse = check_file(AUTHORS / "resnet50_custom_lr/solver_collapse.prototxt", dialect)
    assert collapse == []


@pytest.mark.parametrize("name", ["digits-local", "stampede2-64n-72ep"])
def test_generated_files_are_in_the_dialect_of_our_caffe(name: str) -> None:
    files = cr.generate(cr.load_recipe(name))
    texts = {path: text for path, text in files.items() if path.endswith(".prototxt")}
    assert texts
    assert not any(check_text(path, text, "surfsara") for path, text in texts.items())


def test_a_file_of_nvcaffe_s_is_read_and_its_own_caffe_takes_it() -> None:
    text = 'net: "n"\nbase_lr: 1\nlr_policy: "poly"\nrampup_interval: 100\nrampup_lr: 0.1\nlarc: true\n'
    assert check_text("s.prototxt", text, "nvcaffe") == []
    found = check_text("s.prototxt", text, "surfsara")
    assert [finding.where for finding in found] == [f"s.prototxt:{line}:1" for line in (4, 5, 6)]
    assert all(finding.severity == "error" for finding in found)
    assert found[0].write == "remove it; here the warm-up is warmup_iter, which is linear, not quadratic"


def test_a_multi_phase_solver_is_not_a_file_of_bvlc_s() -> None:
    text = "params_pair { solver_params { base_lr: 1 } batch_size: 3 }"
    (finding,) = check_text("m.prototxt", text, "bvlc")
    assert (finding.id, finding.where) == ("dialect-file", "m.prototxt")


@pytest.mark.parametrize("dialect", list(load_dialects()))
def test_text_that_no_caffe_reads_is_refused_for_each(dialect: str) -> None:
    with pytest.raises(PrototxtError, match=r"x.prototxt:2:8: 'gamma' takes a number, not 'x'"):
        check_text("x.prototxt", "base_lr: 1\ngamma: x", dialect)


def test_an_unknown_dialect_is_bad_input() -> None:
    with pytest.raises(InputError, match="did you mean 'bvlc'"):
        check_text("x.prototxt", "base_lr: 1", "blvc")
