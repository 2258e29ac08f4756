"""Rules for large batches and short trainings, with the numbers of arXiv:1711.04291."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.chain import batch_per_rank, has_known_rates, plan_starts
from caffe_recipes.caffe.epoch_comments import find_epoch_size
from caffe_recipes.caffe.rates import lr_at
from caffe_recipes.caffe.shapes import select_layers, stats_images
from caffe_recipes.review.lint.net_text import show_layers, show_number
from caffe_recipes.review.lint.registry import Explanation, finding, link_finding
from caffe_recipes.review.lint.subjects import handover_rule

if TYPE_CHECKING:
    from caffe_recipes.caffe.chain import Chain, Link, NetDocument, Start
    from caffe_recipes.review.lint.findings import Finding


# All of the paper's runs warm up, from 2,048 images on; at that batch, Intel's own files need no warm-up.
_LARGE_BATCH = 4096
# A solver that may continue another starts below the peak: at 0.64 of it in the published 64-node chain.
_PEAK_SHARE = 0.7
_TYPES = ("SGD", "Nesterov")  # whose rate follows the linear rule


@handover_rule(
    "warmup-missing",
    "warning",
    "a training that starts at a high rate without a warm-up, at a large batch",
    what="the training starts at a rate of {rate:.4g} with {batch:,} images per iteration, without a warm-up",
    effect="the paper warms up in all its runs, and reports noticeably higher validation errors without it",
    write="warmup_iter for about {epochs} epochs, and warmup_start_lr: {start:g}",
    values=("rate", "batch"),
    explanation=Explanation(
        "At the start of a training the weights change quickly. A high rate, scaled with the batch, makes "
        "them diverge or end at a worse model. The paper (arXiv:1711.04291, IV-D) warms up in all its runs, "
        "after Goyal et al. (arXiv:1706.02677), and reports noticeably higher validation errors without it. "
        "The rule applies from 4,096 images per iteration on.",
        "Let the rate rise from 0.1 over 5 epochs (7 to 10 from 16,384 images on), with warmup_iter and "
        "warmup_start_lr.",
    ),
)
def check_warmups(chain: Chain) -> Iterator[Finding]:
    """Find phases that train from scratch with a large batch, and start at a high rate."""
    # Not needed by `lint --rules`, and slow, since pydantic is.
    from caffe_recipes.recipe.paper_rules import WARMUP_EPOCHS, peak_lr, scaled_lr, warmup_start_lr

    made_for = find_epoch_size(chain.links)
    for link, start in zip(chain.links, plan_starts(chain), strict=True):
        solver = link.solver.message
        batch = (batch_per_rank(link) or 0) * (link.ranks or chain.facts.ranks or 0)
        batch = batch or round(made_for.batch if made_for else 0)
        if not _starts_anew(chain, link, start) or batch < _LARGE_BATCH or solver.type not in _TYPES:
            continue
        if not has_known_rates(solver) or getattr(link.solver.given, "larc", False):
            continue
        rate = lr_at(solver, 0)
        least = scaled_lr(_LARGE_BATCH) if link.weights == "" else _PEAK_SHARE * peak_lr(batch)
        if rate >= least:
            yield link_finding(
                "warmup-missing",
                link,
                "warmup_start_lr" if solver.warmup_iter else "base_lr",
                rate=rate,
                batch=batch,
                epochs=WARMUP_EPOCHS,
                start=warmup_start_lr(batch),
            )


def _starts_anew(chain: Chain, link: Link, start: Start | None) -> bool:
    """Return whether a phase starts from no weights, as far as is known."""
    is_first = link is chain.links[0] and chain.is_whole
    return start is None and not link.weights and not link.resumes and (is_first or link.weights == "")


# The paper's fraction. Averages over a larger share of a short training, or over fewer than five iterations,
# differ too much from it; these limits are our choice. The paper's longest training has 18,120 iterations.
_FRACTION = 0.95
_MOST_SHARE = 1 / 40
_FEW_PASSES = 30_000
_LEAST_FRACTION = 0.8


@handover_rule(
    "moving-average-slow",
    "warning",
    "a moving_average_fraction too high for the number of iterations",
    what="{names} with moving_average_fraction {fraction} average over about {window:,.0f} iterations, "
    "{share:.0%} of the {passes:,} that are trained",
    effect="tests use means and variances of weights that have long changed, so the accuracy is lower",
    write="moving_average_fraction: 0.95, which the paper used for 2,100 to 18,120 iterations",
    values=("fraction", "window", "passes"),
    explanation=Explanation(
        "Tests use running averages of the means and variances, which follow the weights over about "
        "1 / (1 - moving_average_fraction) iterations: 1,000 at Caffe's default, 0.999. A training with a "
        "large batch has only a few thousand iterations, so that these averages lag behind the weights. The "
        "paper (arXiv:1711.04291, IV-C) set 0.95 in all layers. The rule reports averages over a fortieth of "
        "a training of at most 30,000 iterations.",
        "moving_average_fraction: 0.95. Long trainings, of 100,000 iterations, work with the default.",
    ),
)
@handover_rule(
    "moving-average-fast",
    "warning",
    "a moving_average_fraction below 0.8, so that tests depend on the last few batches",
    what="{names} with moving_average_fraction {fraction} average over about {window:.2g} iterations",
    effect="tests use the means and variances of the last few batches of one rank, so the accuracy varies",
    write="moving_average_fraction: 0.95, as in the paper",
    values=("fraction", "window"),
)
def check_moving_averages(chain: Chain) -> Iterator[Finding]:
    """Find BatchNorms whose running averages are too slow for the training, or depend on a few batches."""
    passes = max(_count_passes(chain))
    reported: set[tuple[str, float]] = set()
    for link in chain.links:
        for fraction, layers in _find_fractions(link):
            window = 1 / (1 - fraction) if fraction < 1 else math.inf
            key = (link.net.path if link.net else "", fraction)
            if key in reported or not link.net:
                continue
            reported.add(key)
            values: dict[str, Any] = {
                "fraction": show_number(fraction),
                "names": show_layers(layers, "BatchNorm"),
            }
            if fraction < _LEAST_FRACTION:
                where = _norm_place(link.net, layers[0])
                yield finding("moving-average-fast", where, phase=link.name, window=window, **values)
            elif fraction > _FRACTION and 0 < passes <= _FEW_PASSES and window >= _MOST_SHARE * passes:
                window = min(window, passes)
                values |= {"window": window, "share": window / passes, "passes": passes}
                where = _norm_place(link.net, layers[0])
                yield finding("moving-average-slow", where, phase=link.name, **values)


def _count_passes(chain: Chain) -> list[int]:
    """Return the forward passes of a rank up to the end of each phase; 0 after weights from elsewhere."""
    passes: list[int] = []
    for link, start in zip(chain.links, plan_starts(chain), strict=True):
        own = link.last_iter * max(link.solver.message.iter_size, 1)
        if start is not None:
            before = passes[start.index]
            passes.append(before and before + own)
        else:
            passes.append(own if _starts_anew(chain, link, start) else 0)
    return passes


def _find_fractions(link: Link) -> Iterator[tuple[float, list[str]]]:
    """Yield each valid moving_average_fraction of the BatchNorms that train, and the names of these."""
    found: dict[float, list[str]] = defaultdict(list)
    is_benchmark = any(layer.type == "DummyData" for layer in link.data_layers)
    for layer in select_layers(link.net.message, pb.TRAIN) if link.net and not is_benchmark else ():
        if layer.type == "BatchNorm" and stats_images(layer, pb.TRAIN) is not None:
            found[round(layer.batch_norm_param.moving_average_fraction, 6)].append(layer.name)
    yield from ((fraction, names) for fraction, names in found.items() if 0 < fraction <= 1)


def _norm_place(net: NetDocument, name: str) -> str:
    layers = enumerate(net.message.layer)
    index = next(index for index, layer in layers if layer.name == name and layer.type == "BatchNorm")
    return net.where(f"layer[{index}].batch_norm_param.moving_average_fraction")
