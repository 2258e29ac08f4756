from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

import caffe_recipes as cr
from caffe_recipes.errors import InputError
from tests.extras import needs_engine
from tests.run.recorded_run import LOG

PAGE = Path(__file__).resolve().parent.parent / "docs" / "python.md"


def test_every_public_function_has_a_line_in_its_page_and_a_docstring() -> None:
    functions = [name for name in cr.__all__ if name != "Recipe"]
    assert sorted(re.findall(r"^\| `cr\.(\w+)\(", PAGE.read_text(), re.MULTILINE)) == sorted(functions)
    for name in cr.__all__:
        assert getattr(cr, name).__doc__
        assert name in dir(cr)


def test_the_first_example_of_the_page_runs() -> None:
    example = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]
    exec(example, {})


def test_a_log_is_read_as_named_rows(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(LOG)
    rows = cr.read_log(tmp_path / "train.log")
    losses = [(row.iteration, row.value) for row in rows if row.output == "average loss"]
    assert losses == [(0, 2.5), (2, 1.25)]


@pytest.mark.parametrize(
    ("net", "weights", "what"),
    [
        (None, "w", "net is None, not a path"),
        ("n", None, "weights is None, not a path"),
        ("", "w", "net is '', not a path"),
        (3, "w", "net is 3, not a path"),
        (b"n", "w", "net is b'n', not a path"),
    ],
)
def test_what_is_not_a_path_of_a_model_is_one_error(net: Any, weights: Any, what: str) -> None:  # noqa: ANN401
    with pytest.raises(InputError, match=f"^torch_module: {what}; give the path of a file$"):
        cr.torch_module(net, weights)


@needs_engine
def test_a_model_is_loaded_from_paths_of_any_class(tmp_path: Path) -> None:
    from tests.engine.test_module import NET, write_net

    write_net(tmp_path, NET)
    with os.scandir(tmp_path) as found:
        entries = {entry.name: entry for entry in found}
    module = cr.torch_module(entries["deploy.prototxt"], entries["w.caffemodel"])
    assert module.input_names == ("data",)


def test_lint_and_runs_take_names(tmp_path: Path) -> None:
    assert not [each for each in cr.lint("digits-local") if each.severity == "error"]
    assert cr.runs(root=tmp_path) == []
    with pytest.raises(InputError, match="no run or recipe"):
        cr.runs("absent", root=tmp_path)
