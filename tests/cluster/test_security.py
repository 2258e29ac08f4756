"""What keeps a run from prompting, trusting and leaking; on this machine only."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import paramiko
import pytest
import yaml

from caffe_recipes.cluster.hostfile import parse_hostfile
from caffe_recipes.cluster.hosts import LocalHost, open_host
from caffe_recipes.cluster.launchers import DEFAULT_LAUNCHER
from caffe_recipes.cluster.remote import NodeRefusal, ask_node
from caffe_recipes.cluster.slurm.this_job import slurm_hosts
from caffe_recipes.cluster.ssh_config import load_ssh_options
from caffe_recipes.cluster.ssh_login import authenticate
from caffe_recipes.cluster.staging.file_sets import find_source, hash_source, load_digest, staging_lock
from caffe_recipes.cluster.staging.relay import STAMP
from caffe_recipes.errors import ClusterError, InputError, RecipeError
from caffe_recipes.recipe.source import parse_recipe
from caffe_recipes.render.scripts import render_run_script
from caffe_recipes.run.caffe import find_caffe
from caffe_recipes.trust import trusting
from tests.cluster.harness.cluster import ROOT
from tests.cluster.harness.keys import write_key
from tests.cluster.staging.conftest import clean_node, probe_node, reserve_part
from tests.jobs.conftest import HARMLESS

STRICT = "-oBatchMode=yes -oStrictHostKeyChecking=yes -oUpdateHostKeys=no -oForwardAgent=no"
MPICH, INTEL = "HYDRA_LAUNCHER_EXTRA_ARGS", "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS"
NOBODY = 65534
HOST = LocalHost("here")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can play another user")

METACHARACTERS = "a'b\"$(touch hacked)`touch hacked`; touch hacked & | * ~ {x,y} \\ !x #é"
HOSTILE = (METACHARACTERS, "-x", "--help", "a\nb", "a\0b", "a\x1b[2J", "$(touch hacked)\n", "é")
RECIPE = (ROOT / "caffe_recipes/recipes/stampede2-64n-72ep.yaml").read_text("utf-8")


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, {MPICH, INTEL}),
        ({"HYDRA_LAUNCHER": "ssh", "SLURM_JOB_NODELIST": "a"}, {MPICH, INTEL}),
        ({"HYDRA_BOOTSTRAP": "rsh"}, {INTEL}),
        ({"I_MPI_HYDRA_BOOTSTRAP": "slurm"}, {MPICH}),
        ({"I_MPI_HYDRA_BOOTSTRAP": "ssh", "SLURM_NODELIST": "a"}, {INTEL}),
        *(({name: "a"}, set()) for name in ("SLURM_JOB_NODELIST", "PE_HOSTFILE", "LSB_MCPU_HOSTS")),
    ],
)
def test_options_for_ssh_are_passed_to_ssh_only(environment: dict[str, str], expected: set[str]) -> None:
    given = DEFAULT_LAUNCHER.environment(environment)
    assert given.pop("SSH_ASKPASS_REQUIRE") == "never"
    assert given == dict.fromkeys(expected, STRICT)


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({}, {MPICH, INTEL}),
        ({"HYDRA_LAUNCHER": "slurm"}, {MPICH, INTEL}),
        ({"HYDRA_LAUNCHER": "ssh"}, set()),
        ({"I_MPI_HYDRA_BOOTSTRAP": "ssh"}, {MPICH}),
    ],
)
def test_inside_a_job_options_for_srun_are_passed_to_srun_only(
    environment: dict[str, str], named: set[str]
) -> None:
    launch = "0123456789abcdef/init-1"
    assert DEFAULT_LAUNCHER.step_environment(launch, environment) == {
        "SLURM_OVERLAP": "1",
        **dict.fromkeys(named, f"--job-name={launch}"),
    }
    assert (
        DEFAULT_LAUNCHER.step_environment(launch, {MPICH: "--mem=0"})[MPICH] == f"--job-name={launch} --mem=0"
    )


def test_ssh_options_of_the_user_come_after_ours_which_take_precedence() -> None:
    assert (
        DEFAULT_LAUNCHER.environment({MPICH: "-oForwardAgent=yes"})[MPICH] == f"{STRICT} -oForwardAgent=yes"
    )


@pytest.mark.parametrize(
    ("read", "means_more"),
    [
        (lambda name, folder: open_host(name, "ssh"), ()),
        (lambda name, folder: load_ssh_options(name, folder), ()),
        (lambda name, folder: load_ssh_options("", folder, name or "-"), ("a@b",)),
        (lambda name, folder: slurm_hosts({"SLURM_JOB_NODELIST": name or "-"}), ()),
        (lambda name, folder: parse_hostfile(f"good\n{name or '-'}", "hostfile"), ("a\nb",)),
    ],
    ids=["host", "ssh", "jump host", "Slurm's list", "hostfile"],
)
@pytest.mark.parametrize("name", [*HOSTILE, "-oProxyCommand=x", "a b", "a;b", "a@b", "", "a" * 300, "a:b/c"])
def test_an_invalid_host_name_is_refused_in_one_line_wherever_one_is_read(
    read: Callable[[str, Path], object], means_more: tuple[str, ...], name: str, tmp_path: Path
) -> None:
    if name not in means_more:
        with pytest.raises((ClusterError, InputError)) as caught:
            read(name, tmp_path)
        assert not set("\n\0\x1b") & set(str(caught.value))


def test_a_host_that_does_not_answer_a_login_is_distinguished_from_one_that_refuses_it(
    tmp_path: Path,
) -> None:
    class Silent:
        auth_timeout = 60.0

        def auth_publickey(self, user: str, key: object) -> list[str]:
            raise paramiko.AuthenticationException("Authentication timeout.")

    write_key(tmp_path / "id")
    (tmp_path / "config").write_text(f"IdentityFile {tmp_path}/id\nIdentityAgent none\n")
    with pytest.raises(ClusterError, match=r"node1: .*offered \S+/id; no answer within 60 s; make"):
        authenticate(cast("paramiko.Transport", Silent()), load_ssh_options("node1", tmp_path))


def texts_in(value: Any, at: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:  # noqa: ANN401
    """Yield where a recipe has a text."""
    if isinstance(value, str):
        yield at
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from texts_in(item, (*at, key))


def full_recipe() -> dict[str, Any]:
    """Return a recipe that sets every text field it can."""
    recipe: dict[str, Any] = yaml.safe_load(RECIPE)
    recipe["data"]["train"]["source"] = "examples/train_lmdb"
    recipe["phases"] = recipe["phases"][:2]
    recipe["phases"][0] |= {"weights": "given.caffemodel", "comment": "from given weights"}
    recipe["accept"] = [{"finding": "join-jump", "reason": "as published"}]
    return recipe


@pytest.mark.promise("nothing read runs")
@pytest.mark.parametrize("at", list(texts_in(full_recipe())), ids=lambda at: ".".join(map(str, at)))
def test_every_text_of_a_recipe_is_refused_in_one_line_or_harmless_in_its_script(
    at: tuple[str | int, ...], tmp_path: Path
) -> None:
    scripts = []
    for text in HOSTILE:
        recipe = full_recipe()
        within: Any = recipe
        for key in at[:-1]:
            within = within[key]
        within[at[-1]] = f"{text}.caffemodel" if at[-1] == "weights" else text
        try:
            scripts.append(render_run_script(parse_recipe(yaml.safe_dump(recipe), "recipe.yaml", tmp_path)))
        except RecipeError as error:
            assert "\n" not in str(error)
            assert "\x1b" not in str(error)
    read = "\n".join(f"(\n{HARMLESS}{script})" for script in scripts)
    done = subprocess.run(
        ["bash"], input=read, capture_output=True, text=True, cwd=tmp_path, check=False, timeout=600
    )
    assert "syntax error" not in done.stderr
    assert not list(tmp_path.rglob("hacked"))


@pytest.mark.parametrize("trainer", ["-x", "--help", ":"])
def test_a_trainer_that_a_launcher_would_read_as_an_option_is_refused(trainer: str) -> None:
    text = RECIPE.replace("trainer: ./build/tools/caffe", f"trainer: '{trainer}'")
    with pytest.raises(RecipeError, match=rf"yaml:4: trainer: .*; write \./{trainer}"):
        parse_recipe(text, "recipe.yaml", Path())


def test_a_trainer_given_by_name_is_taken_from_the_caffe_root_and_not_from_path(tmp_path: Path) -> None:
    (tmp_path / "caffe").write_text("#!/bin/sh\n")
    (tmp_path / "caffe").chmod(0o755)
    assert find_caffe("caffe", tmp_path) == "./caffe"


@pytest.mark.parametrize("folder", ["$(touch hacked)", "`x`", 'say "hi"', "a;b", "back\\slash"])
def test_a_launcher_path_that_a_remote_shell_would_change_is_refused(folder: str, tmp_path: Path) -> None:
    launcher = tmp_path / folder / "mpiexec.hydra"
    launcher.parent.mkdir()
    launcher.touch(mode=0o755)
    with pytest.raises(
        ClusterError, match="has special characters in its path, which hydra passes unquoted to shells"
    ):
        DEFAULT_LAUNCHER.find(str(launcher.parent))


@pytest.fixture
def disk() -> Iterator[Path]:
    """Give a folder of ours in a /tmp that others share."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def of_nobody(path: Path) -> None:
    os.chown(path, NOBODY, NOBODY, follow_symlinks=False)


