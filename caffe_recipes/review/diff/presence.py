"""What a written field says beyond its absence: which defaults, blocks and lists Caffe tells from nothing.

Caffe takes most fields by value, so that a written default, an empty block and their absence are one thing.
The tables hold the others: fields that its code asks for with `has_...()` before it looks at the value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from caffe_recipes.caffe import pb

# Read as `has_x()` whatever else is written; beside each message, the source that asks.
ASKED: Mapping[str, frozenset[str]] = {
    message: frozenset(fields.split())
    for message, fields in {
        "AccuracyParameter": "ignore_label",  # accuracy_layer
        "AnnotatedDataParameter": "label_map_file anno_type",  # annotated_data_layer
        "ArgMaxParameter": "axis",  # argmax_layer
        "BatchNormParameter": "use_global_stats stats_batch_size",  # batch_norm_layer; net: Init
        "BatchSampler": "max_sample",  # sampler: GenerateSamples
        "BlobProto": "shape num channels height width",  # blob: FromProto, ShapeEquals
        "ConvolutionParameter": "kernel_h kernel_w stride_h stride_w",  # base_conv_layer
        "DataParameter": "mean_file",  # upgrade_proto
        "DetectionEvaluateParameter": "num_classes name_size_file resize_param",  # detection_evaluate_layer
        "DetectionOutputParameter": "num_classes confidence_threshold visualize_threshold "
        "save_file",  # detection_output_layer
        "ImageDataParameter": "mean_file",  # upgrade_proto
        "LayerParameter": "phase quantization_param",  # net: Init; mkldnn_layers, base_quant_layer
        "LossParameter": "ignore_label normalize",  # the losses' LayerSetUp
        "MultiBoxLossParameter": "num_classes do_neg_mining nms_param",  # multibox_loss_layer; bbox_util
        "NetParameter": "bn_stats_batch_size",  # net: Init
        "NetState": "phase level",  # solver: InitTrainNet, InitTestNets merge what is set
        "NetStateRule": "phase min_level max_level",  # net: StateMeetsRule
        "NonMaximumSuppressionParameter": "top_k",  # detection_output_layer, bbox_util
        "PoolingParameter": "kernel_h kernel_w pad_h pad_w stride_h stride_w",  # pooling_layer: both or none
        "PriorBoxParameter": "img_size img_h img_w step step_h step_w",  # prior_box_layer
        "SampleConstraint": "min_jaccard_overlap max_jaccard_overlap min_sample_coverage "
        "max_sample_coverage min_object_coverage max_object_coverage",  # sampler: SatisfySampleConstraint
        "SaveOutputParameter": "label_map_file name_size_file num_test_image "
        "resize_param",  # detection_output_layer
        "SolverParameter": "net net_param train_net train_net_param snapshot_prefix",  # solver
        "TransformationParameter": "mean_file resize_param noise_param distort_param expand_param "
        "emit_constraint random_resize_param random_aspect_ratio_param",  # data_transformer
        "VideoDataParameter": "video_file",  # video_data_layer
        "WindowDataParameter": "mean_file",  # window_data_layer
    }.items()
}

# Fillers that Caffe replaces where they are absent, by what it starts at then; a written one starts at its
# own value, 0 if it has none. The fillers that are not here start at 0 either way.
STARTS: Mapping[tuple[str, str], float] = {
    ("BatchNormParameter", "filler"): 1.0,  # mkldnn_batch_norm_layer, mkl_batch_norm_layer
    ("NormalizeParameter", "scale_filler"): 1.0,  # normalize_layer
    ("PReLUParameter", "filler"): 0.25,  # prelu_layer
    ("ScaleParameter", "filler"): 1.0,  # scale_layer
}

# Lists that Caffe takes for such values where they are empty, as the schema cannot say; how many at most.
_LIST_DEFAULTS: Mapping[tuple[str, str], tuple[int, int]] = {
    ("ConvolutionParameter", "pad"): (0, 1),  # base_conv_layer
    ("ConvolutionParameter", "stride"): (1, 1),
    ("ConvolutionParameter", "dilation"): (1, 1),
    ("EltwiseParameter", "coeff"): (1, 1 << 30),  # eltwise_layer: one for each bottom
    ("PoolingParameter", "pad"): (0, 1),  # pooling_layer
    ("PoolingParameter", "stride"): (1, 1),
    ("ResizeParameter", "interp_mode"): (pb.ResizeParameter.LINEAR, 1),  # im_transforms: ApplyResize
    ("ResizeParameter", "pad_value"): (0, 1),
}

# Of a message, and the type of the layer around it.
_Condition = Callable[[Any, str], bool]


def _set(name: str) -> _Condition:
    return lambda message, layer_type: bool(message.HasField(name))


def _listed(name: str) -> _Condition:
    return lambda message, layer_type: len(getattr(message, name)) > 0


# Read as `has_x()` where something else is so. What Caffe refuses to find side by side is in here too.
_ASKED_WHERE: Mapping[tuple[str, str], _Condition] = {
    ("ConcatParameter", "axis"): _set("concat_dim"),  # concat_layer
    ("ConcatParameter", "concat_dim"): _set("axis"),
    ("ConvolutionParameter", "pad_h"): _listed("pad"),  # base_conv_layer
    ("ConvolutionParameter", "pad_w"): _listed("pad"),
    # softmax_loss_layer and its like: without it `normalize` counts; sigmoid_cross_entropy_loss_layer:
    # without both BATCH_SIZE, not the schema's VALID.
    ("LossParameter", "normalization"): lambda message, layer_type: (
        message.HasField("normalize") or layer_type == "SigmoidCrossEntropyLoss"
    ),
    ("ParamSpec", "lr_mult"): lambda message, layer_type: bool(message.name),  # net: AppendParam
    ("ParamSpec", "decay_mult"): lambda message, layer_type: bool(message.name),
    ("SliceParameter", "axis"): _set("slice_dim"),  # slice_layer
    ("SliceParameter", "slice_dim"): _set("axis"),
}


def is_asked(message: Message, field: FieldDescriptor, layer_type: str = "") -> bool:
    """Whether Caffe asks if a field of a message is there, as the message stands."""
    key = message.DESCRIPTOR.name, field.name
    if field.name in ASKED.get(key[0], ()) or key in STARTS:
        return True
    condition = _ASKED_WHERE.get(key)
    return condition is not None and condition(message, layer_type)


def says(message: Message, field: FieldDescriptor, layer_type: str = "") -> bool:
    """Whether a field of a message, which is no list, says anything that its absence does not.

    >>> none, zero = pb.ScaleParameter(), pb.ScaleParameter(filler=pb.FillerParameter(value=0))
    >>> filler = none.DESCRIPTOR.fields_by_name["filler"]
    >>> says(none, filler), says(zero, filler)
    (False, True)
    """
    if not message.HasField(field.name):
        return False
    value = getattr(message, field.name)
    start = STARTS.get((message.DESCRIPTOR.name, field.name))
    if start is not None:
        return not _starts_at(value, start)
    if is_asked(message, field, layer_type):
        return True
    if field.message_type is not None:
        return says_anything(value, layer_type)
    return bool(value != field.default_value)


def says_anything(message: Message, layer_type: str = "") -> bool:
    """Whether a block says anything that an empty one does not."""
    return any(
        bool(meant(message, field, value, layer_type))
        if field.is_repeated
        else says(message, field, layer_type)
        for field, value in message.ListFields()
    )


def meant(
    message: Message, field: FieldDescriptor, values: Sequence[Any], layer_type: str = ""
) -> Sequence[Any]:
    """Give the beginning of a message's list, without what Caffe would take anyway."""
    if field.message_type is not None:
        return _meant_blocks(message, field, values, layer_type)
    default = list_default(message, field, layer_type)
    if default is not None and all(value == default for value in values):
        most = _LIST_DEFAULTS.get((message.DESCRIPTOR.name, field.name), (0, 1))[1]
        return values if len(values) > most else ()
    return values


