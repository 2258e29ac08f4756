"""Layers of detectors: boxes, regions of interest, and their evaluation."""

from __future__ import annotations

from caffe_recipes.caffe.layer_types.entry import LayerType, TopCount

TYPES = (
    LayerType("BoxAnnotatorOHEM", is_run=False, is_result=True),
    LayerType("DetectNetTransformation", is_run=False, blocks=("transform_param",)),
    LayerType("DetectionEvaluate", is_run=False, no_backward=None, is_result=True),
    LayerType("DetectionOutput", is_run=False, blocks=("transform_param",), no_backward=None, is_result=True),
    LayerType("EvalDetection", is_run=False, is_result=True),
    LayerType("PSROIPooling", is_run=False, refuses=(TopCount(1),)),
    LayerType("PriorBox", is_run=False, refuses=(TopCount(1),)),
    LayerType("ROIPooling", is_run=False, refuses=(TopCount(1),)),
)