@pytest.mark.promise("snapshots and staged copies are ours alone")
@as_root
@pytest.mark.parametrize(
    "attack", ["parent", "parent link", "folder", "data", "stamped folder", "our link to their link"]
)
def test_folders_of_another_user_above_an_lmdb_are_refused_and_not_touched(attack: str, disk: Path) -> None:
    (disk / "victim" / "lmdb").mkdir(parents=True)
    lmdb = disk / "a" / "lmdb"
    if attack == "parent":
        (disk / "a").mkdir()
        of_nobody(disk / "a")
    elif attack.endswith("link"):
        (disk / "a").symlink_to(disk / "victim")
        of_nobody(disk / "a")
        if attack == "our link to their link":
            lmdb = disk / "b" / "lmdb"
            (disk / "b").symlink_to("./a")
    else:
        lmdb.mkdir(parents=True)
        if attack == "data":
            (lmdb / "data.mdb").write_bytes(b"x")
            of_nobody(lmdb / "data.mdb")
        else:
            (lmdb / STAMP).write_text("caffe-recipes-1 9 - - - -\n")
            of_nobody(lmdb)
    before = [(path, path.lstat().st_ctime_ns) for path in sorted(disk.rglob("*"))]
    assert probe_node(HOST, str(lmdb), "/none", 1).kind == "refused"
    with pytest.raises(NodeRefusal):
        reserve_part(HOST, str(lmdb), ".data.mdb.part-1", 1)
    with contextlib.suppress(NodeRefusal):
        assert clean_node(HOST, str(lmdb))[0] in ("kept", "nothing")
    assert [(path, path.lstat().st_ctime_ns) for path in sorted(disk.rglob("*"))] == before


