"""Logs of public threads: their decisive lines, retold, are explained rightly, and no healthy log gets a word."""

# ruff: noqa: E501 - programs print long lines

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from caffe_recipes.errors import InputError
from caffe_recipes.run.failures.explain import explain_lines, explain_log
from caffe_recipes.run.failures.rank_comparison import MOST_RANKS

ROOT = Path(__file__).resolve().parents[3]
GLOG = "0707 16:48:46.336623 16692"
TERMINATED = "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES"
STACK = "*** Check failure stack trace: ***"
HEALTHY = [
    f"I{GLOG} solver.cpp:397] Solving LeNet",
    f"I{GLOG} blocking_queue.cpp:50] Data layer prefetch queue empty",
    f"I{GLOG} solver.cpp:312] Iteration 0, loss = 2.3",
    f"I{GLOG} solver.cpp:312] Iteration 100, loss = 0.3",
]
_REMOTE = "remote[node2] HYD_spawn (libhydra/spawn/intel/hydra_spawn.c:117): execvp error on file"

# The thread, what explains it, and its lines: the name of the last program is not always the one that failed.
THREADS: list[tuple[str, str, list[str]]] = [
    (
        "intel/caffe#76",
        "mlsl-affinity",
        ["@: env.c:115:parse_server_affinity() server_affinity[ep_idx] >= 0 failed."],
    ),
    (
        "intel/caffe#274",
        "mlsl-server-missing",
        [
            f"[8] {_REMOTE} FOUNDED_MLSL_ROOT/intel64/bin/ep_server (No such file or directory)",
            "[mpiexec@head] HYD_sock_write (libhydra/sock/hydra_sock_intel.c:357): write error (Bad file descriptor)",
            TERMINATED,
            "=   RANK 2 PID 30362 RUNNING AT node2",
            "=   KILLED BY SIGNAL: 9 (Killed)",
        ],
    ),
    (
        "intel/caffe#56",
        "mlsl-memory",
        ["  (4328): /mlsl/src/comms_ep.cpp:CommsAlloc:535: ASSERT 'ptr' FAILED: NULL"],
    ),
    (
        "intel/caffe#224",
        "psm-shared-memory",
        [
            "node292: Unable to allocate shared memory for intra-node messaging.",
            "node292: Delete stale shared memory files in /dev/shm.",
        ],
    ),
    ("cornelisnetworks/opa-psm2#48", "psm-segment", ["PSM could not set up shared memory segment (err=9)"]),
    (
        "pmodels/mpich#4757",
        "psm-contexts",
        [
            "s05r1b72.304088hfi_userinit_internal: assign_context command failed: Device or resource busy",
            "s05r1b72.304088hfp_gen1_context_open: hfi_userinit_internal: failed, trying again (1/3)",
            "s05r1b72.304088PSM2 can't open hfi unit: 0 (err=23)",
        ],
    ),
    (
        "firemodels/fds#7868",
        "ofi-provider",
        [
            "Abort(1094799) on node 0 (rank 0 in comm 0): Fatal error in PMPI_Init_thread: Other MPI error",
            "MPIDI_NM_mpi_init_hook(719): OFI addrinfo() failed (ofi_init.h:719:MPIDI_NM_mpi_init_hook:No data)",
        ],
    ),
    (
        "intel/MLSL#4",
        "library-missing",
        [
            "./mlsl_test: error while loading shared libraries: libmlsl.so.1: cannot open shared object file: No such",
            TERMINATED,
            "=   EXIT CODE: 127",
        ],
    ),
    ("je-santos/MPLBM-UT#92", "killed", [TERMINATED, "=   PID 92248 RUNNING AT desktop", "=   EXIT CODE: 9"]),
    (
        "pmodels/mpich#3777",
        "hydra-firewall",
        [
            'HYDU_sock_connect (utils/sock/sock.c:180): unable to connect from "node2" to "node1" (Connection timed)',
            "[proxy:0:1@node2] main (pm/pmiserv/pmip.c:185): unable to connect to server node1 at port 35322",
        ],
    ),
    (
        "open-mpi/ompi#7187",
        "hydra-name",
        ["HYDU_sock_connect (utils/sock/sock.c:145): unable to get host address for Master (4)"],
    ),
    (
        "pmodels/mpich#1106",
        "program-missing",
        [
            "[mpiexec@lenz] HYDU_create_process (launch.c:69): execvp error on file /x/hydra_pmi_proxy (No such file)",
            "[mpiexec@lenz] HYD_pmcd_pmiserv_proxy_init_cb (pmiserv_cb.c:315): assert (!closed) failed",
        ],
    ),
    ("horovod/horovod#2117", "ssh-denied", ["root@10.0.0.3: Permission denied (publickey,password)."]),
    (
        "horovod/horovod#1226",
        "ssh-unreachable",
        ["ssh: connect to host 192.168.0.119 port 12345: Connection refused"],
    ),
    (
        "volcano-sh/volcano#2226",
        "ssh-name",
        [
            "ssh: Could not resolve hostname worker-5.job: Name or service not known",
            "ORTE was unable to reliably start one or more daemons.",
        ],
    ),
    (
        "hafs-community/HAFS#101",
        "slurm-memory",
        [
            "slurmstepd: error: Detected 1 oom-kill event(s) in step 3495064.0 cgroup.",
            "srun: error: Orion-01-01: task 4: Out Of Memory",
            "slurmstepd: error: *** STEP 3495064.0 ON orion-01-01 CANCELLED AT 2021-10-27T19:35:36 ***",
        ],
    ),
    (
        "chrisknewman/tusas#149",
        "slurm-memory",
        ["0: slurmstepd: error: Detected 1 oom_kill event in StepId=440575.0."],
    ),
    (
        "ZettaAI/zetta_utils#671",
        "slurm-time",
        [
            "srun: Job step aborted: Waiting up to 47 seconds for job step to finish.",
            "slurmstepd: error: *** JOB 494583 ON n1 CANCELLED AT 2024-04-20T09:09:37 DUE TO TIME LIMIT ***",
        ],
    ),
    (
        "Slurm, req.c",
        "slurm-node",
        [
            "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2024-04-20T09:09:37 DUE TO NODE FAILURE, SEE SLURMCTLD"
            " LOG FOR DETAILS ***",
        ],
    ),
    ("nebius/soperator#854", "slurm-node", ["salloc: error: Node failure on worker-1"]),
    (
        "Slurm, step_launch.c",
        "slurm-node",
        ["srun: error: Node failure on c[4-5]", "srun: error: c6: task 2: Killed"],
    ),
    (
        "pmodels/mpich#7086",
        "hydra-option",
        [
            "[mpiexec@head] match_arg (lib/utils/args.c:166): unrecognized argument path",
            "[mpiexec@head] HYDU_parse_array (lib/utils/args.c:181): argument matching returned error",
        ],
    ),
    (
        "pmodels/mpich#2175",
        "hydra-singleton",
        [
            "[mpiexec@cobb] match_arg (/mpich/src/pm/hydra/utils/args/args.c:159): unrecognized argument pmi_args"
        ],
    ),
    (
        "protobuf, common.cc",
        "protobuf-version",
        [
            "[libprotobuf FATAL google/protobuf/stubs/common.cc:61] This program requires version 3.6.0 of the Protocol"
            " Buffer runtime library, but the installed version is 2.6.1.  Please update your library.",
        ],
    ),
    (
        "hafs-community/HAFS#101, second",
        "bus-error",
        [
            "srun: error: Orion-18-69: task 289: Bus error",
            "slurmstepd: error: *** STEP 3495450.0 ON orion-01-04 CANCELLED AT 2021-10-27T20:22:22 ***",
        ],
    ),
    (
        "intel/caffe#45",
        "bus-error",
        [
            '*** Aborted at 1486517656 (unix time) try "date -d @1486517656" if you are using GNU date ***',
            "PC: @     0x7f0e3913ef0b __memcpy_avx512_no_vzeroupper",
            "*** SIGBUS (@0x7e067c17cfe1) received by PID 67743 (TID 0x7f0526ff4700) from PID 1; stack trace: ***",
            "    @     0x7f0e3dbb3b0a caffe::db::LMDBCursor::value()",
        ],
    ),
    (
        "openai/mlsh#17",
        "bus-error",
        [
            TERMINATED,
            "=   EXIT CODE: 135",
            "APPLICATION TERMINATED WITH THE EXIT STRING: Bus error (signal 7)",
        ],
    ),
    ("tensorflow/tensorflow#17411", "illegal-instruction", ["Illegal instruction (core dumped)"]),
    (
        "tensorflow/tensorflow#6896",
        "tensorflow-cpu",
        [
            "2018-01-17 08:21:49.120154: F tensorflow/core/platform/cpu_feature_guard.cc:35] The TensorFlow library"
            " was compiled to use AVX2 instructions, but these aren't available on your machine.",
            "Aborted (core dumped)",
        ],
    ),
    (
        "weiliu89/caffe#689",
        "bad-alloc",
        [
            "terminate called after throwing an instance of 'std::bad_alloc'",
            "  what():  std::bad_alloc",
            "*** SIGABRT (@0x30) received by PID 48 (TID 0x7f317b7fe700) from PID 48; stack trace: ***",
        ],
    ),
    ("BVLC/caffe#886", "killed", [*HEALTHY[:3], "Killed"]),
    (
        "BVLC/caffe#5748",
        "lmdb-missing",
        [f"F{GLOG} db_lmdb.hpp:15] Check failed: mdb_status == 0 (2 vs. 0) No such file or directory", STACK],
    ),
    (
        "BVLC/caffe#5696",
        "lmdb-denied",
        [f"F{GLOG} db_lmdb.hpp:15] Check failed: mdb_status == 0 (13 vs. 0) Permission denied", STACK],
    ),
    (
        "BVLC/caffe#5182",
        "lmdb-folder",
        [f"F{GLOG} db_lmdb.hpp:15] Check failed: mdb_status == 0 (21 vs. 0) Is a directory", STACK],
    ),
    (
        "BVLC/caffe#5552",
        "lmdb-file-system",
        [
            f"F{GLOG} convert.cpp:101] Check failed: mdb_env_open(mdb_env, db_path, 0, 0664) == 0 (38 vs. 0) failed"
        ],
    ),
    (
        "BVLC/caffe#2293",
        "lmdb-full",
        [
            f"F{GLOG} db.hpp:109] Check failed: mdb_status == 0 (-30792 vs. 0) MDB_MAP_FULL: mapsize limit reached"
        ],
    ),
    (
        "yjxiong/caffe#69",
        "gpu-memory",
        [f"F{GLOG} syncedmem.cpp:56] Check failed: error == cudaSuccess (2 vs. 0)  out of memory", STACK],
    ),
    (
        "facebookarchive/C3D#81",
        "gpu-architecture",
        [f"F{GLOG} vol2col.cu:75] Check failed: error == cudaSuccess (8 vs. 0)  invalid device function"],
    ),
    (
        "gkioxari/RstarCNN#6",
        "gpu-driver",
        [
            f"F{GLOG} common.cpp:141] Check failed: error == cudaSuccess (35 vs. 0)  CUDA driver version is insufficient"
        ],
    ),
    (
        "happynear/caffe-windows#84",
        "cpu-only",
        [f"F{GLOG} common.cpp:106] Cannot use GPU in CPU-only Caffe: check mode."],
    ),
    (
        "yun-liu/RCF#80",
        "unknown-layer",
        [
            f"F{GLOG} layer_factory.hpp:81] Check failed: registry.count(type) == 1 (0 vs. 1) Unknown layer type:"
            " ImageLabelmapData (known types: AbsVal, Accuracy)",
        ],
    ),
    (
        "pulkitag/ief#7",
        "python-layer",
        [
            f"F{GLOG} layer_factory.hpp:81] Check failed: registry.count(type) == 1 (0 vs. 1) Unknown layer type: Python (known"
        ],
    ),
    (
        "BVLC/caffe#2839",
        "unknown-field",
        [
            "[libprotobuf ERROR google/protobuf/text_format.cc:245] Error parsing text-format caffe.NetParameter: 40:17:"
            ' Message type "caffe.LayerParameter" has no field named "insanity_param".',
            f"F{GLOG} upgrade_proto.cpp:928] Check failed: ReadProtoFromTextFile(param_file, param) Failed to parse"
            " NetParameter file: ./mydeploy.prototxt",
            STACK,
        ],
    ),
    (
        "sfzhang15/RefineDet#25",
        "shape-mismatch",
        [
            f"F{GLOG} net.cpp:774] Cannot copy param 0 weights from layer 'P3_mbox_conf'; shape mismatch.  Source param"
            " shape is 63 256 3 3 (145152); target param shape is 6 256 3 3 (13824).",
        ],
    ),
    (
        "BVLC/caffe#5883",
        "blob-count",
        [
            f"F{GLOG} net.cpp:767] Check failed: target_blobs.size() == source_layer.blobs_size() (5 vs. 3) Incompatible"
        ],
    ),
    (
        "BVLC/caffe#4722",
        "duplicate-top",
        [f"F{GLOG} net.cpp:365] Duplicate blobs produced by multiple sources."],
    ),
    ("NVIDIA/DIGITS#2196", "duplicate-top", ["ERROR: Top blob 'data' produced by multiple sources."]),
    (
        "BVLC/caffe#3375",
        "unknown-bottom",
        [f"F{GLOG} insert_splits.cpp:35] Unknown bottom blob 'data' (layer 'conv1_1', bottom index 0)"],
    ),
    (
        "BVLC/caffe#1394",
        "snapshot-not-written",
        [*HEALTHY, f"F{GLOG} io.cpp:66] Check failed: proto.SerializeToOstream(&output) ", STACK],
    ),
    (
        "BVLC/caffe#5067",
        "blob-too-large",
        [
            f"F{GLOG} blob.cpp:33] Check failed: shape[i] <= 0x7fffffff / count_ (385 vs. 89) blob size exceeds INT_MAX"
        ],
    ),
    (
        "BVLC/caffe#4487",
        "image-too-small",
        [f"F{GLOG} data_transformer.cpp:467] Check failed: datum_width >= crop_size (3 vs. 224) "],
    ),
    (
        "weiliu89/caffe#35",
        "image-sizes",
        [f"F{GLOG} data_transformer.cpp:196] Check failed: datum_height == height (600 vs. 300) "],
    ),
    (
        "BVLC/caffe#4964",
        "mean-size",
        [
            f"F{GLOG} data_transformer.cpp:520] Check failed: cv_cropped_image.rows == data_mean_.height() (227 vs. 256)"
        ],
    ),
    (
        "intel/caffe#55",
        "image-channels",
        [f"F{GLOG} data_transformer.cpp:283] Check failed: channels == datum_channels (1 vs. 0) "],
    ),
    (
        "alexgkendall/caffe-segnet#23",
        "label-range",
        [f"F{GLOG} accuracy_layer.cpp:72] Check failed: label_value < num_labels (11 vs. 11)"],
    ),
    (
        "BVLC/caffe#2672",
        "label-crash",
        [
            "PC: @     0x7ffdd411fd24 caffe::SoftmaxWithLossLayer<>::Forward_cpu()",
            "*** SIGSEGV (@0xf372c5c0) received by PID 15058 (TID 0x7ffdd4678780) from PID 184; stack trace: ***",
        ],
    ),
    (
        "BVLC/caffe#5874",
        "inner-product-input",
        [
            f"F{GLOG} inner_product_layer.cpp:64] Check failed: K_ == new_K (10240 vs. 100352) Input size incompatible"
        ],
    ),
    (
        "BVLC/caffe#5137",
        "diverged",
        [
            f"I{GLOG} solver.cpp:229] Iteration 2400, loss = 4.88092",
            f"I{GLOG} solver.cpp:229] Iteration 2500, loss = 87.3365",
            f"I{GLOG} solver.cpp:229] Iteration 2600, loss = 87.3365",
        ],
    ),
    ("weiliu89/caffe#863", "slow-data", [*HEALTHY[:3], HEALTHY[1]]),
    (
        "BVLC/caffe#6757",
        "gpu-library-start",
        [
            f"F{GLOG} cudnn_conv_layer.cpp:54] Check failed: status == CUDNN_STATUS_SUCCESS (1 vs. 0)  CUDNN_STATUS_NOT_INITIALIZED"
        ],
    ),
    (
        "BVLC/caffe#5564",
        "gpu-library-start",
        [
            f"F{GLOG} common.cpp:114] Check failed: status == CUBLAS_STATUS_SUCCESS (1 vs. 0)  CUBLAS_STATUS_NOT_INITIALIZED"
        ],
    ),
    (
        "BVLC/caffe#5544",
        "cudnn-parameter",
        [
            f"F{GLOG} cudnn.hpp:100] Check failed: status == CUDNN_STATUS_SUCCESS (3 vs. 0)  CUDNN_STATUS_BAD_PARAM",
            STACK,
        ],
    ),
    (
        "rbgirshick/fast-rcnn#44",
        "gpu-too-old",
        [
            f"F{GLOG} cudnn_conv_layer.cpp:32] Check failed: status == CUDNN_STATUS_SUCCESS (6 vs. 0)  CUDNN_STATUS_ARCH_MISMATCH"
        ],
    ),
    (
        "NVIDIA/caffe#266",
        "cudnn-unsupported",
        [
            f"F{GLOG} cudnn_ndconv_layer.cu:184] Check failed: status == CUDNN_STATUS_SUCCESS (9 vs. 0)  CUDNN_STATUS_NOT_SUPPORTED"
        ],
    ),
    (
        "NVIDIA/DIGITS#2163",
        "gpu-library-failed",
        [
            "ERROR: Check failed: status == CUDNN_STATUS_SUCCESS (8 vs. 0) CUDNN_STATUS_EXECUTION_FAILED, device 0"
        ],
    ),
    (
        "facebookarchive/C3D#56",
        "gpu-library-failed",
        [
            f"I{GLOG} solver.cpp:229] Iteration 4180, loss = 1.2",
            f"F{GLOG} math_functions.cu:26] Check failed: status == CUBLAS_STATUS_SUCCESS (13 vs. 0)  CUBLAS_STATUS_EXECUTION_FAILED",
        ],
    ),
    (
        "Pchank/caffe-sal#1",
        "gpu-library-failed",
        [
            f"F{GLOG} math_functions.cu:123] Check failed: status == CUBLAS_STATUS_SUCCESS (11 vs. 0)  CUBLAS_STATUS_MAPPING_ERROR"
        ],
    ),
    (
        "NVIDIA/DIGITS#799",
        "gpu-unknown",
        [f"F{GLOG} syncedmem.hpp:18] Check failed: error == cudaSuccess (30 vs. 0)  unknown error", STACK],
    ),
    (
        "NVIDIA/DIGITS#2181",
        "gpu-unknown",
        ["ERROR: Check failed: error == cudaSuccess (999 vs. 0) unknown error"],
    ),
    (
        "BVLC/caffe#4169",
        "gpu-crash",
        [
            f"F{GLOG} math_functions.cu:79] Check failed: error == cudaSuccess (77 vs. 0)  an illegal memory access"
        ],
    ),
    (
        "BVLC/caffe#5632",
        "gpu-crash",
        [
            f"F{GLOG} math_functions.cu:79] Check failed: error == cudaSuccess (4 vs. 0)  unspecified launch failure"
        ],
    ),
    (
        "weiliu89/caffe#71",
        "gpu-arguments",
        [f"F{GLOG} syncedmem.cpp:56] Check failed: error == cudaSuccess (11 vs. 0)  invalid argument", STACK],
    ),
    (
        "BVLC/caffe#1793",
        "gpu-configuration",
        [
            f"F{GLOG} relu_layer.cu:29] Check failed: error == cudaSuccess (9 vs. 0)  invalid configuration argument"
        ],
    ),
    (
        "pytorch/examples#621",
        "gpu-memory",
        [
            "Traceback (most recent call last):",
            "RuntimeError: CUDA out of memory. Tried to allocate 26.00 MiB (GPU 0; 1024.00 MiB total capacity)",
        ],
    ),
    (
        "pytorch/pytorch#1204",
        "label-range",
        [
            "ClassNLLCriterion.cu:108: block: [0,0,0], thread: [8,0,0] Assertion `t >= 0 && t < n_classes` failed.",
            "RuntimeError: CUDA error: device-side assert triggered",
        ],
    ),
    (
        "chenyuntc/simple-faster-rcnn-pytorch#198",
        "gpu-crash",
        ["RuntimeError: CUDA error: device-side assert triggered"],
    ),
    (
        "unsky/FPN#21",
        "label-count",
        [
            f"F{GLOG} softmax_loss_layer.cpp:47] Check failed: outer_num_ * inner_num_ == bottom[1]->count() (24 vs. 55)"
            " Number of labels must match number of predictions; e.g., if softmax axis == 1",
        ],
    ),
    (
        "src/caffe/layers/euclidean_loss_layer.cpp",
        "loss-shapes",
        [
            f"F{GLOG} euclidean_loss_layer.cpp:12] Check failed: bottom[0]->count(1) == bottom[1]->count(1) (10 vs. 1)"
            " Inputs must have the same dimension.",
        ],
    ),
    (
        "farmingyard/ShuffleNet#14",
        "concat-shapes",
        [
            f"F{GLOG} concat_layer.cpp:42] Check failed: top_shape[j] == bottom[i]->shape(j) (51 vs. 50) All inputs"
            " must have the same shape, except at concat_axis.",
        ],
    ),
    (
        "BVLC/caffe#5807",
        "eltwise-shapes",
        [f"F{GLOG} eltwise_layer.cpp:34] Check failed: bottom[i]->shape() == bottom[0]->shape() "],
    ),
    (
        "torrvision/crfasrnn#128",
        "eltwise-shapes",
        [
            f"F{GLOG} eltwise_layer.cpp:34] Check failed: bottom[0]->shape() == bottom[i]->shape() bottom[0]: 1 21 3 5"
            " (315), bottom[1]: 1 21 4 5 (420)",
        ],
    ),
    (
        "senlinuc/caffe_ocr#64",
        "negative-shape",
        [f"F{GLOG} blob.cpp:33] Check failed: shape[i] >= 0 (-5 vs. 0) "],
    ),
    (
        "eric612/MobileNet-YOLO#282",
        "group-channels",
        [f"F{GLOG} base_conv_layer.cpp:121] Check failed: channels_ % group_ == 0 (1 vs. 0) "],
    ),
    (
        "src/caffe/layers/pooling_layer.cpp",
        "pooling-pad",
        [f"F{GLOG} pooling_layer.cpp:75] Check failed: pad_h_ < kernel_h_ (3 vs. 3) "],
    ),
    (
        "rbgirshick/py-faster-rcnn#207",
        "blob-number",
        [
            f"F{GLOG} layer.hpp:375] Check failed: ExactNumBottomBlobs() == bottom.size() (2 vs. 1) SoftmaxWithLoss"
            " Layer takes 2 bottom blob(s) as input.",
        ],
    ),
    (
        "facebookarchive/C3D#248",
        "too-many-axes",
        [
            f"F{GLOG} blob.hpp:140] Check failed: num_axes() <= 4 (5 vs. 4) Cannot use legacy accessors on Blobs with"
            " > 4 axes.",
        ],
    ),
    ("BVLC/caffe#6145", "empty-blob", [f"F{GLOG} blob.cpp:103] Check failed: data_ ", STACK]),
    (
        "BVLC/caffe#4160",
        "history-length",
        [
            f"F{GLOG} sgd_solver.cpp:316] Check failed: state.history_size() == history_.size() (57 vs. 114) Incorrect"
            " length of history blobs.",
        ],
    ),
    (
        "TheLegendAli/DeepLab-Context2#15",
        "test-iter",
        [
            f"F{GLOG} solver.cpp:126] Check failed: param_.test_iter_size() == num_test_nets (1 vs. 0) test_iter must"
            " be specified for each test network.",
        ],
    ),
    (
        "BVLC/caffe#3064",
        "test-net-shape",
        [f"F{GLOG} net.cpp:720] Check failed: target_blobs[j]->shape() == source_blob->shape() "],
    ),
    (
        "weiliu89/caffe#110",
        "image-channels",
        [f"F{GLOG} data_transformer.cpp:444] Check failed: channels == img_channels (3 vs. 1) "],
    ),
    (
        "weiliu89/caffe#354",
        "mean-channels",
        [
            f"F{GLOG} data_transformer.cpp:621] Check failed: mean_values_.size() == 1 || mean_values_.size() =="
            " img_channels Specify either 1 mean_value or as many as channels: 1",
        ],
    ),
    (
        "my89/SituationCrf#3",
        "hdf5-missing",
        [
            "HDF5-DIAG: Error detected in HDF5 (1.8.11) thread 47623243356672:",
            f"F{GLOG} hdf5_data_layer.cpp:31] Failed opening HDF5 file: data/solver_data.h5",
        ],
    ),
    (
        "BVLC/caffe#3367",
        "image-missing",
        [
            f"E{GLOG} io.cpp:80] Could not open or find file examples/images/cat.jpg",
            f"F{GLOG} image_data_layer.cpp:65] Check failed: cv_img.data Could not load examples/images/cat.jpg",
        ],
    ),
    (
        "BVLC/caffe#3945",
        "image-unreadable",
        [f"F{GLOG} image_data_layer.cpp:138] Check failed: cv_img.data Could not load sign/S01.jpeg", STACK],
    ),
    (
        "CMU-Perceptual-Computing-Lab/openpose#1116",
        "weights-damaged",
        [
            f"F{GLOG} upgrade_proto.cpp:95] Check failed: ReadProtoFromBinaryFile(param_file, param) Failed to parse"
            " NetParameter file: hand/pose_iter_102000.caffemodel",
        ],
    ),
    (
        "BVLC/caffe#279",
        "protobuf-too-big",
        [
            "[libprotobuf ERROR google/protobuf/io/coded_stream.cc:171] A protocol message was rejected because it was"
            " too big (more than 67108864 bytes).",
            f"F{GLOG} upgrade_proto.cpp:95] Check failed: ReadProtoFromBinaryFile(param_file, param) Failed to parse"
            " NetParameter file: vgg.caffemodel",
        ],
    ),
    (
        "richzhang/colorization#36",
        "two-protobufs",
        [
            f"I{GLOG} layer_factory.hpp:77] Creating layer img_lab",
            "PC: @     0x7f016bf717a3 std::_Hashtable<>::clear()",
            "*** SIGSEGV (@0x9) received by PID 6838 (TID 0x7f01ca36fa80) from PID 9; stack trace: ***",
            "    @     0x7f016bf6a116 google::protobuf::DescriptorPool::FindFileByName()",
            "Segmentation fault (core dumped)",
        ],
    ),
    (
        "BVLC/caffe#1871",
        "crashed",
        [
            "PC: @                0x0 (unknown)",
            "*** SIGSEGV (@0x0) received by PID 5445 (TID 0x7fa4bc227800) from PID 0; stack trace: ***",
            "Segmentation fault (core dumped)",
        ],
    ),
    (
        "google/glog, signalhandler.cc",
        "terminated",
        [
            *HEALTHY,
            "*** SIGTERM (@0x3e800005e74) received by PID 17139 (TID 0x7fa7) from PID 24180; stack trace: ***",
        ],
    ),
    (
        "intel/caffe#209",
        "crashed",
        [
            "/var/spool/jobs/82540.SC: line 6: 231762 Segmentation fault      caffe train -solver solver.prototxt"
        ],
    ),
    (
        "BVLC/caffe#4953",
        "library-too-old",
        ["caffe: /usr/lib/libstdc++.so.6: version `GLIBCXX_3.4.21' not found (required by caffe)"],
    ),
    (
        "horovod/horovod#1370",
        "python-library-missing",
        [
            "[1,0]<stderr>:tensorflow.python.framework.errors_impl.NotFoundError: libcudart.so.10.0: cannot open"
            " shared object file: No such file or directory"
        ],
    ),
    (
        "horovod/horovod#1152",
        "tensorflow-memory",
        [
            "[1,1]<stderr>:ResourceExhaustedError (see above): OOM when allocating tensor with shape[2,1023,50257]"
        ],
    ),
    (
        "tensorflow/models#8549",
        "tensorflow-nan",
        ["E0521 14:44:30.800493 1400 hooks.py:760] Model diverged with loss = NaN."],
    ),
    (
        "horovod/horovod#534",
        "horovod-stalled",
        [
            "WARNING: One or more tensors were submitted to be reduced, gathered or broadcasted by subset of ranks and"
            " are waiting for remainder of ranks for more than 60 seconds.",
            "AbortedError (see above for traceback): Horovod has been shut down. This was caused by an exception",
        ],
    ),
    (
        "horovod/horovod#398",
        "horovod-mismatch",
        [
            "[1,2]<stderr>:FailedPreconditionError: Mismatched ALLREDUCE CPU/GPU device selection: One rank specified"
        ],
    ),
    (
        "horovod/horovod#2975",
        "horovod-shut-down",
        ["Unknown: Horovod has been shut down. This was caused by an exception"],
    ),
    (
        "horovod/horovod#1651",
        "nccl-init",
        [
            "tensorflow.python.framework.errors_impl.UnknownError: ncclCommInitRank failed: unhandled system error"
        ],
    ),
    (
        "intel/MLSL#19",
        "stuck-at-start",
        [f"[{rank}] I{GLOG} solver.cpp:312] Iteration 0, loss = 6.{rank}" for rank in range(4)],
    ),
]


