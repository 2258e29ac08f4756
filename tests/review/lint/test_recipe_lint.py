"""Recipes: what lint finds in what they generate and state, and what they accept."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from caffe_recipes.errors import RecipeError
from caffe_recipes.recipe.shipped import shipped_recipes
from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.render.recipe_files import generate
from caffe_recipes.render.tree import write_files
from caffe_recipes.review.lint.findings import Finding
from caffe_recipes.review.lint.folders import is_at_least, lint_targets
from caffe_recipes.review.lint.inputs import LintOptions
from caffe_recipes.review.lint.recipe_lint import find_errors
from tests.review.lint.conftest import LintRecipe
from tests.shipped import OF_CAFFE

AS_PUBLISHED = ("digits-local", "stampede2-448n-90ep", "stampede2-64n-72ep")
OF_THE_PAPER = {
    "warmup-end-jump",
    "final-rate-kept",
    "collapse-weight-decay",
    "weights-of-other-phase",
}


def grave(found: list[Finding]) -> list[str]:
    return [one.id for one in found if is_at_least(one, "warning")]


@pytest.mark.parametrize("name", OF_CAFFE)
def test_shipped_recipes_have_no_findings_but_accepted_ones(name: str) -> None:
    found = lint_targets([name], LintOptions())
    assert grave(found) == []
    accepted = {one.id for one in found if one.accepted}
    if name in AS_PUBLISHED:
        assert {"warmup-end-jump", "join-jump", "zero-start-partly"} <= accepted
        assert ("mlsl-on-openmp-cores" in accepted) == name.startswith("stampede2")
    if name.startswith("paper-"):
        assert accepted <= OF_THE_PAPER


def test_a_finding_of_a_row_is_placed_in_that_row() -> None:
    found = lint_targets(["paper-t9-65536-128n"], LintOptions())
    text = shipped_recipes()["paper-t9-65536-128n"].file.read_text("utf-8").splitlines()
    (decay,) = [one for one in found if one.id == "collapse-weight-decay"]
    file, _, line = decay.where.partition(":")
    assert file == "paper-vlab.yaml"
    assert "weight_decay_steps: 3" in text[int(line) - 1]


def test_the_generated_solvers_of_a_row_are_read_with_the_nets_that_it_shares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(generate(load_recipe("paper-t8-4096-128n-collapse")), tmp_path)
    monkeypatch.chdir(tmp_path)
    found = {one.id for one in lint_targets(["prototxt/paper-t8-4096-128n-collapse"], LintOptions())}
    assert "bias-before-norm" in found
    assert "net-not-found" not in found


def test_the_64_node_recipe_accepts_the_published_findings_and_no_other() -> None:
    found = [one for one in lint_targets(["stampede2-64n-72ep"], LintOptions()) if one.severity != "note"]
    assert [(one.id, one.phase) for one in found] == [
        ("warmup-end-jump", "init"),
        ("join-jump", "cyc1"),
        ("warmup-end-jump", "cyc2"),
        ("warmup-end-jump", "cyc3"),
        ("join-jump", "cyc3"),
        ("join-jump", "collapse"),
        ("collapse-weight-decay", "collapse"),
    ]
    assert all(one.accepted for one in found)


def test_without_its_acceptances_a_recipe_fails(lint_recipe: LintRecipe) -> None:
    found = lint_recipe("digits-local", lambda raw: raw.pop("accept"))
    assert grave(found).count("join-jump") == 3
    assert not any(one.accepted for one in found)


def test_an_acceptance_of_one_phase_leaves_the_others(lint_recipe: LintRecipe) -> None:
    def change(raw: dict[str, Any]) -> None:
        raw["accept"] = [{"finding": "join-jump", "phase": "cyc3", "reason": "meant"}]

    found = [one for one in lint_recipe("digits-local", change) if one.id == "join-jump"]
    assert {one.phase: one.accepted for one in found} == {"cyc1": "", "cyc3": "meant", "collapse": ""}


def test_an_accept_entry_that_matches_no_finding_is_a_warning_at_its_line(
    lint_recipe: LintRecipe, tmp_path: Path
) -> None:
    def change(raw: dict[str, Any]) -> None:
        raw["accept"] += [{"finding": "join-jump", "phase": "init", "reason": "meant"}]

    (found,) = [one for one in lint_recipe("digits-local", change) if one.id == "unused-accept"]
    assert found.severity == "warning"
    assert "'join-jump' of phase 'init' is accepted, but matches no finding" in found.what
    path, line = found.where.split(":")
    assert Path(path).read_text().splitlines()[int(line) - 1] == "- finding: join-jump"


def test_a_title_is_compared_with_the_phases(lint_recipe: LintRecipe) -> None:
    found = lint_recipe("stampede2-64n-72ep", lambda raw: raw.update(title="ResNet-50 in 90 epochs"))
    (title,) = [one for one in found if one.id == "title-epochs"]
    assert title.where.endswith("changed.yaml:2")
    assert title.values["epochs"] == pytest.approx(72.286, abs=1e-3)


def test_the_way_to_the_last_model_makes_a_title_right(lint_recipe: LintRecipe) -> None:
    def change(raw: dict[str, Any]) -> None:
        raw["title"] = "ResNet-50 in 89.97 epochs"

    assert "title-epochs" not in grave(lint_recipe("stampede2-448n-90ep", change))
    whole = lint_recipe("stampede2-448n-90ep", lambda raw: raw.update(title="in 94.46 epochs"))
    assert "title-epochs" not in grave(whole)
    off = lint_recipe("stampede2-448n-90ep", lambda raw: raw.update(title="in 92 epochs"))
    assert grave(off) == ["title-epochs"]


def test_a_tmp_that_is_too_small_is_an_error(lint_recipe: LintRecipe) -> None:
    found = lint_recipe("stampede2-64n-72ep", lambda raw: raw["cluster"].update(tmp_gb=43))
    (small,) = [one for one in found if one.id == "tmp-too-small"]
    assert small.severity == "error"
    assert small.values["snapshots_gb"] == pytest.approx(5 * 2 * 0.102441076)
    larger = lint_recipe("stampede2-64n-72ep", lambda raw: raw["cluster"].update(tmp_gb=43.1))
    assert grave(larger) == []


def test_cores_that_threads_leave_free_are_right(lint_recipe: LintRecipe) -> None:
    found = lint_recipe(
        "stampede2-64n-72ep", lambda raw: raw["cluster"]["mlsl"].update(server_affinity=[44, 45, 46, 47])
    )
    assert grave(found) == ["unused-accept"]


def test_a_last_net_without_test_is_found_where_nothing_evaluates(lint_recipe: LintRecipe) -> None:
    found = lint_recipe("digits-local", lambda raw: raw.pop("evaluation"))
    assert grave(found) == ["last-net-without-test"]


def test_a_solver_that_generate_refuses_is_refused(lint_recipe: LintRecipe) -> None:
    with pytest.raises(RecipeError, match="the rate of lr_policy poly_cyc is nan"):
        lint_recipe("digits-local", lambda raw: raw["phases"][1].update(lr_iter=100, power=0.5))


def test_a_dialect_without_an_equivalent_names_what_it_lacks() -> None:
    found = lint_targets(["digits-local"], LintOptions(dialect="bvlc"))
    assert {"dialect-lr-policy", "dialect-field"} <= set(grave(found))


def test_a_recipe_for_intel_s_caffe_is_linted_as_it_is_written_for_it() -> None:
    found = lint_targets(["stampede2-64n-72ep"], LintOptions(dialect="intel"))
    assert grave(found) == []
    ours = lint_targets(["stampede2-64n-72ep"], LintOptions())
    assert [(one.id, one.phase) for one in found if one.accepted] == [
        (one.id, one.phase) for one in ours if one.accepted
    ]


@pytest.mark.parametrize(
    ("accept", "expected", "write"),
    [
        (
            {"finding": "join-jmp"},
            "'join-jmp' is accepted, but lint has no rule with this id",
            "finding: join-jump",
        ),
        ({"finding": "xyzzy"}, "'xyzzy' is accepted", "an id from `caffe-recipes lint --rules`"),
        ({"finding": "join-jump", "phase": "cyc4"}, "in phase 'cyc4'", "phase: cyc"),
    ],
)
def test_an_acceptance_of_an_unknown_rule_or_phase_is_an_error(
    lint_recipe: LintRecipe, accept: dict[str, str], expected: str, write: str
) -> None:
    found = lint_recipe("digits-local", lambda raw: raw["accept"].append({**accept, "reason": "meant"}))
    (unknown,) = [one for one in found if one.id in ("accept-unknown", "unused-accept")]
    assert (unknown.id, unknown.severity) == ("accept-unknown", "error")
    assert expected in unknown.what
    assert unknown.write.startswith(write)


def test_a_place_is_in_the_recipe_but_for_a_net_in_the_generated_file_if_that_is_as_generated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for path, text in generate(load_recipe("digits-local")).items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text)

    def places_of(rule: str) -> list[str]:
        return [one.where for one in lint_targets(["digits-local"], LintOptions()) if one.id == rule]

    assert places_of("join-jump")[0].startswith("digits-local.yaml:")
    nets = places_of("zero-start-partly")
    assert nets[0].startswith("prototxt/digits-local/train_val.prototxt:")
    Path("prototxt/digits-local/train_val.prototxt").write_text("stale")
    stale = places_of("zero-start-partly")
    assert sorted(where.partition(":")[0] for where in stale) == [
        "digits-local.yaml",
        "prototxt/digits-local/train_val_noaug.prototxt",
    ]


def test_without_the_generated_files_a_place_is_the_recipe_s_own_line(
    lint_recipe: LintRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def change(raw: dict[str, Any]) -> None:
        raw["solver"]["gamma"] = 0.5

    found = lint_recipe("digits-local", change)
    lines = Path("changed.yaml").read_text().splitlines()

    def lines_of(rule: str, phase: str) -> list[str]:
        places = [one.where for one in found if (one.id, one.phase) == (rule, phase)]
        return [lines[int(where.rpartition(":")[2]) - 1].strip() for where in places]

    assert lines_of("warmup-end-jump", "init") == ["warmup_iter: 112"]
    assert lines_of("solver-field-unread", "cyc1") == ["gamma: 0.5"]
    assert lines_of("zero-start-partly", "") == ["train_val:", "train_val_noaug:"]


def test_files_that_differ_from_what_the_recipe_generates_are_reported_as_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        path: text for path, text in generate(load_recipe("digits-local")).items() if "prototxt/" in path
    }
    monkeypatch.chdir(tmp_path)
    messages: list[str] = []
    lint_targets(["digits-local"], LintOptions(), messages.append)
    write_files(files, tmp_path)
    lint_targets(["digits-local"], LintOptions(), messages.append)
    assert messages == []
    solver = tmp_path / "prototxt" / "digits-local" / "solver_init.prototxt"
    solver.write_text("# an earlier one\n")
    found = lint_targets(["digits-local"], LintOptions(), messages.append)
    assert messages == [
        "prototxt/digits-local/solver_init.prototxt differs from what digits-local generates now, which is "
        "what is checked; run `caffe-recipes generate digits-local`"
    ]
    assert not [one for one in found if "solver_init" in one.where]
    for path in files:
        (tmp_path / path).write_text("")
    lint_targets(["digits-local"], LintOptions(), messages.append)
    assert messages[1].startswith("prototxt/digits-local/solver_init.prototxt, prototxt/")
    assert " in all) differ from " in messages[1]


NO_LOSS = """\
name: mine
title: mine
trainer: ./caffe
prototxt_dir: .
net: {name: mine, classes: 4, prototxt: net.prototxt}
nets: {net: {}, other: {}}
data:
  train: {lmdb: /tmp/train_lmdb, source: train_lmdb, images: 60}
  test: {lmdb: test_lmdb, images: 60, batch_size: 10}
