"""convert_imageset's list of images: lines `path label`, paths beneath a root folder."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from caffe_recipes.data.pictures import Picture, Pictures, check_agree, check_name, parse_label, read_lines
from caffe_recipes.errors import DataError

# A network's file system answers slowly, and many at once.
_THREADS, _AT_ONCE = 16, 512


def load_list(path: Path, root: Path | None = None) -> Pictures:
    """Read a list and look for all its images; a path may hold blanks, and is beneath the list's folder
    unless a `root` is given. Raises DataError for the first bad line or missing image.
    """
    if root is not None and not root.is_dir():
        raise DataError(root, "is no folder that is there", "give the folder of the list's paths with --root")
    base = path.parent if root is None else root
    pictures: list[Picture] = []
    wheres: list[str] = []
    for where, words in read_lines(path):
        pictures.append(_parse(where, words, base, is_rooted=root is not None))
        wheres.append(where)
    if not pictures:
        raise DataError(path, "lists no images", "write a line 'path label' for each")
    # As paths have it, in which './a.jpg' is 'a.jpg'.
    files = (one.path.removeprefix(f"{base}/") for one in pictures)
    check_agree(zip(wheres, files, (one.label for one in pictures), strict=True))
    sized: list[Picture] = []
    bad: list[tuple[str, str, str]] = []
    for where, picture, size in zip(wheres, pictures, _sizes(pictures), strict=True):
        if isinstance(size, str):
            bad.append((where, picture.name, size))
        else:
            sized.append(picture._replace(size_bytes=size))
    if bad:
        where, name, what = bad[0]
        more = f", nor can {len(bad) - 1:,} more be read" if len(bad) > 1 else ""
        raise DataError(where, f"image '{name}' {what}{more}", "mend the list, or give --root")
    return Pictures(path, sized)


def _parse(where: str, words: list[str], root: Path, *, is_rooted: bool) -> Picture:
    if len(words) < 2:
        raise DataError(where, f"'{words[0][:60]}' is not 'path label'", "write an image and its label")
    name, text = words
    label = parse_label(text)
    if label is None:
        raise DataError(
            where, f"label '{text[:20]}' is no whole number from 0", "labels go from 0 to 2^31 - 1"
        )
    check_name(name, where)
    # Caffe writes the two one behind the other, so that even '/n01/a.jpg' is beneath the root.
    return Picture(name, label, 0, str(root / (name.lstrip("/") if is_rooted else name)))


def _sizes(pictures: list[Picture]) -> Iterator[int | str]:
    """Give each image's size, or say what is wrong with it."""
    parts = [pictures[start : start + _AT_ONCE] for start in range(0, len(pictures), _AT_ONCE)]
    with ThreadPoolExecutor(_THREADS) as pool:
        for sizes in pool.map(lambda part: [_size(picture.path) for picture in part], parts):
            yield from sizes


def _size(path: str) -> int | str:
    try:
        found = Path(path).stat()
    except FileNotFoundError:
        return "is not there"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return found.st_size if stat.S_ISREG(found.st_mode) else "is no file"
