"""The lines with which CUDA, cuDNN and cuBLAS fail, in Caffe and in PyTorch.

Caffe prints `Check failed: error == cudaSuccess (2 vs. 0)`, with CUDA's number of the error (driver_types.h),
of which CUDA 10.1 changed many: both are here. PyTorch prints CUDA's words for it.
"""

from __future__ import annotations

from caffe_recipes.run.failures.diagnosis import Diagnosis, Signature

_CUDA = "cudaSuccess ("
_TORCH = "CUDA error: "

_MEMORY = Diagnosis(
    "gpu-memory",
    "the net does not fit in the memory of the GPU, which other processes may use, too",
    "halve `batch_size` and double `iter_size`, which keeps the effective batch; `nvidia-smi` shows who uses"
    " the GPU",
    "yjxiong/caffe#69, pytorch/examples#621",
)
_ARCHITECTURE = Diagnosis(
    "gpu-architecture",
    "this program was not compiled for the architecture of this GPU",
    "add the GPU's compute capability to CUDA_ARCH in Caffe's Makefile.config, and compile again; install a"
    " PyTorch that supports it",
    "facebookarchive/C3D#81, BVLC/caffe#1256",
)
_DRIVER = Diagnosis(
    "gpu-driver",
    "the NVIDIA driver is older than the CUDA that the program was compiled with, or is not loaded",
    "compare the versions that `nvidia-smi` and `nvcc --version` print; update the driver, or take a program"
    " for an older CUDA, or for CPUs only",
    "BVLC/caffe#736, gkioxari/RstarCNN#6",
)
_MISSING = Diagnosis(
    "gpu-missing",
    "this host has no GPU that the process may use, or none of that number",
    "check `nvidia-smi` and CUDA_VISIBLE_DEVICES on the host, and the `--gpu` of the command",
    "CUDA's driver_types.h: cudaErrorNoDevice, cudaErrorInvalidDevice",
)
_UNKNOWN = Diagnosis(
    "gpu-unknown",
    "CUDA cannot open the GPU: /dev/nvidia-uvm is missing, or the driver was updated, or the host suspended,"
    " since it was loaded",
    "run `nvidia-smi` and `nvidia-modprobe -u -c=0` on the host as root; restart the host after an update of"
    " the driver",
    "NVIDIA/DIGITS#799, NVIDIA/DIGITS#2181",
    is_guess=True,
)
_CRASH = Diagnosis(
    "gpu-crash",
    "a layer read or wrote memory of the GPU that is not its own, most often for a label that is not below"
    " the number of outputs; the line may be of a later layer",
    "compare the largest label with `num_output`, e.g. 255 in masks without `ignore_label`; run a few"
    " iterations on the CPU, or with CUDA_LAUNCH_BLOCKING=1, to find the layer",
    "BVLC/caffe#4169, BVLC/caffe#5632, chenyuntc/simple-faster-rcnn-pytorch#198",
    is_guess=True,
    is_consequence=True,
)
_NOT_STARTED = Diagnosis(
    "gpu-library-start",
    "cuDNN or cuBLAS could not start: the memory of the GPU is in use, or the library needs another driver"
    " or GPU",
    "check with `nvidia-smi` that memory is free, and try a smaller `batch_size`; then compare the versions"
    " of the driver, CUDA and cuDNN; without cuDNN, write `engine: CAFFE`",
    "BVLC/caffe#6757, shicai/MobileNet-Caffe#25, BVLC/caffe#5564",
    is_guess=True,
)
_EXECUTION = Diagnosis(
    "gpu-library-failed",
    "a call of cuDNN or cuBLAS failed: the memory of the GPU is used up, the GPU is newer than the library,"
    " or an earlier layer has already failed",
    "try a smaller `batch_size`, then the cuDNN and CUDA for this GPU; compare the largest label with"
    " `num_output`; do not let the host suspend",
    "msracver/Deep-Image-Analogy#3, NVIDIA/DIGITS#2163, facebookarchive/C3D#56",
    is_guess=True,
)
# TensorFlow also mentions a status in warnings that it recovers from.
_FAILS = r"(?:Check failed:|Error:|error:|handle:|INTERNAL:).{0,200}"

