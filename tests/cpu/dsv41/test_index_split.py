"""What a row scores in each of dsv41's indexes: shares of equal cost are cut by it."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from tensorfold.core.family_api import RowSplit
from tensorfold.core.ops.pick_rows import reference
from tensorfold.families.dsv41.config import Config, read
from tensorfold.families.dsv41.plan import scored, split_of
from tests.cpu.dsv41.engines import CKPT

LENGTH = 100


@pytest.fixture(scope="module")
def config() -> Config:
    """Indexes at layers 2 (ratio 2), 4 (publishes 3 blocks of 2 rows) and 6 (restricted)."""
    return read(json.loads((CKPT / "config.json").read_text()))


def test_a_row_scores_what_it_sees_and_of_candidates_no_more_than_their_rows(
    config: Config,
) -> None:
    position_R = torch.arange(LENGTH)
    keep, size = config.candidate_blocks, config.candidate_size
    _, kept_RB = reference(
        torch.randn(LENGTH, 2, 8, generator=torch.Generator().manual_seed(1)),
        torch.rand(LENGTH, 2),
        torch.randn(LENGTH, 8),
        torch.zeros(1, 1, dtype=torch.int64),
        torch.zeros(LENGTH, dtype=torch.int64),
        position_R + 1,
        torch.zeros(LENGTH, 0, dtype=torch.int64),
        1,
        keep,
        size,
        LENGTH,
        LENGTH,
    )
    inside_R = [
        sum(block >= 0 and row // size == block for block in kept for row in range(seen))
        for seen, kept in enumerate(kept_RB.tolist(), 1)
    ]
    assert scored(config, 6, position_R.numpy()).tolist() == inside_R
    assert scored(config, 4, position_R.numpy()).tolist() == list(range(1, LENGTH + 1))
    assert scored(config, 2, position_R.numpy()).tolist() == [
        (position + 1) // 2 for position in range(LENGTH)
    ]


def test_each_source_has_its_own_shares_of_the_rows_that_reach_it(config: Config) -> None:
    whole = RowSplit(0, (0, 0, 0), "cost", 0, 40)
    # Padding stands at position 0; candidates are at most 6 rows, which the late rows all score.
    assert split_of(config, 4, whole, 44, None).bounds == (0, 28, 44)
    assert split_of(config, 6, whole, 44, None).bounds == (0, 22, 44)
    goes = np.repeat(np.arange(30, 40), [1] * 9 + [7])
    assert split_of(config, 6, whole, 44, goes).bounds == (0, 8, 16)
    assert split_of(config, 4, whole._replace(shares="rows"), 44, goes).bounds == (0, 8, 16)
