"""`noise_at`: exact noise of some tokens."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tensorfold.backends.cuda_triton.kernels.keyed import log, uniform
from tensorfold.backends.cuda_triton.kernels.whole import whole

TOKENS = 256


@triton.jit
def noise_of(key, ids, out, num_ids, TOKENS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)
    inside = place < num_ids
    token = tl.load(ids + row * num_ids + place, mask=inside, other=0)
    noise = -log(-log(uniform(tl.load(key + row), token)))
    tl.store(out + row * num_ids + place, noise, mask=inside)


def noise_at(key_N: Tensor, id_NK: Tensor) -> Tensor:
    key_N, id_NK = whole(key_N), whole(id_NK)
    rows, count = id_NK.shape
    out_NK = torch.empty(id_NK.shape, dtype=torch.float64, device=id_NK.device)
    if out_NK.numel():
        grid = (rows, triton.cdiv(count, TOKENS))
        # A joined multiplication and addition rounds once where `keyed.log` rounds twice.
        noise_of[grid](
            key_N, id_NK, out_NK, count, TOKENS=TOKENS, num_warps=4, enable_fp_fusion=False
        )
    return out_NK
