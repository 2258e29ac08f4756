"""Cores, memory and clocks against the recipe, the profile and each other."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from caffe_recipes.cluster.profiles import load_profile
from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.run.context import RunOptions, find_setting
from caffe_recipes.run.events import RunState
from caffe_recipes.run.journal import name_branch
from caffe_recipes.run.preflight.findings import CheckResult
from caffe_recipes.run.preflight.machine import (
    check_clocks,
    check_cores,
    check_hosts,
    check_launches,
    check_memory,
    check_tmp,
)
from caffe_recipes.run.preflight.nodes import NodeFacts, NodeView, Processors, RankOwner
from caffe_recipes.run.training_plan import plan_training
from tests.stand_in_host import StandInHost

if TYPE_CHECKING:
    from tests.run.conftest import Place

SKX = Processors(frozenset(range(96)), 48, 2)
NODE = NodeFacts("n1", "n1", 0.0, 0.01, 96, SKX, int(192e9), int(180e9))


@pytest.fixture
def look(place: Place) -> NodeView:
    """Look at three nodes of Stampede2 for its recipe's shape."""
    shape = "omp_num_threads: 22, mlsl: {num_servers: 2, server_affinity: [39, 38, 43, 42]}"
    place.edit("omp_num_threads: 1", shape)
    recipe = load_recipe(place.recipe)
    setting = find_setting(recipe, RunOptions(root=place.root), lambda name, copy_with: StandInHost(name))
    setting = replace(setting, profile=load_profile("stampede2-skx"))
    facts = {name: replace(NODE, host=name) for name in ("n1", "n2", "n3")}
    return NodeView(setting, plan_training(recipe, "runs/small-1"), RunState(), facts, {})


def changed(look: NodeView, **values: object) -> NodeView:
    """Change the facts of n2."""
    return replace(look, facts={**look.facts, "n2": replace(look.facts["n2"], **values)})  # type: ignore[arg-type]


def only(found: list[CheckResult]) -> tuple[str, tuple[str, ...], str]:
    assert len(found) == 1, found
    return found[0].mark, found[0].hosts, found[0].message


def test_nodes_that_match_the_profile_pass(look: NodeView) -> None:
    assert only(check_cores(look)) == ("ok", (), "2 x 24 cores per host, 48 needed")
    assert only(check_memory(look)) == ("ok", (), "192 GB per host, 180 GB free")
    assert only(check_clocks(look)) == ("ok", (), "within 0.0 s of this machine's")


def test_two_names_of_one_machine_are_reported(look: NodeView) -> None:
    root = str(look.setting.root.stat().st_ino)
    known = replace(NODE, boot_id="1", root_inode=root)
    boots = {name: replace(known, host=name, node_name=name) for name in look.facts}
    assert only(check_hosts(replace(look, facts=boots)))[0] == "ok"
    twice = {**boots, "n3": replace(boots["n3"], node_name="n1")}
    mark, hosts, message = only(check_hosts(replace(look, facts=twice)))
    assert (mark, hosts) == ("failed", ("n3",))
    assert message.startswith("n3: is the same machine as n1: n1; remove one of the two names from")
    other = {**twice, "n3": replace(twice["n3"], boot_id="2")}
    assert only(check_hosts(replace(look, facts=other)))[0] == "ok"


def test_a_root_that_a_node_lacks_is_reported_with_what_all_nodes_share(look: NodeView) -> None:
    root = look.setting.root
    known = {
        name: replace(facts, boot_id=name, node_name=name, root_inode=str(root.stat().st_ino))
        for name, facts in look.facts.items()
    }
    known["n2"] = replace(known["n2"], root_inode=None)
    message = only(check_hosts(replace(look, facts=known)))[2]
    assert (
        message
        == f"n2:{root}: no such folder there; the Caffe root must be on a file system that all hosts share"
    )
    profile = look.setting.profile.model_copy(update={"shared_folder": "/work"})
    message = only(check_hosts(replace(look, facts=known, setting=replace(look.setting, profile=profile))))[2]
    assert message.endswith("the Caffe root must be below /work")


def test_ranks_of_another_launch_are_reported_with_their_hosts(look: NodeView) -> None:
    assert check_launches(look) == []
    owners = [RankOwner(pid, "alice") for pid in (953, 954, 960)]
    ranks = dict(zip([("ab/init-1", 2), ("ab/init-1", 3), ("cd/last-1", 0)], owners, strict=True))
    there = changed(look, ranks=ranks)
    found = check_launches(there)
    assert [(one.mark, one.hosts) for one in found] == [("failed", ("n2",))] * 2
    assert found[0].message.startswith(
        "n2: 2 ranks of another launch, ab/init-1, are running here (user alice); wait until it ends"
    )
    assert found[1].message.startswith("n2: 1 rank of another launch, cd/last-1, is running here")
    # What a killed run left is its own.
    assert only(check_launches(replace(there, state=RunState(id="ab"))))[2].startswith("n2: 1 rank")
    beside = RunState(id="0", branches={"side": "runs/x/branches/side"})
    own = changed(look, ranks={(f"{name_branch('0', 'side')}/side-1", 0): owners[0]})
    assert check_launches(replace(own, state=beside)) == []


def test_on_this_machine_another_launch_is_a_warning_with_its_processes(look: NodeView) -> None:
    hosts = (StandInHost("n2", is_local=True),)

    def warned(ranks: dict[tuple[str, int], RankOwner]) -> str:
        alone = replace(changed(look, ranks=ranks), setting=replace(look.setting, hosts=hosts))
        mark, names, message = only(check_launches(alone))
        assert (mark, names) == ("warn", ("n2",))
        return message

    one, two = (("ab/init-1", 0), RankOwner(953, "alice")), (("ab/init-1", 1), RankOwner(954, "alice"))
    assert "1 rank of another launch, ab/init-1, is running here (user alice, process 953); " in warned(
        dict([one])
    )
    assert "ab/init-1, are running here (user alice, processes 953, 954); wait" in warned(dict([one, two]))


