"""A phase counts only if its snapshot was written by this run and has been copied completely."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.jobs.conftest import write

if TYPE_CHECKING:
    from tests.jobs.conftest import StandInCluster

INIT = "resnet_50_64nodes_init_iter_7800.caffemodel"
CYC1 = "resnet_50_64nodes_cyc1_iter_3750.caffemodel"
LOGS = "logs/stampede2-64n-72ep"
AT_WORK = "script.lock: another run.sh or caffe-recipes run is running; wait for it or stop it"
# An mpiexec that trains until it gets a signal.
STAY = """trap 'kill $!; touch "$PLAY/told"; exit 143' TERM
sleep 3600 &
touch "$PLAY/training"
wait $!
"""
# An mpiexec that trains until the test lets it end.
UNTIL_ENDED = 'touch "$PLAY/training"; until [[ -e $PLAY/end ]]; do sleep 0.05; done\n'


def solver_in(argv: tuple[str, ...]) -> str:
    """Name the solver that mpiexec was called with."""
    (solver,) = [word for word in argv if word.startswith("--solver=")]
    return solver.rpartition("/")[2]


def names_of_children(pid: int) -> set[str]:
    """Name the programs that a process has started and that still run."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    with suppress(FileNotFoundError):
        return {Path(f"/proc/{child}/comm").read_text().strip() for child in children}
    return set()


def failed(cluster: StandInCluster, **environment: str) -> str:
    """Run to a failure of the first phase: exit 3, no model, no later call."""
    done = cluster.run(**environment)
    assert done.returncode == 3, done.stderr
    assert list(cluster.root.glob("*.caffemodel")) == []
    assert len(cluster.calls("mpiexec.hydra")) <= 1
    assert not (cluster.play / "test.argv").exists()
    return done.stderr


@pytest.mark.parametrize("loss", ["nan", "-nan", "inf", "87.3365"])
def test_a_loss_that_is_not_a_number_or_saturated(small_cluster: StandInCluster, loss: str) -> None:
    small_cluster.hook("mpiexec.hydra", f"LOSS={loss}")
    assert f"init: the loss is {loss}; see {LOGS}/init.log" in failed(small_cluster)


def test_an_evaluation_whose_loss_is_not_a_number(small_cluster: StandInCluster) -> None:
    caffe = small_cluster.root / "build/tools/caffe"
    caffe.write_text("#!/bin/bash\necho 'I1120 11:50:35.93 8088 caffe.cpp:505] Loss: nan'\n")
    done = small_cluster.run()
    assert done.returncode == 3
    assert f"evaluation: the loss is nan; see {LOGS}/evaluation.log" in done.stderr


def test_an_evaluation_without_means_has_failed(small_cluster: StandInCluster) -> None:
    (small_cluster.root / "build/tools/caffe").write_text("#!/bin/bash\n")
    for _ in range(2):
        done = small_cluster.run()
        assert done.returncode == 3
        assert f"evaluation: printed no results; see {LOGS}/evaluation.log" in done.stderr


def test_an_early_stop_that_returns_0(small_cluster: StandInCluster) -> None:
    small_cluster.hook("mpiexec.hydra", 'echo "[0] I1120 solver.cpp:441] Optimization stopped early."')
    assert "init: stopped early by a signal" in failed(small_cluster)


def test_an_old_snapshot_on_the_first_host_is_not_taken(small_cluster: StandInCluster) -> None:
    old = small_cluster.node("c401-001") / "tmp" / INIT
    old.write_text("of an earlier run")
    small_cluster.hook("mpiexec.hydra", "exit 0")
    assert f"c401-001:/tmp/{INIT}: not written by this run" in failed(small_cluster)
    assert old.read_text() == "of an earlier run"


def test_an_old_snapshot_that_is_written_again_is_taken(small_cluster: StandInCluster) -> None:
    (small_cluster.node("c401-001") / "tmp" / INIT).write_text("of an earlier run")
    assert small_cluster.run().returncode == 0
    assert "solver_init" in (small_cluster.root / INIT).read_text()


def test_no_snapshot(small_cluster: StandInCluster) -> None:
    small_cluster.hook("mpiexec.hydra", "exit 0")
    assert f"c401-001:/tmp/{INIT}: not written by this run" in failed(small_cluster)


def test_an_empty_snapshot(small_cluster: StandInCluster) -> None:
    small_cluster.hook("scp", ': >"${1##*/}"; exit 0')
    assert f"c401-001:/tmp/{INIT}: empty" in failed(small_cluster)


def test_a_partial_copy_never_has_the_final_name(small_cluster: StandInCluster) -> None:
    small_cluster.hook("scp", 'finish "$@"; truncate -s 3 "${1##*/}"; exit 0')
    assert f"{LOGS}/incoming/{INIT}: incomplete or damaged copy" in failed(small_cluster)
    small_cluster.hook("scp", "")
    assert small_cluster.run().returncode == 0
    assert (small_cluster.root / INIT).read_text().startswith("weights of")


