"""How a product is cut into programs, and how a weight lies in memory."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Tile(NamedTuple):
    """Rows, columns and K step of a program, and how the compiler schedules it."""

    rows: int
    columns: int
    step: int
    warps: int
    stages: int


class Weight(NamedTuple):
    """A weight by strides: `parts` of [K, N], each entry at part, n and k times these."""

    tensor: Tensor
    parts: int
    k: int
    n: int
    by_part: int
    by_n: int
    by_k: int


def joined(w_NK: Tensor, parts: int) -> Weight:
    """[N, K], its K cut into parts."""
    n, k = w_NK.shape
    inner = k // parts
    return Weight(w_NK.contiguous(), parts, inner, n, by_part=inner, by_n=k, by_k=1)


def apart(w_PKN: Tensor) -> Weight:
    """[P, K, N]."""
    parts, k, n = w_PKN.shape
    return Weight(w_PKN.contiguous(), parts, k, n, by_part=k * n, by_n=1, by_k=n)
