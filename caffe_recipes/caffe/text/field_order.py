"""The order in which a person writes the fields of a message."""

from __future__ import annotations

import functools

from google.protobuf.descriptor import Descriptor, FieldDescriptor

# A star stands for every field that its row does not name, in the order of the schema.
ORDERS = {
    "BlobProto": "shape num channels height width *",
    "ConvolutionParameter": "num_output bias_term kernel_size kernel_h kernel_w pad pad_h pad_w "
    "stride stride_h stride_w dilation group *",
    "DataParameter": "source batch_size backend *",
    "Datum": "channels height width label encoded *",
    "ImageDataParameter": "source root_folder batch_size *",
    "LayerParameter": "name type bottom top include exclude phase loss_weight propagate_down param "
    "transform_param * blobs",
    "NetParameter": "name * layer layers",
    "PoolingParameter": "pool kernel_size kernel_h kernel_w pad pad_h pad_w stride stride_h stride_w "
    "global_pooling *",
    "SolverParameter": "net net_param train_net train_net_param test_net test_net_param train_state "
    "test_state test_iter test_interval test_initialization test_compute_loss display average_loss "
    "base_lr lr_policy gamma power stepsize stepvalue plateau_winsize max_iter lr_iter iter_size "
    "warmup_iter warmup_start_lr type momentum momentum2 rms_decay delta "
    "weight_decay regularization_type clip_gradients "
    "snapshot snapshot_prefix snapshot_format snapshot_diff snapshot_after_train "
    "solver_mode device_id random_seed *",
    "TransformationParameter": "mirror crop_size crop_h crop_w scale mean_file mean_value *",
    "V0LayerParameter": "* blobs",
    "V1LayerParameter": "name type bottom top include exclude loss_weight param blob_share_mode "
    "blobs_lr weight_decay transform_param * blobs",
}


@functools.cache
def ordered_fields(message: Descriptor) -> tuple[FieldDescriptor, ...]:
    """Return every field of a message in the order of writing."""
    row = ORDERS.get(message.name, "*").split()
    star = row.index("*")
    rest = [field.name for field in message.fields if field.name not in row]
    names = [*row[:star], *rest, *row[star + 1 :]]
    return tuple(message.fields_by_name[name] for name in names)


@functools.cache
def field_ranks(message: Descriptor) -> dict[int, int]:
    """Return each field's place in the order of writing, by field number."""
    return {field.number: rank for rank, field in enumerate(ordered_fields(message))}