def names(lines: list[str]) -> list[str]:
    result = explain_lines([lines])
    return [one.diagnosis.name for one in result.found] if result else []


@pytest.mark.parametrize(("thread", "name", "lines"), THREADS, ids=[thread for thread, *_ in THREADS])
def test_the_log_of_a_public_thread_is_explained(thread: str, name: str, lines: list[str]) -> None:
    assert names(lines) == [name]


def test_the_groups_in_which_a_log_is_read_do_not_matter() -> None:
    for thread, name, lines in THREADS:
        result = explain_lines([line] for line in lines)
        assert result is not None and [one.diagnosis.name for one in result.found] == [name], thread


def test_a_routine_line_hides_no_failure_and_follows_the_last_one() -> None:
    rate = f"I{GLOG} sgd_solver.cpp:219] Iteration 0, lr = 0.1"
    assert names([*HEALTHY[:3], HEALTHY[1]]) == ["slow-data"]
    waiting = [*HEALTHY[:3], *HEALTHY[1:2] * 3, rate]
    assert names(waiting) == ["slow-data"]
    assert names([*waiting, f"I{GLOG} solver.cpp:443] Optimization Done."]) == []
    assert names([*HEALTHY[:3], HEALTHY[1], f"[3] {rate}"]) == []
    full = f"F{GLOG} io.cpp:66] Train net output #0: No space left on device"
    assert names([f"[3] {rate}", f"[3] {full}", rate]) == ["disk-full"]


