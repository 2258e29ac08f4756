"""run.sh stops a phase before its schedule ends, and keeps the intermediate snapshots that others need."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from caffe_recipes.recipe.source import load_recipe
from tests.jobs.conftest import StandInCluster
from tests.jobs.test_run_sh_failures import failed, solver_in

INIT = "resnet_50_64nodes_init_iter_7800.caffemodel"
CYC1 = "resnet_50_64nodes_cyc1_iter_3750.caffemodel"
MIDWAY = "resnet_50_64nodes_init_iter_3900.caffemodel"

# An mpiexec whose Caffe continues to train init after its snapshot, until SIGINT.
TRAINS_ON = r"""
say() { echo "[0] I1120 11:49:33.77 6374 solver.cpp:436] $1" >&2; }
begin() { say "Snapshotting to binary proto file /tmp/resnet_50_64nodes_init_iter_$1.caffemodel"; }
snapshot() {
  begin "$1"
  echo "weights $1" >"$(on_node "$(head -n 1 hostfile)" "/tmp/resnet_50_64nodes_init_iter_$1.caffemodel")"
  say "${END:-Snapshot end}"
}
go_on() {
  echo "$$" >"$PLAY/training"
  until [[ -n $asked ]] || ((at > LAST)); do
    say "Iteration $((at += 40)), loss = ${LATER:-0.7}"
    sleep 0.05
  done
  [[ -z $asked ]] || { snapshot "$at"; say "Optimization stopped early."; }
  exit 0
}
if [[ $* == *solver_init* ]]; then
  asked='' at=${AT-7760} LAST=${LAST-1000000}
  trap 'asked=1; touch "$PLAY/told"' INT
  say "Iteration 7760, loss = 0.87"
