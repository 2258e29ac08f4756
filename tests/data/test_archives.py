from __future__ import annotations

import gzip
import tarfile
from pathlib import Path

import pytest

from caffe_recipes.caffe.datums import open_datums
from caffe_recipes.data.archives import is_archive, load_archive
from caffe_recipes.data.build import build_lmdb, plan_build
from caffe_recipes.data.images import ConversionSettings, Pictures, load_folder, picture_reader
from caffe_recipes.errors import DataError
from tests.data.conftest import Link, encode, pack, records

IMAGES = {
    f"{synset}/{synset}_{number}.JPEG": encode(".jpg", 20 + number % 7, 30, number)
    for synset, numbers in (("n03", (10, 9)), ("n01", (1, 2, 3)), ("n02", (5,)))
    for number in numbers
}


def train_tar(kind: int = tarfile.GNU_FORMAT) -> bytes:
    """Pack a tar of each class's tar, as ILSVRC2012_img_train.tar is."""
    synsets = dict.fromkeys(name.split("/")[0] for name in IMAGES)
    inner = {
        f"{synset}.tar": pack(
            {name.split("/")[1]: data for name, data in IMAGES.items() if name.startswith(synset)}, kind
        )
        for synset in synsets
    }
    return pack(inner, kind)


def write(folder: Path, data: bytes, name: str = "images.tar") -> Path:
    (folder / name).write_bytes(data)
    return folder / name


def contents(found: Pictures) -> list[tuple[str, int, bytes]]:
    with picture_reader() as read:
        return [(picture.name, picture.label, read(picture)) for picture in found.pictures]


