"""`caffe-recipes parse-log`: print the measurements in training logs, or a summary of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click

from caffe_recipes.cli import run_options
from caffe_recipes.cli.options import PATH, PATH_TEXT, examples
from caffe_recipes.cli.streams import echo, echo_rows, reporting
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
@click.pass_context
def parse_log(
    ctx: click.Context,
    names: tuple[str, ...],
    as_csv: bool,
    as_json: bool,
    tensorboard: Path | None,
    caffe_root: str,
) -> None:
    """Read the logs of Caffe, or of TensorFlow under Horovod: losses, rates and outputs by iteration.

    Logs of any Caffe are read, also of several ranks, whose lines have labels (`mpiexec -l`, `srun -l`), or
    of several runs. Without --csv or --json, print a summary. Lines that are not about the training, or that
    are torn, are counted. RUN is the folder or name of a run (digits-local-1), for the logs of its launches
    and evaluations that show a loss. `-` is standard input; a log may be compressed by gzip. A log that
    cannot be read is reported on standard error; the others are printed, and the exit code is 2.
    """
    from caffe_recipes.run.monitor.curves import find_measured_logs, is_run
    from caffe_recipes.run.monitor.tensorboard import write_event_files

    if as_json and as_csv:
        raise InputError("--csv", "cannot be combined with --json", "give one of them")
    if tensorboard is not None:
        if as_csv or as_json:
            raise InputError("--tensorboard", "cannot be combined with --csv or --json", "give one of them")
        echo(*(f"wrote {path}" for path in write_event_files(names, caffe_root, tensorboard)))
        return
    files, failures = list[Path](), list[InputError]()
    for name in names:
        with reporting(failures):
            files += find_measured_logs(name, caffe_root) if is_run(name, caffe_root) else [Path(name)]
    if as_json:
        _print_json(files, failures)
    else:
        _print(files, failures, as_csv=as_csv)
    ctx.exit(InputError.exit_code if failures else 0)


def _print(files: Sequence[Path], failures: list[InputError], *, as_csv: bool) -> None:
    from caffe_recipes.caffe.measurements import MeasuredLog
    from caffe_recipes.review.inspect import training_logs as logs

    is_first = True
    for path in files:
        log, digest = MeasuredLog(), logs.LogDigest()
        with reporting(failures):
            for rows in filter(None, logs.load_measurements(path, log)):
                if as_csv:
                    echo_rows([",".join(logs.COLUMNS)] if is_first else [])
                    echo_rows(logs.render_rows(path, rows))
                    is_first = False
                else:
                    digest.add(rows)
            if not as_csv:
                echo(*([] if is_first else [""]), *logs.describe_counts(path, log), *digest.render(log))
                is_first = False
            elif log.unreadable or log.is_cut:
                echo(*logs.describe_counts(path, log), err=True)


def _print_json(files: Sequence[Path], failures: list[InputError]) -> None:
    """Print JSON only when all files have been read, without the part of a log that could not be read on."""
    import tempfile

    from caffe_recipes.caffe.measurements import MeasuredLog
    from caffe_recipes.review.inspect import training_logs as logs

    counts = list[dict[str, object]]()
    with tempfile.SpooledTemporaryFile(_HELD_BYTES, "w+", encoding="ascii") as held:
        held.write('{"measurements": [')
        for path in files:
            log, start = MeasuredLog(), held.tell()
            with reporting(failures):
                for rows in filter(None, logs.load_measurements(path, log)):
                    held.write(",\n" if counts or held.tell() > start else "\n")
                    held.write(",\n".join(logs.render_json_rows(path, rows)))
                counts.append(logs.log_values(path, log))
                continue
            held.seek(start)
            held.truncate()
        held.write(f'\n], "files": {json.dumps(counts, indent=1)}}}\n')
        held.seek(0)
        for data in iter(lambda: held.read(_HELD_BYTES) if counts else "", ""):
            click.echo(data, nl=False)
