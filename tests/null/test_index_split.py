"""Shares of a split index: every row once, in order, of equal cost or equally many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorfold.core.engine.index_split import IndexSplit, row_split
from tensorfold.core.engine_api import Piece
from tensorfold.core.errors import StartError
from tensorfold.core.family_api import Family, RowSplit
from tensorfold.core.index_shares import bounds, positions
from tensorfold.core.settings import read
from tensorfold.core.share import Share
from tensorfold.families.dsv41.plugin import FAMILY as DSV41
from tensorfold.families.glm53.plugin import FAMILY as GLM53
from tensorfold.tools.serve import split_position

STARTS, CHUNKS, RANKS = st.integers(0, 1 << 20), st.integers(1, 4096), st.integers(2, 8)


def seen(start: int, real: int, rows: int = 0) -> np.ndarray:
    return positions(start, real, rows or real) + 1


@given(st.sampled_from(["cost", "rows"]), STARTS, CHUNKS, RANKS)
def test_every_row_is_one_ranks_and_padding_is_somebodys(
    how: str, start: int, real: int, ranks: int
) -> None:
    rows = -(-real // 8) * 8
    found = bounds(how, seen(start, real, rows), ranks)
    assert len(found) == ranks + 1
    assert (found[0], found[-1]) == (0, rows)
    assert list(found) == sorted(found)
    if how == "rows":
        assert {last - first for first, last in pairwise(found[:-1])} <= {-(-rows // ranks), 0} | {
            rows - first for first in found
        }


@given(st.integers(2048, 1 << 20), st.integers(512, 4096), RANKS)
def test_no_rank_scores_over_two_percent_more_than_another(
    start: int, real: int, ranks: int
) -> None:
    cost_R = seen(start, real)
    costs = [
        int(cost_R[first:last].sum()) for first, last in pairwise(bounds("cost", cost_R, ranks))
    ]
    # A row is the least that can be moved.
    assert max(costs) - (start + real) <= 1.02 * min(costs)


@given(st.lists(st.integers(0, 9), max_size=12), RANKS)
def test_a_share_ends_at_the_row_that_is_nearest_to_its_part_of_the_cost(
    costs: Sequence[int], ranks: int
) -> None:
    found = bounds("cost", np.array(costs, dtype=np.int64), ranks)
    before = [sum(costs[:place]) * ranks for place in range(len(costs) + 1)]
    assert (found[0], found[-1]) == (0, len(costs))
    for rank, place in enumerate(found[1:-1], 1):
        missed = [abs(cost - sum(costs) * rank) for cost in before]
        assert missed[place] == min(missed)


def test_of_two_rows_that_are_as_near_a_share_ends_at_the_later() -> None:
    assert bounds("cost", np.array([2, 2, 2], dtype=np.int64), 2) == (0, 2, 3)


def test_equal_rows_are_not_of_equal_cost_near_the_start() -> None:
    assert bounds("rows", seen(2048, 2048), 2) == (0, 1024, 2048)
    assert bounds("cost", seen(2048, 2048), 2)[1] > 1100


def test_the_last_of_three_ranks_may_have_no_rows() -> None:
    last = Piece(stream=1, start=4096, end=4098, split="rows")
    split = row_split([last], 2, Share(rank=2, ranks=3))
    assert split == RowSplit(2, (0, 1, 2, 2), "rows", 4096, 2)
    assert (split.own, split.counts) == (slice(2, 2), [1, 1, 0])


def test_one_rank_and_a_piece_that_says_nothing_have_no_shares() -> None:
    lone = piece(1, 128)
    assert row_split([replace(lone, split="cost")], 64, Share()) is None
    assert row_split([lone], 64, Share(ranks=2)) is None


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


@pytest.mark.parametrize(
    ("family", "variable"), [(GLM53, "TF_GLM_INDEX_SPLIT"), (DSV41, "TF_DS_INDEX_SPLIT")]
)
def test_each_family_has_its_own_position_of_2048_and_0_is_nowhere(
    family: Family, variable: str
) -> None:
    other = DSV41 if family is GLM53 else GLM53
    assert split_position(read({}, {}), family) == 2048
    settings = read({}, {variable: "64"})
    assert (split_position(settings, family), split_position(settings, other)) == (64, 2048)
    assert split_position(read({}, {variable: "0"}), family) == 0
    with pytest.raises(StartError, match=f"{variable} must be at least 0, not -1"):
        read({}, {variable: "-1"})
