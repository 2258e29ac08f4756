"""`caffe-recipes adopt` from the outside: what it prints and writes, how it exits."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cli.command_line import call_main

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "prototxt" / "stampede2-64n-72ep"
DIGITS = ROOT / "prototxt" / "digits-local"


def run(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return call_main(*words, cwd=cwd)


def test_a_folder_becomes_a_recipe_s_file_that_generates_it(tmp_path: Path) -> None:
    done = run("adopt", FOLDER, "--out", "mine.yaml", "--name", "mine", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "wrote mine.yaml\n")
    assert "cyc1 starts from the last snapshot of init (guessed)" in done.stderr
    assert run("generate", "mine.yaml", cwd=tmp_path).returncode == 0
    same = run("diff", "prototxt/mine", FOLDER, cwd=tmp_path)
    assert same.stdout == "no difference in meaning\n"


def test_without_a_file_the_recipe_is_printed(tmp_path: Path) -> None:
    done = run("adopt", FOLDER, cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith("# Adopted from the files in stampede2-64n-72ep; ")
    assert not list(tmp_path.iterdir())


def test_a_folder_whose_name_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    shutil.copytree(DIGITS, tmp_path / "a\udcff")
    done = run("adopt", "a\udcff", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Error: a\\udcff: a name or path is not valid UTF-8; ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "nowhere: cannot be read: No such file or directory"),
        (["."], ".: contains no solver; give a solver, or the folder of the solvers' .prototxt files"),
        ([FOLDER, "--out", "there.yaml"], "there.yaml: already exists; remove it, or give another --out"),
        (
            [FOLDER, "--trainer", "bogus"],
            "--trainer: 'bogus' is not a trainer; give caffe-torch, or the path",
        ),
        ([FOLDER, "--trainer", ""], "--trainer: '' is not a path; is a variable unset?"),
        ([FOLDER, "--out", "a.txt"], "a.txt: is not a recipe file name; use the suffix .yaml"),
        ([FOLDER, "--out", "no/a.yaml"], "no/a.yaml: its parent directory does not exist; create it first"),
        ([FOLDER, "--script", "there.yaml"], "there.yaml: contains no training command"),
        ([FOLDER, "--name", "a/b"], "Error: --name: 'a/b' is not a valid name of a recipe; use"),
        ([FOLDER, "--name", ""], "--name: is empty; give a name, or omit the option"),
        ([FOLDER, "--ranks", "7", "--ranks-per-node", "2"], "--ranks: 7 ranks do not fill whole nodes of 2"),
        ([DIGITS, "--ranks-per-node", "5"], "Error: --ranks-per-node: 2 ranks do not fill whole nodes of 5"),
        (
            [DIGITS, "--ranks", "1000"],
            "Error: --ranks: the global batch is 32000 images, but there are only 1438; use fewer",
        ),
        (
            [DIGITS, "--images", "7"],
            "Error: --images: the global batch is 64 images, but there are only 7; use fewer",
        ),
        ([DIGITS, "--classes", "3"], "Error: --classes: the net has 10 classes, not 3; omit it"),
    ],
)
def test_bad_input_gets_one_line_and_exit_2(words: list[str | Path], message: str, tmp_path: Path) -> None:
    (tmp_path / "there.yaml").write_text("kept")
    done = run("adopt", *words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Error: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("there.yaml", "kept")]


def test_files_of_another_caffe_are_adopted_and_written_for_it_again(tmp_path: Path) -> None:
    data = 'top: "data" top: "label" data_param { source: "mnist" batch_size: 8 backend: LMDB cache: true }'
    (tmp_path / "net.prototxt").write_text(
        "".join(
            f'layer {{ name: "d" type: "Data" include {{ phase: {phase} }} {data} }} '
            for phase in ("TRAIN", "TEST")
        )
        + 'layer { name: "fc" type: "InnerProduct" bottom: "data" top: "fc" '
        "inner_product_param { num_output: 4 } } "
        'layer { name: "bn" type: "BatchNorm" bottom: "fc" top: "fc" batch_norm_param { scale_bias: true } } '
        'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "fc" bottom: "label" }'
    )
    solver = 'net: "net.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 100 snapshot_prefix: "s"'
    (tmp_path / "solver.prototxt").write_text(solver)
    done = run("adopt", "solver.prototxt", "--dialect", "nvcaffe", "--out", "mine.yaml", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "wrote mine.yaml\n"), done.stderr
    assert "net.prototxt:1:139: drops DataParameter.cache, which changes only speed" in done.stderr
    assert run("generate", "mine.yaml", "--dialect", "nvcaffe", cwd=tmp_path).returncode == 0
    same = run("diff", "prototxt/mine-nvcaffe/net.prototxt", "net.prototxt", cwd=tmp_path)
    assert same.stdout == "no difference in meaning\n"
    assert run("generate", "mine.yaml", cwd=tmp_path).returncode == 0
    assert run("lint", "mine.yaml", cwd=tmp_path).stdout.splitlines()[-1].startswith("0 errors,")
