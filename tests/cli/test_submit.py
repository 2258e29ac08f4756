from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from caffe_recipes.authoring.rescale import RescaleTarget, rescale
from caffe_recipes.recipe.shipped import shipped_recipes
from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.render.dialect import translate_whole
from caffe_recipes.render.recipe_files import generate
from caffe_recipes.render.tree import write_files
from tests.cli.command_line import call_main
from tests.run.conftest import RECIPE


def call(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    # No Slurm that the machine may have.
    return call_main("submit", *words, cwd=folder, env={"PATH": str(folder / "bin")})


def commands(shown: str) -> list[list[str]]:
    """Return the arguments of the commands that a dry run shows after its lines for people."""
    lines = shown.replace("\\\n", "").splitlines()
    return [shlex.split(line) for line in lines if line.startswith(("sbatch ", "env "))]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "small.yaml").write_text(RECIPE)
    write_files(generate(load_recipe(tmp_path / "small.yaml")), tmp_path)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("sh", "env"):
        (programs / name).symlink_to(f"/bin/{name}")
    return tmp_path


def test_a_dry_run_prints_the_command_and_the_script_without_slurm(root: Path) -> None:
    before = sorted(root.rglob("*"))
    done = call(
        root,
        "small.yaml",
        "--dry-run",
        "--time",
        "1:30:00",
        "--partition",
        "debug",
        "--how",
        "copy",
        "--trust-owner",
        "bob",
    )
    assert (done.returncode, done.stderr) == (0, "")
    (words,) = commands(done.stdout)
    assert [word for word in words if word.startswith(("--time", "--part"))] == [
        "--partition=debug",
        "--time=01:30:00",
    ]
    assert words[-5:] == ["jobs/small/chain.sbatch", "--how", "copy", "--trust-owner", "bob"]
    assert done.stdout.splitlines()[:5] == [
        "jobs:         1 job, for all remaining phases",
        "nodes:        1 with 2 ranks each",
        "time:         1 h 30 min at most, 1.5 node-hours; from --time",
        "account:      your default, partition debug",
        "at the limit: Caffe writes a snapshot 9 min before; the requeued job resumes",
    ]
    script = (root / "jobs/small/chain.sbatch").read_text().strip()
    assert script not in done.stdout
    assert script in call(root, "small.yaml", "--dry-run", "--show-scripts").stdout
    assert sorted(root.rglob("*")) == before


def test_the_tensorflow_run_of_a_recipe_is_submitted_by_its_own_job_with_its_own_time(root: Path) -> None:
    write_files(generate(load_recipe("tf-256n-90ep")), root)
    done = call(root, "tf-256n-90ep", "--trainer", "tensorflow", "--caffe-root", ".", "--dry-run")
    assert (done.returncode, done.stderr) == (0, "")
    (words,) = commands(done.stdout)
    assert "--time=02:40:00" in words
    assert "jobs/tf-256n-90ep/tf_train.sbatch" in words
    assert "2 h 40 min at most, 682.7 node-hours; at the recipe's own speed\n" in done.stdout


def test_a_dry_run_works_on_a_laptop_that_lacks_the_caffe_root(root: Path) -> None:
    (root / "site.yaml").write_text("name: site\ntitle: A site\ncaffe_root: /of/the/cluster\n")
    done = call(root, "small.yaml", "--dry-run", "--profile", "site.yaml")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[6:8] == [
        "note:         /of/the/cluster does not exist on this machine; paths are those of",
        "              the cluster",
    ]
    assert "CAFFE_ROOT=/of/the/cluster" in done.stdout
    done = call(root, "small.yaml", "--profile", "site.yaml")
    assert (done.returncode, done.stdout) == (2, "")
    done = call(root, "small.yaml", "--dry-run", "--profile", "none.yaml")
    assert done.returncode == 2


