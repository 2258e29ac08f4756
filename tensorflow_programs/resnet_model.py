"""ResNet-50 as in tensorflow/tpu in April 2018 (models/official/resnet/resnet_model.py), channels last.

The stride of a block is in its 3 x 3 convolution, the scale of the last normalization of each block starts at
0, and padding depends only on the kernel, not on the size of the image.
"""

from __future__ import annotations

import math

import tensorflow.compat.v1 as tf

# 2 b i: Caffe's moving_average_fraction; tensorflow/tpu has 0.9.
BATCH_NORM_DECAY = 0.95
BATCH_NORM_EPSILON = 1e-5

# For each depth, the number of blocks in each of the four groups, and the filters of the first group. Depth
# 14 is for tests and small images.
SIZES = {
    14: ((1, 1, 1, 1), 16),
    50: ((3, 4, 6, 3), 64),
    101: ((3, 4, 23, 3), 64),
    152: ((3, 8, 36, 3), 64),
    200: ((3, 24, 36, 3), 64),
}


def build_logits(images: tf.Tensor, depth: int, classes: int, *, is_training: bool) -> tf.Tensor:
    """Return the logits (batch, classes) of normalized images (batch, height, width, 3).

    If `is_training`, batches are normalized with their own statistics, and operations in the collection
    UPDATE_OPS update the moving averages. Raises KeyError if the depth is not in SIZES.
    """
    groups, filters = SIZES[depth]
    net = _convolve(images, filters, kernel=7, stride=2)
    net = tf.nn.relu(_normalize(net, is_training))
    net = tf.layers.max_pooling2d(net, pool_size=3, strides=2, padding="SAME")
    for group, blocks in enumerate(groups):
        for block in range(blocks):
            stride = 2 if group > 0 and block == 0 else 1
            net = _bottleneck(net, filters * 2**group, stride, is_first=block == 0, is_training=is_training)
    net = tf.reduce_mean(net, [1, 2])
    return tf.layers.dense(net, classes, kernel_initializer=tf.random_normal_initializer(stddev=0.01))


def _bottleneck(net: tf.Tensor, filters: int, stride: int, *, is_first: bool, is_training: bool) -> tf.Tensor:
    shortcut = net
    if is_first:
        shortcut = _normalize(_convolve(net, 4 * filters, kernel=1, stride=stride), is_training)
    net = tf.nn.relu(_normalize(_convolve(net, filters, kernel=1), is_training))
    net = tf.nn.relu(_normalize(_convolve(net, filters, kernel=3, stride=stride), is_training))
    net = _normalize(_convolve(net, 4 * filters, kernel=1), is_training, starts_at_zero=True)
    return tf.nn.relu(net + shortcut)


def _convolve(net: tf.Tensor, filters: int, *, kernel: int, stride: int = 1) -> tf.Tensor:
    if stride > 1:
        before = (kernel - 1) // 2
        sides = [before, kernel - 1 - before]
        net = tf.pad(net, [[0, 0], sides, sides, [0, 0]])
    # TensorFlow 1.6's variance_scaling_initializer: a normal distribution with variance 1 / fan-in, truncated
    # at two standard deviations, which scales its standard deviation by 0.88. Later versions correct this.
    fan_in = kernel * kernel * net.shape[-1]
    return tf.layers.conv2d(
        net,
        filters,
        kernel,
        strides=stride,
        padding="VALID" if stride > 1 else "SAME",
        use_bias=False,
        kernel_initializer=tf.truncated_normal_initializer(stddev=math.sqrt(1 / fan_in)),
    )


def _normalize(net: tf.Tensor, is_training: bool, *, starts_at_zero: bool = False) -> tf.Tensor:
    return tf.layers.batch_normalization(
        net,
        momentum=BATCH_NORM_DECAY,
        epsilon=BATCH_NORM_EPSILON,
        training=is_training,
        fused=True,
        gamma_initializer=tf.zeros_initializer() if starts_at_zero else tf.ones_initializer(),
    )
