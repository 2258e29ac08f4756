"""Read the text of YAML files, which commands that run them read only where nobody else could put them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path

from caffe_recipes.errors import CaffeRecipesError, hint_for
from caffe_recipes.files.bounded_reads import read_bytes, read_trusted
from caffe_recipes.limits import hint_at_limit, limit
from caffe_recipes.trust import UntrustedPathError
from caffe_recipes.wording import did_you_mean

_MOST_ENTRIES = 10_000  # of a folder that are searched for a similar name
_refuses_others = False


@contextmanager
def refusing_others() -> Iterator[None]:
    """Within the context, load_yaml_text reads as read_trusted does: for commands that run what they read."""
    global _refuses_others
    before, _refuses_others = _refuses_others, True
    try:
        yield
    finally:
        _refuses_others = before


def load_yaml_text(path: Path, kind: str, fault: type[CaffeRecipesError]) -> str:
    """Read the text of a YAML file that should hold a `kind`; raises `fault`, also above `yaml-bytes`.

    Within `refusing_others` it raises `fault`, too, for a file that others could have put there or changed.
    """
    most = limit("yaml-bytes")
    try:
        data = (read_trusted if _refuses_others else read_bytes)(path, most + 1)
    except UntrustedPathError as error:
        raise fault(path, f"is not used: {error.why}", "use a copy in a folder of your own") from None
    except OSError as error:
        hint = hint_for(error, f"give the path to a {kind}'s YAML")
        if isinstance(error, FileNotFoundError):
            hint = did_you_mean(path.name, _yaml_names(path.parent), hint)
        raise fault(path, f"cannot be read: {error.strerror or error}", hint) from None
    if len(data) > most:
        raise fault(path, f"is over {most:,} bytes", f"is it a {kind}? {hint_at_limit('yaml-bytes')}")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise fault(path, "not UTF-8 text", f"a {kind} is a YAML file") from None


def _yaml_names(folder: Path) -> list[str]:
    """Return the names of the YAML files in a folder; none if it cannot be read."""
    with suppress(OSError), os.scandir(folder) as entries:
        names = islice((entry.name for entry in entries), _MOST_ENTRIES)
        return [name for name in names if name.endswith((".yaml", ".yml"))]
    return []
