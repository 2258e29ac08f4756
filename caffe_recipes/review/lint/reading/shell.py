"""What a shell script's loops over words, and calls of its functions, come to: the lines that are run.

Only what can be told without running anything: plain words, and arguments by their place.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

Line = tuple[str, int]

_MOST_CHARACTERS = 4_000_000
_MOST_DEPTH = 3
_FOR = re.compile(r"(?:^|[;&{]|\bdo\s|\bthen\s)\s*for\s+(\w+)\s+in\s+([^;\n]*?)\s*[;\n]\s*do\b", re.MULTILINE)
_LOOP_WORD = re.compile(r"(?:^|[;&])[ \t]*(do|done)\b", re.MULTILINE)
_LIST = r"^\s*(?:readonly\s+|export\s+|declare\s+-a\s+)?{}=(?:\"([^\"$`]*)\"|'([^']*)'|\(([^)$`]*)\))"
_RANGE = re.compile(r"\{(\d{1,4})\.\.(\d{1,4})\}")
_DEFINED = re.compile(r"\s*(?:function\s+([\w-]+)\s*(?:\(\s*\))?|([\w-]+)\s*\(\s*\))\s*(\{.*)?")
_BEFORE_CALL = {"if", "then", "else", "do", "time", "!", "while", "until", "{"}


@dataclass
class _Budget:
    """How many characters may still be written: loops in loops multiply."""

    left: int = _MOST_CHARACTERS
    functions: dict[str, list[Line]] = field(default_factory=dict)

    def allows(self, characters: int) -> bool:
        self.left -= max(characters, 0)
        return self.left >= 0


def expand_lines(text: str) -> list[Line]:
    r"""Give the lines of a script without comments, as often as they are run, each with its number.

    A loop's line has its own number, a function's that of its call. What cannot be told stays as it is.

    >>> text = "for p in a b; do\n  run $p\ndone\nf() { go ${1}; }\nf c"
    >>> [(line.strip(), number) for line, number in expand_lines(text) if line.strip()]
    [('run a', 2), ('run b', 2), ('go c;', 5)]
    """
    bare = "\n".join(line for line, _ in read_lines(text))
    budget = _Budget()
    lines = _expand_loops(bare, 1, bare, budget, 0)
    rest = _take_functions(lines, budget)
    return list(_expand_calls(rest, budget, 0))


def read_lines(text: str) -> list[Line]:
    """Give the lines of a text as they stand, without comments, each with its number."""
    return [(_without_comment(line), number) for number, line in enumerate(text.splitlines(), 1)]


def _without_comment(line: str) -> str:
    return line if line.lstrip().startswith("#SBATCH") else re.sub(r"(^|\s)#.*", "", line)


def _expand_loops(text: str, first: int, whole: str, budget: _Budget, depth: int) -> list[Line]:
    lines: list[Line] = []
    place, number = 0, first
    heads = list(_FOR.finditer(text)) if depth < _MOST_DEPTH else []
    marks = [(mark.start(), mark.end(), mark[1]) for mark in _LOOP_WORD.finditer(text)] if heads else []
    for head in heads:
        end = _find_end(marks, head.end()) if head.start() >= place else None
        words = _plain_words(head[2], whole) if end else None
        if end is None or words is None or not budget.allows(len(words) * (end[0] - head.end())):
            continue
        lines += _numbered(text[place : head.start()], number)
        body = text[head.end() : end[0]]
        number += text.count("\n", place, head.end())
        for word in words:
            lines += _expand_loops(_put_in(body, {head[1]: word}), number, whole, budget, depth + 1)
        number += text.count("\n", head.end(), end[1])
        place = end[1]
    return lines + _numbered(text[place:], number)


def _numbered(text: str, first: int) -> list[Line]:
    return [(line, number) for number, line in enumerate(text.split("\n"), first)]


def _find_end(marks: Sequence[tuple[int, int, str]], start: int) -> tuple[int, int] | None:
    """Find the `done` of the loop whose `do` ends at `start`."""
    depth = 1
    for begin, end, word in marks:
        if begin >= start:
            depth += 1 if word == "do" else -1
            if depth == 0:
                return begin, end
    return None


def _plain_words(text: str, whole: str) -> list[str] | None:
    """Give the words that a loop goes through; None if it takes a shell to tell."""
    listed = re.fullmatch(r"\"?\$\{?(\w+)(?:\[@\]\})?\}?\"?", text)
    if listed:
        found = re.findall(_LIST.format(listed[1]), whole, re.MULTILINE)
        text = "".join(found[0]) if len(found) == 1 else "$"
    numbers = _RANGE.fullmatch(text)
    if numbers:
        return [str(number) for number in range(int(numbers[1]), int(numbers[2]) + 1)]
    if re.search(r"[$`*?{}\[\]\\]", text):
        return None
    try:
        return shlex.split(text)
    except ValueError:
        return None


def _put_in(text: str, values: Mapping[str, str]) -> str:
    r"""Put values in for variables, as the shell does.

    >>> _put_in('$1 ${2:+--weights="$2"} ${3:-x} $p ${1}s', {"1": "a", "2": "b", "3": ""})
    'a --weights="b" x $p as'
    """
    for name, value in values.items():
        text = _put_one(text, re.escape(name), value)
    return text


def _put_one(text: str, name: str, value: str) -> str:
    text = re.sub(rf"\$\{{{name}:?\+([^{{}}]*)\}}", lambda match: match[1] if value else "", text)
    text = re.sub(rf"\$\{{{name}:?-([^{{}}]*)\}}", lambda match: value or match[1], text)
    return re.sub(rf"\$\{{{name}\}}|\${name}(?!\w)", lambda _: value, text)


def _take_functions(lines: Sequence[Line], budget: _Budget) -> list[Line]:
    """Take the functions that are called out of the lines, and keep their bodies."""
    called = {words[0] for text, _ in lines for words in _commands(text)}
    rest: list[Line] = []
    index = 0
    while index < len(lines):
        head = _DEFINED.fullmatch(lines[index][0])
        name = (head[1] or head[2]) if head else ""
        body = _read_body(lines, index, (head[3] or "") if head else "") if name in called else None
        if body is None:
            rest.append(lines[index])
            index += 1
        else:
            budget.functions[name], index = body
    return rest


def _read_body(lines: Sequence[Line], index: int, opened: str) -> tuple[list[Line], int] | None:
    """Read a function's body, and say where the lines go on."""
    number = lines[index][1]
    if opened.rstrip().endswith("}"):
        return [(opened.rstrip()[1:-1], number)], index + 1
    body = [(opened[1:], number)]
    if not opened:
        index += 1
        if index == len(lines) or lines[index][0].strip() != "{":
            return None
    for end in range(index + 1, len(lines)):
        if lines[end][0].lstrip().startswith("}"):
            return [*body, *lines[index + 1 : end]], end + 1
        if last := re.fullmatch(r"(.*;)\s*\}\s*", lines[end][0]):
            return [*body, *lines[index + 1 : end], (last[1], lines[end][1])], end + 1
        if _DEFINED.fullmatch(lines[end][0]):
            return None
    return None


