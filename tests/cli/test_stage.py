from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from caffe_recipes.cluster.slurm.this_job import SLURM_VARIABLES
from tests.cli.command_line import call_main
from tests.cluster.harness.cluster import ROOT
from tests.cluster.harness.lmdbs import make_data

CONTENT = make_data(1_000_000)
# Not root, and yet able to read this interpreter and this checkout wherever they lie.
NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
READS = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")


class Place:
    """A recipe, its LMDB's source, a hostfile with this machine, and where the LMDB goes."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.lmdb = folder, folder / "node" / "a" / "lmdb"
        recipe = yaml.safe_load((ROOT / "caffe_recipes/recipes/digits-local.yaml").read_text("utf-8"))
        recipe["data"]["train"]["lmdb"] = str(self.lmdb)
        for name in ("source", "node"):
            (folder / name).mkdir()
        (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
        (folder / "hostfile").write_text("localhost\n")
        (folder / "source" / "data.mdb").write_bytes(CONTENT)

    def call(self, *words: str, as_user: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        source = ("--lmdb-source", self.folder / "source")
        environment = {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(self.folder / "node/cache")}
        if not as_user:
            return call_main("stage", "recipe.yaml", *source, *words, cwd=self.folder, env=environment)
        code = "from caffe_recipes.cli.main import main; main()"
        return subprocess.run(
            [*as_user, sys.executable, "-c", code, "stage", "recipe.yaml", *source, *words],
            cwd=self.folder,
            env=os.environ | environment,
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    for name in SLURM_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    # pytest's own folders are closed to other users
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Place(Path(name))


def test_a_host_that_was_not_cleaned_is_named_and_the_command_fails(place: Place) -> None:
    assert place.call("--how", "copy").returncode == 0
    place.lmdb.chmod(0o777)
    done = place.call("--clean")
    assert done.returncode == 3
    assert done.stderr.splitlines() == [
        f"localhost: not cleaned: {place.lmdb}: can be changed by anybody",
        "Error: stage: 1 of 1 host not cleaned: localhost; fix them, and run the same command again",
    ]
    assert (place.lmdb / "data.mdb").read_bytes() == CONTENT


def test_without_a_hostfile_a_single_node_is_this_machine_as_for_run(place: Place) -> None:
    (place.folder / "hostfile").unlink()
    words = ("stage", "recipe.yaml", "--lmdb-source", "source")
    environment = {"XDG_CACHE_HOME": str(place.folder / "node/cache")}
    with pytest.MonkeyPatch.context() as patch:
        for name in [key for key in os.environ if key.startswith("SLURM")]:
            patch.delenv(name)
        staged = call_main(*words, cwd=place.folder, env=environment)
        assert (staged.returncode, place.lmdb.joinpath("data.mdb").read_bytes()) == (0, CONTENT)
        cleaned = call_main(*words, "--clean", cwd=place.folder, env=environment)
        assert (cleaned.returncode, place.lmdb.joinpath("data.mdb").exists()) == (0, False)
        recipe = place.folder / "recipe.yaml"
        recipe.write_text(recipe.read_text().replace("nodes: 1", "nodes: 2"))
        refused = call_main(*words, cwd=place.folder, env=environment)
    assert refused.returncode == 2
    assert "hostfile: no such file; write 2 hosts to it, or give --hostfile" in refused.stderr


def test_files_that_are_not_ours_are_kept_without_a_failure(place: Place) -> None:
    place.lmdb.mkdir(parents=True)
    (place.lmdb / "data.mdb").write_bytes(CONTENT)
    done = place.call("--clean")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "localhost: kept: it was not staged by caffe-recipes\n"


@pytest.mark.parametrize(
    ("lock", "work"),
    [
        ("run.lock", "run.sh, or another caffe-recipes run, of this recipe is running here"),
        ("lock", "run.sh, or another caffe-recipes run, of this recipe is running here"),
    ],
)
def test_nothing_is_cleaned_under_a_run_of_the_recipe(place: Place, lock: str, work: str) -> None:
    assert place.call("--how", "copy").returncode == 0
    logs = place.folder / "logs" / "digits-local"
    logs.mkdir(parents=True)
    with (logs / lock).open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        done = place.call("--clean")
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == f"Error: {place.lmdb}: is in use: {work}; wait until it ends, or stop it\n"
        assert (place.lmdb / "data.mdb").read_bytes() == CONTENT
    assert place.call("--clean").returncode == 0


def test_files_that_a_process_on_the_host_reads_are_not_cleaned(place: Place) -> None:
    assert place.call("--how", "copy").returncode == 0
    with (place.lmdb / "data.mdb").open("rb"):
        done = place.call("--clean")
    assert done.returncode == 3
    assert f"localhost: not cleaned: {place.lmdb}: in use by process {os.getpid()}\n" in done.stderr
    assert (place.lmdb / "data.mdb").read_bytes() == CONTENT


@pytest.mark.parametrize("how", ["copy", "ssh"])
def test_a_user_who_is_not_root_stages_and_cleans(place: Place, how: str) -> None:
    as_user: tuple[str, ...] = ()
    if os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("setpriv is not installed, and this is root")
        as_user = (*NOBODY, *READS)
        os.chown(place.folder / "node", 65534, 65534)
    done = place.call("--how", how, as_user=as_user)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "0 had it, 1 received it, 0 failed"
    assert (place.lmdb / "data.mdb").read_bytes() == CONTENT
    modes = [path.stat().st_mode & 0o777 for path in (place.lmdb.parent, place.lmdb, place.lmdb / "data.mdb")]
    assert modes == [0o700, 0o700, 0o600]
    assert place.call(as_user=as_user).stdout.splitlines()[-1] == "1 had it, 0 received it, 0 failed"
    cleaned = place.call("--clean", as_user=as_user)
    assert (cleaned.returncode, cleaned.stdout) == (0, "localhost: removed 1,000,000 bytes\n")
    assert [path.name for path in (place.folder / "node").iterdir()] == ["cache"]


def test_the_former_name_sftp_of_a_way_is_still_accepted(place: Place) -> None:
    done = place.call("--how", "sftp")
    assert (done.returncode, done.stderr) == (0, "")
    assert next(line for line in done.stdout.splitlines() if "<- chosen" in line).split()[0] == "ssh"
    assert (place.lmdb / "data.mdb").read_bytes() == CONTENT


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_files_staged_by_root_are_neither_replaced_nor_cleaned_by_others(place: Place) -> None:
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv is not installed")
    assert place.call("--how", "copy").returncode == 0
    before = [(path, path.stat().st_ino, path.stat().st_ctime_ns) for path in place.lmdb.iterdir()]
    os.chown(place.folder / "node", 65534, 65534)
    assert "1 had it" in place.call(as_user=(*NOBODY, *READS)).stdout
    done = place.call("--clean", as_user=(*NOBODY, *READS))
    assert done.stdout == "localhost: kept: it was not staged by caffe-recipes\n"
    assert [(path, path.stat().st_ino, path.stat().st_ctime_ns) for path in place.lmdb.iterdir()] == before


def test_data_that_the_nets_name_are_left_alone(tmp_path: Path) -> None:
    recipe = yaml.safe_load((ROOT / "caffe_recipes/recipes/digits-local.yaml").read_text("utf-8"))
    recipe |= {"data": "as-in-net", "images": 1438, "test_images": 359}
    recipe["net"] = {"name": "mine", "classes": 10, "prototxt": "mine.prototxt"}
    recipe["nets"] = {name: {} for name in recipe["nets"]}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    for more in ([], ["--clean"]):
        done = call_main("stage", "recipe.yaml", *more, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        assert "what its nets read is left alone, so nothing is staged" in done.stdout
    for command in ("stage", "submit"):
        done = call_main(command, "recipe.yaml", "--lmdb-source", str(tmp_path), cwd=tmp_path)
        what = "--lmdb-source: the recipe has `data: as-in-net`, so nothing is staged; omit it"
        assert (done.returncode, done.stderr) == (2, f"Error: {what}\n")
