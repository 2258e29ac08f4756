"""The lines with which TensorFlow, Horovod and NCCL fail."""

from __future__ import annotations

from caffe_recipes.run.failures.diagnosis import Diagnosis, Signature

TENSORFLOW_SIGNATURES = (
    Signature(
        "OOM when allocating tensor",
        Diagnosis(
            "tensorflow-memory",
            "the model and its batch do not fit in the memory of the device",
            "reduce the batch of each rank, and use more ranks to keep the global batch",
            "tensorflow/tensorflow#4735, santi-pdp/segan#42",
        ),
    ),
    Signature(
        "NaN",
        Diagnosis(
            "tensorflow-nan",
            "the loss became NaN: the training has diverged",
            "lower the learning rate or lengthen the warm-up, and check the data and labels; resume from a"
            " checkpoint before the loss grew",
            "tensorflow/models#8549, tensorflow/tensor2tensor#106",
        ),
        r"NaN loss during training|Model diverged with loss = NaN",
    ),
    Signature(
        "Mismatched ALLREDUCE",
        Diagnosis(
            "horovod-mismatch",
            "ranks reduce the same tensor with another shape, type or device: they do not run one model",
            "give all ranks the same code, options and kind of device; a name that is used twice in the graph"
            " does this, too",
            "horovod/horovod#398, horovod/horovod#1559",
        ),
    ),
    Signature(
        "by subset of ranks and are waiting for remainder of ranks",
        Diagnosis(
            "horovod-stalled",
            "some ranks wait for others that have stopped, are slow, or run another graph; the line lists the"
            " ranks that are missing or ready",
            "look for the first error of the missing ranks; all ranks must take the same steps, also for"
            " checkpoints and tests",
            "horovod/horovod#403, horovod/horovod#534",
        ),
    ),
    Signature(
        "Horovod has been shut down",
        Diagnosis(
            "horovod-shut-down",
            "another rank failed or finished first; this rank only reports it",
            "read the first error in the log of all ranks, above the first line of this kind",
            "horovod/horovod#2975, horovod/horovod#243",
            is_consequence=True,
        ),
    ),
    Signature(
        "ncclCommInitRank failed",
        Diagnosis(
            "nccl-init",
            "NCCL found no network interface or GPU through which all ranks can talk",
            "run once with NCCL_DEBUG=INFO, and set NCCL_SOCKET_IFNAME to the interface between the hosts",
            "horovod/horovod#1651, horovod/horovod#3625",
            is_guess=True,
        ),
    ),
    Signature(
        "TensorFlow library was compiled to use",
        Diagnosis(
            "tensorflow-cpu",
            "this TensorFlow was built for a CPU with more instructions than this host has",
            "install a build for this CPU, or build it on this host",
            "tensorflow/tensorflow#6896",
        ),
        r"compiled to use .* (?:aren't|are not) available",
    ),
    Signature(
        "Failed to load the native TensorFlow runtime",
        Diagnosis(
            "tensorflow-import",
            "TensorFlow cannot load one of its libraries; the ImportError names it",
            "install the CUDA and library versions that this TensorFlow was built for, and export"
            " LD_LIBRARY_PATH to all ranks",
            "horovod/horovod#239",
            is_consequence=True,
        ),
    ),
    Signature(
        "DataLossError",
        Diagnosis(
            "tensorflow-records",
            "a TFRecord or checkpoint is incomplete or damaged",
            "copy it again, or build it again (`caffe-recipes data` checks TFRecords)",
            "tensorflow, core/lib/io/record_reader.cc",
        ),
        r"(?:truncated|corrupted) record at",
    ),
)
