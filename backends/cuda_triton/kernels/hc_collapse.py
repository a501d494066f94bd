"""`hc_collapse`: a weighted sum of the streams, column by column."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

COLUMNS = 1024


@triton.jit
def collapse(x, pre, out, D, N: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((COLUMNS,), tl.float32)
    for n in tl.static_range(N):
        weight = tl.load(pre + row * N + n).to(tl.float32)
        x_at = x + (row * N + n) * D + column
        total += weight * tl.load(x_at, mask=column < D, other=0.0).to(tl.float32)
    tl.store(out + row * D + column, total.to(out.dtype.element_ty), mask=column < D)


def hc_collapse(x_RND: Tensor, pre_RN: Tensor) -> Tensor:
    x_RND, pre_RN = x_RND.contiguous(), pre_RN.contiguous()
    rows, n, d = x_RND.shape
    out_RD = x_RND.new_empty(rows, d)
    if rows:
        columns = min(COLUMNS, triton.next_power_of_2(d))
        grid = (rows, triton.cdiv(d, columns))
        collapse[grid](x_RND, pre_RN, out_RD, d, N=n, COLUMNS=columns, num_warps=4)
    return out_RD
