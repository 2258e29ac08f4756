"""A trainer in a container image. The real Apptainer cannot run here: a stand-in accepts its arguments."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from caffe_recipes.cluster.launchers import DEFAULT_LAUNCHER
from caffe_recipes.cluster.launchers.launcher import RankLaunch
from caffe_recipes.cluster.profiles import Container, load_profile
from caffe_recipes.errors import ClusterError, InputError
from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.run.training_plan import find_trainer

if TYPE_CHECKING:
    from tests.run.conftest import Place

# As `apptainer exec [OPTION]... IMAGE PROGRAM...`, whose image is a folder here.
APPTAINER = r"""#!/bin/bash
echo "$(pwd) $*" >>"{root}/contained"
[ "$1" = exec ] && shift
while [ "${{1#-}}" != "$1" ]; do
    case $1 in --bind) shift ;; esac
    shift
done
image=$1
shift
[ -d "$image" ] || {{ echo "FATAL:   could not open image $image: no such file or directory" >&2; exit 255; }}
PATH="$image/bin:$PATH" exec "$@"
"""
PROFILE = """\
name: mine
title: mine
container: {{image: "{image}", options: [--bind, "{root}"]}}
"""


@pytest.fixture
def contained(place: Place, launching: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Make a root without Caffe, and an image that has one in a `bin`."""
    programs, image = tmp_path / "programs", tmp_path / "an image.sif"
    for folder in (programs, image / "bin"):
        folder.mkdir(parents=True)
    (programs / "apptainer").write_text(APPTAINER.format(root=place.root))
    (programs / "apptainer").chmod(0o755)
    (place.root / "caffe").rename(image / "bin" / "caffe")
    (place.root / "mine.yaml").write_text(PROFILE.format(image=image, root=place.root))
    place.edit("trainer: ./caffe", "trainer: caffe")
    monkeypatch.setenv("PATH", str(programs), prepend=":")
    return place


def test_ranks_the_trial_and_the_evaluation_are_in_the_image_and_the_launcher_is_not(
    contained: Place, tmp_path: Path
) -> None:
    place = contained
    assert place.run(profile=str(place.root / "mine.yaml")).outputs
    lines = (place.root / "contained").read_text().splitlines()
    words = f"exec --bind {place.root} {tmp_path}/an image.sif caffe"
    in_root = [
        line.removeprefix(f"{place.root} {words} ") for line in lines if line.startswith(f"{place.root} ")
    ]
    assert len([line for line in in_root if line.startswith("train --solver=prototxt/small/")]) == 2 * 3
    assert len([line for line in in_root if line.startswith("test --model=")]) == 1
    trial = [line for line in lines if not line.startswith(f"{place.root} ")]
    assert len(trial) == 1
    assert trial[0].endswith(f"{words} train --solver=solver_0.prototxt")
    assert "mpiexec" not in "".join(lines)


def test_a_path_is_taken_from_the_caffe_root_in_the_image_too(contained: Place, tmp_path: Path) -> None:
    place = contained
    (tmp_path / "an image.sif/bin/caffe").rename(place.root / "caffe")
    place.edit("trainer: caffe", "trainer: ./caffe")
    assert place.run(profile=str(place.root / "mine.yaml")).outputs
    lines = (place.root / "contained").read_text()
    assert f" {place.root}/caffe train --solver=solver_0" in lines
    assert " ./caffe train --solver=prototxt/small/" in lines


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        ("image", "does not start|fails|FATAL: +could not open image"),
        ("program", "does not start: .*apptainer"),
    ],
)
def test_an_image_or_a_program_that_is_missing_is_found_before_anything_starts(
    contained: Place, tmp_path: Path, spoil: str, message: str
) -> None:
    place = contained
    if spoil == "image":
        (tmp_path / "an image.sif").rename(tmp_path / "gone.sif")
    else:
        (tmp_path / "programs/apptainer").unlink()
    with pytest.raises(ClusterError, match=message) as caught:
        place.run(profile=str(place.root / "mine.yaml"))
    assert "try `apptainer exec --bind" in str(caught.value)
    assert not (place.root / "runs").exists()


def test_the_arguments_of_a_container_come_before_those_of_the_program() -> None:
    container = Container(image="/shared/caffe.sif", program="singularity", options=("--bind", "/shared"))
    argv = RankLaunch(DEFAULT_LAUNCHER, container=container.words).in_container(["caffe", "train"])
    assert argv == ("singularity", "exec", "--bind", "/shared", "/shared/caffe.sif", "caffe", "train")


def test_the_contents_of_an_image_are_not_checked_here(tmp_path: Path) -> None:
    recipe, mpich = load_recipe("digits-local"), load_profile("mpich")
    contained = mpich.model_copy(update={"container": Container(image="/shared/caffe.sif")})
    for trainer in ("caffe-torch", "caffe", "/opt/caffe/build/tools/caffe"):
        given = recipe.model_copy(update={"trainer": trainer})
        assert find_trainer(given).find_program(tmp_path, "", contained) == trainer
    given = recipe.model_copy(update={"trainer": "./caffe"})
    with pytest.raises(InputError, match="no such Caffe binary"):
        find_trainer(given).find_program(tmp_path, "", mpich)
