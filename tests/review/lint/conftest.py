"""What the tests of lint's rules on one net share."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.documents import parse_document
from caffe_recipes.review.findings import Finding
from caffe_recipes.review.lint.nets import NET_RULES, check_net

CheckText = Callable[..., dict[str, Finding]]


@pytest.fixture
def check_text() -> CheckText:
    """Give a function that checks the text of a net, and gives its findings by id, the first of each."""

    def check(text: str, **known: object) -> dict[str, Finding]:
        found = check_net(parse_document(text, "net.prototxt", pb.NetParameter), **known)  # type: ignore[arg-type]
        for finding in found:
            assert finding.severity == NET_RULES[finding.id][0]
            assert finding.what and finding.effect and finding.write
            assert finding.where.startswith("net.prototxt")
        first: dict[str, Finding] = {}
        for finding in found:
            first.setdefault(finding.id, finding)
        return first

    return check
