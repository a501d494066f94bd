"""`kda_blocks`: the block form of the delta rule (Yang et al., 2024), in six kernels.

Of a block and head `cumulate` adds up gates, `within` scores rows against one another a sub-block
at a time, `corners` inverts the mutual corrections of the rows of each sub-block, `invert` carries
them from sub-block to sub-block, and `solve` corrects values and keys. `across`, here or in
`kda_hopper`, has some columns of one head's state of a lane and walks the lane's blocks. What the
others leave for it is made for a few blocks at a time. A block is always 64 rows, and a row is made
of the rows up to it: where a prompt or a call ends moves no sum.

T rows of a block, S sub-blocks of P rows, K key and V value sizes, C columns.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tensorfold.backends.cuda_triton.kernels import kda_hopper
from tensorfold.backends.cuda_triton.kernels.whole import heads_whole, in_place, precision, whole
from tensorfold.core.ops.kda_blocks import BLOCK

# Exponents are taken from a sub-block's first row, which no later row moves. At the least gate
# they reach 15 * 5.5, and the lift, a power of two, keeps both factors of a score far from the
# ends of float32.
PART = 16
PARTS = BLOCK // PART
LIFT = tl.constexpr(2.0**54)
# Keys of a slice of `within` and columns of one of `solve`: few registers, many programs.
SLICE = 32
SOLVED = 64
# Columns of a state in a program of `across`: two a head of 128, 128 programs for 64 heads.
COLUMNS = 64
# Tuned on an H200.
CUMULATE_WARPS = 4
WITHIN_WARPS = 2
WITHIN_STAGES = 3
INVERT_WARPS = 2
SOLVE_WARPS = 4
SOLVE_STAGES = 1
ACROSS_WARPS = 8
ACROSS_STAGES = 2
# What is left for `across` at once, in bytes: large launches, and small beside a model.
SCRATCH = 256 * 2**20


@triton.jit(do_not_specialize=["num_rows"])
def cumulate(
    gate, rows, total, num_rows, HEADS: tl.constexpr, KEY: tl.constexpr, KEYS: tl.constexpr,
    T: tl.constexpr,
):  # fmt: skip
    """total [blocks, heads, T, K]: a block's gates added up; missing rows have none."""
    head = tl.program_id(0)
    block = tl.program_id(1).to(tl.int64)
    t = tl.arange(0, T)
    key = tl.arange(0, KEYS)
    row = tl.load(rows + block * T + t).to(tl.int64)
    mask = (row < num_rows)[:, None] & (key < KEY)[None, :]
    at = (row * HEADS + head)[:, None] * KEY + key[None, :]
    gate_TK = tl.load(gate + at, mask=mask, other=0.0).to(tl.float32)
    own = ((block * HEADS + head) * T + t)[:, None] * KEYS + key[None, :]
    tl.store(total + own, tl.cumsum(gate_TK, 0))


