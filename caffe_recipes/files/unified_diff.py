"""Render the change of a file as text."""

from __future__ import annotations

import difflib
import io

from caffe_recipes.wording import printable


def render_unified(path: str, before: str | None, after: str | None) -> str:
    """Return the change of a file as a unified diff; None means that the file does not exist.

    >>> print(render_unified("n", "a\\n", None), end="")
    --- a/n
    +++ /dev/null
    @@ -1 +0,0 @@
    -a
    """
    lines = difflib.unified_diff(
        list(io.StringIO(before or "")),  # splitlines would split at more than line feeds
        list(io.StringIO(after or "")),
        "/dev/null" if before is None else f"a/{printable(path)}",
        "/dev/null" if after is None else f"b/{printable(path)}",
    )
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )
