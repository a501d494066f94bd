"""Kimi delta attention for prompt rows: blocks of 64 rows at absolute multiples of 64.

The reference is the recurrence itself; a kernel uses the block form. A short last block counts as
a full one whose missing rows have k, gate and beta zero, so that a row's bits do not depend on
where a prompt was cut. Source: spec glm53 2.3.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tensorfold.core.ops.contract import Case, OpSpec, normal, uniform
from tensorfold.core.ops.kda_steps import step, unit

BLOCK = 64
# What kernels bound their exponents by.
LEAST_GATE = -5.5


def reference(
    q_RHK: Tensor,
    k_RHK: Tensor,
    v_RHV: Tensor,
    gate_RHK: Tensor,
    beta_RH: Tensor,
    rows_NT: Tensor,
    lane_N: Tensor,
    state_LHKV: Tensor,
) -> Tensor:
    """Outputs [R, H, V]; rows of no block are zero. Writes each lane's state after its rows.

    rows_NT names each block's rows, R where a block is short; a lane's blocks follow one another
    in order. Gates are from LEAST_GATE to 0.
    """
    output_RHV = torch.zeros_like(v_RHV)
    for rows_T, lane in zip(rows_NT.tolist(), lane_N.tolist(), strict=True):
        for row in rows_T:
            if row == q_RHK.shape[0]:
                continue
            inputs = (q_RHK, k_RHK, v_RHV, torch.exp(gate_RHK), beta_RH)
            state, output = step(state_LHKV[lane][None], *(part[row][None] for part in inputs))
            state_LHKV[lane] = state[0]
            output_RHV[row] = output[0]
    return output_RHV


def shape(
    q_RHK: Tensor,
    k_RHK: Tensor,
    v_RHV: Tensor,
    gate_RHK: Tensor,
    beta_RH: Tensor,
    rows_NT: Tensor,
    lane_N: Tensor,
    state_LHKV: Tensor,
) -> Tensor:
    return torch.empty_like(v_RHV)


def cases(generator: torch.Generator) -> list[Case]:
    found = []
    for rows, size, bound in ((150, 16, 1.0), (200, 64, 1.0), (130, 64, 0.0)):
        heads = 4
        padded = -(-rows // BLOCK) * BLOCK
        index = torch.arange(padded).clamp(max=rows).view(-1, BLOCK)
        # With bound 0 every gate is at -5, where a naive cumulated form overflows.
        gate = -5 * (
            uniform(generator, rows, heads, size) if bound else torch.ones(rows, heads, size)
        )
        args = {
            "q_RHK": unit(normal(generator, rows, heads, size)) * size**-0.5,
            "k_RHK": unit(normal(generator, rows, heads, size)),
            "v_RHV": normal(generator, rows, heads, size),
            "gate_RHK": gate,
            "beta_RH": uniform(generator, rows, heads),
            "rows_NT": index,
            "lane_N": torch.full((len(index),), 1),
            "state_LHKV": normal(generator, 3, heads, size, size),
        }
        found.append(Case(name=f"{rows}x{size}", args=args, rows=(), budget=1e-5))
    return found


OP = OpSpec(
    name="kda_blocks",
    schema=(
        "(Tensor q, Tensor k, Tensor v, Tensor gate, Tensor beta, Tensor rows, Tensor lane,"
        " Tensor(a!) state) -> Tensor"
    ),
    reference=reference,
    shape=shape,
    cases=cases,
    mutates=("state_LHKV",),
    wide=("gate_RHK", "beta_RH", "state_LHKV"),
)
