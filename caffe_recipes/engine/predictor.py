"""Predict the classes of images with a deploy net, after the transform with which the net was tested."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.weights import load_weights
from caffe_recipes.engine.glog import Log
from caffe_recipes.engine.net import RunnableNet
from caffe_recipes.engine.operators.data import DataContext
from caffe_recipes.engine.settings import load_net
from caffe_recipes.engine.snapshot import check_complete, copy_weights
from caffe_recipes.engine.transform import Transform, decode_datum, match_caffe_opencv
from caffe_recipes.errors import DataError, InputError
from caffe_recipes.files.bounded_reads import load_within

ImageValues = NDArray[np.float32]


class Predictor:
    """A deploy net with its weights. Raises InputError for one that is not a classifier of images."""

    def __init__(self, deploy: Path, weights: Path, transform: pb.TransformationParameter) -> None:
        quiet = Log(enabled=False)
        net = load_net(str(deploy))
        net.state.phase = pb.TEST
        self._transform_param = pb.TransformationParameter()
        self._transform_param.CopyFrom(transform)
        self._transform_param.ClearField("mirror")  # Caffe mirrors at random in TEST, too
        self._transform = Transform(self._transform_param, pb.TEST)
        self._net = RunnableNet(net, str(deploy), DataContext(0, 1, 0, 0, quiet), torch.Generator())
        loaded = copy_weights(self._net, load_weights(weights), str(weights), quiet)
        check_complete(self._net, {str(weights): loaded}, "give the weights of this net")
        self._inputs = [node for node in self._net.nodes if node.source is not None]
        if len(self._inputs) != 1 or len(self._inputs[0].tops) != 1:
            what = f"has {len(self._inputs)} inputs"
            raise InputError(str(deploy), what, "give a net that predicts from one image")
        self._output = self._find_output()

    def _find_output(self) -> int:
        """Return the output with one score for each class: the first softmax, or else the only output."""
        used = {one for node in self._net.nodes for one in node.bottoms}
        ends = [node for node in self._net.nodes if node.tops and not used.intersection(node.tops)]
        best = [node for node in ends if node.param.type == "Softmax"] or ends
        shape = self._net.shape(best[0].tops[0]) if best else ()
        if len(best) != 1 or len(shape) < 2 or math.prod(shape[2:]) != 1:
            what = "does not predict one score for each class of an image"
            raise InputError(self._net.path, what, "derive a net with caffe-recipes deploy --loss LAYER")
        return best[0].tops[0]

    def prepare(self, image: Path) -> ImageValues:
        """Return the pixels of an image file as the net takes them: channels x height x width.

        Raises DataError if the file is not an image, or does not have the size that the net takes.
        """
        datum = pb.Datum(encoded=True, data=load_within(image, "record-bytes", DataError, "give an image"))
        wanted = self._net.shape(self._inputs[0].tops[0])[1:]
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
        batch = torch.from_numpy(np.stack(images))

        def feed(xs: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
            return [batch]

        self._inputs[0].forward = feed
        self._net.forward()
        scores: ImageValues = self._net.value(self._output).flatten(1).numpy()
        return scores
