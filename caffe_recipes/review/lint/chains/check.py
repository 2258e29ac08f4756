"""All rules over one chain, and findings in the order in which a reader goes through the files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from caffe_recipes.review.findings import Finding
from caffe_recipes.review.lint.chains.chain import Chain
from caffe_recipes.review.lint.chains.changes import check_changes
from caffe_recipes.review.lint.chains.epochs import check_epochs
from caffe_recipes.review.lint.chains.handovers import check_handovers
from caffe_recipes.review.lint.chains.joins import check_joins
from caffe_recipes.review.lint.chains.schedule import check_schedule
from caffe_recipes.review.lint.chains.snapshots import check_snapshots
from caffe_recipes.review.lint.chains.solver_values import check_solver_values
from caffe_recipes.review.lint.chains.steps import check_steps
from caffe_recipes.review.lint.chains.stops import stop_phases

_PLACE = re.compile(r"(.*?)(?::(\d+))?(?::(\d+))?", re.DOTALL)


def check_chain(chain: Chain) -> Iterator[Finding]:
    """Find what is wrong with a chain of phases and its parts, but for what is a net's own."""
    if not chain.links:
        return
    chain = stop_phases(chain)
    for link in chain.links:
        is_last = chain.is_whole and link is chain.links[-1]
        yield from check_schedule(link, is_last=is_last, is_alone=len(chain.links) == 1)
        yield from check_solver_values(link)
    yield from check_joins(chain)
    yield from check_epochs(chain)
    yield from check_snapshots(chain)
    yield from check_steps(chain)
    yield from check_handovers(chain)
    yield from check_changes(chain)


def sort_findings(findings: Iterable[Finding], paths: Iterable[str]) -> list[Finding]:
    """Order findings by file and line, files as in `paths` after what is in none of them; give each once."""
    files = {path: index for index, path in enumerate(dict.fromkeys(paths))}
    placed: dict[tuple[str, str, str], tuple[tuple[int, int, int], Finding]] = {}
    for found in findings:
        path, line, column = split_place(found.where)
        order = (files.get(path, -1), line, column)
        placed.setdefault((found.id, found.where, found.what), (order, found))
    return [found for _, found in sorted(placed.values(), key=lambda pair: pair[0])]


def split_place(where: str) -> tuple[str, int, int]:
    """Split `file:line:column`; what is not there is 0.

    >>> split_place("a:b.prototxt:12:3"), split_place("net.prototxt")
    (('a:b.prototxt', 12, 3), ('net.prototxt', 0, 0))
    """
    match = _PLACE.fullmatch(where)
    assert match
    return match[1], int(match[2] or 0), int(match[3] or 0)
