"""The number of the format of the files that outlive a command, such as journals and manifests.

Each such file begins with it, and a file with another number is not read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from caffe_recipes.errors import InputError
from caffe_recipes.wording import shorten

FORMAT = 1


def take_format(
    values: dict[str, Any], where: str | Path, hint: str, fault: type[InputError] = InputError
) -> None:
    """Remove the format number from the JSON values of a file; raises `fault` unless it is ours.

    Raises TypeError or AttributeError if the values are not a JSON object.
    """
    found = values.pop("format", None)
    if type(found) is not int or found != FORMAT:
        seen = f"format {shorten(str(found), 20)}" if type(found) is int else "no format number"
        what = f"written by another version of caffe-recipes ({seen}; this version reads format {FORMAT})"
        raise fault(where, what, hint)
