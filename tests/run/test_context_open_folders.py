"""World-writable folders below the Caffe root: nothing in them is used."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from caffe_recipes.cluster.commands import COMMAND_S, Completed
from caffe_recipes.cluster.hosts import LocalHost
from caffe_recipes.errors import InputError
from caffe_recipes.recipe.source import load_any_recipe, load_recipe
from caffe_recipes.run.context import check_own_root
from caffe_recipes.run.folders import own_paths
from caffe_recipes.run.monitor.cancel import CancelOptions, cancel_run

if TYPE_CHECKING:
    from tests.run.conftest import Place

HINT = "make it writable only by you, or choose another"
MAIN = "from caffe_recipes.cli.main import main; main()"


def others_write(top: Path) -> list[str]:
    """Return the files and folders in which anybody can write."""
    paths = (path for path in top.rglob("*") if not path.is_symlink())
    return [str(path.relative_to(top)) for path in paths if path.stat().st_mode & 0o002]


@pytest.mark.promise("nothing is run or obeyed that others could change")
@pytest.mark.parametrize(
    ("folder", "mode"),
    [
        ("build/tools", 0o777),
        ("prototxt/small", 0o777),
        ("runs", 0o777),
        ("runs", 0o1777),
        ("runs/small-1", 0o777),
        ("runs/small-1/snapshots", 0o777),
        ("logs", 0o1777),
        ("logs/small", 0o777),
    ],
)
def test_nothing_is_run_or_read_in_a_folder_where_another_user_can_put_files(
    place: Place, folder: str, mode: int
) -> None:
    for name in ("build/tools", "runs/small-1/snapshots", folder):
        (place.root / name).mkdir(parents=True, exist_ok=True)
    (place.root / "caffe").rename(place.root / "build/tools/caffe")
    place.edit("trainer: ./caffe", "trainer: build/tools/caffe")
    check_own_root(place.root, own_paths(place.root, load_recipe(place.recipe)))
    (place.root / folder).chmod(mode)
    what = f"contains {folder}, which can be changed by anybody"
    assert place.call() == (2, "", f"Error: {place.root}: {what}; {HINT}\n")


@pytest.mark.promise("nothing is run or obeyed that others could change")
@pytest.mark.parametrize(
    "name",
    [
        *("caffe", "hostfile", "runs/small-1/journal.jsonl"),
        *("prototxt/small/solver_cyc1.prototxt", "prototxt/small/train_val.prototxt"),
    ],
)
def test_no_world_writable_file_is_run_or_read(place: Place, name: str) -> None:
    (place.root / name).parent.mkdir(parents=True, exist_ok=True)
    (place.root / name).touch()
    (place.root / name).chmod(0o777)
    assert place.call() == (
        2,
        "",
        f"Error: {place.root}: contains {name}, which can be changed by anybody; {HINT}\n",
    )


@pytest.mark.promise("nothing is run or obeyed that others could change")
def test_a_trainer_elsewhere_that_anybody_can_exchange_is_not_run(place: Place) -> None:
    tools = place.root.parent / "tools"
    tools.mkdir()
    (place.root / "caffe").rename(tools / "caffe")
    tools.chmod(0o777)
    code, _, error = place.call("--caffe", str(tools / "caffe"))
    assert (code, error.count("\n")) == (2, 1)
    assert f"is used with {tools}, which can be changed by anybody; " in error


@pytest.mark.promise("nothing is run or obeyed that others could change")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can play another user")
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("- {name: init, net", "- {name: init, weights: THEIRS, net"),
        ("mean_value: [104, 117, 123]", "mean_file: THEIRS"),
    ],
)
def test_no_weights_and_no_mean_of_another_user_in_a_shared_folder_are_used(
    place: Place, shared: Path, before: str, after: str
) -> None:
    theirs = shared / "theirs.caffemodel"
    theirs.touch()
    os.chown(theirs, 65534, 65534)
    place.edit(before, after.replace("THEIRS", str(theirs)))
    code, _, error = place.call()
    assert (code, error.count("\n")) == (2, 1)
    what = f"is used with {theirs}, which belongs to user nobody (65534), who can change its contents"
    assert error == f"Error: {place.root}: {what}; use a copy in a folder of your own\n"


@pytest.mark.promise("a check cannot be evaded")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can play another user")
def test_what_anybody_could_create_later_is_refused(place: Place) -> None:
    shared = place.root.parent / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    check_own_root(place.root, [place.root / "gone.caffemodel"])
    message = "gone, which does not exist, and anybody could create it; create it first, or use a folder of"
    with pytest.raises(InputError, match=message):
        check_own_root(place.root, [shared / "gone"])


@pytest.mark.parametrize(("owner", "name"), [(65534, "nobody"), (54321, "54321")])
def test_only_the_owner_of_a_file_is_asked_to_change_its_mode(owner: int, name: str) -> None:
    with tempfile.TemporaryDirectory(dir="/var") as root, tempfile.TemporaryDirectory(dir="/var") as other:
        theirs = Path(other) / "theirs.caffemodel"
        theirs.touch()
        theirs.chmod(0o666)
        what = f"^{root}: is used with {theirs}, which can be changed by anybody; "
        with pytest.raises(InputError, match=f"{what}{HINT}$"):
            check_own_root(Path(root), [Path(root) / "hostfile", theirs])
        for path in (Path(other), theirs):
            os.chown(path, owner, owner)
        ask = f"ask user {name} to make it writable only by its owner"
        with pytest.raises(InputError, match=f"{what}use a copy in a folder of your own, or {ask}$"):
            check_own_root(Path(root), [Path(root) / "hostfile", theirs])


@pytest.mark.promise("nothing is run or obeyed that others could change")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can play another user")
@pytest.mark.parametrize("key", ["prototxt", "prototxt: mine.prototxt, test_prototxt"])
def test_no_net_of_another_user_is_trained(place: Place, shared: Path, key: str) -> None:
    net = shared / "net.prototxt"
    net.write_text('layer { name: "a" type: "Input" top: "a" }\n')
    os.chown(net, 65534, 65534)
    place.edit("{name: Small, builder: resnet_small,", f"{{name: Small, {key}: {net},")
    paths = own_paths(place.root, load_recipe(place.recipe))
    with pytest.raises(InputError, match=rf"is used with {net}, which belongs to user nobody"):
        check_own_root(place.root, paths)


@pytest.mark.promise("nothing is run or obeyed that others could change")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can play another user")
def test_no_image_of_another_user_is_run(place: Place, shared: Path) -> None:
    image = shared / "caffe.sif"
    image.touch()
    os.chown(image, 65534, 65534)
    profile = place.root / "boxed.yaml"
    profile.write_text(f"name: boxed\ntitle: in a container\ncontainer: {{image: {image}}}\n")
    code, _, error = place.call("--profile", str(profile))
    assert (code, error.count("\n")) == (2, 1)
    assert f"is used with {image}, which belongs to user nobody" in error


@pytest.mark.promise("nothing is run or obeyed that others could change")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can play another user")
def test_no_programs_of_another_user_in_a_shared_folder_are_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = tmp_path / "shared/theirs"
    theirs.mkdir(parents=True)
    (tmp_path / "shared").chmod(0o1777)
    (theirs / "resnet_main.py").touch()
    monkeypatch.setenv("RESNET_DIR", str(theirs))
    recipe = load_any_recipe("tf-digits-local")
    check_own_root(tmp_path, own_paths(tmp_path, recipe))
    (theirs / "resnet_main.py").chmod(0o666)
    with pytest.raises(InputError, match=r"resnet_main\.py, which can be changed by anybody"):
        check_own_root(tmp_path, own_paths(tmp_path, recipe))
    (theirs / "resnet_main.py").chmod(0o644)
    cache = theirs / "__pycache__"
    cache.mkdir()
    (cache / "resnet_main.cpython-311.pyc").touch()
    for path in (cache / "resnet_main.cpython-311.pyc", cache):
        path.chmod(0o777)
        with pytest.raises(InputError, match=rf"{path.name}, which can be changed by anybody"):
            check_own_root(tmp_path, own_paths(tmp_path, recipe))
        path.chmod(0o755)
    os.chown(theirs, 65534, 65534)
    with pytest.raises(InputError, match="theirs, which belongs to user nobody"):
        check_own_root(tmp_path, own_paths(tmp_path, recipe))


@pytest.mark.promise("nothing is run or obeyed that others could change")
def test_no_run_is_cancelled_whose_journal_anybody_can_write(place: Place) -> None:
    (place.root / "runs/small-1").mkdir(parents=True)
    (place.root / "runs").chmod(0o777)
    with pytest.raises(InputError, match="contains runs, which can be changed by anybody"):
        cancel_run("small-1", CancelOptions(str(place.root)), print)


def call_with_umask(place: Place, umask: str) -> None:
    script = f'umask {umask}; exec "$0" -c "$1" run small.yaml'
    argv = ["sh", "-c", script, sys.executable, MAIN]
    done = subprocess.run(argv, cwd=place.root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.promise("our files are open to nobody else")
def test_a_run_under_an_open_umask_leaves_nothing_that_others_can_write(place: Place) -> None:
    call_with_umask(place, "000")
    assert others_write(place.root) == []
    assert (place.root / "runs/small-1").stat().st_mode & 0o777 == 0o755
    call_with_umask(place, "000")


def test_a_run_under_a_umask_for_a_group_leaves_its_folders_to_the_group(place: Place) -> None:
    call_with_umask(place, "002")
    for name in ("runs", "runs/small-1", "logs/small", "prototxt/small"):
        assert (place.root / name).stat().st_mode & 0o777 == 0o775


@pytest.mark.promise("our files are open to nobody else")
@pytest.mark.parametrize(("umask", "mode"), [("000", 0o755), ("002", 0o775), ("027", 0o750)])
def test_snapshot_folders_are_not_open_to_all_whatever_the_umask_of_a_login(
    place: Place, umask: str, mode: int
) -> None:
    class Login(LocalHost):
        def run(self, argv: Sequence[str], timeout_s: float = COMMAND_S) -> Completed:
            return super().run(["sh", "-c", f'umask {umask}; exec "$@"', "sh", *argv], timeout_s)

    place.edit("tmp/small_init", "deep/folder/small_init")
    place.connect = lambda *_: Login()
    assert place.run().outputs
    for folder in ("deep", "deep/folder"):
        assert (place.root / folder).stat().st_mode & 0o777 == mode


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can play another user")
def test_files_of_a_group_member_in_a_shared_root_are_used() -> None:
    with tempfile.TemporaryDirectory(dir="/var") as name:
        for folder in ("runs/small-1/snapshots", "logs/small"):
            (Path(name) / folder).mkdir(parents=True)
        for path in (Path(name), *Path(name).rglob("*")):
            os.chown(path, 0 if path == Path(name) else 65534, 54321)
            path.chmod(0o2775)
        check_own_root(Path(name), [Path(name) / "runs/small-1/snapshots", Path(name) / "logs/small"])
