"""Describe a Caffe model that is handed on: deploy net, `model.json`, and a readme as in the Model Zoo."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import yaml

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.datums import first_shape
from caffe_recipes.caffe.deploy import derive_deploy
from caffe_recipes.caffe.dialects.schema import parse_lenient
from caffe_recipes.caffe.layer_types.dimensions import Image
from caffe_recipes.caffe.model_folder import (
    DEPLOY,
    DESCRIPTION,
    MEAN,
    README,
    WEIGHTS,
    ModelDescription,
    describe_transform,
)
from caffe_recipes.caffe.prototxt import is_kind, render_checked
from caffe_recipes.caffe.shapes import infer_shapes, select_layers
from caffe_recipes.data.manifest import load_manifest
from caffe_recipes.errors import DataError
from caffe_recipes.files.bounded_reads import load_within
from caffe_recipes.run.trainer import HandedOn


def describe_model(text: str, path: str, root: Path, handed: HandedOn) -> dict[str, bytes]:
    """Return the files of a model besides its weights, by name; `text` is that of the net that was tested.

    Raises PrototxtError for a net that cannot be deployed, and DataError for a mean image that is missing.
    """
    document = parse_lenient(text, path)
    net = document.message
    assert is_kind(net, pb.NetParameter)

    def find_shape(source: str) -> Image | None:
        return first_shape(root / source)

    deploy = derive_deploy(net, comments=document.comments, images=find_shape, path=path)
    found = infer_shapes(deploy.net, pb.TEST).layers
    shape = next(one.tops[0] for one in found if one.layer.type == "Input") or ()
    name = next(one.layer.name for one in found if one.layer.type == "Input")
    data = [layer for layer in select_layers(net, pb.TEST) if layer.name == name]
    data = data or [layer for layer in net.layer if layer.name == name]
    param = data[0].transform_param
    model = ModelDescription(
        name=net.name,
        classes=_class_names(root, data[0].data_param.source),
        shape=tuple(dim for dim in shape[1:] if dim is not None),
        transform=describe_transform(param),
        accuracy=dict(handed.accuracy),
        recipe=handed.recipe,
        recipe_sha256=handed.recipe_sha256,
        weights_sha256=handed.weights_sha256,
    )
    files = {
        DEPLOY: render_checked(deploy.net, deploy.comments, path).encode(errors="surrogateescape"),
        DESCRIPTION: model.render().encode(),
        README: _readme(model, handed, deploy.notes).encode(),
    }
    if param.HasField("mean_file"):
        files[MEAN] = load_within(root / param.mean_file, "record-bytes", DataError, "restore the mean file")
    return files


def _class_names(root: Path, lmdb: str) -> tuple[str, ...] | None:
    """Return the names of the classes from the manifest of an LMDB; None if it has none."""
    manifest = load_manifest(root / lmdb) if lmdb else None
    return tuple(manifest.classes) if manifest and manifest.classes else None


def _readme(model: ModelDescription, handed: HandedOn, notes: tuple[str, ...]) -> str:
    """Return a readme whose front matter has the keys of Caffe's Model Zoo."""
    front: Mapping[str, str] = {
        "name": model.name,
        "caffemodel": WEIGHTS,
        "caffemodel_url": "",
        "license": "",
        "sha1": handed.weights_sha1,
        "caffe_commit": "",
    }
    lines = [
        "---",
        *yaml.safe_dump(dict(front), sort_keys=False).splitlines(),
        "---",
        "",
        f"Trained by the recipe {handed.recipe} (SHA-256 {handed.recipe_sha256}).",
        "",
        *(f"- {output}: {value:g}" for output, value in handed.accuracy.items()),
        *(f"- {note}" for note in notes),
        f"- Images: {' x '.join(map(str, model.shape))} in {model.channel_order}, transformed as "
        f"`{DESCRIPTION}` says.",
        "",
        "Fill in `license`, `caffemodel_url` and `caffe_commit` before you publish it.",
    ]
    return "\n".join(lines) + "\n"
