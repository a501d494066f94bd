"""`kda_blocks`: the block form of the delta rule (Yang et al., 2024), in three kernels.

`within` has one block of one head and scores its rows against one another, `solve` inverts their
mutual corrections, and `across` has some columns of one head's state of a lane and walks the lane's
blocks. What the first two leave for the last is made for a few blocks at a time. A block is always
64 rows, so where a prompt or a call ends moves no sum.

T rows of a block, S sub-blocks of P rows, K key and V value sizes.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tensorfold.backends.cuda_triton.kernels.whole import in_place, precision, whole
from tensorfold.core.ops.kda_blocks import BLOCK

# Exponents are taken from a sub-block's first row, which no later row moves. At the least gate
# they reach 15 * 5.5, and the lift, a power of two, keeps both factors of a score far from the
# ends of float32.
PART = 16
LIFT = tl.constexpr(2.0**54)
# Columns of a state in a program of `across`: two a head of 128, 128 programs for 64 heads.
COLUMNS = 64
# Keys or values of a slice: tiles of all of them would not fit the registers.
SLICE = 64
WITHIN_WARPS = 8
SOLVE_WARPS = 4
ACROSS_WARPS = 8
ACROSS_STAGES = 2
# What is left for `across` at once, in bytes: large launches, and small beside a model.
SCRATCH = 256 * 2**20


@triton.jit
def inverse(lower, T: tl.constexpr, P: tl.constexpr, PRECISION: tl.constexpr):
    """(I + lower)^-1 of a strictly lower [T, T]: P rows at a time by substitution, then the
    sub-blocks, whose own part is nilpotent of order T // P = 4."""
    S: tl.constexpr = T // P
    s = tl.arange(0, S)
    p = tl.arange(0, P)
    own = s[:, None, None, None] == s[None, None, :, None]
    corner = -tl.sum(tl.where(own, tl.reshape(lower, (S, P, S, P)), 0.0), 2)
    for row in range(1, P):
        here = (p == row)[None, :, None]
        line = tl.sum(tl.where(here, corner, 0.0), 1)
        line += tl.sum(line[:, :, None] * corner, 1)
        corner = tl.where(here, line[:, None, :], corner)
    corner += tl.where(p[:, None] == p[None, :], 1.0, 0.0)[None, :, :]
    apart = tl.where(own, corner[:, :, None, :], 0.0)
    near = tl.reshape(apart, (T, T))
    t = tl.arange(0, T)
    far = tl.where((t // P)[:, None] > (t // P)[None, :], lower, 0.0)
    n = tl.dot(near, far, input_precision=PRECISION)
    twice = tl.dot(n, n, input_precision=PRECISION)
    even = near + tl.dot(twice, near, input_precision=PRECISION)
    return even - tl.dot(n, even, input_precision=PRECISION)


@triton.jit(do_not_specialize=["num_rows"])
def within(
    q,
    k,
    gate,
    beta,
    rows,
    total,
    lower,
    inner,
    num_rows,
    HEADS: tl.constexpr,
    KEY: tl.constexpr,
    KEYS: tl.constexpr,
    T: tl.constexpr,
    P: tl.constexpr,
    D: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Of a block: cumulated gates [T, K], and how its rows correct and read one another, each
    [T, T]. Keys go by in slices of D."""
    S: tl.constexpr = T // P
    head = tl.program_id(0)
    block = tl.program_id(1).to(tl.int64)
    t = tl.arange(0, T)
    p = tl.arange(0, P)
    s = tl.arange(0, S)
    size = tl.arange(0, D)
    row = tl.load(rows + block * T + t).to(tl.int64)
    here = row < num_rows
    by_row = (row * HEADS + head)[:, None]
    own = ((block * HEADS + head) * T + t)[:, None]
    scores = tl.zeros((S, P, T), tl.float32)
    reads = tl.zeros((S, P, T), tl.float32)
    for at in range(0, KEYS, D):
        mask = here[:, None] & (at + size < KEY)[None, :]
        by_key = by_row * KEY + (at + size)[None, :]
        gate_TD = tl.load(gate + by_key, mask=mask, other=0.0).to(tl.float32)
        total_TD = tl.cumsum(gate_TD, 0)
        tl.store(total + own * KEYS + (at + size)[None, :], total_TD)
        k_TD = tl.load(k + by_key, mask=mask, other=0.0).to(tl.float32)
        for part in range(S):
            first = part * P
            origin_D = tl.sum(tl.where((t == first)[:, None], total_TD, 0.0), 0)
            mine = (s == part)[:, None, None]
            own_PD = tl.sum(tl.where(mine, tl.reshape(total_TD, (S, P, D)), 0.0), 0)
            raised_PD = tl.exp(own_PD - origin_D[None, :]) * LIFT
            earlier = (t < first + P)[:, None]
            fall_TD = tl.exp(tl.where(earlier, origin_D[None, :] - total_TD, 0.0)) / LIFT
            fallen_DT = tl.trans(tl.where(earlier, k_TD * fall_TD, 0.0))
            row_P = tl.load(rows + block * T + first + p).to(tl.int64)
            by_P = (row_P * HEADS + head)[:, None] * KEY + (at + size)[None, :]
            mask_P = (row_P < num_rows)[:, None] & (at + size < KEY)[None, :]
            k_PD = tl.load(k + by_P, mask=mask_P, other=0.0).to(tl.float32)
            q_PD = tl.load(q + by_P, mask=mask_P, other=0.0).to(tl.float32)
            score_PT = tl.dot(k_PD * raised_PD, fallen_DT, input_precision=PRECISION)
            read_PT = tl.dot(q_PD * raised_PD, fallen_DT, input_precision=PRECISION)
            scores += tl.where(mine, score_PT[None, :, :], 0.0)
            reads += tl.where(mine, read_PT[None, :, :], 0.0)
    put = own * T + t[None, :]
    rate_T = tl.load(beta + row * HEADS + head, mask=here, other=0.0).to(tl.float32)
    corrected = rate_T[:, None] * tl.reshape(scores, (T, T))
    tl.store(lower + put, tl.where(t[None, :] < t[:, None], corrected, 0.0))
    tl.store(inner + put, tl.where(t[None, :] <= t[:, None], tl.reshape(reads, (T, T)), 0.0))


@triton.jit(do_not_specialize=["num_rows"])
def solve(
    k,
    v,
    beta,
    rows,
    total,
    lower,
    value,
    erase,
    num_rows,
    HEADS: tl.constexpr,
    KEY: tl.constexpr,
    VALUE: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
    T: tl.constexpr,
    P: tl.constexpr,
    D: tl.constexpr,
    PRECISION: tl.constexpr,
    SOLVE: tl.constexpr,
):
    """Of a block: corrected values [T, V], and what they take of the state, [T, K]."""
    head = tl.program_id(0)
    block = tl.program_id(1).to(tl.int64)
    t = tl.arange(0, T)
    size = tl.arange(0, D)
    own = ((block * HEADS + head) * T + t)[:, None]
    solved = inverse(tl.load(lower + own * T + t[None, :]), T, P, SOLVE)
    row = tl.load(rows + block * T + t).to(tl.int64)
    here = row < num_rows
    by_row = (row * HEADS + head)[:, None]
    rate_T = tl.load(beta + row * HEADS + head, mask=here, other=0.0).to(tl.float32)
    for at in range(0, KEYS, D):
        mask = here[:, None] & (at + size < KEY)[None, :]
        k_TD = tl.load(k + by_row * KEY + (at + size)[None, :], mask=mask, other=0.0)
        put = own * KEYS + (at + size)[None, :]
        right_TD = rate_T[:, None] * k_TD.to(tl.float32) * tl.exp(tl.load(total + put))
        tl.store(erase + put, tl.dot(solved, right_TD, input_precision=PRECISION))
    for at in range(0, VALUES, D):
        mask = here[:, None] & (at + size < VALUE)[None, :]
        v_TD = tl.load(v + by_row * VALUE + (at + size)[None, :], mask=mask, other=0.0)
        right_TD = rate_T[:, None] * v_TD.to(tl.float32)
        put = own * VALUES + (at + size)[None, :]
        tl.store(value + put, tl.dot(solved, right_TD, input_precision=PRECISION))


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
    widths = (keys, BLOCK, BLOCK, values, keys)
    at_once = max(1, SCRATCH // (4 * heads * BLOCK * sum(widths)))
    q, k, v, gate, beta = (whole(x) for x in (q_RHK, k_RHK, v_RHV, gate_RHK, beta_RH))
    state = in_place(state_LHKV)
    by_key = {"HEADS": heads, "KEY": key, "KEYS": keys, "T": BLOCK}
    by_both = {**by_key, "VALUE": value, "VALUES": values}
    how = precision(q_RHK, k_RHK, v_RHV)
    exact = "ieee" if how == "ieee" else "tf32x3"
    parts = {"P": PART, "D": min(SLICE, keys, values), "PRECISION": how}
    scratch = [
        torch.empty(min(at_once, num_blocks), heads, BLOCK, width, device=q.device)
        for width in widths
    ]
    total, lower, inner, solved, erase = scratch
    for first in range(0, num_blocks, at_once):
        blocks = min(at_once, num_blocks - first)
        block_rows = whole(rows_NT[first : first + blocks])
        lanes = whole(lane_N[first : first + blocks])
        within[(heads, blocks)](
            q, k, gate, beta, block_rows, total, lower, inner, rows,
            **by_key, **parts, num_warps=WITHIN_WARPS,
        )  # fmt: skip
        solve[(heads, blocks)](
            k, v, beta, block_rows, total, lower, solved, erase, rows,
            **by_both, **parts, SOLVE=exact,
            num_warps=2 * SOLVE_WARPS if how == "ieee" else SOLVE_WARPS,
        )  # fmt: skip
        across[(triton.cdiv(value, columns), heads, blocks)](
            q, k, block_rows, lanes, total, solved, erase, inner, state, out_RHV, rows, blocks,
            **by_both, COLUMNS=columns, PRECISION=how, num_warps=ACROSS_WARPS,
            num_stages=ACROSS_STAGES,
        )  # fmt: skip
    return out_RHV
