"""Which file the net path of a solver refers to, and which files in folders further up it does not."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from caffe_recipes.cli.main import commands
from caffe_recipes.review.diff.sources import read_if_exists
from caffe_recipes.review.naming import find_at_path, find_beside, find_shared

NET = "models/a/b/net.prototxt"


def put(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
    return path


@pytest.fixture
def solver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a solver far below a folder, with another current folder."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return put(tmp_path / "x" / "caffe" / "models" / "a" / "b" / "solver.prototxt")


def test_a_net_counts_from_the_folder_that_its_path_and_the_solver_s_share(
    solver: Path, tmp_path: Path
) -> None:
    root = tmp_path / "x" / "caffe"
    net = put(root / NET)
    assert find_at_path(solver, NET, None) == net
    sibling = put(root / "models" / "c" / "net.prototxt")
    assert find_at_path(solver, "models/c/net.prototxt", None) == sibling


@pytest.mark.parametrize("given", ["net.prototxt", "own/net.prototxt"])
@pytest.mark.parametrize("above", ["x", "x/caffe", "."])
def test_an_unrelated_net_further_up_is_not_used(
    solver: Path, tmp_path: Path, given: str, above: str
) -> None:
    put(tmp_path / above / given)
    assert find_at_path(solver, given, None) is None


def test_within_a_repository_a_net_is_found_in_any_folder_above(solver: Path, tmp_path: Path) -> None:
    net = put(tmp_path / "x" / "nets" / "n.prototxt")
    put(tmp_path / "far" / "n.prototxt")
    assert find_at_path(solver, "nets/n.prototxt", None) is None
    (tmp_path / "x" / ".git").mkdir()
    assert find_at_path(solver, "nets/n.prototxt", None) == net
    assert find_at_path(solver, "far/n.prototxt", None) is None


def test_a_net_is_found_from_here_and_from_the_folder_next_above(solver: Path, tmp_path: Path) -> None:
    put(tmp_path / "elsewhere" / NET)
    assert find_at_path(solver, NET, None) == Path(NET)
    above = put(solver.parent.parent / "nets" / "n.prototxt")
    assert find_at_path(solver, "nets/n.prototxt", None) == above


def test_a_bare_name_is_looked_up_beside_the_solver_before_the_current_folder(
    solver: Path, tmp_path: Path
) -> None:
    put(tmp_path / "elsewhere" / "net.prototxt")
    assert find_at_path(solver, "net.prototxt", None) == Path("net.prototxt")
    beside = put(solver.parent / "net.prototxt")
    assert find_at_path(solver, "net.prototxt", None) == beside == find_beside(solver, NET)


def test_with_a_caffe_root_only_that_place_is_searched(solver: Path, tmp_path: Path) -> None:
    net = put(tmp_path / "x" / "caffe" / NET)
    assert find_at_path(solver, NET, tmp_path / "x" / "caffe") == net
    assert find_at_path(solver, NET, tmp_path) is None


@pytest.mark.parametrize("given", ["", "nul\0/x", "x" * 5000, "/", ".."])
def test_unusual_paths_are_not_found_and_raise_nothing(solver: Path, given: str) -> None:
    assert find_at_path(solver, given, None) is None
    assert find_beside(solver, given) is None


def test_a_net_that_recipes_share_is_in_a_folder_beside_the_solver_s(solver: Path) -> None:
    assert find_shared(solver, "models/nets/net.prototxt") is None
    net = put(solver.parent.parent / "shared" / "net.prototxt")
    assert find_shared(solver, "models/nets/shared/net.prototxt") == net
    put(solver.parent.parent / "net.prototxt")
    assert find_shared(solver, "net.prototxt") is None
    assert find_shared(solver, "../net.prototxt") is None


def test_a_net_whose_name_no_file_can_have_is_not_found() -> None:
    assert read_if_exists("nul\0/x", 9) is None


@pytest.mark.promise("no other file of yours is quoted")
@pytest.mark.parametrize("words", ["lint", "lint --json", "lint --format github", "summary", "adopt"])
@pytest.mark.parametrize("kind", ["absolute", "above", "link", "within"])
def test_the_text_of_a_file_that_is_not_the_user_s_is_not_quoted(
    solver: Path, tmp_path: Path, words: str, kind: str
) -> None:
    token = tmp_path / "home" / ".token"
    put(token).write_text("hunter2secret: 1\n")
    (tmp_path / "x" / "caffe" / ".git").mkdir()
    given = {"absolute": str(token), "above": "../../../../../home/.token"}.get(kind, "net.prototxt")
    if kind == "link":
        (solver.parent / given).symlink_to(token)
    if kind == "within":
        (solver.parent / given).write_text(token.read_text())
    solver.write_text(f'net: "{given}"\nbase_lr: 1\nlr_policy: "fixed"\nmax_iter: 9\nsnapshot_prefix: "a"\n')
    targets = [str(solver), str(solver.parent)] if words.startswith("lint") else [str(solver)]
    for target in targets:
        done = CliRunner().invoke(commands, [*words.split(), target])
        output = f"{done.output}{done.exception}"
        assert Path(given).name in output
        assert ("hunter2" in output) == (kind == "within")
        assert ("is not a prototxt that can be read" in output) == (kind != "within")


@pytest.mark.promise("no other file of yours is quoted")
@pytest.mark.parametrize("words", ["fmt", "fmt --diff", "plot -o x.svg", "diff --json other", "diff other"])
@pytest.mark.parametrize("where", ["outside", "within"])
def test_a_link_in_a_folder_to_a_file_that_is_not_the_user_s_is_not_quoted(
    solver: Path, tmp_path: Path, words: str, where: str
) -> None:
    tokens = {"outside": tmp_path / "home" / ".token", "within": solver.parent / ".token"}
    put(tokens[where]).write_text("hunter2secret: 1\n")
    solver.write_text('net: "n"\nbase_lr: 1\nlr_policy: "fixed"\nmax_iter: 9\nsnapshot_prefix: "a"\n')
    put(Path("other") / "net.prototxt").write_text('layer { name: "a" type: "ReLU" }\n')
    (solver.parent / "net.prototxt").symlink_to(tokens[where])
    done = CliRunner().invoke(commands, [*words.split(), str(solver.parent)])
    output = f"{done.output}{done.exception}"
    assert "net.prototxt" in output
    assert ("hunter2" in output) == (where == "within")
    hidden = "is a link to a file outside its folder" in output or "not a prototxt that can be read" in output
    assert hidden == (where == "outside")


@pytest.mark.parametrize(
    "words", ["fmt --check", "plot -o x.svg --images 9", "diff --images 9 --ranks 1 other"]
)
def test_a_link_within_the_folder_is_read(solver: Path, words: str) -> None:
    text = 'net: "net.prototxt"\nbase_lr: 1\nlr_policy: "fixed"\nmax_iter: 9\nsnapshot_prefix: "a"\n'
    put(solver.parent / "shared" / "net.prototxt").write_text('layer {\n  name: "a"\n  type: "ReLU"\n}\n')
    solver.write_text(text)
    (solver.parent / "net.prototxt").symlink_to("shared/net.prototxt")
    put(Path("other") / "solver.prototxt").write_text(text.replace("base_lr: 1", "base_lr: 2"))
    done = CliRunner().invoke(commands, [*words.split(), str(solver.parent)])
    assert "is a link" not in f"{done.output}{done.exception}"


@pytest.mark.promise("no other file of yours is quoted")
def test_a_net_beside_a_solver_that_is_a_link_elsewhere_is_not_quoted(solver: Path, tmp_path: Path) -> None:
    put(tmp_path / "home" / ".token").write_text("hunter2secret: 1\n")
    text = 'net: "net.prototxt"\nbase_lr: 1\nlr_policy: "fixed"\nmax_iter: 9\nsnapshot_prefix: "a"\n'
    solver.write_text(text)
    (solver.parent / "net.prototxt").symlink_to(tmp_path / "home" / ".token")
    put(Path("other.prototxt")).write_text(text.replace("base_lr: 1", "base_lr: 2"))
    for words in ("plot -o x.svg --images 9", "diff --images 9 --ranks 1 other.prototxt"):
        done = CliRunner().invoke(commands, [*words.split(), str(solver)])
        output = f"{done.output}{done.exception}"
        assert "net.prototxt: is a link to a file outside its folder" in output
        assert "hunter2" not in output


def test_a_solver_in_a_folder_that_is_a_link_elsewhere_is_not_quoted(solver: Path, tmp_path: Path) -> None:
    put(tmp_path / "home" / ".token").write_text("hunter2secret: 1\n")
    solver.unlink()
    solver.symlink_to(tmp_path / "home" / ".token")
    done = CliRunner().invoke(commands, ["lint", str(solver.parent)])
    assert "solver.prototxt: is not a prototxt that can be read" in str(done.exception)
