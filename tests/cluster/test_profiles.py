from __future__ import annotations

import configparser
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from caffe_recipes.cluster.launchers.launcher import RankLaunch, mlsl_environment, thread_environment
from caffe_recipes.cluster.profiles import (
    Container,
    Profile,
    SbatchDefaults,
    check_partition,
    find_partitions,
    load_profile,
    parse_profile,
    shipped_profiles,
)
from caffe_recipes.errors import InputError

NAMES = ["intel-mpi", "local", "marenostrum4", "mpich", "slurm", "stampede2-knl", "stampede2-skx", "vlab"]


def test_every_shipped_profile_is_named_after_its_file() -> None:
    assert list(shipped_profiles()) == NAMES
    assert [load_profile(name).name for name in NAMES] == NAMES


@pytest.mark.parametrize(
    ("name", "note"),
    [
        ("stampede2-knl", "4,200 nodes; in all runs of the paper in cache-quadrant mode"),
        ("vlab", "flat-quadrant mode"),
        ("marenostrum4", "4,000"),
    ],
)
def test_other_facts_from_the_paper_about_a_machine_are_notes_of_its_profile(name: str, note: str) -> None:
    assert note in " ".join(load_profile(name).notes)


def test_stampede2_skx_gives_the_published_command_line() -> None:
    profile = load_profile("stampede2-skx")
    assert profile.mlsl is not None
    assert profile.mlsl.num_servers == 2
    assert profile.omp_num_threads == 22
    argv = RankLaunch(
        profile.rank_launcher,
        hosts=("",) * 64,
        ranks_per_node=2,
        options=profile.launcher.options,
        variables=thread_environment(profile.omp_num_threads, profile.kmp_affinity),
    ).argv(["caffe"])
    published = "mpiexec.hydra -PSM2 -l -n 128 -ppn 2 -f hostfile -genv OMP_NUM_THREADS 22 -genv KMP_AFFINITY"
    assert " ".join(argv).startswith(published)
    servers = mlsl_environment(profile.mlsl.num_servers, profile.mlsl.server_affinity)
    assert servers["MLSL_SERVER_AFFINITY"] == "39,38,43,42"


@pytest.mark.parametrize(
    ("name", "cores", "threads", "tmp_gb", "servers"),
    [
        ("stampede2-skx", 48, 22, 144, (39, 38, 43, 42)),
        ("stampede2-knl", 68, 64, 107, (64, 65, 66, 67)),
        ("marenostrum4", 48, 22, 200, ()),
    ],
)
def test_a_machine_has_the_numbers_that_its_sources_state(
    name: str, cores: int, threads: int, tmp_gb: float, servers: tuple[int, ...]
) -> None:
    profile = load_profile(name)
    assert profile.node.cores == cores
    assert (profile.omp_num_threads, profile.node.tmp_gb) == (threads, tmp_gb)
    assert (profile.mlsl.server_affinity if profile.mlsl else ()) == servers


def test_only_the_machine_with_intel_mpi_of_2018_is_given_psm2() -> None:
    assert [name for name in NAMES if "-PSM2" in load_profile(name).launcher.options] == ["stampede2-skx"]


def test_facts_without_a_source_are_left_unset() -> None:
    assert [name for name in NAMES if load_profile(name).rates.link_gb_per_s] == ["stampede2-skx"]
    assert not any(load_profile(name).modules or load_profile(name).caffe_root for name in NAMES)
    knl = load_profile("stampede2-knl")
    assert knl.mlsl is not None
    assert knl.mlsl.num_servers is None
    assert load_profile("mpich").node.cores is None


