"""Make TFRecords of ImageNet's raw images, with the classes shuffled across the files.

    python imagenet_to_gcs.py --raw_data_dir RAW --local_scratch_dir RECORDS

RAW holds ILSVRC2012_img_train.tar, ILSVRC2012_img_val.tar and synset_labels.txt, which has the class of each
validation image in the order of their names. In place of an archive there may be the folders train/CLASS/ and
validation/. RECORDS gets train/ and validation/, and beside each its manifest. Run the same command again to
resume after an interruption.

It needs caffe-recipes with its extra `data`, and no TensorFlow.
"""

# 2 a i: the name is that of tensorflow/tpu's program, and nothing goes to Google's cloud.

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from caffe_recipes.data.archives import load_archive
from caffe_recipes.data.images import Picture, Pictures, is_image, load_folder, load_labels
from caffe_recipes.data.tfrecords import write_picture_tfrecords
from caffe_recipes.errors import CaffeRecipesError

LABELS = "synset_labels.txt"


def load_training(raw: Path) -> Pictures:
    """Find the training images: of the archive, or of the folder train/. Raises InputError."""
    archive = raw / "ILSVRC2012_img_train.tar"
    return load_archive(archive) if archive.exists() else load_folder(raw / "train")


def load_validation(raw: Path, classes: Sequence[str]) -> Pictures:
    """Find the validation images, in the archive or the folder validation/, with the classes' labels."""
    archive, folder = raw / "ILSVRC2012_img_val.tar", raw / "validation"
    if archive.exists():
        return load_archive(archive, raw / LABELS, classes)
    names = sorted(path.name for path in folder.glob("*") if is_image(path.name) and path.is_file())
    if not names:
        return load_folder(folder, classes)
    labels, known = load_labels(raw / LABELS, names, classes)
    sizes = {name: (folder / name).stat().st_size for name in names}
    pictures = [Picture(name, labels[name], sizes[name], str(folder / name)) for name in names]
    return Pictures(folder, pictures, known)


def make_records(given: argparse.Namespace) -> None:
    """Write both folders of records, or keep them where they are finished. Raises CaffeRecipesError."""
    training = load_training(given.raw_data_dir)
    validation = load_validation(given.raw_data_dir, training.classes or ())
    parts = (("train", training, given.train_shards), ("validation", validation, given.validation_shards))
    given.local_scratch_dir.mkdir(parents=True, exist_ok=True)
    for prefix, found, shards in parts:

        def show(done: int, total: int, prefix: str = prefix) -> None:
            print(f"{prefix}: {done:,} of {total:,} images", flush=True)

        out = given.local_scratch_dir / prefix
        made = write_picture_tfrecords(
            found, out, shards=shards, seed=given.seed, prefix=prefix, workers=given.workers, on_progress=show
        )
        print(
            f"{out}: {made.records:,} images of {len(made.classes or ()):,} classes in {made.shards:,} files"
        )


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Read the flags of the source, and those for other data than ImageNet."""
    parser = _Parser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--raw_data_dir", type=Path, required=True, help="folder of raw images")
    parser.add_argument("--local_scratch_dir", type=Path, required=True, help="folder for the TFRecords")
    parser.add_argument("--train_shards", type=int, default=1024, help="files of training records [1024]")
    parser.add_argument(
        "--validation_shards", type=int, default=128, help="files of validation records [128]"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the shuffle [1]")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes [one for each core]")
    return parser.parse_args(argv)


if __name__ == "__main__":
    try:
        make_records(parse_arguments(sys.argv[1:]))
    except CaffeRecipesError as error:
        print(f"imagenet_to_gcs.py: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
