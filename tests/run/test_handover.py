"""A finished run hands on a model: once, with the weights under a second name, and never by failing."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml

from caffe_recipes.caffe.model_folder import load_model
from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.run.handover import hand_on
from caffe_recipes.run.training_plan import find_trainer, plan_files, plan_steps

RECIPE = load_recipe("digits-local")


def run_once(folder: Path, files: dict[str, str] | None = None, sha256: str = "ab") -> list[str]:
    steps, said = plan_steps(RECIPE, f"runs/{folder.name}"), list[str]()
    phase = steps[-1].phase
    done = SimpleNamespace(phase=phase, snapshot=f"runs/{folder.name}/last.caffemodel", sha256=sha256)
    state: Any = SimpleNamespace(finished={phase: done}, evaluations={phase: {"top-1": 0.5}})
    models = find_trainer(RECIPE).models
    hand_on(
        folder, RECIPE, models, state, lambda: plan_files(RECIPE) if files is None else files, said.append
    )
    return said


def make_run(root: Path) -> Path:
    folder = root / "runs" / "digits-local-1"
    folder.mkdir(parents=True)
    (folder / "last.caffemodel").write_bytes(b"weights")
    return folder


def test_a_model_is_handed_on_once_with_its_results_and_the_keys_of_the_model_zoo(tmp_path: Path) -> None:
    folder = make_run(tmp_path)
    assert run_once(folder) == []
    model = folder / "model"
    assert (model / "weights.caffemodel").samefile(folder / "last.caffemodel")
    found = load_model(model)
    assert (found.shape, found.accuracy, found.weights_sha256) == ((3, 28, 28), {"top-1": 0.5}, "ab")
    front = yaml.safe_load((model / "readme.md").read_text().split("---")[1])
    assert list(front) == ["name", "caffemodel", "caffemodel_url", "license", "sha1", "caffe_commit"]
    assert "use_global_stats: true" in (model / "deploy.prototxt").read_text()
    before = {path: path.stat().st_mtime_ns for path in model.iterdir()}
    assert run_once(folder) == []
    assert before == {path: path.stat().st_mtime_ns for path in model.iterdir()}
    run_once(folder, sha256="cd")  # other weights
    assert load_model(model).weights_sha256 == "cd"


def test_a_net_that_cannot_be_deployed_gets_one_line_and_no_files(tmp_path: Path) -> None:
    folder = make_run(tmp_path)
    files = dict.fromkeys(plan_files(RECIPE), 'layer { name: "x" type: "ReLU" bottom: "no" top: "x" }')
    said = run_once(folder, files)
    assert len(said) == 1
    assert said[0].startswith("no model was put into digits-local-1/model: ")
    assert not (folder / "model").exists()


def test_weights_that_are_gone_get_one_line(tmp_path: Path) -> None:
    folder = make_run(tmp_path)
    (folder / "last.caffemodel").unlink()
    assert "No such file" in run_once(folder)[0]
