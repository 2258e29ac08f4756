"""Epochs that comments and titles claim, and the images and the global batch that a schedule was made for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.prototxt import Comment
from caffe_recipes.review.findings import Finding
from caffe_recipes.review.lint.chains.chain import Chain, Link, Net, batch_per_rank
from caffe_recipes.review.lint.chains.stops import parse_stop
from caffe_recipes.review.lint.rules import finding

_TOLERANCE = 0.02
_NUMBER = r"(\d[\d,]{0,14}(?:\.\d{1,9})?)"
# `1 epoch = 313 iterations` explains, it claims nothing.
_CLAIM = re.compile(rf"(?<![\d.,]){_NUMBER}[ -]?epochs?\b(?!\s*(?:=|is\b|are\b|of\b))", re.IGNORECASE)
_BASIS = re.compile(rf"(?<![\d.,]){_NUMBER}\s*/\s*{_NUMBER}")
# What our own generated solvers say at their top.
_HEADER = re.compile(rf"{_NUMBER} images an iteration.*?, {_NUMBER} an epoch")
_FIELDS = ("max_iter", "lr_iter", "warmup_iter", "stepsize", "snapshot", "test_interval")
_LEAST_IMAGES = 1000  # below it, `3 / 4` is no images over batch


@dataclass(frozen=True)
class Basis:
    """What an epoch is made of: images in it, and images in an iteration."""

    images: float
    batch: float

    def epochs(self, iterations: float) -> float:
        """Give the epochs of so many iterations.

        >>> round(Basis(1281167, 4096).epochs(1000), 2)
        3.2
        """
        return iterations * self.batch / self.images


def parse_claims(text: str) -> tuple[float, ...]:
    """Find the numbers of epochs that a text claims.

    >>> [parse_claims(text) for text in ("1281167 / 4096  * 5 epochs", "a 90-epoch run", "1 epoch = 9")]
    [(5.0,), (90.0,), ()]
    """
    return tuple(_value(match[1]) for match in _CLAIM.finditer(text))


def parse_basis(text: str) -> Basis | None:
    """Find images over batch in a comment.

    >>> parse_basis("1281167 / 4096  * 5 epochs")
    Basis(images=1281167.0, batch=4096.0)
    """
    header = _HEADER.search(text)
    if header:
        return Basis(_value(header[2]), _value(header[1]))
    for match in _BASIS.finditer(text):
        images, batch = _value(match[1]), _value(match[2])
        if images >= _LEAST_IMAGES and 0 < batch <= images:
            return Basis(images, batch)
    return None


def check_epochs(chain: Chain) -> Iterator[Finding]:
    """Find comments whose epochs are off, and a global batch or images that the schedule was not made for.

    A comment is judged by its own images over batch, else by those of another comment of the chain, else by
    what is given; with none of these it is not judged.
    """
    made_for = find_basis(chain.links)
    for link in chain.links:
        given = _given_basis(chain, link)
        yield from _claims(link, _scaled(made_for, chain, link) if made_for else given)
        if made_for:
            yield from _batch(chain, link, made_for)
    if made_for and chain.setting.images and _differ(chain.setting.images, made_for.images):
        what = f"comments count on {made_for.images:,.0f} images, and there are {chain.setting.images:,}"
        effect = "all epochs are shorter or longer than the schedule's"
        where, write = chain.links[0].solver.path, "iterations and comments for these images"
        yield finding("images-differ", where, what, effect, write, images=chain.setting.images)


def find_basis(links: Iterable[Link]) -> Basis | None:
    """Find the first images over batch in the comments of a chain's solvers."""
    for link in links:
        for text in _texts(link.solver.comments.values()):
            basis = parse_basis(text)
            if basis:
                return basis
    return None


def check_title(title: str, where: str, whole: float, model: float) -> Iterator[Finding]:
    """Find a title whose epochs are neither those of the `whole` chain nor those behind its last `model`."""
    for claim in parse_claims(title):
        if _differ(whole, claim) and _differ(model, claim):
            what = f"the title says {claim:g} epochs, and the phases make {whole:.2f}"
            if _differ(model, whole):
                what += f", of which {model:.2f} are behind the last model"
            effect = "results are compared with those of other schedules"
            write = f"{whole:.0f} epochs, or phases of other lengths"
            yield finding(
                "title-epochs", where, what, effect, write, claimed=claim, epochs=whole, model=model
            )


