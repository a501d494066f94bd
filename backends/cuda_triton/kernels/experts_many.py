"""Routed experts for many rows: picks sorted by expert on the device, then products by group.

`count_picks`, `scan_runs` and `place_picks` are a stable counting sort: runs of picks are counted
by expert, counts are added up over runs, and every run finds where its picks go. No count is known
to the host: `grouped` walks tiles whose number it reads. P picks, E experts.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tensorfold.backends.cuda_triton.kernels.rounded import hidden_of

RUN = 128  # picks counted together


@triton.jit(do_not_specialize=["num_picks"])
def count_picks(ids, counts, num_picks, first, E, RUN: tl.constexpr, EXPERTS: tl.constexpr):
    """counts[run, e] = the picks of expert e in a run; those of experts not here count nowhere."""
    run = tl.program_id(0)
    pick = run * RUN + tl.arange(0, RUN)
    expert = tl.load(ids + pick, mask=pick < num_picks, other=-1) - first
    here = (pick < num_picks) & (expert >= 0) & (expert < E)
    # One bin past the experts takes what is not here.
    found = tl.histogram(tl.where(here, expert, EXPERTS - 1).to(tl.int32), EXPERTS)
    bin_at = tl.arange(0, EXPERTS)
    tl.store(counts + run * EXPERTS + bin_at, tl.where(bin_at < E, found, 0))


@triton.jit(do_not_specialize=["num_runs"])
def scan_runs(counts, totals, num_runs, RUNS: tl.constexpr, EXPERTS: tl.constexpr, E: tl.constexpr):
    """counts[run, e] becomes the picks of e in the runs before; totals[e] those of all runs."""
    expert = tl.program_id(0) * E + tl.arange(0, E)
    total = tl.zeros((E,), tl.int32)
    for run in range(0, num_runs, RUNS):
        one = run + tl.arange(0, RUNS)
        at = counts + one[:, None] * EXPERTS + expert[None, :]
        mask = (one < num_runs)[:, None]
        found = tl.load(at, mask=mask, other=0)
        tl.store(at, total[None, :] + tl.cumsum(found, 0) - found, mask=mask)
        total += tl.sum(found, 0)
    tl.store(totals + expert, total)


@triton.jit(do_not_specialize=["num_picks"])
def place_picks(
    ids,
    before,
    totals,
    starts,
    sorted_picks,
    places,
    num_picks,
    first,
    E,
    RUN: tl.constexpr,
    EXPERTS: tl.constexpr,
):
    """sorted_picks by expert, each expert's ascending; starts[e] is its first place.

    places[pick] is where a pick stands, below 0 if its expert is not here.
    """
    run = tl.program_id(0)
    bin_at = tl.arange(0, EXPERTS)
    total = tl.load(totals + bin_at)
    start = tl.cumsum(total, 0) - total
    if run == 0:
        tl.store(starts + bin_at, start)
    pick = run * RUN + tl.arange(0, RUN)
    expert = tl.load(ids + pick, mask=pick < num_picks, other=-1) - first
    here = (pick < num_picks) & (expert >= 0) & (expert < E)
    expert = tl.where(here, expert, EXPERTS - 1).to(tl.int32)
    earlier = tl.arange(0, RUN)[None, :] < tl.arange(0, RUN)[:, None]
    rank = tl.sum(((expert[None, :] == expert[:, None]) & earlier).to(tl.int32), 1)
    place = tl.gather(start, expert, 0) + rank
    place += tl.load(before + run * EXPERTS + expert)
    tl.store(sorted_picks + place, pick, mask=here)
    tl.store(places + pick, tl.where(here, place, -1), mask=pick < num_picks)


@triton.jit
def grouped(
    a,
    w,
    out,
    weight,
    starts,
    sorted_picks,
    inner,
    width,
    columns,
    E,
    limit,
    K: tl.constexpr,
    UP: tl.constexpr,
    WEIGHTED: tl.constexpr,
    ROUNDED: tl.constexpr,
    EXPERTS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STEP: tl.constexpr,
    PROGRAMS: tl.constexpr,
):
    """Tiles of sorted picks and columns of one expert's weight [inner, width], tile after tile.

    UP: rows of x to hidden values in sorted order, gate and up columns being `columns` apart.
    Otherwise hidden rows to out[pick] in float32, times the pick's weight unless WEIGHTED.
    """
    bin_at = tl.arange(0, EXPERTS)
    start_at = tl.load(starts + bin_at, mask=bin_at <= E, other=0)
    stop_at = tl.load(starts + bin_at + 1, mask=bin_at < E, other=0)
    tiles_of = tl.where(bin_at < E, (stop_at - start_at + ROWS - 1) // ROWS, 0)
    last_tile = tl.cumsum(tiles_of, 0)
    column_tiles = tl.cdiv(columns, COLUMNS)
    num_tiles = tl.sum(tiles_of, 0) * column_tiles
    step = tl.arange(0, STEP)
    for tile in range(tl.program_id(0), num_tiles, PROGRAMS):
        # The rows of an expert turn fastest, so that programs side by side read one weight.
        row_tile = tile // column_tiles
        expert = tl.sum((last_tile <= row_tile).to(tl.int32), 0)
        mine = bin_at == expert
        tiles_here = tl.sum(tl.where(mine, tiles_of, 0), 0)
        first_tile = tl.sum(tl.where(mine, last_tile, 0), 0) - tiles_here
        within = tile - first_tile * column_tiles
        start = tl.sum(tl.where(mine, start_at, 0), 0) + within % tiles_here * ROWS
        stop = tl.sum(tl.where(mine, stop_at, 0), 0)
        column = within // tiles_here * COLUMNS + tl.arange(0, COLUMNS)
        place = start + tl.arange(0, ROWS)
        here = place < stop
        pick = tl.load(sorted_picks + place, mask=here, other=0)
        row = (pick // K if UP else place).to(tl.int64)
        total = tl.zeros((ROWS, COLUMNS), tl.float32)
        up = tl.zeros((ROWS, COLUMNS), tl.float32)
        for k in range(0, inner, STEP):
            left_at = a + row[:, None] * inner + (k + step)[None, :]
            mask = here[:, None] & (k + step < inner)[None, :]
            left = tl.load(left_at, mask=mask, other=0.0)
            w_row = (expert.to(tl.int64) * inner + k + step) * width
            w_at = w + w_row[:, None] + column[None, :]
            mask = (k + step < inner)[:, None] & (column < columns)[None, :]
            right = tl.load(w_at, mask=mask, other=0.0)
            total = tl.dot(left, right, total, input_precision="ieee")
            if UP:
                right = tl.load(w_at + columns, mask=mask, other=0.0)
                up = tl.dot(left, right, up, input_precision="ieee")
        mask = here[:, None] & (column < columns)[None, :]
        share = tl.load(weight + pick, mask=here, other=0.0).to(tl.float32)
        if UP:
            value = hidden_of(total, up, share, limit, WEIGHTED, ROUNDED, ROWS, COLUMNS)
            out_at = out + place.to(tl.int64)[:, None] * columns + column[None, :]
            tl.store(out_at, value.to(out.dtype.element_ty), mask=mask)
        else:
            if not WEIGHTED:
                total = total * share[:, None]
            out_at = out + pick.to(tl.int64)[:, None] * columns + column[None, :]
            tl.store(out_at, total, mask=mask)