cluster: {nodes: 1, ranks_per_node: 1, batch_per_rank: 8, omp_num_threads: 1}
phases:
  - {name: a, net: net, base_lr: 0.1, lr_policy: fixed, max_iter: 40, snapshot_prefix: a}
  - {name: b, net: net, base_lr: 0.1, lr_policy: fixed, max_iter: 40, snapshot_prefix: b}
"""


def test_the_errors_in_some_phases_are_found_but_for_accepted_ones(tmp_path: Path) -> None:
    (tmp_path / "net.prototxt").write_text(
        'layer { name: "d" type: "Data" top: "x" top: "y" include { phase: TRAIN } }'
        'layer { name: "e" type: "Data" top: "x" top: "y" include { phase: TEST } }'
        'layer { name: "ip" type: "InnerProduct" bottom: "x" top: "z" inner_product_param { num_output: 4 } }'
    )

    def errors(text: str, *phases: str) -> list[str]:
        (tmp_path / "mine.yaml").write_text(text)
        return [one.id for one in find_errors(load_recipe(tmp_path / "mine.yaml"), phases, tmp_path)]

    assert set(errors(NO_LOSS, "a", "b")) == {"no-loss"}
    assert errors(NO_LOSS) == [], "nothing is left to train"
    accepted = f"{NO_LOSS}accept: [{{finding: no-loss, reason: none}}, {{finding: tpyo, reason: none}}]\n"
    assert errors(accepted, "a", "b") == []


@pytest.mark.parametrize(
    ("trainer", "wrong"),
    [("./caffe", {"unknown-layer-type": 2}), ("caffe-torch", {"dialect-layer-type": 1})],
    ids=["caffe", "caffe-torch"],
)
def test_the_trainer_decides_which_layer_types_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trainer: str, wrong: dict[str, int]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.prototxt").write_text(
        'layer { name: "d" type: "Data" top: "x" top: "y" }'
        'layer { name: "c" type: "DepthwiseConvolution" bottom: "x" top: "c"'
        " convolution_param { num_output: 3 kernel_size: 1 } }"
        'layer { name: "s" type: "LogSoftmax" bottom: "c" top: "s" }'
        'layer { name: "ip" type: "InnerProduct" bottom: "s" top: "v" inner_product_param {num_output: 4} }'
        'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "v" bottom: "y" }'
    )
    Path("mine.yaml").write_text(NO_LOSS.replace("./caffe", trainer).replace(", other: {}", ""))
    found = [one for one in lint_targets(["mine.yaml"], LintOptions()) if one.id.endswith("layer-type")]
    assert Counter(one.id for one in found) == wrong
    assert {"LogSoftmax" in one.what for one in found[-1:]} == {True}


def test_a_finding_in_a_net_of_the_recipe_s_own_is_placed_in_its_prototxt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.prototxt").write_text(
        'layer { name: "d" type: "Data" top: "x" top: "y" }\n'
        'layer {\n  name: "dr"\n  type: "Dropout"\n  bottom: "x"\n  top: "z"\n'
        "  dropout_param { dropout_ratio: 1.5 }\n}\n"
        'layer { name: "dr" type: "Dropout" bottom: "z" top: "w" dropout_param { dropout_ratio: 1.5 } }\n'
        'layer { name: "ip" type: "InnerProduct" bottom: "w" top: "v" inner_product_param {num_output: 4} }\n'
        'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "v" bottom: "y" }\n'
    )
    Path("mine.yaml").write_text(NO_LOSS)  # two nets are made from the prototxt

    def places() -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for one in lint_targets(["mine.yaml"], LintOptions()):
            found.setdefault(one.id, []).append(one.where)
        return found

    expected = ["net.prototxt:7:19", "net.prototxt:9:73"]
    assert places()["dropout-ratio"] == expected
    assert set(places()["train-unshuffled"]) == {"mine.yaml:6"}, "the recipe's own data layer"
    write_files(generate(load_recipe("mine.yaml")), tmp_path)
    assert places()["dropout-ratio"] == expected, "also where the generated files are on disk"


@pytest.mark.parametrize(
    ("iterations", "rules"),
    [
        (4, ["evaluation-partial", "test-images-left"]),
        (9, ["evaluation-repeats", "test-images-repeated"]),
        (6, []),
    ],
)
def test_tests_of_data_as_in_the_net_are_compared_with_the_test_images(
    tmp_path: Path, iterations: int, rules: list[str]
) -> None:
    read = (
        'type: "ImageData" top: "x" top: "y" image_data_param { source: "l" batch_size: %s } '
        "include { phase: %s } }\n"
    )
    (tmp_path / "net.prototxt").write_text(
        f'layer {{ name: "d" {read % (8, "TRAIN")}layer {{ name: "e" {read % (10, "TEST")}'
        'layer { name: "ip" type: "InnerProduct" bottom: "x" top: "v" inner_product_param {num_output: 4} }\n'
        'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "v" bottom: "y" }\n'
    )
    data = NO_LOSS[NO_LOSS.index("data:") : NO_LOSS.index("cluster:")]
    text = NO_LOSS.replace(data, "data: as-in-net\nimages: 60\ntest_images: 60\n").replace(", other: {}", "")
    text = text.replace("max_iter", f"test_iter: {iterations}, test_interval: 10, max_iter")
    evaluation = f"evaluation: {{net: net, iterations: {iterations}}}\n"
    (tmp_path / "mine.yaml").write_text(f"{text}{evaluation}")
    found = lint_targets([str(tmp_path / "mine.yaml")], LintOptions())
    assert sorted({one.id for one in found if one.id.startswith(("evaluation-", "test-images"))}) == rules
