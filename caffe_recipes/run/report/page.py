"""Render the report of runs: one HTML page with its own style, script and data, which loads nothing."""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from importlib import resources

import jinja2
from markupsafe import Markup

from caffe_recipes.cluster.hostfile import fold_hosts
from caffe_recipes.errors import InputError
from caffe_recipes.run.folded_events import describe_run_command
from caffe_recipes.run.folders import freeze_recipe
from caffe_recipes.run.hidden_texts import TextHider
from caffe_recipes.run.report.charts import MOST_POINTS, build_charts, find_slow
from caffe_recipes.run.report.contents import RunContents
from caffe_recipes.units import describe_duration, write_clock
from caffe_recipes.wording import describe_count, shorten

MOST_RUNS = 4  # as many as have a colour and a dash of their own
_MOST_ROWS = 100  # of a timeline
_MOST_DIFFERENCES = 200
_LONGEST_LIST = 300


def render_report(runs: Sequence[RunContents]) -> str:
    """Return the page for a few runs; what their journals say is to be hidden is left out wherever it is.

    Raises InputError if there are more runs than can be told apart.
    """
    if len(runs) > MOST_RUNS:
        raise InputError("report", f"shows at most {MOST_RUNS} runs, not {len(runs)}", "name fewer")
    style, script = _read("report.css"), _read("report.js")
    charts = build_charts([run.curve for run in runs])
    hider = TextHider([(run.progress.id, run.hidden) for run in runs])
    data = {
        "charts": charts,
        "timelines": [_timeline(run, hider) for run in runs],
        "runs": [run.name for run in runs],
    }
    page = _environment().overlay(finalize=hider.hide).get_template("report.html.j2")
    return page.render(
        runs=runs,
        charts=charts,
        facts={run.path: _facts(run, hider) for run in runs},
        slow={run.path: find_slow(run.curve) if run.curve else (None, []) for run in runs},
        commands={run.path: list(_commands(run)) for run in runs},
        differences=list(_differences(runs, hider)),
        data=_render_json(hider.hide(data)),
        style=Markup(style),
        script=Markup(script),
        policy=_policy(style, script),
        most_points=MOST_POINTS,
    )


