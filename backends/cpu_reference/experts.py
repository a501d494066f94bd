"""Routed experts on the CPU: few rows through every expert at once, many rows expert by expert.

Both forms give a row the same bits.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tensorfold.backends.cpu_reference.products import Products, pad_rows
from tensorfold.core.ops.experts import clamped_swiglu
from tensorfold.core.ops.experts_weighted import weighted
from tensorfold.core.ops.linear_parts import tree

# Above this many rows experts run one after another on their own rows.
DENSE_ROWS = 32

# Of a product's rows and their weights [..., 1].
Step = Callable[[Tensor, Tensor], Tensor]


def experts(
    p: Products,
    x_RD: Tensor,
    ids_RK: Tensor,
    weight_RK: Tensor,
    gate_up_EDI: Tensor,
    down_EID: Tensor,
    limit: float,
    first: int,
    parts: int,
) -> Tensor:
    def hidden(gate_up: Tensor, weight: Tensor) -> Tensor:
        return clamped_swiglu(gate_up, limit)

    def out(rows: Tensor, weight: Tensor) -> Tensor:
        return weight * rows

    return run(p, x_RD, ids_RK - first, weight_RK, gate_up_EDI, down_EID, parts, hidden, out)


def experts_weighted(
    p: Products,
    x_RD: Tensor,
    ids_RK: Tensor,
    weight_RK: Tensor,
    gate_up_EDI: Tensor,
    down_EID: Tensor,
    limit: float,
    rounded: bool,
    first: int,
    parts: int,
) -> Tensor:
    def hidden(gate_up: Tensor, weight: Tensor) -> Tensor:
        return weighted(gate_up, weight, limit, rounded)

    def out(rows: Tensor, weight: Tensor) -> Tensor:
        return rows

    return run(p, x_RD, ids_RK - first, weight_RK, gate_up_EDI, down_EID, parts, hidden, out)


def run(
    p: Products,
    x_RD: Tensor,
    ids_RK: Tensor,
    weight_RK: Tensor,
    gate_up_EDI: Tensor,
    down_EID: Tensor,
    parts: int,
    hidden: Step,
    out: Step,
) -> Tensor:
    """`hidden` is between the products, `out` after them; a weight of zero gives zeros.

    `ids_RK` count from the first expert held; others are of experts that are not.
    """
    form = dense if p.library and x_RD.shape[0] <= DENSE_ROWS else apart
    return form(p, x_RD, ids_RK, weight_RK, gate_up_EDI, down_EID, parts, hidden, out)


def dense(
    p: Products,
    x_RD: Tensor,
    ids_RK: Tensor,
    weight_RK: Tensor,
    gate_up_EDI: Tensor,
    down_EID: Tensor,
    parts: int,
    hidden: Step,
    out: Step,
) -> Tensor:
    """Every expert in one batched product, the weights of those not chosen being zero."""
    rows, num_experts = x_RD.shape[0], gate_up_EDI.shape[0]
    x_RD = pad_rows(x_RD, p.tile)
    # One expert past the end takes the picks of experts that are not held.
    held_RK = (ids_RK >= 0) & (ids_RK < num_experts)
    weight_RE = weight_RK.new_zeros(x_RD.shape[0], num_experts + 1)
    weight_RE[:rows].scatter_(1, torch.where(held_RK, ids_RK, num_experts), weight_RK)
    weight_ER1 = weight_RE[:, :-1].T[:, :, None]
    hidden_ERI = hidden(p.batch(x_RD.expand(num_experts, -1, -1), gate_up_EDI), weight_ER1)
    out_ERD = out(p.batch(hidden_ERI, down_EID), weight_ER1)
    out_PERD = out_ERD.view(parts, num_experts // parts, *x_RD.shape)
    sums_PRD = out_PERD[:, 0]
    for expert in range(1, num_experts // parts):
        sums_PRD = sums_PRD + out_PERD[:, expert]
    return tree(sums_PRD)[:rows]


def apart(
    p: Products,
    x_RD: Tensor,
    ids_RK: Tensor,
    weight_RK: Tensor,
    gate_up_EDI: Tensor,
    down_EID: Tensor,
    parts: int,
    hidden: Step,
    out: Step,
) -> Tensor:
    num_experts = gate_up_EDI.shape[0]
    sums_PRD = x_RD.new_zeros(parts, *x_RD.shape)
    for expert in range(num_experts):
        row, pick = (ids_RK == expert).nonzero(as_tuple=True)
        if not len(row):
            continue
        picked_1RD = pad_rows(x_RD[row], p.tile)[None]
        weight_1R1 = pad_rows(weight_RK[row, pick], p.tile)[None, :, None]
        hidden_1RI = hidden(p.batch(picked_1RD, gate_up_EDI[expert][None]), weight_1R1)
        out_RD = out(p.batch(hidden_1RI, down_EID[expert][None]), weight_1R1)[0, : len(row)]
        sums_PRD[expert * parts // num_experts].index_add_(0, row, out_RD)
    return tree(sums_PRD)
