"""What recipes and cluster profiles are made of: the frozen base, and texts and numbers with their bounds."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    WrapSerializer,
)


def _no_control_characters(text: str) -> str:
    if re.search(r"[\x00-\x1f\x7f]", text):
        raise ValueError("control characters and line breaks are not allowed")
    return text


Text = Annotated[str, Field(min_length=1), AfterValidator(_no_control_characters)]
PathText = Text
FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
CountOrZero = Annotated[int, Field(ge=0, le=2**31 - 1)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(gt=0, lt=1)]


K = TypeVar("K")
V = TypeVar("V")


class FrozenMapping(Mapping[K, V]):
    """A mapping that nothing changes, hashable if its values are; equal to any mapping of the same items."""

    def __init__(self, items: Mapping[K, V]) -> None:
        """Keep the items in their order."""
        self._items = dict(items)

    def __getitem__(self, key: K) -> V:
        return self._items[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(frozenset(self._items.items()))

    def __repr__(self) -> str:
        return repr(self._items)


def _serialize(items: Mapping[K, V], serialize: SerializerFunctionWrapHandler) -> Any:  # noqa: ANN401 - pydantic's
    return serialize(dict(items))


# A field's mapping, frozen once it is validated; dumped as the plain one that it was read from.
Frozen = Annotated[Mapping[K, V], AfterValidator(FrozenMapping), WrapSerializer(_serialize)]


class Value(BaseModel):
    """Base of all parts: frozen, strict, and closed to unknown keys."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)
