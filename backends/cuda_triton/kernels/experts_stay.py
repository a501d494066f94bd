"""Routed experts for many rows in bfloat16: rows in sorted order and programs that stay.

What `experts_many.grouped` does, through tensor descriptors: rows are first laid out by expert, so
that a tile of them is one block of memory.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tensorfold.backends.cuda_triton.kernels.halves import store_rows
from tensorfold.backends.cuda_triton.kernels.rounded import hidden_of

# Columns of a tile that leave its registers together.
PIECE = 64


@triton.jit
def lay_out(x, places, out, D, K: tl.constexpr, COLUMNS: tl.constexpr):
    """out[place] = a row of x, at the place of each of its picks; other places are left."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    value = tl.load(x + row * D + column, mask=column < D, other=0.0)
    for k in tl.static_range(K):
        place = tl.load(places + row * K + k)
        mask = (column < D) & (place >= 0)
        tl.store(out + place.to(tl.int64) * D + column, value, mask=mask)


@triton.jit(do_not_specialize=["most"])
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


@triton.jit(do_not_specialize=["most"])
def up_stay(
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
    WEIGHTED: tl.constexpr,
    ROUNDED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STEP: tl.constexpr,
    PROGRAMS: tl.constexpr,
):
    """a [P, inner] in sorted order, w [E * inner, 2 * columns], out [P, columns] likewise.

    Two loops: in a flat one, two accumulators make the compiler wait for each product.
    """
    program = tl.program_id(0)
    column_tiles = tl.cdiv(columns, COLUMNS)
    num_tiles = tl.load(tiles + most * 4) * column_tiles
    for tile in range(program, num_tiles, PROGRAMS):
        at = tiles + tile // column_tiles * 4
        expert, start, stop = tl.load(at), tl.load(at + 1), tl.load(at + 2)
        column = tile % column_tiles * COLUMNS
        gate = tl.zeros((ROWS, COLUMNS), tl.float32)
        up = tl.zeros((ROWS, COLUMNS), tl.float32)
        for k in range(0, inner, STEP):
            left = a.load([start, k])
            right = w.load([expert * inner + k, column])
            gate = tl.dot(left, right, gate, input_precision="ieee")
            right = w.load([expert * inner + k, columns + column])
            up = tl.dot(left, right, up, input_precision="ieee")
        place = start + tl.arange(0, ROWS)
        here = place < stop
        pick = tl.load(sorted_picks + place, mask=here, other=0)
        share = tl.load(weight + pick, mask=here, other=0.0).to(tl.float32)
        value = hidden_of(gate, up, share, limit, WEIGHTED, ROUNDED, ROWS, COLUMNS)
        store_rows(out, value, place.to(tl.int64), columns, column, here, ROWS, COLUMNS, 1)


@triton.jit(do_not_specialize=["most"])
def down_stay(
    a,
    w,
    out,
    weight,
    tiles,
    most,
    sorted_picks,
    inner,
    columns,
    WEIGHTED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STEP: tl.constexpr,
    PIECES: tl.constexpr,
    PROGRAMS: tl.constexpr,
):
    """a [P, inner] in sorted order, w [E * inner, columns]: out[pick], times the pick's weight
    unless WEIGHTED.

    One flat loop over tiles and steps, so that a tile's loads run beside the last one's stores.
    """
    program = tl.program_id(0)
    column_tiles = tl.cdiv(columns, COLUMNS)
    num_tiles = tl.load(tiles + most * 4) * column_tiles
    steps = inner // STEP
    tile = program - PROGRAMS
    step = steps - 1
    expert, start, stop, column = 0, 0, 0, 0
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for _ in range(tl.cdiv(num_tiles - program, PROGRAMS) * steps):
        step = tl.where(step == steps - 1, 0, step + 1)
        if step == 0:
            tile += PROGRAMS
            at = tiles + tile // column_tiles * 4
            expert, start, stop = tl.load(at), tl.load(at + 1), tl.load(at + 2)
            column = tile % column_tiles * COLUMNS
        left = a.load([start, step * STEP])
        right = w.load([expert * inner + step * STEP, column])
        total = tl.dot(left, right, total, input_precision="ieee")
        if step == steps - 1:
            place = start + tl.arange(0, ROWS)
            here = place < stop
            pick = tl.load(sorted_picks + place, mask=here, other=0)
            if not WEIGHTED:
                share = tl.load(weight + pick, mask=here, other=0.0).to(tl.float32)
                total = total * share[:, None]
            row = pick.to(tl.int64)
            store_rows(out, total, row, columns, column, here, ROWS, COLUMNS, PIECES)
            total = tl.zeros((ROWS, COLUMNS), tl.float32)