def list_default(message: Any, field: FieldDescriptor, layer_type: str = "") -> int | None:  # noqa: ANN401
    """Give the value that Caffe takes for an empty list, or None."""
    key = message.DESCRIPTOR.name, field.name
    if key == ("LayerParameter", "loss_weight"):
        return 1 if "Loss" in layer_type else None  # loss_layer: LayerSetUp
    sides = [f"{field.name}_{side}" for side in ("h", "w")]
    known = message.DESCRIPTOR.fields_by_name
    if any(side in known and message.HasField(side) for side in sides):
        return None  # refused beside a list, so its absence is another thing
    default = _LIST_DEFAULTS.get(key)
    return None if default is None else default[0]


def _meant_blocks(
    message: Any,  # noqa: ANN401 - a message
    field: FieldDescriptor,
    values: Sequence[Any],
    layer_type: str,
) -> Sequence[Any]:
    key = message.DESCRIPTOR.name, field.name
    if key == ("LayerParameter", "include"):
        # net: FilterNet: any rule that holds will do, and an empty one does; beside `exclude`: refused.
        is_open = not message.exclude and any(not says_anything(rule) for rule in values)
        return () if is_open else values
    if key == ("LayerParameter", "param") and layer_type != "BatchNorm":
        # net: AppendParam takes defaults past the end; batch_norm_layer: lr_mult 0, and refuses another.
        end = len(values)
        while end and not says_anything(values[end - 1]):
            end -= 1
        return values[:end]
    return values


def _starts_at(filler: Any, start: float) -> bool:  # noqa: ANN401 - a FillerParameter
    """Whether a filler says no more than `value: start`."""
    return bool(filler.value == start) and all(
        field.name == "value" or not says(filler, field) for field, _ in filler.ListFields()
    )
