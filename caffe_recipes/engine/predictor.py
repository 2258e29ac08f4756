"""Predict the classes of images with a deploy net, after the transform with which the net was tested."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np
import torch
from numpy.typing import NDArray

from caffe_recipes.caffe import pb
from caffe_recipes.engine.module import load_module
from caffe_recipes.engine.transform import Transform, decode_datum, match_caffe_opencv
from caffe_recipes.errors import DataError, InputError
from caffe_recipes.files.bounded_reads import load_within

ImageValues = NDArray[np.float32]


class Predictor:
    """A deploy net with its weights. Raises InputError for one that is not a classifier of images."""

    def __init__(self, deploy: Path, weights: Path, transform: pb.TransformationParameter) -> None:
        self._transform_param = pb.TransformationParameter()
        self._transform_param.CopyFrom(transform)
        self._transform_param.ClearField("mirror")  # Caffe mirrors at random in TEST, too
        self._transform = Transform(self._transform_param, pb.TEST)
        self.module = load_module(deploy, weights)
        if len(self.module.input_names) != 1:
            what = f"has {len(self.module.input_names)} inputs"
            raise InputError(str(deploy), what, "give a net that predicts from one image")
        self._output = self._find_output(str(deploy))

    def _find_output(self, path: str) -> str:
        """Return the output with one score for each class: the first softmax, or else the only output."""
        module = self.module
        shapes = dict(zip(module.output_names, module.output_shapes, strict=True))
        types = {top: node.param.type for node in module.net.nodes for top in node.param.top}
        best = [name for name in shapes if types[name] == "Softmax"] or list(shapes)
        shape = shapes[best[0]]
        if len(best) != 1 or len(shape) < 2 or math.prod(shape[2:]) != 1:
            what = "does not predict one score for each class of an image"
            raise InputError(path, what, "derive a net with caffe-recipes deploy --loss LAYER")
        return best[0]

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
            pixels = self._transform.apply(decode_datum(datum, param), Random(0))
            batch = self._transform.normalise([pixels])
        except ValueError as error:
            raise DataError(image, str(error), "give another image, or resize it as those of TEST") from None
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
