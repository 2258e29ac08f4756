from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import TypeVar

import pytest

from caffe_recipes.config import Value
from caffe_recipes.recipe.model import Recipe
from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.render.scripts import lmdb_hint, render_run_script
from tests.jobs.conftest import definitions

Part = TypeVar("Part", bound=Value)

SHIPPED = ("stampede2-64n-72ep", "stampede2-448n-90ep", "digits-local")
HOSTILE = "a b'c\"$(touch hacked)`touch hacked`\\ é* ~ {x,y} #"


def changed(part: Part, **values: object) -> Part:
    return part.model_copy(update=values)


def hostile_recipe() -> Recipe:
    """A recipe whose every free text is hostile to a shell."""
    recipe = load_recipe("stampede2-64n-72ep")
    train = changed(recipe.data.train, lmdb=f"/tmp/{HOSTILE}", source=HOSTILE)
    test = changed(recipe.data.test, lmdb=HOSTILE)
    first, second = recipe.phases[:2]
    return changed(
        recipe,
        title=HOSTILE,
        trainer=f"./{HOSTILE}",
        prototxt_dir=HOSTILE,
        data=changed(recipe.data, train=train, test=test, prepare="digits"),
        cluster=changed(recipe.cluster, kmp_affinity=HOSTILE),
        phases=(
            changed(first, snapshot_prefix=f"/tmp/{HOSTILE}", comment=HOSTILE),
            changed(second, weights=f"{HOSTILE}.caffemodel", snapshot_prefix=f"/tmp/2 {HOSTILE}"),
        ),
    )


def stopped_recipe() -> Recipe:
    """A hostile recipe with a phase that is stopped, and one that starts from its intermediate snapshot."""
    recipe = hostile_recipe()
    first, second = recipe.phases
    first = changed(first, lr_policy="poly", max_iter=18720, stop_iter=7800, snapshot=3900)
    return changed(recipe, phases=(first, changed(second, weights=None, weights_iter=3900)))


def check_bash(script: str) -> None:
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "recipe",
    [*map(load_recipe, (*SHIPPED, "digits-cyclic")), hostile_recipe(), stopped_recipe()],
    ids=[*SHIPPED, "digits-cyclic", "hostile", "stopped"],
)
def test_the_script_is_clean_bash(recipe: Recipe) -> None:
    script = render_run_script(recipe)
    check_bash(definitions(recipe))
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed; bash -n passed")
    done = subprocess.run(
        ["shellcheck", "-"],
        input=script,
        capture_output=True,
        text=True,
        check=False,
        env={"LC_ALL": "C.UTF-8", "PATH": "/usr/local/bin:/usr/bin:/bin"},
    )
    assert done.stdout == ""


def test_hostile_texts_stay_one_word_each(tmp_path: Path) -> None:
    ask = """
    exec() { show "$@"; }
    show() { printf '%s\\n' "$@"; }
    check_phase() { show "$@"; }
    train_phase() { :; }
    evaluate_model() { show "evaluates $3"; }
    train solver.prototxt "2 $(basename "$LMDB")_iter_3750.caffemodel"; test_model net 1 model
    PASS=check chain; PASS=train chain
    show "$LMDB" "$TEST_LMDB" "$LMDB_SOURCE" "$PROTOTXT_DIR"
    """
    done = subprocess.run(
        ["bash", "-s"],
        input=definitions(hostile_recipe()) + ask,
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"]},
    )
    lines = done.stdout.splitlines()
    assert lines.count(f"KMP_AFFINITY={HOSTILE}") == 2
    assert lines.count(f"./{HOSTILE}") == 2
    assert f"/tmp/{HOSTILE}_iter_7800.caffemodel" in lines
    # The second phase starts from a file, so that the first has an end of its own.
    assert f"evaluates {HOSTILE}_iter_7800.caffemodel" in lines
    assert f"evaluates 2 {HOSTILE}_iter_3750.caffemodel" in lines
    assert f"--weights=2 {HOSTILE}_iter_3750.caffemodel" in lines
    assert f"{HOSTILE}.caffemodel" in lines
    assert lines[-4:] == [f"/tmp/{HOSTILE}", HOSTILE, HOSTILE, HOSTILE]
    assert list(tmp_path.iterdir()) == []


