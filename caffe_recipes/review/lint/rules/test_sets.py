"""Rules for the number of images that a solver tests."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from caffe_recipes.caffe.epoch_comments import TOLERANCE, comment_texts, parse_epoch_size
from caffe_recipes.caffe.layers import batch_size
from caffe_recipes.caffe.net_states import misses_test_nets, select_data_layers, test_states
from caffe_recipes.review.lint.registry import link_finding
from caffe_recipes.review.lint.subjects import path_rule

if TYPE_CHECKING:
    from caffe_recipes.caffe.chain import Chain
    from caffe_recipes.review.lint.findings import Finding


@path_rule(
    "test-images-left",
    "warning",
    "a test_iter that does not cover the whole test set",
    what="test_iter {count} x {batch} covers {tested:,} of {images:,.0f} images",
    effect="each test sees a different part of the LMDB, so the accuracy varies",
    write="test_iter: {needed}",
    values=("images",),
)
@path_rule(
    "test-images-repeated",
    "warning",
    "a test_iter that reads more images than the test set has",
    what="test_iter {count} x {batch} are {tested:,} of {images:,.0f} images",
    effect="each test counts some images twice, and the next starts at another one, so the accuracy varies",
    write="test_iter: {needed}",
    values=("images",),
)
def check_tests(chain: Chain) -> Iterator[Finding]:
    """Find a test_iter that misses or repeats images. The LMDB, an option or a comment gives their number."""
    for link in chain.links:
        solver = link.solver.message
        if misses_test_nets(solver):
            continue
        nets = link.test_nets if solver.test_net or solver.test_net_param else (link.net,)
        state = test_states(solver, nets[0].message)[0] if nets and nets[0] else None
        layers = select_data_layers(nets[0].message, state) if nets and nets[0] and state else []
        batch = next((size for layer in layers if (size := batch_size(layer))), None)
        if batch is None or len(nets) != 1 or len(solver.test_iter) != 1 or not solver.test_iter[0]:
            continue
        comment = link.solver.comments.get("test_iter[0]")
        claimed = next(filter(None, map(parse_epoch_size, comment_texts([comment] if comment else []))), None)
        images = chain.facts.test_images or link.tested_images or (claimed.images if claimed else 0)
        tested, needed = solver.test_iter[0] * batch, math.ceil(images / batch)
        is_short = tested < images * (1 - TOLERANCE)
        is_long = tested > images * (1 + TOLERANCE) and solver.test_iter[0] > needed
        if images and (is_short or is_long):
            yield link_finding(
                "test-images-left" if is_short else "test-images-repeated",
                link,
                "test_iter[0]",
                images=images,
                count=solver.test_iter[0],
                batch=batch,
                tested=tested,
                needed=needed,
            )
