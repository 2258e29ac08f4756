"""What `data check` prints, for people and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from statistics import median

from caffe_recipes.data.check import Checked
from caffe_recipes.data.shuffledness import Shuffledness

_MOST_SHAPES = 4
_MOST_CLASSES = 20  # of so many each is counted on the line
_MIB = 2**20


def render_text(seen: Checked) -> str:
    """Write what was seen, line by line; the last lines tell what is wrong."""
    return "\n".join(_lines(seen)) + "\n"


def render_json(seen: Checked) -> str:
    """Write what was seen as JSON, the labels all counted."""
    values = {
        "records": seen.count,
        "encoded": seen.encoded,
        "decoded": seen.decoded,
        "labels": {str(label): count for label, count in seen.labels.items()},
        "labels_missing": seen.missing,
        "shapes": {" x ".join(map(str, shape)): count for shape, count in seen.shapes.items()},
        "means_bgr": seen.means,
        "order": order_values(seen.order),
        "size_bytes": seen.size_bytes,
        "compact_bytes": seen.compact_bytes,
        "problems": [{"what": problem.what, "records": problem.count} for problem in seen.problems],
    }
    return json.dumps(values, indent=1) + "\n"


def _lines(seen: Checked) -> Iterator[str]:
    yield f"{seen.count:,} records, {seen.encoded:,} of them encoded images; {seen.decoded:,} decoded"
    yield from _label_lines(seen)
    yield from _shape_lines(seen)
    if seen.means is not None:
        channels = "BGR" if len(seen.means) == 3 else "grey"
        yield f"mean {channels} " + ", ".join(f"{mean:.2f}" for mean in seen.means)
    yield order_text(seen.order)
    size, compact = seen.size_bytes, seen.compact_bytes
    yield f"{size / _MIB:,.1f} MiB, {compact / _MIB:,.1f} if compacted ({1 - compact / size:.1%} less)"
    yield from (f"bad: {problem}" for problem in seen.problems)


def order_text(order: Shuffledness) -> str:
    """Write how well records are shuffled, on a line."""
    return (
        f"order: {order.verdict} (1 is random, 0 sorted: neighbours {order.by_neighbours:.2f}, "
        f"batches of {order.batch} {order.by_batches:.2f}, with {order.classes:.1f} classes "
        f"of {order.classes_random:.1f} expected and {order.times_alike:.2f} times the pairs of one class; "
        f"mean run {order.mean_run:.1f})"
    )


def order_values(order: Shuffledness) -> dict[str, object]:
    """Return how well records are shuffled, for JSON."""
    return {
        "verdict": order.verdict,
        "by_neighbours": order.by_neighbours,
        "by_batches": order.by_batches,
        "batch": order.batch,
        "classes_in_batch": order.classes,
        "classes_in_batch_random": order.classes_random,
        "times_alike_in_batch": order.times_alike,
        "mean_run": order.mean_run,
    }


def _label_lines(seen: Checked) -> Iterator[str]:
    if not seen.labels:
        return
    yield f"labels {min(seen.labels)} to {max(seen.labels)}, {len(seen.labels):,} different"
    counts = list(seen.labels.values())
    if len(counts) <= _MOST_CLASSES:
        yield "images by label: " + ", ".join(f"{label}: {count:,}" for label, count in seen.labels.items())
    else:
        yield f"images of a label: {min(counts):,} to {max(counts):,}, median {median(counts):,.0f}"
    if seen.missing:
        yield f"note: {seen.missing:,} labels below have no images, {seen.first_missing} to begin with"


def _shape_lines(seen: Checked) -> Iterator[str]:
    if len(seen.shapes) <= _MOST_SHAPES:
        for (channels, height, width), count in seen.shapes.items():
            yield f"{count:,} images of {channels} x {height} x {width}"
    else:
        heights, widths = ([shape[axis] for shape in seen.shapes] for axis in (1, 2))
        sizes = f"{min(heights)} to {max(heights)} high, {min(widths)} to {max(widths)} wide"
        yield f"images of {len(seen.shapes):,} sizes: {sizes}"
    depths = sorted({shape[0] for shape in seen.shapes})
    if len(depths) > 1:
        found = " and ".join(map(str, depths))
        yield f"note: images have {found} channels; nets read them with transform_param.force_color"