def _scaled(basis: Basis, chain: Chain, link: Link) -> Basis:
    """Give another phase's images in an iteration as this one has them, by the iter_size of both."""
    of = next(one for one in chain.links if find_basis([one]))
    times = max(link.solver.message.iter_size, 1) / max(of.solver.message.iter_size, 1)
    return Basis(basis.images, basis.batch * times)


def _claims(link: Link, others: Basis | None) -> Iterator[Finding]:
    for field, comment in link.solver.comments.items():
        iterations = _iterations(link.solver.message, field)
        for text in _texts([comment]) if iterations > 0 else ():
            stop = parse_stop(text) if field == "max_iter" else None
            basis, claims = parse_basis(text) or others, parse_claims(text)
            if basis is None or not claims:
                continue
            epochs = basis.epochs(stop or iterations)
            differences = {abs(number - epochs): number for number in claims}
            claim = differences[min(differences)]
            if _differ(epochs, claim):
                yield _wrong_claim(link, field, stop or iterations, claim, basis)


def _iterations(solver: pb.SolverParameter, field: str) -> int:
    """Give the iterations that a field of a solver, or one of its `stepvalue`s, counts; else 0."""
    name, _, rest = field.partition("[")
    if name == "stepvalue":
        return solver.stepvalue[int(rest.removesuffix("]"))]
    value: int = getattr(solver, name) if name in _FIELDS else 0
    return value


def _wrong_claim(link: Link, field: str, iterations: int, claim: float, basis: Basis) -> Finding:
    meant = round(claim * basis.images / basis.batch)
    epochs = basis.epochs(iterations)
    what = f"{field} {iterations} is {epochs:.4g} epochs, and the comment claims {claim:g}"
    effect = f"{claim:g} epochs of {basis.images:,.0f} images at {basis.batch:,.0f} are {meant} iterations"
    write = f"{field}: {meant}, or a comment that says {epochs:.3g} epochs"
    values = {"claimed": claim, "epochs": epochs, "iterations": iterations, "meant": meant}
    return finding("epochs-claim", link.solver.where(field), what, effect, write, link.name, **values)


def _batch(chain: Chain, link: Link, made_for: Basis) -> Iterator[Finding]:
    each, ranks = batch_per_rank(link), link.ranks or chain.setting.ranks
    if each is None or link.net is None:
        return
    if ranks is not None and _differ(each * ranks, made_for.batch):
        what = f"{ranks} ranks x {each} are {each * ranks:,} images an iteration"
    elif ranks is None and made_for.batch % each:
        what = f"no number of ranks makes {made_for.batch:,.0f} images an iteration from {each} of each"
    else:
        return
    what += f", and the schedule was made for {made_for.batch:,.0f}"
    effect = "the rate is that of another batch, and the iterations are other epochs"
    write = f"ranks x batch_size = {made_for.batch:,.0f}, or a schedule for this batch"
    where = _batch_place(link.net) or link.solver.path
    made = {"batch": each * (ranks or 1), "made_for": made_for.batch}
    yield finding("global-batch", where, what, effect, write, link.name, **made)


def _batch_place(net: Net) -> str:
    fields = [path for path in net.offsets if path.endswith("data_param.batch_size")]
    return net.where(fields[0]) if fields else net.path


def _given_basis(chain: Chain, link: Link) -> Basis | None:
    each, ranks, images = batch_per_rank(link), link.ranks or chain.setting.ranks, chain.setting.images
    return Basis(images, each * ranks) if each and ranks and images else None


def _texts(comments: Iterable[Comment]) -> Iterator[str]:
    for comment in comments:
        yield from (text for text in (*comment.above, comment.beside, *comment.below) if text)


def _value(number: str) -> float:
    return float(number.replace(",", ""))


def _differ(one: float, other: float) -> bool:
    return abs(one - other) > _TOLERANCE * abs(other)
