"""run.sh stops a phase before its schedule ends, and keeps the intermediate snapshots that others need."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from tests.jobs.conftest import StandInCluster, small_recipe

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
    sleep 0.05 & wait "$!" # bash may lose a SIGINT that comes as a foreground command ends
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
    recipe = small_recipe()
    init, cyc1 = recipe.phases
    init = init.model_copy(update={"lr_policy": "poly", "max_iter": 18720, "stop_iter": 7800})
    return StandInCluster(tmp_path, recipe.model_copy(update={"phases": (init, cyc1)}))


def is_alive(cluster: StandInCluster) -> bool:
    process = int((cluster.play / "training").read_text())
    try:
        return "Z" not in Path(f"/proc/{process}/stat").read_text().rpartition(")")[2][:3]
    except OSError:
        return False


def wait_for_the_watcher(session: int) -> None:
    """Wait until run.sh, which leads this session, has started all that runs a phase: the last one sleeps."""
    deadline = time.monotonic() + 600
    while subprocess.run(
        ["pgrep", "-s", str(session), "-fx", "sleep 0.5"], check=False, stdout=subprocess.DEVNULL
    ).returncode:
        assert time.monotonic() < deadline, "run.sh never waited for the snapshot"
        time.sleep(0.02)


def test_the_exit_code_of_a_phase_that_is_not_stopped_is_shown(cluster: StandInCluster) -> None:
    cluster.hook("mpiexec.hydra", f"{TRAINS_ON}{WHOLE}[[ $* != *solver_cyc1* ]] || exit 9\n")
    assert "cyc1: mpiexec.hydra returned 9; " in cluster.stops(3)


@pytest.mark.parametrize("how", ["", "END='Iteration 7800, loss = 0.8'"], ids=["well", "says no end"])
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


def test_a_trainer_that_does_not_stop_is_ended(cluster: StandInCluster) -> None:
    cluster.hook("mpiexec.hydra", f"{TRAINS_ON}trap '' INT TERM; {WHOLE}")
    done = cluster.run(STOP_GRACE_S="1")
    assert done.returncode == 0, done.stderr
    assert not (cluster.play / "told").exists()
    assert not is_alive(cluster)


def test_a_trainer_that_ends_by_itself_after_the_snapshot_has_finished_the_phase(
    cluster: StandInCluster,
) -> None:
    cluster.hook("mpiexec.hydra", f"{TRAINS_ON}snapshot 7800; snapshot 15600; exit 9\nfi\n")
    done = cluster.run()
    assert done.returncode == 0, done.stderr
    assert (cluster.root / INIT).read_text() == "weights 7800\n"


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        ("begin 7800; exit 9", "init: ended before its snapshot of iteration 7800; see "),
        ("say 'Optimization stopped early.'; exit 0", "init: ended before its snapshot of iteration 7800"),
        ("at=7880; go_on", f"c401-001:/tmp/{INIT}: not fetched"),
        ("snapshot 7800; say 'Iteration 7780, loss = nan'; exit 0", "init: the loss is not finite"),
    ],
)
def test_without_its_snapshot_a_phase_has_failed(cluster: StandInCluster, rest: str, expected: str) -> None:
    cluster.hook("mpiexec.hydra", f"{TRAINS_ON}{rest}\nfi\n")
    assert expected in cluster.stops(3)
    assert cluster.trained() == ["init"]


def test_the_trainer_of_a_killed_run_is_still_stopped_and_its_phase_trained_again(
    cluster: StandInCluster,
) -> None:
    late = 'touch "$PLAY/begun"; until [[ -e $PLAY/end ]]; do sleep 0.05; done\n'
    cluster.hook("mpiexec.hydra", TRAINS_ON + late + WHOLE)
    first = cluster.start()
    cluster.wait_for(cluster.play / "begun")
    wait_for_the_watcher(first.pid)
    first.kill()
    first.wait()
    (cluster.play / "end").touch()
    lock = cluster.root / "logs/stampede2-64n-72ep/lock"
    subprocess.run(["flock", str(lock), "true"], check=True, timeout=600)
    assert (cluster.play / "told").exists()
    done = cluster.run()
    assert done.returncode == 0, done.stderr
    assert cluster.trained() == ["init", "init", "cyc1"]


@pytest.fixture(scope="module")
def branched_once(tmp_path_factory: pytest.TempPathFactory) -> StandInCluster:
    """Two phases after a run, the second from an intermediate snapshot of the first; only to be copied."""
    recipe = small_recipe()
    init, cyc1 = recipe.phases
    init = init.model_copy(update={"snapshot": 3900})
    cyc1 = cyc1.model_copy(update={"weights_iter": 3900})
    work = tmp_path_factory.mktemp("branched")
    made = StandInCluster(work, recipe.model_copy(update={"phases": (init, cyc1)}))
    made.hook("mpiexec.hydra", MAKES_MIDWAY)
    done = made.run()
    assert done.returncode == 0, done.stderr
    return made


@pytest.fixture
def branched(branched_once: StandInCluster, tmp_path: Path) -> StandInCluster:
    """Two phases after a run, in a copy of its own."""
    return branched_once.copy_to(tmp_path)


MAKES_MIDWAY = f"""[[ $* != *solver_init* ]] ||
  echo midway >"$(on_node "$(head -n 1 hostfile)" /tmp/{MIDWAY})"
"""


def test_a_later_phase_starts_from_an_intermediate_snapshot_of_another(branched: StandInCluster) -> None:
    assert branched.calls("mpiexec.hydra")[1].argv[-1] == f"--weights={MIDWAY}"
    assert (branched.root / MIDWAY).read_text() == "midway\n"
    assert (branched.root / INIT).read_text().startswith("weights of")
    fetched = [call.argv[-2].rpartition("/")[2] for call in branched.calls("scp")]
    assert fetched == [MIDWAY, INIT, CYC1]

    branched.forget_calls()
    (branched.root / MIDWAY).write_text("of another training")
    assert f"{INIT}.made-from: differs from its snapshot" in branched.stops(2)


def test_a_phase_without_the_snapshot_that_a_later_one_needs_has_failed(branched: StandInCluster) -> None:
    (branched.root / f"{INIT}.made-from").unlink()
    branched.hook("mpiexec.hydra", "")
    assert f"c401-001:/tmp/{MIDWAY}: not fetched" in branched.stops(3)
