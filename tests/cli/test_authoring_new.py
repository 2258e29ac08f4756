"""`caffe-recipes new` from the outside: what it prints and writes, how it exits."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cli.command_line import call_main

ROOT = Path(__file__).parents[2]
MACHINE = ["--profile", "stampede2-skx"]
WHOLE = {"--images": "1281167", "--batch": "4096", "--epochs": "90"}


def run(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return call_main(*words, cwd=cwd)


def words_of(options: dict[str, str]) -> list[str]:
    return [word for pair in options.items() for word in pair]


def test_the_written_recipe_passes_lint(tmp_path: Path) -> None:
    done = run(
        "new",
        *words_of(WHOLE),
        "--profile",
        "stampede2-skx",
        "--cycles",
        "3",
        "--out",
        "a.yaml",
        cwd=tmp_path,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "wrote a.yaml\n", "")
    assert run("lint", "a.yaml", cwd=tmp_path).returncode == 0
    assert run("generate", "a.yaml", cwd=tmp_path).returncode == 0
    again = run("new", *words_of(WHOLE), "--out", "a.yaml", cwd=tmp_path)
    assert again.returncode == 2
    assert again.stderr == "Error: a.yaml: already exists; remove it, or give another --out\n"


def test_jobs_of_a_recipe_look_for_the_file_that_it_was_written_to(tmp_path: Path) -> None:
    run("new", *words_of(WHOLE), *MACHINE, "--out", "mine.yaml", cwd=tmp_path)
    generated = run("generate", "mine.yaml", cwd=tmp_path)
    assert (generated.returncode, generated.stderr) == (0, "")
    assert "recipe=mine.yaml program=" in (tmp_path / "jobs/mine/chain.sbatch").read_text()


def test_a_name_that_differs_from_the_file_is_a_warning(tmp_path: Path) -> None:
    done = run("new", *words_of(WHOLE), *MACHINE, "--out", "a.yaml", "--name", "b", cwd=tmp_path)
    message = "warning: a.yaml: its jobs look for b.yaml; rename the file or the recipe\n"
    assert (done.returncode, done.stderr) == (0, message)
    assert run("generate", "a.yaml", cwd=tmp_path).stderr == message
    done = run("new", *words_of(WHOLE), *MACHINE, "--out", "digits-local.yaml", cwd=tmp_path)
    assert "its jobs run the shipped recipe digits-local; give this one another name" in done.stderr


def test_a_recipe_of_another_depth_is_generated(tmp_path: Path) -> None:
    done = run("new", *words_of(WHOLE), "--depth", "18", *MACHINE, "--out", "a.yaml", cwd=tmp_path)
    message = "warning: the rules and known accuracies are for ResNet-50; ResNet-18 may need other settings\n"
    assert (done.returncode, done.stderr) == (0, message)
    assert run("generate", "a.yaml", cwd=tmp_path).returncode == 0
    assert 'name: "ResNet-18"' in (tmp_path / "prototxt/a/train_val.prototxt").read_text()
    refused = run("new", *words_of(WHOLE), "--depth", "20", cwd=tmp_path)
    assert refused.returncode == 2
    assert "'20' is not one of '18', '34', '50', '101', '152'" in refused.stderr


def test_a_collapse_off_each_end_needs_cycles(tmp_path: Path) -> None:
    each = [*words_of(WHOLE), "--collapse", "each"]
    made = run("new", *each, "--cycles", "1", *MACHINE, cwd=tmp_path)
    assert (made.returncode, made.stderr) == (0, "")
    assert "weights: decay\n" in made.stdout
    assert "weights: cyc1\n" in made.stdout
    refused = run("new", *each, cwd=tmp_path)
    assert refused.returncode == 2
    assert refused.stderr.startswith("Error: --collapse: there are no cycles to branch off from; give")
    assert refused.stderr.count("\n") == 1


def test_counts_may_have_commas_between_their_thousands(tmp_path: Path) -> None:
    done = run("new", *words_of(WHOLE | {"--images": "1,281,167"}), cwd=tmp_path)
    assert done.stdout == run("new", *words_of(WHOLE), cwd=tmp_path).stdout != ""


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"--epochs": "6_0"},
            "Error: Invalid value for '--epochs': '6_0' is not a number; write one such as 0.5",
        ),
        ({"--images": "9" * 5000}, "Error: Invalid value for '--images': '9999"),
    ],
)
def test_values_that_are_not_numbers_are_refused(
    changed: dict[str, str], message: str, tmp_path: Path
) -> None:
    done = run("new", *words_of(WHOLE | changed), cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(message)
    assert "Traceback" not in done.stderr


def test_without_a_file_the_recipe_is_printed_and_warnings_go_to_stderr(tmp_path: Path) -> None:
    done = run("new", *words_of(WHOLE | {"--epochs": "30"}), "--name", "mine", cwd=tmp_path)
    assert done.returncode == 0
    assert "\nname: mine\n" in done.stdout
    lars, threads = done.stderr.splitlines()
    assert lars.startswith("warning: 30 epochs may be too few: MLPerf's runs with LARS take 40 to 75.9%")
    assert threads == (
        "warning: omp_num_threads: 1, since no profile gives the cores; set it to the cores per rank"
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"--epochs": "0"}, "--epochs: 0 is not a valid number of epochs; give 1 or more"),
        ({"--epochs": "nan"}, "--epochs: nan is not a finite number"),
        ({"--epochs": "1000000"}, "--epochs: 1000000 epochs is too many; give 100000 or"),
        ({"--collapse-epochs": "1e300"}, "--collapse-epochs: 1e+300 epochs is too many"),
        ({"--trainer": ""}, "--trainer: '' is not a path; is a variable unset?"),
        (
            {"--trainer": "bogus"},
            "Error: --trainer: 'bogus' is not a trainer; give caffe-torch, or the path to a Caffe binary "
            "from the Caffe root, e.g. ./caffe\n",
        ),
        ({"--trainer": "tensorflow"}, "--trainer: 'tensorflow' is not a trainer; give caffe-torch, or"),
        ({"--trainer": "-x"}, "--trainer: a launcher would read -x as one of its options; write ./-x"),
        ({"--name": ""}, "--name: is empty; give a name, or omit the option"),
        ({"--name": "a/b"}, "Error: --name: 'a/b' is not a valid name of a recipe; use letters"),
        (
            {"--lmdb": "\udcff"},
            "new: a name or path is not valid UTF-8; rename it",
        ),
        (
            {"--ranks-per-node": "7"},
            "--batch: a batch of 4,096 cannot be divided among 1 node x 7 ranks; use another",
        ),
        ({"--epochs": "6"}, "--epochs: 6 epochs are too few for 5 of warm-up"),
        ({"--batch": "2000000"}, "--batch: a batch of 2,000,000 is larger than the data set"),
        ({"--cycles": "9"}, "--cycles: 90 epochs are too few for 5 of warm-up, 135 of 9 cycles"),
        ({"--nodes": "7"}, "--nodes: a batch of 4,096 cannot be divided among 7 nodes x 1 rank; use 4 or 8"),
        ({"--collapse-epochs": "0"}, "--collapse-epochs: 0 is not a valid number of epochs"),
        ({"--profile": "nowhere"}, "unknown profile 'nowhere'"),
        ({"--out": "there.yaml"}, "there.yaml: already exists"),
        (
            {"--out": "a b.yaml"},
            "a b.yaml: 'a b' is not a valid name of a recipe; use letters, digits, '.', '_' and '-'",
        ),
    ],
)
def test_bad_input_gets_one_line_and_exit_2(changed: dict[str, str], message: str, tmp_path: Path) -> None:
    (tmp_path / "there.yaml").touch()
    done = run("new", *words_of(WHOLE | changed), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Error: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["there.yaml"]
