"""Which files each rank reads, and what is refused: by the program's own module, without TensorFlow."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from caffe_recipes.tensorflow.records import deal_files
from tests.tensorflow_programs.launch import PROGRAMS

if TYPE_CHECKING:
    import record_files
else:  # as the programs find them: scripts of their folder, which is no package
    for name in ("trust", "record_files"):
        found = importlib.util.spec_from_file_location(name, PROGRAMS / f"{name}.py")
        record_files = importlib.util.module_from_spec(found)
        sys.modules[found.name] = record_files
        found.loader.exec_module(record_files)

FILES = [f"train-{number:05d}-of-01024" for number in range(1024)]
COUNTS = [1251 + (number % 7 == 0) for number in range(1024)]


def shares(ranks: int, groups: int, batch: int, files: int = 1024) -> list[record_files.Share]:
    """Return the share of every rank."""
    read = record_files.RecordFiles(FILES[:files], COUNTS[:files], 1)
    return [record_files.Share(read, batch, rank, ranks, 1, False, groups) for rank in range(ranks)]


@pytest.mark.parametrize("nodes", [1, 2, 3, 7, 256, 1000])
def test_a_node_is_sent_the_files_that_its_ranks_read(nodes: int) -> None:
    for seed in (0, 1):
        groups = [record_files.deal_files(FILES, nodes, node, seed) for node in range(nodes)]
        assert groups == [deal_files(FILES, nodes, node, seed) for node in range(nodes)]
        assert sorted(file for group in groups for file in group) == FILES
        assert {len(group) for group in groups} <= {1024 // nodes, -(-1024 // nodes)}


@pytest.mark.parametrize(
    ("ranks", "groups", "files"), [(8, 1, 1024), (8, 4, 1024), (64, 32, 1024), (6, 3, 100)]
)
def test_every_file_is_read_once_in_an_epoch_by_a_rank_of_the_one_group_that_has_it(
    ranks: int, groups: int, files: int
) -> None:
    each = ranks // groups
    dealt = shares(ranks, groups, 2 * ranks, files)
    for epoch in (0, 1):
        read = Counter[str]()
        for number in range(groups):
            group = dealt[number * each : (number + 1) * each]
            # Where the files do not divide, every rank of the group reads all of them, and keeps its part.
            lists = [share.deal(epoch) for share in (group if group[0].is_by_file else group[:1])]
            assert sorted(file for names in lists for file in names) == deal_files(
                FILES[:files], groups, number, 1
            )
            read.update(file for names in lists for file in names)
        assert read == Counter(FILES[:files])


def test_a_group_redistributes_its_files_in_each_epoch() -> None:
    for share in shares(8, 4, 64):
        assert len({tuple(share.deal(epoch)) for epoch in range(5)}) == 5


def test_one_group_is_all_files_in_the_order_that_they_had_without_groups() -> None:
    share = shares(2, 1, 64)[0]
    assert share.group_files == share.files
    assert share.deal(0)[:3] == ["train-00066-of-01024", "train-00656-of-01024", "train-00236-of-01024"]


def test_the_smallest_group_determines_the_steps_per_epoch() -> None:
    dealt = shares(6, 3, 60, 10)
    assert [len(share.group_files.paths) for share in dealt] == [4, 4, 3, 3, 3, 3]
    fewest = min(share.group_files.records for share in dealt)
    assert {share.steps for share in dealt} == {fewest // 20}
    assert {share.local_batch for share in dealt} == {10}


class Records:
    """A folder of nine empty records in three files, and its manifest beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "train"
        self.folder.mkdir()
        for number in range(3):
            self.file(number).write_bytes(bytes(7))
        self.manifest = folder / "train.manifest.json"
        known = {"format": 1, "records": 9, "shards": 3, "seed": 1, "prefix": "train", "classes": ["a", "b"]}
        self.manifest.write_text(json.dumps(known | {"sizes_bytes": [7, 7, 7]}))

    def file(self, number: int) -> Path:
        return self.folder / f"train-{number:05d}-of-00003"

    def load(
        self, images: int = 9, classes: int = 2, groups: int = 1, group: int = 0
    ) -> record_files.RecordFiles:
        return record_files.load_files(str(self.folder), images, classes, groups, group)

    def refuse(self, images: int = 9, classes: int = 2, groups: int = 1, group: int = 0) -> str:
        with pytest.raises(record_files.BadInput) as refusal:
            self.load(images, classes, groups, group)
        return str(refusal.value)


