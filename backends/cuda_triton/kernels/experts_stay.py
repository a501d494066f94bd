"""Routed experts for many rows in bfloat16: rows in sorted order and programs that stay.

What `experts_many.grouped` does, through tensor descriptors: rows are first laid out by expert, so
that a tile of them is one block of memory.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tensorfold.backends.cuda_triton.kernels.rounded import hidden_of


@triton.jit
def lay_out(x, sorted_picks, starts, out, D, E, K: tl.constexpr, COLUMNS: tl.constexpr):
    """out[place] = the row of x whose pick stands there; places past the last are left."""
    place = tl.program_id(0)
    if place < tl.load(starts + E):
        row = (tl.load(sorted_picks + place) // K).to(tl.int64)
        for first in range(0, D, COLUMNS):
            column = first + tl.arange(0, COLUMNS)
            value = tl.load(x + row * D + column, mask=column < D, other=0.0)
            tl.store(out + place.to(tl.int64) * D + column, value, mask=column < D)


@triton.jit
def map_tiles(starts, tiles, E, most, ROWS: tl.constexpr, EXPERTS: tl.constexpr, T: tl.constexpr):
    """tiles[t] = expert, first and last place (excluded) of a tile of ROWS sorted rows.

    tiles is [1 + most, 4]; tiles[most, 0] becomes their number.
    """
    bin_at = tl.arange(0, EXPERTS)
    start_at = tl.load(starts + bin_at, mask=bin_at <= E, other=0)
    stop_at = tl.load(starts + bin_at + 1, mask=bin_at < E, other=0)
    tiles_of = tl.where(bin_at < E, (stop_at - start_at + ROWS - 1) // ROWS, 0)
    last_tile = tl.cumsum(tiles_of, 0)
    tile = tl.program_id(0) * T + tl.arange(0, T)
    expert = tl.sum((last_tile[None, :] <= tile[:, None]).to(tl.int32), 1)
    mine = bin_at[None, :] == expert[:, None]
    before = tl.sum(tl.where(mine, (last_tile - tiles_of)[None, :], 0), 1)
    start = tl.sum(tl.where(mine, start_at[None, :], 0), 1) + (tile - before) * ROWS
    stop = tl.sum(tl.where(mine, stop_at[None, :], 0), 1)
    tl.store(tiles + tile * 4, expert, mask=tile < most)
    tl.store(tiles + tile * 4 + 1, start, mask=tile < most)
    tl.store(tiles + tile * 4 + 2, stop, mask=tile < most)
    if tl.program_id(0) == 0:
        tl.store(tiles + most * 4, tl.sum(tiles_of, 0))


@triton.jit
def stay(
    a,
    w,
    out,
    weight,
    tiles,
    most,
    sorted_picks,
    inner,
    columns,
    limit,
    UP: tl.constexpr,
    WEIGHTED: tl.constexpr,
    ROUNDED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STEP: tl.constexpr,
    PROGRAMS: tl.constexpr,
):
    """a [P, inner] in sorted order, w [E * inner, columns], or twice as many columns if UP.

    UP: out [P, columns] in sorted order. Otherwise out[pick], times the pick's weight unless
    WEIGHTED.
    """
    program = tl.program_id(0)
    column_tiles = tl.cdiv(columns, COLUMNS)
    num_tiles = tl.load(tiles + most * 4) * column_tiles
    for tile in range(program, num_tiles, PROGRAMS):
        at = tiles + tile // column_tiles * 4
        expert, start, stop = tl.load(at), tl.load(at + 1), tl.load(at + 2)
        column = tile % column_tiles * COLUMNS
        total = tl.zeros((ROWS, COLUMNS), tl.float32)
        up = tl.zeros((ROWS, COLUMNS), tl.float32)
        for k in range(0, inner, STEP):
            left = a.load([start, k])
            right = w.load([expert * inner + k, column])
            total = tl.dot(left, right, total, input_precision="ieee")
            if UP:
                right = w.load([expert * inner + k, columns + column])
                up = tl.dot(left, right, up, input_precision="ieee")
        place = start + tl.arange(0, ROWS)
        pick = tl.load(sorted_picks + place, mask=place < stop, other=0)
        share = tl.load(weight + pick, mask=place < stop, other=0.0).to(tl.float32)
        n = column + tl.arange(0, COLUMNS)
        mask = (place < stop)[:, None] & (n < columns)[None, :]
        if UP:
            value = hidden_of(total, up, share, limit, WEIGHTED, ROUNDED, ROWS, COLUMNS)
            out_at = out + place.to(tl.int64)[:, None] * columns + n[None, :]
            tl.store(out_at, value.to(out.dtype.element_ty), mask=mask)
        else:
            if not WEIGHTED:
                total = total * share[:, None]
            out_at = out + pick.to(tl.int64)[:, None] * columns + n[None, :]
            tl.store(out_at, total, mask=mask)
