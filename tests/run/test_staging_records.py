"""Which TFRecords each host of a recipe gets, and staging a folder of them as the command does."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
import yaml

from caffe_recipes.cluster.hosts import LocalHost
from caffe_recipes.cluster.staging.relay import digest_of
from caffe_recipes.cluster.staging.stage import Cleaned, StagedHost
from caffe_recipes.errors import DataError, InputError
from caffe_recipes.recipe.model import TensorFlowRecipe
from caffe_recipes.recipe.shipped import shipped_recipes
from caffe_recipes.recipe.source import load_tensorflow_run, parse_any_recipe
from caffe_recipes.run.context import RunOptions, StageOptions, find_setting
from caffe_recipes.run.preflight.tensorflow_records import check_train_records
from caffe_recipes.run.staging import clean_recipe, stage_recipe
from caffe_recipes.run.tensorflow import TensorFlow
from caffe_recipes.run.training_plan import find_trainer
from caffe_recipes.tensorflow.records import deal_files

if TYPE_CHECKING:
    from caffe_recipes.run.preflight.nodes import NodeView

SHIPPED = shipped_recipes()["tf-digits-local"].file.read_text("utf-8")
NODES, FILES = 4, 12
NAMES = [f"n{number}" for number in range(NODES)]


@dataclass(frozen=True)
class Site:
    """A Caffe root with records of 36 images in 12 files to train on, and of 3 in one to validate on."""

    root: Path

    def recipe(self, **flags: object) -> TensorFlowRecipe:
        """Return a recipe of four nodes with two ranks each, with these flags."""
        known: dict[str, Any] = yaml.safe_load(SHIPPED)
        known["cluster"] |= {"nodes": NODES, "batch_per_rank": 1}
        known["tensorflow"]["data"] = {
            "train": {"folder": "node/a/train", "source": "made/train", "files": FILES, "images": 36},
            "validation": {"folder": "node/validation", "source": "made/validation", "files": 1, "images": 3},
        }
        known["tensorflow"]["flags"] = flags
        recipe = parse_any_recipe(yaml.safe_dump(known), "tf.yaml", Path())
        assert isinstance(recipe, TensorFlowRecipe)
        return recipe

    def write(self, name: str, records: int, shards: int) -> None:
        folder = self.root / "made" / name
        folder.mkdir(parents=True)
        files = [folder / f"{name}-{number:05d}-of-{shards:05d}" for number in range(shards)]
        for number, file in enumerate(files):
            file.write_bytes(bytes([number]) * (10 + number))
        known = {"records": records, "shards": shards, "seed": 3, "prefix": name, "classes": None, "plan": ""}
        known["sizes_bytes"] = [file.stat().st_size for file in files]
        known["digests"] = list(map(digest_of, files))
        self.manifest(name).write_text(json.dumps({"format": 1, **known}))

    def manifest(self, name: str) -> Path:
        return self.root / "made" / f"{name}.manifest.json"

    def names_for(
        self, hosts: Sequence[str], *, is_whole: bool = False, **flags: object
    ) -> dict[str, list[str]]:
        """Return the names of the training records that each host is to have."""
        train, _ = TensorFlow(self.recipe(**flags)).data.file_sets(self.root, hosts, None, is_whole=is_whole)
        return {host: [file.name for file in files] for host, files in train.wanted.items()}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    site = Site(tmp_path)
    site.write("train", 36, FILES)
    site.write("validation", 3, 1)
    return site


ALL = [*(f"train-{number:05d}-of-00012" for number in range(FILES)), ".manifest.json"]


def test_a_host_gets_the_files_that_its_ranks_read_and_the_manifest(site: Site) -> None:
    wanted = site.names_for(NAMES, file_groups=NODES)
    for node, name in enumerate(NAMES):
        assert wanted[name] == [*deal_files(ALL[:-1], NODES, node, seed=3), ".manifest.json"]
        assert len(wanted[name]) == 4
    halves = site.names_for(NAMES, file_groups=2)
    assert halves["n0"] == halves["n1"] != halves["n2"] == halves["n3"]
    each_rank = site.names_for(NAMES, file_groups=8)
    assert sorted(name for names in each_rank.values() for name in names[:-1]) == ALL[:-1]


def test_by_default_each_host_gets_the_files_of_its_own_ranks(site: Site) -> None:
    assert site.names_for(NAMES) == site.names_for(NAMES, file_groups=NODES) != dict.fromkeys(NAMES, ALL)
    (step,) = find_trainer(site.recipe()).steps("runs/tf-1")
    assert step.arguments[-1] == f"--file_groups={NODES}"


@pytest.mark.parametrize("flags", [{"file_groups": 1}, {"deterministic": True}])
def test_every_host_gets_every_file_where_every_rank_may_read_it(site: Site, flags: dict[str, Any]) -> None:
    assert site.names_for(NAMES, **flags) == dict.fromkeys(NAMES, ALL)
    (step,) = find_trainer(site.recipe(**flags)).steps("runs/tf-1")
    assert f"--file_groups={NODES}" not in step.arguments


def test_somebody_s_own_programs_may_not_know_groups(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESNET_DIR", "theirs")
    assert site.names_for(NAMES) == dict.fromkeys(NAMES, ALL)
    (step,) = find_trainer(site.recipe()).steps("runs/tf-1")
    assert not [word for word in step.arguments if "file_groups" in word]


def test_a_spare_gets_nothing_until_it_takes_the_place_of_a_host_whose_files_it_then_gets(site: Site) -> None:
    wanted = site.names_for([*NAMES, "spare"], file_groups=NODES)
    assert list(wanted) == NAMES
    replaced = site.names_for(["n0", "spare", "n2", "n3", "n1"], file_groups=NODES)
    assert replaced == {"n0": wanted["n0"], "spare": wanted["n1"], "n2": wanted["n2"], "n3": wanted["n3"]}


def test_whole_copies_are_for_all_hosts_spares_included(site: Site) -> None:
    hosts = [*NAMES, "spare"]
    assert site.names_for(hosts, is_whole=True, file_groups=NODES) == dict.fromkeys(hosts, ALL)


def test_the_first_host_gets_the_validation(site: Site) -> None:
    _, validation = TensorFlow(site.recipe()).data.file_sets(site.root, NAMES, None)
    assert validation.folder == str(site.root / "node/validation")
    assert {host: [file.name for file in files] for host, files in validation.wanted.items()} == {
        "n0": ["validation-00000-of-00001", ".manifest.json"]
    }


def test_records_that_are_missing_truncated_or_of_another_recipe_are_one_line(site: Site) -> None:
    def refuse() -> str:
        with pytest.raises(DataError) as refusal:
            TensorFlow(site.recipe()).data.file_sets(site.root, NAMES, None)
        return str(refusal.value)

    last = site.root / "made/train/train-00011-of-00012"
    last.write_bytes(bytes(20))
    assert refuse() == f"{last}: 20 bytes; the manifest says 21; copy or create the records again"
    last.unlink()
    assert refuse().startswith(f"{last}: cannot be read: No such file")
    manifest = site.manifest("train")
    known = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(known | {"records": 37}))
    assert refuse().startswith(f"{manifest}: 37 images in 12 files; the recipe says 36 in 12; ")
    manifest.write_text(json.dumps(known | {"classes": [f"n{number:08d}" for number in range(12)]}))
    last.write_bytes(bytes(21))
    assert refuse().startswith(f"{manifest}: records of 12 classes; the recipe says 10; correct tensorflow.")
    manifest.unlink()
    assert refuse().startswith(f"{manifest}: no such file; create the records, or name their folder")


def test_a_recipe_without_a_source_or_without_records_names_the_key(site: Site) -> None:
    with pytest.raises(
        InputError, match=r"names no folder to stage TFRecords from; write it as tensorflow\.data"
    ):
        TensorFlow(load_tensorflow_run("tf-256n-90ep")).data.file_sets(site.root, NAMES, None)


def test_records_are_staged_and_cleaned_by_the_functions_of_the_command(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(site.root / "cache"))
    (site.root / "hostfile").write_text("localhost\n")
    options, messages = StageOptions(site.root), list[str]()
    for outcome in ("sent", "there"):
        placed = stage_recipe(
            site.recipe(file_groups=4), options, lambda name, how: LocalHost(name), messages.append
        )
        assert placed == (StagedHost("localhost", outcome),)
    assert (
        f"{site.root}/hostfile: lists 1 of the 4 hosts that a run needs; add the others before"
        in " ".join(messages)
    )
    train = site.root / "node/a/train"
    found = sorted(path.name for path in train.iterdir() if "caffe-recipes" not in path.name)
    assert found == sorted([*deal_files(ALL[:-1], 4, 0, seed=3), ".manifest.json"])
    shutil.rmtree(site.root / "node/validation")
    cleaned = clean_recipe(site.recipe(), options, lambda name, how: LocalHost(name))
    (each,) = cleaned
    assert not each.failed
    assert each.outcome.endswith("bytes; nothing to remove")
    assert not train.exists()
    assert clean_recipe(site.recipe(), options, lambda name, how: LocalHost(name)) == [
        Cleaned("localhost", "nothing to remove")
    ]


def test_preflight_finds_a_folder_into_which_a_run_stages_no_records(site: Site) -> None:
    (site.root / "python").write_text("#!/bin/sh\n")
    (site.root / "python").chmod(0o755)
    (site.root / "mine.yaml").write_text(f"{{name: mine, title: mine, python: {site.root}/python}}")
    (site.root / "hostfile").write_text("\n".join(NAMES))
    options = RunOptions(root=site.root, profile=str(site.root / "mine.yaml"))
    setting = find_setting(site.recipe(), options, lambda name, _: LocalHost(name))
    view = cast("NodeView", SimpleNamespace(setting=setting))
    (found,) = check_train_records(view)
    assert found.error is None
    (site.root / "node/a").mkdir(parents=True)
    (site.root / "node").chmod(0o777)
    what = f"is under {site.root}/node, which can be changed by anybody; remove it if it is yours, or"
    for found, (hosts, folder) in zip(
        check_train_records(view), (("n[0-3]", "a/train"), ("n0", "validation")), strict=True
    ):
        assert str(found.error).startswith(f"{hosts}:{site.root}/node/{folder}: {what}")
