"""Routed experts for few rows: each picked expert's weights are read once for all its rows.

A program stands for a pick and some columns, and works if no earlier pick has its expert. Then it
gathers all picks of that expert. No order is made beforehand, so a round is two launches and a sum.
R rows, K picks a row, E experts, D as in `core/ops/experts.py`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tensorfold.backends.cuda_triton.kernels.rounded import hidden_of


@triton.jit
def gathered(pick_at, same, tile, ROWS: tl.constexpr):
    """The picks marked `same` at places [tile, tile + ROWS) among them, -1 past the last."""
    place = tl.cumsum(same.to(tl.int32), 0) - 1
    row = tile + tl.arange(0, ROWS)
    hit = (place[None, :] == row[:, None]) & same[None, :]
    return tl.max(tl.where(hit, pick_at[None, :], -1), 1)


@triton.jit(do_not_specialize=["num_picks"])
def gate_up_few(
    x,
    ids,
    weight,
    gate_up,
    hidden,
    num_picks,
    D,
    inner,
    first,
    E,
    limit,
    K: tl.constexpr,
    PICKS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STEP: tl.constexpr,
    WHOLE: tl.constexpr,
    WEIGHTED: tl.constexpr,
    ROUNDED: tl.constexpr,
):
    """hidden[pick] = what `experts` feeds its second product, for the picks of one expert."""
    own = tl.program_id(1)
    expert = tl.load(ids + own) - first
    pick_at = tl.arange(0, PICKS)
    theirs = tl.load(ids + pick_at, mask=pick_at < num_picks, other=-1) - first
    same = (theirs == expert) & (pick_at < num_picks)
    earliest = tl.min(tl.where(same, pick_at, PICKS), 0)
    if (expert >= 0) & (expert < E) & (earliest == own):
        count = tl.sum(same.to(tl.int32), 0)
        column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        step = tl.arange(0, STEP)
        w_at = gate_up + expert * D * (2 * inner) + step[:, None] * (2 * inner) + column[None, :]
        for tile in range(0, count, ROWS):
            pick = gathered(pick_at, same, tile, ROWS)
            here = pick >= 0
            row = (tl.where(here, pick, 0) // K).to(tl.int64)
            gate = tl.zeros((ROWS, COLUMNS), tl.float32)
            up = tl.zeros((ROWS, COLUMNS), tl.float32)
            for k in range(0, D, STEP):
                x_at = x + row[:, None] * D + (k + step)[None, :]
                if WHOLE:
                    a = tl.load(x_at, mask=here[:, None], other=0.0)
                    b = tl.load(w_at + k * (2 * inner))
                    c = tl.load(w_at + k * (2 * inner) + inner)
                else:
                    inside = (k + step < D)[:, None] & (column < inner)[None, :]
                    a = tl.load(x_at, mask=here[:, None] & (k + step < D)[None, :], other=0.0)
                    b = tl.load(w_at + k * (2 * inner), mask=inside, other=0.0)
                    c = tl.load(w_at + k * (2 * inner) + inner, mask=inside, other=0.0)
                gate = tl.dot(a, b, gate, input_precision="ieee")
                up = tl.dot(a, c, up, input_precision="ieee")
            share = tl.load(weight + pick, mask=here, other=0.0).to(tl.float32)
            value = hidden_of(gate, up, share, limit, WEIGHTED, ROUNDED, ROWS, COLUMNS)
            out_at = hidden + pick.to(tl.int64)[:, None] * inner + column[None, :]
            mask = here[:, None] & (column < inner)[None, :]
            tl.store(out_at, value.to(hidden.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["num_picks"])
def down_few(
    hidden,
    ids,
    weight,
    down,
    out,
    num_picks,
    D,
    inner,
    first,
    E,
    PICKS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STEP: tl.constexpr,
    WHOLE: tl.constexpr,
    WEIGHTED: tl.constexpr,
):
    """out[pick] = hidden[pick] . down of its expert, times the pick's weight unless WEIGHTED."""
    own = tl.program_id(1)
    expert = tl.load(ids + own) - first
    pick_at = tl.arange(0, PICKS)
    theirs = tl.load(ids + pick_at, mask=pick_at < num_picks, other=-1) - first
    same = (theirs == expert) & (pick_at < num_picks)
    earliest = tl.min(tl.where(same, pick_at, PICKS), 0)
    if (expert >= 0) & (expert < E) & (earliest == own):
        count = tl.sum(same.to(tl.int32), 0)
        column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        step = tl.arange(0, STEP)
        w_at = down + expert * inner * D + step[:, None] * D + column[None, :]
        for tile in range(0, count, ROWS):
            pick = gathered(pick_at, same, tile, ROWS)
            here = pick >= 0
            total = tl.zeros((ROWS, COLUMNS), tl.float32)
            for k in range(0, inner, STEP):
                a_at = hidden + pick.to(tl.int64)[:, None] * inner + (k + step)[None, :]
                if WHOLE:
                    a = tl.load(a_at, mask=here[:, None], other=0.0)
                    b = tl.load(w_at + k * D)
                else:
                    inside = (k + step < inner)[:, None] & (column < D)[None, :]
                    a = tl.load(a_at, mask=here[:, None] & (k + step < inner)[None, :], other=0.0)
                    b = tl.load(w_at + k * D, mask=inside, other=0.0)
                total = tl.dot(a, b, total, input_precision="ieee")
            if not WEIGHTED:
                share = tl.load(weight + pick, mask=here, other=0.0).to(tl.float32)
                total = total * share[:, None]
            out_at = out + pick.to(tl.int64)[:, None] * D + column[None, :]
            tl.store(out_at, total, mask=here[:, None] & (column < D)[None, :])