def _expand_calls(lines: Sequence[Line], budget: _Budget, depth: int) -> Iterator[Line]:
    joined = ""
    for text, number in lines:
        calls = _commands(joined + text) if budget.functions else []
        if not any(words[0] in budget.functions for words in calls) or depth == _MOST_DEPTH:
            yield text, number
        elif text.endswith("\\"):
            joined += text[:-1]
            continue
        else:
            for words in calls:
                body = budget.functions.get(words[0])
                if body is None:
                    yield " ".join(words), number
                elif budget.allows(sum(len(line) for line, _ in body)):
                    yield from _expand_calls(_called(body, words[1:], number), budget, depth + 1)
        joined = ""


def _called(body: Sequence[Line], arguments: Sequence[str], number: int) -> list[Line]:
    known = next((index for index, word in enumerate(arguments) if "@" in word or "*" in word), None)
    values = dict(enumerate(arguments[:known], 1))
    if known is None:
        values |= dict.fromkeys(range(len(arguments) + 1, 10), "")
    return [
        (_put_in(line, {str(place): value for place, value in values.items()}), number) for line, _ in body
    ]


def _commands(text: str) -> list[list[str]]:
    """Split a line into its commands, each into its words."""
    found = []
    for part in re.split(r"[;|]|&&", text):
        try:
            words = shlex.split(part)
        except ValueError:
            words = part.split()
        while words and words[0] in _BEFORE_CALL:
            del words[0]
        if words:
            found.append(words)
    return found
