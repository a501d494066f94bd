"""Matrix products under several ops: part p of x times part p of w, each summed over K in order.

Every sum runs through K sequentially in one accumulator, so no tile changes it. Parts are added in
the ops' tree: in one program that walks them all, or by `add_parts` over what programs left.
R rows, P parts, K, N as in `core/ops/linear_parts.py`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tensorfold.backends.cuda_triton.kernels.many import fits, num_programs, run_many
from tensorfold.backends.cuda_triton.kernels.tiles import Tile, Weight


@triton.jit
def thirds(x):
    """Three bfloat16 whose sum is a float32, largest first."""
    first = x.to(tl.bfloat16)
    rest = x - first.to(tl.float32)
    second = rest.to(tl.bfloat16)
    return first, second, (rest - second.to(tl.float32)).to(tl.bfloat16)


@triton.jit
def exact_dot(a, b, total):
    """total + a @ b. A float32 b beside a bfloat16 a is three bfloat16, so nothing of it is lost
    and the tensor cores do the work. Then the step of K is part of the arithmetic."""
    if a.dtype == b.dtype:
        total = tl.dot(a, b, total, input_precision="ieee")
    else:
        first, second, third = thirds(b)
        total = tl.dot(a, third, total)
        total = tl.dot(a, second, total)
        total = tl.dot(a, first, total)
    return total


@triton.jit(do_not_specialize=["num_rows"])
def split_rows(x, out, K, by_row, num_rows, COLUMNS: tl.constexpr):
    """out [3, R, K]: the thirds of float32 rows."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < K
    first, second, third = thirds(tl.load(x + row * by_row + column, mask=inside, other=0.0))
    at = out + row * K + column
    tl.store(at, first, mask=inside)
    tl.store(at + num_rows.to(tl.int64) * K, second, mask=inside)
    tl.store(at + num_rows.to(tl.int64) * 2 * K, third, mask=inside)


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
    w_by_third,
    out_by_row,
    out_by_part,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STEP: tl.constexpr,
    WHOLE_N: tl.constexpr,
    WHOLE_K: tl.constexpr,
    THIRDS: tl.constexpr,
):
    """out[r, p, n] = x[r, p] . w[p, :, n]; a program has one part of a tile of rows and columns.

    THIRDS: w is three bfloat16, which `exact_dot` would make of a float32 one.
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
        if THIRDS:
            second_at = w_at + w_by_third + k * w_by_k
            second = tl.load(second_at, mask=w_mask, other=0.0)
            third = tl.load(second_at + w_by_third, mask=w_mask, other=0.0)
            total = tl.dot(a, third, total)
            total = tl.dot(a, second, total)
            total = tl.dot(a, b, total)
        else:
            total = exact_dot(a, b, total)
    out_at = out + part * out_by_part + row[:, None] * out_by_row + column[None, :]
    tl.store(out_at, total.to(out.dtype.element_ty), mask=here[:, None] & (column[None, :] < N))


@triton.jit
def tree_of(parts, by_part, by_third, mask, P: tl.constexpr, THIRDS: tl.constexpr):
    """P parts added pairwise, neighbours first: the largest power of two below P, and the rest."""
    LEFT: tl.constexpr = 4 if P > 4 else (2 if P > 2 else 1)
    if P == 1:
        total = tl.load(parts, mask=mask, other=0.0)
        if THIRDS:
            second = tl.load(parts + by_third, mask=mask, other=0.0)
            third = tl.load(parts + 2 * by_third, mask=mask, other=0.0)
            total = (third + second) + total
    else:
        left = tree_of(parts, by_part, by_third, mask, LEFT, THIRDS)
        rest = parts + LEFT * by_part
        total = left + tree_of(rest, by_part, by_third, mask, P - LEFT, THIRDS)
    return total


@triton.jit
def add_parts(parts, out, size, P: tl.constexpr, THIRDS: tl.constexpr, BLOCK: tl.constexpr):
    """out[i] = the tree of parts[p, i], or of the sums of parts[p, :, i] with THIRDS."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = place < size
    by_part = size * 3 if THIRDS else size
    total = tree_of(parts + place, by_part, size, mask, P, THIRDS)
    tl.store(out + place, total.to(out.dtype.element_ty), mask=mask)


