"""Rules for epochs in comments and titles, and on the images and global batch of a schedule.

Rules for the machine: cores for OpenMP threads and MLSL servers, and space in /tmp.

Rules for the rest of a recipe: its evaluation, and its nets for the digits data set.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.chain import batch_per_rank, parse_stop, planned_snapshots
from caffe_recipes.caffe.layers import batch_size, source_batch
from caffe_recipes.caffe.net_states import NetState, select_data_layers, test_states
from caffe_recipes.caffe.shapes import select_layers, stats_images
from caffe_recipes.caffe.weights import weights_bytes
from caffe_recipes.errors import PrototxtError
from caffe_recipes.recipe.checks import Location
from caffe_recipes.review.lint.links import link_finding
from caffe_recipes.review.lint.rules import (
    RULES,
    Explanation,
    Fix,
    chain_rule,
    finding,
    handover_rule,
    path_rule,
    recipe_rule,
)
from caffe_recipes.review.lint.solver_rules import misses_test_nets
from caffe_recipes.wording import describe_count

if TYPE_CHECKING:
    from caffe_recipes.caffe.chain import Chain, ChainFacts, Link, Net
    from caffe_recipes.caffe.text.comments import Comment
    from caffe_recipes.recipe.model import Acceptance, Recipe
    from caffe_recipes.review.lint.rules import Finding

_TOLERANCE = 0.02
_NUMBER = r"(\d[\d,]{0,14}(?:\.\d{1,9})?)"
# `1 epoch = 313 iterations` explains the size of an epoch and claims nothing about a field.
_CLAIM = re.compile(rf"(?<![\d.,]){_NUMBER}[ -]?epochs?\b(?!\s*(?:=|is\b|are\b|of\b))", re.IGNORECASE)
_IMAGES_OVER_BATCH = re.compile(rf"(?<![\d.,]){_NUMBER}\s*/\s*{_NUMBER}")
# The header of a generated solver.
_HEADER = re.compile(rf"{_NUMBER} images an iteration.{{0,99}}?, {_NUMBER} an epoch")
_FIELDS = ("max_iter", "lr_iter", "warmup_iter", "stepsize", "snapshot", "test_interval")
_MIN_IMAGES = 1000  # `3 / 4` is not images / batch


@dataclass(frozen=True)
class EpochSize:
    """The size of an epoch: images per epoch, and images per iteration (`batch`)."""

    images: float
    batch: float

    def epochs(self, iterations: float) -> float:
        """Convert iterations to epochs.

        >>> round(EpochSize(1281167, 4096).epochs(1000), 2)
        3.2
        """
        return iterations * self.batch / self.images


def parse_epoch_claims(text: str) -> tuple[float, ...]:
    """Return the numbers of epochs that a text states.

    >>> [parse_epoch_claims(text) for text in ("1281167 / 4096  * 5 epochs", "a 90-epoch run", "1 epoch = 9")]
    [(5.0,), (90.0,), ()]
    """
    return tuple(_number(match[1]) for match in _CLAIM.finditer(text))


def parse_epoch_size(text: str) -> EpochSize | None:
    """Return the images / batch in a text, such as `1281167 / 4096`; None if there are none.

    >>> parse_epoch_size("1281167 / 4096  * 5 epochs")
    EpochSize(images=1281167.0, batch=4096.0)
    """
    header = _HEADER.search(text)
    if header:
        return EpochSize(_number(header[2]), _number(header[1]))
    for match in _IMAGES_OVER_BATCH.finditer(text):
        images, batch = _number(match[1]), _number(match[2])
        if images >= _MIN_IMAGES and 0 < batch <= images:
            return EpochSize(images, batch)
    return None


@chain_rule(
    "images-differ",
    "warning",
    "a number of images that the schedule was not made for",
    what="the comments assume {assumed:,.0f} images, but there are {images:,}",
    effect="all epochs are shorter or longer than the schedule assumes",
    write="adapt the iterations and comments to this number of images",
    values=("images",),
)
def check_epochs(chain: Chain) -> Iterator[Finding]:
    """Find comments with wrong epochs, and images or a global batch that the schedule was not made for.

    A comment is checked with its own images / batch, else with that of another comment in the chain, else
    with the given values; without any of these it is not checked.
    """
    made_for = find_epoch_size(chain.links)
    for link in chain.links:
        given = _given_epoch_size(chain, link)
        yield from _check_claims(link, _scale_epoch_size(made_for, chain, link) if made_for else given)
        if made_for:
            yield from _check_global_batch(chain, link, made_for)
    if made_for and chain.facts.images and _differ(chain.facts.images, made_for.images):
        where = chain.links[0].solver.path
        yield finding("images-differ", where, images=chain.facts.images, assumed=made_for.images)


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
        claimed = next(filter(None, map(parse_epoch_size, _texts([comment] if comment else []))), None)
        images = chain.facts.test_images or link.tested_images or (claimed.images if claimed else 0)
        tested, needed = solver.test_iter[0] * batch, math.ceil(images / batch)
        is_short = tested < images * (1 - _TOLERANCE)
        is_long = tested > images * (1 + _TOLERANCE) and solver.test_iter[0] > needed
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


def find_epoch_size(links: Iterable[Link]) -> EpochSize | None:
    """Return the first images / batch in the comments of a chain's solvers; None if there is none."""
    for link in links:
        for field, comment in link.solver.comments.items():
            # A comment on test_iter is about the test set.
            bases = () if field.partition("[")[0] == "test_iter" else map(parse_epoch_size, _texts([comment]))
            if basis := next(filter(None, bases), None):
                return basis
    return None


