from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import TypeVar

import pytest

from caffe_recipes.config import Value
from caffe_recipes.recipe.model import Recipe
from caffe_recipes.recipe.source import load_recipe, parse_recipe
from caffe_recipes.render.scripts import lmdb_hint, render_run_script
from tests.jobs.conftest import HARMLESS
from tests.recipe.test_checks import AS_IN_NET

Part = TypeVar("Part", bound=Value)

SHIPPED = ("stampede2-64n-72ep", "stampede2-448n-90ep", "digits-local")
OTHERS = ("digits-cyclic", "paper-t8-4096-128n-decay1e-4")  # the last has one phase, and shares one net
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


def check_bash(script: str, *exclude: str) -> None:
    """Check a script by `bash -n`, and by shellcheck where it is installed."""
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    if shutil.which("shellcheck") is not None:
        done = subprocess.run(
            ["shellcheck", *exclude, "-"],
            input=script,
            capture_output=True,
            text=True,
            check=False,
            env={"LC_ALL": "C.UTF-8", "PATH": "/usr/local/bin:/usr/bin:/bin"},
        )
        assert done.stdout == ""


@pytest.mark.parametrize(
    "recipe",
    [*map(load_recipe, (*SHIPPED, *OTHERS)), hostile_recipe(), stopped_recipe()],
    ids=[*SHIPPED, *OTHERS, "hostile", "stopped"],
)
def test_the_script_is_clean_bash(recipe: Recipe) -> None:
    check_bash(render_run_script(recipe), "--exclude=SC2016")  # our quoted texts may contain a $


def test_hostile_texts_stay_one_word_each(tmp_path: Path) -> None:
    # Each command shows its words, and nothing is done.
    show = "{ printf '%s\\n' \"$@\"; }\n"
    shown = f"exec() {show}command() {show}tee() {{ /bin/cat; }}\n"
    text = render_run_script(hostile_recipe()).replace("\nif begin ", f"\nbegin() {show}if begin ")
    done = subprocess.run(
        ["bash"], input=f"{HARMLESS}{shown}{text}", capture_output=True, text=True, check=False, cwd=tmp_path
    )
    lines = done.stdout.splitlines()
    assert lines.count(HOSTILE) == 2  # -genv KMP_AFFINITY
    assert lines.count(f"./{HOSTILE}") == 4
    assert f"/tmp/{HOSTILE}_iter_7800.caffemodel" in lines
    assert f"/tmp/2 {HOSTILE}_iter_3750.caffemodel" in lines
    assert f"--weights={HOSTILE}.caffemodel" in lines
    # The second phase starts from a file, so that the first has an end of its own.
    assert f"--weights={HOSTILE}_iter_7800.caffemodel" in lines
    assert f"--weights=2 {HOSTILE}_iter_3750.caffemodel" in lines
    assert f"--solver={HOSTILE}/solver_cyc1.prototxt" in lines
    assert not list(tmp_path.rglob("hacked"))


def test_a_phase_names_where_it_is_stopped_and_what_later_phases_need() -> None:
    script = render_run_script(stopped_recipe())
    quoted = shlex.quote(f"/tmp/{HOSTILE}_iter_3900.caffemodel")
    assert f"if begin init train_val '' {quoted} " in script
    assert f'\n  (on "$result" cat -- {quoted}) >' in script  # scp would expand it
    assert script.count("\n  stop_iter=7800 mpiexec.hydra ") == script.count("stop_iter=7800") == 1
    assert "stop_caffe" not in render_run_script(hostile_recipe())


BEGIN = "[0] I1120 11:49:33.7 6374 solver.cpp:770] Snapshotting to binary proto file {path}"


