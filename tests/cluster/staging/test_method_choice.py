from __future__ import annotations

from pathlib import Path

import pytest

from caffe_recipes.cluster.staging import Way
from caffe_recipes.cluster.staging.file_sets import FileSet, FoundFile, NodeState, SetFile, SourceFile
from caffe_recipes.cluster.staging.method_choice import (
    ChainOrder,
    CopyRates,
    StagingPlan,
    order_chain,
    plan_staging,
    render_plan,
)
from caffe_recipes.errors import InputError

GB = 10**9
SIZE = 42 * GB
DIGEST = "d" * 64


DATA = SetFile("data.mdb", SourceFile(Path("/scratch/lmdb/data.mdb"), SIZE, 0, 0), DIGEST)


def absent(number: int, *, free_bytes: int = 144 * GB, sees_source: bool = True) -> NodeState:
    return NodeState(f"n{number}", "absent", free_bytes=free_bytes, sees_source=sees_source)


def present(number: int, size_bytes: int = SIZE, digest: str | None = DIGEST) -> NodeState:
    return NodeState(f"n{number}", "present", {"data.mdb": FoundFile(size_bytes, digest)})


def lmdb_on(*states: NodeState) -> FileSet:
    return FileSet("/tmp/lmdb", Path("/scratch/lmdb"), {state.host: [DATA] for state in states})


def plan(
    *states: NodeState,
    rates: CopyRates | None = None,
    how: Way | None = None,
    unavailable: dict[Way, str] | None = None,
) -> StagingPlan:
    return plan_staging(
        states,
        lmdb_on(*states),
        rates=rates or CopyRates(),
        how=how,
        unavailable=unavailable,
    )


def test_one_host_copies_and_many_pass_it_on() -> None:
    assert plan(absent(0)).how == "copy"
    assert plan(*map(absent, range(64))).how == "chain"


def test_a_shared_file_system_that_serves_all_at_once_is_copied_from() -> None:
    assert plan(*map(absent, range(64)), rates=CopyRates(link=1e8, shared=1e12, disk=1e10)).how == "copy"


def test_without_a_launcher_and_without_the_source_it_is_sent() -> None:
    hosts = [absent(number, sees_source=False) for number in range(4)]
    planned = plan(*hosts, unavailable={"chain": "no mpi4py", "sbcast": "no Slurm"})
    assert planned.how == "ssh"
    assert [(option.how, option.why) for option in planned.options if option.seconds is None] == [
        ("copy", "n0 cannot read the source"),
        ("chain", "no mpi4py"),
        ("sbcast", "no Slurm"),
    ]


def test_the_requested_way_is_used_or_refused_with_the_reason() -> None:
    assert plan(absent(0), absent(1), how="ssh").how == "ssh"
    with pytest.raises(
        InputError, match=r"^staging by chain is not possible: no mpi4py; stage without --how$"
    ):
        plan(absent(0), how="chain", unavailable={"chain": "no mpi4py"})


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (
            absent(1, free_bytes=SIZE - 1),
            "not enough space: 41,999,999,999 bytes free, 42,000,000,000 needed",
        ),
        (present(1, 5, "x"), "has a different LMDB (5 bytes; the source has 42,000,000,000)"),
        (
            present(1, digest="x"),
            "has a different LMDB (same size as the source, but different content)",
        ),
        (
            present(1, digest=None),
            "has a different LMDB (same size as the source, but different content)",
        ),
        (NodeState("n1", "refused", reason="others can write in it"), "others can write in it"),
        (NodeState("n1", "unreachable", reason="no route"), "no route"),
    ],
)
def test_a_host_where_nothing_can_be_done_is_left_out_with_its_reason(state: NodeState, reason: str) -> None:
    planned = plan(absent(0), state, absent(2))
    assert planned.refused == (("n1", reason),)
    assert [each.host for each in planned.missing] == ["n0", "n2"]
    assert render_plan(planned)[0] == f"n1: {reason}"


def test_if_every_host_has_it_there_is_nothing_to_do() -> None:
    planned = plan(present(0), present(1))
    assert (planned.how, planned.missing, planned.options) == (None, (), ())
    assert render_plan(planned) == ["/tmp/lmdb is on 2 hosts, nothing to send"]


def test_a_plan_for_one_host_speaks_of_one() -> None:
    assert render_plan(plan(absent(0), present(1), unavailable={"sbcast": "no"})) == [
        "42 GB to /tmp/lmdb on 1 host; 1 has it",
        "  copy        84 s  1 reader of a shared file system at 5 GB/s  <- chosen",
        "  chain       86 s  one node reads, 1 host passes it on at 1.25 GB/s",
        "  sbcast       n/a  no",
        "  ssh         84 s  this machine sends once at 1.25 GB/s",
    ]


def test_the_plan_is_printed_with_the_model_and_the_choice() -> None:
    assert render_plan(
        plan(*map(absent, range(64)), unavailable={"sbcast": "not inside a Slurm allocation"})
    ) == [
        "42 GB to /tmp/lmdb on 64 hosts; 0 have it",
        "  copy       538 s  64 readers of a shared file system at 5 GB/s",
        "  chain       93 s  one node reads, 64 hosts pass it on at 1.25 GB/s  <- chosen",
        "  sbcast       n/a  not inside a Slurm allocation",
        "  ssh      2,150 s  this machine sends 64 times at 1.25 GB/s",
    ]


def order(missing: list[NodeState], landed: tuple[str, ...] = ()) -> ChainOrder:
    return order_chain(lmdb_on(*missing), DATA, missing, landed, "head")


def test_the_chain_keeps_the_hostfiles_order_behind_the_first_host_that_sees_the_source() -> None:
    assert order([absent(0), absent(1)]).hosts == ("n0", "n1")
    blind = [absent(0, sees_source=False), absent(1), absent(2)]
    assert order(blind) == ChainOrder(("n1", "n0", "n2"), "/scratch/lmdb/data.mdb", False, 4 << 20)


def test_if_no_host_sees_the_source_a_host_with_a_copy_or_this_machine_sends_it() -> None:
    blind = [absent(0, sees_source=False), absent(1, sees_source=False)]
    assert order(blind, ("n7", "n8")) == ChainOrder(("n7", "n0", "n1"), "/tmp/lmdb/data.mdb", True, 4 << 20)
    assert order(blind) == ChainOrder(("head", "n0", "n1"), "/scratch/lmdb/data.mdb", True, 4 << 20)