@chain_rule(
    "title-epochs",
    "warning",
    "a recipe's title with a number of epochs that is more than 2% off",
    effect="readers will compare the results with those of a different schedule",
    write="correct the title to {whole:.0f} epochs, or change the length of the phases",
    values=("claimed", "epochs", "model"),
)
def check_title(title: str, where: str, whole: float, model: float) -> Iterator[Finding]:
    """Find a title whose epochs are neither those of the `whole` chain nor those of its final `model`."""
    for claim in parse_epoch_claims(title):
        if _differ(whole, claim) and _differ(model, claim):
            what = f"the title says {claim:g} epochs, but the phases add up to {whole:.2f}"
            if _differ(model, whole):
                what += f", and the final model is trained for {model:.2f} of them"
            yield finding("title-epochs", where, what, claimed=claim, epochs=whole, model=model, whole=whole)


def _scale_epoch_size(basis: EpochSize, chain: Chain, link: Link) -> EpochSize:
    """Scale the images per iteration from another phase's comment to this phase, by their iter_size."""
    source = next(one for one in chain.links if find_epoch_size([one]))
    times = max(link.solver.message.iter_size, 1) / max(source.solver.message.iter_size, 1)
    return EpochSize(basis.images, basis.batch * times)


def _check_claims(link: Link, others: EpochSize | None) -> Iterator[Finding]:
    for field, comment in link.solver.comments.items():
        iterations = _iteration_count(link.solver.message, field)
        for text in _texts([comment]) if iterations > 0 else ():
            stop = parse_stop(text) if field == "max_iter" else None
            basis, claims = parse_epoch_size(text) or others, parse_epoch_claims(text)
            if basis is None or not claims:
                continue
            epochs = basis.epochs(stop or iterations)
            differences = {abs(number - epochs): number for number in claims}
            claim = differences[min(differences)]
            if _differ(epochs, claim) and abs(epochs - claim) > _ROUNDING:
                yield _wrong_claim(link, field, text, stop or iterations, claim, basis)


def _iteration_count(solver: pb.SolverParameter, field: str) -> int:
    """Return the value of a solver field that is a number of iterations (or a `stepvalue`); 0 for others."""
    name, _, rest = field.partition("[")
    if name == "stepvalue":
        return solver.stepvalue[int(rest.removesuffix("]"))]
    value: int = getattr(solver, name) if name in _FIELDS else 0
    return value


