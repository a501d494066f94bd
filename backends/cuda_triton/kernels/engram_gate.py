"""`engram_gate`: a program a stream of a row; how it is summed follows from its width alone."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tensorfold.backends.cuda_triton.kernels.whole import whole
from tensorfold.core.ops.engram_gate import LEAST


@triton.jit
def gate(
    x,
    key,
    value,
    weight,
    opened,
    out,
    D,
    value_by_row,
    eps,
    LEAST: tl.constexpr,
    N: tl.constexpr,
    WIDTH: tl.constexpr,
):
    row, stream = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = tl.arange(0, WIDTH)
    inside = column < D
    at = (row * N + stream) * D + column
    own = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    named = tl.load(key + at, mask=inside, other=0.0)
    named = named.to(tl.float32)
    scale = tl.load(weight + stream * D + column, mask=inside, other=0.0).to(tl.float32)
    own_norm = tl.sqrt_rn(tl.sum(own * own, 0) / D + eps)
    named_norm = tl.sqrt_rn(tl.sum(named * named, 0) / D + eps)
    dot = tl.sum(own * scale * named, 0) / own_norm / named_norm / tl.sqrt_rn(D.to(tl.float32))
    root = tl.sqrt_rn(tl.maximum(tl.abs(dot), LEAST))
    share = 1 / (1 + tl.exp(tl.where(dot < 0, root, -root)))
    share = tl.where(dot == dot, share, dot) * tl.load(opened + row).to(tl.float32)
    taken = tl.load(value + row * value_by_row + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, (own + share * taken).to(out.dtype.element_ty), mask=inside)


def engram_gate(
    x_RND: Tensor, key_RND: Tensor, value_RD: Tensor, weight_ND: Tensor, open_R: Tensor, eps: float
) -> Tensor:
    x_RND, key_RND, weight_ND = whole(x_RND), whole(key_RND), whole(weight_ND)
    rows, n, d = x_RND.shape
    if value_RD.stride(1) != 1:
        value_RD = value_RD.contiguous()
    out_RND = torch.empty(x_RND.shape, dtype=x_RND.dtype, device=x_RND.device)
    if rows:
        gate[(rows, n)](
            x_RND,
            key_RND,
            value_RD,
            weight_ND,
            open_R.contiguous(),
            out_RND,
            d,
            value_RD.stride(0),
            eps,
            LEAST=LEAST,
            N=n,
            WIDTH=triton.next_power_of_2(d),
            num_warps=8 if d > 2048 else 4,
        )
    return out_RND
