"""Matrix products under several ops: part p of x times part p of w, each summed over K in order.

Every sum runs through K sequentially in one accumulator, so no tile changes it. Parts are added in
the ops' tree: in one program that walks them all, or by `add_parts` over what programs left.
R rows, P parts, K, N as in `core/ops/linear_parts.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor


class Tile(NamedTuple):
    """Rows, columns and K step of a program, and how the compiler schedules it."""

    rows: int
    columns: int
    step: int
    warps: int
    stages: int


class Weight(NamedTuple):
    """A weight by strides: `parts` of [K, N], each entry at part, n and k times these."""

    tensor: Tensor
    parts: int
    k: int
    n: int
    by_part: int
    by_n: int
    by_k: int


@triton.jit(do_not_specialize=["num_rows"])
def product(
    x,
    w,
    out,
    num_rows,
    N,
    K,
    x_by_row,
    x_by_part,
    w_by_part,
    w_by_n,
    w_by_k,
    out_by_row,
    out_by_part,
    WIDE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STEP: tl.constexpr,
    WHOLE_N: tl.constexpr,
    WHOLE_K: tl.constexpr,
):
    """out[r, p, n] = x[r, p] . w[p, :, n]; a program has one part of a tile of rows and columns.

    WIDE multiplies in float32 operands of two formats.
    """
    part = tl.program_id(2).to(tl.int64)
    row = (tl.program_id(1) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    step = tl.arange(0, STEP)
    here = row < num_rows
    x_at = x + part * x_by_part + row[:, None] * x_by_row + step[None, :]
    w_at = w + part * w_by_part + column[None, :] * w_by_n + step[:, None] * w_by_k
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for k in range(0, K, STEP):
        x_mask, w_mask = here[:, None], column[None, :] < N
        if not WHOLE_K:
            x_mask = x_mask & (k + step < K)[None, :]
            w_mask = w_mask & (k + step < K)[:, None]
        a = tl.load(x_at + k, mask=x_mask, other=0.0)
        if WHOLE_N and WHOLE_K:
            b = tl.load(w_at + k * w_by_k)
        else:
            b = tl.load(w_at + k * w_by_k, mask=w_mask, other=0.0)
        if WIDE:
            a, b = a.to(tl.float32), b.to(tl.float32)
        total = tl.dot(a, b, total, input_precision="ieee")
    out_at = out + part * out_by_part + row[:, None] * out_by_row + column[None, :]
    tl.store(out_at, total.to(out.dtype.element_ty), mask=here[:, None] & (column[None, :] < N))


@triton.jit
def tree_of(parts, by_part, mask, P: tl.constexpr):
    """((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)) of P parts, a power of two up to eight."""
    if P == 1:
        total = tl.load(parts, mask=mask, other=0.0)
    else:
        left = tree_of(parts, by_part, mask, P // 2)
        right = tree_of(parts + P // 2 * by_part, by_part, mask, P // 2)
        total = left + right
    return total


@triton.jit
def add_parts(parts, out, size, P: tl.constexpr, BLOCK: tl.constexpr):
    """out[i] = the tree of parts[p, i]; both are contiguous."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = place < size
    total = tree_of(parts + place, size.to(tl.int64), mask, P)
    tl.store(out + place, total.to(out.dtype.element_ty), mask=mask)


def tile_of(rows: int, weight: Weight) -> Tile:
    if rows <= 16:
        return Tile(16, 64, 128, 4, 4)
    if rows <= 64:
        return Tile(32 if rows <= 32 else 64, 64, 128, 4, 3)
    return Tile(128, 128, 64, 8, 3)


def run_parts(x: Tensor, x_by_row: int, x_by_part: int, w: Weight, out: Tensor, tile: Tile) -> None:
    """Fill out [R, P, N] (by its strides) with each part's product."""
    rows = out.shape[0]
    if not rows:
        return
    grid = (triton.cdiv(w.n, tile.columns), triton.cdiv(rows, tile.rows), w.parts)
    product[grid](
        x,
        w.tensor,
        out,
        rows,
        w.n,
        w.k,
        x_by_row,
        x_by_part,
        w.by_part,
        w.by_n,
        w.by_k,
        out.stride(0),
        out.stride(1),
        WIDE=x.dtype != w.tensor.dtype,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        STEP=tile.step,
        WHOLE_N=w.n % tile.columns == 0,
        WHOLE_K=w.k % tile.step == 0,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )


def summed(x_RK: Tensor, w: Weight, dtype: torch.dtype, tile: Tile | None = None) -> Tensor:
    """[R, P * K] times the parts of a weight, added in the tree: [R, N]."""
    if x_RK.stride(1) != 1:
        x_RK = x_RK.contiguous()
    rows = x_RK.shape[0]
    tile = tile or tile_of(rows, w)
    out_RN = x_RK.new_empty(rows, w.n, dtype=dtype)
    if w.parts == 1:
        run_parts(x_RK, x_RK.stride(0), w.k, w, out_RN[:, None], tile)
        return out_RN
    parts_PRN = x_RK.new_empty(w.parts, rows, w.n, dtype=torch.float32)
    run_parts(x_RK, x_RK.stride(0), w.k, w, parts_PRN.transpose(0, 1), tile)
    size = out_RN.numel()
    if size:
        add_parts[(triton.cdiv(size, 1024),)](parts_PRN, out_RN, size, P=w.parts, BLOCK=1024)
    return out_RN
