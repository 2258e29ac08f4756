"""The LMDBs that a recipe for Caffe trains and tests on."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from caffe_recipes.caffe.datums import open_datums
from caffe_recipes.cluster.staging.file_sets import FileSet, lmdb_set
from caffe_recipes.cluster.staging.relay import DATA
from caffe_recipes.errors import DataError, InputError
from caffe_recipes.recipe.model import Recipe
from caffe_recipes.run.trainer import TrainingData


@dataclass(frozen=True)
class CaffeData(TrainingData):
    """The LMDBs of a recipe, unless its nets name their data."""

    recipe: Recipe

    @property
    def folder(self) -> str | None:
        """The folder of the training LMDB on each node; None if the nets name their data."""
        return self.recipe.data.train.lmdb if self.recipe.reads_lmdb else None

    @property
    def source(self) -> str | None:
        """The folder that the training LMDB is staged from."""
        return self.recipe.data.train.source

    @property
    def test_folder(self) -> str | None:
        """The folder of the test LMDB; None if nothing is tested."""
        is_tested = self.recipe.reads_lmdb and (self.recipe.evaluation is not None or self.tests_on_ranks)
        return self.recipe.data.test.lmdb if is_tested else None

    @property
    def tests_on_ranks(self) -> bool:
        """Whether a solver tests: each rank then opens the test LMDB."""
        return any(phase.test_iter for phase in self.recipe.phases)

    @property
    def mean_files(self) -> tuple[str, ...]:
        """The mean file of training, and that of the tests if ranks test."""
        data = self.recipe.data
        tested = data.transform_of("test").mean_file if self.tests_on_ranks else None
        return tuple(dict.fromkeys(filter(None, (data.transform_of("train").mean_file, tested))))

    def file_sets(
        self, root: Path, names: Sequence[str], source: Path | None, *, is_whole: bool = False
    ) -> list[FileSet]:
        """Return the LMDB, which every host gets whole; nothing if it does not exist."""
        folder, target = root / (source or self.source or ""), self.folder
        if target is None or not (folder / DATA).exists():
            return []
        return [lmdb_set(str(root / target), folder, names, root)]

    def check_source(self, root: Path, given: Path | None) -> None:
        """Raise InputError without an LMDB to stage from; the copies are compared with it."""
        if not (given or self.source):
            what = "names no LMDB to stage from"
            raise InputError(self.recipe.name, what, "give its folder with --lmdb-source")
        folder = root / (given or self.source or "")
        try:
            open_datums(folder).close()
        except DataError as error:
            if given or (folder / DATA).exists():
                raise
            from caffe_recipes.render.scripts import lmdb_hint  # what renders scripts is slow to import

            raise DataError(folder, error.what, lmdb_hint(self.recipe, str(folder))) from None

    @property
    def built(self) -> tuple[str, ...]:
        """The LMDBs that are built if they are missing."""
        if self.recipe.data.prepare is None:
            return ()
        folder = posixpath.dirname(self.recipe.data.test.lmdb)
        return tuple(posixpath.join(folder, name) for name in ("digits_train_lmdb", "digits_val_lmdb"))

    def build(self, folder: Path) -> None:
        """Build the LMDBs of digits in a folder; raises RunFailed if the disk is full."""
        from caffe_recipes.data.digits import build_digits

        build_digits(folder)
