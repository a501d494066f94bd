"""`linear_heads`: a product a head, all in one launch."""

from __future__ import annotations

from torch import Tensor

from tensorfold.backends.cuda_triton.kernels.products import each
from tensorfold.backends.cuda_triton.kernels.tiles import apart


def linear_heads(x_RHK: Tensor, w_HKN: Tensor) -> Tensor:
    return each(x_RHK, apart(w_HKN))
