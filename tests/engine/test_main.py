"""The command line: flags, exit codes, and errors about bad input."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.datums import open_datums
from caffe_recipes.engine.main import check_modules, main, parse_flags
from caffe_recipes.errors import InputError
from caffe_recipes.standard_streams import drop_output
from tests.cli.command_line import call_main
from tests.engine.conftest import only_line
from tests.extras import needs_local
from tests.test_docs import ROOT, read_blocks

Run = Callable[..., tuple[int, str]]
Change = Callable[..., None]


def signal_once_handled(number: signal.Signals) -> None:
    """Signal this process once the training has installed its handler."""
    while signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
        time.sleep(0.01)
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("words", [("-solver", "s"), ("--solver", "s"), ("-solver=s",), ("--solver=s",)])
def test_flags_are_taken_as_gflags_takes_them(words: tuple[str, ...]) -> None:
    command, flags = parse_flags(["train", *words, "-weights", "a,b"])
    assert (command, flags.solver, flags.weights) == ("train", "s", "a,b")


def test_flags_of_glog_are_taken() -> None:
    switches = ("-logtostderr", "--logtostderr=1", "-nologtostderr", "-alsologtostderr", "-colorlogtostderr")
    values = ("-minloglevel", "2", "-stderrthreshold=0", "-v", "1", "-log_dir", "logs")
    assert parse_flags([*switches, "train", *values, "-solver", "s"]) == parse_flags(
        ["train", "-solver", "s"]
    )


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("train", "-v", "loud"), "not an integer"),
        (("train", "-sovler", "x"), "unknown flag -sovler"),
        (("train", "-solver"), "-solver has no value"),
        (("test", "-iterations", "many"), "not an integer"),
        (
            ("test", "-iterations", "2147483648"),
            "-iterations 2147483648 does not fit in int32, .* give 2147483647 or less",
        ),
        (
            ("test", "-level=-2147483649"),
            "-level -2147483649 does not fit in int32, .* give -2147483648 or more",
        ),
        (("train", "-solver", ""), "-solver '' is not a path; is a variable unset"),
        (("train", "--weights="), "-weights '' is not a path; is a variable unset"),
        (("train", "-snapshot", ""), "-snapshot '' is not a path"),
        (("test", "-model", ""), "-model '' is not a path"),
        (("predict", "-source", ""), "-source '' is not a path"),
        (("predict", "-out", " "), "-out ' ' is not a path"),
        (("test", "-level", "x"), "-level x is not an integer; write e.g. -level 0"),
        (("train", "--sync_bn=maybe"), "--sync_bn=maybe: -sync-bn takes no value; write -sync-bn"),
        ((), "no command"),
        (("trian", "now"), "2 commands: trian now; give one: train,"),
        (("train", "s.prototxt"), "unexpected argument 's.prototxt'; write -solver s.prototxt"),
        (("time", "-phase", "TEST", "n"), "unexpected argument 'n'; write -model n"),
        (("train", "-solver", "s", "now"), "unexpected argument 'now'; leave it out"),
        (("version", "now"), "unexpected argument 'now'; leave it out"),
        (
            ("train", "-checkpoint-activations", "3"),
            "unexpected argument '3'; -checkpoint-activations takes no value",
        ),
    ],
)
def test_unknown_flags_are_named(words: tuple[str, ...], part: str) -> None:
    with pytest.raises(InputError, match=part):
        parse_flags(words)


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("trian", "-solver", "solver.prototxt"), "unknown command 'trian'"),
        (("train",), "no solver"),
        (("train", "-solver", "none.prototxt"), "none.prototxt"),
        (("train", "-solver", "lmdb"), "lmdb"),
        (("train", "-solver", "solver.prototxt", "-gpu", "99"), "-gpu 99, but "),
        (("train", "-solver", "solver.prototxt", "-gpu", "0,x"), "-gpu 0,x is not a device ID"),
        (("train", "-solver", "solver.prototxt", "-gpu", "0,1"), "2 GPUs, but this is 1 process; start one"),
        (("train", "-solver", "solver.prototxt", "-gpu", "all"), "-gpu all, but PyTorch finds no GPU"),
        (("test", "-model", "a", "-weights", "b", "-gpu", "all"), "-gpu all works only with train"),
        (("train", "-solver", "solver.prototxt", "-sigint_effect", "die"), "'die'"),
        (
            ("train", "-solver", "solver.prototxt", "-weights", "a", "-snapshot", "b"),
            "are mutually exclusive",
        ),
        (("train", "-solver", "solver.prototxt", "-weights", "none"), "none: no such file"),
        (("train", "-solver", "solver.prototxt", "-weights", "lmdb"), "is a folder"),
        (("train", "-solver", "solver.prototxt", "-snapshot", "none"), "none: no such file"),
        (("train", "-solver", "solver.prototxt", "-weights", ","), "-weights , has an empty name"),
        (("train", "-solver", "solver.prototxt", "-new_layers", "ip"), "-new_layers works only with train"),
        (("train", "-solver", "solver.prototxt", "--precision", "bf8"), "-precision 'bf8' is unknown"),
        (
            ("train", "-solver", "solver.prototxt", "--precision=tf32"),
            "tf32 works only on a GPU; leave it out",
        ),
        (("test", "-model", "a", "-weights", "b", "--sync-bn"), "-sync-bn works only with train"),
        (("predict", "-iterations", "3"), "-iterations works only with test and time; leave it out"),
        (("test", "-model", "net.prototxt"), "no weights"),
        (("test", "-model", "net.prototxt", "-weights", "none"), "none: no such file"),
        (("test", "-model", "net.prototxt", "-weights", "x", "-iterations", "0"), "-iterations is 0"),
        (("predict", "-model", "a", "-weights", "b", "-out", "c.npz", "-source", "\udcff"), " is not UTF-8"),
        (("test", "-model", "net.prototxt", "-weights", "x", "-stage", "a,\udcff"), " is not UTF-8"),
    ],
)
def test_bad_arguments_exit_2_with_one_line(case: Path, run: Run, words: tuple[str, ...], part: str) -> None:
    before = sorted(case.iterdir())
    code, log = run(*words)
    assert code == 2
    assert part in only_line(log)
    assert sorted(case.iterdir()) == before


@pytest.mark.parametrize(
    ("old", "new", "part"),
    [
        ("solver_mode: CPU", "solver_mode: GPU device_id: 99", "solver_mode is GPU or missing, but "),
        ("solver_mode: CPU", "device_id: -1", "solver_mode is GPU or missing, but "),
        ("base_lr: 0.1", "", "base_lr is missing"),
        ("base_lr: 0.1", "base_lr: nan", "nan"),
        ('"fixed"', '"cosine"', "lr_policy 'cosine' is unknown"),
        ('"fixed"', '"poly_cyc" power: 1', "needs lr_iter"),
        ("max_iter: 6", "", "max_iter is missing"),
        ("max_iter: 6", "max_iter: -1", "max_iter is -1"),
        ("max_iter: 6", "max_iter: 6 iter_size: 0", "iter_size is 0"),
        ("max_iter: 6", "max_iter: 6 average_loss: 0", "average_loss is 0"),
        ("max_iter: 6", 'max_iter: 6 type: "Adma"', "type 'Adma' is unknown"),
        ("max_iter: 6", 'max_iter: 6 type: "AdaGrad" momentum: 0.9', "AdaGrad takes no momentum"),
        ("max_iter: 6", 'max_iter: 6 regularization_type: "L3"', "'L3' is unknown"),
        ("max_iter: 6", "max_iter: 6 test_iter: 2", "test_interval is 0"),
        ("max_iter: 6", "max_iter: 6 test_iter: 0 test_interval: 1", "test_iter is below 1"),
        ("max_iter: 6", "max_iter: 6 lerning_rate: 1", "lerning_rate"),
        ('net: "net.prototxt"', "", "specifies 0 train nets"),
        ('net: "net.prototxt"', 'net: "none.prototxt"', "none.prototxt"),
        ('snapshot_prefix: "run"', 'snapshot_prefix: "no/run"', "the folder no does not exist"),
        ('snapshot_prefix: "run"', 'snapshot_prefix: "no/"', "the folder no does not exist"),
        ('snapshot_prefix: "run"', 'snapshot_prefix: "/sys/run"', "cannot write snapshots there: Permission"),
        ('snapshot_prefix: "run"', f'snapshot_prefix: "{"a" * 300}/run"', "File name too long"),
        ('snapshot_prefix: "run"', f'snapshot_prefix: "{"a" * 225}"', "File name too long"),
        (
            'snapshot_prefix: "run"',
            'snapshot_prefix: "taken"',
            "snapshots there: Is a directory",
        ),
        ('snapshot_prefix: "run"', "", "snapshot_prefix is missing"),
    ],
)
def test_a_solver_that_would_not_train_exits_2(
    case: Path, run: Run, change: Change, old: str, new: str, part: str
) -> None:
    change(case / "solver.prototxt", (old, new))
    (case / "taken_iter_6.caffemodel").mkdir()
    before = sorted(case.iterdir())
    code, log = run("train", "-solver", "solver.prototxt")
    assert code == 2
    assert part in only_line(log)
    assert sorted(case.iterdir()) == before


@pytest.mark.parametrize(
    ("words", "change_to"),
    [
        (("-solver", "none.prototxt"), ""),
        ((), ""),
        (("-solver", "solver.prototxt"), "max_iter: 6 iter_size: 0"),
    ],
)
def test_nothing_is_logged_before_the_error_of_a_solver_that_cannot_be_read(
    case: Path, run: Run, change: Change, words: tuple[str, ...], change_to: str
) -> None:
    if change_to:
        change(case / "solver.prototxt", ("max_iter: 6", change_to))
    code, log = run("train", *words)
    assert (code, log) == (2, f"{only_line(log)}\n")


@pytest.mark.parametrize(
    ("old", "new", "part"),
    [
        ('source: "lmdb"', 'source: "none"', "none"),
        ('source: "lmdb"', 'source: "net.prototxt"', "net.prototxt"),
        ("backend: LMDB", "", "has no backend, so reads a LevelDB; write backend: LMDB"),
        ("backend: LMDB", "backend: LEVELDB", "(Data): reads a LevelDB; write backend: LMDB"),
        ("batch_size: 4", "", "batch_size"),
        ("batch_size: 4", "batch_size: 4000000000", "layer 'data' (Data): has batch_size"),
        ("num_output: 3", "num_output: 4000000000", "layer 'ip' (InnerProduct): has num_output"),
        ("num_output: 3", "num_output: -3", "num_output"),
        (
            'type: "InnerProduct"',
            'type: "PriorBox"',
            "layer 'ip' (PriorBox): type 'PriorBox' is not supported",
        ),
        ("num_output: 3", "", "num_output"),
        ('bottom: "ip"', 'bottom: "ipp"', "ipp"),
        ('"xavier"', '"xaver"', "layer 'ip' (InnerProduct): filler 'xaver': is unknown"),
        ("scale: 0.01", "scale: 0.01 crop_size: 9", "smaller than crop_size 9; correct transform_param"),
        ("scale: 0.01", "scale: 0.01 noise_param { prob: 1 }", "noise_param is not supported"),
        ("scale: 0.01", 'scale: 0.01 mean_file: "none"', "none: cannot be read"),
        ("scale: 0.01", "random_resize_param { min_size: 4 }", "not encoded"),
        ("scale: 0.01", "mean_value: 1 mean_value: 2", "mean_value"),
    ],
)
def test_a_net_that_cannot_run_exits_2(
    case: Path, run: Run, change: Change, old: str, new: str, part: str
) -> None:
    change(case / "net.prototxt", (old, new))
    code, log = run("train", "-solver", "solver.prototxt")
    assert code == 2
    assert part in only_line(log)


def test_a_label_outside_the_classes_names_its_record(case: Path, run: Run, change: Change) -> None:
    change(case / "net.prototxt", ("num_output: 3", "num_output: 2"))
    with open_datums("lmdb") as datums:
        key = datums.keys[2].decode()
    code, log = run("train", "-solver", "solver.prototxt")
    assert code == 2
    assert f"lmdb: record '{key}' has label 2" in only_line(log)
    assert "layer 'loss' of net.prototxt has 2; give labels from 0 to 1" in log


def test_an_empty_lmdb_names_its_path(case: Path, run: Run) -> None:
    (case / "lmdb" / "data.mdb").write_bytes(b"")
    code, log = run("train", "-solver", "solver.prototxt")
    assert code == 2
    assert only_line(log).startswith("caffe-torch: net.prototxt: lmdb")


def test_a_loss_that_is_not_a_number_exits_3_at_its_iteration(case: Path, run: Run, change: Change) -> None:
    change(case / "net.prototxt", ("scale: 0.01", "scale: 1e38"))
    code, log = run("train", "-solver", "solver.prototxt")
    assert code == 3
    assert "iteration 0: the loss is nan" in only_line(log)


def test_a_loss_that_is_lost_for_want_of_statistics_says_so(case: Path, run: Run, change: Change) -> None:
    norm = 'layer { name: "bn" type: "BatchNorm" bottom: "data" top: "n" '
    norm += "batch_norm_param { use_global_stats: true } }"
    change(
        case / "net.prototxt",
        ("scale: 0.01", "scale: 1e38"),
        ('layer { name: "ip"', norm + 'layer { name: "ip"'),
    )
    change(case / "net.prototxt", ('type: "InnerProduct" bottom: "data"', 'type: "InnerProduct" bottom: "n"'))
    code, log = run("train", "-solver", "solver.prototxt")
    assert code == 3
    assert (
        "bn uses statistics that are empty (use_global_stats), and so multiplies by 316.2; "
        "give -weights that hold them, or remove use_global_stats"
    ) in only_line(log)


def test_a_loss_that_saturates_exits_3(case: Path, run: Run, change: Change) -> None:
    """The last of four classes gets all the probability, and no label is the last."""
    fixed = "param { lr_mult: 0 } param { lr_mult: 0 }"
    change(case / "net.prototxt", ('type: "InnerProduct"', f'type: "InnerProduct" {fixed}'))
    change(case / "net.prototxt", ('"xavier"', '"constant" value: 1e9'), ("num_output: 3", "num_output: 4"))
    last = (
        'layer { name: "cut" type: "Slice" bottom: "ip" top: "a" top: "b" slice_param { slice_point: 3 } }'
        'layer { name: "low" type: "Power" bottom: "a" top: "low" power_param { scale: -1 } }'
        'layer { name: "join" type: "Concat" bottom: "low" bottom: "b" top: "all" }'
    )
    change(
        case / "net.prototxt",
        ('layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip"',
         last + 'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "all"'),
    )  # fmt: skip
    change(case / "solver.prototxt", ("max_iter: 6", "max_iter: 100"))
    code, log = run("train", "-solver", "solver.prototxt")
    assert code == 3
    assert "layer 'loss': the loss has been 87.3365" in only_line(log)
    assert "Iteration 8, loss = 87.3365" in log


def test_a_net_without_a_loss_is_trained_with_a_warning(case: Path, run: Run, change: Change) -> None:
    warning = "net.prototxt: no layer of the TRAIN net has a loss, so nothing is learned; add one, such as"
    assert warning not in run("train", "-solver", "solver.prototxt")[1]
    change(case / "net.prototxt", ('top: "loss"', 'top: "loss" loss_weight: 0'))
    code, log = run("train", "-solver", "solver.prototxt")
    (line,) = [line for line in log.splitlines() if warning in line]
    assert (code, line[0]) == (0, "W")
    change(case / "net.prototxt", ('"SoftmaxWithLoss"', '"SoftmaxWithLoss" include { phase: TEST }'))
    code, log = run("train", "-solver", "solver.prototxt")
    assert (code, log.count(warning)) == (0, 1)


def test_the_log_says_what_an_iteration_takes_and_that_debug_info_prints_nothing(
    case: Path, run: Run, change: Change
) -> None:
    log = run("train", "-solver", "solver.prototxt")[1]
    assert "] Training with 1 rank, global batch size 4\n" in log and "debug_info" not in log
    change(case / "solver.prototxt", ("max_iter: 6", "max_iter: 1 iter_size: 3 debug_info: true"))
    log = run("train", "-solver", "solver.prototxt")[1]
    assert "] Training with 1 rank, global batch size 12\n" in log
    assert log.count("] debug_info is ignored") == 1


@needs_local
def test_the_example_of_the_documentation_learns_the_digits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = read_blocks(ROOT / "docs" / "engine.md", "prototxt")
    for name, text in zip(("net.prototxt", "solver.prototxt"), shown, strict=True):
        (tmp_path / name).write_text(text)
    assert call_main("data", "build", "digits").returncode == 0
    code, log = run("train", "-solver", "solver.prototxt")
    assert code == 0
    assert float(log.rpartition(": top-1 = ")[2].partition("\n")[0]) > 0.95


def test_a_task_of_srun_that_trains_alone_says_so(
    case: Path, run: Run, change: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_PROCID", "1")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "8")
    code, log = run("train", "-solver", "solver.prototxt")
    assert code == 0
    assert "trains alone, as each of the 8 tasks of this srun does; set MASTER_ADDR and MASTER_PORT" in log


def test_zero_iterations_write_the_initial_weights(case: Path, run: Run, change: Change) -> None:
    change(case / "solver.prototxt", ("max_iter: 6", "max_iter: 0"))
    code, log = run("train", "-solver", "solver.prototxt")
    assert code == 0
    assert "Iteration 0, loss = " in log
    net = pb.NetParameter.FromString((case / "run_iter_0.caffemodel").read_bytes())
    assert [len(layer.blobs) for layer in net.layer] == [0, 2, 0]


def test_a_snapshot_that_cannot_be_written_is_a_failed_run(case: Path, run: Run, change: Change) -> None:
    (case / "gone").mkdir()
    change(case / "solver.prototxt", ('"run"', '"gone/run"'), ("max_iter: 6", "max_iter: 1000000"))
    change(case / "solver.prototxt", ("display: 2", "display: 0 snapshot: 1"))

    def disturb() -> None:
        while not list((case / "gone").glob("run_iter_*.solverstate")):
            time.sleep(0.01)
        (case / "gone").rename(case / "elsewhere")

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        code, log = run("train", "-solver", "solver.prototxt")
    finally:
        thread.join()
    assert code == 3
    assert "cannot be written" in only_line(log)


@pytest.mark.parametrize("seed", [2**63 - 1, 0])
def test_any_seed_is_accepted(case: Path, run: Run, change: Change, seed: int) -> None:
    change(case / "solver.prototxt", ("random_seed: 1", f"random_seed: {seed}"))
    assert run("train", "-solver", "solver.prototxt")[0] == 0


def test_a_random_seed_makes_runs_alike(case: Path, run: Run) -> None:
    files = []
    for _ in range(2):
        assert run("train", "-solver", "solver.prototxt")[0] == 0
        files.append((case / "run_iter_6.caffemodel").read_bytes())
    assert files[0] == files[1]


def test_sigint_snapshots_at_its_iteration_and_exits_0(case: Path, run: Run, change: Change) -> None:
    change(case / "solver.prototxt", ("max_iter: 6", "max_iter: 1000000"), ("display: 2", "display: 0"))
    thread = threading.Thread(target=signal_once_handled, args=(signal.SIGINT,))
    thread.start()
    try:
        code, log = run("train", "-solver", "solver.prototxt")
    finally:
        thread.join()
    assert code == 0
    assert "Optimization stopped early." in log
    assert len(list(case.glob("run_iter_*.solverstate"))) == 1


def test_sighup_snapshots_and_training_continues(case: Path, run: Run, change: Change) -> None:
    change(case / "solver.prototxt", ("max_iter: 6", "max_iter: 1000000"), ("display: 2", "display: 0"))

    def disturb() -> None:
        signal_once_handled(signal.SIGHUP)
        while not list(case.glob("run_iter_*.solverstate")):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        code, _ = run("train", "-solver", "solver.prototxt")
    finally:
        thread.join()
    assert code == 0
    assert len(list(case.glob("run_iter_*.solverstate"))) == 2


@pytest.mark.parametrize(("words", "code"), [(("version",), 0), (("train",), 2), (("trian",), 2)])
def test_the_program_ends_with_its_code_and_all_it_printed(words: tuple[str, ...], code: int) -> None:
    program = Path(sys.executable).with_name("caffe-torch")
    done = subprocess.run([program, *words], capture_output=True, text=True)
    assert done.returncode == code
    assert "caffe-torch" in (done.stdout + done.stderr).splitlines()[-1]


def test_closed_standard_files_are_opened_for_the_program_and_its_children() -> None:
    program = (
        "import os, sys; from caffe_recipes.engine.main import main; sys.argv = ['caffe-torch', 'version']; "
        "failed = main() or os.open(os.devnull, os.O_RDONLY) < 3 or os.system('echo lost'); "
        "os._exit(bool(failed))"
    )
    argv = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, "-c", program]
    assert subprocess.run(argv).returncode == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("--help", 2),
        ("", 2),
        ("version", 2),
        ("device_query", 2),
        ("trian", 2),
        ("time -model net.prototxt -iterations 1", 2),
        ("train -solver solver.prototxt", 0),
    ],
)
def test_what_cannot_be_printed_is_bad_input_but_ends_no_training(
    case: Path, monkeypatch: pytest.MonkeyPatch, words: str, code: int
) -> None:
    with Path("/dev/full").open("w") as out, Path("/dev/full").open("w") as err:
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", err)
        assert main(words.split()) == code
        drop_output(err)


def test_a_log_without_a_reader_ends_as_by_sigpipe(case: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for words in (["time", "-model", "net.prototxt"], ["train", "-solver", "solver.prototxt"]):
        reader, writer = os.pipe()
        os.close(reader)
        with os.fdopen(writer, "w") as stream:
            monkeypatch.setattr(sys, "stderr", stream)
            assert main(words) == 141


def test_help_and_version_exit_0(run: Run) -> None:
    assert run("--help")[0] == 0
    assert run("version")[0] == 0


def test_flags_are_checked_before_torch_is_imported() -> None:
    code = "import sys, caffe_recipes.engine.main; sys.exit(bool({'torch', 'numpy'} & {*sys.modules}))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_output_of_a_command_is_not_one_of_its_inputs(case: Path, run: Run) -> None:
    Path("net.npz").symlink_to("net.prototxt")
    before = Path("net.prototxt").read_bytes()
    words = ("-model", "net.prototxt", "-weights", "net.prototxt", "-out", "./net.npz")
    code, log = run("predict", *words)
    assert (code, Path("net.prototxt").read_bytes()) == (2, before)
    assert only_line(log).endswith("net.npz: is an input of this command; give another file with -out")


@pytest.mark.parametrize("missing", ["torch", "mpi4py"])
def test_without_the_extra_it_prints_what_to_install(missing: str) -> None:
    with pytest.raises(
        InputError, match=f"{missing} is not installed; install the extra 'engine' of caffe-recipes"
    ):
        check_modules(lambda name: None if name == missing else name)


@pytest.mark.promise("nothing is written through planted links")
@pytest.mark.promise("our files are open to nobody else")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can play another user")
@pytest.mark.parametrize("suffix", ["caffemodel", "solverstate"])
def test_a_snapshot_is_not_written_through_a_link_that_another_user_planted(
    case: Path, run: Run, change: Change, suffix: str
) -> None:
    (case / "profile").write_text("mine")
    (case / "shared").mkdir()
    (case / "shared").chmod(0o1777)
    planted = case / "shared" / f"run_iter_6.{suffix}"
    planted.symlink_to(case / "profile")
    os.chown(planted, 54321, 54321, follow_symlinks=False)
    change(case / "solver.prototxt", ('"run"', '"shared/run"'))
    code, log = run("train", "-solver", "solver.prototxt")
    assert code == 2
    assert f"{planted} is a symbolic link of user 54321" in log
    assert (case / "profile").read_text() == "mine"


@pytest.mark.promise("nothing is written through planted links")
@pytest.mark.promise("our files are open to nobody else")
def test_under_an_open_umask_no_file_is_created_that_others_can_write(case: Path, run: Run) -> None:
    before = os.umask(0)
    try:
        assert run("train", "-solver", "solver.prototxt")[0] == 0
    finally:
        os.umask(before)
    for suffix in ("caffemodel", "solverstate"):
        assert (case / f"run_iter_6.{suffix}").stat().st_mode & 0o777 == 0o644
