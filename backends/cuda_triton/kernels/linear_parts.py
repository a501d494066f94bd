"""`linear_parts`: eight fixed parts of K, added in the fixed tree."""

from __future__ import annotations

from torch import Tensor

from tensorfold.backends.cuda_triton.kernels.products import summed
from tensorfold.backends.cuda_triton.kernels.tiles import apart


def linear_parts(x_RK: Tensor, w_PKN: Tensor) -> Tensor:
    return summed(x_RK, apart(w_PKN))
