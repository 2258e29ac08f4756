"""An ensemble's accuracies as people and as programs read them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from caffe_recipes.chain.ensemble.averages import Accuracy
from caffe_recipes.chain.ensemble.measure import Ensemble
from caffe_recipes.review.columns import align_columns

_WORDS = {
    "probabilities": "mean of the probabilities",
    "geometric": "geometric mean of the probabilities",
    "votes": "votes, the probabilities deciding between equals",
}
_HEADINGS = (
    *("member", "top-1", "top-5"),
    *("so far: top-1", "top-5", "without it: top-1", "top-5", "adds: top-1", "top-5"),
)


def render_ensemble(found: Ensemble, lmdb: str) -> str:
    """Return the table: each member alone, with those above it, and what all lose without it, in points."""
    measured = found.measured
    rows = [
        (
            member.name,
            *_percent(measured.single[index]),
            *_percent(measured.so_far[index]),
            *_percent(measured.without[index]),
            *_points(measured.ensemble, measured.without[index]),
        )
        for index, member in enumerate(found.members)
    ]
    table = align_columns([_HEADINGS, *rows], right=set(_HEADINGS[1:]))
    top1, top5 = _percent(measured.ensemble)
    best = _points(measured.ensemble, Accuracy(*_best(found)))
    lines = [
        f"{found.run}: {len(found.members)} members on the {found.images:,} images of {lmdb}",
        "",
        *table,
        "",
        f"ensemble, {_WORDS[found.average]}: top-1 {top1} %, top-5 {top5} %",
        *_reported(found),
        f"beside the best member alone: top-1 {best[0]}, top-5 {best[1]} points",
    ]
    if found.missing:
        lines.append(f"left out, not finished: {', '.join(found.missing)}")
    return "\n".join(lines)


def ensemble_as_json(found: Ensemble) -> dict[str, Any]:
    """Return an ensemble as JSON values: accuracies are shares."""
    measured = found.measured
    return {
        "run": found.run,
        "lmdb": str(found.lmdb),
        "images": found.images,
        "classes": found.classes,
        "average": found.average,
        "members": [
            {
                "name": member.name,
                "snapshot": str(member.path),
                "sha256": member.sha256,
                **asdict(measured.single[index]),
                "so_far": asdict(measured.so_far[index]),
                "without": asdict(measured.without[index]),
            }
            for index, member in enumerate(found.members)
        ],
        "ensemble": asdict(measured.ensemble),
        "missing": list(found.missing),
        "reported": {"members": list(found.reported_of), **found.reported.model_dump(exclude_none=True)},
    }


def _reported(found: Ensemble) -> list[str]:
    """Say what the source reports, if it does, and of which members: these here may be others."""
    pairs = (("top-1", found.reported.top1_percent), ("top-5", found.reported.top5_percent))
    said = ", ".join(f"{name} {percent:g} %" for name, percent in pairs if percent is not None)
    return [f"reported by the source, of {', '.join(found.reported_of)}: {said}"] if said else []


def _best(found: Ensemble) -> tuple[float, float]:
    single = found.measured.single
    return max(each.top1 for each in single), max(each.top5 for each in single)


def _percent(accuracy: Accuracy) -> tuple[str, str]:
    return f"{100 * accuracy.top1:.2f}", f"{100 * accuracy.top5:.2f}"


def _points(all_of_them: Accuracy, others: Accuracy) -> tuple[str, str]:
    """Write the differences, without the sign of a zero."""
    points = (100 * (all_of_them.top1 - others.top1), 100 * (all_of_them.top5 - others.top5))
    first, second = (f"{round(each, 2) + 0.0:+.2f}" for each in points)
    return first, second