@pytest.mark.parametrize("label", ["[17] ", "17: ", " 3: ", "[1,17]<stderr>:"])
def test_the_label_of_a_rank_hides_no_failure(label: str) -> None:
    for thread, name, lines in THREADS:
        if not lines[0].startswith("["):
            found = names([f"{label}{line}" for line in lines])
            assert found == [name], thread


def reference_logs() -> list[Path]:
    shared = (ROOT.parent / "shared", ROOT / "shared")
    return [log for folder in shared for log in sorted(folder.glob("reference/parity/*/*.log"))]


def test_no_log_of_a_run_that_went_well_gets_a_word() -> None:
    assert names(HEALTHY) == []
    logs = reference_logs()
    if not logs:
        pytest.skip("the reference logs are not on this machine")
    for log in logs:
        assert explain_log(log).found == (), log
        assert names([f"[17] {line}" for line in log.read_text().splitlines()]) == [], log


def test_a_healthy_log_of_several_ranks_gets_no_word() -> None:
    lines = [
        f"[{rank}] I0707 16:{at // 60:02}:{at % 60:02}.{rank:06} 16692 solver.cpp:312] Iteration {at * 20},"
        f" loss = {6.9 - at / 10 + rank / 50}"
        for at in range(60)
        for rank in (3, 0, 2, 1)
    ]
    assert names(lines) == []