def ask_script(recipe: Recipe, question: str, *words: str) -> str:
    """Source a script without starting it, run a function, and return its output."""
    text = definitions(recipe) + question
    done = subprocess.run(["bash", "-s", *words], input=text, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout


def test_a_phase_names_where_it_is_stopped_and_what_later_phases_need() -> None:
    first, second = ask_script(
        stopped_recipe(), "check_phase() { printf '<%s>' \"$@\"; echo; }; PASS=check chain"
    ).splitlines()
    path = f"/tmp/{HOSTILE}_iter"
    assert first == f"<init><train_val><><{path}_7800.caffemodel><7800><{path}_3900.caffemodel>"
    assert second.startswith(f"<cyc1><train_val><{HOSTILE}_iter_3900.caffemodel>")
    assert " --of 18720 --keep 3900 # 24.94 epochs: " in render_run_script(stopped_recipe())


WHOLE = """
is_complete "$1" "$2" 7800 && echo whole || echo not
"""


@pytest.mark.parametrize(
    ("log", "answer"),
    [
        ("", "not"),
        ("[0] I1120 11:49:33.7 6374 solver.cpp:770] Snapshotting to binary proto file {path}", "not"),
        ("[0] I1120 11:49:33.7 6374 solver.cpp:735] Snapshot end", "not"),
        ("Snapshotting to binary proto file {path}\n[1] I1120 1 2 solver.cpp:735] Snapshot end", "not"),
        ("Snapshotting to binary proto file {path}\n[0] I1120 1 2 solver.cpp:735] Snapshot end", "whole"),
        ("Snapshotting to binary proto file {path}\nI1120 1 2 solver.cpp:735] Snapshot end", "whole"),
        ("Snapshotting to binary proto file {path}.part\nI1120 1 2 solver.cpp:735] Snapshot begin", "not"),
        ("[0] I1120 1 2 solver.cpp:312] Iteration 7760, loss = 0.1", "not"),
        ("[0] I1120 1 2 solver.cpp:312] Iteration 7800, loss = 0.1", "whole"),
        ("[1] I1120 1 2 solver.cpp:312] Iteration 7800, loss = 0.1", "not"),
        ("I1120 1 2 solver.cpp:239] Iteration 7800 (2 iter/s, 5s/10 iters), loss = 0.1", "whole"),
        ("I1120 1 2 solver.cpp:337]     [0.0] Iteration 7800 (9 s), 0.1/9ep, loss = 0.1", "whole"),
        ("I1120 1 2 solver.cpp:348] Iteration 7800, Testing net (#0)", "not"),
    ],
)
def test_a_snapshot_is_complete_once_rank_0_logs_that_or_trains_on(
    tmp_path: Path, log: str, answer: str
) -> None:
    path = f"/tmp/{HOSTILE}_iter_7800.caffemodel"
    (tmp_path / "log").write_text(log.format(path=path) + "\n" if log else "")
    assert ask_script(stopped_recipe(), WHOLE, str(tmp_path / "log"), path) == f"{answer}\n"


@pytest.mark.parametrize(("stop_iter", "loss"), [("", "nan"), ("7800", "0.2"), ("7760", "0.1"), ("20", "")])
def test_the_loss_that_counts_is_the_last_of_the_phases_own(
    tmp_path: Path, stop_iter: str, loss: str
) -> None:
    lines = (("7760", "0.1"), ("7800", "0.2"), ("7840", "nan"))
    text = "".join(f"[0] I1120 1 2 solver.cpp:312] Iteration {at}, loss = {value}\n" for at, value in lines)
    (tmp_path / "log").write_text(text)
    printed = ask_script(stopped_recipe(), 'last_loss "$1" "$2"\n', str(tmp_path / "log"), stop_iter)
    assert printed.rstrip("\n") == loss


HERE = """
uname() { echo node1.cluster.org; }
hostname() { [[ $1 == -I ]] && echo "10.1.2.3 fd00::3 "; }
getent() {
  case $2 in
    node1-ib.cluster.org) printf '%s STREAM x\\n' 10.9.9.9 fd00::3 ;;
    node1.other.org) echo 10.1.2.30 STREAM node1.other.org ;;
    aliased) echo 127.0.1.1 STREAM aliased ;;
    [0-9]*.*.*.*) echo "$2 STREAM" ;;
    *) return 2 ;;
  esac
}
is_here "$1" && echo near || echo far
"""


@pytest.mark.parametrize(
    ("host", "distance"),
    [
        ("localhost", "near"),
        ("127.0.0.1", "near"),
        ("node1", "near"),
        ("node1.cluster.org", "near"),
        ("node1-ib.cluster.org", "near"),
        ("aliased", "near"),
        ("10.1.2.3", "near"),
        ("node1.other.org", "far"),
        ("node10", "far"),
        ("10.1.2", "far"),
        ("10.1.2.33", "far"),
        ("127.example.org", "far"),
    ],
)
def test_this_machine_is_known_by_its_names_and_addresses(host: str, distance: str) -> None:
    script = definitions(load_recipe("digits-local"))
    done = subprocess.run(
        ["bash", "-s", host], input=script + HERE, capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == (f"{distance}\n", "")


def test_plain_values_are_written_plainly() -> None:
    script = render_run_script(load_recipe("stampede2-64n-72ep"))
    assert (
        "readonly TRAIN=(\n"
        "  mpiexec.hydra -PSM2 -l -n 128 -ppn 2 -f hostfile\n"
        "  -genv OMP_NUM_THREADS 22\n"
        "  -genv KMP_AFFINITY granularity=fine,compact,1,0\n"
        "  ./build/tools/caffe train\n"
        ")\n"
    ) in script
    assert "export MLSL_NUM_SERVERS=2\nexport MLSL_SERVER_AFFINITY=39,38,43,42\n" in script


def test_servers_whose_cores_no_source_names_are_counted_alone() -> None:
    script = render_run_script(load_recipe("paper-t7-8192-256n"))
    assert "\nexport MLSL_NUM_SERVERS=2\n" in script
    assert "MLSL_SERVER_AFFINITY" not in script


def test_settings_that_the_recipe_leaves_unset_are_not_passed() -> None:
    script = render_run_script(load_recipe("digits-local"))
    for word in ("PSM2", "KMP_AFFINITY", "MLSL_"):
        assert word not in script
    assert "mpiexec.hydra -l -n 2 -ppn 2 -f hostfile" in script


def test_a_phase_starts_from_the_phase_or_file_that_the_recipe_names() -> None:
    recipe = load_recipe("digits-local")
    init, cyc1, cyc2, *_ = recipe.phases
    phases = (
        changed(init, weights="given/start.caffemodel"),
        changed(cyc1, weights="none"),
        changed(cyc2, weights="init"),
    )
    script = render_run_script(changed(recipe, phases=phases))
    assert "\n  phase init train_val given/start.caffemodel 560 " in script
    assert "\n  phase cyc1 train_val '' 270 " in script
    assert "\n  phase cyc2 train_val digits_init_iter_560.caffemodel 340 " in script


def test_without_an_evaluation_none_is_made() -> None:
    script = render_run_script(changed(load_recipe("digits-local"), evaluation=None))
    assert "evaluat" not in script
    recipe = changed(load_recipe("digits-local"), evaluation=None)
    asked = "train_phase() { :; }; PASS=train chain 2>&1"
    assert ask_script(recipe, asked) == "digits-local: done: digits_collapse_iter_112.caffemodel\n"


def test_a_recipe_that_prepares_its_data_shows_the_command() -> None:
    script = render_run_script(load_recipe("digits-local"))
    assert "caffe-recipes data build digits --out examples/digits" in script


def test_the_hint_for_a_missing_lmdb_names_the_program_of_the_recipe_s_trainer() -> None:
    ours = load_recipe("digits-local")
    ours = changed(ours, data=changed(ours.data, prepare=None))
    assert lmdb_hint(ours, None) == "build it with caffe-recipes data build"
    assert lmdb_hint(changed(ours, trainer="./caffe"), None) == "build it with convert_imageset"


@pytest.mark.parametrize("name", SHIPPED)
def test_the_text_is_the_same_anywhere(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = render_run_script(load_recipe(name))
    monkeypatch.chdir(tmp_path)
    assert render_run_script(load_recipe(name)) == here
    assert str(Path(__file__).resolve().parents[2]) not in here
    assert shlex.quote(str(Path.home())) not in here.split()