@pytest.mark.parametrize(
    ("log", "answer"),
    [
        ("", 1),
        (BEGIN, 1),
        ("[0] I1120 11:49:33.7 6374 solver.cpp:735] Snapshot end", 1),
        (BEGIN + "\n[1] I1120 1 2 solver.cpp:735] Snapshot end", 1),
        (BEGIN + "\n[0] I1120 1 2 solver.cpp:735] Snapshot end", 0),
        (BEGIN.removeprefix("[0] ") + "\nI1120 1 2 solver.cpp:735] Snapshot end", 0),
        (BEGIN + ".part\nI1120 1 2 solver.cpp:735] Snapshot begin", 1),
        ("[0] I1120 1 2 solver.cpp:312] Iteration 7760, loss = 0.1", 1),
        ("[0] I1120 1 2 solver.cpp:312] Iteration 7800, loss = 0.1", 0),
        ("[1] I1120 1 2 solver.cpp:312] Iteration 7800, loss = 0.1", 1),
        ("I1120 1 2 solver.cpp:239] Iteration 7800 (2 iter/s, 5s/10 iters), loss = 0.1", 0),
        ("I1120 1 2 solver.cpp:337]     [0.0] Iteration 7800 (9 s), 0.1/9ep, loss = 0.1", 0),
        ("I1120 1 2 solver.cpp:348] Iteration 7800, Testing net (#0)", 1),
    ],
)
def test_a_snapshot_is_complete_once_rank_0_logs_that_or_trains_on(
    tmp_path: Path, log: str, answer: int
) -> None:
    path = f"/tmp/{HOSTILE}_iter_7800.caffemodel"
    (tmp_path / "log").write_text(log.format(path=path) + "\n" if log else "")
    script = render_run_script(stopped_recipe())
    begin = script.index("is_complete() {")
    function = script[begin : script.index("\n}\n", begin) + 3]
    text = f"{function}last={shlex.quote(path)} stop_iter=7800\nis_complete log"
    assert subprocess.run(["bash"], input=text, text=True, check=False, cwd=tmp_path).returncode == answer


def test_plain_values_are_written_plainly() -> None:
    script = render_run_script(load_recipe("stampede2-64n-72ep"))
    assert (
        "\n  mpiexec.hydra -PSM2 -l -n 128 -ppn 2 -f hostfile -genv OMP_NUM_THREADS 22 "
        "-genv KMP_AFFINITY granularity=fine,compact,1,0 \\\n    ./build/tools/caffe train --solver="
    ) in script
    assert " MLSL_NUM_SERVERS=2 MLSL_SERVER_AFFINITY=39,38,43,42\n" in script


def test_servers_whose_cores_no_source_names_are_counted_alone() -> None:
    script = render_run_script(load_recipe("paper-t7-8192-256n"))
    assert " MLSL_NUM_SERVERS=2\n" in script
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
    assert "\nif begin init train_val given/start.caffemodel tmp/digits_init_iter_560.caffemodel; " in script
    assert "\nif begin cyc1 train_val '' tmp/" in script
    assert "\nif begin cyc2 train_val digits_init_iter_560.caffemodel tmp/" in script


def test_without_an_evaluation_none_is_made() -> None:
    script = render_run_script(changed(load_recipe("digits-local"), evaluation=None))
    assert "evaluat" not in script
    assert script.endswith("  finish\nfi\n")


def test_without_data_of_its_own_nothing_is_copied_to_nodes() -> None:
    recipe = load_recipe("stampede2-64n-72ep")
    copies = "copy_lmdb"
    assert copies in render_run_script(recipe)
    assert copies not in render_run_script(parse_recipe(AS_IN_NET, "mine.yaml", Path()))


def test_snapshots_are_fetched_as_the_machine_has_them() -> None:
    recipe = load_recipe("stampede2-64n-72ep")
    one = changed(recipe.cluster, nodes=1, copy_with="auto")
    script = render_run_script(changed(recipe, cluster=one))
    assert "\n  cp -- /tmp/resnet_50_64nodes_init_iter_7800.caffemodel .\n" in script
    assert "ssh()" not in script
    beside = changed(recipe.phases[0], snapshot_prefix="init")
    script = render_run_script(changed(recipe, cluster=one, phases=(beside,)))
    assert "iter_7800.caffemodel; then\n" in script
    assert not re.search(r"^  (cp|scp) ", script, re.MULTILINE)


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