@triton.jit(do_not_specialize=["num_rows"])
def within(
    q, k, beta, rows, total, lower, inner, num_rows, HEADS: tl.constexpr, KEY: tl.constexpr,
    KEYS: tl.constexpr, T: tl.constexpr, P: tl.constexpr, D: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """How a sub-block's rows correct and read those up to them: lower and inner [T, T]. Keys go by
    in slices of D."""
    head = tl.program_id(0)
    block = tl.program_id(1).to(tl.int64)
    first = tl.program_id(2) * P
    t = tl.arange(0, T)
    # Keys of the sub-block's rows, then their queries.
    pair = tl.arange(0, 2 * P)
    reads = pair >= P
    mine = first + pair % P
    size = tl.arange(0, D)
    left = (block * HEADS + head) * T
    row_X = tl.load(rows + block * T + mine).to(tl.int64)
    here_X = row_X < num_rows
    at_X = (row_X * HEADS + head) * KEY
    own_X = tl.where(reads, q + at_X, k + at_X)
    earlier = t < first + P
    row_T = tl.load(rows + block * T + t).to(tl.int64)
    here_T = earlier & (row_T < num_rows)
    k_T = k + (row_T * HEADS + head) * KEY
    score_XT = tl.zeros((2 * P, T), tl.float32)
    for at in range(0, KEYS, D):
        key = at + size
        has_key = (key < KEY)[None, :]
        own_XD = tl.load(own_X[:, None] + key[None, :], mask=here_X[:, None] & has_key, other=0.0)
        origin_D = tl.load(total + (left + first) * KEYS + key)
        own_total_XD = tl.load(total + (left + mine)[:, None] * KEYS + key[None, :])
        raised_XD = own_XD.to(tl.float32) * (tl.exp(own_total_XD - origin_D[None, :]) * LIFT)
        k_TD = tl.load(k_T[:, None] + key[None, :], mask=here_T[:, None] & has_key, other=0.0)
        total_at = total + (left + t)[:, None] * KEYS + key[None, :]
        total_TD = tl.load(total_at, mask=earlier[:, None] & (key < KEYS)[None, :], other=0.0)
        fall_TD = tl.exp(tl.where(earlier[:, None], origin_D[None, :] - total_TD, 0.0)) / LIFT
        fallen_DT = tl.trans(k_TD.to(tl.float32) * fall_TD)
        score_XT = tl.dot(raised_XD, fallen_DT, score_XT, input_precision=PRECISION)
    rate_X = tl.load(beta + row_X * HEADS + head, mask=here_X, other=0.0).to(tl.float32)
    corrects = (t[None, :] < mine[:, None]) & ~reads[:, None]
    read = (t[None, :] <= mine[:, None]) & reads[:, None]
    value_XT = tl.where(corrects, rate_X[:, None] * score_XT, tl.where(read, score_XT, 0.0))
    put = (left + mine) * T
    tl.store(tl.where(reads, inner + put, lower + put)[:, None] + t[None, :], value_XT)


@triton.jit
def corners(lower, corner, T: tl.constexpr, P: tl.constexpr):
    """corner [T, P]: (I + own)^-1 of the sub-blocks [P, P] along the diagonal of lower, row after
    row."""
    S: tl.constexpr = T // P
    own = tl.program_id(0).to(tl.int64) * T
    s = tl.arange(0, S)[:, None, None]
    p = tl.arange(0, P)
    row_SPP = own + s * P + p[None, :, None]
    solved = -tl.load(lower + row_SPP * T + s * P + p[None, None, :])
    for row in range(1, P):
        here = (p == row)[None, :, None]
        line = tl.sum(tl.where(here, solved, 0.0), 1)
        line += tl.sum(line[:, :, None] * solved, 1)
        solved = tl.where(here, line[:, None, :], solved)
    solved += tl.where(p[:, None] == p[None, :], 1.0, 0.0)[None, :, :]
    tl.store(corner + row_SPP * P + p[None, None, :], solved)


@triton.jit
def rates_of(beta, rows, num_rows, block, part, head, HEADS, T, P: tl.constexpr):
    """A sub-block's rows of the diagonal matrix of rates [P, T]."""
    place_P = part * P + tl.arange(0, P)
    row_P = tl.load(rows + block * T + place_P).to(tl.int64)
    rate_P = tl.load(beta + row_P * HEADS + head, mask=row_P < num_rows, other=0.0)
    own = place_P[:, None] == tl.arange(0, T)[None, :]
    return tl.where(own, rate_P.to(tl.float32)[:, None], 0.0)


@triton.jit
def taken(
    right_PT, lower, left, part, other, solved_PT, T, PRECISION: tl.constexpr, P: tl.constexpr
):
    """What is left of a right-hand side when an earlier sub-block's rows are solved."""
    p = tl.arange(0, P)
    lower_PP = tl.load(lower + (left + part * P + p)[:, None] * T + other * P + p[None, :])
    return right_PT - tl.dot(lower_PP, solved_PT, input_precision=PRECISION)


@triton.jit
def put_solved(
    right_PT, corner, out, left, part, T: tl.constexpr, PRECISION: tl.constexpr, P: tl.constexpr
):
    p = tl.arange(0, P)
    left_P = left + part * P + p
    corner_PP = tl.load(corner + left_P[:, None] * P + p[None, :])
    solved_PT = tl.dot(corner_PP, right_PT, input_precision=PRECISION)
    tl.store(out + left_P[:, None] * T + tl.arange(0, T)[None, :], solved_PT)
    return solved_PT


@triton.jit(do_not_specialize=["num_rows"])
def invert(
    beta, rows, lower, corner, out, num_rows, HEADS: tl.constexpr, T: tl.constexpr,
    P: tl.constexpr, HOW: tl.constexpr,
):  # fmt: skip
    """out [blocks, heads, T, T] = (I + lower)^-1 times the rates; T is four sub-blocks."""
    head = tl.program_id(0)
    block = tl.program_id(1).to(tl.int64)
    left = (block * HEADS + head) * T
    right0 = rates_of(beta, rows, num_rows, block, 0, head, HEADS, T, P)
    right1 = rates_of(beta, rows, num_rows, block, 1, head, HEADS, T, P)
    right2 = rates_of(beta, rows, num_rows, block, 2, head, HEADS, T, P)
    right3 = rates_of(beta, rows, num_rows, block, 3, head, HEADS, T, P)
    solved = put_solved(right0, corner, out, left, 0, T, HOW, P)
    right1 = taken(right1, lower, left, 1, 0, solved, T, HOW, P)
    right2 = taken(right2, lower, left, 2, 0, solved, T, HOW, P)
    right3 = taken(right3, lower, left, 3, 0, solved, T, HOW, P)
    solved = put_solved(right1, corner, out, left, 1, T, HOW, P)
    right2 = taken(right2, lower, left, 2, 1, solved, T, HOW, P)
    right3 = taken(right3, lower, left, 3, 1, solved, T, HOW, P)
    solved = put_solved(right2, corner, out, left, 2, T, HOW, P)
    right3 = taken(right3, lower, left, 3, 2, solved, T, HOW, P)
    put_solved(right3, corner, out, left, 3, T, HOW, P)


@triton.jit
def solve_slice(
    x, solved_TT, total, out, row_T, num_rows, head, left, column, by_row, HEADS, SIZE, SIZES, T,
    ERASE: tl.constexpr, HOW: tl.constexpr,
):  # fmt: skip
    t = tl.arange(0, T)
    at = (row_T * by_row + head * SIZE)[:, None] + column[None, :]
    mask = (row_T < num_rows)[:, None] & (column < SIZE)[None, :]
    x_TC = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
    own = (left + t)[:, None] * SIZES + column[None, :]
    if ERASE:
        x_TC *= tl.exp(tl.load(total + own))
    tl.store(out + own, tl.dot(solved_TT, x_TC, input_precision=HOW))


@triton.jit(do_not_specialize=["num_rows"])
def solve(
    v, k, rows, total, solved, value, erase, num_rows, v_by_row, HEADS: tl.constexpr,
    KEY: tl.constexpr, VALUE: tl.constexpr, KEYS: tl.constexpr, VALUES: tl.constexpr,
    C: tl.constexpr, T: tl.constexpr, HOW: tl.constexpr,
):  # fmt: skip
    """value and erase [blocks, heads, T, size] = (I + lower)^-1 of beta times the values, and times
    what the keys find of the state, C columns at a time."""
    head = tl.program_id(0)
    block = tl.program_id(1).to(tl.int64)
    t = tl.arange(0, T)
    left = (block * HEADS + head) * T
    row_T = tl.load(rows + block * T + t).to(tl.int64)
    solved_TT = tl.load(solved + (left + t)[:, None] * T + t[None, :])
    for first in range(0, VALUES, C):
        solve_slice(
            v, solved_TT, total, value, row_T, num_rows, head, left, first + tl.arange(0, C),
            v_by_row, HEADS, VALUE, VALUES, T, False, HOW,
        )  # fmt: skip
    for first in range(0, KEYS, C):
        solve_slice(
            k, solved_TT, total, erase, row_T, num_rows, head, left, first + tl.arange(0, C),
            HEADS * KEY, HEADS, KEY, KEYS, T, True, HOW,
        )  # fmt: skip


@triton.jit(do_not_specialize=["num_rows", "num_blocks"])
def across(
    q,
    k,
    rows,
    lane,
    total,
    value,
    erase,
    inner,
    state,
    out,
    num_rows,
    num_blocks,
    HEADS: tl.constexpr,
    KEY: tl.constexpr,
    VALUE: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
    COLUMNS: tl.constexpr,
    T: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """A program of a lane's first block here walks all of the lane's; those of others have none."""
    head = tl.program_id(1)
    start = tl.program_id(2)
    own_lane = tl.load(lane + start)
    previous = tl.load(lane + tl.maximum(start - 1, 0))
    if (start == 0) | (previous != own_lane):
        t = tl.arange(0, T)
        key = tl.arange(0, KEYS)
        column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        has_key, has_column = key < KEY, column < VALUE
        held = has_key[:, None] & has_column[None, :]
        own = (own_lane.to(tl.int64) * HEADS + head) * KEY * VALUE
        at = state + own + key[:, None] * VALUE + column[None, :]
        memory = tl.load(at, mask=held, other=0.0).to(tl.float32)
        stop = start + 1
        while (stop < num_blocks) & (tl.load(lane + tl.minimum(stop, num_blocks - 1)) == own_lane):
            stop += 1
        for step in range(stop - start):
            block = start.to(tl.int64) + step
            row = tl.load(rows + block * T + t).to(tl.int64)
            here = row < num_rows
            by_row = (row * HEADS + head)[:, None]
            mask = here[:, None] & has_key[None, :]
            by_key = by_row * KEY + key[None, :]
            q_TK = tl.load(q + by_key, mask=mask, other=0.0).to(tl.float32)
            k_TK = tl.load(k + by_key, mask=mask, other=0.0).to(tl.float32)
            left = (block * HEADS + head) * T
            left_TK = (left + t)[:, None] * KEYS + key[None, :]
            total_TK = tl.load(total + left_TK)
            last_K = tl.load(total + (left + T - 1) * KEYS + key)
            erase_TK = tl.load(erase + left_TK)
            inner_TT = tl.load(inner + (left + t)[:, None] * T + tl.arange(0, T)[None, :])
            fresh = tl.load(value + (left + t)[:, None] * VALUES + column[None, :])
            fresh -= tl.dot(erase_TK, memory, input_precision=PRECISION)
            raised_TK = q_TK * tl.exp(total_TK)
            read = tl.dot(raised_TK, memory, input_precision=PRECISION)
            read += tl.dot(inner_TT, fresh, input_precision=PRECISION)
            by_value = by_row * VALUE + column[None, :]
            put = here[:, None] & has_column[None, :]
            tl.store(out + by_value, read.to(out.dtype.element_ty), mask=put)
            carry_KT = tl.trans(k_TK * tl.exp(last_K[None, :] - total_TK))
            memory = memory * tl.exp(last_K)[:, None]
            memory += tl.dot(carry_KT, fresh, input_precision=PRECISION)
        tl.store(at, memory.to(state.dtype.element_ty), mask=held)


def kda_blocks(
    q_RHK: Tensor,
    k_RHK: Tensor,
    v_RHV: Tensor,
    gate_RHK: Tensor,
    beta_RH: Tensor,
    rows_NT: Tensor,
    lane_N: Tensor,
    state_LHKV: Tensor,
) -> Tensor:
    rows, heads, key = q_RHK.shape
    value = v_RHV.shape[2]
    out_RHV = torch.zeros(v_RHV.shape, dtype=v_RHV.dtype, device=v_RHV.device)
    num_blocks = rows_NT.shape[0]
    keys, values = (max(PART, triton.next_power_of_2(size)) for size in (key, value))
    columns = min(COLUMNS, values)
    widths = (keys, BLOCK, BLOCK, PART, BLOCK, values, keys)
    at_once = max(1, SCRATCH // (4 * heads * BLOCK * sum(widths)))
    q, k, gate, beta = (whole(x) for x in (q_RHK, k_RHK, gate_RHK, beta_RH))
    v, v_by_row = heads_whole(v_RHV)
    state = in_place(state_LHKV)
    sizes = {"HEADS": heads, "T": BLOCK}
    by_key = {**sizes, "KEY": key, "KEYS": keys}
    how = precision(q_RHK, k_RHK, v_RHV)
    exact = "ieee" if how == "ieee" else "tf32x3"
    scratch = [
        torch.empty(min(at_once, num_blocks), heads, BLOCK, width, device=q.device)
        for width in widths
    ]
    total, lower, inner, corner, inverse, solved, erase = scratch
    for first in range(0, num_blocks, at_once):
        blocks = min(at_once, num_blocks - first)
        grid = (heads, blocks)
        block_rows = whole(rows_NT[first : first + blocks])
        lanes = whole(lane_N[first : first + blocks])
        cumulate[grid](gate, block_rows, total, rows, **by_key, num_warps=CUMULATE_WARPS)
        within[(*grid, PARTS)](
            q, k, beta, block_rows, total, lower, inner, rows,
            **by_key, P=PART, D=min(SLICE, keys), PRECISION=how, num_warps=WITHIN_WARPS,
            num_stages=WITHIN_STAGES,
        )  # fmt: skip
        corners[(heads * blocks,)](lower, corner, T=BLOCK, P=PART, num_warps=1)
        invert[grid](
            beta, block_rows, lower, corner, inverse, rows, **sizes, P=PART, HOW=exact,
            num_warps=INVERT_WARPS,
        )  # fmt: skip
        solve[grid](
            v, k, block_rows, total, inverse, solved, erase, rows, v_by_row, **by_key, VALUE=value,
            VALUES=values, C=min(SOLVED, keys, values), HOW=exact, num_warps=SOLVE_WARPS,
            num_stages=SOLVE_STAGES,
        )  # fmt: skip
        walked = (
            q,
            k,
            block_rows,
            lanes,
            total,
            solved,
            erase,
            inner,
            state,
            out_RHV,
            rows,
            blocks,
        )
        if kda_hopper.fits(q, v):
            kda_hopper.launch(walked)
            continue
        across[(triton.cdiv(value, columns), heads, blocks)](
            *walked, **by_key, VALUE=value, VALUES=values, COLUMNS=columns, PRECISION=how,
            num_warps=2 * ACROSS_WARPS if how == "ieee" else ACROSS_WARPS,
            num_stages=ACROSS_STAGES,
        )  # fmt: skip
    return out_RHV
