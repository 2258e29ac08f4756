"""Build TFRecords from ImageNet's raw images, with the classes shuffled across the files.

    python imagenet_to_gcs.py --raw_data_dir RAW --local_scratch_dir RECORDS

RAW contains ILSVRC2012_img_train.tar, ILSVRC2012_img_val.tar and synset_labels.txt, which lists the class of
each validation image in the order of the file names. Folders train/CLASS/ and validation/ may replace the
archives. The output is RECORDS/train/ and RECORDS/validation/, each with its manifest beside it. Run the same
command again to resume after an interruption.

The program needs caffe-recipes with its extra `data`, but not TensorFlow.
"""

# 2 a i: the name is that of tensorflow/tpu's program, but nothing is uploaded to Google Cloud.

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
    """Find the training images, in the archive or the folder train/. Raises InputError."""
    archive = raw / "ILSVRC2012_img_train.tar"
    return load_archive(archive) if archive.exists() else load_folder(raw / "train")


def load_validation(raw: Path, classes: Sequence[str]) -> Pictures:
    """Find the validation images, in the archive or the folder validation/, and their labels."""
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


def make_records(options: argparse.Namespace) -> None:
    """Write both folders of records, unless they are already complete. Raises CaffeRecipesError."""
    training = load_training(options.raw_data_dir)
    validation = load_validation(options.raw_data_dir, training.classes or ())
    parts = (("train", training, options.train_shards), ("validation", validation, options.validation_shards))
    for prefix, found, shards in parts:

        def show(done: int, total: int, prefix: str = prefix) -> None:
            print(f"{prefix}: {done:,} of {total:,} images", flush=True)

        out = options.local_scratch_dir / prefix
        made = write_picture_tfrecords(
            found,
            out,
            shards=shards,
            seed=options.seed,
            prefix=prefix,
            workers=options.workers,
            on_progress=show,
        )
        print(
            f"{out}: {made.records:,} images of {len(made.classes or ()):,} classes in {made.shards:,} files"
        )


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the flags: those of the published program, and some for data other than ImageNet."""
    parser = _Parser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--raw_data_dir", type=Path, required=True, help="folder of raw images")
    parser.add_argument("--local_scratch_dir", type=Path, required=True, help="folder for the TFRecords")
    parser.add_argument("--train_shards", type=int, default=1024, help="number of training files [1024]")
    parser.add_argument("--validation_shards", type=int, default=128, help="number of validation files [128]")
    parser.add_argument("--seed", type=int, default=1, help="seed of the shuffle [1]")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="worker processes [one per core]")
    return parser.parse_args(argv)


if __name__ == "__main__":
    try:
        make_records(parse_arguments(sys.argv[1:]))
    except CaffeRecipesError as error:
        print(f"imagenet_to_gcs.py: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
