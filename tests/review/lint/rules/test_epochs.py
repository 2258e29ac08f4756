"""Epochs that comments claim, and what the schedule was made for."""

from __future__ import annotations

import pytest

from caffe_recipes.caffe.epoch_comments import EpochSize, parse_epoch_claims, parse_epoch_size
from caffe_recipes.review.lint.rules.epochs import check_title
from caffe_recipes.wording import describe_count
from tests.review.conftest import LintSolvers

BASIS = {"images": 32_000, "ranks": 2}  # 500 iterations of 64 an epoch


@pytest.mark.parametrize(
    ("text", "claims"),
    [
        ("25 epochs", (25,)),
        ("1281167 / 4096  * 5 epochs", (5,)),
        ("90-epoch schedule", (90,)),
        ("0.5 epoch", (0.5,)),
        ("1,000 Epochs", (1000,)),
        ("1 epoch = 312 iterations", ()),
        ("1 epoch is 312 iterations", ()),
        ("epochs", ()),
        ("2017 was good, 3 times", ()),
    ],
)
def test_claims_are_found_in_a_comment(text: str, claims: tuple[float, ...]) -> None:
    assert parse_epoch_claims(text) == claims


@pytest.mark.parametrize(
    ("text", "basis"),
    [
        ("1281167 / 4096  * 5 epochs", EpochSize(1281167, 4096)),
        ("1,281,167/4,096", EpochSize(1281167, 4096)),
        ("a, phase 1 of 2. 4,096 images an iteration (128 ranks x 32), 1,281,167 an epoch.",
         EpochSize(1281167, 4096)),
        ("3 / 4 of an epoch", None),
        ("1281167 / 0 * 5 epochs", None),
        ("4096 / 1281167", None),
    ],
)  # fmt: skip
def test_images_over_batch_are_found_in_a_comment(text: str, basis: EpochSize | None) -> None:
    assert parse_epoch_size(text) == basis


@pytest.mark.parametrize(
    ("comment", "claimed"),
    [
        ("2 epochs", None),
        ("2.04 epochs", None),
        ("2.05 epochs", 2.05),
        ("3 epochs", 3),
        ("of 9 or 2 epochs", None),
    ],
)
def test_a_comment_is_checked_against_the_given_images_and_batch(
    lint_solvers: LintSolvers, comment: str, claimed: float | None
) -> None:
    found = lint_solvers({"a": {"max_iter": f"1000 # {comment}"}}, **BASIS)
    assert [one.values["claimed"] for one in found] == ([] if claimed is None else [claimed])


def test_a_wrong_claim_is_reported_with_the_intended_iterations(lint_solvers: LintSolvers) -> None:
    (found,) = lint_solvers({"a": {"max_iter": "1000 # 3 epochs"}}, **BASIS)
    assert (found.id, found.severity) == ("epochs-claim", "warning")
    assert found.where.endswith("solver_a.prototxt:5:1")
    assert found.what == "max_iter 1000 is 2 epochs, but the comment says 3"
    assert found.effect == "3 epochs of 32,000 images at 64 are 1500 iterations"
    assert found.values["meant"] == 1500


def test_the_comment_of_each_step_is_checked_against_it(lint_solvers: LintSolvers) -> None:
    steps = {
        "lr_policy": '"multistep"',
        "power": None,
        "gamma": 1e-6,
        "stepvalue": "500 # 1 epoch\nstepvalue: 800 # 1.5 epochs",
    }
    (found,) = lint_solvers({"a": steps}, **BASIS)
    assert found.what == "stepvalue[1] 800 is 1.6 epochs, but the comment says 1.5"


def test_the_arithmetic_in_a_comment_takes_precedence_over_options(lint_solvers: LintSolvers) -> None:
    found = lint_solvers({"a": {"max_iter": "1000 # 32000 / 64 * 2 epochs"}}, images=32_000, ranks=20)
    assert [one.id for one in found] == ["global-batch"]


def test_a_comment_of_one_phase_gives_the_others_theirs(lint_solvers: LintSolvers) -> None:
    first = {"max_iter": "1000 # 32000 / 64 * 2 epochs", "lr_policy": '"fixed"', "power": None}
    (found,) = lint_solvers({"a": first, "b": {"max_iter": "1000 # 4 epochs"}})
    assert (found.id, found.phase) == ("epochs-claim", "b")


def test_a_comment_is_not_judged_without_images_and_batch(lint_solvers: LintSolvers) -> None:
    assert lint_solvers({"a": {"max_iter": "1000 # 700 epochs"}}) == []
    assert lint_solvers({"a": {"max_iter": "1000 # 700 epochs"}}, images=32_000) == []


