"""`caffe-recipes classify`: name what images show, with a model that a run has trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from caffe_recipes.caffe.model_folder import DEPLOY, WEIGHTS, find_model, load_model
from caffe_recipes.cli import run_options
from caffe_recipes.cli.options import PATH, RUN, Whole, examples
from caffe_recipes.cli.streams import echo
from caffe_recipes.engine.packages import require_packages

if TYPE_CHECKING:
    from caffe_recipes.caffe.model_folder import ModelDescription
    from caffe_recipes.engine.predictor import Predictor


@click.command(
    epilog=examples(
        "caffe-recipes classify digits-local-1 digit.png",
        "caffe-recipes classify runs/digits-local-1/model *.png --json",
    )
)
@click.argument("model", metavar="RUN|FOLDER", type=RUN)
@click.argument("images", metavar="IMAGE...", nargs=-1, required=True, type=PATH)
@run_options.runs_root
@click.option(
    "--top", type=Whole(1), metavar="N", default=5, show_default=True, help="Classes to print for each image."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def classify(model: str, images: tuple[Path, ...], caffe_root: str, top: int, as_json: bool) -> None:
    """Print the most likely classes of each image, with their probabilities.

    RUN is the name or folder of a finished run, whose model/ is read; FOLDER is such a model/. Images are
    transformed as those of phase TEST were.
    """
    folder = find_model(model, Path(caffe_root))
    found = load_model(folder)
    predictor = _load(folder, found)
    prepared = [predictor.prepare(image) for image in images]
    results = [_rank(predictor.predict([one])[0].tolist(), found, top) for one in prepared]
    if as_json:
        shown = [{"image": str(image), "classes": rows} for image, rows in zip(images, results, strict=True)]
        click.echo(json.dumps(shown, indent=1))
        return
    for image, rows in zip(images, results, strict=True):
        echo(f"{image}:", *(f"  {row['probability']:.4f}  {row['name']}" for row in rows))


def _load(folder: Path, model: ModelDescription) -> Predictor:
    require_packages("classify", "torch", "cv2")
    from caffe_recipes.engine.predictor import Predictor

    return Predictor(folder / DEPLOY, folder / WEIGHTS, model.transform_of(folder))


def _rank(scores: list[float], model: ModelDescription, top: int) -> list[dict[str, str | int | float]]:
    """Return the most likely classes; equal ones in the order of their numbers."""
    best = sorted(range(len(scores)), key=lambda number: (-scores[number], number))[:top]
    names = model.classes or ()
    return [
        {
            "class": number,
            "name": names[number] if number < len(names) else f"class {number}",
            "probability": scores[number],
        }
        for number in best
    ]