@pytest.mark.promise("a colleague's folder is used")
@as_root
def test_a_colleague_s_dataset_is_read_where_only_its_owner_can_write() -> None:
    with tempfile.TemporaryDirectory(dir="/var") as name:
        lmdb = Path(name) / "datasets" / "lmdb"
        lmdb.mkdir(parents=True)
        for path in (lmdb / "data.mdb", lmdb / "lock.mdb"):
            path.touch(mode=0o644)
        for path in (Path(name), lmdb.parent, lmdb, *lmdb.iterdir()):
            of_nobody(path)
            path.chmod(0o755 if path.is_dir() else 0o644)
        ask_node(HOST, "read", str(lmdb), "/none")
        (Path(name) / "link").symlink_to(lmdb)
        ask_node(HOST, "read", f"{name}/link", "/none")
        (lmdb / "lock.mdb").unlink()
        (lmdb / "lock.mdb").symlink_to("/none")  # Caffe would create what it names
        of_nobody(lmdb / "lock.mdb")
        for named in ((), (NOBODY,)):
            with (
                trusting(named),
                pytest.raises(NodeRefusal, match=r"contains lock\.mdb, which belongs to user"),
            ):
                ask_node(HOST, "read", str(lmdb), "/none")
        (lmdb / "lock.mdb").unlink()
        lmdb.chmod(0o777)
        with pytest.raises(NodeRefusal, match="can be changed by anybody"):
            ask_node(HOST, "read", str(lmdb), "/none")