@pytest.mark.parametrize("kind", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_a_tar_of_class_tars_is_read_in_place_with_sorted_synsets_as_labels(
    tmp_path: Path, kind: int
) -> None:
    found = load_archive(write(tmp_path, train_tar(kind)))
    assert found.classes == ("n01", "n02", "n03")
    labels = {"n01": 0, "n02": 1, "n03": 2}
    assert contents(found) == [(name, labels[name[:3]], IMAGES[name]) for name in sorted(IMAGES)]
    assert [path.name for path in tmp_path.iterdir()] == ["images.tar"]


def test_a_tar_of_class_folders_is_read_in_place_too(tmp_path: Path) -> None:
    plain = load_archive(write(tmp_path, pack({f"./{name}": data for name, data in IMAGES.items()})))
    assert contents(plain) == contents(load_archive(write(tmp_path, train_tar(), "other.tar")))


def test_an_archive_and_its_folder_become_the_same_records(tmp_path: Path) -> None:
    for name, data in IMAGES.items():
        (tmp_path / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "images" / name).write_bytes(data)
    made = []
    for found in (load_archive(write(tmp_path, train_tar())), load_folder(tmp_path / "images")):
        out = tmp_path / f"{found.where.name}.lmdb"
        made.append(
            build_lmdb(plan_build(found, ConversionSettings(shorter_side_px=16), seed=4), out, workers=2)
        )
        assert len(records(out)) == 6
    assert made[0] == made[1]


def test_a_tar_of_images_alone_takes_its_labels_from_a_list(tmp_path: Path) -> None:
    images = {f"ILSVRC2012_val_{number:08d}.JPEG": encode(".jpg", 9, 9, number) for number in (3, 1, 2)}
    archive = write(tmp_path, pack(images))
    labels = write(
        tmp_path, b"".join(f"{name} {index}\n".encode() for index, name in enumerate(images)), "val.txt"
    )
    build_lmdb(plan_build(load_archive(archive, labels), ConversionSettings()), tmp_path / "lmdb")
    with open_datums(tmp_path / "lmdb") as datums:
        assert [(key[9:].decode(), datum.label, datum.data) for key, datum in datums] == [
            (name, list(images).index(name), images[name]) for name in sorted(images)
        ]
    with pytest.raises(
        DataError, match=r"does not give the classes of its images, e\.g\. 'ILSVRC2012_val_00000001"
    ):
        load_archive(archive)


def test_a_list_of_classes_gives_the_labels(tmp_path: Path) -> None:
    found = load_archive(write(tmp_path, train_tar()), known=("n03", "n00", "n02", "n01"))
    assert {picture.name[:3]: picture.label for picture in found.pictures} == {"n01": 3, "n02": 2, "n03": 0}


def test_a_broken_image_is_named_with_its_archive(tmp_path: Path) -> None:
    archive = write(tmp_path, pack({"a/1.jpg": b"<html>"}))
    with pytest.raises(DataError, match=r"images.tar: a/1.jpg: is not an image that OpenCV can decode"):
        build_lmdb(plan_build(load_archive(archive), ConversionSettings()), tmp_path / "lmdb")


@pytest.mark.parametrize("part", [0.2, 0.5, 0.7])
def test_an_archive_that_is_truncated_is_refused(tmp_path: Path, part: float) -> None:
    whole = train_tar().rstrip(b"\0")
    with pytest.raises(DataError, match=r"images.tar: is (truncated|not a complete tar)"):
        load_archive(write(tmp_path, whole[: int(len(whole) * part)]))


@pytest.mark.parametrize(
    ("length", "what"),
    [
        (2048 + 100, "it ends in a header"),
        (3072, "its end marker, two blocks of zeros, is missing"),  # at a member's boundary
        (3072 + 512, "its end marker, two blocks of zeros, is missing"),
    ],
)
def test_a_tar_that_is_cut_between_its_images_is_refused(tmp_path: Path, length: int, what: str) -> None:
    cut = pack({f"{number}.jpg": b"x" * 512 for number in range(3)})[:length]
    labels = write(tmp_path, b"".join(b"%d.jpg 0\n" % number for number in range(3)), "val.txt")
    with pytest.raises(DataError, match=rf"images\.tar: is truncated: {what}; copy the archive again"):
        load_archive(write(tmp_path, cut), labels)
    train = pack({"n01.tar": cut, "n02.tar": pack({"1.jpg": b"x"})})
    with pytest.raises(DataError, match=rf"images\.tar: n01\.tar: is truncated: {what}; copy"):
        load_archive(write(tmp_path, train))


def test_a_header_that_is_damaged_is_not_an_end(tmp_path: Path) -> None:
    whole = bytearray(pack({f"a/{number}.jpg": b"x" * 512 for number in range(3)}))
    whole[2048 + 10] ^= 1
    with pytest.raises(DataError, match=r"images\.tar: is damaged: no header found at byte 2,048; copy"):
        load_archive(write(tmp_path, bytes(whole)))


def test_a_file_that_is_not_an_archive_of_images_is_described(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is gzip-compressed; decompress it"):
        load_archive(write(tmp_path, gzip.compress(train_tar())))
    with pytest.raises(DataError, match="is not a complete tar"):
        load_archive(write(tmp_path, b"hello" * 1000))
    with pytest.raises(DataError, match="contains no images"):
        load_archive(write(tmp_path, pack({"readme.txt": b"hello"})))
    with pytest.raises(DataError, match="cannot be read: No such file"):
        load_archive(tmp_path / "none.tar")


def test_members_that_are_not_images_are_skipped_and_reported(tmp_path: Path) -> None:
    inner = pack({"1.gif": b"GIF8", "._1.jpg": b"x"})
    found = load_archive(write(tmp_path, pack({"readme.txt": b"hello", "n01.tar": inner})))
    assert [picture.name for picture in found.pictures] == ["n01/1.gif"]
    assert found.ignored == ("n01/._1.jpg", "readme.txt")


def test_an_archive_is_recognised_by_its_name_or_its_contents(tmp_path: Path) -> None:
    assert is_archive(write(tmp_path, train_tar(), "images"))
    assert is_archive(write(tmp_path, b"", "x.tar"))
    assert not is_archive(write(tmp_path, b"a.jpg 1\n", "list"))


def test_a_tar_whose_classes_are_a_level_deeper_is_refused(tmp_path: Path) -> None:
    archive = write(tmp_path, pack({f"imgs/{name}": data for name, data in IMAGES.items()}))
    with pytest.raises(
        DataError, match=r"images.tar: class 'imgs' contains only folders; give a tar of the contents"
    ):
        load_archive(archive)


def test_an_image_that_links_out_of_the_tar_is_refused_and_other_links_are_reported(
    tmp_path: Path,
) -> None:
    files: dict[str, bytes | Link] = {"n01/a.jpg": b"a", "n01/notes": Link("gone"), "n02/b.jpg": b"b"}
    assert load_archive(write(tmp_path, pack(files))).ignored == ("n01/notes",)
    for link in (Link("/data/b.jpg"), Link("n02/gone.jpg", is_hard=True), Link("b.jpg")):
        with pytest.raises(DataError, match=r"'n02/b\.jpg' is not a regular file or a link .*--dereference"):
            load_archive(write(tmp_path, pack({**files, "n02/b.jpg": link})))
