"""Shares of a dimension: contiguous, whole together, in the units that keep a sum's tree."""

from __future__ import annotations

import itertools

import pytest

from tensorfold.core.errors import StartError
from tensorfold.core.share import Share, units


def shares(ranks: int) -> list[Share]:
    return [Share(rank=rank, ranks=ranks) for rank in range(ranks)]


@pytest.mark.parametrize("ranks", range(1, 9))
@pytest.mark.parametrize("size", [8, 64, 48, 154880])
def test_ranks_hold_a_dimension_once_in_order_and_in_whole_units(size: int, ranks: int) -> None:
    bounds = [share.bounds(size, "it") for share in shares(ranks)]
    assert bounds[0][0] == 0
    assert bounds[-1][1] == size
    assert all(last == first for (_, last), (first, _) in itertools.pairwise(bounds))
    held = [(last - first) * 8 // size for first, last in bounds]
    assert all((last - first) * 8 % size == 0 for first, last in bounds)
    assert max(held) - min(held) <= 1
    parts = [
        share.parts(last - first, size, "it")
        for share, (first, last) in zip(shares(ranks), bounds, strict=True)
    ]
    assert parts == held


@pytest.mark.parametrize(("size", "count"), [(1, 1), (2, 2), (4, 4), (8, 8), (6, 1), (12, 1)])
def test_a_small_dimension_has_as_many_units_as_it_counts_where_they_divide_eight(
    size: int, count: int
) -> None:
    assert units(size) == count
    assert [share.size(size, "it") for share in shares(count)] == [size // count] * count
    with pytest.raises(StartError, match=f"--ranks is {count + 1}, and it of {size} can"):
        Share(rank=0, ranks=count + 1).bounds(size, "it")


def test_an_inner_dimension_without_eight_parts_is_one_part_and_refused_to_several_ranks() -> None:
    assert Share().parts(20, 20, "it") == 1
    with pytest.raises(StartError, match="--ranks is 2, and it of 20 has no 8 equal parts"):
        Share(rank=1, ranks=2).parts(10, 20, "it")
