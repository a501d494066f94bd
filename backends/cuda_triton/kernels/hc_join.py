"""`hc_join`: a sublayer's output returns to the streams, column by column."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

COLUMNS = 1024


@triton.jit
def join(y, x, post, comb, out, D, N: tl.constexpr, COLUMNS: tl.constexpr):
    """out[j] = post[j] * y + the sum of comb[i, j] * x[i], i ascending."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < D
    stream = tl.arange(0, N)
    weight = tl.load(post + row * N + stream).to(tl.float32)
    value = tl.load(y + row * D + column, mask=inside, other=0.0).to(tl.float32)
    total = weight[:, None] * value[None, :]
    for i in tl.static_range(N):
        weight = tl.load(comb + (row * N + i) * N + stream).to(tl.float32)
        value = tl.load(x + (row * N + i) * D + column, mask=inside, other=0.0).to(tl.float32)
        total += weight[:, None] * value[None, :]
    out_at = out + (row * N + stream)[:, None] * D + column[None, :]
    tl.store(out_at, total.to(out.dtype.element_ty), mask=inside[None, :])


def hc_join(y_RD: Tensor, x_RND: Tensor, post_RN: Tensor, comb_RNN: Tensor) -> Tensor:
    y_RD, x_RND = y_RD.contiguous(), x_RND.contiguous()
    rows, n, d = x_RND.shape
    out_RND = torch.empty(x_RND.shape, dtype=x_RND.dtype, device=x_RND.device)
    if rows:
        columns = min(COLUMNS, triton.next_power_of_2(d))
        join[(rows, triton.cdiv(d, columns))](
            y_RD,
            x_RND,
            post_RN.contiguous(),
            comb_RNN.contiguous(),
            out_RND,
            d,
            N=n,
            COLUMNS=columns,
            num_warps=4,
        )
    return out_RND
