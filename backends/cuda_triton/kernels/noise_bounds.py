"""`noise_bounds`: a token's bound by itself."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tensorfold.backends.cuda_triton.kernels.keyed import uniform
from tensorfold.backends.cuda_triton.kernels.whole import whole

TOKENS = 1024


@triton.jit
def bounds(scaled, key, out, slack, num_tokens, TOKENS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)
    inside = token < num_tokens
    value = tl.load(scaled + row * num_tokens + token, mask=inside, other=0.0)
    beyond = 1.0 - uniform(tl.load(key + row), token.to(tl.int64))
    tl.store(out + row * num_tokens + token, value + (slack - tl.log(beyond)), mask=inside)


def noise_bounds(scaled_NV: Tensor, key_N: Tensor, slack: float) -> Tensor:
    scaled_NV, key_N = whole(scaled_NV), whole(key_N)
    rows, size = scaled_NV.shape
    out_NV = torch.empty(scaled_NV.shape, dtype=torch.float64, device=scaled_NV.device)
    if out_NV.numel():
        grid = (rows, triton.cdiv(size, TOKENS))
        bounds[grid](scaled_NV, key_N, out_NV, slack, size, TOKENS=TOKENS, num_warps=4)
    return out_NV