# Columns from which a weight fills the device by itself, and below which in narrow tiles alone.
BROAD, SLIM = 8192, 2048
# `exact_dot` of two formats sums a step's thirds apart, so the step is part of the arithmetic.
MIXED_STEP = 64
TILE_THIRDS = Tile(128, 64, MIXED_STEP, 8, 3)
# Tiles are the fastest of about ten each, timed on an H200 with weights that no cache held. Here,
# those of programs that stay, with how long one takes beside the others.
STAY = (
    (Tile(128, 256, 64, 8, 3), 100),
    (Tile(128, 128, 64, 4, 4), 54),
    (Tile(64, 128, 64, 4, 4), 43),
)
STAY_PARTS = ((Tile(128, 128, 64, 8, 3), 54), (Tile(64, 128, 32, 4, 4), 43))
# Those of float32 sums: the largest do not lie in shared memory beside their operands.
STAY_WIDE = STAY[1:]
STAY_PARTS_WIDE = ((Tile(128, 128, 32, 8, 4), 54), STAY_PARTS[1])


def few(rows: int, w: Weight, apart: bool) -> bool:
    """Whether programs of one tile each are as fast as those that stay."""
    return rows <= 64 or (rows <= 128 and w.n < BROAD and not apart)


def tile_of(rows: int, w: Weight, apart: bool) -> Tile:
    """Of a program that has one tile."""
    if not few(rows, w, apart):
        return Tile(64, 64, 32, 4, 3)
    if w.by_k == 1:
        broad = w.n >= BROAD
        if rows <= 16 and w.parts == 1 and w.n < SLIM:
            return Tile(16, 16, 256, 4, 4)
        if rows <= 16:
            return Tile(16, 64, 128, 4, 3) if broad else Tile(16, 32, 128, 4, 6)
        if rows <= 32:
            return Tile(32, 64, 128, 4, 3) if broad else Tile(32, 32, 128, 4, 4)
        return Tile(64, 64, 64, 4, 4) if broad else Tile(64, 32, 128, 4, 4)
    if rows <= 16:
        return Tile(16, 64, 64, 4, 6) if apart else Tile(16, 256, 32, 4, 4)
    if rows <= 32:
        return Tile(32, 64, 64, 4, 4) if apart else Tile(32, 128, 64, 4, 4)
    return Tile(64, 128, 64, 4, 3) if rows <= 64 and not apart else Tile(64, 64, 64, 4, 4)


def tile_many(rows: int, w: Weight, apart: bool, programs: int, out: torch.dtype) -> Tile:
    """Of programs that stay: the tile whose waves over the device are done first."""
    alone, added = (STAY_WIDE, STAY_PARTS_WIDE) if out == torch.float32 else (STAY, STAY_PARTS)

    def time(choice: tuple[Tile, int]) -> int:
        tile, cost = choice
        count = triton.cdiv(rows, tile.rows) * triton.cdiv(w.n, tile.columns)
        return triton.cdiv(count * (w.parts if apart else 1), programs) * cost

    tile = min(alone if apart or w.parts == 1 else added, key=time)[0]
    return tile._replace(step=32, stages=4) if w.k % tile.step else tile


def result_type(x: Tensor, w: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, w.dtype)