GPU_SIGNATURES = (
    Signature(_CUDA, _MEMORY, r"cudaSuccess \(2 vs\. 0\)"),
    Signature("CUDA out of memory", _MEMORY, r"CUDA out of memory\. Tried to allocate"),
    Signature(_TORCH, _MEMORY, r"Error: CUDA error: out of memory"),
    Signature("_STATUS_ALLOC_FAILED", _MEMORY, rf"{_FAILS}CU(?:DNN|BLAS)_STATUS_ALLOC_FAILED"),
    Signature(_CUDA, _ARCHITECTURE, r"cudaSuccess \((?:8|48|98|209) vs\. 0\)"),
    Signature(_TORCH, _ARCHITECTURE, r"Error: CUDA error: (?:no kernel image|invalid device function)"),
    Signature(_CUDA, _DRIVER, r"cudaSuccess \(35 vs\. 0\)"),
    Signature(
        "NVIDIA driver",
        _DRIVER,
        r"Error: (?:The NVIDIA driver on your system is too old|Found no NVIDIA driver)",
    ),
    Signature(_TORCH, _DRIVER, r"Error: CUDA error: CUDA driver version is insufficient"),
    Signature(_CUDA, _MISSING, r"cudaSuccess \((?:10|38|100|101) vs\. 0\)"),
    Signature("CUDA", _MISSING, r"Error: (?:No CUDA GPUs are available|CUDA error: invalid device ordinal)"),
    Signature(_CUDA, _UNKNOWN, r"cudaSuccess \((?:30|999) vs\. 0\)"),
    Signature(_TORCH, _UNKNOWN, r"Error: CUDA error: unknown error"),
    Signature(_CUDA, _CRASH, r"cudaSuccess \((?:59|77|700|710|719) vs\. 0\)|unspecified launch failure"),
    Signature(
        _TORCH, _CRASH, r"Error: CUDA error: (?:an illegal memory|device-side assert|unspecified launch)"
    ),
    Signature(
        _CUDA,
        Diagnosis(
            "gpu-arguments",
            "Caffe gave CUDA an argument that it does not take: the libraries are of another build than the"
            " program, or of a CUDA that does not know this GPU",
            "compile again after `make clean`, for the CUDA and the GPU of this host; then run Caffe's own"
            " tests (`make runtest`)",
            "weiliu89/caffe#71, BVLC/caffe#1390",
            is_guess=True,
        ),
        r"cudaSuccess \((?:1|11) vs\. 0\)",
    ),
    Signature(
        _CUDA,
        Diagnosis(
            "gpu-configuration",
            "a layer has no values to compute, or more than this GPU takes at once",
            "look for a 0 in the `Top shape` lines; on a GPU of before 2012, reduce `batch_size`",
            "BVLC/caffe#1793, BVLC/caffe#629; include/caffe/util/device_alternate.hpp",
            is_guess=True,
        ),
        r"cudaSuccess \(9 vs\. 0\)",
    ),
    Signature("CUDNN_STATUS_NOT_INITIALIZED", _NOT_STARTED, rf"{_FAILS}CUDNN_STATUS_NOT_INITIALIZED"),
    Signature("CUBLAS_STATUS_NOT_INITIALIZED", _NOT_STARTED, rf"{_FAILS}CUBLAS_STATUS_NOT_INITIALIZED"),
    Signature(
        "CUDNN_STATUS_BAD_PARAM",
        Diagnosis(
            "cudnn-parameter",
            "the cuDNN that is loaded is not the one that the program was compiled with, or does not take the"
            " shape of this layer",
            "let LD_LIBRARY_PATH lead to the cuDNN that it was compiled with, or compile again with a newer"
            " one; or write `engine: CAFFE` in the layer",
            "BVLC/caffe#5544, HsinYingLee/OPN#2, NVIDIA/caffe#435",
            is_guess=True,
        ),
        rf"{_FAILS}CUDNN_STATUS_BAD_PARAM",
    ),
    Signature(
        "_STATUS_ARCH_MISMATCH",
        Diagnosis(
            "gpu-too-old",
            "the compute capability of this GPU is lower than cuDNN or cuBLAS needs, which is at least 3.0",
            "use a newer GPU, or a Caffe without cuDNN (`engine: CAFFE`, or no USE_CUDNN in Makefile.config)",
            "rbgirshick/fast-rcnn#44, CMU-Perceptual-Computing-Lab/openpose#681",
        ),
        rf"{_FAILS}CU(?:DNN|BLAS)_STATUS_ARCH_MISMATCH",
    ),
    Signature(
        "CUDNN_STATUS_NOT_SUPPORTED",
        Diagnosis(
            "cudnn-unsupported",
            "this cuDNN cannot compute this layer",
            "write `engine: CAFFE` in the layer, or use the cuDNN that the program was written for",
            "NVIDIA/caffe#266, chuckcho/video-caffe#58",
        ),
        rf"{_FAILS}CUDNN_STATUS_NOT_SUPPORTED",
    ),
    Signature(
        "CUDNN_STATUS_",
        _EXECUTION,
        rf"{_FAILS}CUDNN_STATUS_(?:EXECUTION_FAILED|INTERNAL_ERROR|MAPPING_ERROR)",
    ),
    Signature(
        "CUBLAS_STATUS_",
        _EXECUTION,
        rf"{_FAILS}CUBLAS_STATUS_(?:EXECUTION_FAILED|INTERNAL_ERROR|MAPPING_ERROR|INVALID_VALUE)",
    ),
)