"""
WHOLE = "snapshot 7800; go_on\nfi\n"


@pytest.fixture
def cluster(tmp_path: Path) -> StandInCluster:
    """Two nodes and two phases; the first is stopped where it ends."""
    recipe = load_recipe("stampede2-64n-72ep")
    init, cyc1, *_ = recipe.phases
    init = init.model_copy(update={"lr_policy": "poly", "max_iter": 18720, "stop_iter": 7800})
    nodes = recipe.cluster.model_copy(update={"nodes": 2})
    return StandInCluster(tmp_path, recipe.model_copy(update={"phases": (init, cyc1), "cluster": nodes}))


@pytest.fixture
def one_phase(tmp_path: Path) -> StandInCluster:
    """One node and one phase, which is stopped where it ends; nothing is evaluated."""
    recipe = load_recipe("stampede2-64n-72ep")
    init = recipe.phases[0].model_copy(update={"lr_policy": "poly", "max_iter": 18720, "stop_iter": 7800})
    nodes = recipe.cluster.model_copy(update={"nodes": 1})
    changes = {"phases": (init,), "cluster": nodes, "evaluation": None}
    return StandInCluster(tmp_path, recipe.model_copy(update=changes))


def is_alive(cluster: StandInCluster) -> bool:
    process = int((cluster.play / "training").read_text())
    try:
        return "Z" not in Path(f"/proc/{process}/stat").read_text().rpartition(")")[2][:3]
    except OSError:
        return False


@pytest.mark.parametrize(
    "how",
    ["", "END='Iteration 7800, loss = 0.8'", "AT=7800 LATER=nan"],
    ids=["well", "says no end", "nan after"],
)
def test_a_phase_is_stopped_and_finished_once_its_snapshot_is_whole(
    cluster: StandInCluster, how: str
) -> None:
    cluster.hook("mpiexec.hydra", f"{how}\n{TRAINS_ON}{WHOLE}")
    done = cluster.run()
    assert done.returncode == 0, done.stderr
    assert (cluster.play / "told").exists()
    assert (cluster.root / INIT).read_text() == "weights 7800\n"
    assert sorted(path.name for path in cluster.root.glob("*.caffemodel")) == [CYC1, INIT]
    assert not is_alive(cluster)

    cluster.forget_calls()
    assert cluster.run().returncode == 0
    assert cluster.calls("mpiexec.hydra") == []


def test_a_trainer_that_passes_the_snapshot_to_its_schedules_end_has_finished_the_phase(
    one_phase: StandInCluster,
) -> None:
    one_phase.hook(
        "mpiexec.hydra", f"{TRAINS_ON}snapshot 7800; snapshot 15600; say 'Optimization Done.'; exit 0\nfi\n"
    )
    done = one_phase.run()
    assert done.returncode == 0, done.stderr
    assert (one_phase.root / INIT).read_text() == "weights 7800\n"


def test_a_trainer_that_dies_right_after_the_snapshot_has_finished_the_phase(
    one_phase: StandInCluster,
) -> None:
    one_phase.hook("mpiexec.hydra", f"{TRAINS_ON}snapshot 7800; exit 9\nfi\n")
    done = one_phase.run()
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("ignored", ["INT", "INT TERM"])
def test_a_trainer_that_does_not_stop_is_ended(one_phase: StandInCluster, ignored: str) -> None:
    if "TERM" in ignored:
        chain = one_phase.library / "chain.sh"
        chain.write_text(chain.read_text().replace("TERM:10", "TERM:1"))
    one_phase.hook("mpiexec.hydra", f"{TRAINS_ON}trap '' {ignored}; {WHOLE}")
    done = one_phase.run(STOP_GRACE_S="1")
    assert done.returncode == 0, done.stderr
    assert not (one_phase.play / "told").exists()
    assert not is_alive(one_phase)


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        (
            "begin 7800; exit 9",
            "init: training returned 9 before the snapshot of iteration 7800 was complete",
        ),
        ("exit 0", "init: training returned 0 before the snapshot of iteration 7800 was complete"),
        ("say 'Optimization stopped early.'; exit 0", "before the snapshot of iteration 7800 was complete"),
        (
            "begin 7800; say 'Iteration 7780, loss = 1'; exit 0",
            "before the snapshot of iteration 7800 was complete",
        ),
        ("at=7880; go_on", f"c401-001:/tmp/{INIT}: not written by this run"),
        ("say 'Iteration 7780, loss = nan'; LATER=nan; snapshot 7800; go_on", "init: the loss is nan"),
        ("snapshot 7800; LATER=nan LAST=7760; go_on", "init: the loss is nan"),
    ],
)
def test_without_its_snapshot_a_phase_has_failed(cluster: StandInCluster, rest: str, expected: str) -> None:
    cluster.hook("mpiexec.hydra", f"{TRAINS_ON}{rest}\nfi\n")
    assert expected in failed(cluster)
    cluster.hook("mpiexec.hydra", TRAINS_ON + WHOLE)
    assert cluster.run().returncode == 0


def test_a_phase_that_is_not_to_be_stopped_must_not_stop_early(cluster: StandInCluster) -> None:
    early = '[[ $* != *cyc1* ]] || { echo "[0] I1120 solver.cpp:441] Optimization stopped early." >&2; }\n'
    cluster.hook("mpiexec.hydra", TRAINS_ON + WHOLE + early)
    done = cluster.run()
    assert done.returncode == 3
    assert "cyc1: stopped early by a signal" in done.stderr


def test_a_term_reaches_a_trainer_that_is_to_be_stopped(one_phase: StandInCluster) -> None:
    stay = "trap 'touch \"$PLAY/ended\"; exit 143' TERM; go_on\nfi\n"
    one_phase.hook("mpiexec.hydra", f"AT=0\n{TRAINS_ON}{stay}")
    process = one_phase.start()
    one_phase.wait_for(one_phase.play / "training")
    os.kill(process.pid, signal.SIGTERM)
    _, stderr = process.communicate(timeout=600)
    assert process.returncode == 3
    assert "stopped by SIGTERM" in stderr
    assert (one_phase.play / "ended").exists()
    assert not is_alive(one_phase)


def test_the_trainer_of_a_killed_run_is_still_stopped_and_its_phase_trained_again(
    cluster: StandInCluster,
) -> None:
    late = 'touch "$PLAY/begun"; until [[ -e $PLAY/end ]]; do sleep 0.05; done\n'
    cluster.hook("mpiexec.hydra", TRAINS_ON + late + WHOLE)
    first = cluster.start()
    cluster.wait_for(cluster.play / "begun")
    first.kill()
    first.wait()
    (cluster.play / "end").touch()
    done = cluster.run()
    assert done.returncode == 0, done.stderr
    assert (cluster.play / "told").exists()
    assert [solver_in(call.argv) for call in cluster.calls("mpiexec.hydra")] == [
        "solver_init.prototxt",
        "solver_init.prototxt",
        "solver_cyc1.prototxt",
    ]


@pytest.mark.parametrize("grace_s", ["08", "0", "09"])
def test_a_time_to_stop_may_begin_with_0(one_phase: StandInCluster, grace_s: str) -> None:
    one_phase.hook("mpiexec.hydra", TRAINS_ON + WHOLE)
    done = one_phase.run(STOP_GRACE_S=grace_s)
    assert done.returncode == 0, done.stderr
    assert "value too great for base" not in done.stderr
    assert not is_alive(one_phase)


def test_an_invalid_stop_grace_starts_no_trainer_even_if_it_is_not_checked(cluster: StandInCluster) -> None:
    chain = cluster.library / "chain.sh"
    chain.write_text(chain.read_text().replace("=~ ^[0-9]{1,6}$ ]] ||\n", "=~ . ]] ||\n"))
    cluster.hook("mpiexec.hydra", TRAINS_ON + WHOLE)
    done = cluster.run(STOP_GRACE_S="2m")
    assert done.returncode == 3, done.stderr
    assert not cluster.calls("mpiexec.hydra")


def test_a_time_to_stop_that_is_not_a_number_is_refused(cluster: StandInCluster) -> None:
    assert "STOP_GRACE_S: '2m' is not a number of seconds" in cluster.refused(STOP_GRACE_S="2m")
    assert cluster.run("--help").stdout.count("STOP_GRACE_S") == 1


def branch(work: Path) -> StandInCluster:
    """Write a cluster whose second phase starts from an intermediate snapshot of the first."""
    recipe = load_recipe("stampede2-64n-72ep")
    init, cyc1, *_ = recipe.phases
    init = init.model_copy(update={"snapshot": 3900})
    cyc1 = cyc1.model_copy(update={"weights_iter": 3900})
    nodes = recipe.cluster.model_copy(update={"nodes": 2})
    made = StandInCluster(work, recipe.model_copy(update={"phases": (init, cyc1), "cluster": nodes}))
    made.hook("mpiexec.hydra", MAKES_MIDWAY)
    return made


@pytest.fixture
def branched(tmp_path: Path) -> StandInCluster:
    """Two phases, of which none has run."""
    return branch(tmp_path)


@pytest.fixture(scope="module")
def branched_once(tmp_path_factory: pytest.TempPathFactory) -> StandInCluster:
    """Two phases after a run; only to be copied."""
    made = branch(tmp_path_factory.mktemp("branched"))
    done = made.run()
    assert done.returncode == 0, done.stderr
    return made


@pytest.fixture
def finished_branched(branched_once: StandInCluster, tmp_path: Path) -> StandInCluster:
    """Two phases after a run, in a copy of its own."""
    return branched_once.copy_to(tmp_path)


MAKES_MIDWAY = f"""[[ $* != *solver_init* ]] ||
  echo midway >"$(on_node "$(head -n 1 hostfile)" /tmp/{MIDWAY})"
