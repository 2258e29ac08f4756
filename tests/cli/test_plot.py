from pathlib import Path

import pytest

from tests.cli.command_line import call_main
from tests.run.recorded_run import LOG

pytest.importorskip("matplotlib")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "train.log"
    path.write_text(LOG)
    return path


def test_a_log_is_plotted_and_written_as_csv(tmp_path: Path, log: Path) -> None:
    assert call_main("plot", log, "-o", "a.svg", cwd=tmp_path).stdout == "wrote a.svg\n"
    assert call_main("plot", log, "--x", "hours", "-o", "a.csv", cwd=tmp_path).returncode == 0
    assert (tmp_path / "a.csv").read_text().splitlines() == [
        "curve,piece,iterations,epochs,hours,phase,net,output,value",
        "train.log,1,0,,0,train,0,average loss,2.5",
        "train.log,1,2,,0.0002777777778,train,0,average loss,1.25",
        "train.log,1,0,,0,train,0,lr,0.1",
        "train.log,1,2,,0.0002777777778,train,0,lr,0.1",
    ]


def test_a_log_is_not_written_over(tmp_path: Path, log: Path) -> None:
    before = log.read_bytes()
    (tmp_path / "a.csv").symlink_to(log)
    for given in (log, "a.csv"):
        done = call_main("plot", given, "-o", "a.csv", cwd=tmp_path)
        assert (done.returncode, log.read_bytes()) == (2, before)
        assert done.stderr == "Error: a.csv: is an input of this command; give another file with -o\n"


def test_options_give_the_epochs_of_a_log(tmp_path: Path, log: Path) -> None:
    options = ("--images", 64, "--batch", 16, "--ranks", 2)
    assert call_main("plot", log, *options, "-o", "a.csv", cwd=tmp_path).returncode == 0
    assert (tmp_path / "a.csv").read_text().splitlines()[2].startswith("train.log,1,2,1,")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("train.log", "--x", "epochs"), "train.log: does not say how many iterations are an epoch; "),
        (("train.log", "digits-local"), "digits-local: is not a run or a log, as train.log is; "),
        (("digits-local", "--x", "hours"), "--x: is for runs and logs; "),
        (("train.log", "--apart"), "--apart: is for solver files; leave it out"),
        (("missing.log",), "missing.log: cannot be read: No such file or directory; "),
        (("empty.log",), "empty.log: is empty; "),
    ],
)
def test_what_cannot_be_plotted_is_one_clear_line(
    tmp_path: Path, log: Path, words: tuple[str, ...], message: str
) -> None:
    (tmp_path / "empty.log").touch()
    done = call_main("plot", *words, "-o", "a.svg", cwd=tmp_path)
    assert (done.returncode, done.stdout, (tmp_path / "a.svg").exists()) == (2, "", False)
    assert done.stderr.startswith(f"Error: {message}") and done.stderr.count("\n") == 1


def test_a_rate_of_a_log_is_plotted_on_a_logarithmic_axis(tmp_path: Path, log: Path) -> None:
    log.write_text(LOG.replace("Iteration 2, lr = 0.1", "Iteration 2, lr = 0.0001"))
    for options in ((), ("--log",)):
        assert call_main("plot", log, *options, "-o", f"a{len(options)}.svg", cwd=tmp_path).returncode == 0
    shown = ["<!-- 0.0001 -->" in (tmp_path / f"a{at}.svg").read_text() for at in (0, 1)]
    assert shown == [False, True]
    refused = call_main("plot", log, "--log", "-o", "a.csv", cwd=tmp_path)
    assert (refused.returncode, (tmp_path / "a.csv").exists()) == (2, False)
    assert refused.stderr == "Error: --log: is for pictures, not for a .csv; leave it out\n"