@chain_rule(
    "epochs-claim",
    "warning",
    "a comment with a number of epochs that is more than 2% off",
    what="{field} {iterations} is {epochs:.4g} epochs, but the comment says {claim:g}",
    effect="{claim:g} epochs of {images:,.0f} images at {batch:,.0f} are {intended} iterations",
    write="{field}: {intended}, or correct the comment to {epochs:.3g} epochs",
    values=("claimed", "epochs", "iterations", "meant"),
    explanation=Explanation(
        "The epochs in a comment do not match the solver's iterations, so readers get a wrong idea of the "
        "schedule. Lint takes the size of an epoch from images / batch in a comment, from a generated "
        "header, or from --images with --ranks.",
        "Correct either the iterations or the epochs in the comment; the finding gives both numbers.",
    ),
    fix="corrects the comment's epochs; check that its iterations are the intended ones",
)
def _wrong_claim(
    link: Link, field: str, text: str, iterations: int, claim: float, basis: EpochSize
) -> Finding:
    intended = round(claim * basis.images / basis.batch)
    epochs = basis.epochs(iterations)

    def correct(match: re.Match[str]) -> str:
        return match[0].replace(match[1], f"{epochs:.4g}", 1) if _number(match[1]) == claim else match[0]

    where, name = link.solver.where(field), field.partition("[")[0]
    return finding(
        "epochs-claim",
        where,
        phase=link.name,
        fixes=(Fix(where, name, _CLAIM.sub(correct, text), comment=text),),
        claimed=claim,
        epochs=epochs,
        iterations=iterations,
        meant=intended,
        field=field,
        claim=claim,
        images=basis.images,
        batch=basis.batch,
        intended=intended,
    )


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
def _check_global_batch(chain: Chain, link: Link, made_for: EpochSize) -> Iterator[Finding]:
    each, ranks = batch_per_rank(link), link.ranks or chain.facts.ranks
    if each is None or link.net is None:
        return
    if ranks is not None and _differ(each * ranks, made_for.batch):
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


def _batch_place(net: Net) -> str:
    fields = [path for path in net.offsets if path.endswith("data_param.batch_size")]
    return net.where(fields[0]) if fields else net.path


def _given_epoch_size(chain: Chain, link: Link) -> EpochSize | None:
    each, ranks, images = batch_per_rank(link), link.ranks or chain.facts.ranks, chain.facts.images
    return EpochSize(images, each * ranks) if each and ranks and images else None


def _texts(comments: Iterable[Comment]) -> Iterator[str]:
    for comment in comments:
        yield from filter(None, comment.texts)


def _number(number: str) -> float:
    return float(number.replace(",", ""))


_ROUNDING = 0.005  # epochs in comments, including those that `generate` writes, have two decimals


def _differ(one: float, other: float) -> bool:
    return abs(one - other) > _TOLERANCE * abs(other)


_TMP = "/tmp/"


def busy_cores(facts: ChainFacts) -> Sequence[int]:
    """Return the cores that MLSL servers and OpenMP threads share.

    Assumes that core numbers alternate between sockets, so that the threads on a socket use its lowest
    numbers. A second hardware thread counts as its core.

    >>> from caffe_recipes.caffe.chain import ChainFacts
    >>> busy_cores(ChainFacts(ranks_per_node=2, omp_num_threads=22, mlsl_cores=(39, 38, 43, 42)))
    (38, 39, 42, 43)
    >>> busy_cores(ChainFacts(ranks_per_node=2, omp_num_threads=22, mlsl_cores=(44, 45, 46, 47)))
    ()
    """
    threads, cores = facts.threads_per_node, facts.cores_per_node
    return tuple(sorted({core for core in facts.mlsl_cores if (core % cores if cores else core) < threads}))


