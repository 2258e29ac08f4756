"""run.sh stops at the first thing that fails, with one line of its own, and resumes from there."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.jobs.conftest import StandInCluster, small_recipe

INIT = "resnet_50_64nodes_init_iter_7800.caffemodel"
CYC1 = "resnet_50_64nodes_cyc1_iter_3750.caffemodel"
LOGS = "logs/stampede2-64n-72ep"
HELD = f"{LOGS}/lock: held by a run.sh, its mpiexec, or caffe-recipes run; wait for it or stop it"
# An mpiexec that trains until it gets a signal.
STAY = """trap 'kill $!; touch "$PLAY/ended"; exit 143' TERM
sleep 3600 &
touch "$PLAY/training"
wait $!
"""
# An mpiexec whose second phase trains until the test lets it end.
UNTIL_ENDED = """if [[ $* == *cyc1* ]]; then
  touch "$PLAY/training"
  until [[ -e $PLAY/end ]]; do sleep 0.05; done
fi
"""


@pytest.mark.parametrize(
    ("tool", "hook", "message"),
    [
        *(
            ("mpiexec.hydra", f"LOSS={loss}", f"init: the loss is not finite; see {LOGS}/init.log")
            for loss in ("nan", "-nan", "inf", "87.3365")
        ),
        ("mpiexec.hydra", "exit 9", f"init: mpiexec.hydra returned 9; see {LOGS}/init.log"),
        ("mpiexec.hydra", "exit 0", f"c401-001:/tmp/{INIT}: not fetched; see {LOGS}/init.log"),
        ("scp", ': >"${1##*/}"; exit 0', f"{INIT}: missing or empty; see {LOGS}/init.log"),
        ("ssh", "exit 255", f"c401-001:/tmp/{INIT}: an earlier one cannot be moved aside"),
    ],
)
def test_a_phase_that_fails_ends_the_run(
    small_cluster: StandInCluster, tool: str, hook: str, message: str
) -> None:
    small_cluster.hook(tool, hook)
    assert small_cluster.stops(3).endswith(message)
    assert small_cluster.trained() == ([] if tool == "ssh" else ["init"])
    assert not (small_cluster.root / f"{INIT}.made-from").exists()
    assert not (small_cluster.play / "test.argv").exists()


def test_an_evaluation_that_fails_ends_the_run(finished_cluster: StandInCluster) -> None:
    caffe = finished_cluster.root / "build/tools/caffe"
    caffe.write_text("#!/bin/bash\necho 'I1120 11:50:35.93 8088 caffe.cpp:517] loss = nan'\n")
    assert finished_cluster.stops(3).endswith(
        f"evaluation: the loss is not finite; see {LOGS}/evaluation.log"
    )
    caffe.unlink()
    assert "evaluation: ./build/tools/caffe returned 127" in finished_cluster.stops(3)


def test_an_earlier_snapshot_is_moved_aside_on_the_first_node_and_here(
    small_cluster: StandInCluster,
) -> None:
    on_node = small_cluster.node("c401-001") / "tmp" / INIT
    for path in (on_node, small_cluster.root / INIT):
        path.write_text("of an earlier run")
    small_cluster.hook("mpiexec.hydra", "exit 0")
    assert "not fetched" in small_cluster.stops(3)
    for path in (on_node, small_cluster.root / INIT):
        assert not path.exists()
        assert path.with_name(f"{INIT}.old").read_text() == "of an earlier run"


@pytest.mark.parametrize(
    ("down", "message"),
    [("c401-002", "c401-002: ssh: connect to host c401-002 port 22: No route to host"), ("", "")],
)
def test_a_host_that_is_down_or_has_another_lmdb_is_named(
    small_cluster: StandInCluster, down: str, message: str
) -> None:
    source = small_cluster.root / "source"
    source.mkdir()
    (source / "data.mdb").write_text("other training images")
    lmdb = small_cluster.node("c401-001") / small_cluster.lmdb
    if down:
        lmdb.write_text("other training images")
        refused = f'echo "ssh: connect to host {down} port 22: No route to host" >&2; exit 255'
        small_cluster.hook("ssh", f"[[ $1 != {down} ]] || {{ {refused}; }}")
    message = message or f"c401-001: {lmdb}: not the size of {source}/data.mdb; move it away"
    assert small_cluster.stops(3, LMDB_SOURCE=str(source)).endswith(message)
    assert small_cluster.trained() == []


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (None, 0),
        ("c401-001\n\n# c401-002\n", 1),
        ("c401-001\nc401-001:2\n", 1),
    ],
)
def test_too_few_hosts_are_refused(small_cluster: StandInCluster, text: str | None, count: int) -> None:
    hostfile = small_cluster.root / "hostfile"
    hostfile.write_text(text) if text else hostfile.unlink()
    message = f"{hostfile}: lists {count} of 2 hosts, up to one that comes again; write each on a line"
    assert message in small_cluster.stops(2)
    assert not (small_cluster.root / "logs").exists()


def test_a_host_that_comes_again_after_others_is_refused_since_hydra_would_use_it_twice(
    tmp_path: Path,
) -> None:
    recipe = small_recipe()
    nodes = recipe.cluster.model_copy(update={"nodes": 3})
    cluster = StandInCluster(tmp_path, recipe.model_copy(update={"cluster": nodes}))
    a, b, c = cluster.hosts
    (cluster.root / "hostfile").write_text("".join(f"{host}\n" for host in (a, b, a, c)))
    assert "lists 2 of 3 hosts, up to one that comes again" in cluster.stops(2)
    (cluster.root / "hostfile").write_text("".join(f"{host}\n" for host in (a, a, b, b, c, c)))
    assert cluster.run().returncode == 0  # hydra joins lines of a host that follow each other


def test_arguments_are_refused(small_cluster: StandInCluster) -> None:
    done = small_cluster.run("--help")
    assert (done.returncode, small_cluster.calls("ssh")) == (2, [])
    assert "takes no arguments; its first lines show its variables" in done.stderr


def test_a_prototxt_that_differs_is_overwritten_only_by_force(small_cluster: StandInCluster) -> None:
    theirs = small_cluster.root / small_cluster.recipe.prototxt_dir / "solver_init.prototxt"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("base_lr: 0.1\n")
    message = small_cluster.stops(2)
    assert "resnet50_custom_lr/solver_init.prototxt: not placed; if it differs from " in message
    assert theirs.read_text() == "base_lr: 0.1\n"
    small_cluster.hook("mpiexec.hydra", "exit 1")
    assert "init: mpiexec.hydra returned 1" in small_cluster.stops(3, FORCE="1")
    assert theirs.read_text() == (small_cluster.prototxts / theirs.name).read_text()


@pytest.mark.parametrize("changed", ["solver", "net", "weights", "snapshot", "missing"])
def test_a_phase_made_from_something_else_is_neither_skipped_nor_trained(
    finished_cluster: StandInCluster, changed: str
) -> None:
    placed = finished_cluster.root / finished_cluster.recipe.prototxt_dir
    files = {"solver": "solver_cyc1.prototxt", "net": "train_val.prototxt"}
    if changed in files:
        for folder in (placed, finished_cluster.prototxts):
            (folder / files[changed]).write_text("# changed\n")
    model, record = (INIT, INIT) if changed in ("net", "weights") else (CYC1, CYC1)
    if changed == "missing":
        (finished_cluster.root / model).unlink()
    elif changed not in files:
        (finished_cluster.root / model).write_text("changed")
    message = finished_cluster.stops(2)
    assert f"{record}.made-from: differs from its snapshot, solver, net or weights; move it away" in message
    assert finished_cluster.trained() == []


def test_weights_that_are_missing_or_empty_start_no_phase(finished_cluster: StandInCluster) -> None:
    for name in (INIT, f"{INIT}.made-from", f"{CYC1}.made-from"):
        (finished_cluster.root / name).unlink()
    script = finished_cluster.script
    script.write_text(script.read_text().replace("if begin init train_val", "if false && begin"))
    assert f"{INIT}: missing or empty; cyc1 starts from it" in finished_cluster.stops(2)


@pytest.mark.parametrize("closed", ["2>/dev/full", "2>&-", ">/dev/full 2>&1"])
def test_a_refusal_that_cannot_be_printed_is_one_nevertheless(
    finished_cluster: StandInCluster, closed: str
) -> None:
    (finished_cluster.root / INIT).write_text("another model")
    assert finished_cluster.run(shell=f'exec "$0" {closed}').returncode == 2
    assert finished_cluster.trained() == []
    assert (finished_cluster.root / INIT).read_text() == "another model"


@pytest.mark.parametrize("reader", ["| head -n 1", ">/dev/full 2>&1"])
def test_output_that_nobody_reads_ends_no_training(small_cluster: StandInCluster, reader: str) -> None:
    small_cluster.hook("mpiexec.hydra", 'for line in {1..2000}; do echo "line $line"; done')
    assert small_cluster.run(shell=f'"$0" {reader}; exit "${{PIPESTATUS[0]}}"').returncode == 0
    assert small_cluster.trained() == ["init", "cyc1"]
    assert small_cluster.run(shell=f'"$0" {reader}; exit "${{PIPESTATUS[0]}}"').returncode in (0, 141)
    assert small_cluster.trained() == ["init", "cyc1"]


@pytest.mark.parametrize("cause", ["a signal", "a host that failed"])
def test_no_copy_of_the_lmdb_outlives_the_script(small_cluster: StandInCluster, cause: str) -> None:
    (small_cluster.root / "data.mdb").write_text("images")
    if cause == "a signal":
        small_cluster.hook("ssh", STAY)
    else:
        wait = 'until [[ -e $PLAY/training ]]; do sleep 0.02; done; echo "no route"; exit 255'
        small_cluster.hook("ssh", f"[[ $1 != c401-001 ]] || {{ {wait}; }}\n{STAY}")
    process = small_cluster.start(LMDB_SOURCE=".")
    small_cluster.wait_for(small_cluster.play / "training")
    if cause == "a signal":
        os.kill(process.pid, signal.SIGTERM)
    _, stderr = process.communicate(timeout=600)
    assert (process.returncode, (small_cluster.play / "ended").exists()) == (3, True)
    assert stderr == "stampede2-64n-72ep: " + (
        "stopped by a signal\n" if cause == "a signal" else "c401-001: no route\n"
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_ranks_and_the_next_run_trains_the_phase_again(
    small_cluster: StandInCluster, number: signal.Signals
) -> None:
    small_cluster.hook("mpiexec.hydra", STAY)
    process = small_cluster.start()
    small_cluster.wait_for(small_cluster.play / "training")
    os.kill(process.pid, number)
    _, stderr = process.communicate(timeout=600)
    assert process.returncode == 3
    assert stderr.endswith("stampede2-64n-72ep: stopped by a signal\n")
    assert (small_cluster.play / "ended").exists()


def test_a_run_killed_in_phase_2_leaves_the_lock_to_its_mpiexec_and_resumes_there(
    small_cluster: StandInCluster,
) -> None:
    small_cluster.hook("mpiexec.hydra", UNTIL_ENDED)
    first = small_cluster.start()
    small_cluster.wait_for(small_cluster.play / "training")
    assert HELD in small_cluster.stops(2)
    first.kill()
    first.wait()
    assert HELD in small_cluster.stops(2)
    assert small_cluster.trained() == ["init", "cyc1"]

    (small_cluster.play / "end").touch()
    lock = small_cluster.root / LOGS / "lock"
    subprocess.run(["flock", str(lock), "true"], check=True, timeout=600)
    done = small_cluster.run()
    assert done.returncode == 0, done.stderr
    assert small_cluster.trained() == ["init", "cyc1", "cyc1"]


@pytest.mark.promise("an invalid answer is never trust")
@pytest.mark.parametrize(
    "answer", ["made[$(touch hacked)0]", "$(touch hacked)", "`touch hacked`; touch hacked"]
)
def test_nothing_that_a_host_answers_is_executed(small_cluster: StandInCluster, answer: str) -> None:
    (small_cluster.root / "data.mdb").write_text("images")
    for code in (0, 255):  # with the first, the copies seem to succeed
        small_cluster.hook("ssh", f"printf '%s\\n\\033[2J' '{answer}'; exit {code}")
        small_cluster.hook("scp", f"echo '{answer}' >&2; exit 1")
        assert "\x1b" not in small_cluster.stops(3, LMDB_SOURCE=".")
    assert not list(small_cluster.work.rglob("hacked"))


def test_nobody_else_can_open_its_lock_to_hold_it(finished: StandInCluster) -> None:
    assert (finished.root / LOGS / "lock").stat().st_mode & 0o777 == 0o600
