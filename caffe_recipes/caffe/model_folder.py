"""A model to hand on, in a folder: its weights, its deploy net, and `model.json`, which describes both.

`model.json` holds the transform of the TEST data under the names of Caffe's TransformationParameter, so that
a program prepares images as the net was tested; pixels are in BGR order, as OpenCV reads them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from google.protobuf import json_format
from pydantic import Field

from caffe_recipes.caffe import pb
from caffe_recipes.config import Count, Frozen, Value, YamlSource, validate
from caffe_recipes.errors import DataError, InputError
from caffe_recipes.file_format import FORMAT, take_format
from caffe_recipes.files.bounded_reads import read_within, reading
from caffe_recipes.run_names import RUNS, run_folders
from caffe_recipes.wording import did_you_mean, is_unicode, shorten

DESCRIPTION, DEPLOY, WEIGHTS, MEAN, README = (
    "model.json",
    "deploy.prototxt",
    "weights.caffemodel",
    "mean.binaryproto",
    "readme.md",
)
_HINT = "give the folder of a model, as a run writes it"


class ModelDescription(Value):
    """What `model.json` says: the net's name, its classes if known, its transform and its results.

    `shape` is the (channels, height, width) of the input, and `accuracy` has the outputs of the evaluation.
    The classes may be fewer than the net's, if the data had only some. A digest that is "" is not checked.
    """

    name: str
    classes: Annotated[tuple[str, ...], Field(min_length=1)] | None
    shape: tuple[Count, ...]
    transform: Frozen[str, Any]
    accuracy: Frozen[str, Annotated[float, Field(allow_inf_nan=True)]] = {}  # noqa: RUF012 - validated as frozen
    recipe: str = ""
    recipe_sha256: str = ""
    weights_sha256: str = ""
    channel_order: Literal["BGR"] = "BGR"

    def render(self) -> str:
        """Return the text of `model.json`."""
        return json.dumps({"format": FORMAT, **self.model_dump()}, indent=1) + "\n"

    def transform_of(self, folder: Path) -> pb.TransformationParameter:
        """Return the transform, whose mean image is in `folder`. Raises DataError for an impossible path."""
        param = json_format.ParseDict(dict(self.transform), pb.TransformationParameter())
        if param.HasField("mean_file"):
            if not is_unicode(str(folder)):
                raise DataError(folder, "has a path that is not UTF-8, as a mean file needs", "rename it")
            param.mean_file = str(folder / MEAN)
        return param


def describe_transform(param: pb.TransformationParameter) -> dict[str, Any]:
    """Return a transform as JSON values, without what only training does.

    >>> describe_transform(pb.TransformationParameter(crop_size=224, mirror=True, mean_value=[104, 117, 123]))
    {'crop_size': 224, 'mean_value': [104.0, 117.0, 123.0]}
    """
    kept = pb.TransformationParameter()
    kept.CopyFrom(param)
    kept.ClearField("mirror")
    if kept.HasField("mean_file"):
        kept.mean_file = MEAN
    values: dict[str, Any] = json_format.MessageToDict(kept, preserving_proto_field_name=True)
    return values


def load_model(folder: Path) -> ModelDescription:
    """Return the description of the model in a folder. Raises DataError if it is missing or invalid."""
    path = folder / DESCRIPTION
    with reading(path, DataError, _HINT):
        try:
            values = json.loads(read_within(path, "json-bytes"))
            take_format(
                values, path, "copy it again from its run, or train it again with this version", DataError
            )
        except FileNotFoundError:
            raise DataError(folder, "is not a model: it has no model.json", _HINT) from None
        except (ValueError, TypeError, AttributeError, RecursionError):
            raise DataError(path, "is not the description of a model", _HINT) from None
    raw = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}

    def fail(place: str | Path, what: str, hint: str) -> DataError:  # JSON is read without its lines
        return DataError(path, what, hint or "copy the file again from its run")

    model = validate(YamlSource(path, "model", raw, {}, fail), ModelDescription)
    _check_transform(model.transform, path)
    model.transform_of(folder)
    return model


def _check_transform(values: Mapping[str, Any], path: Path) -> None:
    """Raise DataError for the first value that a TransformationParameter does not have."""
    known = pb.TransformationParameter.DESCRIPTOR.fields_by_name
    for key, value in values.items():
        try:
            json_format.ParseDict({key: value}, pb.TransformationParameter())
        except (json_format.ParseError, ValueError, TypeError, AttributeError, RecursionError):
            is_known = key in known
            what = "is not a value of this field of Caffe's" if is_known else "is not a field of Caffe's"
            hint = "copy the file again from its run"
            what = f"transform.{shorten(key)}: {what} TransformationParameter"
            raise DataError(path, what, hint if is_known else did_you_mean(key, known, hint)) from None


def find_model(given: str, root: Path) -> Path:
    """Return the folder of a model as search_model does. Raises InputError if there is none."""
    if (found := search_model(given, root)) is not None:
        return found
    if not root.is_dir():
        raise InputError(root, "no such folder", "give the one that contains `runs` with --caffe-root")
    is_file = Path(given).suffix in (".caffemodel", ".h5", ".prototxt")
    hint = (
        "give both files as --net and --weights"
        if is_file
        else "give a finished run, and the folder that contains `runs` with --caffe-root"
    )
    raise InputError(given, "is not a model, nor a run that has one", hint)


def search_model(given: str, root: Path) -> Path | None:
    """Return the folder of a model: a run's `model/`, by the run's name or folder, or the folder itself.

    A recipe name selects its latest run. Return None if no model is found.
    """
    folder = root / RUNS / given
    if not os.path.isdir(folder):  # noqa: PTH112 - false for any text, while Path raises
        folder = ([each for each in run_folders(root, given) if each.is_dir()] or [folder])[-1]
    for place in (Path(given), Path(given) / "model", folder / "model"):
        if os.path.isfile(place / DESCRIPTION):  # noqa: PTH113 - as above
            return place
    return None
