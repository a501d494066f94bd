"""`rms_norm`: rows of the last axis; how a row is summed follows from its width alone."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tensorfold.backends.cuda_triton.kernels.whole import whole

# Strides and pointers on this grid compile to one kernel, which sums in one order.
GRID = 16
# Values of a program: several short rows, or one long row.
VALUES = 4096


@triton.jit(do_not_specialize=["num_rows"])
def norm_rows(
    x,
    weight,
    out,
    num_rows,
    inner,
    by_outer,
    by_inner,
    width,
    eps,
    WEIGHTED: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Row r of x starts at r // inner * by_outer + r % inner * by_inner; out is contiguous."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    column = tl.arange(0, WIDTH)
    mask = (row < num_rows)[:, None] & (column < width)[None, :]
    start = row // inner * by_outer + row % inner * by_inner
    value = tl.load(x + start[:, None] + column[None, :], mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(value * value, 1) / width
    normed = value / tl.sqrt_rn(mean + eps)[:, None]
    if WEIGHTED:
        normed *= tl.load(weight + column, mask=column < width, other=0.0).to(tl.float32)[None, :]
    out_at = out + row[:, None] * width + column[None, :]
    tl.store(out_at, normed.to(out.dtype.element_ty), mask=mask)


def on_grid(x: Tensor) -> bool:
    return x.data_ptr() % GRID == 0 and all(stride % GRID == 0 for stride in x.stride()[:-1])


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    width = x.shape[-1]
    if x.dim() > 3 or x.stride(-1) != 1 or not on_grid(x):
        x = whole(x).view(-1, width)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    num_rows = out.numel() // width
    if not num_rows:
        return out
    inner, by_inner = (x.shape[1], x.stride(1)) if x.dim() == 3 else (1, 0)
    padded = triton.next_power_of_2(width)
    rows = max(1, VALUES // padded)
    norm_rows[(triton.cdiv(num_rows, rows),)](
        x,
        weight,
        out,
        num_rows,
        inner,
        x.stride(0),
        by_inner,
        width,
        eps,
        WEIGHTED=weight is not None,
        ROWS=rows,
        WIDTH=padded,
        num_warps=8 if padded >= VALUES else 4,
    )
    return out
