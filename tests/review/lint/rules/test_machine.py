"""Cores for MLSL's servers, and room in /tmp."""

from __future__ import annotations

from pathlib import Path

import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.chain import Chain, ChainFacts, Link
from caffe_recipes.caffe.prototxt import Document, parse_document
from caffe_recipes.review.lint.rules.machine import busy_cores, check_server_cores, check_tmp_holds_lmdb
from tests.review.conftest import LintSolvers, net_text

AUTHORS = (39, 38, 43, 42)


def setting(
    threads: int | None = 22, cores: tuple[int, ...] = AUTHORS, sockets: int | None = 2, each: int | None = 24
) -> ChainFacts:
    return ChainFacts(
        ranks_per_node=2,
        omp_num_threads=threads,
        mlsl_cores=cores,
        sockets_per_node=sockets,
        cores_per_socket=each,
    )


@pytest.mark.parametrize(
    ("known", "busy"),
    [
        (setting(), (38, 39, 42, 43)),
        (setting(sockets=None, each=None), (38, 39, 42, 43)),
        (setting(threads=20), (38, 39)),
        (setting(threads=19), ()),
        (setting(cores=(44, 45, 46, 47)), ()),
        (setting(cores=(86, 92)), (86,)),  # the second hardware threads of 38 and 44
        (setting(threads=None), ()),
        (setting(cores=()), ()),
    ],
)
def test_cores_below_the_number_of_threads_are_busy(known: ChainFacts, busy: tuple[int, ...]) -> None:
    assert busy_cores(known) == busy
    found = list(check_server_cores(known, "r.yaml:5"))
    assert [one.values["cores"] for one in found] == ([",".join(map(str, busy))] if busy else [])


def test_the_authors_cores_are_a_note_that_names_the_spare_ones() -> None:
    (found,) = check_server_cores(setting(), "r.yaml:5")
    assert (found.id, found.severity, found.where) == ("mlsl-on-openmp-cores", "note", "r.yaml:5")
    assert "cores 38, 39, 42, 43" in found.what
    assert "22 OpenMP threads on each socket of 24 cores" in found.what
    assert found.write == "MLSL_SERVER_AFFINITY: cores between 44 and 47"


def test_threads_on_all_cores_leave_none_spare() -> None:
    (found,) = check_server_cores(setting(threads=24), "r.yaml:5")
    assert found.write == "fewer OpenMP threads"


def test_a_script_states_the_machine(lint_solvers: LintSolvers, tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(
        "export MLSL_SERVER_AFFINITY=39,38,43,42\n"
        "mpiexec.hydra -n 2 -ppn 2 -genv OMP_NUM_THREADS 22 caffe train --solver=own/solver_a.prototxt\n"
    )
    (found,) = lint_solvers({"a": {}}, script=script)
    assert (found.id, found.where) == ("mlsl-on-openmp-cores", f"{script}:1")


def chain(prefix: str, snapshots: int) -> Chain:
    net = parse_document(net_text("TRAIN", more="mean_value: [1, 2, 3]"), "n.prototxt", pb.NetParameter)
    solver = pb.SolverParameter(max_iter=1000, snapshot=1000 // snapshots, snapshot_prefix=prefix)
    return Chain((Link("a", Document("s.prototxt", "", solver, {}, {}), net, 1000),))


@pytest.mark.parametrize(
    ("tmp_gb", "lmdb", "prefix", "count"),
    [
        (144, "/tmp/lmdb", "/tmp/a", 0),
        (42, "/tmp/lmdb", "/tmp/a", 1),
        (42, "/tmp/lmdb", "tmp/a", 0),
        (41, "/tmp/lmdb", "tmp/a", 1),
        (41, "/scratch/lmdb", "/tmp/a", 0),
        (1e-6, "/scratch/lmdb", "/tmp/a", 1),
    ],
)
def test_lmdb_and_snapshots_fit_into_tmp(tmp_gb: float, lmdb: str, prefix: str, count: int) -> None:
    found = list(check_tmp_holds_lmdb(chain(prefix, 10), "r.yaml:9", tmp_gb, lmdb, 42))
    assert [(one.id, one.severity) for one in found] == [("tmp-too-small", "error")] * count


def test_each_snapshot_takes_the_weights_and_the_solver_s_history() -> None:
    (found,) = check_tmp_holds_lmdb(chain("/tmp/a", 10), "r.yaml:9", 1e-9, "lmdb", 0)
    weights_bytes = 4 * (3 * 28 * 28 * 10 + 10)
    assert found.values["snapshots_gb"] == pytest.approx(10 * 2 * weights_bytes / 1e9)