@pytest.fixture
def records(tmp_path: Path) -> Records:
    return Records(tmp_path)


def test_the_names_of_the_files_are_those_of_the_manifest(records: Records) -> None:
    (records.folder / "train-00003-of-00004").touch()
    assert records.load().paths == [str(records.file(number)) for number in range(3)]
    assert records.load().counts == [3, 3, 3]


def test_the_counts_of_files_that_another_program_made_are_those_of_the_manifest(records: Records) -> None:
    known = json.loads(records.manifest.read_text())
    records.manifest.write_text(json.dumps(known | {"file_records": [4, 4, 1]}))
    assert records.load().counts == [4, 4, 1]
    for wrong in ([4, 4, 2], [5, 4], "no"):
        records.manifest.write_text(json.dumps(known | {"file_records": wrong}))
        assert "not a manifest of TFRecords" in records.refuse()


def test_a_staged_folder_has_its_manifest_in_it(records: Records) -> None:
    before = records.load()
    records.manifest.rename(records.folder / ".manifest.json")
    assert records.load() == before


def test_a_node_needs_the_files_of_its_group_alone(records: Records) -> None:
    number = next(
        number for number in range(3) if str(records.file(number)) in records.load().group(1, 2).paths
    )
    records.file(number).unlink()
    assert records.load(groups=2, group=0).records == 9
    line = records.refuse(groups=2, group=1)
    assert f"{records.file(number)}: missing on " in line
    assert line.endswith("; group 1 of 2 reads it; copy the records again")


def test_more_groups_than_files_are_refused(records: Records) -> None:
    assert records.refuse(groups=4).startswith("--file_groups 4 exceeds the 3 files in ")


@pytest.mark.promise("no data of others is used in a shared folder")
@pytest.mark.parametrize("prefix", ["../evil/train", "evil/train", "", "x\0"])
def test_a_manifest_does_not_lead_out_of_its_folder(records: Records, prefix: str) -> None:
    for folder in (records.folder / "evil", records.folder.parent / "evil"):
        folder.mkdir()
        for number in range(3):
            (folder / records.file(number).name).write_bytes(bytes(7))
    known = json.loads(records.manifest.read_text())
    records.manifest.write_text(json.dumps(known | {"prefix": prefix}))
    assert "not a manifest of TFRecords" in records.refuse()


@pytest.mark.promise("no data of others is used in a shared folder")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can play another user")
@pytest.mark.parametrize("what", ["folder", "file", "manifest", "link"])
def test_records_that_another_user_could_have_put_there_are_refused(what: str) -> None:
    with tempfile.TemporaryDirectory(dir="/var") as name:  # /tmp is shared itself
        shared, records = Path(name), Records(Path(name))
        planted = {"file": records.file(1), "manifest": records.manifest}.get(what, records.folder)
        if what == "link":
            planted.rename(shared / "ours")
            planted.symlink_to("ours")
        os.chown(planted, 65534, 65534, follow_symlinks=False)
        assert records.load().records == 9  # where only its owner can write
        shared.chmod(0o1777)
        if what == "link":
            assert f"{planted} is a symbolic link of user 65534" in records.refuse()
        else:
            assert "belongs to user 65534, who can change its contents on " in records.refuse()
        os.chown(planted, 0, 0, follow_symlinks=False)
        assert records.load().records == 9
        records.folder.chmod(0o775)
        os.chown(records.folder, 0, 54321)
        assert f"{records.folder.resolve()} can be changed by a group on " in records.refuse()
        records.folder.chmod(0o755)
        shared.chmod(0o777)
        assert f"{shared} can be changed by anybody on " in records.refuse()


def test_records_that_are_missing_truncated_or_of_another_count_are_refused(records: Records) -> None:
    assert "9 records, but the flags say 1,281,167 images" in records.refuse(1281167)
    assert "2 classes, but --num_label_classes is 3" in records.refuse(classes=3)
    records.file(2).write_bytes(bytes(6))
    assert "train-00002-of-00003: 6 bytes, not 7, on " in records.refuse()
    records.file(2).unlink()
    assert "train-00002-of-00003: missing on " in records.refuse()
    records.manifest.write_text('{"format": 1}')
    assert "not a manifest of TFRecords" in records.refuse()
    records.manifest.write_text('{"format": 2}')
    assert "written by another version of caffe-recipes" in records.refuse()
    records.manifest.unlink()
    assert "manifest.json: cannot be read: No such file" in records.refuse()