@pytest.mark.parametrize("name", ["data.mdb", STAMP])
@pytest.mark.parametrize("kind", ["fifo", "folder", "link to a fifo"])
def test_pipes_and_devices_are_neither_read_nor_waited_for_nor_replaced(
    name: str, kind: str, disk: Path
) -> None:
    lmdb = disk / "lmdb"
    lmdb.mkdir()
    odd = lmdb / name
    if kind == "folder":
        odd.mkdir()
    elif kind == "fifo":
        os.mkfifo(odd)
    else:
        os.mkfifo(disk / "fifo")
        odd.symlink_to(disk / "fifo")
    probe_node(HOST, str(lmdb), "/none", 1)
    with pytest.raises(
        NodeRefusal, match=r"something other than an LMDB|another LMDB|stamp that is not ours"
    ):
        reserve_part(HOST, str(lmdb), ".data.mdb.part-1", 1)
    assert clean_node(HOST, str(lmdb))[0] in ("kept", "nothing")
    assert [path.name for path in lmdb.iterdir()] == [name]
    assert not stat.S_ISREG(odd.lstat().st_mode)


def test_links_of_ours_are_followed_step_by_step_and_not_without_end(disk: Path) -> None:
    (disk / "a" / "b").mkdir(parents=True)
    (disk / "one").symlink_to("a/../two")
    (disk / "two").symlink_to(disk / "a" / "b")
    (disk / "a" / "b" / "new\nline\n").symlink_to("..")
    assert probe_node(HOST, f"{disk}/one/new\nline\n/lmdb", "/none", 1).kind == "absent"
    reserve_part(HOST, f"{disk}/one/new\nline\n/lmdb", ".data.mdb.part-1", 1)
    assert (disk / "a" / "lmdb" / ".data.mdb.part-1").exists()
    (disk / "round").symlink_to("round")
    assert (
        "has too many levels of symbolic links" in probe_node(HOST, f"{disk}/round/lmdb", "/none", 1).reason
    )


def test_a_hard_linked_file_loses_only_our_name(disk: Path) -> None:
    (disk / "lmdb").mkdir()
    (disk / "mine").write_bytes(b"records")
    os.link(disk / "mine", disk / "lmdb/data.mdb")
    with pytest.raises(NodeRefusal, match="another LMDB now exists there"):
        reserve_part(HOST, str(disk / "lmdb"), ".data.mdb.part-1", 7)
    assert clean_node(HOST, str(disk / "lmdb"))[0] == "kept"
    assert (disk / "mine").read_bytes() == (disk / "lmdb/data.mdb").read_bytes() == b"records"


@pytest.mark.parametrize(
    "open_to", ["everybody", pytest.param("nobody", marks=as_root)], ids=["writable", "another's"]
)
def test_a_cache_that_others_can_write_to_is_neither_read_nor_filled(open_to: str, disk: Path) -> None:
    (disk / "data.mdb").write_bytes(b"records")
    os.utime(disk / "data.mdb", (1, 1))
    source, cache = find_source(disk), disk / "cache"
    hash_source(source, cache)
    assert load_digest(source, cache) is not None
    if open_to == "everybody":
        cache.chmod(0o777)
    else:
        of_nobody(cache)
    assert load_digest(source, cache) is None
    shutil.rmtree(cache / "manifests")
    hash_source(source, cache)
    with staging_lock("/tmp/lmdb", cache):
        assert list(cache.iterdir()) == []
