"""A change is shown as other tools show it."""

from __future__ import annotations

from caffe_recipes.files.unified_diff import render_unified


def test_a_diff_marks_missing_files_and_missing_line_feeds() -> None:
    assert render_unified("n", None, "a").startswith(
        "--- /dev/null\n+++ b/n\n@@ -0,0 +1 @@\n+a\n\\ No newline"
    )
    assert render_unified("n", "a\x0cb\n", "a\x0cb\n") == ""
