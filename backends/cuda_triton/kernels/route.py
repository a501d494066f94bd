"""`route` and `route_softplus`: a program a row finds its best experts, one after another.

Scores become integers of the same order, joined with the expert's number from the end, so that a
tie falls to the lowest id and no value, NaN included, can name an expert that is not there.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def choose(
    logit,
    bias,
    ids,
    weights,
    E,
    by_row,
    scale,
    TOP: tl.constexpr,
    SOFTPLUS: tl.constexpr,
    NORMALISE: tl.constexpr,
    EXPERTS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, EXPERTS)
    inside = expert < E
    value = tl.load(logit + row * by_row + expert, mask=inside, other=0.0).to(tl.float32)
    if SOFTPLUS:
        # log1p(e) for e in (0, 1]: u = 1 + e is rounded, and e / (u - 1) takes the error back.
        raised = tl.exp(-tl.abs(value))
        u = 1 + raised
        log = tl.where(u == 1, raised, tl.log(u) * (raised / tl.where(u == 1, 1.0, u - 1)))
        chance = tl.sqrt_rn(tl.maximum(value, 0.0) + log)
        chance = tl.where(value == value, chance, value)
    else:
        chance = 1 / (1 + tl.exp(-value))
    score = chance + tl.load(bias + expert, mask=inside, other=0.0).to(tl.float32)
    bits = score.to(tl.int32, bitcast=True)
    order = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    order = tl.where(score == score, order, 0x7FFFFFFF)
    rank = (order.to(tl.int64) << 32) | (EXPERTS - 1 - expert).to(tl.int64)
    LEAST: tl.constexpr = -(2**63)
    left = tl.where(inside, rank, LEAST)
    for _ in tl.static_range(TOP - 1):
        left = tl.where(left == tl.max(left, 0), LEAST, left)
    picked = inside & (rank >= tl.max(left, 0))
    if NORMALISE:
        chance = chance / (tl.sum(tl.where(picked, chance, 0.0), 0) + 1e-20)
    place = row * TOP + tl.cumsum(picked.to(tl.int32), 0) - 1
    tl.store(ids + place, expert.to(tl.int64), mask=picked)
    tl.store(weights + place, (chance * scale).to(weights.dtype.element_ty), mask=picked)


def chosen(
    logit_RE: Tensor, bias_E: Tensor, top: int, scale: float, normalise: bool, softplus: bool
) -> tuple[Tensor, Tensor]:
    if logit_RE.stride(1) != 1:
        logit_RE = logit_RE.contiguous()
    rows, experts = logit_RE.shape
    ids_RK = logit_RE.new_empty(rows, top, dtype=torch.int64)
    weight_RK = logit_RE.new_empty(rows, top)
    if rows:
        choose[(rows,)](
            logit_RE,
            bias_E,
            ids_RK,
            weight_RK,
            experts,
            logit_RE.stride(0),
            scale,
            TOP=top,
            SOFTPLUS=softplus,
            NORMALISE=normalise,
            EXPERTS=triton.next_power_of_2(experts),
            num_warps=1,
        )
    return ids_RK, weight_RK


def route(
    logit_RE: Tensor, bias_E: Tensor, top: int, scale: float, normalise: bool
) -> tuple[Tensor, Tensor]:
    return chosen(logit_RE, bias_E, top, scale, normalise, False)
