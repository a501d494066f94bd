"""`rank_keys`: a token's key by itself."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tensorfold.backends.cuda_triton.kernels.whole import whole

TOKENS = 1024


@triton.jit
def keys(logits, out, num_tokens, TOKENS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)
    inside = token < num_tokens
    logit = tl.load(logits + row * num_tokens + token, mask=inside, other=0.0).to(tl.float32)
    # Both zeros.
    logit = tl.where(logit == 0.0, 0.0, logit)
    bits = logit.to(tl.int32, bitcast=True)
    ordered = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)
    key = (ordered << 32) + (num_tokens - 1 - token)
    tl.store(out + row * num_tokens + token, key, mask=inside)


def rank_keys(logits_SV: Tensor) -> Tensor:
    logits_SV = whole(logits_SV)
    rows, size = logits_SV.shape
    out_SV = torch.empty(logits_SV.shape, dtype=torch.int64, device=logits_SV.device)
    if out_SV.numel():
        keys[(rows, triton.cdiv(size, TOKENS))](logits_SV, out_SV, size, TOKENS=TOKENS, num_warps=4)
    return out_SV