def test_a_failing_scp(small_cluster: StandInCluster) -> None:
    small_cluster.hook("scp", 'echo "lost connection" >&2; exit 1')
    assert f"c401-001:/tmp/{INIT}: cannot be fetched" in failed(small_cluster)


def test_a_first_host_that_cannot_be_reached_after_training(small_cluster: StandInCluster) -> None:
    small_cluster.hook("mpiexec.hydra", 'touch "$PLAY/trained"')
    small_cluster.hook("ssh", "[[ ! -e $PLAY/trained ]] || exit 255")
    small_cluster.hook("scp", "exit 255")
    assert f"c401-001:/tmp/{INIT}: no answer from the host, so not fetched; check `ssh" in failed(
        small_cluster
    )


def test_a_connection_that_breaks_after_training_loses_no_phase(small_cluster: StandInCluster) -> None:
    small_cluster.hook("mpiexec.hydra", 'touch "$PLAY/trained"')
    small_cluster.hook("ssh", '[[ ! -e $PLAY/trained ]] || { rm "$PLAY/trained"; exit 255; }')
    done = small_cluster.run()
    assert done.returncode == 0, done.stderr
    assert "solver_init" in (small_cluster.root / INIT).read_text()


# Output of ssh in addition to, or instead of, the answer.
CHATTER = {
    "greets": 'printf "Welcome"',
    "greets after": 'finish "$@"; printf "Bye\\nstamp: soon\\n"; exit 0',
    "a terminal": 'finish "$@" | sed "s/$/\\r/"; exit 0',
}


@pytest.mark.parametrize("chatter", CHATTER.values(), ids=CHATTER.keys())
def test_an_ssh_that_prints_breaks_nothing(small_cluster: StandInCluster, chatter: str) -> None:
    small_cluster.hook("ssh", chatter)
    done = small_cluster.run()
    assert done.returncode == 0, done.stderr
    assert "solver_init" in (small_cluster.root / INIT).read_text()


@pytest.mark.parametrize("silent", ["exit 0", 'echo "$@"; cat; exit 0'], ids=["mute", "echoes"])
def test_a_host_that_gives_no_answer_is_named_and_nothing_trains(
    small_cluster: StandInCluster, silent: str
) -> None:
    small_cluster.hook("ssh", silent)
    assert "/tmp/ilsvrc12_train_lmdb: no answer from c401-001 c401-002" in failed(small_cluster)
    assert small_cluster.calls("mpiexec.hydra") == []


@pytest.mark.parametrize("chatter", [CHATTER["greets"], CHATTER["a terminal"]])
def test_an_old_snapshot_is_found_among_other_output_of_ssh(
    small_cluster: StandInCluster, chatter: str
) -> None:
    (small_cluster.node("c401-001") / "tmp" / INIT).write_text("of an earlier run")
    small_cluster.hook("ssh", chatter)
    small_cluster.hook("mpiexec.hydra", 'echo "Iteration 1" && exit 0')
    assert f"c401-001:/tmp/{INIT}: not written by this run" in failed(small_cluster)


def test_without_an_answer_from_ssh_no_snapshot_is_fetched_whatever_the_log_shows(
    small_cluster: StandInCluster,
) -> None:
    (small_cluster.node("c401-001") / "tmp" / INIT).write_text("of an earlier run")
    small_cluster.hook("ssh", "[[ ! -e $PLAY/trained ]] || exit 0")
    small_cluster.hook("mpiexec.hydra", 'touch "$PLAY/trained"; echo "Iteration 1"; exit 0')
    assert f"c401-001:/tmp/{INIT}: no answer from the host, so not fetched" in failed(small_cluster)


def test_a_trainer_that_only_the_nodes_have_trains_but_cannot_evaluate(
    small_cluster: StandInCluster,
) -> None:
    (small_cluster.root / "build/tools/caffe").unlink()
    done = small_cluster.run()
    assert done.returncode == 3
    first, *_, last = done.stderr.splitlines()
    assert "./build/tools/caffe: not found from" in first
    assert "the nodes may have it, but the evaluation needs it here" in first
    assert f"{CYC1}: trained, but not evaluated: ./build/tools/caffe not found from" in last
    assert len(small_cluster.calls("mpiexec.hydra")) == 2


def test_a_term_reaches_mpiexec_and_the_next_run_starts_the_phase_again(
    small_cluster: StandInCluster,
) -> None:
    small_cluster.hook("mpiexec.hydra", STAY)
    process = small_cluster.start()
    small_cluster.wait_for(small_cluster.play / "training")
    os.kill(process.pid, signal.SIGTERM)
    _, stderr = process.communicate(timeout=600)
    assert process.returncode == 3
    assert "stopped by SIGTERM; run it again to resume" in stderr
    assert (small_cluster.play / "told").exists()

    small_cluster.hook("mpiexec.hydra", "")
    assert small_cluster.run().returncode == 0