@lru_cache(maxsize=1)
def _environment() -> jinja2.Environment:
    """Return the environment of the template, in which every value is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_read),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(duration=describe_duration, clock=write_clock, count=describe_count)
    return environment


def _read(name: str) -> str:
    return resources.files("caffe_recipes.templates").joinpath(name).read_text("utf-8")


def _render_json(value: object) -> Markup:
    """Return JSON that no text in it can end: HTML looks for tags even inside of a script."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _policy(style: str, script: str) -> str:
    """Return the policy under which a browser loads nothing, and runs only this script, without `eval`."""
    script_hash, style_hash = (
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (script, style)
    )
    return (
        f"default-src 'none'; script-src 'sha256-{script_hash}'; style-src 'sha256-{style_hash}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _timeline(run: RunContents, hider: TextHider) -> dict[str, object]:
    """Return what the hosts of a run did, for the page to draw."""
    phases = [result.step.phase for result in run.phases]
    rows = [
        {
            "label": row.label,
            "hosts": shorten(hider.hide_text(fold_hosts(row.hosts)), _LONGEST_LIST),
            "spans": [
                {
                    "kind": span.kind,
                    "name": span.name,
                    "begin": round(span.begin_s, 2),
                    "end": round(span.end_s, 2),
                    "outcome": span.outcome,
                    "detail": span.detail,
                    "tint": phases.index(span.name) % 2 if span.name in phases else 0,
                }
                for span in row.spans
            ],
        }
        for row in run.rows[:_MOST_ROWS]
    ]
    incidents = [
        {"at": round(one.at_s, 2), "what": one.what, "action": one.is_action} for one in run.incidents
    ]
    return {"rows": rows, "left_out": max(0, len(run.rows) - _MOST_ROWS), "incidents": incidents}


def _facts(run: RunContents, hider: TextHider) -> list[tuple[str, str, str]]:
    """Return the main facts of a run: name, value, and a remark such as what the source reports."""
    recipe, reported, outputs = run.recipe, run.recipe.reported, run.progress.outputs or {}
    done = [result for result in run.phases if result.state == "finished"]
    epochs = sum(result.epochs for result in done)
    facts = [
        ("state", run.state, f"{len(done)} of {describe_count(len(run.phases), 'phase')}"),
        ("began", run.begun, ""),
        ("time", describe_duration(run.seconds), "from the first event to the last"),
        ("epochs finished", f"{epochs:.2f}", ""),
        ("images/s", _mean_speed(run), _reported(reported.images_per_s, "{:,.0f}")),
    ]
    loss = next((result.loss for result in reversed(done) if result.loss is not None), None)
    if loss is not None:
        facts.append(("last loss", f"{loss:.4g}", _reported(reported.loss, "{:g}")))
    for name, value in outputs.items():
        is_top1 = name.lower().endswith(("top-1", "top1"))
        remark = _reported(reported.top1_percent, "{:g} %") if is_top1 else ""
        shown = f"{100 * value:.2f} %" if "top" in name.lower() or "acc" in name.lower() else f"{value:.4g}"
        facts.append((f"tested {name}", shown, remark))
    cluster = recipe.cluster
    machine = f"{describe_count(cluster.nodes, 'node')} x {cluster.ranks_per_node}"
    facts.append(("machine", machine, shorten(hider.hide_text(run.hosts))))
    return facts


def _mean_speed(run: RunContents) -> str:
    timed = [
        (result.step.images, result.step.images / result.images_per_s)
        for result in run.phases
        if result.images_per_s
    ]
    return f"{sum(images for images, _ in timed) / sum(took_s for _, took_s in timed):,.0f}" if timed else "-"


def _reported(value: float | None, form: str) -> str:
    return f"reported: {form.format(value)}" if value is not None else ""


def _commands(run: RunContents) -> Iterator[tuple[str, str]]:
    """Yield the commands that do a run again, each with what it does."""
    name = run.recipe.name
    command = describe_run_command(name, run.recipe)
    if not command.endswith("`"):  # the recipe is not a shipped one
        command = f"`caffe-recipes run {name}.yaml`"
        yield "the recipe is below; save it under this name", f"{name}.yaml"
    yield "train it again, in a new run", f"{command.strip('`')} --new"
    given = shlex.quote(run.path) if "/" in run.name else run.name
    yield "draw its curves", f"caffe-recipes plot {given} -o curves.svg"
    yield "write this report again", f"caffe-recipes report {given} -o report.html"
    for launch in run.launches:
        words = " ".join(launch.arguments)
        if words:
            yield f"what {launch.phase}, attempt {launch.attempt}, gave to the trainer", words


def _differences(runs: Sequence[RunContents], hider: TextHider) -> Iterator[tuple[str, list[str]]]:
    """Yield the keys in which the recipes of runs differ, with the value of each."""
    if len(runs) < 2:
        return
    flat = [dict(_flatten(freeze_recipe(run.recipe), "")) for run in runs]
    keys = dict.fromkeys(key for values in flat for key in values)
    differing = [key for key in keys if len({values.get(key) for values in flat}) > 1]
    for key in differing[:_MOST_DIFFERENCES]:
        yield key, [shorten(hider.hide_text(values.get(key, "-"))) for values in flat]


def _flatten(value: object, at: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, one in value.items():
            yield from _flatten(one, f"{at}.{key}" if at else str(key))
    elif isinstance(value, list) and any(isinstance(one, Mapping | list) for one in value):
        for index, one in enumerate(value):
            yield from _flatten(one, f"{at}[{index}]")
    elif value is not None:
        yield at, json.dumps(value)
