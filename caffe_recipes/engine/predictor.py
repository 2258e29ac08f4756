"""Predict the classes of images with a deploy net, after the transform with which the net was tested."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.models import Model
from caffe_recipes.caffe.shapes import show_shape
from caffe_recipes.engine.opened_model import check_names, find_scores, open_module
from caffe_recipes.engine.operators.operator import TensorShape
from caffe_recipes.engine.transform import Transform, decode_datum, match_caffe_opencv, resize_to
from caffe_recipes.errors import DataError, InputError
from caffe_recipes.files.bounded_reads import load_within

ImageValues = NDArray[np.float32]


class Ranked(NamedTuple):
    """A class of an image: its number, its name (or `class N`), and its probability."""

    number: int
    name: str
    probability: float


def _list_blobs(names: Sequence[str], shapes: Sequence[TensorShape]) -> str:
    return ", ".join(f"{name} ({show_shape(shape)})" for name, shape in zip(names, shapes, strict=True))


class Predictor:
    """A model that classifies images. Raises InputError for one that does not."""

    def __init__(self, model: Model) -> None:
        self._transform_param = pb.TransformationParameter()
        self._transform_param.CopyFrom(model.transform)
        self._transform_param.ClearField("mirror")  # Caffe mirrors at random in TEST, too
        self._transform = Transform(self._transform_param, pb.TEST)
        self._is_resized = model.is_resized
        self.module = open_module(model)
        shapes = self.module.input_shapes
        if len(shapes) != 1 or len(shapes[0]) != 4:
            what = f"takes {_list_blobs(self.module.input_names, shapes)}, not one image"
            raise InputError(model.net, what, "give a net that predicts from one image")
        self._names = model.description.classes or ()
        output = find_scores(self.module)
        if output is None:
            listed = _list_blobs(self.module.output_names, self.module.output_shapes)
            what = f"does not predict one score for each class of an image, but {listed}"
            hint = "call it in Python (cr.torch_module), or export it; of a net with several losses, "
            raise InputError(model.net, what, f"{hint}caffe-recipes deploy --loss keeps one")
        check_names(model, self.module, output)
        self._output = output

    def prepare(self, image: Path) -> ImageValues:
        """Return the pixels of an image file as the net takes them: channels x height x width.

        Raises DataError if the file is not an image, or does not have the size that the net takes.
        """
        datum = pb.Datum(encoded=True, data=load_within(image, "record-bytes", DataError, "give an image"))
        wanted = self.module.input_shapes[0][1:]
        param = pb.TransformationParameter()
        param.CopyFrom(self._transform_param)
        if not (param.force_color or param.force_gray):  # files of users may be grey or have transparency
            param.force_color, param.force_gray = wanted[0] == 3, wanted[0] == 1
        match_caffe_opencv()
        try:
            pixels = decode_datum(datum, param)
        except ValueError as error:
            raise DataError(image, str(error), "give another image") from None
        try:
            if self._is_resized:
                pixels = resize_to(pixels, wanted[1], wanted[2], pb.ResizeParameter(), Random(0))
            pixels = self._transform.apply(pixels, Random(0))
            batch = self._transform.normalise([pixels])
        except ValueError as error:
            hint = "resize it to the size that the images of the TEST data had"
            raise DataError(image, str(error), hint) from None
        made: ImageValues = batch[0].transpose(2, 0, 1)
        if made.shape != wanted:
            sizes = [" x ".join(map(str, shape)) for shape in (made.shape, wanted)]
            raise DataError(image, f"is {sizes[0]} after the transform", f"the net takes {sizes[1]}")
        return made

    @torch.no_grad()
    def predict(self, images: Sequence[ImageValues]) -> ImageValues:
        """Return the scores of prepared images, one row each."""
        made = self.module(torch.from_numpy(np.stack(images)))
        scores: ImageValues = (made[self._output] if isinstance(made, dict) else made).flatten(1).numpy()
        return scores

    def rank(self, image: ImageValues, top: int) -> list[Ranked]:
        """Return the most likely classes of a prepared image; equal ones in the order of their numbers."""
        scores = self.predict([image])[0].tolist()
        best = sorted(range(len(scores)), key=lambda number: (-scores[number], number))[:top]
        names = self._names
        return [
            Ranked(number, names[number] if number < len(names) else f"class {number}", scores[number])
            for number in best
        ]