def test_a_command_of_a_dry_run_is_wrapped_between_its_words(root: Path) -> None:
    done = call(root, "small.yaml", "--dry-run", "--mail", "somebody@example.org")
    lines = done.stdout.partition("\n\n")[2].splitlines()
    assert all(line.endswith("\\") for line in lines[:-1])
    paths = (
        "'CAFFE_RECIPES_SUBMITTED=",
        "--output=",
        "CAFFE_ROOT=",
        "env CAFFE_ROOT=",
        "CAFFE_RECIPES=",
        "RECIPE_FILE=",
    )
    assert all(line.lstrip().startswith(paths) for line in lines if len(line) > 80)
    (words,) = commands(done.stdout)
    name, digest = next(word for word in words if word.startswith("CAFFE_RECIPES_SUBMITTED=")).split()
    assert (name.partition("=")[2] in " ".join(words[words.index("sbatch") :]), len(digest)) == (True, 64)


def test_two_dry_runs_are_equal_and_leave_words_whole(root: Path) -> None:
    one, two = (call(root, "small.yaml", "--dry-run", "--split").stdout for _ in range(2))
    assert one == two
    assert "--job-name=small-RANDOM-init" in one
    assert re.search(r" 'CAFFE_RECIPES_SUBMITTED=small-RANDOM-init [0-9a-f]{64}' ", one)