@pytest.mark.parametrize(("claim", "ids"), [("0.08", []), ("0.07", ["epochs-claim"])])
def test_a_claim_is_right_if_it_is_rounded_to_two_decimals(
    lint_solvers: LintSolvers, claim: str, ids: list[str]
) -> None:
    found = lint_solvers({"a": {"max_iter": f"41 # {claim} epochs"}}, **BASIS)
    assert [one.id for one in found if one.id == "epochs-claim"] == ids


def test_iter_size_makes_the_batch_larger(lint_solvers: LintSolvers) -> None:
    assert lint_solvers({"a": {"max_iter": "1000 # 8 epochs", "iter_size": 4}}, **BASIS) == []


@pytest.mark.parametrize(("ranks", "batch"), [(2, None), (4, 128), (1, 32)])
def test_the_global_batch_is_the_one_that_the_schedule_was_made_for(
    lint_solvers: LintSolvers, ranks: int, batch: int | None
) -> None:
    found = lint_solvers({"a": {"max_iter": "1000 # 32000 / 64 * 2 epochs"}}, ranks=ranks)
    assert [one.values["batch"] for one in found if one.id == "global-batch"] == ([batch] if batch else [])
    if batch:
        assert f"{describe_count(ranks, 'rank')} x 32 are {batch} images per iteration" in found[0].what
        assert found[0].where.endswith("train_val.prototxt:5:37")


def test_a_batch_that_no_number_of_ranks_makes_is_found_without_ranks(lint_solvers: LintSolvers) -> None:
    (found,) = lint_solvers({"a": {"max_iter": "1000 # 32000 / 80 * 2.5 epochs"}})
    assert (found.id, found.values["made_for"]) == ("global-batch", 80)


def test_other_images_than_the_comments_count_on_are_found(lint_solvers: LintSolvers) -> None:
    (found,) = lint_solvers({"a": {"max_iter": "1000 # 32000 / 64 * 2 epochs"}}, images=50_000)
    assert found.id == "images-differ"


@pytest.mark.parametrize(
    ("title", "count"), [("in 90 epochs", 0), ("in 85.5 epochs", 0), ("in 72 epochs", 1), ("in an hour", 0)]
)
def test_a_title_names_the_epochs_of_all_phases_or_of_the_last_model(title: str, count: int) -> None:
    found = list(check_title(title, "r.yaml:2", whole=90.2, model=85.4))
    assert [one.id for one in found] == ["title-epochs"] * count


def test_sub_batches_are_images_of_an_iteration_too(lint_solvers: LintSolvers) -> None:
    halved = {
        "lr_policy": '"poly_cyc"',
        "power": 1,
        "max_iter": "500 # 32000 / 64 * 1 epoch",
        "lr_iter": 1000,
    }
    last = {"base_lr": 0.501, "max_iter": "1000 # 2 epochs"}
    assert lint_solvers({"a": halved, "b": last}) == []
    (found, batch) = lint_solvers({"a": halved, "b": {**last, "iter_size": 2}})
    assert (batch.id, batch.values["after"]) == ("batch-changes", 64)
    assert (found.id, found.phase) == ("epochs-claim", "b")
    assert found.values["epochs"] == pytest.approx(4)
    both = lint_solvers({"a": {**halved, "iter_size": 2}, "b": {**last, "iter_size": 2}})
    assert both == []


@pytest.mark.parametrize(
    ("solver", "options", "images"),
    [
        ({"test_iter": 10}, {"test_images": 3200}, 3200),
        ({"test_iter": "10 # 100 = 3200/32"}, {}, 3200),
        ({"test_iter": 100}, {"test_images": 3200}, 0),
        ({"test_iter": 10}, {}, 0),
    ],
)
def test_a_test_of_a_part_of_the_images_is_found(
    lint_solvers: LintSolvers, solver: dict[str, object], options: dict[str, int], images: int
) -> None:
    found = lint_solvers({"a": {**solver, "test_interval": 100}}, **options)
    assert [(one.id, one.values["images"]) for one in found] == [("test-images-left", images)] * bool(images)


@pytest.mark.parametrize(
    ("test_iter", "images", "needed"),
    [
        (20, 320, 10),
        ("200 # 100 = 3200/32", None, 100),
        (11, 321, 0),
        (10, 320, 0),
        (100, 3180, 0),
        (12, 321, 11),
    ],
)
def test_a_test_that_repeats_images_is_found(
    lint_solvers: LintSolvers, test_iter: object, images: int | None, needed: int
) -> None:
    solver = {"test_iter": test_iter, "test_interval": 100}
    found = lint_solvers({"a": solver}, test_images=images)
    assert [(one.id, one.write) for one in found] == [
        ("test-images-repeated", f"test_iter: {needed}")
    ] * bool(needed)


def test_images_over_batch_at_a_test_iter_are_not_those_of_training(lint_solvers: LintSolvers) -> None:
    comment = {"test_interval": 100, "test_iter": "1563 # 50000/32"}
    assert lint_solvers({"a": {**comment, "max_iter": "1000 # 5 epochs"}}) == []
