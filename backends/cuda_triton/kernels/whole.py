"""Arguments as kernels read them: in order, and beginning where wide loads may.

Triton compiles a kernel again for a pointer that is not on 16 bytes, and that one may sum in
another order, so no kernel is given such a pointer.
"""

from __future__ import annotations

import torch
from torch import Tensor

ALIGNED = 16


def whole(x: Tensor) -> Tensor:
    """x itself, or a copy where it is strided or begins off the grid."""
    x = x.contiguous()
    return x if x.data_ptr() % ALIGNED == 0 else x.clone()


def heads_whole(x_RHC: Tensor) -> tuple[Tensor, int]:
    """A tensor whose rows are whole by themselves, and how far apart they begin."""
    _, heads, size = x_RHC.shape
    apart = x_RHC.stride(0)
    begins = x_RHC.data_ptr() % ALIGNED == 0 == apart * x_RHC.element_size() % ALIGNED
    if x_RHC.stride()[1:] == (size, 1) and begins:
        return x_RHC, apart
    return whole(x_RHC), heads * size


def in_place(x: Tensor) -> Tensor:
    """x, which is written: it cannot be a copy."""
    assert x.is_contiguous(), x.stride()
    assert x.data_ptr() % ALIGNED == 0, x.data_ptr()
    return x


def precision(*inputs: Tensor) -> str:
    """How kernels multiply float32 that they made of these inputs: as float32 where one of them
    is, else in the tensor cores' nearest format, finer than the inputs are."""
    return "ieee" if any(x.dtype == torch.float32 for x in inputs) else "tf32"
