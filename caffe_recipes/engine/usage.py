"""What `caffe-torch --help` prints, of all commands or of one."""

from __future__ import annotations

_TITLE = "caffe-torch: run Caffe's prototxts on PyTorch\n"
_COMMANDS = {
    "train": "  caffe-torch train -solver FILE [-weights FILE[,FILE] | -snapshot FILE]\n",
    "test": "  caffe-torch test -model FILE -weights FILE[,FILE] [-iterations N]\n",
    "predict": """\
  caffe-torch predict -model FILE -weights FILE[,FILE] -out FILE.npz
                      [-source LMDB]
""",
    "time": """\
  caffe-torch time -model FILE [-weights FILE[,FILE]] [-phase TRAIN|TEST]
                   [-iterations N] [-trace FILE.json]
""",
    "device_query": "  caffe-torch device_query [-gpu N[,N]]\n",
    "version": "  caffe-torch version\n",
}
_NETS = ("train", "test", "predict", "time")
_OPTIONS = (
    (
        ("predict",),
        """\
  -out FILE.npz          write the input of the last softmax (images x classes)
                         and the label of every image in the net's TEST LMDB;
                         overwrites an existing file
  -source LMDB           read this LMDB instead of the net's
""",
    ),
    (("test", "time"), "  -iterations N          average over N batches [default: 50]\n"),
    (
        ("time",),
        """\
  -phase TRAIN|TEST      time the net of this phase [default: TRAIN]
  -trace FILE.json       also write a trace of one pass, for Perfetto or
                         chrome://tracing; overwrites an existing file
""",
    ),
    (
        ("train",),
        """\
  -precision P           train in float32 (default), in tf32 on a GPU, or in bf16:
                         bfloat16 products, float32 weights and statistics
  -checkpoint-activations
                         keep fewer blobs for the backward pass, and compute the
                         others again: less memory, a third more time
  -sync-bn               take the statistics of a BatchNorm over all ranks, not
                         over the images of each
  -new_layers A,B        initialize these layers from their fillers, even if
                         the weights have them; the weights must have all others
""",
    ),
    (
        ("train",),
        """\
  -gpu N                 train on this GPU [default: as the solver says]
  -gpu 0,1 | -gpu all    each rank of a host trains on one of these GPUs
""",
    ),
    (("test", "predict", "time"), "  -gpu N                 compute on this GPU [default: the CPU]\n"),
    (("device_query",), "  -gpu N, -gpu 0,1       name only these GPUs [default: all]\n"),
    (_NETS, "  -level N, -stage A,B   set the net's state for include and exclude rules\n"),
    (
        ("train",),
        """\
  -sigint_effect, -sighup_effect
                         snapshot, stop or none (default: SIGINT stops, SIGHUP
                         takes a snapshot)
""",
    ),
    (
        _NETS,
        """\
  -engine E              accepted and ignored: it selects Caffe's kernels
                         (CAFFE, MKL2017, ...), but PyTorch computes here
  -logtostderr, -v N, ...
                         glog's flags are accepted and ignored: the log goes to
                         stderr
""",
    ),
)
_EXAMPLES = (
    (
        "train",
        r"""  caffe-torch train -solver solver.prototxt
  mpiexec.hydra -n 2 caffe-torch train -solver solver.prototxt
  torchrun --standalone --nproc-per-node 2 --no-python \
      caffe-torch train -solver solver.prototxt
  caffe-torch train -solver solver.prototxt -snapshot a_iter_20.solverstate
""",
    ),
    ("test", "  caffe-torch test -model net.prototxt -weights a_iter_40.caffemodel\n"),
    ("time", "  caffe-torch time -model net.prototxt -iterations 10\n"),
)


def render_usage(command: str = "") -> str:
    """Return the help of a command, or of all for "".

    >>> print(render_usage("version"), end="")
    caffe-torch: run Caffe's prototxts on PyTorch
    <BLANKLINE>
    usage:
      caffe-torch version
    """
    chosen = [command] if command else [*_COMMANDS]
    parts = {
        "usage:\n": [_COMMANDS[name] for name in chosen],
        "": [text for names, text in _OPTIONS if set(names) & set(chosen)],
        "examples:\n": [text for name, text in _EXAMPLES if name in chosen],
    }
    return "\n".join([_TITLE, *(title + "".join(texts) for title, texts in parts.items() if texts)])
