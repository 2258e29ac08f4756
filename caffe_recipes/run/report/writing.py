"""Write reports: the one that the user asks for, and the one at the end of each run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from caffe_recipes.errors import InputError, describe_setback
from caffe_recipes.files.atomic_writes import output_error, write_whole
from caffe_recipes.recipe.source import list_family_rows
from caffe_recipes.review.inspect.curves import name_logs
from caffe_recipes.run.monitor.run_files import LocalFiles, find_row_runs
from caffe_recipes.run.report.contents import load_contents
from caffe_recipes.run.report.page import render_report

REPORT = "report.html"  # in the folder of a run
# Reading logs of 2 MiB takes less than a second. Of a longer run, it may take a thousandth of its time.
_MOST_LOG_BYTES, _LOG_BYTES_PER_S = 2 << 20, 5000


def write_report(names: Sequence[str], out: Path, root: str) -> tuple[str, ...]:
    """Write the report of a few runs; return what could not be read, a line for each.

    The file of a family stands for the latest run of each of its rows that was run. Raises InputError for a
    name that is not that of a run, or if `out` is not an .html file or cannot be
    written.
    """
    if out.suffix.lower() not in (".html", ".htm"):
        raise InputError(out, "is not an .html file", "end its name in .html")
    runs = [load_contents(run, root) for name in names for run in _runs_of(name, root)]
    if len({run.name for run in runs}) < len(runs):  # of several Caffe roots
        for number, name in enumerate(name_logs([Path(run.path) for run in runs])):
            runs[number] = replace(runs[number], name=name)
            if (curve := runs[number].curve) is not None:
                curve.name = name
    try:
        write_whole({out: render_report(runs).encode()})
    except OSError as error:
        raise output_error(out, error) from None
    return tuple(f"{run.name}: {line}" for run in runs for line in run.unread)


def _runs_of(name: str, root: str) -> Iterator[str]:
    rows = list_family_rows(name)
    found = [name] if rows is None else [*filter(None, find_row_runs(LocalFiles(), root, rows).values())]
    if not found:
        raise InputError(name, "none of its rows was run", f"start them: caffe-recipes run {name} --each")
    yield from found


def write_own_report(folder: Path, root: Path, ran_s: float = 0.0) -> str:
    """Write the report of a run into its folder, at its end; return why that was not done, or "".

    The longer the run took, the longer reading its logs may take. It never fails the run: whatever goes
    wrong is returned.
    """
    try:
        size_bytes = sum(path.stat().st_size for path in (folder / "logs").glob("*.log"))
        if size_bytes > max(_MOST_LOG_BYTES, _LOG_BYTES_PER_S * ran_s):
            return f"its logs are large; write it with `caffe-recipes report {folder.name} -o report.html`"
        write_report([str(folder)], folder / REPORT, str(root))
    except Exception as error:
        return describe_setback(error)
    return ""
