"""`experts_weighted`: `experts`' kernels with the weights before the second product."""

from __future__ import annotations

import torch
from torch import Tensor

from tensorfold.backends.cuda_triton.kernels.experts import run


def experts_weighted(
    x_RD: Tensor,
    ids_RK: Tensor,
    weight_RK: Tensor,
    gate_up_EDI: Tensor,
    down_EID: Tensor,
    limit: float,
    rounded: bool,
    first: int,
    parts: int,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """The op, its sums rounded to `dtype` or to the rows' own."""
    args = x_RD, ids_RK, weight_RK, gate_up_EDI, down_EID, limit, first, parts
    return run(*args, True, rounded, dtype=dtype)
