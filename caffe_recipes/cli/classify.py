"""`caffe-recipes classify`: name what images show, with a trained model."""

from __future__ import annotations

import json
from pathlib import Path

import click

from caffe_recipes.caffe.models import LooseFiles, open_model
from caffe_recipes.cli import run_options
from caffe_recipes.cli.model_options import loose_files
from caffe_recipes.cli.options import RUN, Whole, examples
from caffe_recipes.cli.streams import echo, reporting
from caffe_recipes.engine.packages import require_packages
from caffe_recipes.errors import InputError


@click.command(
    epilog=examples(
        "caffe-recipes classify digits-local-1 digit.png",
        "caffe-recipes classify runs/digits-local-1/model *.png --json",
        "caffe-recipes classify --net deploy.prototxt --weights n.caffemodel a.jpg",
    )
)
@click.argument("words", metavar="[RUN|FOLDER] IMAGE...", nargs=-1, required=True, type=RUN)
@run_options.runs_root
@loose_files
@click.option(
    "--top", type=Whole(1), metavar="N", default=5, show_default=True, help="Classes to print for each image."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def classify(
    ctx: click.Context, words: tuple[str, ...], caffe_root: str, loose: LooseFiles, top: int, as_json: bool
) -> None:
    """Print the most likely classes of each image, with their probabilities.

    RUN is the name or folder of a finished run, whose model/ is read, or a recipe's name, for its latest run;
    FOLDER is such a model/. Images are
    transformed as those of phase TEST were. With --net and --weights, all arguments are images, which are
    resized to the net's input; without --mean and --scale, pixels from 0 to 255 go into it as they are.
    Images that cannot be read are reported; the others are classified, and the exit code is 2.
    """
    given, images = (None, words) if loose.net else (words[0], words[1:])
    if not images:
        raise click.UsageError("give a run, or --net and --weights, and then one or more images")
    model = open_model(given, loose, Path(caffe_root))
    require_packages("classify", "torch", "cv2")
    from caffe_recipes.engine.predictor import Predictor

    predictor, failures, shown = Predictor(model), list[InputError](), list[object]()
    for image in images:
        with reporting(failures):
            rows = predictor.rank(predictor.prepare(Path(image)), top)
            if as_json:
                classes = [dict(zip(("class", "name", "probability"), row, strict=True)) for row in rows]
                shown.append({"image": image, "classes": classes})
            else:
                echo(f"{image}:", *(f"  {row.probability:.4f}  {row.name}" for row in rows))
    if as_json:
        click.echo(json.dumps(shown, indent=1))
    ctx.exit(InputError.exit_code if failures else 0)
