"""The table of lint's rules: registering a rule above a check puts the check on the list of its subject.

A new rule is a check in a module of `rules/`. The package is listed, so nothing else names it.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, ParamSpec, TypedDict, TypeVar, Unpack

from caffe_recipes.review.lint import rules
from caffe_recipes.review.lint.findings import Finding, Fix, Severity

if TYPE_CHECKING:
    from caffe_recipes.caffe.chain import Link

P = ParamSpec("P")
Check = TypeVar("Check", bound=Callable[..., object])


class Explanation(NamedTuple):
    """A rule's effect and advice in general terms, where its findings alone do not explain it."""

    effect: str
    write: str


@dataclass(frozen=True, slots=True)
class LintRule:
    """A rule, by its id (`name`), which is given only once.

    `subject` is what it checks, and `summary` one line on what it reports. `what`, `effect` and `write` are
    the texts of its findings: templates (`str.format`) of their values, or empty if each finding has its
    own. `values` names those values that the JSON holds, too. `explanation` replaces `effect` and `write` in
    `--explain`. `fix` says what `--fix` does, or is empty.
    """

    subject: str
    name: str
    severity: Severity
    summary: str
    _: KW_ONLY
    what: str = ""
    effect: str = ""
    write: str = ""
    values: Sequence[str] = ()
    explanation: Explanation | None = None
    fix: str = ""


class Texts(TypedDict, total=False):
    """The texts of a rule that may be empty, as in `LintRule`."""

    what: str
    effect: str
    write: str
    values: Sequence[str]
    explanation: Explanation
    fix: str


_RULES: dict[str, LintRule] = {}


@cache
def load_rules() -> Mapping[str, LintRule]:
    """Return every rule by its id. The first call imports the modules of `rules/`, which register them."""
    for module in sorted(module.name for module in pkgutil.iter_modules(rules.__path__)):
        import_module(f"{rules.__name__}.{module}")
    return _RULES


class Subject(Generic[P]):
    """What rules check, in one line (`text`), and their checks, in the order in which they are called.

    Call it to register a rule: the check below is then called by `run`, once, however many rules it has.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.checks: list[Callable[P, Iterator[Finding]]] = []

    def __call__(
        self, name: str, severity: Severity, summary: str, **texts: Unpack[Texts]
    ) -> Callable[[Callable[P, Iterator[Finding]]], Callable[P, Iterator[Finding]]]:
        """Register a rule, and return the decorator of the checks that find it."""
        self.also(name, severity, summary, **texts)
        return self.add

    def add(self, check: Callable[P, Iterator[Finding]]) -> Callable[P, Iterator[Finding]]:
        """Put a check on the list, and return it: one whose rule is registered elsewhere."""
        if check not in self.checks:
            self.checks.append(check)
        return check

    def also(
        self, name: str, severity: Severity, summary: str, **texts: Unpack[Texts]
    ) -> Callable[[Check], Check]:
        """Register a rule that the function below finds for a check, or for what reads the files."""
        assert name not in _RULES, name
        _RULES[name] = LintRule(self.text, name, severity, summary, **texts)
        return lambda function: function

    def run(self, *args: P.args, **kwargs: P.kwargs) -> Iterator[Finding]:
        """Yield the findings of all checks of this subject."""
        load_rules()
        for check in self.checks:
            yield from check(*args, **kwargs)


def finding(
    name: str,
    where: str,
    /,
    what: str = "",
    phase: str = "",
    *,
    effect: str = "",
    write: str = "",
    fixes: tuple[Fix, ...] = (),
    **values: Any,  # noqa: ANN401 - numbers and text
) -> Finding:
    """Return a finding of a rule, whose texts are those of the rule, with these values, unless given here.

    In the texts of the rule, `{phase}` is the phase. Raises KeyError for an unknown rule or a missing value.
    """
    rule = load_rules()[name]

    def fill(template: str) -> str:
        return template.format(phase=phase, **values)

    what, effect, write = what or fill(rule.what), effect or fill(rule.effect), write or fill(rule.write)
    reported = {key: values[key] for key in rule.values if key in values}
    return Finding(name, rule.severity, where, what, effect, write, reported, phase, fixes=fixes)


def link_finding(
    name: str,
    link: Link,
    field: str = "",
    /,
    what: str = "",
    **others: Any,  # noqa: ANN401 - those of `finding`
) -> Finding:
    """Return a finding about a phase, at a field of its solver, or else at the command that trains it."""
    where = link.solver.where(field) if field else link.weights_where or link.solver.path
    return finding(name, where, what, link.name, **others)
