"""`linear_parts`: eight fixed parts of K, added in the fixed tree."""

from __future__ import annotations

import torch
from torch import Tensor

from tensorfold.backends.cuda_triton.kernels.products import summed
from tensorfold.backends.cuda_triton.kernels.tiles import apart


def linear_parts(x_RK: Tensor, w_PKN: Tensor) -> Tensor:
    return summed(x_RK, apart(w_PKN))


def unrounded(x_RK: Tensor, w_PKN: Tensor) -> Tensor:
    """The same sums in float32."""
    return summed(x_RK, apart(w_PKN), dtype=torch.float32)
