"""`caffe-recipes parse-log`: print the measurements in training logs, or a summary of them."""

from __future__ import annotations

import json
from pathlib import Path

import click

from caffe_recipes.cli.options import PATH, examples
from caffe_recipes.cli.streams import echo, echo_rows
from caffe_recipes.errors import InputError

_JSON_BEGINS = '{"measurements": [\n'


@click.command(
    name="parse-log",
    epilog=examples(
        "caffe-recipes parse-log train.log",
        "caffe-recipes parse-log runs/digits-local-1/logs/*.log --csv > curves.csv",
    ),
)
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=PATH)
@click.option("--csv", "as_csv", is_flag=True, help="Print each measurement as a row of CSV.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: each measurement, then the counts.")
def parse_log(files: tuple[Path, ...], as_csv: bool, as_json: bool) -> None:
    """Read the logs of Caffe, or of TensorFlow under Horovod: losses, rates and outputs by iteration.

    Logs of any Caffe are read, also of several ranks, whose lines have labels (`mpiexec -l`, `srun -l`), or
    of several runs. Without --csv or --json, print a summary. Lines that are not about the training, or that
    are torn, are counted.
    """
    from caffe_recipes.caffe.measurements import MeasuredLog
    from caffe_recipes.review.inspect import training_logs as logs

    if as_json and as_csv:
        raise InputError("--csv", "cannot be combined with --json", "give one of them")
    counts, separator = [], ""
    for number, path in enumerate(files):
        log, digest = MeasuredLog(), logs.LogDigest()
        for rows in logs.load_measurements(path, log):
            if not rows:
                continue
            if as_csv:
                echo_rows([",".join(logs.COLUMNS)] if not separator else [])
                echo_rows(logs.render_rows(path, rows))
            elif as_json:
                data = (separator or _JSON_BEGINS) + ",\n".join(logs.render_json_rows(path, rows))
                click.echo(data, nl=False)
            else:
                digest.add(rows)
            separator = ",\n"
        counts.append(logs.log_values(path, log))
        if as_csv and (log.unreadable or log.is_cut):
            echo(*logs.describe_counts(path, log), err=True)
        elif not as_csv and not as_json:
            echo(*([""] if number else []), *logs.describe_counts(path, log), *digest.render(log))
    if as_json:
        data = f'{"" if separator else _JSON_BEGINS}\n], "files": {json.dumps(counts, indent=1)}}}'
        click.echo(data)
