"""How ranks share the index of a prompt chunk: runs of its rows, of equal cost or equally many.

A row scores every pool before it, so its cost grows with its position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tensorfold.core.engine_api import Piece

COST, ROWS = "cost", "rows"


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexSplit:
    """Rank 0's choice: chunks that start at `position` or after it are split; 0 is never."""

    position: int = 0
    shares: str = COST

    def marked(self, pieces: Sequence[Piece]) -> tuple[Piece, ...]:
        """The pieces of a forward, with how their index is split; packs never are."""
        if len(pieces) == 1 and self.position and pieces[0].start >= self.position:
            return (replace(pieces[0], split=self.shares),)
        return tuple(pieces)


def bounds(how: str, start: int, real: int, rows: int, ranks: int) -> tuple[int, ...]:
    """Where each rank's rows begin, and the end: `real` rows from position `start` on, and padding
    after them up to `rows`."""
    if how == ROWS:
        block = -(-rows // ranks)
        return tuple(min(rows, rank * block) for rank in range(ranks + 1))
    assert how == COST, how
    total = cost(start, real)
    inner = [nearest(start, real, total * rank, ranks) for rank in range(1, ranks)]
    return (0, *inner, rows)


def cost(start: int, rows: int) -> int:
    """What the first rows of a chunk see together."""
    return rows * start + rows * (rows + 1) // 2


def nearest(start: int, most: int, wanted: int, scale: int) -> int:
    """The number of rows whose cost, times `scale`, is nearest to `wanted`."""
    low, high = 0, most
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if cost(start, middle) * scale < wanted else (low, middle)
    before = max(0, low - 1)
    nearer = wanted - cost(start, before) * scale < cost(start, low) * scale - wanted
    return before if nearer else low