def test_a_node_with_fewer_cores_is_reported_for_each_difference(look: NodeView) -> None:
    found = check_cores(changed(look, processors=Processors(frozenset(range(40)), 40, 2)))
    assert [(one.mark, one.hosts) for one in found] == [
        ("failed", ("n2",)), ("warn", ("n2",)), ("warn", ("n2",)), ("warn", ("n2",))
    ]  # fmt: skip
    assert [one.message.split(";")[0] for one in found] == [
        "n2: has no core 42,43, where MLSL's servers are pinned",
        "n2: has 2 x 20 cores, but 2 x 22 threads and 4 cores of MLSL's need 48",
        "n2: has 2 x 20 cores, but 2 x 24 are expected",
        "n2: has 2 x 20 cores, but the others have 2 x 24 cores",
    ]


def numbered(socket_of: dict[int, int]) -> Processors:
    return Processors(frozenset(range(48)), 48, 2, socket_of)


def test_a_node_whose_numbering_crowds_mlsls_servers_on_one_socket_is_reported(look: NodeView) -> None:
    alternating = numbered({core: core % 2 for core in range(48)})
    there = replace(
        look, facts={name: replace(facts, processors=alternating) for name, facts in look.facts.items()}
    )
    assert only(check_cores(there)) == ("ok", (), "2 x 24 cores per host, 48 needed")
    by_socket = numbered({core: core // 24 for core in range(48)})
    mark, hosts, message = only(check_cores(changed(there, processors=by_socket)))
    assert (mark, hosts) == ("warn", ("n2",))
    assert message.startswith(
        "n2: numbers its cores by-socket: of MLSL's servers on cores 39,38,43,42, its sockets get 0 and 4; "
    )


def test_a_node_with_another_core_numbering_than_the_profile_is_reported(look: NodeView) -> None:
    by_socket = changed(look, processors=numbered({core: core // 24 for core in range(48)}))
    recipe = look.setting.recipe
    assert recipe.cluster.mlsl is not None
    spread = recipe.cluster.mlsl.model_copy(update={"server_affinity": (22, 23, 46, 47)})
    cluster = recipe.cluster.model_copy(update={"mlsl": spread})
    setting = replace(look.setting, recipe=recipe.model_copy(update={"cluster": cluster}))
    mark, hosts, message = only(check_cores(replace(by_socket, setting=setting)))
    assert (mark, hosts) == ("warn", ("n2",))
    assert message.startswith(
        "n2: numbers its cores by-socket, but the profile says alternate; check the profile"
    )


def test_a_job_that_gives_part_of_a_node_is_reported(look: NodeView) -> None:
    mark, hosts, message = only(check_cores(changed(look, usable=24)))
    assert (mark, hosts) == ("warn", ("n2",))
    assert message.startswith("n2: makes 24 of 96 processors available, but 48 are needed")


def test_cores_that_a_list_of_places_names_must_be_there(look: NodeView) -> None:
    cluster = look.setting.recipe.cluster.model_copy(
        update={"kmp_affinity": "granularity=fine,proclist=[0-94:2,96],explicit"}
    )
    recipe = look.setting.recipe.model_copy(update={"cluster": cluster})
    found = check_cores(replace(look, setting=replace(look.setting, recipe=recipe)))
    assert only(found)[:2] == ("failed", ("n1", "n2", "n3"))
    assert "n[1-3]: has no core 96, where threads are pinned" in found[0].message


def test_memory_unlike_the_others_or_the_profile_is_a_warning(look: NodeView) -> None:
    less = only(check_memory(changed(look, memory_bytes=int(128e9), available_bytes=int(120e9))))
    assert less[:2] == ("warn", ("n2",))
    assert less[2].startswith("n2: has 128 GB of memory, but the others have 192 GB")
    taken = only(check_memory(changed(look, available_bytes=int(90e9))))
    assert taken[2].startswith("n2: has 90 GB of memory free, but the others 180 GB")
    profile = load_profile("marenostrum4")
    small = {name: replace(facts, memory_bytes=int(64e9)) for name, facts in look.facts.items()}
    found = check_memory(replace(look, setting=replace(look.setting, profile=profile), facts=small))
    assert only(found)[2].startswith("n[1-3]: has 64 GB of memory, but the profile says 96 GB")


def test_a_tmp_smaller_than_in_the_profile_is_a_warning(look: NodeView) -> None:
    assert only(check_tmp(look)) == ("ok", (), "144 GB per host")  # of hosts that do not report it
    assert only(check_tmp(changed(look, tmp_bytes=int(140e9))))[0] == "ok"
    mark, hosts, message = only(check_tmp(changed(look, tmp_bytes=int(50e9))))
    assert (mark, hosts) == ("warn", ("n2",))
    assert message.startswith("n2: has 50 GB in /tmp, but 144 GB is expected; check the profile")
    assert check_tmp(replace(look, setting=replace(look.setting, profile=load_profile("mpich")))) == []


def test_a_clock_is_wrong_only_beyond_the_duration_of_the_query(look: NodeView) -> None:
    assert only(check_clocks(changed(look, skew_s=-30.0)))[2].startswith(
        "n2: its clock is 30.0 s behind this machine's"
    )
    assert only(check_clocks(changed(look, skew_s=5.0, doubt_s=4.0)))[0] == "ok"
