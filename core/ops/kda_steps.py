"""Kimi delta attention for window rows: the recurrence, one row after another.

Source: spec glm53 2.3, step 6.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tensorfold.core.ops.contract import Case, OpSpec, normal, uniform, whole


def step(
    state: Tensor, q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor]:
    """One row of every stream: state [B, H, K, V], q k decay [B, H, K], v [B, H, V], beta [B, H].

    Decay, read the prediction, update, read with the updated state.
    """
    state = state * decay[..., None]
    memory = torch.einsum("bhk,bhkv->bhv", k, state)
    state = state + k[..., None] * (beta[..., None] * (v - memory))[:, :, None]
    return state, torch.einsum("bhk,bhkv->bhv", q, state)


def reference(
    q_BWHK: Tensor,
    k_BWHK: Tensor,
    v_BWHV: Tensor,
    gate_BWHK: Tensor,
    beta_BWH: Tensor,
    lane_B: Tensor,
    count_B: Tensor,
    state_LHKV: Tensor,
) -> Tensor:
    """Outputs [B, W, H, V]; writes each lane's state after the first count_B of its W rows.

    gate is the logarithm of the decay. A count of 0 leaves the lane's state as it is, so rows that
    may be rejected are run once for their outputs and again, with their count, when it is known. A
    lane with a count stands in lane_B once.
    """
    state = state_LHKV[lane_B]
    outputs, states = [], [state]
    for row in range(q_BWHK.shape[1]):
        state, output = step(
            state,
            q_BWHK[:, row],
            k_BWHK[:, row],
            v_BWHV[:, row],
            torch.exp(gate_BWHK[:, row]),
            beta_BWH[:, row],
        )
        outputs.append(output)
        states.append(state)
    kept = torch.stack(states, 1)[torch.arange(lane_B.shape[0], device=lane_B.device), count_B]
    written = count_B > 0
    state_LHKV[lane_B[written]] = kept[written]
    return torch.stack(outputs, 1)


def shape(
    q_BWHK: Tensor,
    k_BWHK: Tensor,
    v_BWHV: Tensor,
    gate_BWHK: Tensor,
    beta_BWH: Tensor,
    lane_B: Tensor,
    count_B: Tensor,
    state_LHKV: Tensor,
) -> Tensor:
    return torch.empty_like(v_BWHV)


def unit(x: Tensor) -> Tensor:
    return x / torch.sqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def cases(generator: torch.Generator) -> list[Case]:
    found = []
    for width, size in ((1, 64), (3, 16), (8, 64)):
        lanes, heads = 75, 4
        args = {
            "q_BWHK": unit(normal(generator, 72, width, heads, size)) * size**-0.5,
            "k_BWHK": unit(normal(generator, 72, width, heads, size)),
            "v_BWHV": normal(generator, 72, width, heads, size),
            "gate_BWHK": -5 * uniform(generator, 72, width, heads, size),
            "beta_BWH": uniform(generator, 72, width, heads),
            "lane_B": torch.randperm(lanes, generator=generator)[:72],
            "count_B": whole(generator, 0, width + 1, 72),
            "state_LHKV": normal(generator, lanes, heads, size, size),
        }
        rows = ("q_BWHK", "k_BWHK", "v_BWHV", "gate_BWHK", "beta_BWH", "lane_B", "count_B")
        found.append(Case(name=f"{width}x{size}", args=args, rows=rows, budget=5e-6))
    return found


OP = OpSpec(
    name="kda_steps",
    schema=(
        "(Tensor q, Tensor k, Tensor v, Tensor gate, Tensor beta, Tensor lane, Tensor count,"
        " Tensor(a!) state) -> Tensor"
    ),
    reference=reference,
    shape=shape,
    cases=cases,
    mutates=("state_LHKV",),
    wide=("gate_BWHK", "beta_BWH", "state_LHKV"),
)
