"""Data that another user has put where a run reads it is used neither for training nor for testing."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from caffe_recipes.cluster.hosts import LocalHost
from caffe_recipes.cluster.remote import NodeRefusal
from caffe_recipes.cluster.slurm.this_job import SLURM_VARIABLES
from caffe_recipes.cluster.staging.file_sets import FileSet, SetFile, stat_source
from caffe_recipes.cluster.staging.stage import StagedHost
from caffe_recipes.errors import CaffeRecipesError, ClusterError, RunFailed
from caffe_recipes.recipe.source import load_recipe, load_tensorflow_run
from caffe_recipes.run import phase, runner
from caffe_recipes.run.context import RunOptions, StageOptions, find_setting
from caffe_recipes.run.policy import Policy
from caffe_recipes.run.preflight.checks import preflight_recipe
from caffe_recipes.run.staging import DataPart, check_data, check_source_access, stage_recipe

if TYPE_CHECKING:
    from tests.run.conftest import Place

NOBODY = 65534
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can play another user")
SOURCE = "lmdb: tmp/train_lmdb, source: data/train_lmdb"


@pytest.fixture(params=["train", "test"])
def part(request: pytest.FixtureRequest) -> DataPart:
    """Return which LMDB is in a folder where everybody can create files."""
    part: DataPart = request.param
    return part


@pytest.fixture
def lmdb(place: Place, part: DataPart) -> Path:
    """Have the recipe read an LMDB in such a folder, without a source to stage it from."""
    shared = place.root.parent / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    lmdb = shared / f"{part}_lmdb"
    shutil.copytree(place.root / "data" / lmdb.name, lmdb)
    if part == "test":
        place.edit("lmdb: data/test_lmdb", f"lmdb: {lmdb}")
    place.edit(SOURCE, f"lmdb: {lmdb if part == 'train' else 'data/train_lmdb'}")
    return lmdb


def plant(lmdb: Path, how: str) -> None:
    """Let another user own the folder or its data, or plant a link there."""
    if how == "lock":
        (lmdb / "lock.mdb").unlink(missing_ok=True)
        (lmdb / "lock.mdb").symlink_to("/none")
        os.chown(lmdb / "lock.mdb", NOBODY, NOBODY, follow_symlinks=False)
    else:
        os.chown(lmdb if how == "folder" else lmdb / "data.mdb", NOBODY, NOBODY)


@pytest.mark.promise("no data of others is used in a shared folder")
@pytest.mark.parametrize("how", ["folder", "data.mdb", "lock"])
def test_nothing_is_trained_from_or_tested_with_data_of_another_user(
    place: Place, lmdb: Path, part: DataPart, how: str
) -> None:
    plant(lmdb, how)
    inner = {"folder": "", "data.mdb": "contains data.mdb, which ", "lock": "contains lock.mdb, which "}[how]
    belongs = r"belongs to user \w+ \(65534\), who can change its contents"
    message = rf"localhost:{lmdb}: {inner}{belongs}; (stage your own|set a folder)"
    with pytest.raises(CaffeRecipesError, match=message):
        place.run()
    assert place.trained() == []
    found = preflight_recipe(load_recipe(place.recipe), RunOptions(root=place.root), lambda *_: LocalHost())
    (error,) = [str(one.error) for one in found if one.error]
    assert re.match(message, error)


@pytest.mark.promise("no data of others is used in a shared folder")
@pytest.mark.parametrize("how", ["folder", "lock"])
def test_the_data_are_checked_again_when_a_run_prepares(
    place: Place, lmdb: Path, part: DataPart, how: str
) -> None:
    setting = find_setting(load_recipe(place.recipe), RunOptions(root=place.root), lambda *_: LocalHost())
    check_data(setting, part)
    plant(lmdb, how)
    with pytest.raises(ClusterError, match=r"belongs to user .*, or name its owner with --trust-owner"):
        check_data(setting, part)


@pytest.fixture
def source(place: Place) -> Path:
    """Have the recipe stage its LMDB from a folder where everybody can create files."""
    shared = place.root.parent / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    shutil.copytree(place.root / "data/train_lmdb", shared / "train_lmdb")
    place.edit(SOURCE, f"lmdb: tmp/train_lmdb, source: {shared}/train_lmdb")
    return shared / "train_lmdb"


def stage_here(place: Place) -> StagedHost:
    (place.root / "hostfile").write_text("localhost\n")
    options = StageOptions(root=place.root)
    (staged,) = stage_recipe(load_recipe(place.recipe), options, lambda *_: LocalHost(), print)
    return staged


@pytest.mark.promise("no data of others is used in a shared folder")
@pytest.mark.parametrize("how", ["folder", "data.mdb", "lock"])
def test_nothing_is_staged_from_a_source_that_another_user_could_have_put_there(
    place: Place, source: Path, how: str
) -> None:
    plant(source, how)
    inner = {"folder": "", "data.mdb": "contains data.mdb, which ", "lock": "contains lock.mdb, which "}[how]
    belongs = r"belongs to user \w+ \(65534\), who can change its contents"
    message = (
        rf"localhost:{source}: {inner}{belongs}; give the folder of your own copy with --lmdb-source, or name"
    )
    with pytest.raises(NodeRefusal, match=message):
        stage_here(place)
    with pytest.raises(CaffeRecipesError, match=message):
        place.run()
    assert place.trained() == []
    assert not (place.root / "tmp/train_lmdb").exists()
    found = preflight_recipe(load_recipe(place.recipe), RunOptions(root=place.root), lambda *_: LocalHost())
    (error,) = [str(one.error) for one in found if one.error]
    assert re.match(message, error)


@pytest.mark.promise("a check cannot be evaded")
def test_a_source_that_another_user_hides_during_the_check_is_refused(place: Place, source: Path) -> None:
    source.rename(source.with_name("hidden"))
    message = rf"localhost:{source}: does not exist, and anybody could create it; give the folder"
    with pytest.raises(NodeRefusal, match=message):
        check_source_access(place.root, [str(source)])


@pytest.mark.promise("a check cannot be evaded")
def test_data_may_be_absent_only_until_they_are_staged(place: Place, lmdb: Path, part: DataPart) -> None:
    setting = find_setting(load_recipe(place.recipe), RunOptions(root=place.root), lambda *_: LocalHost())
    check_data(setting, part)
    lmdb.rename(lmdb.with_name("hidden"))
    check_data(setting, part, may_be_absent=True)
    with pytest.raises(ClusterError, match=rf"{lmdb}: does not exist, and anybody could create it; "):
        check_data(setting, part)


def test_own_data_are_staged_from_a_shared_folder(place: Place, source: Path) -> None:
    assert stage_here(place).outcome == "sent"


@pytest.mark.promise("a colleague's folder is used")
def test_data_of_a_colleague_are_staged_from_a_folder_in_which_only_their_owner_can_write(
    place: Place,
) -> None:
    with tempfile.TemporaryDirectory(dir="/var") as folder:
        source = Path(folder) / "train_lmdb"
        shutil.copytree(place.root / "data/train_lmdb", source)
        place.edit(SOURCE, f"lmdb: tmp/train_lmdb, source: {source}")
        for path in (Path(folder), source, *source.iterdir()):
            os.chown(path, NOBODY, NOBODY)
            path.chmod(0o755 if path.is_dir() else 0o644)
        assert place.run().outputs


@pytest.fixture
def colleague(place: Place) -> Iterator[Path]:
    """Have the recipe read both LMDBs in place, in a folder in which only a colleague can write."""
    with tempfile.TemporaryDirectory(dir="/var") as folder:
        shutil.copytree(place.root / "data", Path(folder) / "data")
        place.edit(SOURCE, f"lmdb: {folder}/data/train_lmdb")
        place.edit("lmdb: data/test_lmdb", f"lmdb: {folder}/data/test_lmdb")
        for path in (Path(folder), *Path(folder).rglob("*")):
            os.chown(path, NOBODY, NOBODY)
            path.chmod(0o755 if path.is_dir() else 0o644)
        yield Path(folder)


def sources_in(path: Path, root: Path) -> set[str]:
    """Return the sources of the nets that a launch with this solver or net reads."""
    text = path.read_text()
    nets = [root / net for net in re.findall(r'^net: "(.*)"', text, re.MULTILINE)]
    return {
        *re.findall(r'source: "(.*)"', text),
        *(source for net in nets for source in sources_in(net, root)),
    }


@pytest.mark.promise("nobody else holds our locks, and we open none of theirs")
@pytest.mark.parametrize("every", [None, 3])
def test_no_lock_file_of_a_colleague_is_opened(place: Place, colleague: Path, every: int | None) -> None:
    """liblmdb would write to lock.mdb, which its owner can replace by a link to a file of ours."""
    assert place.run(policy=Policy(checkpoint_every=every)).outputs
    journal = (place.root / "runs/small-1/journal.jsonl").read_text()
    given = re.findall(r'--solver=([^"]*)', journal)
    assert given
    sources = {source for path in given for source in sources_in(place.root / path, place.root)}
    assert sources
    for source in sources:
        assert [path.name for path in (place.root / source).iterdir()] == ["data.mdb"]
        assert (place.root / source / "data.mdb").resolve().is_relative_to(colleague)
        assert source.startswith("runs/small-1/data/")


@pytest.mark.promise("a colleague's folder is used")
@pytest.mark.parametrize("mode", [0o755, 0o2775])
def test_data_and_snapshots_are_put_into_an_own_folder_in_the_project_folder_of_another_user(
    place: Place, mode: int
) -> None:
    """So is one on a mount with squashed root, which seems to belong to nobody."""
    with tempfile.TemporaryDirectory(dir="/var") as folder:
        (Path(folder) / "mine").mkdir()
        os.chown(folder, NOBODY, NOBODY)
        Path(folder).chmod(mode)
        place.edit(SOURCE, f"lmdb: {folder}/mine/train_lmdb, source: data/train_lmdb")
        place.edit("tmp/small_init", f"{folder}/mine/small_init")
        options = RunOptions(root=place.root)
        found = preflight_recipe(load_recipe(place.recipe), options, lambda *_: LocalHost())
        assert [str(one.error) for one in found if one.error] == []
        assert place.run().outputs
        assert (Path(folder) / "mine/train_lmdb/data.mdb").exists()


@pytest.mark.promise("a colleague's folder is used")
@pytest.mark.parametrize("where", ["option", "profile"])
def test_the_data_of_a_named_owner_are_used_in_a_shared_folder(
    place: Place, source: Path, where: str
) -> None:
    for path in (source, *source.iterdir()):
        os.chown(path, NOBODY, NOBODY)
    place.edit(f"lmdb: tmp/train_lmdb, source: {source}", f"lmdb: {source}")  # read where they are
    profile = place.root / "mine.yaml"
    profile.write_text(f"name: mine\ntitle: mine\ntrust: [{'nobody' if where == 'profile' else 'root'}]\n")
    code, _, error = place.call("--profile", str(profile))
    assert (code == 0) == (where == "profile"), error
    if where == "option":
        assert "belongs to user nobody (65534), who can change its contents; stage your own copy" in error
        assert place.call("--trust-owner", str(NOBODY))[0] == 0
    assert (place.root / "runs/small-1/data").exists()  # whose lock.mdb is not opened


def test_an_unknown_owner_is_refused(place: Place) -> None:
    code, _, error = place.call("--trust-owner", "nosuchuser")
    hint = "give the name or number of a user, as `ls -l` shows it"
    assert (code, error) == (2, f"Error: --trust-owner: unknown user 'nosuchuser'; {hint}\n")


def test_preflight_finds_a_folder_in_which_a_run_would_trust_no_snapshot(place: Place) -> None:
    theirs = place.root.parent / "shared/theirs"
    theirs.mkdir(parents=True)
    theirs.parent.chmod(0o1777)
    os.chown(theirs, NOBODY, NOBODY)
    place.edit("tmp/small_init", f"{theirs}/small_init")
    found = preflight_recipe(load_recipe(place.recipe), RunOptions(root=place.root), lambda *_: LocalHost())
    (error,) = [str(one.error) for one in found if one.error]
    belongs = f"belongs to user nobody ({NOBODY}), who can change its contents"
    assert error.startswith(f"localhost:{theirs}: is under {theirs}, which {belongs}; ")
    with pytest.raises(CaffeRecipesError, match="who can change its contents"):
        place.run()


def test_own_data_are_read_where_they_are(place: Place) -> None:
    assert place.run().outputs
    assert not (place.root / "runs/small-1/data").exists()


@pytest.mark.promise("no data of others is used in a shared folder")
def test_no_record_is_staged_that_another_user_could_have_put_there(tmp_path: Path) -> None:
    source = tmp_path / "records"
    source.mkdir()
    for name in ("train-0", "train-1"):
        (source / name).write_bytes(b"records")
    files = [SetFile(name, stat_source(source / name)) for name in ("train-0", "train-1")]
    records = FileSet("/tmp/records", source, {"n1": files[:1], "n2": files[1:]})
    check_source_access(tmp_path, records.read_paths)
    os.chown(source / "train-1", NOBODY, NOBODY)
    with pytest.raises(NodeRefusal, match=rf"localhost:{source}: contains train-1, which belongs to user"):
        check_source_access(tmp_path, records.read_paths)
    os.chown(source / "train-1", 0, 0)
    (source / "train-1").chmod(0o666)
    with pytest.raises(NodeRefusal, match=rf"{source}: contains train-1, which can be changed by anybody"):
        check_source_access(tmp_path, records.read_paths)
    source.chmod(0o777)
    with pytest.raises(
        NodeRefusal, match=rf"localhost:{source}: can be changed by anybody; give the folder of"
    ):
        check_source_access(tmp_path, records.read_paths)


@pytest.mark.promise("no data of others is used in a shared folder")
@pytest.mark.parametrize("name", ["{}/.manifest.json", "{}.manifest.json"])
def test_a_records_manifest_that_another_user_could_have_planted_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: DataPart, name: str
) -> None:
    for variable in SLURM_VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    (tmp_path / "mine.yaml").write_text(f"{{name: mine, title: mine, python: {python}}}")
    options = RunOptions(root=tmp_path, profile=str(tmp_path / "mine.yaml"))
    setting = find_setting(load_tensorflow_run("tf-digits-local"), options, lambda *_: LocalHost())
    folder = setting.trainer.data.folder if part == "train" else setting.trainer.data.test_folder
    assert folder
    (tmp_path / folder).mkdir(parents=True)
    (tmp_path / folder).parent.chmod(0o1777)
    manifest = tmp_path / name.format(folder)
    manifest.write_text("{}")
    check_data(setting, part)
    os.chown(manifest, NOBODY, NOBODY)
    with pytest.raises(
        ClusterError, match=r"manifest\.json, which belongs to user .*, or name its owner with --trust-owner"
    ):
        check_data(setting, part)


@pytest.mark.promise("no data of others is used in a shared folder")
def test_staged_data_are_checked_before_each_run(place: Place) -> None:
    assert stage_here(place).outcome == "sent"
    plant(place.root / "tmp/train_lmdb", "lock")
    with pytest.raises(CaffeRecipesError, match=r"tmp/train_lmdb: contains lock\.mdb, which belongs to user"):
        place.run()
    assert place.trained() == []


@pytest.mark.promise("no data of others is used in a shared folder")
def test_the_owner_of_the_current_folder_is_not_trusted_unless_it_is_the_caffe_root(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = place.root.parent / "theirs"
    theirs.mkdir()
    os.chown(theirs, NOBODY, NOBODY)
    place.edit(SOURCE, f"lmdb: {theirs}/train_lmdb, source: data/train_lmdb")
    monkeypatch.chdir(theirs)
    staged = stage_here(place)
    assert (staged.outcome, staged.reason) == (
        "failed",
        f"is under {theirs}, which belongs to user nobody ({NOBODY}), who can change its contents",
    )
    assert list(theirs.iterdir()) == []


def test_own_data_in_a_shared_folder_are_used(place: Place, lmdb: Path) -> None:
    assert place.run().outputs


@pytest.mark.promise("no data of others is used in a shared folder")
@pytest.mark.parametrize("part", ["test"], indirect=True)
def test_a_test_lmdb_that_another_user_puts_there_during_the_run_is_not_tested_with(
    place: Place, lmdb: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plant_then_evaluate(*words: Any) -> None:  # noqa: ANN401
        plant(lmdb, "data.mdb")
        evaluate(*words)

    evaluate = phase.evaluate
    monkeypatch.setattr(runner, "evaluate", plant_then_evaluate)
    with pytest.raises(
        RunFailed, match=r"test_lmdb: contains data\.mdb, which belongs to user .*; set a folder"
    ):
        place.run()
    assert place.trained() != []
    assert "evaluating" not in (place.root / "runs/small-1/journal.jsonl").read_text()
