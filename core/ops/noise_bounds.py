"""Upper bounds of every token's noisy score, cheap enough for a whole vocabulary."""

from __future__ import annotations

import torch
from torch import Tensor

from tensorfold.core.ops.contract import Case, OpSpec, normal, whole
from tensorfold.core.ops.keyed_noise import token_bits, uniform


def reference(scaled_NV: Tensor, key_N: Tensor, slack: float) -> Tensor:
    """scaled + slack - log(1 - u), float64 [N, V], u the uniform number of each token's noise under
    its row's key (`core/keyed.py`): at least scaled + noise, since -log(-log(u)) <= -log(1 - u)."""
    id_V = torch.arange(scaled_NV.shape[1], device=scaled_NV.device)
    beyond_NV = 1.0 - uniform(token_bits(key_N, id_V[None]))
    return scaled_NV + (slack - torch.log(beyond_NV))


def shape(scaled_NV: Tensor, key_N: Tensor, slack: float) -> Tensor:
    return scaled_NV.new_empty(scaled_NV.shape)


def cases(generator: torch.Generator) -> list[Case]:
    return [
        Case(
            name=str(size),
            args={
                "scaled_NV": normal(generator, 328, size, scale=4.0).double(),
                "key_N": whole(generator, -(2**63), 2**63 - 1, 328),
                "slack": 1e-2,
            },
            rows=("scaled_NV", "key_N"),
        )
        for size in (1, 163, 5000)
    ]


OP = OpSpec(
    name="noise_bounds",
    schema="(Tensor scaled, Tensor key, float slack) -> Tensor",
    reference=reference,
    shape=shape,
    cases=cases,
    wide=("scaled_NV",),
)
