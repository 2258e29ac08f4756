"""The command line of `caffe-recipes deploy`."""

from __future__ import annotations

from pathlib import Path

from tests.caffe.test_deploy import DEPLOY, NET
from tests.cli.command_line import call_main


def test_deploy_prints_the_net_or_writes_it_and_reports_the_outputs(tmp_path: Path) -> None:
    (tmp_path / "net.prototxt").write_text(NET)
    done = call_main("deploy", "net.prototxt", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout.split() == DEPLOY.split()
    assert done.stderr.splitlines()[-1] == "outputs: prob"
    words = ("deploy", "net.prototxt", "--for", "opencv", "--dialect", "bvlc", "-o", "made.prototxt")
    done = call_main(*words, cwd=tmp_path)
    assert (tmp_path / "made.prototxt").read_text().split() == DEPLOY.split()
    assert done.stderr.startswith("wrote made.prototxt\n")


def test_what_the_net_is_derived_from_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "net.prototxt").write_text(NET)
    (tmp_path / "link.prototxt").symlink_to("net.prototxt")
    for out in ("net.prototxt", "./net.prototxt", "link.prototxt"):  # even before weights are looked for
        words = ("deploy", "net.prototxt", "--fold-bn", "absent.caffemodel", "-o", out)
        done = call_main(*words, cwd=tmp_path)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
        assert "is an input of this command; give another file with --out" in done.stderr
    assert (tmp_path / "net.prototxt").read_text() == NET


def test_the_net_that_a_solver_or_a_folder_names_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "nets").mkdir()
    (tmp_path / "nets/net.prototxt").write_text(NET)
    (tmp_path / "solver.prototxt").write_text('net: "nets/net.prototxt" test_iter: 1')
    for given in ("solver.prototxt", "nets"):
        done = call_main("deploy", given, "-o", "nets/net.prototxt", cwd=tmp_path)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
        assert "net.prototxt: is an input of this command" in done.stderr
    assert (tmp_path / "nets/net.prototxt").read_text() == NET


def test_for_a_folder_the_hint_names_a_file_in_it(tmp_path: Path) -> None:
    (tmp_path / "net.prototxt").write_text(NET)
    done = call_main("deploy", "net.prototxt", "-o", ".", cwd=tmp_path)
    assert done.stderr == "Error: .: is a folder; name a file in it with --out\n"
    assert done.returncode == 2


def test_a_caffe_root_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "net.prototxt").write_text(NET)
    done = call_main("deploy", "net.prototxt", "--caffe-root", "none", cwd=tmp_path)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert "Directory 'none' does not exist" in done.stderr


def test_an_image_of_an_absurd_size_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "net.prototxt").write_text(NET)
    done = call_main("deploy", "net.prototxt", "--input", "3,1000000,1000000", cwd=tmp_path)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert "--input: an image of 1,000,000,000,000 pixels" in done.stderr


def test_standard_input_is_not_a_net(tmp_path: Path) -> None:
    done = call_main("deploy", "-", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Error: -: a net is not read from standard input; give a file")


def test_what_the_reader_lacks_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "net.prototxt").write_text(NET.replace('type: "InnerProduct"', 'type: "Sudoku"'))
    done = call_main("deploy", "net.prototxt", "--for", "opencv", cwd=tmp_path)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert "Sudoku" in done.stderr
    done = call_main("deploy", "net.prototxt", "--dialect", "bvlc", cwd=tmp_path)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert "Sudoku" in done.stderr
