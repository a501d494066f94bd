"""Kimi delta attention on the CPU: the recurrence, and the block form with bounded exponents."""

from __future__ import annotations

import torch
from torch import Tensor

from tensorfold.backends.cpu_reference.products import Products
from tensorfold.core.ops.kda_blocks import BLOCK

# Inside a sub-block exponents are differences of cumulated gates; across sub-blocks both factors
# are taken relative to the later one's start, so that none is above zero.
SUB = 16


def kda_steps(
    p: Products,
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
    many = streams * heads
    state = state_LHKV[lane_B].view(many, key, -1)
    decay_BWHK = torch.exp(gate_BWHK)
    outputs = []
    for row in range(width):
        k = k_BWHK[:, row].reshape(many, 1, key)
        v = v_BWHV[:, row].reshape(many, 1, -1)
        state = state * decay_BWHK[:, row].reshape(many, key, 1)
        error = beta_BWH[:, row].reshape(many, 1, 1) * (v - p.batch(k, state))
        state = torch.addcmul(state, k.transpose(1, 2), error)
        outputs.append(p.batch(q_BWHK[:, row].reshape(many, 1, key), state))
        ends = count_B == row + 1
        state_LHKV[lane_B[ends]] = state.view(streams, heads, key, -1)[ends]
    return torch.stack([part.view(streams, heads, -1) for part in outputs], 1)


def decayed(p: Products, a: Tensor, k: Tensor, total: Tensor) -> Tensor:
    """[B, T, T] with entries sum over d of a[i, d] k[j, d] exp(total[i, d] - total[j, d]), i >= j.

    `total` is the cumulated gate, not increasing along T; entries above the diagonal are zero.
    """
    scores = a.new_zeros(a.shape[0], BLOCK, BLOCK)
    for start in range(0, BLOCK, SUB):
        here = slice(start, start + SUB)
        inside = torch.exp(total[:, here, None] - total[:, None, here])
        inside = (a[:, here, None] * k[:, None, here] * inside).sum(-1)
        scores[:, here, here] = inside.tril()
        if start:
            origin = total[:, start - 1 : start]
            later = a[:, here] * torch.exp(total[:, here] - origin)
            earlier = k[:, :start] * torch.exp(origin - total[:, :start])
            scores[:, here, :start] = p.batch(later, earlier.transpose(1, 2))
    return scores


def kda_blocks(
    p: Products,
    q_RHK: Tensor,
    k_RHK: Tensor,
    v_RHV: Tensor,
    gate_RHK: Tensor,
    beta_RH: Tensor,
    rows_NT: Tensor,
    lane_N: Tensor,
    state_LHKV: Tensor,
) -> Tensor:
    """Within a block the rows' mutual corrections are one triangular solve; blocks follow one
    another through the state. Source: the WY form of the delta rule (Yang et al., 2024)."""
    blocks, heads = rows_NT.shape[0], q_RHK.shape[1]

    def by_block(part: Tensor) -> Tensor:
        padded = torch.cat([part, part.new_zeros(1, *part.shape[1:])])[rows_NT]
        return padded.transpose(1, 2).reshape(blocks * heads, BLOCK, -1).contiguous()

    q, k, v, gate = (by_block(part) for part in (q_RHK, k_RHK, v_RHV, gate_RHK))
    beta = by_block(beta_RH[..., None])
    total = gate.cumsum(1)
    raised = torch.exp(total)
    lower = (beta * decayed(p, k, k, total)).tril(-1)
    right = torch.cat([beta * v, beta * k * raised], -1)
    value, erase = p.solve(lower, right).split([v.shape[-1], k.shape[-1]], -1)
    inner = decayed(p, q, k, total)
    last = total[:, -1:]
    carry = (k * torch.exp(last - total)).transpose(1, 2)
    parts = [value, erase.contiguous(), q * raised, inner, carry, torch.exp(last).transpose(1, 2)]
    outputs = []
    by_head = [part.unflatten(0, (blocks, heads)) for part in parts]
    for block, lane in enumerate(lane_N.tolist()):
        value_n, erase_n, q_n, inner_n, carry_n, decay_n = (part[block] for part in by_head)
        state = state_LHKV[lane]
        fresh = value_n - p.batch(erase_n, state)
        outputs.append(p.batch(q_n, state) + p.batch(inner_n, fresh))
        state_LHKV[lane] = decay_n * state + p.batch(carry_n, fresh)
    output_RHV = v_RHV.new_zeros(v_RHV.shape[0] + 1, *v_RHV.shape[1:])
    output_RHV[rows_NT] = torch.stack(outputs).transpose(1, 2)
    return output_RHV[:-1]
