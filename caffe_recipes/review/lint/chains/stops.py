"""Phases that are stopped short of their max_iter, as the comments of generated solvers say."""

from __future__ import annotations

import re
from dataclasses import replace

from caffe_recipes.review.lint.chains.chain import Chain, Link

_STOP = re.compile(r"\bstopped at (?:iteration )?(\d[\d,]{0,12})", re.IGNORECASE)


def parse_stop(text: str) -> int | None:
    """Find the iteration at which a comment says that a phase is stopped.

    >>> parse_stop("stopped at 7800, 24.94 epochs"), parse_stop("24.94 epochs")
    (7800, None)
    """
    match = _STOP.search(text)
    return int(match[1].replace(",", "")) if match else None


def stop_phases(chain: Chain) -> Chain:
    """Give a chain whose phases end where the comments beside their max_iter say, if nothing else said so."""
    return replace(chain, links=tuple(map(_stopped, chain.links)))


def _stopped(link: Link) -> Link:
    most, comment = link.solver.message.max_iter, link.solver.comments.get("max_iter")
    if link.last_iter != most or comment is None:
        return link
    texts = [text for text in (*comment.above, comment.beside, *comment.below) if text]
    stops = [stop for text in texts if (stop := parse_stop(text)) is not None and 0 < stop < most]
    return replace(link, last_iter=stops[0]) if stops else link