@recipe_rule(
    "mlsl-on-openmp-cores",
    "note",
    "MLSL servers on cores that OpenMP threads also use",
    what="MLSL servers are pinned to cores {listed}, and {shape} may use them too",
    effect="if core numbers alternate between sockets, a server and a thread share a core, unless MLSL keeps "
    "OpenMP off that core",
    values=("cores", "threads"),
    explanation=Explanation(
        "MLSL servers run on the cores in MLSL_SERVER_AFFINITY, and OpenMP threads may run there too.",
        "Pin the servers to cores that no thread uses, or start fewer threads.",
    ),
)
def check_cores(facts: ChainFacts, where: str) -> Iterator[Finding]:
    """Find MLSL servers on cores that OpenMP threads use."""
    busy = busy_cores(facts)
    if not busy:
        return
    first, last = facts.threads_per_node, facts.cores_per_node
    threads = describe_count(facts.omp_num_threads or 0, "OpenMP thread")
    shape = f"{describe_count(facts.ranks_per_node or 0, 'rank')} x {threads} per node"
    if facts.sockets_per_node and facts.cores_per_socket:
        each = first / facts.sockets_per_node
        shape = f"{each:g} OpenMP threads on each socket of {facts.cores_per_socket} cores"
    spare = f"cores {first} and up" if not last else f"cores between {first} and {last - 1}"
    cores = ",".join(map(str, busy))
    yield finding(
        "mlsl-on-openmp-cores",
        where,
        write=f"MLSL_SERVER_AFFINITY: {spare}" if not last or first < last else "fewer OpenMP threads",
        cores=cores,
        threads=first,
        listed=", ".join(map(str, busy)),
        shape=shape,
    )


