"""`kda_steps`: the recurrence. A program keeps some columns of one head's state in registers
through all rows of a window, so the state is read once and written at most once.

A state's columns are independent, and each is summed over all of its keys in one program: neither
the number of streams nor of rows changes a sum.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tensorfold.backends.cuda_triton.kernels.whole import in_place, whole

# Columns of a head's state in a program: four programs a head of 128, so that one stream of 64
# heads fills a large GPU, and 64 registers a thread. Tuned on an H200.
COLUMNS = 32
WARPS = 2


@triton.jit
def inputs_of(q, k, v, gate, beta, here, key, column, KEY, VALUE, some):
    """A row's inputs in float32; zeros where `some` is false."""
    has_key, has_column = some & (key < KEY), some & (column < VALUE)
    by_key, by_value = here * KEY + key, here * VALUE + column
    q_K = tl.load(q + by_key, mask=has_key, other=0.0)
    k_K = tl.load(k + by_key, mask=has_key, other=0.0)
    v_C = tl.load(v + by_value, mask=has_column, other=0.0)
    gate_K = tl.load(gate + by_key, mask=has_key, other=0.0)
    rate = tl.load(beta + here, mask=some, other=0.0)
    return q_K, k_K, v_C, gate_K, rate


@triton.jit(do_not_specialize=["width"])
def steps(
    q,
    k,
    v,
    gate,
    beta,
    lane,
    count,
    state,
    out,
    width,
    HEADS: tl.constexpr,
    KEY: tl.constexpr,
    VALUE: tl.constexpr,
    KEYS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Rows of q, k, gate [B, W, H, KEY] and v, out [B, W, H, VALUE]; state [L, H, KEY, VALUE]."""
    head = tl.program_id(1)
    stream = tl.program_id(2).to(tl.int64)
    key = tl.arange(0, KEYS)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    has_key, has_column = key < KEY, column < VALUE
    mask = has_key[:, None] & has_column[None, :]
    own = (tl.load(lane + stream).to(tl.int64) * HEADS + head) * KEY * VALUE
    at = state + own + key[:, None] * VALUE + column[None, :]
    counted = tl.load(count + stream)
    memory = tl.load(at, mask=mask, other=0.0).to(tl.float32)
    here = stream * width * HEADS + head
    q_K, k_K, v_C, gate_K, rate = inputs_of(
        q, k, v, gate, beta, here, key, column, KEY, VALUE, width > 0
    )
    for row in range(width):
        # The next row's inputs are on their way while this one is worked in.
        next_q, next_k, next_v, next_gate, next_rate = inputs_of(
            q, k, v, gate, beta, here + HEADS, key, column, KEY, VALUE, row + 1 < width
        )
        memory = memory * tl.exp(gate_K.to(tl.float32))[:, None]
        k_K1 = k_K.to(tl.float32)[:, None]
        error_C = rate.to(tl.float32) * (v_C.to(tl.float32) - tl.sum(k_K1 * memory, 0))
        memory += k_K1 * error_C[None, :]
        read_C = tl.sum(q_K.to(tl.float32)[:, None] * memory, 0)
        put = out + here * VALUE + column
        tl.store(put, read_C.to(out.dtype.element_ty), mask=has_column)
        q_K, k_K, v_C, gate_K, rate = next_q, next_k, next_v, next_gate, next_rate
        here += HEADS
        if row + 1 == counted:
            tl.store(at, memory.to(state.dtype.element_ty), mask=mask)


def kda_steps(
    q_BWHK: Tensor,
    k_BWHK: Tensor,
    v_BWHV: Tensor,
    gate_BWHK: Tensor,
    beta_BWH: Tensor,
    lane_B: Tensor,
    count_B: Tensor,
    state_LHKV: Tensor,
) -> Tensor:
    streams, width, heads, key = q_BWHK.shape
    value = v_BWHV.shape[3]
    out_BWHV = torch.empty(v_BWHV.shape, dtype=v_BWHV.dtype, device=v_BWHV.device)
    if not out_BWHV.numel():
        return out_BWHV
    columns = min(COLUMNS, triton.next_power_of_2(value))
    steps[(triton.cdiv(value, columns), heads, streams)](
        whole(q_BWHK),
        whole(k_BWHK),
        whole(v_BWHV),
        whole(gate_BWHK),
        whole(beta_BWH),
        whole(lane_B),
        whole(count_B),
        in_place(state_LHKV),
        out_BWHV,
        width,
        HEADS=heads,
        KEY=key,
        VALUE=value,
        KEYS=triton.next_power_of_2(key),
        COLUMNS=columns,
        num_warps=WARPS,
    )
    return out_BWHV
