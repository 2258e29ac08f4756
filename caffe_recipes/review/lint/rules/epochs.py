"""Rules for epochs in comments and titles."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from caffe_recipes.caffe.chain import batch_per_rank, parse_stop
from caffe_recipes.caffe.epoch_comments import (
    EPOCH_CLAIM,
    EpochSize,
    comment_texts,
    differs,
    find_epoch_size,
    find_epoch_size_of,
    parse_count,
    parse_epoch_claims,
    parse_epoch_size,
)
from caffe_recipes.review.lint.findings import Fix
from caffe_recipes.review.lint.registry import Explanation, finding
from caffe_recipes.review.lint.subjects import RecipeView, chain_rule, title_rule

if TYPE_CHECKING:
    from caffe_recipes.caffe import pb
    from caffe_recipes.caffe.chain import Chain, Link
    from caffe_recipes.review.lint.findings import Finding


_FIELDS = ("max_iter", "lr_iter", "warmup_iter", "stepsize", "snapshot", "test_interval")


@chain_rule(
    "images-differ",
    "warning",
    "a number of images that the schedule was not made for",
    what="the comments assume {assumed:,.0f} images, but there are {images:,}",
    effect="all epochs are shorter or longer than the schedule assumes",
    write="adapt the iterations and comments to this number of images",
    values=("images",),
)
def _check_images(chain: Chain) -> Iterator[Finding]:
    made_for, images = find_epoch_size(chain.links), chain.facts.images
    if made_for and images and differs(images, made_for.images):
        yield finding("images-differ", chain.links[0].solver.path, images=images, assumed=made_for.images)


@title_rule(
    "title-epochs",
    "warning",
    "a recipe's title with a number of epochs that is more than 2% off",
    effect="readers will compare the results with those of a different schedule",
    write="correct the title to {whole:.0f} epochs, or change the length of the phases",
    values=("claimed", "epochs", "model"),
)
def _check_recipe_title(view: RecipeView) -> Iterator[Finding]:
    from caffe_recipes.recipe.graph import model_epochs, total_epochs  # slow, since pydantic is

    whole, model = total_epochs(view.recipe), model_epochs(view.recipe)
    yield from check_title(view.recipe.title, view.locate(("title",)), whole, model)


def check_title(title: str, where: str, whole: float, model: float) -> Iterator[Finding]:
    """Find a title whose epochs are neither those of the `whole` chain nor those of its final `model`."""
    for claim in parse_epoch_claims(title):
        if differs(whole, claim) and differs(model, claim):
            what = f"the title says {claim:g} epochs, but the phases add up to {whole:.2f}"
            if differs(model, whole):
                what += f", and the final model is trained for {model:.2f} of them"
            yield finding("title-epochs", where, what, claimed=claim, epochs=whole, model=model, whole=whole)


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
def check_claims(chain: Chain) -> Iterator[Finding]:
    """Find comments with wrong epochs.

    A comment is checked with its own images / batch, else with that of another comment in the chain, else
    with the given values; without any of these it is not checked.
    """
    for link in chain.links:
        yield from _check_claims(link, find_epoch_size_of(chain, link) or _given_epoch_size(chain, link))


def _check_claims(link: Link, others: EpochSize | None) -> Iterator[Finding]:
    for field, comment in link.solver.comments.items():
        iterations = _iteration_count(link.solver.message, field)
        for text in comment_texts([comment]) if iterations > 0 else ():
            stop = parse_stop(text) if field == "max_iter" else None
            basis, claims = parse_epoch_size(text) or others, parse_epoch_claims(text)
            if basis is None or not claims:
                continue
            epochs = basis.epochs(stop or iterations)
            differences = {abs(number - epochs): number for number in claims}
            claim = differences[min(differences)]
            if differs(epochs, claim) and abs(epochs - claim) > _ROUNDING:
                yield _wrong_claim(link, field, text, stop or iterations, claim, basis)


def _iteration_count(solver: pb.SolverParameter, field: str) -> int:
    """Return the value of a solver field that is a number of iterations (or a `stepvalue`); 0 for others."""
    name, _, rest = field.partition("[")
    if name == "stepvalue":
        return solver.stepvalue[int(rest.removesuffix("]"))]
    value: int = getattr(solver, name) if name in _FIELDS else 0
    return value


def _wrong_claim(
    link: Link, field: str, text: str, iterations: int, claim: float, basis: EpochSize
) -> Finding:
    intended = round(claim * basis.images / basis.batch)
    epochs = basis.epochs(iterations)

    def correct(match: re.Match[str]) -> str:
        return match[0].replace(match[1], f"{epochs:.4g}", 1) if parse_count(match[1]) == claim else match[0]

    where, name = link.solver.where(field), field.partition("[")[0]
    return finding(
        "epochs-claim",
        where,
        phase=link.name,
        fixes=(Fix(where, name, EPOCH_CLAIM.sub(correct, text), comment=text),),
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


def _given_epoch_size(chain: Chain, link: Link) -> EpochSize | None:
    each, ranks, images = batch_per_rank(link), link.ranks or chain.facts.ranks, chain.facts.images
    return EpochSize(images, each * ranks) if each and ranks and images else None


_ROUNDING = 0.005  # epochs in comments, including those that `generate` writes, have two decimals
