"""What a stream keeps between forwards, declared by a family and allocated by core/engine.

An entry's `dtype` is its format where the engine's own is narrower, or no format of fractions.

Three kinds. `PerToken` rows grow with the stream and live in pages of `Info.grid` tokens that kept
states can share; a `Ring` holds the last rows by position; a `Fixed` state is replaced as the
stream moves on. The engine adds one page and one lane that belong to nobody, for padding rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod


@dataclass(frozen=True, kw_only=True, slots=True)
class PerToken:
    """One row of `width` values for every `every` tokens: buffer [pages * page / every, width]."""

    name: str
    width: int
    every: int = 1
    dtype: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ring:
    """The rows of the last `rows` positions, position p in row p % rows: [lanes, rows, width]."""

    name: str
    rows: int
    width: int
    dtype: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fixed:
    """A state of one shape, zero at the stream's start: [lanes, *shape]."""

    name: str
    shape: tuple[int, ...]
    dtype: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class StateSpec:
    """Everything a stream of one family keeps, by name; `dtype` is the engine's own format.

    With `blocks`, prompts run in blocks of a page at multiples of it, so they are cut there alone.
    """

    page: int
    entries: tuple[PerToken | Ring | Fixed, ...]
    blocks: bool = False
    dtype: str = "float32"

    def __post_init__(self) -> None:
        names = [entry.name for entry in self.entries]
        assert len(set(names)) == len(names), names
        for entry in self.entries:
            if isinstance(entry, PerToken):
                assert self.page % entry.every == 0, (entry.name, self.page, entry.every)

    def dtype_of(self, entry: PerToken | Ring | Fixed) -> str:
        if not entry.dtype or (entry.dtype.startswith("float") and self.dtype == "float64"):
            return self.dtype
        return entry.dtype

    def size_of(self, entry: PerToken | Ring | Fixed) -> int:
        """Bytes of one of its values."""
        return SIZES[self.dtype_of(entry)]

    def bytes_per_page(self) -> int:
        return sum(
            self.page // entry.every * entry.width * self.size_of(entry)
            for entry in self.entries
            if isinstance(entry, PerToken)
        )

    def bytes_per_token(self) -> int:
        """Growing bytes a token, rounded up."""
        return -(-self.bytes_per_page() // self.page)

    def bytes_per_lane(self) -> int:
        """Bytes of a stream that do not grow: rings and fixed states."""
        total = 0
        for entry in self.entries:
            if isinstance(entry, Ring):
                total += entry.rows * entry.width * self.size_of(entry)
            elif isinstance(entry, Fixed):
                total += prod(entry.shape) * self.size_of(entry)
        return total


SIZES = {
    "float64": 8,
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "int64": 8,
    "int32": 4,
    "uint8": 1,
}
