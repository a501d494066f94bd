"""`linear`: a product summed over K in one order, which the weight's shape alone decides."""

from __future__ import annotations

from torch import Tensor

from tensorfold.backends.cuda_triton.kernels.products import summed
from tensorfold.backends.cuda_triton.kernels.tiles import joined

# A narrow weight's K is cut, so that enough programs read it; not from as many columns on as one of
# eight ranks holds of a wider weight, whose K is not cut.
NARROW, UNCUT, MOST_PARTS, LEAST_K = 1024, 512, 8, 256


def parts_of(n: int, k: int) -> int:
    """How many parts of K are summed apart: a power of two."""
    parts = 1
    if n >= UNCUT:
        return parts
    while parts < MOST_PARTS and n * parts < NARROW and k % (2 * parts * LEAST_K) == 0:
        parts *= 2
    return parts


def linear(x_RK: Tensor, w_NK: Tensor) -> Tensor:
    return summed(x_RK, joined(w_NK, parts_of(*w_NK.shape)))
