"""`layer_norm`: rows of the last axis; how a row is summed follows from its width alone."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tensorfold.backends.cuda_triton.kernels.whole import whole

# Values of a program: several short rows, or one long row.
VALUES = 1024


@triton.jit(do_not_specialize=["num_rows"])
def norm_rows(
    x,
    weight,
    bias,
    out,
    num_rows,
    width,
    eps,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    column = tl.arange(0, WIDTH)
    inside = column < width
    mask = (row < num_rows)[:, None] & inside[None, :]
    x_at = x + row[:, None] * width + column[None, :]
    value = tl.load(x_at, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(value, 1) / width
    centred = tl.where(inside[None, :], value - mean[:, None], 0.0)
    spread = tl.sqrt_rn(tl.sum(centred * centred, 1) / width + eps)
    scale = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    shift = tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    normed = centred / spread[:, None] * scale[None, :] + shift[None, :]
    out_at = out + row[:, None] * width + column[None, :]
    tl.store(out_at, normed.to(out.dtype.element_ty), mask=mask)


def layer_norm(x_RD: Tensor, weight_D: Tensor, bias_D: Tensor, eps: float) -> Tensor:
    x_RD = whole(x_RD)
    num_rows, width = x_RD.shape
    out_RD = torch.empty(x_RD.shape, dtype=x_RD.dtype, device=x_RD.device)
    if not num_rows:
        return out_RD
    padded = triton.next_power_of_2(width)
    rows = max(1, VALUES // padded)
    norm_rows[(triton.cdiv(num_rows, rows),)](
        x_RD,
        weight_D,
        bias_D,
        out_RD,
        num_rows,
        width,
        eps,
        ROWS=rows,
        WIDTH=padded,
        num_warps=4,
    )
    return out_RD
