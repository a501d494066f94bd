"""`linear_parts`: eight fixed parts of K, added in the fixed tree."""

from __future__ import annotations

import torch
from torch import Tensor

from tensorfold.backends.cuda_triton.kernels.products import Weight, summed


def linear_parts(x_RK: Tensor, w_PKN: Tensor) -> Tensor:
    parts, k, n = w_PKN.shape
    weight = Weight(w_PKN.contiguous(), parts, k, n, by_part=k * n, by_n=1, by_k=n)
    return summed(x_RK, weight, torch.promote_types(x_RK.dtype, w_PKN.dtype))