"""


def test_a_later_phase_starts_from_an_intermediate_snapshot_of_another(
    finished_branched: StandInCluster,
) -> None:
    assert [call.argv[-1] for call in finished_branched.calls("mpiexec.hydra")][1] == f"--weights={MIDWAY}"
    assert (finished_branched.root / MIDWAY).read_text() == "midway\n"
    assert (finished_branched.root / INIT).read_text().startswith("weights of")
    assert [call.argv[-2].rpartition("/")[2] for call in finished_branched.calls("scp")] == [
        MIDWAY,
        INIT,
        CYC1,
    ]

    finished_branched.forget_calls()
    assert finished_branched.run().returncode == 0
    assert finished_branched.calls("mpiexec.hydra") == finished_branched.calls("scp") == []


def test_a_phase_without_the_snapshot_that_a_later_one_needs_has_failed(branched: StandInCluster) -> None:
    branched.hook("mpiexec.hydra", "")
    assert f"c401-001:/tmp/{MIDWAY}: not written by this run" in failed(branched)


def test_a_needed_snapshot_that_cannot_be_fetched_leaves_the_phase_unfinished(
    branched: StandInCluster,
) -> None:
    branched.hook("scp", f"[[ $1 != *{INIT} ]] || exit 1")
    done = branched.run()
    assert done.returncode == 3
    assert not (branched.root / INIT).exists()
    branched.hook("scp", "")
    done = branched.run()
    assert done.returncode == 0, done.stderr
    assert [solver_in(call.argv) for call in branched.calls("mpiexec.hydra")][1] == "solver_init.prototxt"


@pytest.mark.parametrize("content", [None, ""])
def test_a_missing_needed_snapshot_is_named(finished_branched: StandInCluster, content: str | None) -> None:
    (finished_branched.root / CYC1).unlink()
    (finished_branched.root / MIDWAY).unlink()
    if content is not None:
        (finished_branched.root / MIDWAY).write_text(content)
    assert f"{MIDWAY}: missing or empty beside {INIT}" in finished_branched.refused()


def test_another_intermediate_snapshot_does_not_silently_train_a_later_phase(
    finished_branched: StandInCluster,
) -> None:
    (finished_branched.root / MIDWAY).write_text("of another training")
    assert f"{MIDWAY}: has changed since it was fetched" in finished_branched.refused()
    (finished_branched.root / f"{MIDWAY}.made-from").unlink()
    assert f"{CYC1}: made from a different {MIDWAY}" in finished_branched.refused()
