"""What lint is given: recipes, folders, files; and what makes it fail."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from caffe_recipes.errors import InputError, RecipeError
from caffe_recipes.review.lint.explain import explain_rule
from caffe_recipes.review.lint.folders import is_at_least, is_recipe, lint_targets
from caffe_recipes.review.lint.inputs import LintOptions
from caffe_recipes.review.lint.registry import finding
from tests.review.conftest import LintSolvers


def test_a_shipped_name_takes_precedence_over_a_folder_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("digits-local", "own"):
        (tmp_path / name).mkdir()
    assert is_recipe("digits-local")
    assert not is_recipe("./digits-local")
    assert not is_recipe("own")
    assert is_recipe("owm")


def test_an_unknown_name_is_not_a_recipe() -> None:
    with pytest.raises(RecipeError, match="unknown recipe 'digits-lokal'; did you mean 'digits-local'"):
        lint_targets(["digits-lokal"], LintOptions())


def test_recipes_are_linted_one_after_the_other_and_files_after_them(
    lint_solvers: LintSolvers, tmp_path: Path
) -> None:
    lint_solvers({"a": {}})
    net = tmp_path / "own" / "train_val.prototxt"
    net.write_text(net.read_text().replace("shuffle: true", ""))
    found = lint_targets(["stampede2-448n-90ep", str(net), "digits-local"], LintOptions())
    targets = dict.fromkeys(one.where.partition(":")[0] for one in found)
    assert list(targets) == ["stampede2-448n-90ep.yaml", "digits-local.yaml", str(net)]


@pytest.mark.parametrize(
    "given", [{"ranks": 2}, {"images": 2}, {"classes": 2}, {"caffe_root": Path()}, {"script": Path("x")}]
)
def test_options_of_files_are_refused_for_recipes(given: dict[str, object]) -> None:
    (name,) = given
    with pytest.raises(InputError, match=f"--{name.replace('_', '-')} applies to files only"):
        lint_targets(["digits-local"], LintOptions(**given))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("severity", "fails"),
    [("error", (True, False, False)), ("warning", (True, True, False)), ("note", (True, True, True)),
     ("never", (False, False, False))],
)  # fmt: skip
def test_a_finding_fails_from_its_severity_on(severity: str, fails: tuple[bool, ...]) -> None:
    rules = ("lr-iter-missing", "join-jump", "order-guessed")
    found = [finding(rule, "a", "b") for rule in rules]
    assert tuple(is_at_least(one, severity) for one in found) == fails
    assert not any(is_at_least(replace(one, accepted="so"), severity) for one in found)


def test_an_unknown_rule_is_refused_with_the_nearest() -> None:
    assert "\n".join(explain_rule("join-jump")).startswith("join-jump: a warning\n")
    with pytest.raises(InputError, match="no rule 'join-jum'; did you mean 'join-jump'"):
        "\n".join(explain_rule("join-jum"))
    with pytest.raises(InputError, match="no rule 'x'; --rules lists them"):
        "\n".join(explain_rule("x"))


@pytest.mark.parametrize("targets", [[""], [" "], ["digits-local", ""]])
def test_an_empty_name_is_refused(targets: list[str]) -> None:
    with pytest.raises(InputError, match="an empty name is given; is a variable unset"):
        lint_targets(targets, LintOptions())
