"""What an argument names: recipes before folders and files of that name; and errors about unknown ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from caffe_recipes.errors import InputError
from caffe_recipes.recipe.shipped import shipped_recipes
from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.review.naming import find_named, nothing_named, recipe_named, require_named, shipped_names


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_names_that_ship_are_those_that_load() -> None:
    assert shipped_names() == sorted(shipped_recipes())


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("digits-local", "recipe"),
        ("./digits-local", "folder"),
        ("digits-local/", "folder"),
        ("mine.yaml", "recipe"),
        ("mine.yaml:train_val", "net"),
        ("family.yaml", "recipe"),
        ("family.yaml:row", "recipe"),
        ("family.yaml:row:train_val", "net"),
        ("paper-t2-8192-256n", "recipe"),
        ("paper-t2-8192-256n:train_val", "net"),
        ("digits-local:", "net"),
        ("net.prototxt", "file"),
        ("bare", "file"),
        ("digits-local:x", "net"),
        ("odd:name", "file"),
        (".", "folder"),
        ("folder.yaml", "folder"),
        ("none.yaml", None),
        ("none.yaml:net", None),
        ("nothing", None),
        ("HEAD:net.prototxt", None),
        ("a" * 5000, None),
        ("nul\0", None),
        ("", None),
    ],
)
def test_arguments_are_recognised_as_recipe_family_file_or_folder(
    here: Path, text: str, kind: str | None
) -> None:
    for folder in ("digits-local", "folder.yaml"):
        (here / folder).mkdir()
    for file in ("mine.yaml", "net.prototxt", "bare", "odd:name"):
        (here / file).touch()
    (here / "family.yaml").write_text("family: a\n")
    named = find_named(text)
    assert (named.kind if named else None) == kind


def test_a_net_is_named_with_its_recipe(here: Path) -> None:
    (here / "mine.yaml").touch()
    named = find_named("mine.yaml:train_val")
    assert named is not None
    assert (named.path, named.net) == ("mine.yaml", "train_val")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("solver_a.pt", "solver_a.pt: no such file; did you mean 'solver_b.pt'?"),
        ("sub/none.prototxt", "sub/none.prototxt: no such file; check the path"),
        ("mine.yaml", "mine.yaml: no such file; check the path"),
        ("digits-lokal", "'digits-lokal' is not a recipe, file or folder; did you mean 'digits-local'?"),
        ("v1.2", "'v1.2' is not a recipe, file or folder; `caffe-recipes recipes` lists the recipes"),
        (
            "HEAD:a.prototxt",
            "'HEAD:a.prototxt' is not a recipe, file or folder; `caffe-recipes recipes` lists",
        ),
    ],
)
def test_an_argument_that_names_nothing_is_reported_as_what_it_looks_like(
    here: Path, text: str, expected: str
) -> None:
    (here / "solver_b.pt").touch()
    assert str(nothing_named(text)).startswith(expected)


def test_an_argument_of_another_kind_is_reported_as_that_kind(here: Path) -> None:
    with pytest.raises(InputError, match=r"\.: is a folder; give a net's file"):
        require_named(".", ["file"], "a net's file")


def test_only_a_recipe_is_recognised_as_one(here: Path) -> None:
    assert recipe_named("digits-local") == "digits-local"
    assert recipe_named("unknown") == "unknown"  # load_recipe lists the existing ones
    with pytest.raises(InputError, match=r"solver_a\.pt: no such file"):
        recipe_named("solver_a.pt")
    with pytest.raises(InputError, match="is a folder; give a recipe's name, or the path of its YAML"):
        recipe_named(".")


@pytest.mark.parametrize("name", ["loop.prototxt", "loop"])
def test_a_link_to_nothing_is_not_advised_for_itself(here: Path, name: str) -> None:
    (here / name).symlink_to(name)
    message = str(nothing_named(name))
    assert message == (
        f"{name}: cannot be read: Too many levels of symbolic links, a link to {name}; fix the link"
    )
    (here / name).unlink()
    (here / name).symlink_to("gone.prototxt")
    assert "No such file or directory, a link to gone.prototxt" in str(nothing_named(name))


def test_a_net_of_a_row_of_a_family_is_named_after_the_row(here: Path) -> None:
    (here / "family.yaml").write_text("# ours\nfamily: a\n")
    named = find_named("family.yaml:row:train_val")
    assert named is not None
    assert (named.path, named.net) == ("family.yaml:row", "train_val")
    assert recipe_named("family.yaml:row") == "family.yaml:row"


def test_a_row_of_a_recipe_without_rows_is_an_error(here: Path) -> None:
    (here / "mine.yaml").write_text("name: mine\n")
    with pytest.raises(InputError, match=r"mine\.yaml: is not a family, so it has no row 'big'"):
        load_recipe(recipe_named("mine.yaml:big"))
