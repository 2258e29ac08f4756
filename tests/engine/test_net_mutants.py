"""Real nets with random mistakes are run, checked and summarized, or refused in one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.deploy import derive_deploy
from caffe_recipes.caffe.prototxt import load_document
from caffe_recipes.caffe.upgrade import upgrade_net
from caffe_recipes.engine.zoo import train_twice
from caffe_recipes.errors import CaffeRecipesError
from caffe_recipes.review.inspect.summary import SummaryOptions, read_net, summarize
from caffe_recipes.review.lint.check import check_net
from tests.engine.net_mutants import mutant


def _lint(path: Path) -> None:
    check_net(load_document(path, pb.NetParameter), classes=10)


def _deploy(path: Path) -> None:
    derive_deploy(upgrade_net(load_document(path, pb.NetParameter).message).message)


def _summarize(path: Path) -> None:
    summarize(read_net(str(path), SummaryOptions()))


STEPS: tuple[Callable[[Path], None], ...] = (train_twice, _lint, _summarize, _deploy)


def _count_runs(folder: Path, seeds: range) -> dict[str, int]:
    """Return how many mutants each step took; the others were refused in one line."""
    counts = dict.fromkeys((step.__name__ for step in STEPS), 0)
    path = folder / "net.prototxt"
    for seed in seeds:
        path.write_text(mutant(seed))
        for step in STEPS:
            try:
                step(path)
            except CaffeRecipesError as error:
                assert "please report it" not in str(error), f"mutant({seed}): {error}"
                continue
            except Exception as error:
                raise AssertionError(f"mutant({seed}): {step.__name__}") from error
            counts[step.__name__] += 1
    return counts


def test_50_mutated_nets_end_in_no_traceback(tmp_path: Path) -> None:
    assert min(_count_runs(tmp_path, range(50)).values()) > 5


@pytest.mark.slow
def test_500_mutated_nets_end_in_no_traceback(tmp_path: Path) -> None:
    assert min(_count_runs(tmp_path, range(50, 550)).values()) > 50