def test_a_misspelt_flag_of_our_programs_is_refused_before_it_fails_on_every_rank(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = shipped_recipes()["tf-digits-local"].file.read_text("utf-8")
    text = text.replace("tf-digits-local", "mine").replace("deterministic: true", "determinstic: true")
    (root / "mine.yaml").write_text(text)
    line = text[: text.index("determinstic")].count("\n") + 1
    done = call(root, "mine.yaml", "--dry-run")
    what = "tensorflow.flags.determinstic: resnet_main.py has no flag --determinstic"
    message = f"Error: mine.yaml:{line}: {what}; did you mean 'deterministic'?\n"
    assert (done.returncode, done.stderr) == (2, message)
    monkeypatch.setenv("RESNET_DIR", str(root))
    assert call(root, "mine.yaml", "--dry-run").returncode == 0


def test_a_time_that_only_estimate_knows_is_named_with_the_option(root: Path) -> None:
    made = rescale(load_recipe("stampede2-64n-72ep"), RescaleTarget(nodes=8, name="fewer"), root)
    (root / "fewer.yaml").write_text(made.text)
    shown = " ".join(call(root, "fewer.yaml", "--dry-run").stdout.split())
    assert (
        "time: not known from this recipe; `estimate` gives 1 d 06 h: give e.g. --time 1-12:10:00 " in shown
    )
    assert " --time=" not in shown
    shown = " ".join(call(root, "fewer.yaml", "--dry-run", "--split").stdout.split())
    assert "`estimate` gives 1 d 06 h for all phases: give e.g. --time 12:30:00 " in shown
    shown = " ".join(call(root, "small.yaml", "--dry-run").stdout.split())
    assert "time: not known; the partition's default, unless --time is given" in shown


def test_the_warnings_of_jobs_of_different_lengths_are_a_range(tmp_path: Path) -> None:
    shown = call(tmp_path, "stampede2-64n-72ep", "--dry-run", "--split").stdout
    given = {int(seconds) for seconds in re.findall(r"--signal=B:USR1@(\d+)", shown)}
    assert "; at the recipe's own speed\n" in shown
    timed = call(tmp_path, "stampede2-64n-72ep", "--dry-run", "--split", "--time", "2:00:00").stdout
    assert "10 h 00 min at most, 640.0 node-hours; from --time, for each job\n" in timed
    first, last = min(given) // 60, max(given) // 60
    assert first < last
    assert f"at the limit: Caffe writes a snapshot {first} min to {last} min before;" in shown


def test_the_warning_of_a_job_of_unknown_length_is_explained(root: Path) -> None:
    shown = " ".join(call(root, "small.yaml", "--dry-run").stdout.split())
    assert "at the limit: Caffe writes a snapshot 2 min before (with --time, a tenth of that time, " in shown


@pytest.mark.parametrize("name", ["stampede2-64n-72ep", "stampede2-448n-90ep", "tf-256n-90ep"])
def test_a_dry_run_works_in_an_empty_folder_and_fits_a_terminal(tmp_path: Path, name: str) -> None:
    trainer = ["--trainer", "tensorflow"] if name.startswith("tf-") else []
    done = call(tmp_path, name, "--dry-run", *trainer)
    assert (done.returncode, done.stderr) == (0, "")
    script = "tf_train.sbatch" if trainer else "chain.sbatch"
    assert f"note:         jobs/{name}/{script} does not exist yet" in done.stdout
    lines = done.stdout.splitlines()
    heads = [line.split(":")[0] for line in lines if line[:1] != " "]
    assert heads[:6] == ["jobs", "nodes", "time", "assumes", "account", "at the limit"]
    assert max(map(len, lines[: lines.index("")])) <= 80
    assert not any(tmp_path.iterdir())


def test_options_of_run_can_be_given_here(root: Path) -> None:
    words = ("--stall-s", "90", "--caffe", "bin/caffe", "--sbatch-option=--reservation=course")
    (line,) = commands(call(root, "small.yaml", "--dry-run", *words).stdout)
    assert "--reservation=course" in line
    assert line[-4:] == ["--stall-s", "90.0", "--caffe", str(root / "bin/caffe")]


def test_a_recipe_for_another_caffe_is_submitted_by_its_own_scripts(root: Path) -> None:
    done = call(root, "small.yaml", "--dialect", "intel")
    assert "small-intel/chain.sbatch: no such file; run: caffe-recipes generate small.yaml" in done.stderr
    assert done.stderr.endswith("--dialect intel\n")
    write_files(generate(translate_whole(load_recipe(root / "small.yaml"), "intel")), root)
    done = call(root, "small.yaml", "--dry-run", "--dialect", "intel")
    assert commands(done.stdout)[0][-1] == "jobs/small-intel/chain.sbatch"


def test_sbatch_environment_variables_count_as_options(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("PARTITION", "long"), ("ACCOUNT", "physics"), ("TIMELIMIT", "90")):
        monkeypatch.setenv(f"SBATCH_{name}", value)
    (words,) = commands(call(root, "small.yaml", "--dry-run", "--account", "mine").stdout)
    assert {"--partition=long", "--account=mine", "--time=01:30:00"} <= {*words}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["small.yaml"], "Error: sbatch: not found on PATH; submit on a login node of the Slurm cl"),
        (["small.yaml", "--mail", "a b"], "Error: --mail: 'a b' is not a mail address; write it as"),
        (["small.yaml", "--mail", "-a"], "Error: --mail: '-a' is not a mail address"),
        (["small.yaml", "--mail", ""], "Error: --mail: '' is not a mail address"),
        (["small.yaml", "--mail", "a@b.org\n"], "Error: --mail: 'a@b.org\\n' is not a mail address"),
        (["small.yaml", "--on-failure", "replace"], "Error: --on-failure: replace needs spare nodes; give"),
        (["small.yaml", "--lmdb-source", "none"], "none: no such folder; give the LMDB's folder with --lmdb"),
        (["small.yaml", "--lmdb-source", ""], "Error: --lmdb-source: '' is not a path; is a variable unset?"),
        (["small.yaml", "--time", "soon"], "Error: --time: 'soon' is not a Slurm time; write minutes"),
        (
            ["small.yaml", "--time", "UNLIMITED"],
            "Error: --time: 'UNLIMITED' is not a time limit; write e.g. 90",
        ),
        (["small.yaml", "--caffe-root", "none", "--out", "."], "Error: none: no such folder; give the Caffe"),
        (
            ["digits-local", "--caffe-root", "."],
            "jobs/digits-local/chain.sbatch: no such file; run: caffe-recipes generate digits",
        ),
        (["digits-locl"], "Error: unknown recipe 'digits-locl'; did you mean 'digits-local'?"),
    ],
)
def test_a_recipe_that_cannot_be_submitted_is_one_line_exit_2_and_leaves_nothing(
    root: Path, words: list[str], message: str
) -> None:
    before = sorted(root.rglob("*"))
    done = call(root, *words)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert message in done.stderr
    assert sorted(root.rglob("*")) == before
