"""The lines with which Caffe, LMDB and protobuf fail.

The texts are those of BVLC's and Intel's Caffe: src/caffe/util/db_lmdb.cpp, io.cpp and insert_splits.cpp,
src/caffe/net.cpp, solver.cpp, data_transformer.cpp and blob.cpp, and include/caffe/common.hpp. The numbers of
`mdb_status` are errno's, or LMDB's own (lmdb.h).
"""

from __future__ import annotations

from caffe_recipes.run.failures.diagnosis import Diagnosis, Signature

_MDB = "mdb_status == 0"
_LABEL_RANGE = Diagnosis(
    "label-range",
    "a label is negative, or not below the number of outputs of the last layer",
    "labels run from 0; set `num_output` to the number of classes, or correct the labels",
    "BVLC/caffe#2143, pytorch/pytorch#1204",
)

CAFFE_SIGNATURES = (
    Signature(
        _MDB,
        Diagnosis(
            "lmdb-missing",
            "the `source` of a data layer is not the folder of an LMDB on this rank's host: the path is wrong"
            " there, is relative to another working folder, or names data.mdb or a LevelDB",
            "run `ls` on the `source` of the printed net on that host; stage the data (`caffe-recipes stage`)"
            " or write the absolute path of the folder",
            "BVLC/caffe#5748, BVLC/caffe#3639, BVLC/caffe#6236",
        ),
        r"mdb_status == 0 \([23] vs\. 0\)",
    ),
    Signature(
        _MDB,
        Diagnosis(
            "lmdb-denied",
            "this user may not open the LMDB, or may not write the lock.mdb in its folder",
            "give the user read access to data.mdb and write access to lock.mdb, or copy the LMDB to a folder"
            " of the user's own (`caffe-recipes stage`)",
            "BVLC/caffe#5696",
        ),
        r"mdb_status == 0 \((?:1|13|30) vs\. 0\)",
    ),
    Signature(
        _MDB,
        Diagnosis(
            "lmdb-folder",
            "data.mdb or lock.mdb in the folder of the LMDB is itself a folder, or the folder is a file",
            "give the folder that holds data.mdb as `source`, not a folder above it or a file in it",
            "BVLC/caffe#5182",
        ),
        r"mdb_status == 0 \((?:20|21) vs\. 0\)",
    ),
    Signature(
        "== 0 (",
        Diagnosis(
            "lmdb-file-system",
            "the file system of the LMDB lacks the file locks or the memory maps that LMDB needs, as Lustre"
            " mounted without flock, and some network and shared folders",
            "copy the LMDB to a local disk of each host, e.g. /tmp (`caffe-recipes stage`)",
            "BVLC/caffe#5552; fcntl(2), mmap(2)",
        ),
        r"(?:mdb_status|mdb_env_open.{0,60}) == 0 \((?:11|19|37|38|95) vs\. 0\)",
    ),
    Signature(
        "== 0 (12 vs. 0)",
        Diagnosis(
            "lmdb-memory",
            "the map of the LMDB does not fit in the address space or memory that this process may use",
            "raise `ulimit -v`, or the memory of the job or container",
            "BVLC/caffe#1507; mmap(2)",
            is_guess=True,
        ),
        r"(?:mdb_status|mdb_env_open.{0,60}) == 0 \(12 vs",
    ),
    Signature(
        "MDB_MAP_FULL",
        Diagnosis(
            "lmdb-full",
            "the program that writes this LMDB has reached its map size",
            "build it with a larger map, e.g. with `caffe-recipes data build`, which chooses one",
            "BVLC/caffe#2293, BVLC/caffe#4115",
        ),
    ),
    Signature(
        _MDB,
        Diagnosis(
            "lmdb-damaged",
            "data.mdb is not an LMDB of this version, or an incomplete copy of one",
            "compare its size and digest with the original, and copy it again (`caffe-recipes stage` verifies"
            " each copy)",
            "lmdb.h: MDB_PAGE_NOTFOUND, MDB_CORRUPTED, MDB_VERSION_MISMATCH, MDB_INVALID",
        ),
        r"mdb_status == 0 \(-3079[3467] vs\. 0\)",
    ),
    Signature(
        "Cannot use GPU in CPU-only Caffe",
        Diagnosis(
            "cpu-only",
            "this Caffe was compiled without CUDA, but `solver_mode` is GPU, which is also its default",
            "write `solver_mode: CPU` in the solver, or use a Caffe with CUDA",
            "happynear/caffe-windows#84",
        ),
    ),
    Signature(
        "Unknown layer type: Python",
        Diagnosis(
            "python-layer",
            "this Caffe was compiled without Python layers",
            "compile it with WITH_PYTHON_LAYER := 1 in Makefile.config, after `make clean`",
            "akirafukui/vqa-mcb#17, pulkitag/ief#7",
        ),
    ),
    Signature(
        "Unknown layer type: ",
        Diagnosis(
            "unknown-layer",
            "the net has a layer type that this Caffe does not have: it was written for another fork, or the"
            " name is misspelt",
            "use the Caffe that the net was written for; the line lists the types that this one knows, and"
            " `caffe-recipes lint` names the forks that have the layer",
            "yun-liu/RCF#80, BVLC/caffe#2510",
        ),
    ),
    Signature(
        "has no field named",
        Diagnosis(
            "unknown-field",
            "the solver or net has a field that this Caffe does not have: it was written for another fork or"
            " version, or the name is misspelt",
            "use the Caffe that the file was written for, or remove the field; `caffe-recipes lint` names the"
            " Caffes that have it",
            "BVLC/caffe#3895, BVLC/caffe#2839",
        ),
        r'Message type "caffe\.\w+" has no field named',
    ),
    Signature(
        "Error parsing text-format caffe.",
        Diagnosis(
            "prototxt-syntax",
            "the solver or net has a mistake at the line and column that are named",
            "correct it there; `caffe-recipes lint` or `fmt --check` on the file says more",
            "protobuf, src/google/protobuf/text_format.cc",
        ),
        r"Error parsing text-format caffe\.\w+: \d+:\d+:",
    ),
    Signature(
        "ReadProtoFromBinaryFile(",
        Diagnosis(
            "weights-damaged",
            "the weights are not a caffemodel that this Caffe can read: the file is incomplete, as after a"
            " download that broke off, or is another file, e.g. a solverstate or a page of HTML",
            "compare its size and digest with its source, and copy or download it again",
            "CMU-Perceptual-Computing-Lab/openpose#1116, HolmesShuan/ResNet-18-Caffemodel-on-ImageNet#3",
            is_consequence=True,
        ),
        r"Check failed: ReadProtoFromBinaryFile\(.{0,99}\) Failed to parse NetParameter file",
    ),
    Signature(
        "Failed to parse ",
        Diagnosis(
            "parse-failed",
            "the file is not what Caffe expects there: a prototxt with a mistake, a caffemodel that is"
            " incomplete, or another file in its place",
            "check its size and first bytes; `caffe-recipes lint` checks prototxts",
            "src/caffe/util/upgrade_proto.cpp",
            is_consequence=True,
        ),
        r"Failed to parse (?:Net|Solver)Parameter file",
    ),
    Signature(
        "File not found: ",
        Diagnosis(
            "file-missing",
            "this rank cannot open the file that is named; each rank opens it on its own host, relative to"
            " the folder where it was started",
            "check the path on that host; start in the Caffe root, and keep the file where all hosts see it",
            "src/caffe/util/io.cpp",
        ),
        r"\] Check failed: fd != -1 .*File not found",
    ),
    Signature(
        "Cannot copy param ",
        Diagnosis(
            "shape-mismatch",
            "the layer that is named has another shape in the weights than in the net, e.g. for another"
            " number of classes",
            "give weights of the same net; to train this layer from scratch, rename it in the net",
            "sfzhang15/RefineDet#25, weiliu89/caffe#398",
        ),
        r"Cannot copy param \d+ weights from layer .*shape mismatch",
    ),
    Signature(
        "target_blobs.size() == source_layer.blobs_size()",
        Diagnosis(
            "blob-count",
            "the layer that is named has another number of blobs in the weights than in the net, as the"
            " BatchNorm of another fork, or a layer with and without a bias",
            "use the Caffe that wrote the weights, or rename the layer in the net to train it from scratch",
            "BVLC/caffe#5883",
        ),
    ),
    Signature(
        "produced by multiple sources",
        Diagnosis(
            "duplicate-top",
            "two layers of the same phase have a `top` of one name, although neither works in place",
            "rename one of them, or give the layers `include { phase: ... }` so that each phase has only one",
            "Cysu/dgd_person_reid#6, NVIDIA/DIGITS#2196",
        ),
        r"(?:Duplicate blobs|Top blob '.*') produced by multiple sources",
    ),
    Signature(
        "Unknown bottom blob ",
        Diagnosis(
            "unknown-bottom",
            "a layer reads a blob that no layer before it writes in this phase: the name is misspelt, or the"
            " data layer has no `include` for this phase",
            "check the `bottom` and the phases of the layer that is named (`caffe-recipes lint`)",
            "BVLC/caffe#3375",
        ),
        r"Unknown bottom blob '.*' \(layer",
    ),
    Signature(
        "Unknown learning rate policy",
        Diagnosis(
            "unknown-policy",
            "the solver's `lr_policy` does not exist in this Caffe; with a warm-up, that shows only after it",
            "write a policy that this Caffe has (`caffe-recipes lint`)",
            "src/caffe/solvers/sgd_solver.cpp",
        ),
    ),
    Signature(
        "Cannot write to snapshot prefix",
        Diagnosis(
            "snapshot-folder",
            "the folder of `snapshot_prefix` does not exist on the host of rank 0, or is not writable",
            "create it there, or correct `snapshot_prefix`",
            "BVLC/caffe#3049",
        ),
    ),
    Signature(
        "proto.SerializeToOstream(&output)",
        Diagnosis(
            "snapshot-not-written",
            "the snapshot could not be written: the disk is full, or the folder of `snapshot_prefix` does"
            " not exist or is not writable",
            "run `df` on that folder and free space, or create it; the previous snapshot is still good",
            "NVIDIA/DIGITS#84, BVLC/caffe#1394",
        ),
    ),
    Signature(
        "blob size exceeds INT_MAX",
        Diagnosis(
            "blob-too-large",
            "a blob would have more than 2^31 - 1 values, Caffe's limit",
            "reduce `batch_size` or the size of the images; with `iter_size` the effective batch stays",
            "BVLC/caffe#5067, twhui/LiteFlowNet#29",
        ),
    ),
    Signature(
        "Check failed: ",
        Diagnosis(
            "image-too-small",
            "an image of the database is smaller than `crop_size`",
            "build the LMDB with images of at least that size, or reduce `crop_size`",
            "BVLC/caffe#4487, yjxiong/temporal-segment-networks#163",
        ),
        r"Check failed: (?:datum_(?:height|width) >= crop_size|(?:height|width) <= datum_(?:height|width)) ",
    ),
    Signature(
        "Check failed: ",
        Diagnosis(
            "image-sizes",
            "the images of the database do not all have one size, and are not cropped to one",
            "resize them when the LMDB is built, or set `crop_size`; with different sizes and no crop, only"
            " `batch_size: 1` works",
            "weiliu89/caffe#35",
        ),
        r"Check failed: (?:datum_(?:height|width) == (?:height|width)|(?:height|width) == datum_\w+) ",
    ),
    Signature(
        "data_mean_.",
        Diagnosis(
            "mean-size",
            "the image mean has another size than the images",
            "compute it from this database, or give a `mean_value` per channel instead of `mean_file`",
            "BVLC/caffe#4964, BVLC/caffe#4113",
        ),
        r"Check failed: .* == data_mean_\.",
    ),
    Signature(
        "Check failed: ",
        Diagnosis(
            "image-channels",
            "an image of the database does not have the channels of the others; 0 means that the record is"
            " empty, or encoded but read as raw",
            "check the database with `caffe-recipes data`, and convert grey images (`force_color: true`)",
            "intel/caffe#55, weiliu89/caffe#110, chuanqi305/MobileNet-SSD#147",
            is_guess=True,
        ),
        r"Check failed: (?:channels == (?:datum|img)_channels|(?:datum|img)_channels == (?:data_)?channels|"
        r"datum_channels > 0) ",
    ),
    Signature(
        "Specify either 1 mean_value or as many as channels",
        Diagnosis(
            "mean-channels",
            "an image does not have as many channels as there are `mean_value`, as a grey one among colour"
            " images; in Intel's Caffe, a single `mean_value` for three channels also does this by chance",
            "write a `mean_value` for each channel, and `force_color: true` if some images are grey",
            "weiliu89/caffe#354, weiliu89/caffe#723",
            is_guess=True,
        ),
    ),
    Signature(
        "label_value",
        _LABEL_RANGE,
        r"Check failed: label_value (?:<|>=) ",
    ),
    Signature(
        "n_classes", _LABEL_RANGE, r"Assertion `(?:t|cur_target) >= 0 && (?:t|cur_target) < n_classes` failed"
    ),
    Signature(
        "caffe::SoftmaxWithLossLayer<>::Forward",
        Diagnosis(
            "label-crash",
            "the loss layer crashed, as it does for a label that is not below the number of outputs",
            "compare the largest label with `num_output` of the last layer: labels run from 0",
            "BVLC/caffe#2672, BVLC/caffe#2143",
            is_guess=True,
        ),
        r"^PC: @ ",
    ),
    Signature(
        "Not Implemented Yet",
        Diagnosis(
            "not-implemented",
            "a layer lacks the pass that this net needs, as ArgMax or Threshold between learned layers and"
            " the loss, or a mode of Pooling on CPU",
            "take the layer out of this phase, or set `propagate_down: false`",
            "include/caffe/common.hpp: NOT_IMPLEMENTED",
        ),
        r"^F.*\] Not Implemented Yet",
    ),
    Signature(
        "HDF5 file",
        Diagnosis(
            "hdf5-missing",
            "the file that is named does not exist or is not HDF5; the `source` of an HDF5Data layer is a"
            " text file that lists such files",
            "check each path of the list, relative to the folder where Caffe was started",
            "BVLC/caffe#1519, LisaAnne/lisa-caffe-public#5",
        ),
        r"^F.*\] Failed opening HDF5 file",
    ),
    Signature(
        "Check failed: cv_img.data Could not load ",
        Diagnosis(
            "image-unreadable",
            "OpenCV cannot read the image that is named: it does not exist below `root_folder`, is not"
            " readable, or is damaged",
            "check the path that is named (`root_folder` must end with a slash), and open the image by hand",
            "gy20073/compact_bilinear_pooling#18, BVLC/caffe#3166",
            is_consequence=True,
        ),
    ),
    Signature(
        "FindFileByName()",
        Diagnosis(
            "two-protobufs",
            "the process loads two versions of protobuf: Caffe's own, and that of a Python layer",
            "install Python's `protobuf` in the version that Caffe was compiled with (`protoc --version`), or"
            " compile Caffe with the other one",
            "richzhang/colorization#36, NVIDIA/DIGITS#1923, ilikepistachio/TCNN_STCNN#5",
            is_guess=True,
        ),
        r"^@ .*google::protobuf::DescriptorPool::FindFileByName\(\)",
    ),
    Signature(
        "Could not open or find file",
        Diagnosis(
            "image-missing",
            "an image of the list does not exist below the `root_folder`, or is not readable",
            "check the path that is named: `root_folder` must end with a slash",
            "src/caffe/util/io.cpp",
        ),
    ),
    Signature(
        "Data layer prefetch queue empty",
        Diagnosis(
            "slow-data",
            "the data layer is slower than the net, so that the net waits; by itself this is not an error",
            "keep the LMDB on a local disk or in memory, and leave cores to the data layer; if the log stands"
            " still after it, the data layer or the GPU hangs",
            "BVLC/caffe#3177, weiliu89/caffe#863",
            repeats=False,
            is_consequence=True,
        ),
        times=3,
    ),
    Signature(
        "Protocol Buffer runtime library",
        Diagnosis(
            "protobuf-version",
            "the program was compiled with another version of protobuf than the library that it loads",
            "put the library that it was compiled with first in LD_LIBRARY_PATH, or compile again",
            "protobuf, src/google/protobuf/stubs/common.cc: VerifyVersion",
        ),
        r"program (?:requires|was compiled against) version ",
    ),
    Signature(
        "A protocol message was rejected because it was too big",
        Diagnosis(
            "protobuf-too-big",
            "the weights are larger than protobuf's limit in this build",
            "compile Caffe with its own limit (src/caffe/util/io.cpp), or with protobuf 3.2 or later",
            "BVLC/caffe#279, tensorflow/tensorflow#11989",
        ),
    ),
)