def test_only_the_first_of_many_lines_is_shown_with_their_number_and_ranks() -> None:
    line = f"F{GLOG} db_lmdb.hpp:15] Check failed: mdb_status == 0 (2 vs. 0) No such file or directory"
    result = explain_lines([[f"[{rank}] {line}" for rank in range(12)]])
    assert result is not None
    (found,) = result.found
    assert (found.number, found.count) == (1, 12)
    assert found.describe_more() == "the first of 12 such lines of ranks 0, 1, 2, 3, 4, 5, 6, 7, ..."


def test_a_fatal_line_that_is_not_known_is_shown_but_not_explained() -> None:
    result = explain_lines([[f"F{GLOG} layer.cpp:1] Check failed: moon == cheese "]])
    assert result is not None
    assert result.found == ()
    assert result.fatal.endswith("moon == cheese")


@pytest.mark.parametrize(
    "line",
    [
        "Warning: CUDNN_STATUS_NOT_SUPPORTED; Reason: engine.finalize()",
        "W tensorflow/stream_executor/cuda/cuda_dnn.cc:1] retrying after CUDNN_STATUS_EXECUTION_FAILED",
        'layer { name: "Segmentation fault" type: "Concat" }',
        "HDF5 file: data/solver_data.h5",
        "caught CUDA error: out of memory; trying a smaller workspace",
        "    @     0x7f016bf6a116 google::protobuf::Message::FindInitializationErrors()",
    ],
)
def test_what_is_only_mentioned_is_no_failure(line: str) -> None:
    assert names([*HEALTHY, line, HEALTHY[-1]]) == []


