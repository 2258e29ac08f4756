"""Layer types and fields of public forks of Caffe that are not among the dialects.

Each row names the fork where it was found, and what means exactly the same in our Caffe, if anything does.
What is merely similar is not named: with another layer, another net would be trained.

Sources: the layers, `caffe.proto` and prototxts of the repositories named.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class ForkName(NamedTuple):
    """A layer type or a field of a fork.

    `fork` is its repository. `here` is a clause on what our Caffe has or does in its place; "" if there is
    nothing to say. A field with the value `default` (text) has no effect, since our Caffe does just that.
    """

    fork: str
    here: str = ""
    default: str = ""


_NO_CLIP = "only BVLC's Clip with min: 0 and max: 6 does the same"
_SEGNET, _DEEPLAB = "alexgkendall/caffe-segnet", "DeepLab v2 (xmyqsh/deeplab-v2)"
_CPM = "CMU-Perceptual-Computing-Lab/caffe_train"
_FACE, _WINDOWS = "ydwen/caffe-face", "happynear/caffe-windows"
_SPHERE, _MARGIN = "wy1iu/sphereface", "wy1iu/LargeMargin_Softmax_Loss"
_SHUFFLE, _YOLO = "farmingyard/ShuffleNet", "eric612/MobileNet-YOLO"
_FLOW, _C3D = "lmb-freiburg/flownet2", "facebook/C3D"
_DEEPDETECT, _TSN = "jolibrain/caffe", "yjxiong/caffe"
_BN = f"{_SEGNET}, and another of hszhao/PSPNet"
_SEVERAL = "several forks"

# Types that are a Convolution with as many groups as channels.
DEPTHWISE = frozenset(("ConvolutionDepthwise", "DepthwiseConvolution"))

TYPES: Mapping[str, ForkName] = {
    "BN": ForkName(_BN),
    "CPMData": ForkName(_CPM),
    "CenterLoss": ForkName(_FACE),
    "ChannelNorm": ForkName(_FLOW),
    "ChannelScale": ForkName(_WINDOWS),
    "ContinuationIndicator": ForkName(_DEEPDETECT),
    "Convolution3D": ForkName(_C3D),
    "ConvolutionDepthwise": ForkName(_SHUFFLE),
    "Correlation": ForkName(_FLOW),
    "Correlation1D": ForkName(_FLOW),
    "CtcLoss": ForkName(_DEEPDETECT),
    "CustomData": ForkName(_FLOW),
    "DataAugmentation": ForkName(_FLOW),
    "Deconvolution3D": ForkName(_C3D),
    "DeformableConvolution": ForkName("msracver/Deformable-ConvNets"),
    "DenseImageData": ForkName(_SEGNET),
    "DepthwiseConvolution": ForkName("yonghenglh6/DepthwiseConvolution"),
    "Downsample": ForkName(_FLOW),
    "Flip": ForkName(_WINDOWS),
    "FlowAugmentation": ForkName(_FLOW),
    "FlowWarp": ForkName(_FLOW),
    "Gather": ForkName(_TSN),
    "GeneralContrastiveLoss": ForkName(_WINDOWS),
    "GeneralTripletLoss": ForkName(_WINDOWS),
    "GenerateAugmentationParameters": ForkName(_FLOW),
    "GlobalLSEMargin": ForkName(_WINDOWS),
    "GroupNorm": ForkName(_SEVERAL),
    "ImageLabelmapData": ForkName("s9xie/hed"),
    "ImageSegData": ForkName(_DEEPLAB),
    "InnerDistance": ForkName(_WINDOWS),
    "Interp": ForkName(_DEEPLAB),
    "LabelSpecificAdd": ForkName(_WINDOWS),
    "LabelSpecificRescale": ForkName(_WINDOWS),
    "LabelsequenceAccuracy": ForkName(_DEEPDETECT),
    "LaneData": ForkName(_YOLO),
    "LargeMarginInnerProduct": ForkName(_MARGIN),
    "MarginInnerProduct": ForkName(_SPHERE),
    "Mish": ForkName(_SEVERAL),
    "Pooling3D": ForkName(_C3D),
    "ReLU6": ForkName("chuanqi305/ssd and others", _NO_CLIP),
    "Resample": ForkName(_FLOW),
    "Scatter": ForkName(_TSN),
    "SeLu": ForkName("soeaver/caffe-model"),
    "SeLuDropout": ForkName("soeaver/caffe-model"),
    "SegAccuracy": ForkName(_DEEPLAB),
    "SegmentationEvaluate": ForkName(_YOLO),
    "ShuffleChannel": ForkName(_SHUFFLE),
    "SpatialTransformer": ForkName("daerduoCarey/SpatialTransformerLayer"),
    "Tiling": ForkName(_SEVERAL),
    "TripletLoss": ForkName(_SEVERAL),
    "Upsample": ForkName(f"{_SEGNET}, and another of {_YOLO}"),
    "VideoWithVoxelTruthData": ForkName(_C3D),
    "VolumeData": ForkName(_C3D),
    "YoloDetectionOutput": ForkName(_YOLO),
    "YoloSeg": ForkName(_YOLO),
    "Yolov3": ForkName(_YOLO),
    "Yolov3DetectionOutput": ForkName(_YOLO),
}

FIELDS: Mapping[tuple[str, str], ForkName] = {
    ("AccuracyParameter", "min_is_better"): ForkName(_WINDOWS),
    **{
        ("ConvolutionParameter", name): ForkName(_C3D)
        for name in ("filter_group", "kernel_depth", "temporal_pad", "temporal_stride")
    },
    ("DetectionOutputParameter", "objectness_score"): ForkName(_DEEPDETECT),
    ("DropoutParameter", "sample_weights_test"): ForkName(
        _SEGNET, "dropout is off in TEST, as with sample_weights_test: false", "false"
    ),
    ("DropoutParameter", "scale_train"): ForkName(
        "rbgirshick/caffe-fast-rcnn", "dropout scales in TRAIN, as with scale_train: true", "true"
    ),
    ("ImageDataParameter", "label_type"): ForkName(_DEEPLAB),
    ("InnerProductParameter", "normalize"): ForkName(
        _WINDOWS, "the weights are used as they are, as with normalize: false", "false"
    ),
    ("LayerParameter", "bn_param"): ForkName(_BN),
    ("LayerParameter", "center_loss_param"): ForkName(_FACE),
    ("LayerParameter", "continuation_indicator_param"): ForkName(_DEEPDETECT),
    ("LayerParameter", "convolution3d_param"): ForkName(_C3D),
    ("LayerParameter", "cpm_transform_param"): ForkName(_CPM),
    ("LayerParameter", "ctc_loss_param"): ForkName(_DEEPDETECT),
    ("LayerParameter", "dense_image_data_param"): ForkName(_SEGNET),
    ("LayerParameter", "filter_param"): ForkName("yihui-he/channel-pruning"),
    ("LayerParameter", "flip_param"): ForkName(_WINDOWS),
    ("LayerParameter", "general_contrastive_loss_param"): ForkName(_WINDOWS),
    ("LayerParameter", "general_triplet_loss_param"): ForkName(_WINDOWS),
    ("LayerParameter", "inner_distance_param"): ForkName(_WINDOWS),
    ("LayerParameter", "interp_param"): ForkName(_DEEPLAB),
    ("LayerParameter", "label_specific_add_param"): ForkName(_WINDOWS),
    ("LayerParameter", "label_specific_rescale_param"): ForkName(_WINDOWS),
    ("LayerParameter", "labelsequence_accuracy_param"): ForkName(_DEEPDETECT),
    ("LayerParameter", "largemargin_inner_product_param"): ForkName(_MARGIN),
    ("LayerParameter", "margin_inner_product_param"): ForkName(_SPHERE),
    ("LayerParameter", "normalize_param"): ForkName(_WINDOWS),
    ("LayerParameter", "pooling3d_param"): ForkName(_C3D),
    ("LayerParameter", "seg_accuracy_param"): ForkName(_DEEPLAB),
    ("LayerParameter", "segmentation_evaluate_param"): ForkName(_YOLO),
    ("LayerParameter", "selu_dropout_param"): ForkName("soeaver/caffe-model"),
    ("LayerParameter", "shuffle_channel_param"): ForkName(_SHUFFLE),
    ("LayerParameter", "upsample_param"): ForkName(f"{_SEGNET}, and another of {_YOLO}"),
    ("LayerParameter", "yolo_detection_output_param"): ForkName(_YOLO),
    ("LayerParameter", "yolo_seg_param"): ForkName(_YOLO),
    ("LayerParameter", "yolov3_detection_output_param"): ForkName(_YOLO),
    ("LossParameter", "class_weighting"): ForkName(_SEGNET),
    ("LossParameter", "weight_by_label_freqs"): ForkName(
        _SEGNET, "all labels weigh the same, as with weight_by_label_freqs: false", "false"
    ),
    ("MultiBoxLossParameter", "objectness_score"): ForkName(_DEEPDETECT),
    ("NonMaximumSuppressionParameter", "soft_nms"): ForkName(_DEEPDETECT),
    ("NonMaximumSuppressionParameter", "theta"): ForkName(_DEEPDETECT),
    ("ParameterParameter", "blob_filler"): ForkName(_WINDOWS),
    ("PoolingParameter", "ceil_mode"): ForkName(
        _SEVERAL, "pooling always rounds its output size up, as with ceil_mode: true", "true"
    ),
    ("PoolingParameter", "kernel_depth"): ForkName(_C3D),
    ("PoolingParameter", "temporal_stride"): ForkName(_C3D),
    ("ScaleParameter", "min_value"): ForkName(_WINDOWS),
    ("SolverParameter", "stepearly"): ForkName(_SEGNET),
    ("SoftmaxParameter", "normalize_type"): ForkName(_WINDOWS),
}


def find_fork_type(v1_name: str) -> str | None:
    """Return the type of a fork that an old net writes in capitals; None if no fork is known to have it.

    >>> find_fork_type("DENSE_IMAGE_DATA"), find_fork_type("BN"), find_fork_type("NEW")
    ('DenseImageData', 'BN', None)
    """
    word = v1_name.replace("_", "").lower()
    return next((name for name in TYPES if name.lower() == word), None)


def describe_fork(name: ForkName, is_type: bool = False) -> str:
    """Return a clause on where a name comes from, and what our Caffe has in its place.

    >>> describe_fork(FIELDS["PoolingParameter", "ceil_mode"])
    'a field of several forks; here pooling always rounds its output size up, as with ceil_mode: true'
    >>> describe_fork(TYPES["CenterLoss"], is_type=True)
    'a layer of ydwen/caffe-face, not in this Caffe'
    """
    kind = "layer" if is_type else "field"
    return f"a {kind} of {name.fork}{f'; here {name.here}' if name.here else ', not in this Caffe'}"
