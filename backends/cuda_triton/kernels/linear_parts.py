"""`linear_parts`: eight fixed parts of K, added in the fixed tree."""

from __future__ import annotations

import torch
from torch import Tensor

from tensorfold.backends.cuda_triton.kernels.products import summed
from tensorfold.backends.cuda_triton.kernels.tiles import apart


def linear_parts(x_RK: Tensor, w_PKN: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """The op, its sums rounded to `dtype` or to the wider format of the two."""
    return summed(x_RK, apart(w_PKN), dtype=dtype)