def test_a_signature_in_an_informational_line_says_nothing() -> None:
    assert names([f"I{GLOG} a.cpp:1] The text 'Host key verification failed' is only quoted", *HEALTHY]) == []


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "is empty"),
        (bytes(range(256)) * 40, "is binary"),
        (b"total 12\ndrwxr-xr-x 2 me me 4096 Jan 1 00:00 .\n", "has no line of Caffe"),
    ],
)
def test_a_file_that_is_no_log_is_refused(tmp_path: Path, content: bytes, what: str) -> None:
    (tmp_path / "log").write_bytes(content)
    with pytest.raises(InputError, match=what) as caught:
        explain_log(tmp_path / "log")
    assert caught.value.where == str(tmp_path / "log")


def test_a_missing_log_and_a_folder_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(InputError, match=": cannot be read: "):
            explain_log(path)


def test_a_log_is_explained_although_it_is_torn_and_ends_in_mid_line(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"[0] \xff\xfe\n[1] [2] Host key verification failed.\n[0] I0707 16:48:46.3")
    (found,) = explain_log(log).found
    assert (found.number, found.ranks) == (2, {2})


def test_memory_does_not_grow_with_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("w") as file:
        for at in range(200):
            for rank in range(16):
                file.write(
                    f"[{rank}] I{GLOG} solver.cpp:312] Iteration {at * 20}, loss = {6.9 + rank / 99}\n"
                )
            file.write(f"[3] {'x' * 500} EXIT CODE {at}\n")
    tracemalloc.start()
    assert explain_log(log).found == ()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20


def test_memory_is_bounded_however_many_ranks_fail() -> None:
    def hostile() -> Iterator[list[str]]:
        for rank in range(MOST_RANKS + 500):
            label = f"[{rank}{rank:09}]"
            loss = f"{label} I{GLOG} solver.cpp:312] Iteration 0, loss = 87.3365"
            yield [loss, f"{label} Host key verification failed."]

    tracemalloc.start()
    result = explain_lines(hostile())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert result is not None
    (found,) = result.found
    assert (found.count, len(found.ranks)) == (MOST_RANKS + 500, MOST_RANKS)
    assert peak < 6 << 20
