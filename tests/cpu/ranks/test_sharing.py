"""A rank's share of an index: no forward of it has a size of its own to a compiler, and what ranks
pick comes together row by row."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tensorfold.core.engine.index_split import split_of
from tensorfold.core.index_shares import HOW
from tensorfold.core.share import Share
from tensorfold.families.common.sharing import Sharing, shared, sharing

CPU = torch.device("cpu")


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("real", [1, 2, 3, 4, 5, 7, 8, 9, 63, 64, 65, 500])
def test_shares_of_no_row_and_of_one_are_as_any_other(real: int, ranks: int, how: str) -> None:
    rows = real + real % 2
    made = [
        sharing(split_of(how, 4096, real, rows, Share(rank=rank, ranks=ranks)), CPU)
        for rank in range(ranks)
    ]
    picked_RE = torch.arange(rows * 3).view(rows, 3)

    def pick(own_S: Tensor) -> Tensor:
        return picked_RE[own_S]

    def alone(own: Sharing) -> Tensor:
        # What a rank gathers, before it asks anybody.
        found: list[Tensor] = []

        def gather(part: Tensor) -> Tensor:
            found.append(part)
            return part.repeat(ranks, 1, 1)

        shared(gather, own, pick)
        return found[0]

    every = torch.stack([alone(own) for own in made])
    for own in made:
        assert torch.equal(shared(lambda part: every, own, pick), picked_RE)
        assert 2 <= len(own.own_S) <= own.block
        assert own.block == made[0].block
        assert own.own_S.storage_offset() >= 2
    assert sum(len(own.own_S) for own in made) <= rows + 2 * ranks
