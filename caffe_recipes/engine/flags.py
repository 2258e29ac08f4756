"""Command lines as gflags takes them: `-solver X`, `--solver X`, `-solver=X`, `--solver=X`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from caffe_recipes.errors import InputError


@dataclass(frozen=True)
class Flags:
    """The flags of `caffe`, with its defaults; the last three are ours."""

    solver: str = ""
    model: str = ""
    weights: str = ""
    snapshot: str = ""
    iterations: int = 50
    phase: str = ""
    level: int = 0
    stage: str = ""
    sigint_effect: str = "stop"
    sighup_effect: str = "snapshot"
    gpu: str = ""
    engine: str = ""
    new_layers: str = ""
    source: str = ""
    out: str = ""


def parse_flags(argv: Sequence[str]) -> tuple[str, Flags]:
    """Give the command and the flags; raises InputError for what is no flag, no value or no number.

    >>> parse_flags(["test", "-model", "net.prototxt", "--iterations=4"])[1].iterations
    4
    """
    commands: list[str] = []
    given: dict[str, str | int] = {}
    words = iter(argv)
    for word in words:
        if not word.startswith("-"):
            commands.append(word)
            continue
        name, equals, value = word.removeprefix("-").removeprefix("-").partition("=")
        if name.removeprefix("no") in _SWITCHES:
            continue
        if name not in _KINDS:
            known = ", ".join(f"-{name}" for name in _KINDS)
            raise InputError("caffe-torch", f"unknown flag {word}", f"known are {known}")
        if not equals:
            following = next(words, None)
            if following is None:
                raise InputError("caffe-torch", f"{word} has no value", f"write {word} <{name}>")
            value = following
        if name in _PATHS and not value.strip():
            raise InputError("caffe-torch", f"-{name} '{value}' is no path", "is a variable unset?")
        given[name] = _number(name, value) if _KINDS[name] is int else value
    for name in _OF_GLOG:
        given.pop(name, None)
    if len(commands) != 1:
        what = "no command" if not commands else f"{len(commands)} commands: {' '.join(commands)}"
        raise InputError("caffe-torch", what, "give one: train, test, predict, version")
    return commands[0], Flags(**given)  # type: ignore[arg-type]


# glog's flags change nothing: the log goes to stderr. Its switches take no second word as their value.
_SWITCHES = ("logtostderr", "alsologtostderr", "colorlogtostderr")
_OF_GLOG = {"minloglevel": int, "stderrthreshold": int, "v": int, "log_dir": str}
_KINDS = {field.name: type(field.default) for field in fields(Flags)} | _OF_GLOG


_PATHS = ("solver", "model", "weights", "snapshot", "source", "out")  # "" is a variable that is not set
_INT32 = range(-(2**31), 2**31)  # as gflags' DEFINE_int32


def _number(name: str, value: str) -> int:
    try:
        number = int(value)
    except ValueError:
        raise InputError("caffe-torch", f"-{name} {value[:80]} is no whole number", "give one") from None
    if number not in _INT32:
        hint = f"give {_INT32[-1]} or less" if number > 0 else f"give {_INT32[0]} or more"
        raise InputError("caffe-torch", f"-{name} {value[:80]} is no int32, as Caffe's flag is", hint)
    return number
