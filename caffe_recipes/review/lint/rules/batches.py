"""Rules for the images of one iteration: of all ranks, and of one BatchNorm."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.chain import batch_per_rank
from caffe_recipes.caffe.epoch_comments import differs, find_epoch_size
from caffe_recipes.caffe.layers import batch_size
from caffe_recipes.caffe.shapes import select_layers, stats_images
from caffe_recipes.review.lint.registry import Explanation, finding, link_finding
from caffe_recipes.review.lint.subjects import chain_rule, handover_rule
from caffe_recipes.wording import describe_count

if TYPE_CHECKING:
    from caffe_recipes.caffe.chain import Chain, Link, NetDocument
    from caffe_recipes.caffe.epoch_comments import EpochSize
    from caffe_recipes.review.lint.findings import Finding


@chain_rule(
    "global-batch",
    "warning",
    "a global batch that the schedule was not made for",
    effect="the rate was chosen for another batch size, and the same iterations make a different number of "
    "epochs",
    write="use ranks x batch_size = {made_for:,.0f}, or adapt the schedule to this batch",
    values=("batch", "made_for"),
    explanation=Explanation(
        "A learning rate is chosen for a global batch size: batch_size x ranks x iter_size. With another "
        "size, the same iterations make a different number of epochs, and a different rate is best.",
        "Use as many ranks as the comment assumes, or adapt the iterations and rates to this number.",
    ),
)
def check_global_batches(chain: Chain) -> Iterator[Finding]:
    """Find phases whose images per iteration are not those that their schedule was made for."""
    if made_for := find_epoch_size(chain.links):
        for link in chain.links:
            yield from _check_global_batch(chain, link, made_for)


def _check_global_batch(chain: Chain, link: Link, made_for: EpochSize) -> Iterator[Finding]:
    each, ranks = batch_per_rank(link), link.ranks or chain.facts.ranks
    if each is None or link.net is None:
        return
    if ranks is not None and differs(each * ranks, made_for.batch):
        what = f"{describe_count(ranks, 'rank')} x {each} are {each * ranks:,} images per iteration"
    elif ranks is None and made_for.batch % each:
        what = f"the images per iteration are a multiple of {each}"
    else:
        return
    what += f", but the schedule was made for {made_for.batch:,.0f}"
    where = _batch_place(link.net) or link.solver.path
    yield finding("global-batch", where, what, link.name, batch=each * (ranks or 1), made_for=made_for.batch)


_SMALL_BATCH = 16


@handover_rule(
    "batch-norm-alone",
    "warning",
    "a BatchNorm with one image per rank",
    effect="training normalizes each image by itself, but tests use averages over many images",
    write="use fewer ranks, or a larger batch",
    explanation=Explanation(
        "Each rank computes the mean and variance of a BatchNorm from its own images. With one image, these "
        "are the statistics of that image, which differ from the running averages that tests use.",
        "Use fewer ranks, or a larger batch, so that each rank has several images.",
    ),
)
@handover_rule(
    "batch-norm-iter-size",
    "note",
    "iter_size above 1 with a BatchNorm that sees a small batch",
    what="BatchNorm sees {batch} images at a time: iter_size {iter_size} does not enlarge its batch",
    effect="gradients are averaged over {total} images, but each pass is normalized by the mean and variance "
    "of its own {batch}",
    write="a larger batch_size, on more memory; or use_global_stats: true with trained --weights",
    values=("batch", "iter_size"),
)
def check_norms(chain: Chain) -> Iterator[Finding]:
    """Find nets that train BatchNorms with one image per rank, or with few in each of several passes."""
    for link in chain.links:
        batch = next((size for layer in link.data_layers if (size := batch_size(layer))), None)
        if link.net is None or batch is None:
            continue
        layers = select_layers(link.net.message, pb.TRAIN)
        norms = [
            layer
            for layer in layers
            if layer.type == "BatchNorm" and stats_images(layer, pb.TRAIN) is not None
        ]
        passes = link.solver.message.iter_size
        if norms and passes > 1 and batch <= _SMALL_BATCH:
            yield link_finding(
                "batch-norm-iter-size",
                link,
                "iter_size",
                iter_size=passes,
                batch=batch,
                total=passes * batch,
            )
        if norms and batch == 1:
            what = f"{describe_count(len(norms), 'BatchNorm')} with one image per rank"
            where = _batch_place(link.net) or link.solver.path
            yield finding("batch-norm-alone", where, what, link.name, norms=len(norms))


def _batch_place(net: NetDocument) -> str:
    fields = [path for path in net.offsets if path.endswith("data_param.batch_size")]
    return net.where(fields[0]) if fields else net.path
