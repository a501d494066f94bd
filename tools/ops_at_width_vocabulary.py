"""The ops that draw tokens, at the width of a released vocabulary."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from tensorfold.core.engine.sampling import SLACK
from tensorfold.core.ops import exp_sums, noise_at, noise_bounds, rank_keys, running_sums
from tensorfold.tools.operands import Maker, Point

TOKENS = 154_880
# Rows that a round draws at most.
MOST = 64


def keys(m: Maker, rows: int) -> Tensor:
    return m.whole(2**62, rows)


def vocabulary_points() -> Iterator[Point]:
    """Their peers are the references, in torch."""
    yield Point(
        op="rank_keys",
        label="glm53 vocabulary",
        make=lambda m, rows: (m.normal(rows, TOKENS),),
        peer=lambda args: rank_keys.reference(*args),
        most=MOST,
    )
    for label, dtype in (("told", torch.float32), ("cut", torch.float64)):

        def raised(m: Maker, rows: int, dtype: torch.dtype = dtype) -> tuple[Tensor, Tensor]:
            x = m.normal(rows, TOKENS, wide=True).to(dtype)
            return x, x.amax(-1)

        yield Point(
            op="exp_sums",
            label=f"glm53 vocabulary, {label}",
            make=raised,
            peer=lambda args: exp_sums.reference(*args),
            most=MOST,
        )
    yield Point(
        op="running_sums",
        label="sorted head of 1,024",
        make=lambda m, rows: (m.uniform(rows, 1024).double(),),
        peer=lambda args: running_sums.reference(*args),
        most=MOST,
    )
    yield Point(
        op="noise_bounds",
        label="glm53 vocabulary",
        make=lambda m, rows: (m.normal(rows, TOKENS).double(), keys(m, rows), SLACK),
        peer=lambda args: noise_bounds.reference(*args),
        most=MOST,
    )
    yield Point(
        op="noise_at",
        label="16 candidates",
        make=lambda m, rows: (keys(m, rows), m.whole(TOKENS, rows, 16)),
        peer=lambda args: noise_at.reference(*args),
        most=MOST,
    )