def test_a_job_finds_the_partitions_that_take_it() -> None:
    profile = load_profile("stampede2-skx")
    assert find_partitions(profile, 128, 48) == ["skx-normal"]
    assert find_partitions(profile, 129, 1) == []
    assert list(check_partition(profile, "skx-normal", nodes=64, hours=48.5)) == [
        "skx-normal runs a job for at most 48 h, and the recipe needs 48.5 h"
    ]
    with pytest.raises(InputError, match="unknown partition 'normal'; known partitions: skx-normal"):
        list(check_partition(profile, "normal", nodes=1, hours=None))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "p.yaml:1: not a profile; a profile is a mapping that starts with `name:`"),
        ("name: a\n", "p.yaml:1: title: missing; every profile needs it"),
        ("name: a\ntitle: b\nlauncer: {}\n", "p.yaml:3: launcer: unknown key; did you mean 'launcher'?"),
        (
            "name: a\ntitle: b\nnode:\n  sockets: 2\n  core_per_socket: 24\n",
            "p.yaml:5: node.core_per_socket: unknown key; did you mean 'cores_per_socket'?",
        ),
        (
            "name: a\ntitle: b\nnode: {tmp_gb: 0}\n",
            "p.yaml:3: node.tmp_gb: must be above 0",
        ),
        ("name: a\ntitle: b\nlauncher: {program: mpirun}\n", "p.yaml:3: launcher.program: must be"),
        ("name: a\ntitle: b\nname: c\n", "p.yaml:3: duplicate key 'name'"),
        (
            "name: a\ntitle: b\nomp_num_threads: '22'\n",
            "p.yaml:3: omp_num_threads: must be",
        ),
        (
            "name: a\ntitle: b\nlauncher: {environment: {'A B': c}}\n",
            "p.yaml:3: launcher.environment.A B: as a key it must be a variable name: letters, digits and",
        ),
        (
            "name: a\ntitle: b\nlauncher: {environment: {5: c}}\n",
            "p.yaml:3: launcher.environment[5]: as a key it must be text; choose",
        ),
        (
            "name: a\ntitle: b\npartitions: {a b: {}}\n",
            "p.yaml:3: partitions.a b: as a key it must start with a letter",
        ),
        ('name: a\ntitle: b\nmodules: ["a\\nb"]\n', "p.yaml:3: modules[0]: control characters"),
        (
            "name: a\ntitle: b\nnode: {sockets: 1, cores_per_socket: 4}\nmlsl: {server_affinity: [3, 4]}\n",
            "p.yaml:1: profile: mlsl.server_affinity: core 4 does not exist; the cores of a node are 0 to 3",
        ),
        ("name: a\ntitle: b\nrates: {link_gb_per_s: 0}\n", "p.yaml:3: rates.link_gb_per_s: must be above 0"),
        ("name: a\ntitle: b\nhead: '-oProxyCommand=x'\n", "p.yaml:3: head: "),
        (
            "name: a\ntitle: b\nslurm: {acount: c}\n",
            "p.yaml:3: slurm.acount: unknown key; did you mean 'account'?",
        ),
        ("name: a\ntitle: b\nslurm: {account: 'c d'}\n", "p.yaml:3: slurm.account: "),
        ("name: a\ntitle: b\nslurm: {requires: [acount]}\n", "p.yaml:3: slurm.requires[0]: must be"),
        ("name: a\ntitle: b\ncontainer: {program: apptainer}\n", "p.yaml:3: container.image: missing"),
        (
            "name: a\ntitle: b\ncontainer: {image: c, program: docker}\n",
            "p.yaml:3: container.program: must be",
        ),
        ("name: [\n", "p.yaml:2: not YAML"),
        (
            "name: a\nnode:\n\tsockets: 2\n",
            "p.yaml:3: a tab, which YAML does not allow here; indent with spaces",
        ),
    ],
)
def test_a_mistake_is_named_with_its_line_and_key(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_profile(text, "p.yaml")
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_a_plain_value_is_not_required_to_be_a_mapping() -> None:
    with pytest.raises(InputError) as caught:
        parse_profile("name: s\ntitle: A site\nslurm: {options: --exclusive}\n", "s.yaml")
    assert str(caught.value) == "s.yaml:3: slurm.options: must be a list of values, not '--exclusive'"


def test_a_users_file_is_read_and_an_unknown_name_is_met_with_the_nearest(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\ntitle: my own\nshared_folder: /lustre/me\nmodules: [intel/18]\n")
    profile = load_profile(path)
    assert (profile.shared_folder, profile.modules) == ("/lustre/me", ("intel/18",))
    with pytest.raises(InputError, match="unknown profile 'stampede2-skl'; did you mean 'stampede2-skx'"):
        load_profile("stampede2-skl")
    with pytest.raises(InputError, match=r"none\.yaml: cannot be read: No such file"):
        load_profile(tmp_path / "none.yaml")
    path.write_bytes(b"name: \xff")
    with pytest.raises(InputError, match=r"mine\.yaml: not UTF-8 text"):
        load_profile(path)
    path.write_bytes(b"#" * 1_000_001)
    with pytest.raises(InputError, match="is over 1,000,000 bytes"):
        load_profile(path)


def test_the_job_settings_and_the_image_of_a_site_are_values() -> None:
    profile = parse_profile(
        "name: a\ntitle: b\n"
        "slurm: {partition: skx, account: A-1, constraint: 'x|y', options: [--x], requires: [account]}\n"
        "container: {image: /shared/caffe.sif, options: [--bind, /tmp]}\n",
        "p.yaml",
    )
    assert (profile.slurm.account, profile.slurm.qos, profile.slurm.requires) == ("A-1", None, ("account",))
    assert profile.container == Container(image="/shared/caffe.sif", options=("--bind", "/tmp"))
    bare = load_profile("mpich")
    assert (bare.slurm, bare.container) == (SbatchDefaults(), None)


def test_a_profile_is_frozen_all_the_way_down() -> None:
    profile = load_profile("stampede2-skx")
    with pytest.raises(ValidationError):
        profile.name = "other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        profile.partitions["x"] = profile.partitions["skx-normal"]  # type: ignore[index]
    assert Profile.model_validate(profile.model_dump()) == profile
    assert hash(profile) == hash(load_profile("stampede2-skx"))


def test_hosts_do_not_wait_for_pydantic() -> None:
    code = "import sys, caffe_recipes.cluster.hosts, caffe_recipes.cluster.hosts;"
    code += "sys.exit(bool({'pydantic', 'paramiko', 'ClusterShell'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_installed_package_carries_the_profiles() -> None:
    setup = Path(__file__).resolve().parents[2] / "setup.cfg"
    parser = configparser.ConfigParser()
    parser.read(setup)
    assert "profiles/*.yaml" in parser["options.package_data"]["caffe_recipes"].split()
    assert "caffe_recipes" in parser["options"]["packages"].split()
