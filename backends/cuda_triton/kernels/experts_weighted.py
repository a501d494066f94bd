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
) -> Tensor:
    return run(x_RD, ids_RK, weight_RK, gate_up_EDI, down_EID, limit, first, parts, True, rounded)


def unrounded(
    x_RD: Tensor,
    ids_RK: Tensor,
    weight_RK: Tensor,
    gate_up_EDI: Tensor,
    down_EID: Tensor,
    limit: float,
    rounded: bool,
    first: int,
    parts: int,
) -> Tensor:
    """The same sums in float32."""
    return run(
        x_RD,
        ids_RK,
        weight_RK,
        gate_up_EDI,
        down_EID,
        limit,
        first,
        parts,
        True,
        rounded,
        dtype=torch.float32,
    )
