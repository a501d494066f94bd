"""`linear_heads`: a product a head, all in one launch."""

from __future__ import annotations

import torch
from torch import Tensor

from tensorfold.backends.cuda_triton.kernels.products import Weight, run_parts, tile_of


def linear_heads(x_RHK: Tensor, w_HKN: Tensor) -> Tensor:
    heads, k, n = w_HKN.shape
    if x_RHK.stride(2) != 1:
        x_RHK = x_RHK.contiguous()
    weight = Weight(w_HKN.contiguous(), heads, k, n, by_part=k * n, by_n=1, by_k=n)
    dtype = torch.promote_types(x_RHK.dtype, w_HKN.dtype)
    out_RHN = x_RHK.new_empty(x_RHK.shape[0], heads, n, dtype=dtype)
    tile = tile_of(x_RHK.shape[0], weight)
    run_parts(x_RHK, x_RHK.stride(0), x_RHK.stride(1), weight, out_RHN, tile)
    return out_RHN
