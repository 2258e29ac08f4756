from __future__ import annotations

from pathlib import Path

from caffe_recipes.run.report.provenance import find_revision


def test_the_revision_is_read_without_git(tmp_path: Path) -> None:
    assert find_revision(tmp_path) == ""
    (tmp_path / ".git" / "refs" / "heads").mkdir(parents=True)
    (tmp_path / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    assert find_revision(tmp_path) == ""
    (tmp_path / ".git" / "refs" / "heads" / "main").write_text("a" * 40 + "\n")
    assert find_revision(tmp_path) == "a" * 40
    (tmp_path / ".git" / "HEAD").write_text("ref: refs/../../secret\n")
    assert find_revision(tmp_path) == ""