def run_parts(x: Tensor, x_by_row: int, x_by_part: int, w: Weight, out: Tensor, tile: Tile) -> None:
    """Fill out [R, P, N] (by its strides) with each part's product."""
    rows = out.shape[0]
    if not rows:
        return
    by_third = 0
    if x.dtype != w.tensor.dtype:
        if rows > 64 and w.tensor.dtype == torch.float32:
            # Many programs would make the same thirds.
            by_third = w.tensor.numel()
            w = w._replace(tensor=split(w.tensor.view(-1, w.tensor.shape[-1])))
            tile = TILE_THIRDS
        else:
            columns = 32 if tile.rows <= 32 else 64
            tile = tile._replace(columns=columns, step=MIXED_STEP, stages=3)
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
        by_third,
        out.stride(0),
        out.stride(1),
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        STEP=tile.step,
        WHOLE_N=w.n % tile.columns == 0,
        WHOLE_K=w.k % tile.step == 0,
        THIRDS=by_third > 0,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )


def split(x_RK: Tensor) -> Tensor:
    """Float32 rows as three bfloat16 rows each: [3 * R, K]."""
    rows, k = x_RK.shape
    out = x_RK.new_empty(3 * rows, k, dtype=torch.bfloat16)
    columns = min(1024, triton.next_power_of_2(k))
    if rows:
        grid = (rows, triton.cdiv(k, columns))
        split_rows[grid](x_RK, out, k, x_RK.stride(0), rows, COLUMNS=columns)
    return out


def summed(
    x_RK: Tensor, w: Weight, tile: Tile | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    """[R, P * K] times the parts of a weight, added in the tree: [R, N], rounded to `dtype`, or to
    the wider format of the two.

    `tile` only changes who does what, as in `each`.
    """
    if x_RK.stride(1) != 1:
        x_RK = x_RK.contiguous()
    rows = x_RK.shape[0]
    out_RN = x_RK.new_empty(rows, w.n, dtype=dtype or result_type(x_RK, w.tensor))
    if tile is None and not few(rows, w, False):
        large = tile_many(rows, w, False, num_programs(x_RK.device), out_RN.dtype)
        if fits(x_RK, w, out_RN, large, False):
            run_many(x_RK, w, out_RN, large, False)
            return out_RN
    three = x_RK.dtype == torch.float32 and w.tensor.dtype == torch.bfloat16
    if three:
        x_RK = split(x_RK)
        tile = tile or (Tile(128, 64, 64, 4, 3) if len(x_RK) > 64 else None)
    tile = tile or tile_of(x_RK.shape[0], w, False)
    if w.parts == 1 and not three:
        run_parts(x_RK, x_RK.stride(0), w.k, w, out_RN[:, None], tile)
        return out_RN
    parts_PRN = x_RK.new_empty(w.parts, x_RK.shape[0], w.n, dtype=torch.float32)
    run_parts(x_RK, x_RK.stride(0), w.k, w, parts_PRN.transpose(0, 1), tile)
    size = out_RN.numel()
    if size:
        grid = (triton.cdiv(size, 1024),)
        add_parts[grid](parts_PRN, out_RN, size, P=w.parts, THIRDS=three, BLOCK=1024)
    return out_RN


def each(x_RPK: Tensor, w: Weight, tile: Tile | None = None) -> Tensor:
    """[R, P, K] times each part: [R, P, N]."""
    if x_RPK.dtype == torch.float32 and w.tensor.dtype == torch.bfloat16:
        w = w._replace(tensor=w.tensor.float())
    rows, parts, inner = x_RPK.shape
    if x_RPK.stride(2) != 1:
        x_RPK = x_RPK.contiguous()
    out_RPN = x_RPK.new_empty(rows, parts, w.n, dtype=result_type(x_RPK, w.tensor))
    if tile is None and not few(rows, w, True) and x_RPK.stride(1) == inner:
        large = tile_many(rows, w, True, num_programs(x_RPK.device), out_RPN.dtype)
        x_RK, out_RN = x_RPK.flatten(1), out_RPN.view(rows, parts * w.n)
        if fits(x_RK, w, out_RN, large, True):
            run_many(x_RK, w, out_RN, large, True)
            return out_RPN
    run_parts(x_RPK, x_RPK.stride(0), x_RPK.stride(1), w, out_RPN, tile or tile_of(rows, w, True))
    return out_RPN