def test_the_mpiexec_of_a_killed_run_is_waited_for_and_its_phase_trained_again(
    small_cluster: StandInCluster,
) -> None:
    small_cluster.hook("mpiexec.hydra", UNTIL_ENDED)
    first = small_cluster.start()
    small_cluster.wait_for(small_cluster.play / "training")
    first.kill()
    first.wait()

    small_cluster.hook("mpiexec.hydra", "")
    second = small_cluster.start()
    assert second.stderr is not None
    assert "the mpiexec of a killed run is still running; waiting until it ends" in second.stderr.readline()
    third = small_cluster.run()
    assert third.returncode == 2
    assert AT_WORK in third.stderr
    assert len(small_cluster.calls("mpiexec.hydra")) == 1

    (small_cluster.play / "end").touch()
    _, stderr = second.communicate(timeout=600)
    assert second.returncode == 0, stderr
    assert [solver_in(call.argv) for call in small_cluster.calls("mpiexec.hydra")] == [
        "solver_init.prototxt",
        "solver_init.prototxt",
        "solver_cyc1.prototxt",
    ]


def test_waiting_for_the_mpiexec_of_a_killed_run_can_be_interrupted(small_cluster: StandInCluster) -> None:
    small_cluster.hook("mpiexec.hydra", UNTIL_ENDED)
    first = small_cluster.start()
    small_cluster.wait_for(small_cluster.play / "training")
    first.kill()
    first.wait()

    second = small_cluster.start()
    assert second.stderr is not None
    assert "waiting until it ends (Ctrl-C to give up)" in second.stderr.readline()
    # bash loses a Ctrl-C that comes between its fork and flock's exec; the next one serves.
    while "flock" not in names_of_children(second.pid):
        assert second.poll() is None
    os.killpg(second.pid, signal.SIGINT)
    assert second.wait(timeout=600) != 0
    (small_cluster.play / "end").touch()
    assert small_cluster.run().returncode == 0


def test_while_a_run_is_active_no_second_one_starts(small_cluster: StandInCluster) -> None:
    small_cluster.hook("mpiexec.hydra", UNTIL_ENDED)
    first = small_cluster.start()
    small_cluster.wait_for(small_cluster.play / "training")
    second = small_cluster.run()
    assert second.returncode == 2
    assert AT_WORK in second.stderr
    (small_cluster.play / "end").touch()
    _, stderr = first.communicate(timeout=600)
    assert first.returncode == 0, stderr
    assert len(small_cluster.calls("mpiexec.hydra")) == 2


def test_nobody_else_can_open_its_locks_to_hold_them(finished: StandInCluster) -> None:
    logs = finished.root / LOGS
    assert [(logs / name).stat().st_mode & 0o777 for name in ("lock", "script.lock")] == [0o600, 0o600]
    umask = int(subprocess.run(["sh", "-c", "umask"], capture_output=True, text=True, check=True).stdout, 8)
    assert (logs / "init.log").stat().st_mode & 0o777 == 0o666 & ~umask


# A disk that changes a file right after it was renamed.
DAMAGES = """#!/bin/bash
PATH=${PATH#*:}
mv "$@" || exit
[[ ${!#} != %s ]] || printf x >>"${!#}"
"""


@pytest.mark.parametrize(("damaged", "launches"), [(INIT, 1), (CYC1, 2)], ids=["launch", "evaluation"])
def test_a_snapshot_that_is_damaged_while_the_run_lives_is_read_by_no_launch_and_no_evaluation(
    small_cluster: StandInCluster, damaged: str, launches: int
) -> None:
    write(small_cluster.play / "bin/mv", DAMAGES % damaged, 0o755)
    done = small_cluster.run()
    assert done.returncode == 3, done.stderr
    message = f"{damaged}: has changed since it was fetched; move it away, with its .made-from file, to train"
    assert message in done.stderr.splitlines()[-1]
    assert len(small_cluster.calls("mpiexec.hydra")) == launches
    assert not (small_cluster.play / "test.argv").exists()


def test_a_snapshot_that_changed_in_transfer_is_not_accepted(
    small_cluster: StandInCluster,
) -> None:
    small_cluster.hook("scp", 'finish "$@"; sed -i s/weights/Weights/ "${1##*/}"; exit 0')
    assert f"{LOGS}/incoming/{INIT}: incomplete or damaged copy; check the disk" in failed(small_cluster)


def test_training_is_refused_if_a_link_is_planted_under_the_name_of_a_snapshot(
    small_cluster: StandInCluster,
) -> None:
    victim = small_cluster.play / "victim"
    victim.write_text("precious")
    (small_cluster.node("c401-001") / "tmp" / INIT).symlink_to(victim)
    error = failed(small_cluster)
    assert f"c401-001:/tmp/{INIT}: is a symbolic link owned by user " in error
    assert "ask its owner to remove it" in error
    assert victim.read_text() == "precious"
    assert small_cluster.calls("mpiexec.hydra") == []


def test_weights_fetched_before_digests_were_recorded_are_accepted(
    finished_cluster: StandInCluster,
) -> None:
    for model in (INIT, CYC1):
        record = finished_cluster.root / f"{model}.made-from"
        record.write_text("".join(record.read_text().splitlines(keepends=True)[:3]))
    done = finished_cluster.run()
    assert done.returncode == 0, done.stderr
