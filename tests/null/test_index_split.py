"""Shares of a split index: every row once, in order, of equal cost or equally many."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorfold.core.engine.index_split import IndexSplit, bounds, cost
from tensorfold.core.engine_api import Piece
from tensorfold.core.family_api import RowSplit

CHUNKS = st.integers(1, 4096)


@given(st.sampled_from(["cost", "rows"]), st.integers(0, 1 << 20), CHUNKS, st.integers(2, 8))
def test_every_row_is_one_ranks_and_padding_is_somebodys(
    how: str, start: int, real: int, ranks: int
) -> None:
    rows = -(-real // 8) * 8
    found = bounds(how, start, real, rows, ranks)
    assert len(found) == ranks + 1
    assert (found[0], found[-1]) == (0, rows)
    assert list(found) == sorted(found)
    if how == "rows":
        assert {last - first for first, last in pairwise(found[:-1])} <= {-(-rows // ranks), 0} | {
            rows - first for first in found
        }


@given(st.integers(2048, 1 << 20), st.integers(512, 4096), st.integers(2, 8))
def test_no_rank_scores_over_two_percent_more_than_another(
    start: int, real: int, ranks: int
) -> None:
    found = (*bounds("cost", start, real, real, ranks)[:-1], real)
    costs = [cost(start, last) - cost(start, first) for first, last in pairwise(found)]
    # A row is the least that can be moved.
    most = max(costs) - (start + real)
    assert most <= 1.02 * min(costs)


def test_equal_rows_are_not_of_equal_cost_near_the_start() -> None:
    rows = bounds("rows", 2048, 2048, 2048, 2)
    costs = bounds("cost", 2048, 2048, 2048, 2)
    assert rows == (0, 1024, 2048)
    assert costs[1] > 1100


def test_the_last_of_three_ranks_may_have_no_rows() -> None:
    assert bounds("rows", 4096, 2, 2, 3) == (0, 1, 2, 2)
    split = RowSplit(2, (0, 1, 2, 2))
    assert (split.own, split.counts) == (slice(2, 2), [1, 1, 0])


def piece(stream: int, start: int) -> Piece:
    return Piece(stream=stream, start=start, end=start + 64)


@pytest.mark.parametrize("shares", ["cost", "rows"])
def test_a_lone_chunk_is_split_from_the_position_on_and_a_pack_never(shares: str) -> None:
    split = IndexSplit(position=128, shares=shares)
    assert [split.marked([piece(1, start)])[0].split for start in (0, 64, 128, 192)] == [
        "",
        "",
        shares,
        shares,
    ]
    pack = [piece(1, 128), piece(2, 192)]
    assert split.marked(pack) == tuple(pack)
    assert IndexSplit().marked([piece(1, 1 << 19)]) == (piece(1, 1 << 19),)
