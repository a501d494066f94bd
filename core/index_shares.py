"""How ranks share the index of a prompt chunk: runs of its rows, of equal cost or equally many."""

from __future__ import annotations

import numpy as np

COST, ROWS = "cost", "rows"
HOW = (COST, ROWS)


def positions(start: int, real: int, rows: int) -> np.ndarray:
    """Of `real` rows from `start` on and padding after them, which stands at position 0."""
    position_R = np.zeros(rows, dtype=np.int64)
    position_R[:real] = np.arange(start, start + real)
    return position_R


def bounds(how: str, cost_R: np.ndarray, ranks: int) -> tuple[int, ...]:
    """Where each rank's rows begin, and the end; `cost_R` is what each row scores, in order."""
    rows = len(cost_R)
    if how == ROWS:
        block = -(-rows // ranks)
        return tuple(min(rows, rank * block) for rank in range(ranks + 1))
    assert how == COST, how
    # What the rows before a place cost, `ranks` times, so that a share is a whole number.
    before = np.zeros(rows + 1, dtype=np.int64)
    np.cumsum(cost_R, out=before[1:])
    before *= ranks
    wanted = [int(before[-1]) // ranks * rank for rank in range(1, ranks)]
    return (0, *(nearest(before, share) for share in wanted), rows)


def nearest(before: np.ndarray, wanted: int) -> int:
    """The place before which rows cost the nearest to `wanted`; of two the later."""
    place = int(np.searchsorted(before, wanted))
    if place and wanted - before[place - 1] < before[place] - wanted:
        return place - 1
    return place
