"""Layers of detectors: boxes, regions of interest, and their evaluation."""

from __future__ import annotations

from caffe_recipes.caffe.layer_types.entry import LayerType, TopCount

TYPES = (
    LayerType("BoxAnnotatorOHEM", is_result=True),
    LayerType("DetectNetTransformation", blocks=("transform_param",)),
    LayerType("DetectionEvaluate", no_backward=None, is_result=True),
    LayerType("DetectionOutput", blocks=("transform_param",), no_backward=None, is_result=True),
    LayerType("EvalDetection", is_result=True),
    LayerType("PSROIPooling", refuses=(TopCount(1),)),
    LayerType("PriorBox", refuses=(TopCount(1),)),
    LayerType("ROIPooling", refuses=(TopCount(1),)),
)