@recipe_rule(
    "threads-above-cores",
    "warning",
    "more OpenMP threads on a node than it has cores",
    what="{ranks} ranks x {omp_threads} OpenMP threads per node on {cores} cores",
    effect="threads wait for each other in every layer, so training is many times slower",
    write="omp_num_threads: {fewer} or less",
    values=("threads", "cores"),
)
def check_threads(facts: ChainFacts, where: str) -> Iterator[Finding]:
    """Find more OpenMP threads on a node than it has cores."""
    threads, cores = facts.threads_per_node, facts.cores_per_node
    if not 0 < cores < threads:
        return
    yield finding(
        "threads-above-cores",
        where,
        threads=threads,
        cores=cores,
        ranks=facts.ranks_per_node,
        omp_threads=facts.omp_num_threads,
        fewer=max(cores // (facts.ranks_per_node or 1), 1),
    )


@recipe_rule(
    "tmp-too-small",
    "error",
    "an LMDB and snapshots that together do not fit into a node's /tmp",
    what="/tmp has {tmp_gb:g} GB, but the LMDB needs {lmdb_gb:.1f} GB and the snapshots "
    "{snapshots_gb:.1f} GB",
    effect="staging fails, or Caffe aborts when it writes a snapshot",
    write="set snapshot_prefix to another disk, write fewer snapshots, or set `lmdb` to another disk",
    values=("lmdb_gb", "snapshots_gb"),
)
def check_tmp(chain: Chain, where: str, tmp_gb: float, lmdb: str, lmdb_gb: float) -> Iterator[Finding]:
    """Find an LMDB and snapshots that do not fit into the first node's /tmp together."""
    data = lmdb_gb * 1e9 if lmdb.startswith(_TMP) else 0
    snapshots = sum(_snapshot_bytes(chain)) if chain.links else 0
    if data + snapshots <= tmp_gb * 1e9:
        return
    yield finding(
        "tmp-too-small",
        where,
        lmdb_gb=data / 1000000000.0,
        snapshots_gb=snapshots / 1000000000.0,
        tmp_gb=tmp_gb,
    )


def _snapshot_bytes(chain: Chain) -> Iterator[float]:
    """Yield the bytes of each phase's snapshots in /tmp; a solverstate is as large as the weights."""
    weights: dict[str, int] = {}  # by the net's path, since phases share their nets
    for link in chain.links:
        if link.net is None or not link.solver.message.snapshot_prefix.startswith(_TMP):
            continue
        if link.net.path not in weights:
            with suppress(PrototxtError):  # a net rule reports this
                weights[link.net.path] = weights_bytes(link.net.message, pb.TRAIN) or 0
        yield 2 * len(planned_snapshots(link)) * weights.get(link.net.path, 0)


# The images that `prepare: digits` builds. They are defined in data/digits.py, which this package must not
# import.
DIGITS_CLASSES = 10
DIGITS_SIDE_PX = 32

_Locate = Callable[[Location], str]


def check_recipe_values(
    recipe: Recipe, locate: _Locate, evaluated: pb.NetParameter | None
) -> Iterator[Finding]:
    """Find an evaluation that misses or repeats images, unknown flags, and a net unfit for the digits.

    `evaluated` is the net of the evaluation.
    """
    yield from _check_evaluation(recipe, locate(("evaluation", "iterations")), evaluated)
    yield from _check_flags(recipe, locate)
    if recipe.data.prepare == "digits":
        yield from _check_classes(recipe, locate(("net", "classes")))
        yield from _check_crop(recipe, locate(("data", "crop_size")))


@recipe_rule(
    "unknown-flag",
    "warning",
    "a flag that the TensorFlow programs of this package do not know",
    what="{fault}",
    effect="every rank exits at once, unless RESNET_DIR names other programs",
    values=("flag",),
)
def _check_flags(recipe: Recipe, locate: _Locate) -> Iterator[Finding]:
    from caffe_recipes.tensorflow.run import find_unknown_flags  # slow, since pydantic is

    for location, fault, hint in find_unknown_flags(recipe.tensorflow) if recipe.tensorflow else ():
        yield finding("unknown-flag", locate(location), write=hint, fault=fault, flag=location[-1])


_MOST_DIVISORS = 100_000  # that are tried; the batch of a net may be any number


@recipe_rule(
    "evaluation-partial",
    "warning",
    "an evaluation that does not use all test images",
    what="the evaluation tests only {tested:,} of {images:,} images",
    effect="the accuracy is measured on the first images of the test set only",
    write="iterations: {whole}",
    values=("tested", "images"),
)
@recipe_rule(
    "evaluation-repeats",
    "note",
    "an evaluation that counts test images twice",
    effect="{extra:,} of them are counted twice",
    values=("tested", "images"),
)
def _check_evaluation(recipe: Recipe, where: str, evaluated: pb.NetParameter | None) -> Iterator[Finding]:
    if recipe.evaluation is None:
        return
    count, batch = recipe.data.test.images, recipe.data.test.batch_size
    if recipe.data.is_in_net:
        layers = select_data_layers(evaluated, NetState(pb.TEST)) if evaluated else []
        batch = next(filter(None, map(source_batch, layers)), 0)
    if not batch:
        return
    iterations = recipe.evaluation.iterations
    tested, whole = iterations * batch, math.ceil(count / batch)
    images = f"{iterations} iterations of {batch} test {tested:,} images"
    if tested < count:
        yield finding("evaluation-partial", where, tested=tested, images=count, whole=whole)
    elif tested > count:
        what = f"{images}, but the test set has {count:,}"
        divisor = max(size for size in range(1, min(batch, _MOST_DIVISORS) + 1) if count % size == 0)
        write = f"iterations: {whole}"
        if iterations == whole:
            once = f"batch_size: {divisor} and iterations: {count // divisor}, to test each image once"
            write = once if divisor > 1 else "no change needed if this is intended"
        yield finding(
            "evaluation-repeats",
            where,
            what,
            write=write,
            tested=tested,
            images=count,
            extra=tested - count,
        )


@recipe_rule(
    "classes-below-labels",
    "error",
    "fewer classes than the data set that `prepare` builds",
    what="classes is {classes}, but the digits have {known}",
    effect="labels from {classes} on make Caffe read past the outputs and crash (SIGSEGV)",
    write="classes: {known}",
    values=("classes",),
)
@recipe_rule(
    "classes-above-labels",
    "note",
    "more classes than the data set that `prepare` builds",
    what="classes is {classes}, but the digits have {known}",
    effect="outputs from {known} on are never used, which is harmless",
    write="classes: {known}",
    values=("classes",),
)
def _check_classes(recipe: Recipe, where: str) -> Iterator[Finding]:
    classes = recipe.net.classes
    if classes < DIGITS_CLASSES:
        yield finding("classes-below-labels", where, classes=classes, known=DIGITS_CLASSES)
    elif classes > DIGITS_CLASSES:
        yield finding("classes-above-labels", where, classes=classes, known=DIGITS_CLASSES)


@recipe_rule(
    "crop-above-records",
    "error",
    "a crop_size larger than the images that `prepare` builds",
    what="crop_size is {crop} in {field}, but the digits are {side_px}x{side_px} pixels",
    effect="the trainer aborts at the first image: Check failed: height >= crop_size",
    write="crop_size: {side_px} or less",
)
def _check_crop(recipe: Recipe, where: str) -> Iterator[Finding]:
    crop = recipe.data.crop_size or 0
    # Images that are resized first are large enough.
    trained = [name for name, net in recipe.nets.items() if net.random_aspect_ratio is None]
    tested = [name for name, net in recipe.nets.items() if net.test and not recipe.data.test.shorter_side_px]
    names = list(dict.fromkeys([*trained, *tested]))
    if crop > DIGITS_SIDE_PX and names:
        yield finding("crop-above-records", where, crop=crop, field=names[0], side_px=DIGITS_SIDE_PX)


@recipe_rule(
    "accept-unknown",
    "error",
    "an `accept:` entry that names a rule or phase that does not exist",
    effect="it accepts nothing, so the finding is still reported",
)
@recipe_rule(
    "unused-accept",
    "warning",
    "an `accept:` entry that matches no finding",
    what="'{accepted}'{of_phase} is accepted, but matches no finding",
    effect="a later finding with this id would be accepted unnoticed",
    write="remove the entry, or correct its id or phase",
)
def accept_findings(
    findings: Iterable[Finding], recipe: Recipe, locate: Callable[[int], str]
) -> list[Finding]:
    """Mark accepted findings with their reason, and report `accept:` entries that match no finding."""
    accept = recipe.accept
    marked, used = [], set()
    for found in findings:
        fitting = [index for index, one in enumerate(accept) if accepts(one, found)]
        used.update(fitting)
        marked.append(replace(found, accepted=accept[fitting[0]].reason) if fitting else found)
    for index, one in enumerate(accept):
        unknown = _describe_unknown(one, recipe)
        if unknown:
            what, write = unknown
            marked.append(finding("accept-unknown", locate(index), what, write=write))
        elif index not in used:
            of_phase = f" of phase '{one.phase}'" if one.phase else ""
            marked.append(
                finding(
                    "unused-accept",
                    locate(index),
                    phase=one.phase or "",
                    accepted=one.finding,
                    of_phase=of_phase,
                )
            )
    return marked


def _describe_unknown(one: Acceptance, recipe: Recipe) -> tuple[str, str] | None:
    """Return what is wrong with an `accept:` entry's rule or phase, and what to write; None if both exist."""
    phases = [phase.name for phase in recipe.phases]
    if one.finding not in RULES:
        near = difflib.get_close_matches(one.finding, RULES, n=1)
        write = f"finding: {near[0]}" if near else "an id from `caffe-recipes lint --rules`"
        return f"'{one.finding}' is accepted, but lint has no rule with this id", write
    if one.phase is not None and one.phase not in phases:
        near = difflib.get_close_matches(one.phase, phases, n=1)
        what = f"'{one.finding}' is accepted in phase '{one.phase}', which does not exist"
        return what, f"phase: {near[0] if near else ', or '.join(phases)}"
    return None


def accepts(one: Acceptance, found: Finding) -> bool:
    """Return whether an `accept:` entry matches a finding: by id, and by phase if the entry has one."""
    return one.finding == found.id and one.phase in (None, found.phase)
