"""Code beside a recipe runs only with consent, and only as it was when consent was given."""

from __future__ import annotations

import os
import py_compile
import stat
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import BYTECODE_SUFFIXES, EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from caffe_recipes.errors import RecipeError
from caffe_recipes.render.own_code import RUN_CODE, allowing_code, call_beside

STRANGER = 54321
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can play another user")


@pytest.fixture(autouse=True)
def state(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder for the consent record."""
    folder = tmp_path_factory.mktemp("state")
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a recipe's folder whose module records that it is run, and has a helper."""
    (tmp_path / "nets.py").write_text(
        "from pathlib import Path\nimport helper\nPath(__file__).with_name('ran').touch()\n"
        "def own(net):\n    return helper.made + net\n"
    )
    (tmp_path / "helper.py").write_text("made = 'made '\n")
    return tmp_path


def call(folder: Path, name: str = "nets:own") -> object:
    return call_beside(folder, name, "of it", "mine: net.function")


def consent(folder: Path, name: str = "nets:own") -> object:
    with allowing_code("always"):
        made = call(folder, name)
    (folder / "ran").unlink(missing_ok=True)
    return made


def refused(folder: Path, name: str = "nets:own") -> str:
    with pytest.raises(RecipeError) as caught:
        call(folder, name)
    assert not (folder / "ran").exists()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def refused_at_consent(folder: Path) -> str:
    """Return why code is refused although the user asked to run it."""
    with allowing_code("always"):
        return refused(folder)


def records(state: Path) -> list[Path]:
    return [path for path in state.rglob("*") if path.is_file()]


@pytest.mark.promise("nothing read runs")
def test_code_that_was_never_allowed_is_not_run(folder: Path, state: Path) -> None:
    assert "needs the code of 'nets' next to the recipe, which you have not allowed; read it" in refused(
        folder
    )
    assert list(state.iterdir()) == []


def test_consent_remains_valid_for_later_commands(folder: Path) -> None:
    assert consent(folder) == "made of it"
    assert call(folder) == "made of it"


def test_code_allowed_once_leaves_no_record(folder: Path, state: Path) -> None:
    with allowing_code("once"):
        assert call(folder) == "made of it"
    (folder / "ran").unlink()
    assert records(state) == []
    refused(folder)


def test_the_environment_allows_code(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUN_CODE, "1")
    assert call(folder) == "made of it"


@pytest.mark.parametrize("value", ["", "0", "no", "true"])
def test_only_1_in_the_environment_allows_code(
    folder: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv(RUN_CODE, value)
    refused(folder)


@pytest.mark.promise("consent covers the code that was seen")
@pytest.mark.parametrize("file", ["nets.py", "helper.py"])
def test_a_changed_file_needs_consent_again(folder: Path, file: str) -> None:
    consent(folder)
    with (folder / file).open("a") as text:
        text.write("# changed\n")
    assert f"{file} has changed since you allowed it" in refused(folder)
    consent(folder)
    assert call(folder) == "made of it"


def test_a_deleted_file_needs_consent_again(folder: Path) -> None:
    consent(folder)
    (folder / "helper.py").unlink()
    assert "helper.py has changed" in refused(folder)


def test_another_function_of_the_module_needs_its_own_consent(folder: Path) -> None:
    with (folder / "nets.py").open("a") as text:
        text.write("from builtins import print as other\n")
    consent(folder)
    refused(folder, "nets:other")


def test_another_recipe_of_the_folder_keeps_the_consent(folder: Path) -> None:
    (folder / "nets.py").write_text("def own(net):\n    import helper\n    return helper.made + net\n")
    consent(folder)
    (folder / "nets.py").write_text("def own(net):\n    return net\n")
    consent(folder)
    assert call(folder) == "of it"


@pytest.mark.parametrize("name", ["yaml.py", "yaml/__init__.py", "helper/__init__.py"])
def test_a_new_file_that_shadows_another_is_not_run(folder: Path, name: str) -> None:
    (folder / "nets.py").write_text("import helper, yaml\ndef own(net):\n    return yaml.__name__\n")
    consent(folder)
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(f"from pathlib import Path\nPath({str(folder / 'ran')!r}).touch()\n")
    assert f"{name} is code that you have not allowed" in refused(folder)


def test_code_that_catches_a_refusal_is_still_refused(folder: Path) -> None:
    text = "try:\n    import yaml\nexcept ImportError:\n    pass\ndef own(net):\n    return net\n"
    (folder / "nets.py").write_text(text)
    consent(folder)
    (folder / "yaml.py").write_text("")
    assert "yaml.py is code that you have not allowed" in refused(folder)


def test_code_in_a_world_writable_folder_is_refused_before_consent_is_asked_for(
    folder: Path,
) -> None:
    folder.chmod(0o1777)
    assert "anybody can put files into its folder" in refused(folder)


@pytest.mark.promise("code that others could change never runs")
def test_no_code_is_run_in_a_folder_where_anybody_can_put_files(folder: Path) -> None:
    consent(folder)
    what = f".py is not run: anybody can put files into its folder {folder}"
    for mode in (0o1777, 0o777):
        folder.chmod(mode)
        for refusal in (refused_at_consent(folder), refused(folder)):
            assert refusal.endswith(f"{what}; keep the recipe and its code where only you can write")
    folder.chmod(0o755)
    assert call(folder) == "made of it"


@pytest.mark.parametrize("inner", ["helper.py", "helper/__init__.py", "helper/made.py"])
def test_no_code_is_run_below_a_folder_where_anybody_can_put_files(folder: Path, inner: str) -> None:
    (folder / "helper.py").unlink()
    (folder / "nets.py").write_text("import helper.made\ndef own(net):\n    return net\n")
    for name in ("helper/__init__.py", "helper/made.py", inner):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("")
    path = (folder / inner).parent if inner.startswith("helper/") else folder
    path.chmod(0o1777)
    assert f"anybody can put files into its folder {path}" in refused_at_consent(folder)


@pytest.mark.promise("code that others could change never runs")
def test_no_code_that_anybody_can_change_is_run(folder: Path) -> None:
    (folder / "helper.py").chmod(0o666)
    assert "helper.py is not run: anybody can change it" in refused_at_consent(folder)


@pytest.mark.promise("code that others could change never runs")
@as_root
@pytest.mark.parametrize("name", ["nets.py", "helper.py"])
def test_no_code_that_another_user_put_beside_the_recipe_is_run(folder: Path, name: str) -> None:
    """Others could write to the folder before, and the code may catch the error."""
    text = "try:\n    import helper\nexcept Exception:\n    pass\ndef own(net):\n    return net\n"
    (folder / "nets.py").write_text(text)
    os.chown(folder / name, STRANGER, STRANGER)
    assert f"{name} is not run: it belongs to user {STRANGER}, who can" in refused_at_consent(folder)


@pytest.mark.promise("code that others could change never runs")
@as_root
def test_no_code_is_run_through_a_planted_link_or_folder(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    shared = tmp_path_factory.mktemp("shared")
    shared.chmod(0o1777)
    (shared / "link").symlink_to(folder)
    os.chown(shared / "link", STRANGER, STRANGER, follow_symlinks=False)
    assert "is a symbolic link of user" in refused_at_consent(shared / "link")
    (shared / "theirs").mkdir()
    (shared / "theirs/nets.py").write_text("def own(net):\n    return net\n")
    os.chown(shared / "theirs", STRANGER, STRANGER)
    assert f"theirs belongs to user {STRANGER}" in refused_at_consent(shared / "theirs")


@as_root
@pytest.mark.parametrize(
    ("owner", "group", "mode"), [(STRANGER, STRANGER, 0o755), (0, STRANGER, 0o2775), (0, 0, 0o775)]
)
def test_the_code_of_a_colleague_of_a_group_and_of_a_folder_below_tmp_is_run(
    folder: Path, owner: int, group: int, mode: int
) -> None:
    os.chown(folder, owner, group)
    folder.chmod(mode)
    os.chown(folder / "helper.py", owner if owner or not group else 1234, group)
    (folder / "helper.py").chmod(0o664)
    assert consent(folder) == "made of it"
    assert call(folder) == "made of it"


def test_code_in_a_folder_of_one_s_own_below_a_shared_one_is_run(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path_factory.mktemp("shared")
    shared.chmod(0o1777)
    folder.rename(shared / "mine")
    (shared / "link").symlink_to("mine")
    monkeypatch.chdir(shared)
    for path in (shared / "mine", Path("mine"), Path("link"), Path("mine/../link")):
        assert consent(path) == "made of it"
    assert call(shared / "mine") == "made of it"


@pytest.mark.promise("consent covers the code that was seen")
def test_bytecode_is_never_run(folder: Path) -> None:
    consent(folder)
    evil = folder / "evil.py"
    evil.write_text("made = 'evil '\n")
    os.utime(evil, (1, 1))
    os.utime(folder / "helper.py", (1, 1))
    cached = folder / "__pycache__" / f"helper.{sys.implementation.cache_tag}.pyc"
    py_compile.compile(
        str(evil), cfile=str(cached), invalidation_mode=py_compile.PycInvalidationMode.TIMESTAMP
    )
    evil.unlink()
    assert call(folder) == "made of it"


_SUFFIXES = [*EXTENSION_SUFFIXES, *BYTECODE_SUFFIXES]


@pytest.mark.promise("consent covers the code that was seen")
@pytest.mark.parametrize("suffix", _SUFFIXES)
@pytest.mark.parametrize("name", ["pkg.inner", "plain.inner", "pkg.below", "helper.inner"])
def test_a_module_without_source_is_never_run(folder: Path, name: str, suffix: str) -> None:
    parent, _, inner = name.partition(".")
    where = folder / parent
    if parent == "helper":  # a module that names a folder for its submodules
        (folder / "helper.py").write_text(f"__path__ = [{str(folder / 'names')!r}]\n")
        where = folder / "names"
    where.mkdir()
    if parent == "pkg":
        (where / "__init__.py").touch()
    (folder / "nets.py").write_text(f"def own(net):\n    import {name}\n    return net\n")
    if inner == "below":
        (where / inner).mkdir()
    place_without_source(folder, where / inner / "__init__" if inner == "below" else where / inner, suffix)
    if inner == "below":  # a folder without source is a namespace, in which nothing was run
        assert consent(folder) == "of it"
        assert not (folder / "ran").exists()
    else:
        shown = f"{where.name}/inner{suffix}"
        assert refused_at_consent(folder).endswith(
            f"it imports '{name}', but {shown} is not source; put its source next to the recipe"
        )


@pytest.mark.parametrize("suffix", _SUFFIXES)
@pytest.mark.parametrize("name", ["pkg", "strange"])
def test_no_module_without_source_is_run_where_the_folder_is_in_the_path(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, suffix: str
) -> None:
    """Python would find it there, as PYTHONPATH or `python -m` names the folder."""
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    (folder / "nets.py").write_text(f"import {name}\ndef own(net):\n    return net\n")
    place_without_source(folder, folder / name, suffix)
    assert f"it imports '{name}', which is neither next to the recipe nor installed" in refused_at_consent(
        folder
    )


@pytest.mark.parametrize("entry", ["folder", "link"])
def test_a_folder_in_the_path_is_no_less_checked(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, entry: str
) -> None:
    (folder / "plain").mkdir()
    (folder / "plain/deep.py").write_text("made = 1\n")
    link = tmp_path_factory.mktemp("links") / "link"
    link.symlink_to(folder)
    monkeypatch.setattr(sys, "path", [str(folder if entry == "folder" else link), *sys.path])
    (folder / "nets.py").write_text("from plain import deep\ndef own(net):\n    return net\n")
    assert consent(folder) == "of it"
    (folder / "plain/deep.py").write_text("made = 2\n")
    assert "plain/deep.py has changed" in refused(folder)


def test_an_installed_namespace_gets_no_module_from_beside_the_recipe(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path_factory.mktemp("installed")
    (installed / "shared_names").mkdir()
    (installed / "shared_names/theirs.py").write_text("made = 'theirs '\n")
    (folder / "shared_names").mkdir()
    (folder / "shared_names/evil.py").write_text(f"open({str(folder / 'ran')!r}, 'w')\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(installed)])
    text = f"from shared_names import theirs\nimport sys\nsys.path.insert(0, {str(folder)!r})\n"
    own = "def own(net):\n    return theirs.made + net\n"
    (folder / "nets.py").write_text(f"{text}{own}")
    assert consent(folder) == "theirs of it"
    (folder / "nets.py").write_text(f"{text}from shared_names import evil\n{own}")
    message = refused_at_consent(folder)
    assert "it imports 'shared_names.evil', which is neither next to the recipe nor installed" in message


def test_a_submodule_that_does_not_exist_is_named(folder: Path) -> None:
    (folder / "pkg").mkdir()
    (folder / "pkg/__init__.py").touch()
    (folder / "nets.py").write_text("import pkg.inner\ndef own(net):\n    return net\n")
    assert "No module named 'pkg.inner'" in refused_at_consent(folder)


def place_without_source(folder: Path, base: Path, suffix: str) -> None:
    """Put a module that records that it is run at a path without its suffix; only `.pyc` files would run."""
    source = folder.parent / "evil.py"
    source.write_text(f"from pathlib import Path\nPath({str(folder / 'ran')!r}).touch()\n")
    py_compile.compile(str(source), cfile=f"{base}{suffix}")
    source.unlink()


@pytest.mark.promise("consent covers the code that was seen")
@pytest.mark.parametrize(
    "name", ["code:interact", "builtins:input", "os.path:join", "click:echo", "caffe_recipes.cli.main:main"]
)
def test_installed_modules_are_not_used(folder: Path, name: str) -> None:
    message = refused(folder, name)
    root, module = name.partition(":")[0].partition(".")[0], name.partition(":")[0]
    assert (
        f"no module '{root}' next to the recipe; for an installed module, write a file there with" in message
    )
    assert f"`from {module}" in message
    with pytest.raises(RecipeError, match="no module"):
        consent(folder, name)


def test_a_folder_that_the_code_adds_to_the_path_is_not_used(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, state: Path
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "strange.py").write_text("")
    text = (
        f"import sys\nsys.path.insert(0, {str(elsewhere)!r})\nimport strange\ndef own(net):\n    return net\n"
    )
    (folder / "nets.py").write_text(text)
    with pytest.raises(RecipeError, match="it imports 'strange', which is neither next to the recipe"):
        consent(folder)
    assert records(state) == []


@pytest.mark.promise("consent covers the code that was seen")
@pytest.mark.parametrize("entry", ["", "."])
def test_the_current_folder_is_not_used(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, entry: str
) -> None:
    here = tmp_path_factory.mktemp("here")
    (here / "helper_of_here.py").write_text("")
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", [entry, *sys.path])
    (folder / "nets.py").write_text("import helper_of_here\ndef own(net):\n    return net\n")
    with pytest.raises(RecipeError, match="it imports 'helper_of_here'"):
        consent(folder)


def test_no_module_of_the_code_stays_loaded(folder: Path) -> None:
    import yaml

    (folder / "yaml.py").write_text("mine = 'mine '\n")
    (folder / "nets.py").write_text("import yaml\ndef own(net):\n    return yaml.mine + net\n")
    before, path = dict(sys.modules), list(sys.path)
    assert consent(folder) == "mine of it"
    assert sys.modules["yaml"] is yaml
    assert (set(sys.modules) - set(before), sys.path) == (set(), path)


def test_packages_and_folders_beside_the_recipe_are_found(folder: Path) -> None:
    for name in ("pkg/__init__.py", "pkg/inner.py", "plain/deep.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("")
    (folder / "pkg/inner.py").write_text("from . import __name__ as name\nfrom plain import deep\n")
    (folder / "pkg/__init__.py").write_text(
        "def own(net):\n    from .inner import name\n    return name + net\n"
    )
    assert consent(folder, "pkg:own") == "pkgof it"
    assert call(folder, "pkg:own") == "pkgof it"
    (folder / "plain/deep.py").write_text("changed = 1\n")
    assert "plain/deep.py has changed" in refused(folder, "pkg:own")


def test_the_record_is_readable_by_its_owner_alone(folder: Path, state: Path) -> None:
    consent(folder)
    (record,) = records(state)
    assert stat.S_IMODE(record.stat().st_mode) == 0o600
    assert {stat.S_IMODE(each.stat().st_mode) for each in (record.parent, record.parent.parent)} == {0o700}


@pytest.mark.promise("consent covers the code that was seen")
@pytest.mark.parametrize("place", ["record", "its folder", "the folder above"])
def test_a_consent_record_that_others_can_write_is_not_trusted(folder: Path, state: Path, place: str) -> None:
    consent(folder)
    (record,) = records(state)
    path = {"record": record, "its folder": record.parent, "the folder above": record.parent.parent}[place]
    path.chmod(0o777 if path.is_dir() else 0o666)
    refused(folder)


def test_a_linked_consent_record_is_not_trusted(folder: Path, state: Path, tmp_path: Path) -> None:
    consent(folder)
    (record,) = records(state)
    record.rename(tmp_path / "moved")
    record.symlink_to(tmp_path / "moved")
    refused(folder)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"files": 3}', "[" * 100_000])
def test_a_damaged_consent_record_needs_consent_again(folder: Path, state: Path, text: str) -> None:
    consent(folder)
    (record,) = records(state)
    record.write_text(text)
    refused(folder)


def test_the_record_of_one_folder_does_not_count_for_another(folder: Path, tmp_path: Path) -> None:
    consent(folder)
    other = tmp_path / "other"
    other.mkdir()
    for name in ("nets.py", "helper.py"):
        (other / name).write_bytes((folder / name).read_bytes())
    refused(other)


def test_a_consent_that_cannot_be_recorded_is_reported(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    warnings: list[str] = []
    with allowing_code("always", warn=warnings.append):
        assert call(folder) == "made of it"
    assert warnings == ["cannot record your consent to nets:own: Not a directory"]


def test_several_threads_may_ask_at_once(folder: Path) -> None:
    (folder / "helper.py").write_text("import time\ntime.sleep(0.02)\nmade = 'made '\n")
    with allowing_code("once"), ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda _: call(folder), range(16))) == ["made of it"] * 16
    assert not {"nets", "helper"} & sys.modules.keys()
