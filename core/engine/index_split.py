"""When ranks share the index of a prompt chunk: rank 0's choice, and each rank's part of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tensorfold.core import index_shares
from tensorfold.core.engine_api import Piece
from tensorfold.core.family_api import RowSplit
from tensorfold.core.share import Share


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexSplit:
    """Rank 0's choice: chunks that start at `position` or after it are split; 0 is never."""

    position: int = 0
    shares: str = index_shares.COST

    def marked(self, pieces: Sequence[Piece]) -> tuple[Piece, ...]:
        """The pieces of a forward, with how their index is split; packs never are."""
        if len(pieces) == 1 and self.position and pieces[0].start >= self.position:
            return (replace(pieces[0], split=self.shares),)
        return tuple(pieces)


def row_split(pieces: Sequence[Piece], rows: int, share: Share) -> RowSplit | None:
    """How a lone piece's index is shared where its record says so; `rows` counts the padding."""
    (piece, *others) = pieces
    if not piece.split or share.ranks == 1:
        return None
    assert not others, pieces
    return split_of(piece.split, piece.start, piece.end - piece.start, rows, share)


def split_of(how: str, start: int, real: int, rows: int, share: Share) -> RowSplit:
    """How the index of `real` rows from `start` on, and padding, is shared."""
    seen_R = index_shares.positions(start, real, rows) + 1
    bounds = index_shares.bounds(how, seen_R, share.ranks)
    return RowSplit(share.rank, bounds, how, start, real)
