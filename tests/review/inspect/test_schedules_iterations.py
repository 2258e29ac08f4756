"""Epochs per iteration: from the options of the user, and the nets beside the solver files."""

from __future__ import annotations

from pathlib import Path

import pytest

from caffe_recipes.errors import InputError
from caffe_recipes.review.inspect.schedules import find_epochs_per_iter
from tests.review.conftest import net_text, solver_text


@pytest.fixture
def solvers(tmp_path: Path) -> list[str]:
    """Write two solvers with their net beside them, of 32 images a rank, and one without."""
    for folder, names in {"own": ["a", "b"], "alone": ["c"]}.items():
        (tmp_path / folder).mkdir()
        for name in names:
            (tmp_path / folder / f"{name}.prototxt").write_text(solver_text({}))
    (tmp_path / "own" / "train_val.prototxt").write_text(net_text("TRAIN"))
    return [str(tmp_path / name) for name in ("own/a.prototxt", "own/b.prototxt", "alone/c.prototxt")]


def test_without_any_claim_the_epochs_are_unknown(solvers: list[str]) -> None:
    assert find_epochs_per_iter(solvers, None, None, None) is None


def test_the_batch_is_that_of_the_net_beside_the_solver(solvers: list[str]) -> None:
    assert find_epochs_per_iter(solvers[:2], 6400, 2, None) == pytest.approx(0.01)
    assert find_epochs_per_iter(solvers[:2], 6400, None, None) == pytest.approx(0.005)


def test_a_given_batch_comes_first(solvers: list[str]) -> None:
    assert find_epochs_per_iter(solvers, 6400, 2, 16) == pytest.approx(0.005)


@pytest.mark.parametrize(
    ("files", "known", "message"),
    [
        (2, (None, 2, None), "epochs need --images;"),
        (2, (None, None, 32), "epochs need --images;"),
        (3, (None, 2, None), "epochs need --images and --batch (found no net with a batch_size beside"),
        (3, (6400, 2, None), "epochs need --batch (found no net with a batch_size beside"),
        (0, (6400, None, None), "epochs need --batch"),
    ],
)
def test_everything_missing_is_named(
    solvers: list[str], files: int, known: tuple[int | None, int | None, int | None], message: str
) -> None:
    with pytest.raises(InputError) as caught:
        find_epochs_per_iter(solvers[:files], *known)
    assert message in str(caught.value)


def test_nets_that_differ_need_a_batch(solvers: list[str]) -> None:
    other = Path(solvers[2]).with_name("train_val.prototxt")
    other.write_text(net_text("TRAIN").replace("batch_size: 32", "batch_size: 16"))
    with pytest.raises(InputError, match=r"different batch sizes: 32 of .*, 16 of .*give --batch"):
        find_epochs_per_iter([solvers[0], solvers[2]], 6400, 2, None)
