"""`caffe-recipes parse-log`: print the measurements in training logs, or a summary of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click

from caffe_recipes.cli import run_options
from caffe_recipes.cli.options import PATH, PATH_TEXT, examples
from caffe_recipes.cli.streams import echo, echo_rows
from caffe_recipes.errors import InputError

_HELD_BYTES = 1 << 24  # of JSON in memory; more is held in a temporary file


@click.command(
    name="parse-log",
    epilog=examples(
        "caffe-recipes parse-log train.log",
        "caffe-recipes parse-log runs/digits-local-1/logs/*.log --csv > curves.csv",
        "caffe-recipes parse-log digits-local-1 --tensorboard curves",
    ),
)
@click.argument("names", metavar="LOG|RUN...", nargs=-1, required=True, type=PATH_TEXT)
@click.option("--csv", "as_csv", is_flag=True, help="Print each measurement as a row of CSV.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: each measurement, then the counts.")
@click.option(
    "--tensorboard",
    metavar="DIR",
    type=PATH,
    help="Write event files for TensorBoard below this folder, in a folder for each log or phase of a run.",
)
@run_options.runs_root
def parse_log(
    names: tuple[str, ...], as_csv: bool, as_json: bool, tensorboard: Path | None, caffe_root: str
) -> None:
    """Read the logs of Caffe, or of TensorFlow under Horovod: losses, rates and outputs by iteration.

    Logs of any Caffe are read, also of several ranks, whose lines have labels (`mpiexec -l`, `srun -l`), or
    of several runs. Without --csv or --json, print a summary. Lines that are not about the training, or that
    are torn, are counted. RUN is the folder or name of a run (digits-local-1), for the logs of its launches
    that show a loss. `-` is standard input; a log may be compressed by gzip.
    """
    from caffe_recipes.caffe.measurements import MeasuredLog
    from caffe_recipes.review.inspect import training_logs as logs
    from caffe_recipes.run.monitor.curves import find_measured_logs, is_run
    from caffe_recipes.run.monitor.tensorboard import write_event_files

    if as_json and as_csv:
        raise InputError("--csv", "cannot be combined with --json", "give one of them")
    if tensorboard is not None:
        if as_csv or as_json:
            raise InputError("--tensorboard", "cannot be combined with --csv or --json", "give one of them")
        echo(*(f"wrote {path}" for path in write_event_files(names, caffe_root, tensorboard)))
        return
    files = list[Path]()
    for name in names:
        files += find_measured_logs(name, caffe_root) if is_run(name, caffe_root) else [Path(name)]
    if as_json:
        _print_json(files)
        return
    has_header = False
    for number, path in enumerate(files):
        log, digest = MeasuredLog(), logs.LogDigest()
        for rows in logs.load_measurements(path, log):
            if not as_csv:
                digest.add(rows)
            elif rows:
                echo_rows([] if has_header else [",".join(logs.COLUMNS)])
                echo_rows(logs.render_rows(path, rows))
                has_header = True
        if not as_csv:
            echo(*([""] if number else []), *logs.describe_counts(path, log), *digest.render(log))
        elif log.unreadable or log.is_cut:
            echo(*logs.describe_counts(path, log), err=True)


def _print_json(files: Sequence[Path]) -> None:
    """Print JSON only when all files have been read, since one that cannot be read would cut it off."""
    import tempfile

    from caffe_recipes.caffe.measurements import MeasuredLog
    from caffe_recipes.review.inspect import training_logs as logs

    counts, separator = [], "\n"
    with tempfile.SpooledTemporaryFile(_HELD_BYTES, "w+", encoding="ascii") as held:
        held.write('{"measurements": [')
        for path in files:
            log = MeasuredLog()
            for rows in filter(None, logs.load_measurements(path, log)):
                held.write(separator + ",\n".join(logs.render_json_rows(path, rows)))
                separator = ",\n"
            counts.append(logs.log_values(path, log))
        held.write(f'\n], "files": {json.dumps(counts, indent=1)}}}\n')
        held.seek(0)
        for data in iter(lambda: held.read(_HELD_BYTES), ""):
            click.echo(data, nl=False)
