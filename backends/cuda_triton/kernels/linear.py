"""`linear`: a product summed over K in one order, which the weight's shape alone decides."""

from __future__ import annotations

import torch
from torch import Tensor

from tensorfold.backends.cuda_triton.kernels.products import Weight, summed

# A narrow weight's K is cut, so that enough programs read it.
NARROW, MOST_PARTS, LEAST_K = 4096, 8, 256


def parts_of(n: int, k: int) -> int:
    """How many parts of K are summed apart: a power of two."""
    parts = 1
    while parts < MOST_PARTS and n * parts < NARROW and k % (2 * parts * LEAST_K) == 0:
        parts *= 2
    return parts


def linear(x_RK: Tensor, w_NK: Tensor) -> Tensor:
    n, k = w_NK.shape
    w_NK = w_NK.contiguous()
    parts = parts_of(n, k)
    inner = k // parts
    weight = Weight(w_NK, parts, inner, n, by_part=inner, by_n=k, by_k=1)
    return summed(x_RK, weight, torch.promote_types(x_RK.dtype, w_NK.dtype))
