"""`caffe-recipes export`: write a model as ONNX or safetensors."""

from __future__ import annotations

from pathlib import Path

import click

from caffe_recipes.caffe.models import LooseFiles, open_model
from caffe_recipes.cli import run_options
from caffe_recipes.cli.model_options import loose_files
from caffe_recipes.cli.options import PATH, RUN, examples
from caffe_recipes.cli.streams import echo
from caffe_recipes.engine.packages import require_packages


@click.command(
    epilog=examples(
        "caffe-recipes export digits-local-1 -o digits.onnx",
        "caffe-recipes export digits-local-1 -o digits.safetensors",
        "caffe-recipes export --net n.prototxt --weights n.caffemodel -o net.onnx",
    )
)
@click.argument("model", metavar="[RUN|FOLDER]", required=False, type=RUN)
@click.option(
    "--out",
    "-o",
    metavar="FILE",
    required=True,
    type=PATH,
    help="The .onnx or .safetensors file to write; overwrites an existing file.",
)
@click.option(
    "--image",
    "images",
    metavar="FILE",
    multiple=True,
    type=PATH,
    help="Compare the ONNX file on this image, too; may be repeated.",
)
@run_options.runs_root
@loose_files
def export(
    model: str | None, out: Path, images: tuple[Path, ...], caffe_root: str, loose: LooseFiles
) -> None:
    """Write a model for programs that do not read Caffe's files.

    RUN is the name or folder of a finished run, whose model/ is read, or a recipe's name, for its latest run;
    FOLDER is such a model/. Before an ONNX
    file is written, onnxruntime runs it, and must give the numbers of caffe-torch within 1e-4 of the largest
    output. A safetensors file has the weights, named by layer and role, as `cr.torch_module` loads them. Both
    hold the classes and the transform of the images, as in model.json.
    """
    if out.suffix not in (".onnx", ".safetensors"):
        what = "is a folder; name a file in it that ends" if out.is_dir() else "the file must end"
        raise click.UsageError(f"--out {out}: {what} in .onnx or .safetensors")
    opened = open_model(model, loose, Path(caffe_root))
    is_onnx = out.suffix == ".onnx"
    require_packages("export", "torch", "cv2", *(("onnx", "onnxruntime") if is_onnx else ()))
    if is_onnx:
        from caffe_recipes.engine.onnx_exports import export_onnx

        line = export_onnx(opened, images, out)
    else:
        from caffe_recipes.engine.state_files import export_state

        line = export_state(opened, out)
    echo(f"wrote {out}: {line}")
