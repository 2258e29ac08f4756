"""The lines with which Caffe refuses a net whose layers do not fit each other, or its solver.

The texts are those of BVLC's and Intel's Caffe: src/caffe/layers/, net.cpp, solver.cpp and blob.cpp, and
include/caffe/layer.hpp.
"""

from __future__ import annotations

from caffe_recipes.run.failures.diagnosis import Diagnosis, Signature

NET_SIGNATURES = (
    Signature(
        "Check failed: K_ == new_K",
        Diagnosis(
            "inner-product-input",
            "an InnerProduct layer gets an input of another size than its weights were made for",
            "feed images of the size that the net was built for (`crop_size`), or turn the layer into a"
            " Convolution",
            "BVLC/caffe#5874",
        ),
    ),
    Signature(
        "Number of labels must match number of predictions",
        Diagnosis(
            "label-count",
            "there is not one label for each prediction: an image has several labels, or a map of labels has"
            " another height or width than the scores",
            "compare the `Top shape` lines of both bottoms of the layer: scores N x C x H x W need N x H x W"
            " labels; for several labels per image use SigmoidCrossEntropyLoss",
            "sukritshankar/Caffe-LMDBCreation-MultiLabel#3, nqanh/affordance-net#9, unsky/FPN#21",
        ),
    ),
    Signature(
        "Check failed: ",
        Diagnosis(
            "loss-shapes",
            "the two bottoms of a loss layer do not have the same number of images or of values",
            "compare their `Top shape` lines; `num_output` of the last layer must be the length of a label",
            "src/caffe/layers/loss_layer.cpp, euclidean_loss_layer.cpp, sigmoid_cross_entropy_loss_layer.cpp",
        ),
        r"Check failed: .*(?:The data and label should have the same |Inputs must have the same dimension|"
        r"SIGMOID_CROSS_ENTROPY_LOSS layer inputs must have the same count)",
    ),
    Signature(
        "All inputs must have the same shape, except at concat_axis",
        Diagnosis(
            "concat-shapes",
            "the bottoms of a Concat layer differ in more than the axis that they are joined along; pooling"
            " rounds sizes up, and convolution down",
            "feed images of the size that the net was made for (`crop_size`), or change the `pad` of one of"
            " the branches; the `Top shape` lines show where they part",
            "smichalowski/google_inception_v3_for_caffe#4, pertusa/InceptionBN-21K-for-Caffe#1",
        ),
    ),
    Signature(
        "Check failed: bottom[",
        Diagnosis(
            "eltwise-shapes",
            "the bottoms of an Eltwise layer do not have the same shape",
            "compare their `Top shape` lines: both branches need the same strides and the same `num_output`,"
            " and images of a size that they divide alike",
            "ZheC/Realtime_Multi-Person_Pose_Estimation#116, torrvision/crfasrnn#128",
        ),
        r"Check failed: bottom\[[i0]\]->shape\(\) == bottom\[[i0]\]->shape\(\)",
    ),
    Signature(
        "Check failed: shape[i] >= 0 ",
        Diagnosis(
            "negative-shape",
            "the output of a layer would have a negative size: its kernel is larger than its padded input, as"
            " in a deep net with small images",
            "compare the kernel with the last `Top shape` before it; feed larger images (`crop_size`), or"
            " reduce the kernel or the strides before it",
            "src/caffe/blob.cpp, src/caffe/layers/conv_layer.cpp; senlinuc/caffe_ocr#64",
            is_guess=True,
        ),
    ),
    Signature(
        "% group_ == 0 ",
        Diagnosis(
            "group-channels",
            "the channels of a convolution's input, or its `num_output`, are not a multiple of its `group`",
            "correct `group`; in a depthwise convolution it is the number of channels of the layer before",
            "eric612/MobileNet-YOLO#282, szad670401/advanced-mxnet2caffe#2",
        ),
        r"Check failed: (?:channels_|num_output_) % group_ == 0 ",
    ),
    Signature(
        "Check failed: pad_",
        Diagnosis(
            "pooling-pad",
            "the `pad` of a Pooling layer is not smaller than its kernel, or stands beside `global_pooling`",
            "reduce `pad`; with `global_pooling`, leave out `pad` and `stride`",
            "src/caffe/layers/pooling_layer.cpp",
        ),
        r"Check failed: pad_[hw]_ (?:< kernel_[hw]_|== 0) ",
    ),
    Signature(
        " blob(s) as ",
        Diagnosis(
            "blob-number",
            "the layer that is named has more or fewer `bottom` or `top` than its type takes in this Caffe",
            "correct them; a net of another fork may give its losses a third bottom, e.g. weights",
            "rbgirshick/py-faster-rcnn#207, microsoft/caffe#125, BVLC/caffe#6723",
        ),
        r"Check failed: (?:Exact|Min|Max)(?:Num)?(?:Bottom|Top)Blobs\(\) ",
    ),
    Signature(
        "Cannot use legacy accessors on Blobs with > 4 axes",
        Diagnosis(
            "too-many-axes",
            "a layer or filler that knows only images gets a blob with more than four axes, as videos have",
            "use the Caffe that the net was written for, and the gaussian filler instead of xavier",
            "BVLC/caffe#5289, facebookarchive/C3D#248",
        ),
    ),
    Signature(
        "Check failed: data_",
        Diagnosis(
            "empty-blob",
            "a layer uses a blob that has no values: its bottom is empty, as an HDF5 file without rows, or it"
            " does not set the shape of its own top",
            "find the layer, which `Creating Layer` names last or the stack trace names, and look for a 0 in"
            " the `Top shape` lines before it",
            "BVLC/caffe#6133, BVLC/caffe#4893, BVLC/caffe#3397",
            is_guess=True,
        ),
        r"Check failed: data_ *$",
    ),
    Signature(
        "Incorrect length of history blobs",
        Diagnosis(
            "history-length",
            "the solverstate is of another net or another type of solver, or is damaged",
            "resume with the net and the solver that wrote it, or from the snapshot before, or train on from"
            " the weights alone (`--weights`)",
            "BVLC/caffe#4160; src/caffe/solvers/sgd_solver.cpp",
        ),
    ),
    Signature(
        "test_iter must be specified for each test network",
        Diagnosis(
            "test-iter",
            "the solver does not have as many `test_iter` as test nets; with `train_net`, only a `test_net`"
            " counts as one",
            "write a `test_iter` for each test net, or leave out `test_iter` and `test_interval`",
            "TheLegendAli/DeepLab-Context2#15; src/caffe/solver.cpp",
        ),
        r"Check failed: param_\.test_iter_size\(\) [=>]= num_test_nets",
    ),
    Signature(
        "target_blobs[j]->shape() == source_blob->shape()",
        Diagnosis(
            "test-net-shape",
            "a layer has another shape in the test net than in the training net, as an InnerProduct after"
            " images of another size",
            "give both nets images of one size (`crop_size`), and layers of one name one `num_output`",
            "BVLC/caffe#3064",
        ),
    ),
)
