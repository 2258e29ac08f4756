"""`caffe-recipes deploy`: derive the net that predicts from the net that trains."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from caffe_recipes.cli import consent
from caffe_recipes.cli.options import FOLDER, NET, PATH, PATH_TEXT, Whole, examples, gather
from caffe_recipes.cli.streams import any_dialect, echo, max_bytes_option, print_text
from caffe_recipes.cli.summary import image_size
from caffe_recipes.engine.packages import require_packages
from caffe_recipes.review.deploy import (
    DeployChoices,
    check_deploy_output,
    check_dialect,
    load_deploy,
    write_deploy,
)


@click.command(
    epilog=examples(
        "caffe-recipes deploy train_val.prototxt -o deploy.prototxt",
        "caffe-recipes deploy train_val.prototxt --input 3,224,224 --dialect bvlc",
        "caffe-recipes deploy net.prototxt --fold-bn net.caffemodel -o new.prototxt",
    )
)
@click.argument("net", metavar="FILE|FOLDER|NAME[:net]|RUN", type=NET)
@click.option(
    "--out",
    "-o",
    metavar="FILE",
    type=PATH_TEXT,
    help="Write the net to this path, overwriting an existing file; - is standard output.",
)
@click.option(
    "--input",
    "image",
    callback=image_size,
    metavar="C,H,W",
    help="Size of the images, e.g. 3,224,224, or 50,1,1 for 50 numbers [default: that of the TEST data]",
)
@click.option(
    "--batch",
    type=Whole(1, 2**31 - 1),
    metavar="N",
    help="Images at a time [default: those of the net's Input layers, or 1]",
)
@click.option(
    "--loss",
    "losses",
    multiple=True,
    metavar="LAYER",
    help="A loss whose predictions stay; may be repeated [default: those with the largest weight]",
)
@click.option(
    "--fold-bn",
    "weights",
    metavar="CAFFEMODEL",
    type=PATH,
    help="Fold each BatchNorm and Scale into the convolution before it; the new weights go beside --out.",
)
@click.option(
    "--for",
    "reader",
    type=click.Choice(["opencv"]),
    help="Write what this program reads, and check that it computes the same.",
)
@click.option(
    "--caffe-root",
    type=FOLDER,
    metavar="DIR",
    help="The folder that Caffe is started in, and that contains runs/.",
)
@any_dialect
@consent.run_code
@max_bytes_option
@gather(DeployChoices, "choices")
def deploy(
    net: str, choices: DeployChoices, out: str | None, weights: Path | None, reader: str | None
) -> None:
    """Derive a deploy net from a train_val net, a solver or a recipe: the layers that predict, in phase TEST.

    RUN: use the deploy net of a finished run, e.g. for --fold-bn or --for.

    Losses become the activation that they apply (SoftmaxWithLoss becomes Softmax, `prob`); labels, metrics,
    learning rates and fillers are left out. With --dialect, the net must be one that this Caffe reads. What
    is assumed or left out is reported on standard error.
    """
    from caffe_recipes.caffe.prototxt import render_checked

    made = load_deploy(net, choices)
    is_printed = out in (None, "-")
    if not is_printed:
        inputs = [net, made.path, weights or ""]
        check_deploy_output(Path(str(out)), inputs, has_weights=weights is not None)
    folded = None
    if weights is not None:
        from caffe_recipes.caffe.fold_norms import fold_file

        if is_printed:
            raise click.UsageError("--fold-bn needs --out FILE: the new weights go beside it")
        made, folded = fold_file(made, weights)
    if choices.dialect:
        made = check_dialect(made, choices.dialect, net)
    if reader is not None:
        from caffe_recipes.caffe.opencv_nets import rewrite_for_opencv

        require_packages("--for", "torch", "cv2")
        from caffe_recipes.engine.opencv_check import compare_opencv

        made = rewrite_for_opencv(made)
        worst = compare_opencv(made.net, folded, net)
        note = f"OpenCV gives the numbers of caffe-torch, within {worst:.1g} of the largest value"
        made = replace(made, notes=(*made.notes, note))
    text = render_checked(made.net, made.comments, net)
    if is_printed:
        print_text(text)
    else:
        for path in write_deploy(Path(str(out)), text, folded):
            echo(f"wrote {path}", err=True)
    for note in (*made.notes, f"outputs: {', '.join(made.outputs)}"):
        echo(note, err=True)
